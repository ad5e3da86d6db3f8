"""What holds for every schedule: sent is received, in order, and the totals are right."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from genie.errors import ScheduleError
from genie.replay.nccl.program import PEEK, SEND

if TYPE_CHECKING:
    from genie.replay.nccl.program import Program
    from genie.replay.nccl.schedule import Schedule

MOST_RANKS = 64
"""Ranks checked of a larger communicator: the first ones, with all their peers."""

Flows = dict[tuple[int, int, int], npt.NDArray[np.int64]]


def flows(program: Program, kind: int) -> Flows:
    """Sizes of the messages to (SEND) or from (RECV) each (channel, peer, connection index)."""
    ops = program.ops
    channel = np.repeat(program.streams["channel"], program.streams["count"]).astype(np.int64)
    kept = (ops["kind"] == kind) & ((ops["flags"] & PEEK) == 0)
    key = channel[kept] << 40 | ops["conn"][kept].astype(np.int64) << 32 | ops["peer"][kept]
    order = np.argsort(key, kind="stable")
    unique, starts = np.unique(key[order], return_index=True)
    sizes = np.split(ops["nbytes"][kept][order].astype(np.int64), starts[1:])
    return {
        (int(k >> 40), int(k & 0xFFFFFFFF), int(k >> 32 & 0xFF)): value
        for k, value in zip(unique.tolist(), sizes, strict=False)
    }


def check(schedule: Schedule) -> None:
    """Hold a schedule to its laws; see `Schedule.check`."""
    n = schedule.cluster.n_ranks
    incoming: dict[int, Flows] = {}
    for rank in range(min(n, MOST_RANKS)):
        for (channel, peer, conn), sent in flows(schedule.program(rank), SEND).items():
            if peer == rank:
                raise ScheduleError(f"rank {rank} sends to itself on channel {channel}", rank=rank)
            if peer not in incoming:
                incoming[peer] = flows(schedule.program(peer), 1 - SEND)
            received = incoming[peer].get((channel, rank, conn))
            if received is None or not np.array_equal(sent, received):
                found = "none" if received is None else f"{len(received)}, {received.sum()} bytes"
                raise ScheduleError(
                    f"rank {rank} sends {len(sent)} messages, {sent.sum()} bytes, to rank {peer} "
                    f"on channel {channel}; rank {peer} expects {found}",
                    rank=rank,
                    peer=peer,
                    channel=channel,
                )
    if n <= MOST_RANKS:
        _nothing_else(schedule, incoming, n)
    _parts(schedule)


def _nothing_else(schedule: Schedule, incoming: dict[int, Flows], n: int) -> None:
    outgoing = {rank: flows(schedule.program(rank), SEND) for rank in range(n)}
    for rank in range(n):
        expected = incoming.get(rank) or flows(schedule.program(rank), 1 - SEND)
        for channel, peer, conn in expected:
            if (channel, rank, conn) not in outgoing[peer]:
                raise ScheduleError(
                    f"rank {rank} waits for rank {peer} on channel {channel}, which sends nothing",
                    rank=rank,
                    peer=peer,
                    channel=channel,
                )


def _parts(schedule: Schedule) -> None:
    if schedule.choice is None:
        return
    total = int(schedule.parts["count"].sum())
    if total != schedule.count:
        raise ScheduleError(
            f"{schedule.kind}: the channels hold {total} elements of {schedule.count}"
        )
