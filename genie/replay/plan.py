"""`plan()`: a trace on a cluster, turned into what every worker will do."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from genie import checks
from genie.errors import InputError
from genie.replay.communicators import Communicator, CommunicatorTable
from genie.replay.compute import ComputeModel
from genie.replay.connections import connect
from genie.replay.gpu import GpuModel
from genie.replay.ranks import RankPlan, RankPlanner
from genie.replay.result_io import frame
from genie.replay.templates import Template, TemplateTable
from genie.units import format_size

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from genie.replay.cluster import Cluster
    from genie.replay.communicators import Communicator as _Communicator
    from genie.replay.nccl.env import Nccl
    from genie.replay.nccl.schedule import Schedule
    from genie.replay.shard import Shard
    from genie.replay.templates import CallKey
    from genie.trace import Trace

#: Traffic of one iteration between two NICs.
NIC_TRAFFIC = np.dtype(
    [
        ("src_host", "i4"),
        ("src_nic", "i2"),
        ("dst_host", "i4"),
        ("dst_nic", "i2"),
        ("nbytes", "i8"),
        ("messages", "i8"),
        ("connections", "i4"),
    ]
)


@dataclass(frozen=True, eq=False)
class Plan:
    """Everything a replay or simulation of one trace on one cluster will do.

    Attributes:
        trace: The trace.
        cluster: The cluster with the NCCL settings applied.
        nccl: NCCL version, environment and choices.
        communicators: Those the trace uses.
        templates: Each distinct (call, rank), scheduled once.
        schedules: (key, communicator, schedule) of each distinct call.
        ranks: One `RankPlan` a rank.
        compute: Model of compute nodes without a recorded duration.
        gpu: Model of the GPU's share of a message.
        warnings: What the user should know before running.
    """

    trace: Trace
    cluster: Cluster
    nccl: Nccl
    communicators: list[Communicator]
    templates: list[Template]
    schedules: list[tuple[CallKey, _Communicator, Schedule]]
    ranks: list[RankPlan]
    compute: ComputeModel
    gpu: GpuModel
    warnings: list[str] = field(default_factory=list)

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.ranks)

    @property
    def n_hosts(self) -> int:
        """Number of hosts, which is the number of workers of a replay."""
        return int(self.cluster.n_hosts)

    @cached_property
    def _connected(self) -> tuple[npt.NDArray[np.void], npt.NDArray[np.void]]:
        return connect(_uses(self.ranks), self.communicators, self.templates)

    @property
    def connections(self) -> npt.NDArray[np.void]:
        """`connections.CONN` rows; the id is the position. Made when first asked for."""
        return self._connected[0]

    @property
    def connection_traffic(self) -> npt.NDArray[np.void]:
        """`connections.TRAFFIC` rows of one iteration."""
        return self._connected[1]

    @property
    def nbytes(self) -> int:
        """Bytes that cross hosts in one iteration, on the wire of the messages."""
        return int(self.connection_traffic["nbytes"].sum())

    @property
    def messages(self) -> int:
        """Messages that cross hosts in one iteration."""
        return int(self.connection_traffic["messages"].sum())

    @property
    def digest(self) -> str:
        """Digest of what will be done: equal plans do the same."""
        total = hashlib.sha256(self.connections.tobytes())
        for rank in self.ranks:
            for array in (rank.cls, rank.delay_ns, rank.template, rank.communicator, rank.deps):
                total.update(np.ascontiguousarray(array).tobytes())
        for template in self.templates:
            total.update(template.program.streams.tobytes())
            total.update(template.program.ops.tobytes())
        return total.hexdigest()

    def host_of(self, rank: int) -> int:
        """Return the host of a global rank."""
        return int(self.cluster.host_of[rank])

    def hosts_of(self, ranks: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
        """Return the hosts of global ranks."""
        return np.asarray(self.cluster.host_of, np.int64)[ranks]

    def ranks_of(self, host: int) -> list[int]:
        """Return the global ranks of a host."""
        return [int(rank) for rank in np.flatnonzero(np.asarray(self.cluster.host_of) == host)]

    def traffic(self) -> npt.NDArray[np.void]:
        """Return `NIC_TRAFFIC` rows: bytes and messages of one iteration between NICs.

        A message leaves through the NIC that NCCL would use, which with PXN may belong to
        another GPU of the sender's host.
        """
        table = self.connections
        host = np.asarray(self.cluster.host_of)
        keys = np.stack(
            [
                host[table["src"]],
                table["nic_src"].astype(np.int64),
                host[table["dst"]],
                table["nic_dst"].astype(np.int64),
            ],
            axis=1,
        ).astype(np.int64)
        unique, inverse = np.unique(keys, axis=0, return_inverse=True)
        made = np.zeros(unique.shape[0], NIC_TRAFFIC)
        for column, name in enumerate(("src_host", "src_nic", "dst_host", "dst_nic")):
            made[name] = unique[:, column]
        inverse = inverse.reshape(-1)
        np.add.at(made["nbytes"], inverse, self.connection_traffic["nbytes"])
        np.add.at(made["messages"], inverse, self.connection_traffic["messages"])
        made["connections"] = np.bincount(inverse, minlength=unique.shape[0])
        return made[made["messages"] > 0]

    def shard(self, worker: int | None = None) -> Shard:
        """Return what one worker (one host) needs, or, with None, everything."""
        from genie.replay.shard import make_shard

        return make_shard(self, worker)

    def to_pandas(
        self, table: Literal["calls", "traffic", "connections", "parts"] = "traffic"
    ) -> pd.DataFrame:
        """Return a table as a DataFrame.

        Args:
            table: "traffic" (bytes of one iteration between NICs), "calls" (each distinct call
                with its choice), "parts" (bytes of each of its channels) or "connections".

        Raises:
            InputError: No such table.
        """
        from genie.replay.plan_results import table as rows

        return frame(rows(self, table))

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the bytes of one iteration from each host to each host.

        Args:
            ax: Axes to draw into; a new figure's when None.
        """
        from genie.replay.plan_results import plot

        return plot(self, ax)

    def save(self, path: str | os.PathLike[str], force: bool = False) -> Path:
        """Write the plan as folder `path`: Parquet tables, a manifest, and the trace's files.

        Args:
            path: Folder to create.
            force: Replace a plan that is there. Anything else is never replaced.

        Raises:
            RecordError: Something is in the way, or the disk refused.
            InputError: A cluster that was not made by a constructor.
        """
        from genie.replay.plan_results import save

        return save(self, path, force)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Plan:
        """Plan a saved plan's trace anew; the result does what the saved one did.

        Raises:
            RecordError: Missing, damaged, or a plan that this GENIE makes otherwise.
        """
        from genie.replay.plan_results import load

        return load(path)

    def describe(self) -> str:
        """Return the plan as text: calls, traffic per NIC pair, totals."""
        from genie.replay.plan_text import describe

        return describe(self)

    def __repr__(self) -> str:
        return (
            f"<Plan: {self.world_size} ranks on {self.n_hosts} hosts ({self.cluster.name}), "
            f"{len(self.schedules)} distinct calls, {self.messages} messages, "
            f"{format_size(self.nbytes)} between hosts>"
        )

    def _repr_html_(self) -> str:
        import html

        return f"<pre>{html.escape(self.describe())}</pre>"


def plan(
    trace: Trace,
    cluster: Cluster,
    *,
    nccl: Nccl | None = None,
    compute: ComputeModel | None = None,
    gpu: GpuModel | None = None,
) -> Plan:
    """Work out every message of a trace on a cluster, before anything is sent.

    Args:
        trace: From `genie.load`.
        cluster: As many ranks as the trace has.
        nccl: NCCL version and environment; None is 2.30 with its defaults.
        compute: Roofline for compute nodes without a duration; None is the cluster's GPU.
        gpu: GPU-time model; None is its defaults.

    Raises:
        TraceError: The trace cannot be replayed.
        InputError: Trace and cluster differ in size.
        ScheduleError: NCCL would not run one of the collectives as set.
    """
    from genie.replay.nccl.context import check_setting
    from genie.replay.nccl.env import Nccl as NcclClass
    from genie.trace import Trace as TraceClass

    checks.instance("trace", trace, TraceClass, "genie.load(path)")
    check_setting(nccl, cluster)
    check_models(compute, gpu)
    trace.check()
    if trace.world_size != cluster.n_ranks:
        raise InputError(
            f"the trace has {trace.world_size} ranks, the cluster {cluster.name} has "
            f"{cluster.n_ranks} ({cluster.n_hosts} hosts): give a cluster of the trace's size"
        )
    nccl = NcclClass() if nccl is None else nccl
    effective = cluster.with_nccl(nccl)
    compute = ComputeModel.for_sm(effective.sm) if compute is None else compute
    communicators = CommunicatorTable(trace, effective)
    templates = TemplateTable(nccl)
    planner = RankPlanner(trace, communicators, templates, compute)
    ranks = [planner.plan(rank) for rank in range(trace.world_size)]
    made = Plan(
        trace=trace,
        cluster=effective,
        nccl=nccl,
        communicators=communicators.all,
        templates=templates.all,
        schedules=templates.schedules,
        ranks=ranks,
        compute=compute,
        gpu=GpuModel() if gpu is None else gpu,
    )
    made.warnings.extend(_warnings(made))
    return made


def check_models(compute: ComputeModel | None, gpu: GpuModel | None) -> None:
    """Refuse what is no model of compute or GPU time.

    Raises:
        InputError: One of them is something else.
    """
    if compute is not None:
        checks.instance("compute", compute, ComputeModel, "ComputeModel.for_sm(90)")
    if gpu is not None:
        checks.instance("gpu", gpu, GpuModel, "GpuModel()")


def _uses(ranks: list[RankPlan]) -> dict[tuple[int, int], int]:
    """Return (communicator, template) → how many nodes run it in one iteration."""
    uses: dict[tuple[int, int], int] = {}
    for rank in ranks:
        used = rank.template >= 0
        pairs, counts = np.unique(
            np.stack([rank.communicator[used], rank.template[used]], axis=1),
            axis=0,
            return_counts=True,
        )
        for (communicator, template), count in zip(pairs.tolist(), counts.tolist(), strict=True):
            key = (communicator, template)
            uses[key] = uses.get(key, 0) + count
    return uses


def _warnings(plan: Plan) -> list[str]:
    """Return what a user should know before running this plan."""
    found = list(plan.trace.warnings)
    if plan.n_hosts == 1:
        found.append("all ranks are on one host: there are no network messages")
    elif not any(np.unique(plan.hosts_of(c.ranks)).size > 1 for c in plan.communicators):
        found.append("no communication of this trace crosses hosts")
    inexact = [c.name for c in plan.communicators if not c.cluster.exact]
    if inexact:
        shown = ", ".join(inexact[:8]) + (" …" if len(inexact) > 8 else "")
        found.append(
            f"schedules of {len(inexact)} communicators ({shown}) follow NCCL's rules outside "
            "the machines they were checked on (exact=False)"
        )
    return found
