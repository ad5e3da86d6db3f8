"""`Cluster` whose channels are those of a log instead of a search's."""

from __future__ import annotations

from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from genie import checks
from genie.replay.cluster import Cluster
from genie.replay.clusters.base import RECV, SEND
from genie.replay.clusters.channels import Channel, Ring, Tree
from genie.replay.clusters.counts import CollChannels, NvlsCounts, P2pCounts
from genie.replay.clusters.graph import NO_NVLS, Graph
from genie.replay.clusters.graph_xml import Extra
from genie.replay.clusters.layout import Layout
from genie.replay.clusters.logged import LogEnv, Logged, log_cluster
from genie.replay.clusters.nvls import NvlsTree, join_heads
from genie.replay.clusters.recipe import nccl_step
from genie.replay.clusters.settings import Settings
from genie.replay.clusters.sources import Source

if TYPE_CHECKING:
    from genie.replay.nccl.env import Nccl

__all__ = ["LogCluster"]


class LogCluster(Cluster):
    """A cluster read from a log; see `Cluster.from_nccl_log`."""

    def __init__(
        self,
        name: str,
        source: Source,
        layout: Layout,
        settings: Settings,
        logged: Logged,
        notes: tuple[str, ...],
    ) -> None:
        super().__init__(name, source, layout, settings, notes=notes)
        self._logged = logged

    @classmethod
    def read(cls, text: str | Path, hosts: int | None, extra: Extra) -> LogCluster:
        """Return the cluster of a log."""
        name, source, layout, settings, logged, notes = log_cluster(text, hosts, extra)
        return cls(f"{name}:{layout.n_hosts}", source, layout, settings, logged, tuple(notes))

    def with_nccl(self, nccl: Nccl) -> Cluster:
        """Return this cluster under an environment; the log's own settings stay below it."""
        checks.nccl(nccl)
        key = ("nccl", tuple(nccl.version), tuple(sorted(nccl.env.items())))
        found = self._children.get(key)
        if found is None:
            merged = LogEnv(tuple(nccl.version), {**self._logged.facts.env, **nccl.env})
            settings = Settings.of(merged)
            made = self if settings == self.settings else self._under(settings)
            found = self._remember(key, made, nccl_step(nccl))
        return found

    def _under(self, settings: Settings) -> LogCluster:
        return LogCluster(self.name, self.source, self.layout, settings, self._logged, self._notes)

    @property
    def exact(self) -> bool:
        """Whether every ring and tree is the log's or follows from it."""
        return self._logged.complete

    @cached_property
    def graphs(self) -> dict[str, Graph]:
        """Search results as printed, or the stand-in that `notes` names."""
        graphs = super().graphs
        return graphs if self._logged.heads is not None else {**graphs, "nvls": NO_NVLS}

    @cached_property
    def _nvls(self) -> NvlsCounts:
        """NVLS counts: the log's number of channels, chunks by the rules."""
        if self._logged.heads is None or not self.settings.nvls:
            return NvlsCounts(0, 0, 0)
        rule = super()._nvls
        late = self.n_hosts >= 4
        chunk = rule.chunk_bytes or self.settings.nvls_chunk or 131072
        limit = rule.tree_max_chunk_bytes or (65536 if late else chunk)
        counted = self._logged.facts.counts.get("nvls")
        return NvlsCounts(counted or rule.channels or 16, chunk, limit)

    @cached_property
    def _counts(self) -> CollChannels:
        """Channel counts: the log's, under limits that were not the log's."""
        facts, mine, logs = self._logged.facts, self.settings, self._logged.settings
        total = facts.counts.get("coll", facts.total or 0)
        kept = total
        if (mine.max_channels, mine.max_ctas) != (logs.max_channels, logs.max_ctas):
            kept = min(kept, mine.max_channels, mine.max_ctas)
        total = max(kept, mine.min_channels, mine.min_ctas)
        return CollChannels(facts.total or 0, kept, total, total)

    @cached_property
    def _p2p(self) -> P2pCounts:
        """Send/recv counts: the log's where it gives them and nothing changed them."""
        rule, facts = super()._p2p, self._logged.facts
        if self._counts.total != facts.counts.get("coll", facts.total):
            return rule
        mine, logs = self.settings, self._logged.settings
        names = ("min_p2p_channels", "max_p2p_channels", "channels_per_net_peer",
                 "net_gbps_per_p2p_channel", "p2p_max_peers")  # fmt: skip
        counted = all(getattr(mine, name) == getattr(logs, name) for name in names)
        chunks = ("p2p_net_chunk", "p2p_nvl_chunk", "p2p_pci_chunk", "buffer_simple")
        same_chunk = all(getattr(mine, name) == getattr(logs, name) for name in chunks)
        return P2pCounts(
            channels=facts.counts.get("p2p", rule.channels) if counted else rule.channels,
            per_peer=facts.counts.get("per_peer", rule.per_peer) if counted else rule.per_peer,
            chunk_bytes=(facts.p2p_chunk or rule.chunk_bytes) if same_chunk else rule.chunk_bytes,
            group_size=rule.group_size,
        )

    @cached_property
    def channels(self) -> tuple[Channel, ...]:
        """The log's channels."""
        logged, counts = self._logged, self._counts
        rings = {c: Ring(partial(logged.rings.__getitem__, c)) for c in logged.rings}
        trees = {c: Tree(partial(logged.trees.__getitem__, c)) for c in logged.trees}
        out = []
        for index in range(counts.total):
            c = index % counts.kept
            out.append(Channel(index, rings.get(c), trees[c], logged.links.get(c)))
        return tuple(out)

    @cached_property
    def nvls_trees(self) -> tuple[NvlsTree, NvlsTree] | None:
        """NVLS trees of the heads in the log."""
        if self.nvls_channels == 0 or self.n_hosts == 1 or self._logged.heads is None:
            return None
        return join_heads(self.layout, self._logged.heads)

    def nic(
        self, rank: int, peer: int, channel: int, kind: str, direction: int | str
    ) -> tuple[int, int]:
        """Return NIC and driving rank: as printed where the log shows the edge or its like."""
        if kind != "p2p" and (direction in SEND or direction in RECV):
            way = "send" if direction in SEND else "recv"
            nic = self._logged.nic(self.layout, rank, peer, channel, way)
            if nic is not None:
                proxy = self._logged.proxy(rank, peer, channel) if way == "send" else None
                return nic, rank if proxy is None else proxy
            if not self._logged.graph_nics and kind in ("ring", "tree", "nvls"):
                return super().nic(rank, rank, channel, "p2p", "recv")
        return super().nic(rank, peer, channel, kind, direction)
