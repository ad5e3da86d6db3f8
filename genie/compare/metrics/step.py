"""L2: what a training step's time is made of: compute, exposed communication, overlap."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from genie.compare.metrics.intervals import length, overlap, union
from genie.compare.truth.model import KINDS, UNKNOWN
from genie.replay.tables import N_COMM

if TYPE_CHECKING:
    from genie.compare.truth.model import Truth

COMPUTE_KINDS = [KINDS.index(name) for name in ("comp", "mem_load", "mem_store")]

#: One row an iteration and rank; all times ns.
STEP = np.dtype(
    [
        ("iteration", "i4"),
        ("rank", "i4"),
        ("step_ns", "i8"),  # first start to last end on this rank
        ("compute_ns", "i8"),  # union of compute
        ("communication_ns", "i8"),  # union of communication, waiting included
        ("overlap_ns", "i8"),  # both at once
        ("exposed_ns", "i8"),  # communication - overlap
        ("idle_ns", "i8"),  # neither
    ]
)


def step_times(truth: Truth) -> npt.NDArray[np.void]:
    """Return `STEP` rows of every iteration and rank that has times.

    With C and N the unions of a rank's compute and communication intervals:
    exposed = |N| - |C and N|, idle = step - |C or N|.
    """
    ops = _timed(truth)
    rows = []
    keys = np.unique(np.stack([ops["iteration"], ops["rank"]], axis=1), axis=0)
    for iteration, rank in keys.tolist():
        mine = ops[(ops["iteration"] == iteration) & (ops["rank"] == rank)]
        compute = mine[np.isin(mine["kind"], COMPUTE_KINDS)]
        communication = mine[(mine["kind"] < N_COMM) | (mine["kind"] == UNKNOWN)]
        busy = union(compute["start_ns"], compute["end_ns"])
        wire = union(communication["start_ns"], communication["end_ns"])
        both = overlap(busy, wire)
        step = int(mine["end_ns"].max() - mine["start_ns"].min())
        total = length(busy) + length(wire) - both
        rows.append(
            (
                iteration,
                rank,
                step,
                length(busy),
                length(wire),
                both,
                length(wire) - both,
                step - total,
            )
        )
    return np.array(rows, STEP)


def _timed(side: Truth) -> npt.NDArray[np.void]:
    """Return communications and compute of measured iterations that have a rank and times."""
    ops = side.ops
    if side.compute is not None:
        ops = np.concatenate([ops, side.compute])
    timed = (ops["start_ns"] >= 0) & (ops["end_ns"] >= 0) & (ops["rank"] >= 0)
    # Warm-up iterations are negative only where iterations are known at all.
    if (ops["iteration"] >= 0).any():
        timed &= ops["iteration"] >= 0
    return ops[timed]


def step_errors(replay: Truth, truth: Truth) -> dict[str, float]:
    """Return the errors of the step: time, exposed communication, overlap (replay / truth - 1).

    A step's time is that of its slowest rank; medians over iterations are compared.
    The run time is first start to last end of all measured iterations, divided by their number
    (the two sides may have run different numbers); `atlahs_error` is |replay - truth| / truth of
    it, as ATLAHS reports it (Shen et al., SC'25).
    """
    ours, other = step_times(replay), step_times(truth)
    if not len(ours) or not len(other):
        return {}
    found = {}
    for name in ("step_ns", "compute_ns", "communication_ns", "exposed_ns", "overlap_ns"):
        a, b = _median_of_worst(ours, name), _median_of_worst(other, name)
        found[name.removesuffix("_ns") + "_replay_ns"] = a
        found[name.removesuffix("_ns") + "_truth_ns"] = b
        found[name.removesuffix("_ns") + "_error"] = a / b - 1 if b > 0 else float("nan")
    a, b = _run_time(replay), _run_time(truth)
    found["runtime_replay_ns"], found["runtime_truth_ns"] = a, b
    found["runtime_error"] = a / b - 1 if b > 0 else float("nan")
    found["atlahs_error"] = abs(found["runtime_error"])
    return found


def _run_time(side: Truth) -> float:
    """Return the time of all measured iterations on all ranks, by iteration."""
    ops = _timed(side)
    span = int(ops["end_ns"].max()) - int(ops["start_ns"].min())
    return span / len(np.unique(ops["iteration"]))


def _median_of_worst(rows: npt.NDArray[np.void], name: str) -> float:
    """Return the median over iterations of the largest value over ranks."""
    worst = [rows[name][rows["iteration"] == i].max() for i in np.unique(rows["iteration"])]
    return float(np.median(worst))
