"""The messages of one rank: a program's operations with FIFO steps and NICs (spec 3.1, 3.2)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

from genie.replay.nccl.program import INTRA, PEEK, Block, join

MESSAGE = np.dtype(
    [
        ("channel", "u2"),
        ("group", "u2"),
        ("peer", "i4"),
        ("direction", "u1"),
        ("nbytes", "i8"),
        ("step", "i8"),
        ("nic", "i2"),
        ("proxy", "i4"),
    ]
)
"""One message.

`group`: thread group (ring and PAT 0; tree 0 up, 1 or 2 down; NVLS_TREE 4 up, 6 down; sends and
receives: number of the batch on the channel); a receive has its sender's group. `direction`: 0
send, 1 receive. `nbytes`: bytes on the wire. `step`: first FIFO step on its connection, counted
from 0 in a lone schedule. `nic`: this rank's NIC on its host (-1: message stays on the host).
`proxy`: the rank whose GPU the NIC belongs to, another one with PXN.
"""

NicOf = Callable[[int, int, int], tuple[int, int]]
"""(peer, channel, direction) -> (NIC, proxy rank)."""

Bools = npt.NDArray[np.bool_]


def messages(
    blocks: Iterable[Block],
    nic_of: NicOf,
    mirror: Callable[[int, int, int], int],
    *,
    intra: bool = False,
) -> npt.NDArray[np.void]:
    """Messages of a collective's streams, one after the other.

    Args:
        blocks: the rank's streams.
        nic_of: NIC and proxy of a message to or from a peer.
        mirror: (group, channel, peer) -> the group in which the peer sends what is received.
        intra: also list messages between ranks of one host.

    Returns:
        Array of `MESSAGE`.
    """
    counters: dict[tuple[int, int, int, int], int] = {}
    tables = [_rows(block, nic_of, mirror, intra, counters) for block in blocks]
    return join(tables, MESSAGE)


def _rows(
    block: Block,
    nic_of: NicOf,
    mirror: Callable[[int, int, int], int],
    intra: bool,
    counters: dict[tuple[int, int, int, int], int],
) -> npt.NDArray[np.void]:
    """Messages of one stream; `counters` holds the next FIFO step of each connection."""
    ops = block.ops
    if block.period:
        return _periodic_rows(block, nic_of, mirror, intra, counters)
    unlisted = PEEK if intra else PEEK | INTRA
    ops = ops[(ops["flags"] & unlisted) == 0]
    rows = np.zeros(len(ops), MESSAGE)
    rows["channel"] = channel = block.channel
    rows["group"] = block.group
    rows["peer"] = ops["peer"]
    rows["direction"] = ops["kind"]
    rows["nbytes"] = ops["nbytes"]
    key = ops["peer"].astype(np.int64) << 9 | ops["kind"].astype(np.int64) << 8 | ops["conn"]
    pending: Bools = np.ones(len(ops), np.bool_)
    while True:
        at = int(pending.argmax()) if len(pending) else 0
        if not len(pending) or not pending[at]:
            return rows
        mask: Bools = key == key[at]
        pending &= ~mask
        peer, direction, conn, local = (
            int(ops[name][at]) for name in ("peer", "kind", "conn", "flags")
        )
        took = ops["steps"][mask].astype(np.int64)
        ends = np.cumsum(took) + counters.get((channel, peer, direction, conn), 0)
        counters[channel, peer, direction, conn] = int(ends[-1])
        rows["step"][mask] = ends - took
        if direction:
            rows["group"][mask] = mirror(block.group, channel, peer)
        nic, proxy = -1, -1
        if not local & INTRA:
            nic, proxy = nic_of(peer, channel, direction)
        rows["nic"][mask] = nic
        rows["proxy"][mask] = proxy


def _periodic_rows(
    block: Block,
    nic_of: NicOf,
    mirror: Callable[[int, int, int], int],
    intra: bool,
    counters: dict[tuple[int, int, int, int], int],
) -> npt.NDArray[np.void]:
    """As `_rows`, for a stream that repeats the same few operations."""
    channel = block.channel
    ops = block.ops.reshape(-1, block.period)
    first = ops[0]
    if not intra:
        listed = np.flatnonzero((first["flags"] & INTRA) == 0)
        if len(listed) < block.period:
            ops, first = ops[:, listed], first[listed]
    rows = np.zeros(ops.shape, MESSAGE)
    rows["channel"] = channel
    rows["nbytes"] = ops["nbytes"]
    number = np.arange(len(ops), dtype=np.int64)
    for column, (peer, _, _, direction, flags, steps, conn) in enumerate(first.tolist()):
        key = (channel, peer, direction, conn)
        start = counters.get(key, 0)
        counters[key] = start + len(ops) * steps
        nic, proxy = -1, -1
        if not flags & INTRA:
            nic, proxy = nic_of(peer, channel, direction)
        at = rows[:, column]
        at["group"] = mirror(block.group, channel, peer) if direction else block.group
        at["peer"], at["direction"] = peer, direction
        at["step"] = start + number * steps
        at["nic"], at["proxy"] = nic, proxy
    return rows.reshape(-1)
