"""Critical path of a step: what the end of the step waited for, back to its start.

From the last end of an iteration the path goes back: through a collective to the rank that came
last to it (its transfer lies on the path from then on), through compute and sends to their own
start, then to what ended last on that rank before; what lies between is idle. The path is read
off times, not off dependencies: it is one chain that explains the step's length, and its parts
add up to it exactly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from genie.compare.instances import sequence
from genie.compare.metrics.step import COMPUTE_KINDS
from genie.replay.tables import N_COLLECTIVES

if TYPE_CHECKING:
    from genie.compare.truth.model import Truth

PARTS = ("compute", "communication", "idle")

#: One piece of the path; pieces are in time order and leave no gap.
PIECE = np.dtype(
    [
        ("rank", "i4"),
        ("part", "u1"),  # index into PARTS
        ("start_ns", "i8"),
        ("end_ns", "i8"),
        ("kind", "i4"),  # code of truth.model.KINDS, -1 idle
        ("name", "i4"),  # the side's label, -1 none
    ]
)


def critical_path(side: Truth, iteration: int | None = None) -> npt.NDArray[np.void]:
    """Return the `PIECE` rows of one iteration's critical path, none where there are no times.

    Args:
        side: A run.
        iteration: Which one; None takes the first measured.
    """
    ops, seq = side.ops, sequence(side)
    if side.compute is not None:
        ops = np.concatenate([ops, side.compute])
        seq = np.concatenate([seq, np.full(len(side.compute), -1, seq.dtype)])
    timed = (ops["start_ns"] >= 0) & (ops["end_ns"] >= ops["start_ns"]) & (ops["rank"] >= 0)
    numbers = np.unique(ops["iteration"][timed])
    measured = numbers[numbers >= 0] if (numbers >= 0).any() else numbers
    if not len(measured):
        return np.zeros(0, PIECE)
    timed &= ops["iteration"] == (measured[0] if iteration is None else iteration)
    ops, seq = ops[timed], seq[timed]
    if not len(ops):
        return np.zeros(0, PIECE)
    return _walk(ops, _last_of(ops, seq))


def _last_of(ops: npt.NDArray[np.void], seq: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    """Return, for each row, the row of the rank that came last to the same collective."""
    out = np.arange(len(ops))
    rows = np.flatnonzero((ops["kind"] < N_COLLECTIVES) & (seq >= 0))
    if not len(rows):
        return out
    keys = np.stack([ops["communicator"][rows], seq[rows], ops["kind"][rows]], axis=1)
    _, group = np.unique(keys, axis=0, return_inverse=True)
    group = group.reshape(-1)
    order = np.lexsort((ops["start_ns"][rows], group))
    last = np.flatnonzero(np.diff(np.append(group[order], -1)))
    out[rows] = rows[order[last]][group]
    return out


def _walk(ops: npt.NDArray[np.void], last_of: npt.NDArray[np.int64]) -> npt.NDArray[np.void]:
    by_rank = {
        rank: np.flatnonzero(ops["rank"] == rank) for rank in np.unique(ops["rank"]).tolist()
    }
    by_rank = {
        rank: rows[np.argsort(ops["end_ns"][rows], kind="stable")] for rank, rows in by_rank.items()
    }
    begin = int(ops["start_ns"].min())
    at = int(ops["end_ns"].max())
    row = int(np.argmax(ops["end_ns"]))
    pieces = []
    while at > begin:
        through = int(last_of[row])
        rank = int(ops["rank"][through])
        start = min(int(ops["start_ns"][through]), at)
        part = 0 if ops["kind"][row] in COMPUTE_KINDS else 1
        if start < at:
            pieces.append((rank, part, start, at, ops["kind"][row], ops["name"][row]))
            at = start
        rows = by_rank[rank]
        # What ended last on this rank by then; of equal ends, any but the one just left.
        before = int(np.searchsorted(ops["end_ns"][rows], at, side="right")) - 1
        while before >= 0 and (rows[before] == through or ops["start_ns"][rows[before]] >= at):
            before -= 1
        if before < 0:
            if at > begin:
                pieces.append((rank, 2, begin, at, -1, -1))
            break
        row = int(rows[before])
        end = int(ops["end_ns"][row])
        if end < at:
            pieces.append((rank, 2, end, at, -1, -1))
            at = end
    return np.array(pieces[::-1], PIECE)


def path_parts(side: Truth) -> dict[str, float]:
    """Return how long each part of the critical path of the first measured iteration is, ns."""
    pieces = critical_path(side)
    length = pieces["end_ns"] - pieces["start_ns"]
    return (
        {name: float(length[pieces["part"] == i].sum()) for i, name in enumerate(PARTS)}
        if len(pieces)
        else {}
    )
