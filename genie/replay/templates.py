"""Which NCCL calls a trace makes: each distinct call is scheduled once and shared by its nodes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from genie.replay.communicators import Communicator
from genie.replay.sizes import call_size

if TYPE_CHECKING:
    from genie.replay.nccl.env import Nccl
    from genie.replay.nccl.program import Program
    from genie.replay.nccl.schedule import Schedule


@dataclass(frozen=True)
class CallKey:
    """What makes two NCCL calls the same call.

    Attributes:
        kind: Collective, or "send" / "recv".
        count: NCCL's count.
        dtype: Element type.
        root: Root rank in the communicator, 0 where there is none.
        shape: Identity of the communicator's cluster object.
        peer: For send/recv the other rank in the communicator, else -1.
        splits: Digest of an uneven all_to_all's byte matrix, else b"".
    """

    kind: str
    count: int
    dtype: str
    root: int
    shape: int
    peer: int = -1
    splits: bytes = b""


@dataclass(frozen=True, eq=False)
class Template:
    """One rank's part of a call: the unit that the engine stores once.

    Attributes:
        index: Position in `Plan.templates`.
        key: The call.
        rank: Rank in the communicator.
        schedule: The call's schedule.
        algorithm: NCCL algorithm ("ring", …, "p2p" for sends and receives).
        protocol: "ll", "ll128" or "simple".
    """

    index: int
    key: CallKey
    rank: int
    schedule: Schedule
    algorithm: str
    protocol: str

    @property
    def program(self) -> Program:
        """What that rank does; made when first asked for, kept by the schedule's own cache."""
        return self.schedule.program(self.rank)

    @cached_property
    def peers(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The tables `sends` and `receives`."""
        return _peers(self.program)

    @property
    def sends(self) -> npt.NDArray[np.int64]:
        """Rows (peer, channel, conn, nbytes, messages) of messages to other hosts."""
        return self.peers[0]

    @property
    def receives(self) -> npt.NDArray[np.int64]:
        """Rows (peer, channel, conn) of connections from other hosts."""
        return self.peers[1]


def _peers(program: Program) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the (sends, receives) tables of one program's network messages."""
    from genie.replay.nccl.program import INTRA, SEND

    ops, streams = program.ops, program.streams
    channel = np.repeat(streams["channel"].astype(np.int64), streams["count"])
    away = (ops["flags"] & INTRA) == 0
    # One integer a (peer, channel, conn): unique over rows of three is many times slower.
    key = (ops["peer"].astype(np.int64) << 24) | (channel << 8) | ops["conn"]
    sent = away & (ops["kind"] == SEND)
    unique, inverse, counts = np.unique(key[sent], return_inverse=True, return_counts=True)
    nbytes = np.bincount(
        inverse, weights=ops["nbytes"][sent].astype(np.float64), minlength=unique.size
    )
    sends = np.column_stack([*_fields(unique), nbytes.astype(np.int64), counts])
    receives = np.column_stack(_fields(np.unique(key[away & (ops["kind"] != SEND)])))
    return sends, receives


def _fields(keys: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
    """Return the peers, channels and connection indices packed into `keys`."""
    return [keys >> 24, (keys >> 8) & 0xFFFF, keys & 0xFF]


class TemplateTable:
    """Makes each distinct (call, rank) once."""

    def __init__(self, nccl: Nccl | None) -> None:
        self._nccl = nccl
        self._schedules: dict[CallKey, Schedule] = {}
        self._templates: dict[tuple[CallKey, int], Template] = {}
        self.all: list[Template] = []
        self.schedules: list[tuple[CallKey, Communicator, Schedule]] = []

    def collective(
        self,
        kind: str,
        nbytes: int,
        dtype: str | None,
        root: int,
        communicator: Communicator,
        splits: npt.NDArray[np.int64] | None = None,
    ) -> CallKey:
        """Return the key of a collective, scheduling it if it is new.

        Args:
            kind: Collective as the trace spells it.
            nbytes: The node's `comm_size` in bytes.
            dtype: Element type or None.
            root: Root rank in the communicator.
            communicator: Where it runs.
            splits: Bytes from each rank to each rank for an uneven all_to_all.
        """
        from genie.replay.nccl.schedule import schedule

        size = call_size(kind, nbytes, communicator.n_ranks, dtype)
        if kind == "all_to_all" and splits is None and size.padded_bytes:
            splits = _even_splits(nbytes, communicator.n_ranks)
        shape = id(communicator.cluster)
        if splits is None:
            key = CallKey(kind, size.count, size.dtype, root, shape)
        else:
            digest = hashlib.sha256(np.ascontiguousarray(splits).tobytes()).digest()
            key = CallKey(kind, nbytes, "int8", root, shape, splits=digest)
        if key not in self._schedules:
            made = schedule(
                kind,
                count=None if splits is not None else size.count,
                dtype=key.dtype,
                cluster=communicator.cluster,
                nccl=self._nccl,
                root=root,
                splits=splits,
                # PyTorch makes no call for an empty split (spec golden/sub README, dropZeros).
                drop_zeros=splits is not None,
            )
            self._schedules[key] = made
            self.schedules.append((key, communicator, made))
        return key

    def point_to_point(
        self, kind: str, nbytes: int, me: int, peer: int, communicator: Communicator
    ) -> CallKey:
        """Return the key of one send or receive of `nbytes` bytes between two ranks."""
        from genie.replay.nccl.schedule import p2p_group

        key = CallKey(kind, nbytes, "int8", me, id(communicator.cluster), peer=peer)
        if key not in self._schedules:
            sends = [(peer, nbytes)] if kind == "send" else []
            recvs = [(peer, nbytes)] if kind == "recv" else []
            made = p2p_group(sends, recvs, communicator.cluster, self._nccl, me)
            self._schedules[key] = made
            self.schedules.append((key, communicator, made))
        return key

    def template(self, key: CallKey, rank: int) -> Template:
        """Return `rank`'s part of call `key` (rank in its communicator)."""
        found = self._templates.get((key, rank))
        if found is not None:
            return found
        made = self._schedules[key]
        choice = getattr(made, "choice", None)
        template = Template(
            index=len(self.all),
            key=key,
            rank=rank,
            schedule=made,
            algorithm=choice.algorithm if choice is not None else "p2p",
            protocol=choice.protocol if choice is not None else "simple",
        )
        self.all.append(template)
        self._templates[key, rank] = template
        return template


def _even_splits(nbytes: int, n: int) -> npt.NDArray[np.int64]:
    """Return the byte matrix of an all_to_all whose input does not divide by `n`.

    The first `nbytes % n` peers get one byte more, as torch.tensor_split would.
    """
    row = np.full(n, nbytes // n, np.int64)
    row[: nbytes % n] += 1
    return np.tile(row, (n, 1))
