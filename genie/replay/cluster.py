"""A cluster as NCCL sees it: hosts, GPUs, NICs and the channels that join them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from genie import checks
from genie.errors import InputError
from genie.replay.clusters.base import ClusterFacts
from genie.replay.clusters.describe import describe, to_html
from genie.replay.clusters.graph_xml import Extra, graph_cluster, write_graphs
from genie.replay.clusters.layout import Layout
from genie.replay.clusters.machine import preset_names
from genie.replay.clusters.recipe import Steps, nccl_step, text_of
from genie.replay.clusters.settings import Settings, refuse_search_settings
from genie.replay.clusters.sources import LocalSource, PresetSource, Source
from genie.replay.result_io import frame

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from genie.replay.nccl.env import Nccl

__all__ = ["Cluster"]

Members = Sequence[tuple[int, int]]


class Cluster(ClusterFacts):
    """The members of a communicator, and everything NCCL derives from where they sit.

    Made by `Cluster.preset`, `local`, `from_nccl_graph`, `from_nccl_log`, and from another
    cluster by `communicator`, `sub` and `with_nccl`. It never changes; what can be large
    (rings, trees) is computed when first read.

    Attributes:
        name: Preset id and hosts, or where the cluster was read from.
        source: Where search results come from.
        layout: Ranks by host, local rank and GPU.
        settings: The environment in force: NCCL 2.30's defaults until `with_nccl`.
        steps: The calls that made it, for `save`.
    """

    steps: Steps = ()

    def __init__(
        self,
        name: str,
        source: Source,
        layout: Layout,
        settings: Settings | None = None,
        *,
        notes: Sequence[str] = (),
    ) -> None:
        super().__init__(name, source, layout, settings, notes=notes)
        self._children: dict[object, Cluster] = {}

    def __getstate__(self) -> dict[str, object]:
        return {**super().__getstate__(), "_children": {}}

    # Ways in

    @classmethod
    def preset(
        cls, name: str, hosts: int = 2, *, gpu_order: Sequence[int] | None = None
    ) -> Cluster:
        """Return a cluster of `hosts` equal machines, ranks host by host.

        Args:
            name: A preset id (`Cluster.presets()` lists them).
            hosts: Number of hosts, at least 1.
            gpu_order: Which local rank sits at each PCI position, where the two differ (VMs,
                CUDA_VISIBLE_DEVICES): rings and trees follow the PCI order.

        Raises:
            InputError: Unknown preset, no hosts, or an order that is no permutation.
        """
        checks.text("name", name)
        source = PresetSource.named(name, gpu_order is not None)
        gpus = source.machine.gpus_per_host
        _check_hosts(hosts)
        position = np.arange(gpus)
        if gpu_order is not None:
            order = checks.wholes("gpu_order", gpu_order)
            if sorted(order.tolist()) != list(range(gpus)):
                raise InputError(
                    f"gpu_order must name local ranks 0..{gpus - 1} once each, got "
                    f"{checks.short(gpu_order)}"
                )
            position[order] = np.arange(gpus)
        made = cls(f"{name}:{hosts}", source, _grid(hosts, position))
        said = None if gpu_order is None else [int(gpu) for gpu in gpu_order]
        made.steps = ({"call": "preset", "name": name, "hosts": int(hosts), "gpu_order": said},)
        return made

    @classmethod
    def local(cls, hosts: int, gpus: int = 1) -> Cluster:
        """Return plain hosts: rank-order rings, 2 channels, no NVLS and no PXN.

        Args:
            hosts: Number of hosts (endpoints).
            gpus: Ranks on each host.
        """
        _check_hosts(hosts)
        checks.whole("gpus", gpus, 1, _MOST_GPUS)
        made = cls(f"local:{hosts}", LocalSource.sized(gpus), _grid(hosts, np.arange(gpus)))
        made.steps = ({"call": "local", "hosts": int(hosts), "gpus": int(gpus)},)
        return made

    @classmethod
    def from_nccl_graph(
        cls,
        xml: str | Path | Sequence[str | Path],
        *,
        hosts: int | None = None,
        like: str | None = None,
        sm: int | None = None,
        cpu_vendor: str | None = None,
        nic_gbps: float | None = None,
        nccl_version: str | None = None,
    ) -> Cluster:
        """Return the cluster of NCCL's graph dump (NCCL_GRAPH_DUMP_FILE).

        The dump holds one host's search results; ranks are numbered host by host in the order
        of the GPUs' device numbers. What it does not say is in `notes`.

        Args:
            xml: The dump as text or path, the same for every host, or a list of one a host.
            hosts: Number of hosts of the communicator that was dumped.
            like: Preset that gives compute capability, CPU vendor and NIC speed.
            sm: Compute capability times ten.
            cpu_vendor: "intel", "amd" or "arm".
            nic_gbps: GB/s of one NIC.
            nccl_version: Release that wrote the dump (older ones number crossNic otherwise).

        Raises:
            InputError: A dump that cannot be read or contradicts the arguments.
        """
        for item in [xml] if isinstance(xml, str | Path) else checks.listed("xml", xml):
            checks.path("xml", item, "a graph dump as text or path, or a list of them")
        extra = _extra(hosts, like, sm, cpu_vendor, nic_gbps, nccl_version)
        source, layout, notes = graph_cluster(xml, hosts, extra)
        made = cls(f"{source.machine.name}:{layout.n_hosts}", source, layout, notes=notes)
        text = text_of(xml) if isinstance(xml, str | Path) else [text_of(item) for item in xml]
        said = {
            "like": like, "sm": sm, "cpu_vendor": cpu_vendor, "nic_gbps": nic_gbps,
            "nccl_version": nccl_version, "hosts": hosts,
        }  # fmt: skip
        made.steps = ({"call": "from_nccl_graph", "xml": text, **said},)
        return made

    @classmethod
    def from_nccl_log(
        cls,
        text: str | Path,
        *,
        hosts: int | None = None,
        like: str | None = None,
        sm: int | None = None,
        cpu_vendor: str | None = None,
        nic_gbps: float | None = None,
        nccl_version: str | None = None,
    ) -> Cluster:
        """Return the cluster of an NCCL_DEBUG=INFO log: its largest communicator.

        Rings, trees, channel counts, NVLS heads and NICs are those printed; what follows from
        them is derived, what does not is missing, and `notes` says which is which. A rank of
        a tree, or a ring, that is missing raises `ScheduleError` when asked for.

        Args:
            text: The log as text or path; lines of several ranks may be mixed.
            hosts: Number of hosts, where the log has no nNodes line.
            like: Preset that gives what a log does not say: bandwidths, GPU and CPU.
            sm: Compute capability times ten.
            cpu_vendor: "intel", "amd" or "arm".
            nic_gbps: GB/s of one NIC.
            nccl_version: Release, where the log does not name it.

        Raises:
            InputError: No NCCL lines, contradictions, or the logs of two jobs in one.
        """
        from genie.replay.clusters.log_replay import LogCluster

        checks.path("text", text, "a log as text or path")
        extra = _extra(hosts, like, sm, cpu_vendor, nic_gbps, nccl_version)
        made = LogCluster.read(text, hosts, extra)
        said = {
            "like": like, "sm": sm, "cpu_vendor": cpu_vendor, "nic_gbps": nic_gbps,
            "nccl_version": nccl_version, "hosts": hosts,
        }  # fmt: skip
        made.steps = ({"call": "from_nccl_log", "text": text_of(text), **said},)
        return made

    def to_nccl_graph(self, host: int = 0) -> str:
        """Return the search results of one host as NCCL's graph dump.

        Args:
            host: Host number.
        """
        checks.whole("host", host, 0, self.n_hosts - 1)
        return write_graphs(self._found[self.layout.gpu_sets[1][host]].graphs, self.n_hosts > 1)

    @staticmethod
    def presets() -> tuple[str, ...]:
        """Return the ids that `preset` takes."""
        return preset_names()

    # From another cluster

    def communicator(self, members: Members) -> Cluster:
        """Return the communicator of some GPUs of these machines.

        Args:
            members: (host, local GPU) of each rank, in rank order. The local GPU is the
                machine's number, 0 to 7 on an 8-GPU host.

        Raises:
            InputError: A GPU that the machine lacks, or one named twice.
        """
        try:
            pairs = tuple((checks.whole("host", h), checks.whole("GPU", g)) for h, g in members)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"members is a list of (host, local GPU) pairs of numbers, not "
                f"{checks.short(members)}"
            ) from error
        key = ("members", pairs)
        hosts = set(self.layout.label)
        for rank, (host, _) in enumerate(key[1]):
            if host not in hosts:
                raise InputError(
                    f"rank {rank}: host {host} is not one of the cluster's {self.n_hosts}",
                    rank=rank,
                )
        found = self._children.get(key)
        if found is None:
            step = {"call": "communicator", "members": key[1]}
            found = self._remember(key, self._with_members(list(key[1])), step)
        return found

    def sub(self, ranks: Sequence[int]) -> Cluster:
        """Return the communicator of some of this cluster's ranks, in the order given.

        Raises:
            InputError: A rank that does not exist or comes twice.
        """
        wanted = checks.wholes("ranks", ranks)
        if wanted.size == 0:
            raise InputError("a communicator needs at least one rank")
        bad = wanted[(wanted < 0) | (wanted >= self.n_ranks)]
        if len(bad):
            raise InputError(f"rank {int(bad[0])} is not one of 0..{self.n_ranks - 1}")
        if len(np.unique(wanted)) != len(wanted):
            raise InputError("a rank is named twice in a communicator")
        if len(wanted) == self.n_ranks and bool((wanted == np.arange(self.n_ranks)).all()):
            return self
        key = ("ranks", wanted.tobytes())
        found = self._children.get(key)
        if found is None:
            at = self.layout
            members = np.stack([at.labels[at.host[wanted]], at.gpu[wanted]], axis=1)
            step = {"call": "sub", "ranks": wanted}
            found = self._remember(key, self._with_members(members), step)
        return found

    def with_nccl(self, nccl: Nccl) -> Cluster:
        """Return this cluster under an NCCL version and environment.

        Raises:
            InputError: A setting that would change the topology search of a preset, or a
                value that cannot be used; the message names the variable.
        """
        checks.nccl(nccl)
        key = ("nccl", tuple(nccl.version), tuple(sorted(nccl.env.items())))
        found = self._children.get(key)
        if found is None:
            settings = Settings.of(nccl)
            made = self._copy(settings)
            if self.source.kind == "preset":
                ring = made.graphs["ring"]
                refuse_search_settings(
                    nccl, ring.cross_nic, made.nics_per_host, made.max_ranks_per_host
                )
            found = self._remember(key, made, nccl_step(nccl))
        return found

    def _copy(self, settings: Settings) -> Cluster:
        if settings == self.settings:
            return self
        return Cluster(self.name, self.source, self.layout, settings, notes=self._notes)

    def _with_members(self, members: Members | npt.NDArray[np.int64]) -> Cluster:
        # Only a cluster of several graph dumps has host types.
        kinds = dict(zip(self.layout.label, self.layout.kind, strict=False))
        layout = Layout.of(members, kinds)
        most = int(layout.gpu.max())
        if most >= self.machine.n_gpus:
            rank = int(layout.gpu.argmax())
            raise InputError(
                f"rank {rank}: {self.machine.name} has GPUs 0..{self.machine.n_gpus - 1}, "
                f"not {most}",
                rank=rank,
            )
        return Cluster(self.name, self.source, layout, self.settings, notes=self._notes)

    def _remember(self, key: object, cluster: Cluster, step: dict[str, Any]) -> Cluster:
        self._children[key] = cluster
        if cluster is not self and self.steps:
            cluster.steps = (*self.steps, step)
        return cluster

    def save(self, path: str | os.PathLike[str], force: bool = False) -> Path:
        """Write the cluster as folder `path`: how it was made, and a table of its ranks.

        Args:
            path: Folder to create.
            force: Replace a saved cluster that is there. Anything else is never replaced.

        Raises:
            RecordError: Something is in the way, or the disk refused.
        """
        from genie.replay.clusters.tables import save

        return save(self, path, force)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Cluster:
        """Make a saved cluster anew; channels and ranks are those that were saved.

        Raises:
            RecordError: Missing, damaged, or a cluster that this GENIE makes otherwise.
        """
        from genie.replay.clusters.tables import load

        return load(path)

    def to_pandas(self, table: Literal["ranks", "channels"] = "ranks") -> pd.DataFrame:
        """Return a table as a DataFrame.

        Args:
            table: "ranks" (rank, host, local, gpu), or "channels": each rank's neighbours on
                each channel (channel, rank, ring_prev, ring_next, tree_up; -1 none, -2 what a
                log does not show).
        """
        from genie.replay.clusters.tables import table as rows

        return frame(rows(self, table))

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the ring of every channel: its ranks in order, coloured by host.

        Args:
            ax: Axes to draw into; a new figure's when None.
        """
        from genie.replay.clusters.tables import plot

        return plot(self, ax)

    def describe(self) -> str:
        """Return machine, search results, counts, rings, trees and notes as text."""
        return describe(self)

    def _repr_html_(self) -> str:
        return to_html(self)

    def __repr__(self) -> str:
        counts = self.layout.counts
        each = str(counts[0]) if (counts == counts[0]).all() else f"{counts.min()}-{counts.max()}"
        doubt = "" if self.exact else ", not exact"
        return (
            f"<Cluster {self.name}: {self.n_ranks} ranks, {self.n_hosts} hosts x {each} GPUs, "
            f"{self.coll_channels} channels{doubt}>"
        )


_MOST_HOSTS = 1 << 20
_MOST_GPUS = 1 << 10


def _extra(
    hosts: int | None,
    like: str | None,
    sm: int | None,
    cpu_vendor: str | None,
    nic_gbps: float | None,
    nccl_version: str | None,
) -> Extra:
    """Return what a file does not say, checked."""
    if hosts is not None:
        _check_hosts(hosts)
    for name, value in (("like", like), ("cpu_vendor", cpu_vendor), ("nccl_version", nccl_version)):
        if value is not None:
            checks.text(name, value)
    if like is not None:
        checks.one_of("like", like, preset_names())
    if sm is not None:
        checks.whole("sm", sm, 10, 999)
    if nic_gbps is not None:
        checks.real("nic_gbps", nic_gbps, above=0)
    version = None
    if nccl_version:
        try:
            version = tuple(map(int, nccl_version.split(".")))
        except ValueError:
            raise InputError(
                f"nccl_version is a release such as 2.30.7, not {nccl_version!r}"
            ) from None
    return Extra(like, sm, cpu_vendor, nic_gbps, version)


def _check_hosts(hosts: int) -> None:
    checks.whole("hosts", hosts)
    if hosts < 1:
        raise InputError(f"a cluster needs at least one host, got {hosts}")
    if hosts > _MOST_HOSTS:
        raise InputError(f"{hosts} hosts: at most {_MOST_HOSTS} are planned for")


def _grid(hosts: int, position: npt.NDArray[np.int64]) -> Layout:
    """Ranks host by host; `position` is the GPU number of each local rank."""
    gpus = len(position)
    return Layout(
        host=np.repeat(np.arange(hosts, dtype=np.int32), gpus),
        gpu=np.tile(position.astype(np.int32), hosts),
        label=tuple(range(hosts)),
    )
