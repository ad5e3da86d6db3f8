"""What one rank does for one collective, as the engine runs it: streams of sends and receives.

A program is two structured arrays. A *stream* is one NCCL thread group on one channel: its
operations run one after the other. The layout is the contract of docs/architecture.md; the engine
reads both arrays without a Python object per operation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

STREAM = np.dtype(
    [
        ("channel", "u2"),
        ("group", "u1"),
        ("lane", "u1"),
        ("phase", "u4"),
        ("first", "u4"),
        ("count", "u4"),
    ]
)
"""One stream: its channel, thread group, lane within the group, phase, and slice of the ops."""

OP = np.dtype(
    [
        ("peer", "i4"),
        ("nbytes", "u4"),
        ("call", "u4"),
        ("kind", "u1"),
        ("flags", "u1"),
        ("steps", "u1"),
        ("conn", "u1"),
    ]
)
"""One operation: a message sent to, or received from, `peer`; `nbytes` are bytes on the wire."""

SEND = 0
RECV = 1
PEEK = 1
"""Flag: wait for the next message of this connection but leave it there (PAT)."""
INTRA = 2
"""Flag: the peer is on the same host; the message never reaches a network."""

CONN_COLLECTIVE = 0
CONN_P2P = 1
CONN_NVSWITCH = 2
"""Only between ranks of one host: what an NVLS_TREE head hands back through the NVSwitch."""

FIFO_STEPS = 8
"""Slots of a connection's FIFO (NCCL_STEPS; spec section 0)."""

StreamArray = npt.NDArray[np.void]
OpArray = npt.NDArray[np.void]


@dataclass(frozen=True, eq=False)
class Program:
    """One rank's streams and operations for one collective or group of sends and receives.

    Attributes:
        streams: array of `STREAM`, by channel, then phase.
        ops: array of `OP`; a stream owns `ops[first : first + count]`.
        window: FIFO steps that may be in flight on one connection.
        windows: messages that each stream may have in flight at once (uint8, one a stream);
            8 unless a batch of sends and receives shares a proxy (spec section 3.9).
    """

    streams: StreamArray
    ops: OpArray
    window: int = FIFO_STEPS
    windows: npt.NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, np.uint8))

    def __post_init__(self) -> None:
        if len(self.windows) != len(self.streams):
            object.__setattr__(self, "windows", np.full(len(self.streams), self.window, np.uint8))
        for array in (self.streams, self.ops, self.windows):
            array.setflags(write=False)

    @property
    def nbytes(self) -> int:
        """Memory of the arrays, in bytes."""
        return int(self.streams.nbytes + self.ops.nbytes + self.windows.nbytes)

    def __repr__(self) -> str:
        return f"Program({len(self.streams)} streams, {len(self.ops)} ops)"


@dataclass(frozen=True)
class Block:
    """The operations of one stream before they are packed into a `Program`.

    Attributes:
        channel: the channel.
        group: thread group.
        ops: array of `OP`.
        period: if not 0, operation i and i + period differ in `nbytes` and `call` only, and no
            two of one period are the same way to the same peer.
        lane: see `STREAM`.
        phase: see `STREAM`.
    """

    channel: int
    group: int
    ops: OpArray
    period: int = 0
    lane: int = 0
    phase: int = 0


def pack(blocks: Iterable[Block]) -> Program:
    """Joins blocks into a program, in the order given; empty blocks leave no stream."""
    blocks = [block for block in blocks if len(block.ops)]
    streams = np.zeros(len(blocks), STREAM)
    total = 0
    for row, block in enumerate(blocks):
        streams[row] = (
            block.channel,
            block.group,
            block.lane,
            block.phase,
            total,
            len(block.ops),
        )
        total += len(block.ops)
    return Program(streams, join([block.ops for block in blocks], OP))


def join(tables: Sequence[npt.NDArray[np.void]], dtype: np.dtype[np.void]) -> OpArray:
    """Concatenates structured arrays of one dtype; NumPy alone would match fields each time."""
    if not tables:
        return np.zeros(0, dtype)
    if len(tables) == 1:
        return tables[0]
    return np.concatenate([table.view(np.uint8) for table in tables]).view(dtype)
