"""Every notebook runs from top to bottom, as a script, in a process of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from corpus_data import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.py"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_percent_format_with_captions(path: Path) -> None:
    text = path.read_text()
    assert "format_name: percent" in text.split("# %%")[0]
    drawn = len(
        re.findall(r"^(?:figure = )?(?:run_figure|errors_figure|figure_schedule)\(", text, re.M)
    )
    assert text.count("**What to see.**") >= drawn


def test_there_are_five() -> None:
    assert [path.name[:2] for path in NOTEBOOKS] == ["01", "02", "03", "04", "05"]
