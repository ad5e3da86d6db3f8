"""Golden dtree, rings, presets, sub-communicators and subsets: what a cluster owns."""

from __future__ import annotations

from typing import Any

from genie.errors import InputError
from genie.replay.cluster import Cluster
from genie.replay.clusters.graph import Graph, path_code
from genie.replay.nccl import golden
from genie.replay.nccl.selfcheck.common import entry_cluster, entry_name, preset
from genie.replay.nccl.selfcheck.plans import settings
from genie.replay.nccl.selfcheck.tally import Tally
from genie.replay.nccl.trees import double_binary_tree

#: Fields of golden -> attributes of `Cluster`.
_COUNTS = {
    "nvlsChannels": "nvls_channels",
    "nvlsChunkSize": "nvls_chunk_bytes",
    "nvlsTreeMaxChunkSize": "nvls_tree_max_chunk_bytes",
    "p2pnChannels": "p2p_channels",
    "p2pnChannelsPerPeer": "p2p_channels_per_peer",
    "p2pSchedGroupSize": "p2p_group_size",
    "p2pChunkSize": "p2p_chunk_bytes",
    "nNodes": "n_hosts",
    "nRanks": "n_ranks",
}
_REDUCED = ("nChannels", "bwIntra", "bwInter", "typeIntra", "typeInter", "crossNic")
_RING = ("nChannels", "crossNic", "bwIntra", "bwInter", "typeInter")


def graph_fields(graph: Graph, version: tuple[int, ...]) -> dict[str, Any]:
    """Return `graph` as golden writes it, with the codes of its own release."""
    cross = 1 if graph.cross_nic == 2 and version < (2, 23, 4) else graph.cross_nic
    return {
        "pattern": graph.pattern,
        "nChannels": graph.n_channels,
        "bwIntra": graph.bw_intra,
        "bwInter": graph.bw_inter,
        "latencyInter": graph.latency_inter,
        "typeIntra": path_code(graph.type_intra, version),
        "typeInter": path_code(graph.type_inter, version),
        "sameChannels": int(graph.same_channels),
        "crossNic": cross,
        "intra": [list(order) for order in graph.intra],
        "inter": [list(nics) for nics in graph.inter],
    }


def check_dtree(version: str) -> Tally:
    """Compare the double binary trees, one comparison a host."""
    tally = Tally("dtree", version)
    for hosts, rows in golden.load("dtree", version)["trees"].items():
        for host, (got, want) in enumerate(
            zip(double_binary_tree(int(hosts)).tolist(), rows, strict=True)
        ):
            tally.same(got, want, hosts, "hosts, host", host)
    return tally


def check_presets(version: str) -> Tally:
    """Compare machines and search results of every preset."""
    tally = Tally("presets", version)
    nccl = settings(version, None)
    for name, machine in golden.load("presets", version)["machines"].items():
        for entry in machine["graphs"]:
            for hosts in entry["nNodes"]:
                cluster = preset(name, hosts).with_nccl(nccl)
                facts = [cluster.sm, cluster.nics_per_host, cluster.max_ranks_per_host]
                want = [machine["sm"], machine["nicsPerNode"], machine["gpusPerNode"]]
                tally.same(facts, want, name, hosts)
                for kind, graph in entry["graphs"].items():
                    got = graph_fields(cluster.graphs[kind], nccl.version)
                    tally.same(got, graph, name, hosts, kind)
    return tally


def check_rings(version: str) -> Tally:
    """Compare rings, trees, NVLS trees, counts, buffers and NICs of whole clusters."""
    tally = Tally("rings", version)
    nccl = settings(version, None)
    for entry in golden.load("rings", version)["clusters"]:
        cluster = entry_cluster(entry).with_nccl(nccl)
        name = entry_name(entry)
        _channels(tally, cluster, entry, name)
        buffers = {key.upper(): value for key, value in cluster.buffer_bytes.items()}
        tally.same(buffers, entry["buffSizes"], name, "buffers")
        for kind, graph in entry["graphs"].items():
            tally.same(graph_fields(cluster.graphs[kind], nccl.version), graph, name, kind)
    return tally


def check_subcomm(version: str = "2.30") -> Tally:
    """Compare the same of communicators of any members."""
    tally = Tally("sub/subcomm", version)
    nccl = settings(version, None)
    for entry in golden.load("sub/subcomm", version)["cases"]:
        cluster = entry_cluster(entry).with_nccl(nccl)
        _channels(tally, cluster, entry, entry["case"])
        for kind, want in entry["reduced"].items():
            fields = graph_fields(cluster.graphs[kind], nccl.version)
            tally.same([fields[key] for key in _REDUCED], want, entry["case"], kind)
    return tally


def check_subset_graphs(version: str = "2.30") -> Tally:
    """Compare the search result of every set of GPUs of a host."""
    tally = Tally("sub/subset_graphs", version)
    nccl = settings(version, None)
    for entry in golden.load("sub/subset_graphs", version)["subsets"]:
        members = [(host, gpu) for host in range(2) for gpu in entry["gpus"]]
        cluster = preset(entry["machine"], 2).communicator(members).with_nccl(nccl)
        name = f"{entry['machine']} {entry['gpus']}"
        for field, attribute in _COUNTS.items():
            if field in entry:
                tally.same(getattr(cluster, attribute), entry[field], name, field)
        tally.same(cluster.coll_channels, entry["nChannels"], name, "channels")
        for kind, graph in entry["graphs"].items():
            tally.same(graph_fields(cluster.graphs[kind], nccl.version), graph, name, kind)
    return tally


def check_environment(tally: Tally, entry: dict[str, Any], cluster: Cluster) -> None:
    """Compare channels, buffers and ring of one entry of env_variants."""
    name = entry_name(entry)
    tally.same(len(cluster.channels), entry["nChannels"], name, "channels")
    for field in ("nvlsChannels", "p2pnChannels", "p2pnChannelsPerPeer", "p2pChunkSize"):
        tally.same(getattr(cluster, _COUNTS[field]), entry[field], name, field)
    tally.same(list(cluster.buffer_bytes.values()), entry["buffSizes"], name, "buffers")
    tally.same(cluster.channels[0].ring, entry["ring0"], name, "ring 0")
    fields = graph_fields(cluster.graphs["ring"], cluster.settings.version)
    tally.same({key: fields[key] for key in _RING}, entry["ringGraph"], name, "ring graph")


def refused(entry: dict[str, Any], error: InputError, version: str) -> bool:
    """Whether a refusal names the variable, and the search did find something else."""
    default = preset(entry["machine"], entry["nNodes"]).with_nccl(settings(version, None))
    fields = graph_fields(default.graphs["ring"], default.settings.version)
    changed = {key: fields[key] for key in _RING} != entry["ringGraph"]
    return changed and all(name in str(error) for name in entry["env"])


def _channels(tally: Tally, cluster: Cluster, entry: dict[str, Any], name: str) -> None:
    tally.same([c.ring for c in cluster.channels], entry["rings"], name, "rings")
    tally.same(len(cluster.channels), entry["nChannels"], name, "channels")
    for channel, tree in zip(cluster.channels, entry["trees"], strict=False):
        tally.same(channel.tree_up, tree["up"], name, "tree up", channel.index)
        tally.same(channel.tree_down, tree["down"], name, "tree down", channel.index)
    for field, attribute in _COUNTS.items():
        if field in entry:
            tally.same(getattr(cluster, attribute), entry[field], name, field)
    trees = cluster.nvls_trees
    tally.same(trees is not None, "nvlsTrees" in entry, name, "has NVLS trees")
    for parity, want in enumerate(entry.get("nvlsTrees", ())):
        if trees is not None:
            got = [trees[parity].head_of.tolist(), trees[parity].up, trees[parity].down]
            tally.same(got, [want["headRank"], want["up"], want["down"]], name, "NVLS", parity)
    _nics(tally, cluster, entry, name)


def _nics(tally: Tally, cluster: Cluster, entry: dict[str, Any], name: str) -> None:
    for channel, rank, peer, way, nic, proxy in entry.get("ringNet", ()):
        # Receives never go through another GPU: golden's proxy holds for sends.
        got = cluster.nic(rank, peer, channel, "ring", way)
        want = (nic, proxy if way == "s" else rank)
        tally.same(got, want, name, "ring NIC", channel, rank, peer, way)
    for channel, rank, nic, proxy in entry.get("treeNet", ()):
        peer = _outside(cluster, channel, rank)
        got = cluster.nic(rank, peer, channel, "tree", "send")
        tally.same(got, (nic, proxy), name, "tree NIC", channel, rank)
    for channel, rank, nic, proxy in entry.get("nvlsNet", ()):
        got = cluster.nic(rank, -1, channel, "nvls", "send")
        tally.same(got, (nic, proxy), name, "NVLS NIC", channel, rank)
    for rank, peer, channel, nic, proxy in (*entry.get("p2pNet", ()), *entry.get("netDev", ())):
        got = cluster.nic(rank, peer, channel, "p2p", "send")
        tally.same(got, (nic, proxy), name, "p2p NIC", rank, peer, channel)


def _outside(cluster: Cluster, channel: int, rank: int) -> int:
    at = cluster.channels[channel]
    peers = [at.tree_up[rank], *at.tree_down[rank]]
    return next(p for p in peers if p >= 0 and not cluster.same_host(rank, p))
