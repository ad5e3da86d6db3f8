"""A cluster as NCCL sees it: hosts, GPUs, NICs and the channels that join them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from genie.errors import InputError
from genie.replay.clusters import channels as channels_
from genie.replay.clusters.channels import Channel, Ring, Tree
from genie.replay.clusters.counts import (
    CollChannels,
    NvlsCounts,
    P2pCounts,
    coll_channels,
    nvls_counts,
    p2p_counts,
)
from genie.replay.clusters.describe import describe, to_html
from genie.replay.clusters.graph import NO_NVLS, Graph, HostGraphs, reduce_graphs
from genie.replay.clusters.graph_xml import Extra, graph_cluster, write_graphs
from genie.replay.clusters.layout import Layout
from genie.replay.clusters.machine import Machine, preset_names
from genie.replay.clusters.nics import HostNics
from genie.replay.clusters.nvls import NvlsTree, build_nvls_trees
from genie.replay.clusters.settings import Settings, refuse_search_settings
from genie.replay.clusters.sources import Found, LocalSource, PresetSource, Source

if TYPE_CHECKING:
    from genie.replay.nccl.env import Nccl

__all__ = ["Cluster"]

Members = Sequence[tuple[int, int]]
_PXN = 7  # path code: at least one GPU reaches its NIC through another GPU
SEND = (0, "send", "s")
RECV = (1, "recv", "receive", "r")


class Cluster:
    """The members of a communicator, and everything NCCL derives from where they sit.

    Made by `Cluster.preset`, `local`, `from_nccl_graph`, `from_nccl_log`, and from another
    cluster by `communicator`, `sub` and `with_nccl`. It never changes; what can be large
    (rings, trees) is computed when first read.

    Attributes:
        name: Preset id and hosts, or where the cluster was read from.
        source: Where search results come from.
        layout: Ranks by host, local rank and GPU.
        settings: The environment in force: NCCL 2.30's defaults until `with_nccl`.
    """

    def __init__(
        self,
        name: str,
        source: Source,
        layout: Layout,
        settings: Settings | None = None,
        *,
        notes: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.source = source
        self.layout = layout
        self.settings = settings or Settings()
        self._notes = tuple(notes)
        self._children: dict[object, Cluster] = {}

    # Ways in

    @classmethod
    def preset(cls, name: str, hosts: int = 2, gpu_order: Sequence[int] | None = None) -> Cluster:
        """Return a cluster of `hosts` equal machines, ranks host by host.

        Args:
            name: A preset id (`Cluster.presets()` lists them).
            hosts: Number of hosts, at least 1.
            gpu_order: Which local rank sits at each PCI position, where the two differ (VMs,
                CUDA_VISIBLE_DEVICES): rings and trees follow the PCI order.

        Raises:
            InputError: Unknown preset, no hosts, or an order that is no permutation.
        """
        source = PresetSource.named(name, gpu_order is not None)
        gpus = source.machine.gpus_per_host
        _check_hosts(hosts)
        position = np.arange(gpus)
        if gpu_order is not None:
            if sorted(gpu_order) != list(range(gpus)):
                raise InputError(
                    f"gpu_order must name local ranks 0..{gpus - 1} once each, got "
                    f"{list(gpu_order)}"
                )
            position[list(gpu_order)] = np.arange(gpus)
        return cls(f"{name}:{hosts}", source, _grid(hosts, position))

    @classmethod
    def local(cls, hosts: int, gpus: int = 1) -> Cluster:
        """Return plain hosts: rank-order rings, 2 channels, no NVLS and no PXN.

        Args:
            hosts: Number of hosts (endpoints).
            gpus: Ranks on each host.
        """
        _check_hosts(hosts)
        if gpus < 1:
            raise InputError(f"a host needs at least one GPU, got {gpus}")
        return cls(f"local:{hosts}", LocalSource.sized(gpus), _grid(hosts, np.arange(gpus)))

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
        if hosts is not None:
            _check_hosts(hosts)
        version = tuple(map(int, nccl_version.split("."))) if nccl_version else None
        extra = Extra(like, sm, cpu_vendor, nic_gbps, version)
        source, layout, notes = graph_cluster(xml, hosts, extra)
        return cls(f"{source.machine.name}:{layout.n_hosts}", source, layout, notes=notes)

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

        version = tuple(map(int, nccl_version.split("."))) if nccl_version else None
        return LogCluster.read(text, hosts, Extra(like, sm, cpu_vendor, nic_gbps, version))

    def to_nccl_graph(self, host: int = 0) -> str:
        """Return the search results of one host as NCCL's graph dump.

        Args:
            host: Host number.
        """
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
        key = ("members", tuple((int(h), int(g)) for h, g in members))
        found = self._children.get(key)
        if found is None:
            found = self._remember(key, self._with_members(list(key[1])))
        return found

    def sub(self, ranks: Sequence[int]) -> Cluster:
        """Return the communicator of some of this cluster's ranks, in the order given.

        Raises:
            InputError: A rank that does not exist or comes twice.
        """
        wanted = np.asarray(ranks, dtype=np.int64)
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
            labels = np.asarray(self.layout.label)
            members = np.stack([labels[self.layout.host[wanted]], self.layout.gpu[wanted]], axis=1)
            found = self._remember(key, self._with_members(members))
        return found

    def with_nccl(self, nccl: Nccl) -> Cluster:
        """Return this cluster under an NCCL version and environment.

        Raises:
            InputError: A setting that would change the topology search of a preset, or a
                value that cannot be used; the message names the variable.
        """
        key = ("nccl", tuple(nccl.version), tuple(sorted(nccl.env.items())))
        found = self._children.get(key)
        if found is None:
            settings = Settings.of(nccl)
            made = self._copy(settings)
            if self.source.kind == "preset":
                ring = made.graphs["ring"]
                refuse_search_settings(nccl, ring.cross_nic, made.nics_per_host)
            found = self._remember(key, made)
        return found

    def _copy(self, settings: Settings) -> Cluster:
        if settings == self.settings:
            return self
        return Cluster(self.name, self.source, self.layout, settings, notes=self._notes)

    def _with_members(self, members: Members | npt.NDArray[np.int64]) -> Cluster:
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

    def _remember(self, key: object, cluster: Cluster) -> Cluster:
        self._children[key] = cluster
        return cluster

    # Who is where

    @property
    def machine(self) -> Machine:
        """The host type."""
        return self.source.machine

    @property
    def n_ranks(self) -> int:
        """Ranks of the communicator."""
        return self.layout.n_ranks

    @property
    def n_hosts(self) -> int:
        """Hosts that have at least one rank."""
        return self.layout.n_hosts

    @property
    def host_of(self) -> npt.NDArray[np.int32]:
        """Host number of each rank, in order of first appearance."""
        return self.layout.host

    @property
    def local_of(self) -> npt.NDArray[np.int32]:
        """Local rank of each rank on its host."""
        return self.layout.local

    @property
    def gpu_of(self) -> npt.NDArray[np.int32]:
        """GPU number, in the machine, of each rank."""
        return self.layout.gpu

    @property
    def min_ranks_per_host(self) -> int:
        """Fewest ranks on a host."""
        return int(self.layout.counts.min())

    @property
    def max_ranks_per_host(self) -> int:
        """Most ranks on a host."""
        return int(self.layout.counts.max())

    def same_host(self, a: int, b: int) -> bool:
        """Return whether two ranks live on one host."""
        return bool(self.layout.host[a] == self.layout.host[b])

    @property
    def sm(self) -> int:
        """Compute capability times ten (90 = Hopper)."""
        return self.machine.sm

    @property
    def cpu_vendor(self) -> str:
        """CPU vendor: "intel", "amd", "arm" or "unknown"."""
        return self.machine.cpu_vendor

    @property
    def nic_gbps(self) -> float:
        """GB/s of one NIC."""
        return self.machine.nic_gbps

    @property
    def min_net_gbps(self) -> float:
        """Smallest GB/s of a GPU's path to its nearest NIC."""
        return self.machine.path_gbps

    @property
    def nics_per_host(self) -> int:
        """NICs of a host, used or not."""
        return self.machine.nics_per_host

    # What the search found

    @cached_property
    def _found(self) -> list[Found]:
        """Search results of each distinct GPU list of the layout."""
        sets, set_of_host = self.layout.gpu_sets
        out = []
        for index, gpus in enumerate(sets):
            host = int(np.flatnonzero(set_of_host == index)[0])
            found = self.source.find(
                gpus, self.layout.kind_of(host), self.n_hosts == 1, self.settings.version
            )
            out.append(found._replace(graphs=self._usable(found.graphs, len(gpus))))
        return out

    def _usable(self, graphs: HostGraphs, ranks: int) -> HostGraphs:
        """Drop NVLS where the release or the environment does."""
        least = 2 if self.settings.version >= (2, 28, 7) else 3
        if self.settings.nvls and ranks >= least:
            return graphs
        return graphs._replace(nvls=NO_NVLS)

    @cached_property
    def graphs(self) -> dict[str, Graph]:
        """Search results "ring", "tree" and "nvls" reduced over the hosts."""
        each = [found.graphs for found in self._found]
        return {
            "ring": reduce_graphs([g.ring for g in each]),
            "tree": reduce_graphs([g.tree for g in each]),
            "nvls": reduce_graphs([g.nvls for g in each]),
        }

    @property
    def exact(self) -> bool:
        """Whether compiled NCCL was seen to give the same search results."""
        return not any(found.why_not_exact for found in self._found)

    @property
    def notes(self) -> tuple[str, ...]:
        """What was derived, assumed or is missing, one sentence each."""
        doubts = dict.fromkeys(f.why_not_exact for f in self._found if f.why_not_exact)
        return (*self._notes, *doubts)

    # Channels

    @cached_property
    def _nvls(self) -> NvlsCounts:
        return nvls_counts(
            self.graphs["nvls"],
            sm=self.sm,
            n_hosts=self.n_hosts,
            min_ranks_per_host=self.min_ranks_per_host,
            nic_gbps=self.min_net_gbps,
            settings=self.settings,
        )

    @cached_property
    def _counts(self) -> CollChannels:
        return coll_channels(
            self.graphs["ring"],
            self.graphs["tree"],
            sm=self.sm,
            n_hosts=self.n_hosts,
            nvls_channels=self._nvls.channels,
            settings=self.settings,
        )

    @cached_property
    def _p2p(self) -> P2pCounts:
        return p2p_counts(
            n_channels=self._counts.total,
            n_ranks=self.n_ranks,
            ranks_per_host=sorted(int(c) for c in np.unique(self.layout.counts)),
            net_gbps=self.min_net_gbps,
            all_nvlink=self.machine.nvlink,
            sm=self.sm,
            cpu_vendor=self.cpu_vendor,
            settings=self.settings,
        )

    @property
    def coll_channels(self) -> int:
        """Channels that ring and tree collectives may use."""
        return self._counts.coll

    @property
    def nvls_channels(self) -> int:
        """Channels of NVLS collectives, 0 without NVLS."""
        return self._nvls.channels

    @property
    def nvls_chunk_bytes(self) -> int:
        """Largest NVLS chunk of a head, bytes."""
        return self._nvls.chunk_bytes

    @property
    def nvls_tree_max_chunk_bytes(self) -> int:
        """Largest NVLS_TREE chunk, bytes."""
        return self._nvls.tree_max_chunk_bytes

    @property
    def p2p_channels(self) -> int:
        """Channels that sends and receives use, a power of two."""
        return self._p2p.channels

    @property
    def p2p_channels_per_peer(self) -> int:
        """Most channels of one peer, a power of two."""
        return self._p2p.per_peer

    @property
    def p2p_chunk_bytes(self) -> int:
        """Step of a send/recv part, bytes."""
        return self._p2p.chunk_bytes

    @property
    def p2p_group_size(self) -> int:
        """Ranks of a host that the send/recv schedule treats as one group."""
        return self._p2p.group_size

    @property
    def buffer_bytes(self) -> dict[str, int]:
        """Bytes of a connection's buffer by protocol: "ll", "ll128", "simple"."""
        s = self.settings
        return {"ll": s.buffer_ll, "ll128": s.buffer_ll128, "simple": s.buffer_simple}

    @cached_property
    def channels(self) -> tuple[Channel, ...]:
        """The channels, copies included; rings and trees are built when first read."""
        counts, layout = self._counts, self.layout
        rings = [g.graphs.ring for g in self._found]
        trees = [g.graphs.tree for g in self._found]
        ring_of: dict[int, Ring] = {}
        tree_of: dict[tuple[int, bool], Tree] = {}

        def ring(c: int) -> Ring:
            if c not in ring_of:
                ring_of[c] = Ring(lambda: channels_.build_ring(layout, rings, c, counts.search))
            return ring_of[c]

        def tree(c: int, second: bool) -> Tree:
            if (c, second) not in tree_of:
                tree_of[c, second] = Tree(lambda: channels_.build_tree(layout, trees, c, second))
            return tree_of[c, second]

        plan = channels_.channel_plan(counts.search, counts.kept, counts.total)
        return tuple(Channel(i, ring(c), tree(c, s)) for i, (c, s) in enumerate(plan))

    @cached_property
    def nvls_trees(self) -> tuple[NvlsTree, NvlsTree] | None:
        """NVLS trees of even and odd channels; None without NVLS or on one host."""
        if self.nvls_channels == 0 or self.n_hosts == 1:
            return None
        graphs = [found.graphs.nvls for found in self._found]
        return build_nvls_trees(self.layout, graphs, self.graphs["nvls"].n_channels)

    # NICs

    @cached_property
    def _nics(self) -> list[HostNics]:
        sets, _ = self.layout.gpu_sets
        return [
            HostNics(found.machine or self.machine, gpus, found.order, self.settings)
            for gpus, found in zip(sets, self._found, strict=True)
        ]

    def nic(
        self, rank: int, peer: int, channel: int, kind: str, direction: int | str
    ) -> tuple[int, int]:
        """Return the NIC of an edge to another host, and the rank that drives it.

        Args:
            rank: The rank whose data moves.
            peer: The other end, on another host.
            channel: Channel number.
            kind: "ring", "tree", "nvls" or "p2p".
            direction: 0 or "send", 1 or "recv".

        Returns:
            NIC number on `rank`'s host, and the rank whose GPU and proxy send on it (PXN);
            receives never use PXN, so there it is `rank` itself.
        """
        if direction not in SEND and direction not in RECV:
            raise InputError(f"direction {direction!r}: expected 0 or 'send', 1 or 'recv'")
        sending = direction in SEND
        host = int(self.layout.host[rank])
        index = int(self.layout.gpu_sets[1][host])
        nics, found = self._nics[index], self._found[index]
        gpu = int(self.layout.gpu[rank])
        if kind == "p2p":
            if not sending:
                return nics.local(gpu, channel), rank
            nic, proxy = nics.send(gpu, int(self.layout.gpu[peer]), channel)
        elif kind in ("ring", "tree"):
            graph = found.graphs.ring if kind == "ring" else found.graphs.tree
            nic = nics.graph(graph, gpu, channel, self.graphs[kind].n_channels)
            proxy = nics.proxy(gpu, nic) if graph.type_inter >= _PXN else gpu
        elif kind == "nvls":
            nic = nics.head(found.graphs.nvls, gpu, channel)
            proxy = nics.proxy(gpu, nic)
        else:
            raise InputError(f"kind {kind!r}: expected ring, tree, nvls or p2p")
        if not sending or proxy == gpu:
            return nic, rank
        return nic, self.layout.ranks_of(host)[self.layout.gpu_sets[0][index].index(proxy)]

    def __getstate__(self) -> dict[str, object]:
        """Drop what can be computed again: rings and trees are built by local functions."""
        state = {
            key: value
            for key, value in self.__dict__.items()
            if not isinstance(getattr(type(self), key, None), cached_property)
        }
        return {**state, "_children": {}}

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


def _check_hosts(hosts: int) -> None:
    if hosts < 1:
        raise InputError(f"a cluster needs at least one host, got {hosts}")


def _grid(hosts: int, position: npt.NDArray[np.int64]) -> Layout:
    """Ranks host by host; `position` is the GPU number of each local rank."""
    gpus = len(position)
    return Layout(
        host=np.repeat(np.arange(hosts, dtype=np.int32), gpus),
        gpu=np.tile(position.astype(np.int32), hosts),
        label=tuple(range(hosts)),
    )
