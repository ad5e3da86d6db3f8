"""An experiment on disk: recordings, runs, summary, report, figures."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from genie.errors import RecordError

if TYPE_CHECKING:
    from genie.experiment.result import ExperimentResult

#: The file that makes a folder an experiment's.
MARK = "summary.json"
RUNS = "runs.json"


def prepare(output: str | os.PathLike[str] | None, force: bool) -> Path | None:
    """Make the folder; what is there is replaced only with `force`, and only an experiment.

    Raises:
        RecordError: Something is in the way, or the disk refused.
    """
    if output is None:
        return None
    target = Path(output)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        ours = (target / MARK).is_file() or (target / RUNS).is_file()
        if not target.is_dir() or not ours:
            raise RecordError(f"{target}: holds no experiment; not touched", path=str(target))
        if not force:
            raise RecordError(
                f"{target}: an experiment is there already (overwrite it with --force)",
                path=str(target),
            )
        shutil.rmtree(target)
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise RecordError(f"{target}: cannot write there: {exc.strerror}") from exc
    return target


def keep_runs(result: ExperimentResult, target: Path) -> None:
    """Write the runs so far: what is done is not lost, whatever happens next."""
    _write(target / RUNS, {"runs": [run.to_json() for run in result.runs]})


def finish(result: ExperimentResult, target: Path) -> None:
    """Write summary.json, summary.md, report.html and the figures."""
    from genie.compare.figures.style import save
    from genie.experiment import report
    from genie.experiment.figure import figures

    drawn = []
    line = f"genie experiment {result.spec.name}, seed {result.spec.seed}, {result.began}"
    for name, caption, figure in figures(result):
        save(figure, target / "figures" / name, line)
        drawn.append((name, caption))
    (target / "summary.md").write_text(report.markdown(result, drawn), encoding="utf-8")
    (target / "report.html").write_text(report.page(result, drawn, target), encoding="utf-8")
    _write(target / MARK, result.to_json())


def _write(path: Path, document: dict[str, Any]) -> None:
    scratch = path.with_name(f".{path.name}")
    try:
        scratch.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n")
        scratch.replace(path)
    except OSError as exc:
        raise RecordError(f"{path}: not written: {exc.strerror}", path=str(path)) from exc
