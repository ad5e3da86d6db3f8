"""A cluster read from an NCCL_DEBUG=INFO log."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from genie.errors import InputError
from genie.replay.clusters.channels import UNKNOWN
from genie.replay.clusters.graph import NO_NVLS, PATHS, Graph, HostGraphs
from genie.replay.clusters.graph_xml import Extra, graph_machine
from genie.replay.clusters.layout import Layout
from genie.replay.clusters.log_layout import log_layout
from genie.replay.clusters.log_match import Known, preset_if_same
from genie.replay.clusters.log_rings import Links, complete_rings
from genie.replay.clusters.log_trees import complete_trees
from genie.replay.clusters.machine import Machine, preset_graphs, preset_machine, preset_names
from genie.replay.clusters.nccl_log import LogFacts, LogGraph, read_log
from genie.replay.clusters.settings import Settings
from genie.replay.clusters.sources import GraphSource, LocalSource

__all__ = ["LogEnv", "Logged", "log_cluster"]

Ints = npt.NDArray[np.int32]


class LogEnv:
    """A release and an environment, as much of `Nccl` as `Settings` reads."""

    def __init__(self, version: tuple[int, ...], env: dict[str, str]) -> None:
        self.version = version
        self.env = env

    def get_int(self, name: str, default: int) -> int:
        """Return a numeric variable, `default` where unset or no number."""
        try:
            return int(self.env.get(name, default))
        except ValueError:
            return default


@dataclass(frozen=True)
class Logged:
    """What a log settled about the channels.

    Attributes:
        facts: The lines' facts.
        rings: Whole rings by channel.
        links: Known neighbours in the other channels.
        trees: Parents and children by channel.
        heads: NVLS heads, one row a host; None where the log lists none.
        settings: The log's own environment and release.
        complete: Whether every ring and tree is known.
        graph_nics: Whether the search results name NICs (printed, or those of a preset).
    """

    facts: LogFacts
    rings: dict[int, Ints]
    links: dict[int, Links]
    trees: dict[int, tuple[Ints, Ints]]
    heads: Ints | None
    settings: Settings
    complete: bool
    graph_nics: bool
    _by_local: dict[tuple[int, int, str], tuple[int, int | None]] = field(default_factory=dict)

    def nic(self, layout: Layout, rank: int, peer: int, channel: int, way: str) -> int | None:
        """Return the NIC of an edge: as printed, else as printed for the same local rank."""
        found = self.facts.nics.get((channel, rank, peer, way))
        if found is None:
            found = self._local(layout).get(self._key(layout, rank, channel, way))
        return None if found is None else found[0]

    def proxy(self, rank: int, peer: int, channel: int) -> int | None:
        """Return the rank that a send goes through, if the log says."""
        found = self.facts.nics.get((channel, rank, peer, "send"))
        return None if found is None else found[1]

    def _key(self, layout: Layout, rank: int, channel: int, way: str) -> tuple[int, int, str]:
        total = self.facts.total or 1
        period = total // 2 if total % 2 == 0 else total
        return channel % period, int(layout.local[rank]), way

    def _local(self, layout: Layout) -> dict[tuple[int, int, str], tuple[int, int | None]]:
        if not self._by_local:
            for (channel, rank, _, way), found in self.facts.nics.items():
                self._by_local.setdefault(self._key(layout, rank, channel, way), found)
        return self._by_local


def log_cluster(
    text: str | Path, hosts: int | None, extra: Extra
) -> tuple[str, GraphSource, Layout, Settings, Logged, list[str]]:
    """Return name, source, layout, settings, log and notes of a cluster read from a log.

    Args:
        text: The log as text or as a path.
        hosts: Number of hosts, where the log does not say.
        extra: What a log does not say.

    Raises:
        InputError: A log that cannot be used; see `read_log`.
    """
    content, where = _read(text)
    facts = read_log(content, where)
    if facts.version is None and extra.version is not None:
        facts.version = (extra.version[0], extra.version[1], extra.version[2])
    layout = log_layout(facts, hosts, where)
    rings, links = complete_rings(facts, layout, where)
    trees = complete_trees(facts, layout, _tree_pattern(facts, extra))
    heads = _heads(facts, layout, where)
    if facts.version is None:
        facts.notes.append("the log does not name the NCCL release: 2.30.7's rules are used")
    settings = Settings.of(LogEnv(facts.version or Settings().version, facts.env))
    source, named = _source(facts, layout, Known(facts, rings, trees), where, extra)
    others = sorted(set(facts.env) - _APPLIED)
    if others:
        facts.notes.append(
            f"the job also set {', '.join(f'{n}={facts.env[n]}' for n in others)}: give them to "
            "Nccl(env=...) to plan the same choices"
        )
    complete = len(rings) == facts.total and not any(
        (up == UNKNOWN).any() for up, _ in trees.values()
    )
    logged = Logged(facts, rings, links, trees, heads, settings, complete, named)
    return where, source, layout, settings, logged, facts.notes


# Variables that the cluster itself applies (buffers, counts): see settings.py.
_APPLIED = {
    "NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE", "NCCL_SOCKET_IFNAME",
    "NCCL_BUFFSIZE", "NCCL_LL_BUFFSIZE", "NCCL_LL128_BUFFSIZE",
    "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS", "NCCL_MIN_NRINGS", "NCCL_MAX_NRINGS",
    "NCCL_MIN_CTAS", "NCCL_MAX_CTAS", "NCCL_MIN_P2P_NCHANNELS", "NCCL_MAX_P2P_NCHANNELS",
    "NCCL_P2P_NET_CHUNKSIZE", "NCCL_P2P_NVL_CHUNKSIZE", "NCCL_P2P_PCI_CHUNKSIZE",
    "NCCL_NVLS_ENABLE", "NCCL_NVLS_NCHANNELS", "NCCL_NVLS_CHUNKSIZE",
    "NCCL_NVLSTREE_MAX_CHUNKSIZE", "NCCL_PXN_DISABLE", "NCCL_P2P_PXN_LEVEL",
    "NCCL_NETDEVS_POLICY", "NCCL_NCHANNELS_PER_NET_PEER", "NCCL_P2P_PER_CHANNEL_NET_BW",
    "NCCL_P2P_SCHEDULE_GROUP_SIZE", "NCCL_P2P_MAX_PEERS", "NCCL_CROSS_NIC",
}  # fmt: skip


def _read(text: str | Path) -> tuple[str, str]:
    if isinstance(text, str) and ("\n" in text or "NCCL" in text):
        return text, "log"
    path = Path(text)
    try:
        return path.read_text("utf-8", errors="replace"), str(path)
    except OSError as error:
        raise InputError(f"cannot read the log {path}: {error}", path=str(path)) from error


def _heads(facts: LogFacts, layout: Layout, where: str) -> Ints | None:
    """Return NVLS heads as a table, hosts by heads."""
    if not facts.heads:
        if facts.counts.get("nvls"):
            facts.notes.append("NVLS heads are not in the log: NVLS algorithms are left out")
        return None
    table = np.full((layout.n_hosts, len(facts.heads)), -1, dtype=np.int32)
    for column, (head, ranks) in enumerate(sorted(facts.heads.items())):
        if head != column or any(not 0 <= r < layout.n_ranks for r in ranks):
            raise InputError(f"{where}: NVLS head {head} with ranks {ranks}")
        table[layout.host[ranks], column] = ranks
    if (table < 0).any():
        facts.notes.append("NVLS heads of some hosts are not in the log: NVLS left out")
        return None
    return table


def _source(
    facts: LogFacts, layout: Layout, known: Known, where: str, extra: Extra
) -> tuple[GraphSource, bool]:
    """Return search results: printed, a preset's, or a stand-in; and whether NICs are known."""
    one_host, size = layout.n_hosts == 1, layout.max_local
    version = facts.version or Settings().version
    plain = LocalSource.sized(size).find(tuple(range(size)), 0, False, version).graphs
    found = _printed(facts, layout)
    named = found is not None and any(nics != (0, 0) for nics in found.ring.inter)
    base: Machine | None = None
    if extra.like is None and found is None:
        like = _only_match(facts, layout, known, version)
        if like is not None:
            facts.notes.append(
                "bandwidths, link types and NICs are not in the log; its rings and trees are "
                f"those of preset {like}, so that preset's are used (like= chooses another)"
            )
        else:
            facts.notes.append(
                "bandwidths and link types are not in the log (NCCL_DEBUG_SUBSYS=INIT,GRAPH "
                "prints them): the tuner's inputs are a100x1_100g's (give like=PRESET)"
            )
            found = plain
        extra = replace(extra, like=like or "a100x1_100g")
    if extra.like is not None and found is not plain:
        same = preset_if_same(extra.like, layout, known, version)
        if same is not None:
            base = preset_machine(extra.like)
            found, named = found or same, True
        found = found or _like(plain, extra.like)
    assert found is not None
    machine, notes = graph_machine(found, where, extra)
    facts.notes += [note.replace("the dump", "the log") for note in notes]
    n_nics = facts.n_nics or max((n + 1 for n, _ in facts.nics.values()), default=0)
    if not n_nics and not named and not one_host:
        facts.notes.append(f"NICs are not in the log: {machine.nics_per_host} a host assumed")
    n_nics = n_nics or machine.nics_per_host
    if base is not None and base.n_gpus >= size and n_nics <= base.nics_per_host:
        machine = replace(
            machine,
            switch_of_gpu=base.switch_of_gpu,
            switch_of_nic=base.switch_of_nic,
            cpu_of_gpu=base.cpu_of_gpu,
            nics_per_host=base.nics_per_host,
            family=base.family,
        )
    else:
        machine = replace(
            machine,
            # Two GPUs to a NIC where there are more GPUs than NICs, in order.
            switch_of_gpu=tuple(g * n_nics // size for g in range(size)),
            switch_of_nic=tuple(range(n_nics)),
            cpu_of_gpu=(0,) * size,
            nics_per_host=n_nics,
            nvlink=found is not plain and machine.nvlink,
        )
    machine = replace(
        machine, description=f"{size} GPUs a host, read from a log", gpus_per_host=size
    )
    if not named and not one_host and machine.nics_per_host > 1:
        facts.notes.append("an edge that is not printed is given its GPU's nearest NIC")
    return GraphSource(machine, ((machine, found),), one_host, "log"), named


def _only_match(
    facts: LogFacts, layout: Layout, known: Known, version: tuple[int, ...]
) -> str | None:
    """Return the one preset of several GPUs a host whose rings and trees the log shows."""
    if layout.max_local == 1 or len(known.rings) != facts.total:
        return None
    names = [n for n in preset_names() if preset_if_same(n, layout, known, version)]
    return names[0] if len(names) == 1 else None


def _like(plain: HostGraphs, like: str) -> HostGraphs:
    """Return the plain orders with a preset's speeds and types."""
    measured = preset_graphs(like, False, (2, 30, 7))
    assert measured is not None

    def dressed(graph: Graph, model: Graph) -> Graph:
        n = model.n_channels
        return replace(model, intra=(graph.intra[0],) * n, inter=(graph.inter[0],) * n)

    return HostGraphs(
        dressed(plain.ring, measured.ring), dressed(plain.tree, measured.tree), measured.nvls
    )


def _printed(facts: LogFacts, layout: Layout) -> HostGraphs | None:
    """Return the search results that the GRAPH subsystem printed, in local ranks."""
    ring = _first(facts.graphs, lambda g: g.pattern == 4)
    tree = _first(facts.graphs, lambda g: g.pattern in (1, 2, 3))
    if ring is None or tree is None:
        return None
    nvls = _first(facts.graphs, lambda g: g.pattern == 5)
    converted = [_convert(g, layout) for g in (ring, tree)]
    if converted[0] is None or converted[1] is None:
        return None
    heads = _convert(nvls, layout) if nvls is not None and nvls.n_channels else None
    return HostGraphs(converted[0], converted[1], heads or NO_NVLS)


def _tree_pattern(facts: LogFacts, extra: Extra) -> int | None:
    printed = _first(facts.graphs, lambda g: g.pattern in (1, 2, 3))
    if printed is not None:
        return printed.pattern
    if extra.like is None:
        return None
    measured = preset_graphs(extra.like, False, (2, 30, 7))
    return None if measured is None else measured.tree.pattern


def _first(graphs: list[LogGraph], test: Callable[[LogGraph], bool]) -> LogGraph | None:
    return next((g for g in graphs if test(g)), None)


def _convert(graph: LogGraph, layout: Layout) -> Graph | None:
    """Return the graph in local ranks; orders that cannot be told become rank order."""
    names = (graph.type_intra.upper(), graph.type_inter.upper())
    if any(name not in PATHS for name in names) or not graph.n_channels:
        return None
    size = layout.max_local
    known = len(graph.intra) == graph.n_channels and all(
        0 <= r < layout.n_ranks for order in graph.intra for r in order
    )
    orders = [tuple(int(layout.local[r]) for r in order) for order in graph.intra] if known else []
    if graph.pattern != 5 and not all(sorted(o) == list(range(size)) for o in orders):
        orders = []
    nics = list(graph.inter) if len(graph.inter) == graph.n_channels else []
    if graph.pattern == 5 and not orders:
        return None
    return Graph(
        pattern=graph.pattern,
        n_channels=graph.n_channels,
        bw_intra=graph.bw_intra,
        bw_inter=graph.bw_inter,
        type_intra=PATHS.index(names[0]),
        type_inter=PATHS.index(names[1]),
        same_channels=graph.same_channels,
        cross_nic=graph.cross_nic,
        intra=tuple(orders or [tuple(range(size))] * graph.n_channels),
        inter=tuple(nics if min(map(min, nics), default=-1) >= 0 else [(0, 0)] * graph.n_channels),
    )
