"""The report and the commands: files, exit codes, and the page in a real browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import genie
from compare.runs import simulated
from genie.cli import main
from genie.errors import RecordError


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """Return a healthy and a degraded recording, and the report of one against the other."""
    root = tmp_path_factory.mktemp("compare")
    simulated().save(root / "healthy")
    simulated(0.5).save(root / "degraded")
    genie.compare(simulated(0.5), simulated()).save(root / "report")
    return root / "healthy", root / "degraded", root / "report"


def test_report_needs_nothing_else(folders: tuple[Path, Path, Path]) -> None:
    text = (folders[2] / "report.html").read_text()
    assert not re.search(r"""(?:src|href)=["'](?!data:)""", text)
    assert "http://" not in re.sub(r"http://www\.w3\.org[^\"' ]*", "", text)
    assert "L0: messages" in text
    document = json.loads((folders[2] / "report.json").read_text())
    assert document["L0"]["rate"] == 1
    assert document["L2"]["step_error"] > 0.5
    for suffix in ("pdf", "svg", "png"):
        assert (folders[2] / "figures" / f"path.{suffix}").stat().st_size > 1000


def test_report_is_not_written_over(folders: tuple[Path, Path, Path], tmp_path: Path) -> None:
    found = genie.compare(simulated(), simulated())
    with pytest.raises(RecordError, match="force"):
        found.save(folders[2])
    (tmp_path / "mine").write_text("x")
    with pytest.raises(RecordError, match="is not a report"):
        found.save(tmp_path, force=True)
    assert (tmp_path / "mine").read_text() == "x"


def test_fail_above(folders: tuple[Path, Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    healthy, degraded, _ = folders
    command = ["compare", str(degraded), str(healthy), "--json", "--fail-above"]
    assert main([*command, "10"]) == 3
    out, err = capsys.readouterr()
    assert json.loads(out)["pairs"] > 0
    assert "above 10 %" in err
    assert main([*command, "1e6"]) == 0
    capsys.readouterr()
    assert main(["compare", str(healthy), str(healthy), "--fail-above", "0"]) == 0
    assert main(["compare", str(healthy), str(healthy), "--fail-above", "-1"]) == 1


def test_faults_in_both_worlds(
    folders: tuple[Path, Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    healthy, degraded, _ = map(str, folders)
    command = ["compare", healthy, healthy, "--fault", "nic", degraded, degraded]
    assert main([*command, "--json", "-o", str(tmp_path / "out")]) == 0
    found = json.loads(capsys.readouterr().out)["L3"]["step"]
    assert found["faults"] == ["nic"]
    assert found["errors"] == [0]
    assert found["replay"][0] == found["truth"][0] > 1.5
    text = (tmp_path / "out" / "report.html").read_text()
    assert "Fewer than 3 different faults: no rank correlation." in text
    assert main([*command, "--fault", "nic", healthy, healthy]) == 1
    assert "--fault: a name is given twice: nic, nic" in capsys.readouterr().err


@pytest.mark.parametrize("size", ["1280,900", "390,844"])
def test_page_in_a_browser(folders: tuple[Path, Path, Path], tmp_path: Path, size: str) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("neither chromium nor google-chrome is installed")
    # The page is measured by a script of its own, so that what is tested is what a user has.
    probe = (
        "<script>addEventListener('load', () => {"
        "document.querySelectorAll('th button')[2].click();"
        "const wide = document.documentElement.scrollWidth - innerWidth;"
        "const broken = [...document.images].filter(i => !i.naturalWidth).length;"
        "const first = document.querySelector('tbody tr td').textContent;"
        "document.title = `wide=${wide} broken=${broken} first=${first}`;});</script>"
    )
    page = tmp_path / "page.html"
    text = (folders[2] / "report.html").read_text()
    page.write_text(text.replace("</body>", probe + "</body>"))
    done = subprocess.run(
        [browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
         "--enable-logging=stderr", "--v=0", f"--user-data-dir={tmp_path / 'profile'}",
         f"--window-size={size}", "--virtual-time-budget=5000", "--dump-dom", page.as_uri()],
        capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-1000:]
    title = re.search(r"<title>([^<]*)</title>", done.stdout)
    assert title is not None
    found = re.match(r"wide=(-?\d+) broken=(\d+)", title[1])
    assert found is not None, title[1]
    assert int(found[1]) <= 0, "the page is wider than the window"
    assert int(found[2]) == 0
    assert "CONSOLE" not in done.stderr, done.stderr[-2000:]
    assert 'aria-sort="ascending"' in done.stdout
