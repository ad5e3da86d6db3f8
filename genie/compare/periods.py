"""Iterations of a run that does not name them, by the structure of the other run's iteration."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from genie.compare.truth.model import Truth


def with_iterations(truth: Truth, other: Truth) -> Truth:
    """Return `truth` with iterations numbered, if it repeats an iteration of `other`.

    A rank's operations are cut every K, K being how many one iteration of the same rank of
    `other` has, if there are at least 2 K of them, a multiple of K, and kinds and sizes repeat
    with period K. Ranks that do not fit leave the whole run as it is.
    """
    if not len(truth.ops) or (truth.ops["iteration"] >= 0).any():
        return truth
    if not (other.ops["iteration"] >= 0).any():
        return truth
    first = other.ops[
        other.ops["iteration"] == other.ops["iteration"][other.ops["iteration"] >= 0].min()
    ]
    iteration = np.full(len(truth.ops), -1, np.int32)
    default = _most(first["rank"])
    for rank in np.unique(truth.ops["rank"]).tolist():
        rows = np.flatnonzero(truth.ops["rank"] == rank)
        rows = rows[np.argsort(truth.ops["start_ns"][rows], kind="stable")]
        period = int((first["rank"] == rank).sum()) or default
        if not _repeats(truth.ops[rows], period):
            return truth
        iteration[rows] = np.arange(len(rows)) // period
    ops = truth.ops.copy()
    ops["iteration"] = iteration
    compute = None if truth.compute is None else _by_time(truth.compute, ops)
    note = f"{int(iteration.max()) + 1} iterations found by their repeating operations"
    return replace(truth, ops=ops, compute=compute, notes=(*truth.notes, note))


def _most(ranks: npt.NDArray[np.int32]) -> int:
    _, counts = np.unique(ranks, return_counts=True)
    return int(counts.max())


def _repeats(rows: npt.NDArray[np.void], period: int) -> bool:
    if period <= 0 or len(rows) < 2 * period or len(rows) % period:
        return False
    return all(
        bool((rows[name][period:] == rows[name][:-period]).all()) for name in ("kind", "nbytes")
    )


def _by_time(compute: npt.NDArray[np.void], ops: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
    """Return compute rows in the iteration whose last communication ends after they start."""
    out = compute.copy()
    for rank in np.unique(out["rank"]).tolist():
        mine = ops[ops["rank"] == rank]
        count = int(mine["iteration"].max(initial=-1)) + 1
        ends = np.array([mine["end_ns"][mine["iteration"] == i].max() for i in range(count)])
        rows = np.flatnonzero(out["rank"] == rank)
        at = np.searchsorted(np.maximum.accumulate(ends), out["start_ns"][rows], side="left")
        out["iteration"][rows] = np.minimum(at, count - 1)
    return out
