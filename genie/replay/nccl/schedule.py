"""`Schedule`: one collective or group of sends and receives, down to messages and programs."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from genie import checks
from genie.errors import InputError, UnsupportedCollectiveError
from genie.replay.nccl.choice import Choice, choose
from genie.replay.nccl.chunk import last_loop_alignment
from genie.replay.nccl.collective import Shape, make_shape, rank_blocks, sender_group
from genie.replay.nccl.context import check_setting
from genie.replay.nccl.env import Nccl
from genie.replay.nccl.group import TaskLike, plan_group
from genie.replay.nccl.messages import MESSAGE
from genie.replay.nccl.messages import messages as messages_of
from genie.replay.nccl.names import DTYPE_SIZE, dtype_name, function_code, op_name
from genie.replay.nccl.network import network_messages
from genie.replay.nccl.partition import PART, plan_count
from genie.replay.nccl.partition import parts as parts_of
from genie.replay.nccl.program import Program, pack
from genie.replay.nccl.program_cache import PROGRAMS
from genie.replay.nccl.results import ScheduleResult

if TYPE_CHECKING:
    from genie.replay.cluster import Cluster

Table = npt.NDArray[np.void]

COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "reduce_scatter_block",
    "broadcast",
    "reduce",
    "barrier",
)
P2P_KINDS = ("all_to_all", "gather", "scatter", "send", "recv")

CALL = np.dtype(
    [
        ("channel", "u2"),
        ("group", "u2"),
        ("call", "u4"),
        ("peer", "i4"),
        ("direction", "u1"),
        ("elements", "i8"),
        ("nbytes", "i8"),
    ]
)
"""One primitive call towards one peer: `elements` of the plan's element size, `nbytes` of data."""


class Schedule(ScheduleResult):
    """What NCCL does for one call: choice, parts, and every rank's calls and messages.

    Made by `schedule`, `schedule_group` and `p2p_group`; it never changes.

    Attributes:
        kind: the collective, as the trace spells it.
        count: elements in the plan's element size (`choice.element_size`).
        dtype: element type of the call.
        op: reduction.
        root: root rank where there is one.
        cluster: the communicator, with the environment applied.
        nccl: release and environment.
        choice: algorithm, protocol, channels, warps, predicted time; None where NCCL chooses
            nothing (sends and receives, no data).
        parts: rows channel, count (elements), chunk_bytes; empty for sends and receives.
    """

    def __init__(
        self,
        kind: str,
        count: int,
        dtype: str,
        op: str,
        root: int,
        cluster: Cluster,
        nccl: Nccl,
        choice: Choice | None,
        parts: Table,
    ) -> None:
        self.kind = kind
        self.count = count
        self.dtype = dtype
        self.op = op
        self.root = root
        self.cluster = cluster
        self.nccl = nccl
        self.choice = choice
        self.parts = parts
        self._shape: Shape | None = None
        if choice is not None and len(parts):
            self._shape = make_shape(
                kind,
                choice.algorithm,
                choice.protocol,
                choice.element_size,
                last_loop_alignment(choice, nccl),
                root,
                nccl.version,
                cluster.buffer_bytes,
            )

    def program(self, rank: int) -> Program:
        """What `rank` does, as the engine runs it.

        Raises:
            InputError: no such rank.
        """
        self._check_rank(rank)
        return PROGRAMS.get(self, rank, self._make_program)

    def _make_program(self, rank: int) -> Program:
        return self._pack(rank, self._shape)

    def _pack(self, rank: int, shape: Shape | None) -> Program:
        return pack(rank_blocks(shape, self.parts, rank, self.cluster) if shape else [])

    def messages(self, rank: int, intra: bool = False) -> Table:
        """Messages that `rank` sends and receives, channel by channel in program order.

        Args:
            rank: the rank.
            intra: also list messages between ranks of one host.

        Returns:
            Array of `genie.replay.nccl.messages.MESSAGE`.

        Raises:
            InputError: no such rank.
        """
        self._check_rank(rank)
        checks.truth("intra", intra)
        shape, cluster = self._shape, self.cluster
        if shape is None:
            return np.zeros(0, MESSAGE)
        kind = _NIC_KIND.get(shape.algorithm, "ring")

        def nic(peer: int, channel: int, direction: int) -> tuple[int, int]:
            return cluster.nic(rank, peer, channel, kind, direction)

        def mirror(group: int, channel: int, peer: int) -> int:
            return sender_group(shape, cluster, group, channel, peer)

        if not intra:
            table = network_messages(shape, self.parts, rank, cluster, nic, mirror)
            if table is not None:
                return table
        blocks = rank_blocks(shape, self.parts, rank, cluster)
        return messages_of(blocks, nic, mirror, intra=intra)

    def calls(self, rank: int) -> Table:
        """Primitive calls of `rank`, one row per call and peer, in program order.

        Returns:
            Array of `CALL`.

        Raises:
            InputError: no such rank.
        """
        self._check_rank(rank)
        shape = self._shape
        program = self._pack(rank, shape and shape.as_data())
        out = np.zeros(len(program.ops), CALL)
        streams, ops = program.streams, program.ops
        for name in ("channel", "group"):
            out[name] = np.repeat(streams[name], streams["count"])
        out["call"], out["peer"], out["direction"] = ops["call"], ops["peer"], ops["kind"]
        out["nbytes"] = ops["nbytes"]
        out["elements"] = out["nbytes"] // (shape.element_size if shape else 1)
        return out

    def work_requests(self, rank: int, devices: int = 1, link_layer: str = "ethernet") -> Table:
        """Work requests that carry `rank`'s messages over NCCL's InfiniBand transport.

        Args:
            rank: the rank.
            devices: NIC ports merged into one NCCL device (ndevs).
            link_layer: "ethernet" (RoCE) or "infiniband".

        Returns:
            Array of `genie.replay.nccl.wire.WORK_REQUEST`; `message` is a row of `messages(rank)`.

        Raises:
            InputError: no such rank, or an argument out of range.
        """
        from genie.replay.nccl.wire import work_requests

        return work_requests(self.messages(rank), self.nccl, devices, link_layer)

    def check(self) -> None:
        """Hold the schedule to its laws: what is sent is received, in order; totals are right.

        Raises:
            ScheduleError: a law is broken; rank, peer and channel are named.
        """
        from genie.replay.nccl.laws import check

        check(self)

    def _check_rank(self, rank: int) -> None:
        if not _is_whole(rank) or not 0 <= rank < self.cluster.n_ranks:
            raise InputError(
                f"rank {checks.short(rank)} is not in this communicator of "
                f"{self.cluster.n_ranks} ranks",
                rank=rank,
            )

    @property
    def _method(self) -> str:
        if self.choice is None:
            return "no data"
        channels = len(self.parts)
        plural = "" if channels == 1 else "s"
        return f"{self.choice.algorithm} {self.choice.protocol} on {channels} channel{plural}"

    def __repr__(self) -> str:
        size = DTYPE_SIZE[self.dtype] if self.choice is None else self.choice.element_size
        return (
            f"<Schedule {self.kind}: {self.count * size} B of {self.dtype} over "
            f"{self.cluster.n_ranks} ranks, {self._method}>"
        )


_NIC_KIND = {"ring": "ring", "tree": "tree", "pat": "tree", "nvls_tree": "nvls"}
"""Graph whose NICs an algorithm's connections take; PAT runs on the tree graph (spec 2.1)."""


def schedule(
    kind: str,
    *,
    count: int | None = None,
    dtype: str = "float32",
    op: str = "sum",
    cluster: Cluster,
    nccl: Nccl | None = None,
    root: int = 0,
    splits: npt.ArrayLike | None = None,
    drop_zeros: bool = False,
    peer: int | None = None,
) -> Schedule:
    """Say exactly what NCCL would send for one collective.

    Args:
        kind: all_reduce, all_gather, reduce_scatter (or reduce_scatter_block), broadcast, reduce,
            barrier, all_to_all, gather, scatter; send or recv between `root` and `peer`.
        count: elements as NCCL's call counts them: the whole buffer of all_reduce, broadcast and
            reduce, one rank's part of all_gather and reduce_scatter, the data of one peer of
            all_to_all, gather and scatter. A barrier needs none.
        dtype: element type.
        op: reduction.
        cluster: the communicator.
        nccl: release, environment and choices; 2.30 with its defaults if not given.
        root: root of broadcast, reduce, gather, scatter; sender of send and recv.
        splits: all_to_all only: elements from each rank (row) to each rank (column).
        drop_zeros: with `splits`, calls of no data are not made, as PyTorch does it.
        peer: receiver of send and recv.

    Raises:
        InputError: an argument that cannot be.
        UnsupportedCollectiveError: NCCL has no such collective, or no algorithm is left.
    """
    nccl = check_setting(nccl, cluster)
    # Text and whole numbers alone: what else a caller gives is looked at below.
    plain = type(kind) is type(dtype) is type(op) is str and type(count) is type(root) is int
    plain = plain and splits is None and (peer is None or type(peer) is int)
    asked = (nccl, kind, count, dtype, op, root, peer) if plain else None
    if asked is not None:
        # What was asked before costs one look-up: a training step repeats few shapes.
        found = _known(cluster).get(asked)
        if found is not None:
            return found
    made = _checked_schedule(
        kind, count, dtype, op, cluster.with_nccl(nccl), nccl, root, splits, drop_zeros, peer
    )
    if asked is not None:
        _keep(_known(cluster), asked, made)
    return made


def _checked_schedule(
    kind: str,
    count: int | None,
    dtype: str,
    op: str,
    cluster: Cluster,
    nccl: Nccl,
    root: int,
    splits: npt.ArrayLike | None,
    drop_zeros: bool,
    peer: int | None,
) -> Schedule:
    checks.text("kind", kind)
    checks.truth("drop_zeros", drop_zeros)
    if kind == "barrier":
        # One element, whatever is given; what cannot be given is a mistake all the same.
        if count is not None:
            _count(kind, count)
        count = 1
    if kind not in COLLECTIVES and kind not in P2P_KINDS:
        raise UnsupportedCollectiveError(
            f"unknown collective {kind!r} (known: {', '.join(COLLECTIVES + P2P_KINDS)})",
            kind=str(kind),
            why="unknown",
        )
    if splits is not None and kind != "all_to_all":
        raise InputError(f"splits are for all_to_all, not {kind}")
    count = _count(kind, count) if splits is None else 0
    dtype, op = dtype_name(dtype), op_name(op)
    if count * DTYPE_SIZE[dtype] * cluster.n_ranks > _MOST_BYTES:
        raise InputError(f"{kind}: {count} {dtype} on {cluster.n_ranks} ranks is no real size")
    if not _is_whole(root) or not 0 <= root < cluster.n_ranks:
        raise InputError(f"{kind}: root {checks.short(root)} is not one of {cluster.n_ranks} ranks")
    if kind in P2P_KINDS:
        return _exchange(kind, count, dtype, cluster, nccl, root, peer, splits, drop_zeros)
    return _collective(kind, count, dtype, op, cluster, nccl, root)


def _effective(nccl: Nccl | None, cluster: Cluster) -> tuple[Nccl, Cluster]:
    nccl = check_setting(nccl, cluster)
    return nccl, cluster.with_nccl(nccl)


_MOST_BYTES = 1 << 62
"""All ranks' data together stay below what int64 holds."""


def _is_whole(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _count(kind: str, count: int | None) -> int:
    if isinstance(count, bool) or not isinstance(count, int | np.integer):
        raise InputError(f"{kind}: count is the number of elements, not {checks.short(count)}")
    return checks.whole("count", count, 0)


def _exchange(
    kind: str,
    count: int,
    dtype: str,
    cluster: Cluster,
    nccl: Nccl,
    root: int,
    peer: int | None,
    splits: npt.ArrayLike | None,
    drop_zeros: bool,
) -> Schedule:
    from genie.replay.nccl.p2p_schedule import p2p_schedule, split_matrix

    if kind == "all_to_all":
        root = 0
    if kind not in ("send", "recv"):
        peer = None
    elif not _is_whole(peer):
        told = checks.short(peer)
        raise InputError(f"{kind}: peer {told} is not one of {cluster.n_ranks} ranks (give peer=)")
    matrix = None if splits is None else split_matrix(splits, cluster.n_ranks)
    digest = b"" if matrix is None else blake2b(matrix.tobytes()).digest()
    key = (nccl, kind, count, dtype, root, peer, digest, drop_zeros)
    known = _known(cluster)
    found = known.get(key)
    if found is None:
        found = p2p_schedule(kind, count, dtype, cluster, nccl, root, peer, matrix, drop_zeros)
        _keep(known, key, found)
    return found


def _collective(
    kind: str, count: int, dtype: str, op: str, cluster: Cluster, nccl: Nccl, root: int
) -> Schedule:
    if kind not in ("broadcast", "reduce"):
        root = 0
    known = _known(cluster)
    key = (nccl, kind, count, dtype, op, root)
    found = known.get(key)
    if found is None:
        if count == 0 or cluster.n_ranks == 1:
            elements = plan_count(function_code(kind), count, dtype)
            choice, table = None, np.zeros(0, PART)
        else:
            choice = choose(kind, count, dtype, op, cluster, nccl)
            elements = plan_count(function_code(kind), count, dtype)
            table = parts_of(choice, kind, count, dtype, cluster, nccl)
        found = Schedule(kind, elements, dtype, op, root, cluster, nccl, choice, table)
        _keep(known, key, found)
    return found


_KEPT = 1 << 16


def _keep(known: dict[object, Schedule], key: object, made: Schedule) -> None:
    if len(known) >= _KEPT:
        known.clear()
    known[key] = made


def _known(cluster: Cluster) -> dict[object, Schedule]:
    """Schedules made on this cluster; they live as long as it does."""
    known: dict[object, Schedule] = vars(cluster).setdefault("_schedules", {})
    return known


def schedule_group(
    tasks: Sequence[TaskLike], *, cluster: Cluster, nccl: Nccl | None = None
) -> list[Schedule]:
    """Schedule several collectives of one NCCL group call.

    Args:
        tasks: (kind, count, dtype[, op[, root]]) of each collective, in call order.
        cluster: the communicator.
        nccl: release, environment and choices.

    Returns:
        One schedule a collective that moves data, in the order NCCL issues them.

    Raises:
        InputError: a task that is none.
        UnsupportedCollectiveError: broadcasts with different roots (AllGatherV), or a function
            without a candidate.
    """
    nccl, cluster = _effective(nccl, cluster)
    made = []
    for item in plan_group(tasks, cluster, nccl):
        task = item.task
        if not 0 <= task.root < cluster.n_ranks:
            raise InputError(f"{task.kind}: root {task.root} is not one of {cluster.n_ranks} ranks")
        choice = item.choice if cluster.n_ranks > 1 else None
        made.append(
            Schedule(
                task.kind,
                item.count,
                dtype_name(task.dtype),
                op_name(task.op),
                task.root if task.kind in ("broadcast", "reduce") else 0,
                cluster,
                nccl,
                choice,
                item.parts,
            )
        )
    return made


def p2p_group(
    sends: Sequence[tuple[int, int]],
    recvs: Sequence[tuple[int, int]],
    cluster: Cluster,
    nccl: Nccl | None = None,
    rank: int = 0,
) -> Schedule:
    """Schedule one rank's group of sends and receives (ncclGroupStart .. ncclGroupEnd).

    Args:
        sends: (peer, bytes) of each send, in call order.
        recvs: (peer, bytes) of each receive.
        cluster: the communicator.
        nccl: release and environment.
        rank: the rank that makes these calls; only its messages can be asked for.

    Raises:
        InputError: a peer that does not exist, or negative bytes.
    """
    from genie.replay.nccl.p2p_schedule import group_schedule

    nccl, effective = _effective(nccl, cluster)
    return group_schedule(sends, recvs, effective, nccl, rank)
