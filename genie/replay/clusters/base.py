"""What follows from a layout, its search results and an environment."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from genie.errors import InputError
from genie.replay.clusters import channels as channels_
from genie.replay.clusters.channels import Channel, Ring, Tree, swapping_codes
from genie.replay.clusters.counts import (
    CollChannels,
    NvlsCounts,
    P2pCounts,
    coll_channels,
    nvls_counts,
    p2p_counts,
)
from genie.replay.clusters.graph import NO_NVLS, Graph, HostGraphs, reduce_graphs
from genie.replay.clusters.layout import Layout
from genie.replay.clusters.machine import Machine
from genie.replay.clusters.nics import HostNics
from genie.replay.clusters.nvls import NvlsTree, build_nvls_trees
from genie.replay.clusters.settings import Settings
from genie.replay.clusters.sources import Found, Source

__all__ = ["RECV", "SEND", "ClusterFacts"]

_PXN = 7  # path code: at least one GPU reaches its NIC through another GPU
SEND = (0, "send", "s")
RECV = (1, "recv", "receive", "r")


class ClusterFacts:
    """Counts, channels and NICs of a communicator; see `genie.replay.cluster.Cluster`.

    Args:
        name: What the cluster is called.
        source: Where search results come from.
        layout: Ranks by host, local rank and GPU.
        settings: The environment in force; NCCL 2.30.7's defaults if None.
        notes: What was assumed on the way here.
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
        self._edges: dict[tuple[int, int, int, int, str, bool], tuple[int, int]] = {}

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
        swapping = swapping_codes(self.settings.version, self.n_hosts)
        rings = [g.graphs.ring for g in self._found]
        trees = [g.graphs.tree for g in self._found]
        ring_of: dict[int, Ring] = {}
        tree_of: dict[tuple[int, bool], Tree] = {}

        def ring(c: int) -> Ring:
            if c not in ring_of:
                ring_of[c] = Ring(
                    lambda: channels_.build_ring(layout, rings, c, counts.search, swapping)
                )
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
        hosts, gpus, set_of_host = self._where
        host = hosts[rank]
        index = set_of_host[host]
        other = gpus[peer] if kind == "p2p" else -1
        # Hosts with the same GPUs share the answer, told as a local rank.
        key = (index, gpus[rank], other, channel, kind, sending)
        found = self._edges.get(key)
        if found is None:
            found = self._edges[key] = self._edge(*key)
        nic, proxy = found
        if proxy < 0:
            return nic, rank
        return nic, int(self.layout.by_host[self.layout.offset[host] + proxy])

    @cached_property
    def _where(self) -> tuple[list[int], list[int], list[int]]:
        """Host and GPU of each rank, GPU set of each host, as lists: quicker to look up."""
        layout = self.layout
        return layout.host.tolist(), layout.gpu.tolist(), layout.gpu_sets[1].tolist()

    def _edge(
        self, index: int, gpu: int, peer_gpu: int, channel: int, kind: str, sending: bool
    ) -> tuple[int, int]:
        """Return NIC and the proxy's local rank, -1 for the GPU itself."""
        nics, graphs = self._nics[index], self._found[index].graphs
        if kind == "p2p":
            if not sending:
                return nics.local(gpu, channel), -1
            nic, proxy = nics.send(gpu, peer_gpu, channel)
        elif kind in ("ring", "tree"):
            graph = graphs.ring if kind == "ring" else graphs.tree
            nic = nics.graph(graph, gpu, channel, self.graphs[kind].n_channels)
            proxy = nics.proxy(gpu, nic) if graph.type_inter >= _PXN else gpu
        elif kind == "nvls":
            nic = nics.head(graphs.nvls, gpu, channel)
            proxy = nics.proxy(gpu, nic)
        else:
            raise InputError(f"kind {kind!r}: expected ring, tree, nvls or p2p")
        if not sending or proxy == gpu:
            return nic, -1
        return nic, self.layout.gpu_sets[0][index].index(proxy)

    def __getstate__(self) -> dict[str, object]:
        """Drop what can be computed again: rings and trees are built by local functions."""
        state = {
            key: value
            for key, value in self.__dict__.items()
            if not isinstance(getattr(type(self), key, None), cached_property)
        }
        return {**state, "_edges": {}}
