"""What one worker needs of a plan, as arrays that travel and become an engine."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from genie.replay.packing import pack, unpack
from genie.replay.ranks import RankPlan

if TYPE_CHECKING:
    from genie._core.engine import Engine
    from genie.replay.plan import Plan

#: Raised when a worker of another version would misread a shard.
SHARD_VERSION = 1


@dataclass(frozen=True, eq=False)
class ShardProgram:
    """One template as the engine stores it.

    Attributes:
        streams: `program.STREAM` rows.
        ops: `program.OP` rows.
        window: FIFO steps in flight on a connection.
        windows: Messages in flight, one uint8 a stream.
        call_ns: Fixed GPU time of a call, ns.
        copy_gbps: Copy bandwidth of a channel, GB/s, 0 unlimited.
        reduce_gbps: Reduction bandwidth of a channel, GB/s, 0 unlimited.
    """

    streams: npt.NDArray[np.void]
    ops: npt.NDArray[np.void]
    window: int
    windows: npt.NDArray[np.uint8]
    call_ns: int
    copy_gbps: float
    reduce_gbps: float


@dataclass(frozen=True, eq=False)
class Shard:
    """One worker's part of a plan.

    Attributes:
        worker: Index of the worker (host), -1 when it is the whole plan.
        world_size: Ranks of the whole job.
        host_of: Host of every global rank.
        ranks: Plans of this worker's ranks; `template` counts in `programs`.
        programs: The templates these ranks run.
        communicators: (name, global ranks, exact) of all communicators.
        connections: `connections.CONN` rows this worker is an end of.
        connection_ids: Their numbers in the plan.
        local_ns: Latency of a hop inside the host, ns.
        local_gbps: Bandwidth of a hop inside the host, GB/s, 0 unlimited.
        joint: Of each communicator, whether it runs joint collectives only (`joint_collectives`);
            empty in a worker, where only the network decides.
    """

    worker: int
    world_size: int
    host_of: npt.NDArray[np.int32]
    ranks: list[RankPlan]
    programs: list[ShardProgram]
    communicators: list[tuple[str, npt.NDArray[np.int32], bool]]
    connections: npt.NDArray[np.void]
    connection_ids: npt.NDArray[np.uint32]
    local_ns: int
    local_gbps: float
    joint: tuple[bool, ...] = ()

    def engine(self, clock: str = "wall", **options: Any) -> Engine:
        """Return an engine with this shard's communicators, programs, ranks and connections.

        Args:
            clock: "wall" or "virtual".
            options: Passed on to `Engine`.
        """
        from genie._core.engine import Engine

        engine = Engine(clock=clock, **options)
        engine.set_local(latency_ns=self.local_ns, bytes_per_ns=self.local_gbps)
        for i, (_, members, _) in enumerate(self.communicators):
            engine.add_communicator(members, joint=bool(self.joint) and self.joint[i])
        for program in self.programs:
            engine.set_gpu(
                call_ns=program.call_ns,
                copy_bytes_per_ns=program.copy_gbps,
                reduce_bytes_per_ns=program.reduce_gbps,
            )
            engine.add_program(
                program.streams, program.ops, window=program.window, windows=program.windows
            )
        for rank in self.ranks:
            engine.add_rank(
                rank.rank,
                rank.cls,
                rank.delay_ns,
                rank.template,
                rank.communicator,
                rank.dep_indptr,
                rank.deps,
                host=int(self.host_of[rank.rank]),
            )
        engine.add_connections(self.connections, ids=self.connection_ids)
        return engine

    @property
    def n_nodes(self) -> int:
        """Nodes of this worker's ranks."""
        return sum(rank.n for rank in self.ranks)

    @property
    def n_communications(self) -> int:
        """Communication nodes of this worker's ranks."""
        return sum(int((rank.cls == 2).sum()) for rank in self.ranks)

    def to_bytes(self) -> bytes:
        """Return the shard as one block."""
        arrays: dict[str, npt.NDArray[Any]] = {
            "host_of": self.host_of,
            "connections": self.connections,
            "connection_ids": self.connection_ids,
        }
        for i, rank in enumerate(self.ranks):
            for name in _RANK_ARRAYS:
                arrays[f"rank/{i}/{name}"] = getattr(rank, name)
            text = "\0".join(rank.names).encode()
            arrays[f"rank/{i}/names"] = np.frombuffer(text, np.uint8)
        for i, program in enumerate(self.programs):
            for name in ("streams", "ops", "windows"):
                arrays[f"program/{i}/{name}"] = getattr(program, name)
        for i, (_, members, _) in enumerate(self.communicators):
            arrays[f"communicator/{i}"] = members
        head = {
            "version": SHARD_VERSION,
            "worker": self.worker,
            "world_size": self.world_size,
            "ranks": [rank.rank for rank in self.ranks],
            "programs": [(p.window, p.call_ns, p.copy_gbps, p.reduce_gbps) for p in self.programs],
            "communicators": [(name, exact) for name, _, exact in self.communicators],
            "local": (self.local_ns, self.local_gbps),
        }
        arrays["head"] = np.frombuffer(json.dumps(head).encode(), np.uint8)
        return pack(arrays)

    @classmethod
    def from_bytes(cls, data: bytes) -> Shard:
        """Return the shard that `to_bytes` packed.

        Raises:
            LaunchError: Packed by another version of GENIE.
        """
        from genie.errors import LaunchError

        arrays = unpack(data)
        head = json.loads(arrays["head"].tobytes())
        if head["version"] != SHARD_VERSION:
            raise LaunchError(
                f"this worker reads shards of version {SHARD_VERSION}, the launching process "
                f"sent version {head['version']}: install the same genie on every host"
            )
        ranks = []
        for i, rank in enumerate(head["ranks"]):
            columns = {name: arrays[f"rank/{i}/{name}"] for name in _RANK_ARRAYS}
            n = columns["cls"].size
            text = arrays[f"rank/{i}/names"].tobytes().decode()
            ranks.append(RankPlan(rank=rank, names=text.split("\0") if n else [], **columns))
        programs = [
            ShardProgram(
                streams=arrays[f"program/{i}/streams"],
                ops=arrays[f"program/{i}/ops"],
                windows=arrays[f"program/{i}/windows"],
                window=window,
                call_ns=call_ns,
                copy_gbps=copy_gbps,
                reduce_gbps=reduce_gbps,
            )
            for i, (window, call_ns, copy_gbps, reduce_gbps) in enumerate(head["programs"])
        ]
        communicators = [
            (name, arrays[f"communicator/{i}"], exact)
            for i, (name, exact) in enumerate(head["communicators"])
        ]
        return cls(
            worker=head["worker"],
            world_size=head["world_size"],
            host_of=arrays["host_of"],
            ranks=ranks,
            programs=programs,
            communicators=communicators,
            connections=arrays["connections"],
            connection_ids=arrays["connection_ids"],
            local_ns=head["local"][0],
            local_gbps=head["local"][1],
        )


_RANK_ARRAYS = tuple(f.name for f in fields(RankPlan) if f.name not in ("rank", "names"))


def make_shard(plan: Plan, worker: int | None) -> Shard:
    """Return the part of `plan` that host `worker` runs (None: all of it)."""
    host_of = np.asarray(plan.cluster.host_of, np.int32)
    mine = [r for r in plan.ranks if worker is None or host_of[r.rank] == worker]
    used = (
        np.unique(np.concatenate([rank.template for rank in mine]))
        if mine
        else np.empty(0, np.int32)
    )
    used = used[used >= 0]
    renumber = np.full(len(plan.templates) + 1, -1, np.int32)
    renumber[used] = np.arange(used.size)
    gpu = plan.gpu
    programs = []
    for index in used.tolist():
        template = plan.templates[index]
        program = template.program
        programs.append(
            ShardProgram(
                streams=program.streams,
                ops=program.ops,
                window=program.window,
                windows=program.windows,
                call_ns=gpu.call_ns(template.algorithm, template.protocol),
                copy_gbps=gpu.copy_gbps if gpu.enabled else 0.0,
                reduce_gbps=gpu.copy_gbps if gpu.enabled else 0.0,
            )
        )
    ids = np.arange(plan.connections.size, dtype=np.uint32)
    if worker is not None and ids.size:
        table = plan.connections
        keep = (host_of[table["src"]] == worker) | (host_of[table["dst"]] == worker)
        ids = ids[keep]
    return Shard(
        worker=-1 if worker is None else worker,
        world_size=plan.world_size,
        host_of=host_of,
        ranks=[_renumbered(rank, renumber) for rank in mine],
        programs=programs,
        communicators=[(c.name, c.ranks, bool(c.cluster.exact)) for c in plan.communicators],
        connections=plan.connections[ids],
        connection_ids=ids,
        local_ns=gpu.hop_ns("ring", "simple"),
        local_gbps=gpu.nvlink_gbps if gpu.enabled else 0.0,
        joint=joint_collectives(plan) if worker is None else (),
    )


def joint_collectives(plan: Plan) -> tuple[bool, ...]:
    """Return of each communicator whether every rank's end waits there for every rank's start.

    So it is where a rank's result holds data of all ranks, and all of them send some.
    """
    joint = np.ones(len(plan.communicators), bool)
    waits = np.array(
        [t.key.kind in _JOINT_KINDS and not t.key.splits for t in plan.templates] + [True]
    )
    for rank in plan.ranks:
        used = rank.communicator >= 0
        joint[rank.communicator[used & ~waits[rank.template]]] = False
    return tuple(joint.tolist())


_JOINT_KINDS = (
    "all_reduce", "all_gather", "reduce_scatter", "reduce_scatter_block", "all_to_all", "barrier",
)  # fmt: skip


def _renumbered(rank: RankPlan, renumber: npt.NDArray[np.int32]) -> RankPlan:
    """Return the rank with its templates counted in the shard's own list."""
    values = {f.name: getattr(rank, f.name) for f in fields(RankPlan)}
    values["template"] = renumber[rank.template]
    return RankPlan(**values)
