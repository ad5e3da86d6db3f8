"""The commands of the documentation, run as they are written."""

from __future__ import annotations

import json
import re
import shlex
from functools import partial
from pathlib import Path

import pytest

from corpus_data import ROOT
from genie.cli import main
from genie.compare import report
from genie.compare.figures import style
from genie.compare.figures.catalogue import run_names


def commands() -> list[str]:
    text = (ROOT / "docs" / "compare.md").read_text()
    block = re.search(r"## Worked through\n.*?```bash\n(.*?)```", text, re.S)
    assert block
    return block[1].splitlines()


def test_replay_against_simulation_and_a_degraded_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "workloads").symlink_to(ROOT / "workloads")
    monkeypatch.chdir(tmp_path)
    codes = []
    # One format instead of three: the others are tested where figures are saved.
    monkeypatch.setattr(report, "save_figure", partial(style.save, formats=("svg",)))
    monkeypatch.setattr(style, "FORMATS", ("svg",))
    for line in commands():
        words = shlex.split(line.split("||")[0])
        assert words[0] == "genie"
        codes.append(main(words[1:] + ["--formats", "svg"] * (words[1] == "figure")))
    capsys.readouterr()
    assert codes == [0, 0, 0, 0, 3, 0]
    out = tmp_path / "demo-out"
    found = json.loads((out / "report" / "report.json").read_text())
    # The worker that replays sends what the simulation sends, to the byte and in order.
    assert found["L0"]["rate"] == 1
    assert found["pairs"] == 5 * 48
    assert found["matched_by"] == {"identity": 240, "order": 0, "table": 0}
    assert not found["only_replay"]
    assert not found["only_truth"]
    assert found["provenance"]["replay"]["manifest"]["mode"] == "replay"
    assert found["provenance"]["truth"]["manifest"]["mode"] == "simulate"
    assert found["health"]["timer_error_p99_ns"] > 0
    ab = json.loads((out / "ab" / "report.json").read_text())
    assert ab["L0"]["rate"] == 1
    assert max(row["median_error"] for row in ab["L1"]["by_band"]) > 1
    assert min(row["median_error"] for row in ab["L1"]["by_band"]) == 0
    for folder in ("report", "ab"):
        written = {path.stem for path in (out / folder / "figures").iterdir()}
        assert written == {*run_names(), "errors"}
        assert (out / folder / "report.html").stat().st_size > 100_000
    names = [path.name for path in (out / "figures").iterdir()]
    assert len(names) == len(run_names()) + 1
