"""The messages of one rank: a program's operations with FIFO steps and NICs (spec 3.1, 3.2)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from genie.replay.nccl.program import INTRA, PEEK, Program

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
    program: Program,
    nic_of: NicOf,
    mirror: Callable[[int, int, int], int],
    *,
    intra: bool = False,
) -> npt.NDArray[np.void]:
    """Messages of a collective's program, stream after stream.

    Args:
        program: the rank's program.
        nic_of: NIC and proxy of a message to or from a peer.
        mirror: (group, channel, peer) -> the group in which the peer sends what is received.
        intra: also list messages between ranks of one host.

    Returns:
        Array of `MESSAGE`.
    """
    ops = program.ops
    kept: Bools = (ops["flags"] & PEEK) == 0
    if not intra:
        kept &= (ops["flags"] & INTRA) == 0
    total = int(np.count_nonzero(kept))
    out = np.zeros(total, MESSAGE)
    out["peer"] = ops["peer"][kept]
    out["direction"] = ops["kind"][kept]
    out["nbytes"] = ops["nbytes"][kept]
    steps = ops["steps"][kept]
    conn = ops["conn"][kept]
    local = (ops["flags"][kept] & INTRA) != 0
    counters: dict[tuple[int, int, int, int], int] = {}
    # A stream's rows are a run of the kept ones.
    ends = np.cumsum(kept)
    start = 0
    for stream in program.streams:
        stop = int(ends[stream["first"] + stream["count"] - 1])
        if stop == start:
            continue
        rows = out[start:stop]
        channel, group = int(stream["channel"]), int(stream["group"])
        rows["channel"] = channel
        rows["group"] = group
        keys = (
            rows["peer"].astype(np.int64) << 9
            | rows["direction"].astype(np.int64) << 8
            | conn[start:stop]
        )
        left = keys
        while len(left):
            key = int(left[0])
            left = left[left != key]
            peer, direction, index = key >> 9, key >> 8 & 1, key & 0xFF
            mask: Bools = keys == key
            took = steps[start:stop][mask].astype(np.int64)
            base = counters.get((channel, peer, direction, index), 0)
            total_steps = np.cumsum(took)
            rows["step"][mask] = base + total_steps - took
            counters[channel, peer, direction, index] = base + int(total_steps[-1])
            if direction:
                rows["group"][mask] = mirror(group, channel, peer)
            nic, proxy = (
                (-1, -1) if local[start:stop][mask][0] else nic_of(peer, channel, direction)
            )
            rows["nic"][mask] = nic
            rows["proxy"][mask] = proxy
        start = stop
    return out
