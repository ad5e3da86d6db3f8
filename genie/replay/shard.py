"""What one worker needs of a plan, as arrays that travel and become an engine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from genie.replay.gpu import ProgramTimes
from genie.replay.packing import pack, unpack
from genie.replay.ranks import RankPlan

if TYPE_CHECKING:
    from genie._core.engine import Engine
    from genie.replay.flow import FlowProgram
    from genie.replay.gpu import GpuModel
    from genie.replay.plan import Plan
    from genie.replay.templates import Template

#: Raised when a worker of another version would misread a shard.
SHARD_VERSION = 2


@dataclass(frozen=True, eq=False)
class ShardProgram:
    """One template as the engine stores it.

    Attributes:
        streams: `program.STREAM` rows.
        ops: `program.OP` rows.
        window: FIFO steps in flight on a connection.
        windows: Messages in flight, one uint8 a stream.
        times: Its share of the GPU-time model.
        tail_ns: Time after the last stream (flow level), ns.
    """

    streams: npt.NDArray[np.void]
    ops: npt.NDArray[np.void]
    window: int
    windows: npt.NDArray[np.uint8]
    times: ProgramTimes
    tail_ns: int = 0

    def add_to(self, engine: Engine) -> int:
        """Give the program to an engine and return its id there."""
        times = self.times
        engine.set_gpu(
            copy_bytes_per_ns=times.copy_gbps,
            reduce_bytes_per_ns=times.reduce_gbps,
            receive_bytes_per_ns=times.receive_gbps,
            move_ns=times.move_ns,
            start_ns=times.start_ns,
            send_ns=times.send_ns,
            early=times.early,
            gap_ns=times.gap_ns,
        )
        engine.set_local(latency_ns=times.local_ns, bytes_per_ns=times.local_gbps)
        return engine.add_program(
            self.streams,
            self.ops,
            window=self.window,
            windows=self.windows,
            tail_ns=self.tail_ns,
        )


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
        joint: Of each communicator, whether it runs joint collectives only (`joint_collectives`);
            empty in a worker, where only the network decides.
        flow: Whether programs between hosts are flows (`genie.replay.flow`).
    """

    worker: int
    world_size: int
    host_of: npt.NDArray[np.int32]
    ranks: list[RankPlan]
    programs: list[ShardProgram]
    communicators: list[tuple[str, npt.NDArray[np.int32], bool]]
    connections: npt.NDArray[np.void]
    connection_ids: npt.NDArray[np.uint32]
    joint: tuple[bool, ...] = ()
    flow: bool = False

    def engine(self, clock: str = "wall", **options: Any) -> Engine:
        """Return an engine with this shard's communicators, programs, ranks and connections.

        Args:
            clock: "wall" or "virtual".
            options: Passed on to `Engine`.
        """
        from genie._core.engine import Engine

        engine = Engine(clock=clock, **options)
        for i, (_, members, _) in enumerate(self.communicators):
            joint = bool(self.joint) and self.joint[i]
            engine.add_communicator(members, joint=joint, together=self.flow)
        for program in self.programs:
            program.add_to(engine)
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
            "programs": [(p.window, *p.times) for p in self.programs],
            "communicators": [(name, exact) for name, _, exact in self.communicators],
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
                times=ProgramTimes(*times),
            )
            for i, (window, *times) in enumerate(head["programs"])
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
        )


_RANK_ARRAYS = tuple(f.name for f in fields(RankPlan) if f.name not in ("rank", "names"))


def make_shard(
    plan: Plan, worker: int | None, flows: Sequence[FlowProgram | None] | None = None
) -> Shard:
    """Return the part of `plan` that host `worker` runs (None: all of it).

    Args:
        plan: The plan.
        worker: Index of the host.
        flows: Of each template, what runs in its place at the flow level.
    """
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
        flow = None if flows is None else flows[index]
        if flow is not None:
            made = flow.program
            programs.append(
                ShardProgram(
                    made.streams,
                    made.ops,
                    made.window,
                    made.windows,
                    ProgramTimes(),
                    flow.tail_ns,
                )
            )
            continue
        program = template.program
        programs.append(
            ShardProgram(
                streams=program.streams,
                ops=program.ops,
                window=program.window,
                windows=program.windows,
                times=program_times(gpu, template),
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
        joint=joint_collectives(plan) if worker is None else (),
        flow=flows is not None,
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


#: Operations of a stream that are looked at for its connections.
_LOOK_AT = 256


def program_times(gpu: GpuModel, template: Template) -> ProgramTimes:
    """Return what the GPU-time model gives one template."""
    from genie.replay.nccl.program import INTRA, SEND

    cluster = template.schedule.cluster
    graph = cluster.graphs.get("tree" if template.algorithm == "tree" else "ring")
    program = template.program
    ops, streams = program.ops, program.streams
    nccl = getattr(template.schedule, "nccl", None)
    # A stream uses its connections again and again: its first operations name them all.
    begin = np.repeat(streams["first"].astype(np.int64), streams["count"])
    early = np.arange(ops.size) - begin < _LOOK_AT
    channel = np.repeat(streams["channel"].astype(np.int64), streams["count"])[early]
    ops = ops[early]
    inside = (ops["flags"] & INTRA != 0) & (ops["kind"] == SEND)
    key = (ops["peer"].astype(np.int64) << 24) | (channel << 8) | ops["conn"]
    return gpu.times(
        template.algorithm,
        template.protocol,
        sm=cluster.sm,
        type_intra=graph.type_intra if graph is not None else 1,
        peers=int(np.unique(ops["peer"][inside]).size) + 1,
        cpu=cluster.cpu_vendor,
        queue_pairs=1 if nccl is None else nccl.get_int("NCCL_IB_QPS_PER_CONNECTION", 1),
        fanout=_fanout(template.algorithm, key[inside]),
    )


def _fanout(algorithm: str, keys: npt.NDArray[np.int64]) -> int:
    """Return how many connections inside the host share the GPU's links.

    What NVLink SHARP multiplies or reduces in the switch crosses a GPU's links once, whatever the
    number of GPUs that the program names.
    """
    if algorithm.startswith("nvls"):
        keys = keys >> 8 & 0xFFFF
    return int(np.unique(keys).size)


def _renumbered(rank: RankPlan, renumber: npt.NDArray[np.int32]) -> RankPlan:
    """Return the rank with its templates counted in the shard's own list."""
    values = {f.name: getattr(rank, f.name) for f in fields(RankPlan)}
    values["template"] = renumber[rank.template]
    return RankPlan(**values)
