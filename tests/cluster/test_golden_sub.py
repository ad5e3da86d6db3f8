"""Communicators of any members against compiled NCCL 2.30.7 (golden/sub)."""

from __future__ import annotations

import golden_data
from genie.replay.cluster import Cluster
from genie.replay.clusters.graph import Graph

CASES = 294
SUBSETS = 478
RINGS = 3424
NET_ROWS = 43510

COUNTS = (
    ("coll_channels", "nChannels"),
    ("nvls_channels", "nvlsChannels"),
    ("p2p_channels", "p2pnChannels"),
    ("p2p_channels_per_peer", "p2pnChannelsPerPeer"),
    ("p2p_group_size", "p2pSchedGroupSize"),
)
MORE_COUNTS = (
    ("nvls_chunk_bytes", "nvlsChunkSize"),
    ("nvls_tree_max_chunk_bytes", "nvlsTreeMaxChunkSize"),
    ("p2p_chunk_bytes", "p2pChunkSize"),
    ("min_net_gbps", "minNetBw"),
    ("n_hosts", "nNodes"),
    ("n_ranks", "nRanks"),
)


def as_golden(graph: Graph) -> dict:
    return {
        "pattern": graph.pattern,
        "nChannels": graph.n_channels,
        "bwIntra": graph.bw_intra,
        "bwInter": graph.bw_inter,
        "latencyInter": graph.latency_inter,
        "typeIntra": graph.type_intra,
        "typeInter": graph.type_inter,
        "sameChannels": int(graph.same_channels),
        "crossNic": graph.cross_nic,
        "intra": [list(order) for order in graph.intra],
        "inter": [list(nics) for nics in graph.inter],
    }


def test_every_set_of_gpus():
    compared = 0
    for golden in golden_data.load("sub/subset_graphs")["subsets"]:
        members = [(host, gpu) for host in range(2) for gpu in golden["gpus"]]
        cluster = Cluster.preset(golden["machine"], hosts=2).communicator(members)
        where = (golden["machine"], golden["gpus"])
        for kind, graph in golden["graphs"].items():
            assert as_golden(cluster.graphs[kind]) == graph, (where, kind)
        for ours, theirs in COUNTS:
            assert getattr(cluster, ours) == golden[theirs], (where, ours)
        assert cluster.exact, cluster.notes
        compared += 1
    assert compared >= SUBSETS


def test_communicators():
    cases = rings = rows = 0
    for golden in golden_data.load("sub/subcomm")["cases"]:
        whole = Cluster.preset(golden["machine"], hosts=golden["nNodes"])
        cluster = whole.communicator([tuple(member) for member in golden["members"]])
        where = golden["case"]
        for ours, theirs in COUNTS + MORE_COUNTS:
            assert getattr(cluster, ours) == golden[theirs], (where, ours)
        for kind, row in golden["reduced"].items():
            graph = as_golden(cluster.graphs[kind])
            keys = ("nChannels", "bwIntra", "bwInter", "typeIntra", "typeInter", "crossNic")
            assert [graph[key] for key in keys] == row, (where, kind)
        assert [c.ring for c in cluster.channels] == golden["rings"], where
        for channel, tree in zip(cluster.channels, golden["trees"], strict=True):
            assert channel.tree_up == tree["up"], (where, channel.index)
            assert channel.tree_down == tree["down"], (where, channel.index)
        for parity, tree in enumerate(golden.get("nvlsTrees", ())):
            assert cluster.nvls_trees is not None
            assert cluster.nvls_trees[parity].up == tree["up"], where
            assert cluster.nvls_trees[parity].down == tree["down"], where
            assert cluster.nvls_trees[parity].head_of.tolist() == tree["headRank"], where
        assert ("nvlsTrees" in golden) == (cluster.nvls_trees is not None), where
        rows += _nics(cluster, golden, where)
        assert cluster.exact, cluster.notes
        rings += len(golden["rings"])
        cases += 1
    assert cases >= CASES
    assert rings >= RINGS
    assert rows >= NET_ROWS


def test_nics_of_uneven_exchanges():
    rows = 0
    for golden in golden_data.load("sub/p2p_uneven")["clusters"]:
        whole = Cluster.preset(golden["machine"], hosts=golden["nNodes"])
        cluster = whole.communicator([tuple(member) for member in golden["members"]])
        for ours, theirs in (*COUNTS[2:], MORE_COUNTS[2]):
            assert getattr(cluster, ours) == golden[theirs], (golden["case"], ours)
        for rank, peer, channel, nic, proxy in golden["netDev"]:
            sent = cluster.nic(rank, peer, channel, "p2p", "send")
            assert sent == (nic, proxy), (golden["case"], rank, peer)
            rows += 1
    assert rows >= 308


def _nics(cluster: Cluster, golden: dict, where: str) -> int:
    rows = 0
    for channel, rank, peer, way, nic, proxy in golden.get("ringNet", ()):
        want = (nic, proxy if way == "s" else rank)
        assert cluster.nic(rank, peer, channel, "ring", way) == want, (where, channel, rank)
        rows += 1
    for channel, rank, nic, proxy in golden.get("treeNet", ()):
        peer = _outside(cluster, channel, rank)
        sent = cluster.nic(rank, peer, channel, "tree", "send")
        assert sent == (nic, proxy), (where, channel, rank)
        assert cluster.nic(rank, peer, channel, "tree", "recv") == (nic, rank)
        rows += 1
    for channel, rank, nic, proxy in golden.get("nvlsNet", ()):
        sent = cluster.nic(rank, -1, channel, "nvls", "send")
        assert sent == (nic, proxy), (where, channel, rank)
        rows += 1
    for rank, peer, channel, nic, proxy in golden.get("p2pNet", ()):
        sent = cluster.nic(rank, peer, channel, "p2p", "send")
        assert sent == (nic, proxy), (where, rank, peer)
        rows += 1
    return rows


def _outside(cluster: Cluster, channel: int, rank: int) -> int:
    at = cluster.channels[channel]
    peers = [at.tree_up[rank], *at.tree_down[rank]]
    return next(p for p in peers if p >= 0 and not cluster.same_host(rank, p))
