"""Work requests of sends and receives: connections shared between ranks (spec 3.9 and 4.3).

A host's ranks reach one remote rank on one channel through one proxy (PXN), and share its
connection. What they send side by side is announced by one CTS for all and leaves as one chain
of writes. Read in NCCL's source, not compared with compiled NCCL.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from genie.replay.nccl import p2p, wire
from genie.replay.nccl.p2p_messages import expand

if TYPE_CHECKING:
    from genie.replay.nccl.p2p_schedule import P2PSchedule

Table = npt.NDArray[np.void]
MAX_RECEIVES = 8


class Member(NamedTuple):
    """One rank's part in a shared connection: its messages, and their rows if they are ours."""

    nbytes: npt.NDArray[np.int64]
    first_row: int


class Request(NamedTuple):
    """One request of a connection: rows (-1: another rank's) and sizes of its messages."""

    number: int
    rows: list[int]
    nbytes: list[int]


def shared(schedule: P2PSchedule) -> bool:
    """Whether connections are shared (NCCL_NET_SHARED_BUFFERS, NCCL_NET_SHARED_COMMS)."""
    nccl = schedule.nccl
    buffers = nccl.get_int("NCCL_NET_SHARED_BUFFERS", -2)
    return buffers != 0 and nccl.get_int("NCCL_NET_SHARED_COMMS", 1) != 0


def p2p_work_requests(schedule: P2PSchedule, rank: int, conn: wire.Connection) -> Table:
    """Work requests that carry `rank`'s messages.

    Of a chain that several ranks share, the rank's own writes are listed, and the closing write
    with the sizes where its message is the last of the chain.

    Args:
        schedule: the group.
        rank: the rank.
        conn: how a connection uses its queue pairs.
    """
    own = schedule.p2p_parts(rank)
    own = own[own["intra"] == 0]
    counts = np.maximum(-(-own["nbytes"] // own["chunk"]), 1)
    first_row = np.cumsum(counts) - counts
    tables = []
    for request in _requests(_incoming(schedule, rank, own, first_row)):
        made = wire.receives(
            np.array(request.rows[:1]), np.array([request.number]), conn, len(request.rows)
        )
        tables.append(made)
    for request in _requests(_outgoing(schedule, rank, own, first_row)):
        rows, sizes = np.array(request.rows), np.array(request.nbytes)
        if (rows < 0).all():
            continue
        if len(rows) == 1:
            tables.append(wire.sends(rows, np.array([request.number]), sizes, conn))
        else:
            chain = wire.multi_send(rows, request.number, sizes, conn)
            tables.append(chain[chain["message"] >= 0])
    if not tables:
        return np.zeros(0, wire.WORK_REQUEST)
    joined = np.concatenate(tables)
    ordered: Table = joined[np.argsort(joined["message"], kind="stable")]
    return ordered


Groups = dict[tuple[int, ...], dict[tuple[int, ...], list[Member]]]
"""Connection -> batch -> members, in order."""


def _requests(groups: Groups) -> Iterator[Request]:
    """Requests of every connection: the n-th messages of a batch's members go together."""
    for batches in groups.values():
        number = 0
        for _, members in sorted(batches.items()):
            for begin in range(0, len(members), MAX_RECEIVES):
                some = members[begin : begin + MAX_RECEIVES]
                for k in range(max(len(member.nbytes) for member in some)):
                    here = [member for member in some if len(member.nbytes) > k]
                    yield Request(
                        number,
                        [m.first_row + k if m.first_row >= 0 else -1 for m in here],
                        [int(m.nbytes[k]) for m in here],
                    )
                    number += 1


def _incoming(
    schedule: P2PSchedule, rank: int, own: Table, first_row: npt.NDArray[np.int64]
) -> Groups:
    groups: Groups = {}
    for at in np.flatnonzero(own["direction"] == 1).tolist():
        part = own[at]
        peer, channel = int(part["peer"]), int(part["channel"])
        proxy = schedule.cluster.nic(peer, rank, channel, "p2p", 0)[1]
        batch = groups.setdefault((channel, proxy), {}).setdefault((int(part["batch"]),), [])
        batch.append(Member(expand(own[at : at + 1])[2], int(first_row[at])))
    return groups


def _outgoing(
    schedule: P2PSchedule, rank: int, own: Table, first_row: npt.NDArray[np.int64]
) -> Groups:
    cluster = schedule.cluster
    host = np.asarray(cluster.host_of)
    mine = own[own["direction"] == 0]
    reached = np.unique(mine["peer"])
    by_block = p2p.BATCHES.at(schedule.nccl.version) in ("block", "epoch")
    found: dict[tuple[int, ...], list[tuple[tuple[int, ...], int, Member]]] = {}
    ranks = np.flatnonzero(host == host[rank]).tolist() if schedule.knows_all_ranks else [rank]
    for other in ranks:
        table, rows = own, first_row
        if other != rank:
            table = schedule.p2p_parts(other)
            rows = np.full(len(table), -1)
        jobs = schedule.works(other)
        keep = np.flatnonzero(
            (table["direction"] == 0) & (table["intra"] == 0) & np.isin(table["peer"], reached)
        )
        for at in keep.tolist():
            part = table[at]
            peer, channel, work = int(part["peer"]), int(part["channel"]), int(part["work"])
            proxy = cluster.nic(other, peer, channel, "p2p", 0)[1]
            turn, round_ = int(jobs.turn[work]), int(jobs.round[work])
            batch: tuple[int, ...] = (int(part["batch"]),)
            if by_block:
                batch = turn, round_ // p2p.MAX_BATCH
            member = Member(expand(table[at : at + 1])[2], int(rows[at]))
            found.setdefault((channel, proxy, peer), []).append((batch, round_, member))
    groups: Groups = {}
    for connection, members in found.items():
        batches = groups.setdefault(connection, {})
        for batch, _, member in sorted(members, key=lambda item: item[:2]):
            batches.setdefault(batch, []).append(member)
    return groups
