"""`experiment()`, without what it needs: `import genie` stays light."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from genie.experiment.result import ExperimentResult
    from genie.experiment.spec import Experiment


def experiment(
    spec: str | os.PathLike[str] | Mapping[str, Any] | Experiment,
    *,
    output: str | os.PathLike[str] | None = None,
    force: bool = False,
    progress: Callable[[int, int, str], None] | None = None,
    folder: str | os.PathLike[str] | None = None,
) -> ExperimentResult:
    """Run conditions x repetitions on a testbed in random order and summarise them.

    Args:
        spec: A TOML file, the name of a bundled experiment ("figure1"), the same as a dict, or an
            `Experiment` of `genie.experiment.spec`.
        output: Folder for every run's recording, summary.json, summary.md, report.html, figures.
        force: Replace an experiment that is there.
        progress: Called with (runs done, runs in all, what is next).
        folder: Where relative paths of the specification start; None is its file's folder.

    Raises:
        InputError: A specification that cannot be run.
        FabricError: A testbed that cannot be had here.
        ExperimentError: A run was limited by the CPU or failed, and the specification does not say
            to keep it; `result` and the folder have what was done. The testbed is gone.
        KeyboardInterrupt: Ctrl-C or SIGTERM; likewise.
    """
    from genie.experiment.run import run_experiment

    return run_experiment(spec, output, force, progress, folder)
