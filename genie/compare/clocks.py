"""Clocks of GPU ranks brought together by the ends of collectives.

Ranks on different hosts stamp with different clocks. In an all_reduce, all_gather,
reduce_scatter, all_to_all or barrier no rank can finish before the last one's data arrived, so
all finish within about one chunk's time of each other. Hence the offset of rank b against rank a
is the median of (end on b - end on a) over the collectives they share; ranks without a common
collective are joined through others. Broadcast, reduce, send and recv are not used: there a rank
may finish earlier.

Limits: the offset is known to the spread of ends only (`spread_ns`, the median absolute deviation
from the median); drift within the profile is not removed; a rank that is always the last to leave
looks late by that much.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from genie.compare.instances import sequence
from genie.compare.truth.model import KINDS
from genie.units import format_time

if TYPE_CHECKING:
    from genie.compare.truth.model import Truth

#: Kinds whose ranks end together.
TOGETHER = tuple(
    KINDS.index(name)
    for name in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
)
#: Formats whose ranks have clocks of their own.
OWN_CLOCKS = frozenset({"kineto", "nsys-sqlite", "pytorch-et-linked", "nccl-profiler-plugin"})


@dataclass(frozen=True)
class Offsets:
    """How far each rank's clock is ahead of the first rank's.

    Attributes:
        offset_ns: Rank → its clock minus the reference rank's, ns.
        spread_ns: Rank → median absolute deviation of what it is the median of, ns.
        shared: Rank → how many collectives it was taken from (0: the reference, or unknown).
    """

    offset_ns: dict[int, int]
    spread_ns: dict[int, float]
    shared: dict[int, int]


def offsets(truth: Truth) -> Offsets:
    """Return the clock offsets of a run's ranks; 0 where nothing ties a rank to the others."""
    ops = truth.ops
    ranks = sorted(set(ops["rank"].tolist()) - {-1})
    known: dict[int, int] = {rank: 0 for rank in ranks[:1]}
    spread, shared = dict.fromkeys(ranks, 0.0), dict.fromkeys(ranks, 0)
    between = _differences(truth)
    while True:
        # The pair of a known and an unknown rank with most collectives in common comes next.
        edges = [
            (len(values), a, b)
            for (a, b), values in between.items()
            if (a in known) != (b in known)
        ]
        if not edges:
            break
        _, a, b = max(edges, key=lambda edge: (edge[0], -edge[1], -edge[2]))
        values = np.array(between[a, b], np.int64)
        middle = int(np.median(values))
        new = b if a in known else a
        known[new] = known[a] + middle if new == b else known[b] - middle
        spread[new] = float(np.median(np.abs(values - middle)))
        shared[new] = len(values)
    return Offsets({rank: known.get(rank, 0) for rank in ranks}, spread, shared)


def _differences(truth: Truth) -> dict[tuple[int, int], list[int]]:
    """Return (rank a, rank b), a < b → end on b - end on a, of each collective both ended."""
    ops = truth.ops
    rows = np.flatnonzero(
        np.isin(ops["kind"], TOGETHER) & (ops["end_ns"] >= 0) & (ops["rank"] >= 0)
    )
    seq = sequence(truth)
    groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for row in rows.tolist():
        key = (
            int(ops["iteration"][row]),
            int(ops["communicator"][row]),
            int(seq[row]),
            int(ops["kind"][row]),
        )
        groups[key].append(row)
    found: dict[tuple[int, int], list[int]] = defaultdict(list)
    for members in groups.values():
        members.sort(key=lambda row: int(ops["rank"][row]))
        first = members[0]
        for row in members[1:]:
            pair = (int(ops["rank"][first]), int(ops["rank"][row]))
            if pair[0] != pair[1]:
                found[pair].append(int(ops["end_ns"][row]) - int(ops["end_ns"][first]))
    return found


def on_one_clock(truth: Truth) -> Truth:
    """Return a run with every rank's times on the clock of its lowest rank.

    Runs whose format has one clock already (a GENIE recording, tables) come back as they are.
    """
    if truth.format not in OWN_CLOCKS:
        return truth
    found = offsets(truth)
    if len(found.offset_ns) < 2:
        return truth
    largest = max(abs(offset) for offset in found.offset_ns.values())
    spread = max(found.spread_ns.values())
    lone = [rank for rank, n in list(found.shared.items())[1:] if not n]
    notes = [
        f"clocks of {len(found.offset_ns)} ranks aligned by ends of collectives: largest offset "
        f"{format_time(largest)}, spread of ends {format_time(spread)}"
    ]
    if lone:
        notes.append(f"no collective ties the clocks of ranks {lone} to the others")
    return replace(
        truth,
        ops=_shifted(truth.ops, found.offset_ns),
        compute=None if truth.compute is None else _shifted(truth.compute, found.offset_ns),
        messages=None if truth.messages is None else _shifted(truth.messages, found.offset_ns),
        notes=(*truth.notes, *notes),
    )


def _shifted(rows: npt.NDArray[np.void], offset_ns: dict[int, int]) -> npt.NDArray[np.void]:
    out = rows.copy()
    for rank, offset in offset_ns.items():
        mine = out["rank"] == rank
        for name in ("start_ns", "end_ns"):
            timed = mine & (out[name] >= 0)
            out[name][timed] -= offset
    return out
