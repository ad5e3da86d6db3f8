"""Every notebook runs from top to bottom, as a script and in a kernel, on public names only."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import genie
from corpus_data import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.py"))
DRAWS = re.compile(r"^(?:\w+ = )?genie\.figure\(", re.M)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_plot_has_a_caption_right_after_it(path: Path) -> None:
    text = path.read_text()
    cells = text.split("# %%")
    assert "format_name: percent" in cells[0]
    drawn = [i for i, cell in enumerate(cells) if DRAWS.search(cell)]
    assert drawn
    for i in drawn:
        assert len(DRAWS.findall(cells[i])) == 1
        assert "**What to see.**" in cells[i + 1]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_only_public_names(path: Path) -> None:
    used = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for name in node.names:
                assert not name.name.startswith("genie."), name.name
        elif isinstance(node, ast.ImportFrom):
            assert not (node.module or "").startswith("genie"), node.module
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "genie"
        ):
            used.add(node.attr)
        if isinstance(node, ast.Attribute):
            assert not node.attr.startswith("_"), node.attr
    assert used
    assert used <= set(genie.__all__)


def test_there_are_five() -> None:
    assert [path.name[:2] for path in NOTEBOOKS] == ["01", "02", "03", "04", "05"]


def test_in_a_kernel_progress_is_a_display_that_updates() -> None:
    pytest.importorskip("nbclient", reason="nbclient and ipykernel are not installed (extra: docs)")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed (extra: docs)")
    import jupytext
    import nbclient

    book = jupytext.read(ROOT / "notebooks" / "01_quickstart.py")
    nbclient.NotebookClient(
        book, timeout=240, resources={"metadata": {"path": str(ROOT / "notebooks")}}
    ).execute()
    outputs = [output for cell in book.cells if cell.cell_type == "code" for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error"]
    assert not [output for output in outputs if output.get("name") == "stderr"]
    texts = [str(output.get("data", {}).get("text/plain", "")) for output in outputs]
    live = [text for text in texts if text.startswith("replay: ")]
    # One output that was replaced as long as the replay ran.
    assert len(live) == 1
    assert re.fullmatch(r"replay: over after \d+\.\d s", live[0])
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 2
