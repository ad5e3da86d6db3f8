"""Facts of real logs (corpus nd-*), and where our machines differ from them and why."""

from __future__ import annotations

import json

import pytest

from cluster.log_text import log
from corpus_data import corpus
from genie.replay.cluster import Cluster

# What is missing in each log once everything that follows from it is derived.
LOGS = {
    "nd-1x8-16ch": dict(rings=0, trees=0),  # three of eight ranks' rows, no ring lines
    "nd-2x1-2ch": dict(rings=2, trees=2),
    "nd-2x8-16ch-4nic": dict(rings=16, trees=16),
    "nd-2x8-16ch-nvls8": dict(rings=16, trees=16),
    "nd-3x1-2ch": dict(rings=2, trees=2),
    "nd-3x8-16ch": dict(rings=0, trees=0),  # one row of one rank
    "nd-4x4-2ch": dict(rings=2, trees=0),  # rows of host 0 leave the tree pattern open
    "nd-h100-2x8-oddorder": dict(rings=0, trees=0),  # two ranks' rows
    "nd-p4d-8ch": dict(rings=6, trees=0),  # rings 5-7 seen, 1-3 repeat them; one rank's rows
}


def facts_in(name: str) -> dict:
    return json.loads((corpus(name) / "graph.json").read_text())


def rows(facts: dict):
    for rank, by_channel in facts["trees"].items():
        for channel, row in enumerate(by_channel):
            if row is not None:
                down, _, up = row.split("->")
                children = [int(x) for x in down.split("/") if int(x) >= 0]
                yield channel, int(rank), int(up), children


def differences(cluster: Cluster, facts: dict) -> list[str]:
    """Every fact of the log that the cluster has otherwise."""
    out = []
    for channel, ring in facts["rings"].items():
        if cluster.channels[int(channel)].ring != ring:
            out.append(f"ring {channel}")
    for channel, by_rank in facts.get("ring_prev_next", {}).items():
        for rank, (before, after) in by_rank.items():
            at = cluster.channels[int(channel)]
            if (at.ring_prev(int(rank)), at.ring_next(int(rank))) != (before, after):
                out.append(f"ring {channel} at {rank}")
    for channel, rank, up, children in rows(facts):
        at = cluster.channels[channel]
        if at.tree_up[rank] != up or at.tree_down[rank] != children:
            out.append(f"tree {channel} at {rank}")
    for edge in facts.get("net_edges", ()):
        found = cluster.nic(edge["src"], edge["dst"], edge["ch"], "ring", "send")
        if found[0] != edge["nic"]:
            out.append(f"NIC of {edge}")
    return out


@pytest.mark.parametrize("name", LOGS)
@pytest.mark.parametrize("form", ["children first", "parent first", "one a line", "both trees"])
@pytest.mark.parametrize("prefix", [True, False])
def test_real_logs_are_read(name, form, prefix):
    facts = facts_in(name)
    cluster = Cluster.from_nccl_log(log(facts, form=form, prefix=prefix))
    assert differences(cluster, facts) == []
    assert cluster.n_ranks == facts["n_ranks"]
    assert cluster.n_hosts == facts["n_nodes"]
    assert cluster.coll_channels == facts["coll_channels"]
    if "p2p_channels_per_peer" in facts:
        assert cluster.p2p_channels == facts["p2p_channels"]
        assert cluster.p2p_channels_per_peer == facts["p2p_channels_per_peer"]
    if "nvls_heads" in facts:
        assert cluster.nvls_trees is not None
        assert cluster.nvls_trees[0].heads.T.tolist() == facts["nvls_heads"]
    if "NCCL_BUFFSIZE" in facts.get("env", {}):
        assert cluster.buffer_bytes["simple"] == int(facts["env"]["NCCL_BUFFSIZE"])
    known = LOGS[name]
    assert sum(c.has_ring for c in cluster.channels) == known["rings"]
    assert sum(c.has_tree for c in cluster.channels) == known["trees"]
    assert cluster.exact == (known["rings"] == known["trees"] == facts["coll_channels"])


@pytest.mark.parametrize(
    ("name", "preset"),
    [
        ("nd-2x8-16ch-nvls8", "h100x8"),
        ("nd-2x8-16ch-4nic", "h100x8k4"),
        ("nd-2x1-2ch", "a100x1"),
        ("nd-3x1-2ch", "a100x1"),
        ("nd-3x8-16ch", "h100x8k4"),
    ],
)
def test_presets_equal_real_logs(name, preset):
    facts = facts_in(name)
    cluster = Cluster.preset(preset, hosts=facts["n_nodes"])
    edges = facts.get("net_edges", ())
    if name == "nd-3x1-2ch":
        # That host's second device carries the traffic; our one-NIC machine calls it 0.
        facts["net_edges"] = []
    assert differences(cluster, facts) == []
    assert cluster.coll_channels == facts["coll_channels"]
    assert len(edges) in (0, 2, 32)


def test_single_host_log_is_our_single_host_chain():
    # 16 channels there, 24 on our machine: an 800-series NVLink is slower (spec 11.3); the
    # chain 0 -> 1 -> .. -> 7 is the same on every channel.
    facts = facts_in("nd-1x8-16ch")
    cluster = Cluster.preset("h100x8", hosts=1)
    assert cluster.coll_channels == 24
    assert differences(cluster, facts) == []


def test_rank_order_log_is_our_plain_cluster():
    # Four GPUs a host without NVLink over libfabric: rank-order rings, chains from rank 0 of
    # the host, 2 channels. Only the chain's start differs: NCCL's second channel as well.
    facts = facts_in("nd-4x4-2ch")
    cluster = Cluster.local(4, 4)
    assert differences(cluster, facts) == []
    assert cluster.p2p_channels_per_peer == facts["p2p_channels_per_peer"]


def test_odd_gpu_order_explains_a_real_log():
    # 4 NICs, GPUs 4 6 5 7: channel 0 of the log is our chain under that PCI order. The log's
    # channels 2 and 3 begin at local GPUs 4 and 6 (their NICs sit there), ours at 2 and 4.
    facts = facts_in("nd-h100-2x8-oddorder")
    cluster = Cluster.preset("h100x8k4", hosts=2, gpu_order=[0, 1, 2, 3, 4, 6, 5, 7])
    for channel, rank, up, children in rows(facts):
        if channel in (0, 1):
            assert cluster.channels[channel].tree_up[rank] == up
            assert cluster.channels[channel].tree_down[rank] == children
    assert len(differences(cluster, facts)) > 0


def test_p4d_rings_are_not_explained():
    # Spec 11.11: the EFA plugin's topology gives p4d an inner order no preset has; only the
    # log itself does.
    facts = facts_in("nd-p4d-8ch")
    cluster = Cluster.preset("a100x8", hosts=2)
    assert "ring 5" in differences(cluster, {**facts, "trees": {}, "net_edges": []})
