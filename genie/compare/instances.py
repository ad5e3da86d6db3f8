"""Operations of several ranks taken together: one row a collective, send or recv that ran.

What a collective's time is: on one rank it runs from when that rank entered it to when it left,
waiting for late ranks included. `transfer_ns` leaves the waiting out: it runs from the last rank's
start to the last rank's end, which is right when clocks agree and when no rank can leave before
the last one entered (all_reduce, all_gather, reduce_scatter, all_to_all, barrier). For rooted
kinds a rank may leave earlier; there it is an upper bound.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from genie.compare.truth.model import KINDS, UNKNOWN

if TYPE_CHECKING:
    from genie.compare.truth.model import Truth

#: One row an operation with its ranks together.
INSTANCE = np.dtype(
    [
        ("kind", "i4"),  # code of truth.model.KINDS
        ("communicator", "i4"),  # code of the side's own communicator labels
        ("iteration", "i4"),
        ("seq", "i4"),  # position in the communicator's order within the iteration
        ("nbytes", "i8"),  # -1 unknown
        ("ranks", "i4"),  # ranks seen
        ("group_size", "i4"),  # ranks of the communicator, -1 unknown
        ("first_start_ns", "i8"),
        ("last_start_ns", "i8"),
        ("end_ns", "i8"),
        ("transfer_ns", "f8"),  # last start to last end, ns
        ("busy_ns", "f8"),  # shortest duration over ranks: the rank that waited least, ns
        ("wait_ns", "f8"),  # mean over ranks of (last start - own start), ns
        ("algbw", "f8"),  # GB/s, by transfer_ns
        ("busbw", "f8"),
        ("peer", "i4"),
        ("first_row", "i8"),  # row of the side's ops, to name it
    ]
)

_COMM = frozenset(range(12)) | {UNKNOWN}


def sequence(truth: Truth) -> npt.NDArray[np.int32]:
    """Return each operation's position among its rank's operations of its communicator.

    The source's own `seq` is used where every communication has one; else the order of start
    times (of rows, where there are no times).
    """
    ops = truth.ops
    if len(ops) and (ops["seq"] >= 0).all():
        return ops["seq"].copy()
    out = np.full(len(ops), -1, np.int32)
    rows = np.flatnonzero(np.isin(ops["kind"], list(_COMM)))
    order = rows[
        np.lexsort(
            (
                rows,
                ops["start_ns"][rows],
                ops["kind"][rows] >= 10,
                ops["communicator"][rows],
                ops["iteration"][rows],
                ops["rank"][rows],
                ops["table"][rows],
            )
        )
    ]
    keys = np.stack(
        [ops[name][order] for name in ("table", "rank", "iteration", "communicator")]
        + [(ops["kind"][order] >= 10).astype(np.int32)],
        axis=1,
    )
    new = np.ones(len(order), bool)
    new[1:] = (keys[1:] != keys[:-1]).any(axis=1)
    start = np.maximum.accumulate(np.where(new, np.arange(len(order)), 0))
    out[order] = np.arange(len(order)) - start
    return out


def instances(truth: Truth) -> npt.NDArray[np.void]:
    """Return `INSTANCE` rows in order of iteration and start.

    A collective's rows of all ranks become one row; a send or recv is a row of its own; a table
    row that speaks for all ranks (nccl-tests) is a row of its own.
    """
    from genie.replay.bandwidth import algbw_gbps, bus_factor

    ops = truth.ops
    keep = np.flatnonzero(np.isin(ops["kind"], list(_COMM)))
    if not len(keep):
        return np.zeros(0, INSTANCE)
    seq = sequence(truth)[keep]
    rows = ops[keep]
    collective = (rows["kind"] < 10) & (rows["rank"] >= 0)
    # Rows that stand alone get a key of their own.
    alone = np.where(collective, -1, keep)
    keys = np.stack(
        [
            rows["iteration"],
            rows["communicator"],
            np.where(collective, seq, -1),
            rows["kind"],
            alone,
        ],
        axis=1,
    ).astype(np.int64)
    _, inverse = np.unique(keys, axis=0, return_inverse=True)
    inverse = inverse.reshape(-1)
    by = np.argsort(inverse, kind="stable")
    first = np.flatnonzero(np.diff(np.concatenate([[-1], inverse[by]])))
    rows, keep, seq = rows[by], keep[by], seq[by]
    out = np.zeros(len(first), INSTANCE)
    for name in ("kind", "communicator", "iteration", "nbytes", "group_size", "peer"):
        out[name] = rows[name][first]
    out["seq"] = seq[first]
    out["first_row"] = keep[first]
    out["ranks"] = np.diff(np.append(first, len(rows)))
    out["first_start_ns"] = np.minimum.reduceat(rows["start_ns"], first)
    out["last_start_ns"] = np.maximum.reduceat(rows["start_ns"], first)
    ends = np.minimum.reduceat(rows["end_ns"], first)
    out["end_ns"] = np.where(ends >= 0, np.maximum.reduceat(rows["end_ns"], first), -1)
    timed = (out["end_ns"] >= 0) & (out["first_start_ns"] >= 0)
    shortest = np.fmin.reduceat(rows["time_ns"], first)
    out["busy_ns"] = shortest
    out["transfer_ns"] = np.where(timed, out["end_ns"] - out["last_start_ns"], shortest)
    late = np.add.reduceat(rows["start_ns"], first) / out["ranks"]
    out["wait_ns"] = np.where(timed, out["last_start_ns"] - late, np.nan)
    sized = out["nbytes"] > 0
    out["algbw"] = np.where(sized, algbw_gbps(out["nbytes"], out["transfer_ns"]), np.nan)
    n = np.where(out["group_size"] > 0, out["group_size"], out["ranks"])
    factors = {
        (k, m): bus_factor(KINDS[k], m) if k != UNKNOWN and m > 0 else np.nan
        for k, m in set(zip(out["kind"].tolist(), n.tolist(), strict=True))
    }
    out["busbw"] = out["algbw"] * np.array(
        [factors[k, m] for k, m in zip(out["kind"].tolist(), n.tolist(), strict=True)]
    )
    return out[np.lexsort((out["first_row"], out["first_start_ns"], out["iteration"]))]
