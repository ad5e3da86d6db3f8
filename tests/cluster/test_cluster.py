"""Presets, plain hosts, GPU order, environment, versions, scale and what is printed."""

from __future__ import annotations

import pickle
import subprocess
import sys
import time

import pytest

from genie.errors import InputError
from genie.replay.cluster import Cluster
from genie.replay.clusters.machine import preset_graphs, preset_machine
from genie.replay.clusters.search import search
from genie.replay.clusters.settings import Settings
from genie.replay.nccl.env import Nccl


def under(env, machine="h100x8", hosts=2, version="2.30"):
    return Cluster.preset(machine, hosts=hosts).with_nccl(Nccl(version=version, env=env))


def test_local():
    cluster = Cluster.local(3, 4)
    assert cluster.n_ranks == 12
    assert cluster.coll_channels == 2
    assert [c.ring for c in cluster.channels] == [list(range(12))] * 2
    assert cluster.channels[0].tree_up == [-1, 0, 1, 2, 8, 4, 5, 6, 0, 8, 9, 10]
    assert cluster.nvls_channels == 0
    assert cluster.nvls_trees is None
    model = Cluster.preset("a100x1_100g", hosts=4)
    assert cluster.sm == model.sm
    assert cluster.cpu_vendor == model.cpu_vendor
    for name in ("ring", "tree"):
        assert cluster.graphs[name].bw_inter == model.graphs[name].bw_inter
        assert cluster.graphs[name].type_inter == model.graphs[name].type_inter
    # No PXN: everybody sends on the host's NIC itself.
    assert cluster.nic(3, 4, 0, "ring", "send") == (0, 3)
    assert cluster.nic(0, 5, 1, "p2p", "send") == (0, 0)
    assert cluster.exact
    sub = cluster.sub([0, 5, 6])
    assert sub.channels[0].ring == [0, 1, 2]
    assert sub.exact
    assert Cluster.local(1, 1).n_ranks == 1
    with pytest.raises(InputError, match="gpus is a whole number from 1"):
        Cluster.local(2, 0)


def test_gpu_order_permutes_every_ring_and_tree():
    order = [0, 1, 2, 3, 4, 6, 5, 7]
    plain = Cluster.preset("h100x8", hosts=3)
    cluster = Cluster.preset("h100x8", hosts=3, gpu_order=order)
    rank = [host * 8 + order[local] for host in range(3) for local in range(8)]
    for ours, theirs in zip(cluster.channels, plain.channels, strict=True):
        assert ours.ring == [rank[r] for r in theirs.ring]
        for r in range(24):
            up = theirs.tree_up[r]
            assert ours.tree_up[rank[r]] == (rank[up] if up >= 0 else -1)
    # The odd order of a real log: 12 -> 14 -> 13 -> 15 inside host 1.
    assert cluster.channels[1].tree_down[12] == [14]
    assert cluster.channels[1].tree_down[14] == [13]
    assert cluster.coll_channels == plain.coll_channels
    # NICs stay with the PCI position: local rank 6 sits at position 5.
    assert cluster.nic(6, 14, 0, "p2p", "send") == (5, 6)
    with pytest.raises(InputError, match=r"0\.\.7 once each"):
        Cluster.preset("h100x8", hosts=2, gpu_order=[0, 0, 1, 2, 3, 4, 5, 6])


def test_environment_of_channels_and_buffers():
    assert under({"NCCL_MIN_NCHANNELS": "8"}, "h100x1", 4).coll_channels == 8
    raised = under({"NCCL_MAX_NCHANNELS": "3", "NCCL_MIN_NCHANNELS": "3"})
    rings = [c.ring for c in raised.channels]
    assert rings == [c.ring for c in Cluster.preset("h100x8", hosts=2).channels[:3]]
    both = under({"NCCL_MAX_NCHANNELS": "3", "NCCL_MIN_CTAS": "7"})
    assert [c.ring for c in both.channels] == [rings[i % 3] for i in range(7)]
    assert under({"NCCL_MAX_CTAS": "4"}).coll_channels == 4
    assert under({"NCCL_LL128_BUFFSIZE": "1228800"}).buffer_bytes["ll128"] == 1228800
    # The p2p step is never more than an eighth of the buffer.
    assert under({"NCCL_BUFFSIZE": "524288"}).p2p_chunk_bytes == 65536
    assert under({"NCCL_NCHANNELS_PER_NET_PEER": "8"}).p2p_channels_per_peer == 8
    assert under({"NCCL_P2P_MAX_PEERS": "8"}, hosts=16).p2p_channels_per_peer == 4
    assert under({}, hosts=16).p2p_channels_per_peer == 1
    assert under({"NCCL_NVLS_NCHANNELS": "24"}).nvls_channels == 24
    assert under({"NCCL_NVLS_CHUNKSIZE": "65536"}).nvls_chunk_bytes == 65536
    assert under({"NCCL_NVLS_ENABLE": "0"}).graphs["nvls"].n_channels == 0
    assert under({"NCCL_P2P_SCHEDULE_GROUP_SIZE": "4"}).p2p_group_size == 4


def test_environment_of_nics():
    plain = under({})
    assert plain.nic(0, 13, 0, "p2p", "send") == (5, 5)
    for env in ({"NCCL_PXN_DISABLE": "1"}, {"NCCL_P2P_PXN_LEVEL": "0"}):
        assert under(env).nic(0, 13, 0, "p2p", "send") == (0, 0)
    assert under({"NCCL_P2P_PXN_LEVEL": "1"}).nic(0, 13, 0, "p2p", "send") == (5, 5)
    # A GPU alone on its switch spreads its sends over both NICs of the switch.
    alone = Cluster.preset("a100x8", hosts=2).communicator([(0, 3), (1, 3)])
    assert [alone.nic(0, 1, c, "p2p", "send")[0] for c in range(3)] == [2, 3, 2]
    wide = Cluster.preset("a100x8", hosts=2)
    assert {wide.nic(0, 8, c, "p2p", "send")[0] for c in range(4)} == {0}
    wide = wide.with_nccl(Nccl(env={"NCCL_NETDEVS_POLICY": "ALL"}))
    assert {wide.nic(0, 8, c, "p2p", "send")[0] for c in range(4)} == {0, 1}
    wide = wide.with_nccl(Nccl(env={"NCCL_NETDEVS_POLICY": "MAX:1"}))
    assert {wide.nic(0, 8, c, "p2p", "send")[0] for c in range(4)} == {0}


@pytest.mark.parametrize(
    ("env", "machine"),
    [
        ({"NCCL_CROSS_NIC": "0"}, "h100x8"),
        ({"NCCL_CROSS_NIC": "1"}, "h100x8"),
        ({"NCCL_CROSS_NIC": "1"}, "a100x8"),
        ({"NCCL_TOPO_FILE": "/etc/topo.xml"}, "h100x8"),
        ({"NCCL_GRAPH_FILE": "/etc/graph.xml"}, "h100x1"),
        ({"NCCL_P2P_DISABLE": "1"}, "h100x8"),
        ({"NCCL_P2P_LEVEL": "LOC"}, "a100x8"),
        ({"NCCL_NET_GDR_LEVEL": "0"}, "h100x1"),
        ({"NCCL_NET_MERGE_LEVEL": "PHB"}, "a100x8"),
    ],
)
def test_search_settings_are_refused_by_name(env, machine):
    name = next(iter(env))
    with pytest.raises(InputError, match=f"{name}=.*graph dump"):
        under(env, machine)
    # A cluster that was read from a real search holds its result already.
    dump = Cluster.from_nccl_graph(Cluster.preset(machine, hosts=2).to_nccl_graph(), hosts=2)
    assert dump.with_nccl(Nccl(env=env)).coll_channels == dump.coll_channels


@pytest.mark.parametrize(
    ("env", "machine"),
    [
        ({"NCCL_CROSS_NIC": "0"}, "a100x8"),
        ({"NCCL_CROSS_NIC": "0"}, "b200x8"),
        ({"NCCL_CROSS_NIC": "2"}, "h100x8"),
        ({"NCCL_CROSS_NIC": "1"}, "h100x1"),
        ({"NCCL_PXN_DISABLE": "1"}, "h100x8"),
        ({"NCCL_NETDEVS_POLICY": "ALL"}, "a100x8"),
        ({"NCCL_P2P_DISABLE": "0"}, "h100x8"),
        ({"NCCL_NET_GDR_LEVEL": "P2C"}, "h100x8"),
    ],
)
def test_settings_that_leave_the_search_alone(env, machine):
    plain, cluster = Cluster.preset(machine, hosts=2), under(env, machine)
    assert cluster.graphs == plain.graphs
    assert [c.ring for c in cluster.channels] == [c.ring for c in plain.channels]


def test_versions():
    one = Cluster.preset("b200x8", hosts=2)
    assert one.coll_channels == 16
    assert one.with_nccl(Nccl(version="2.27")).coll_channels == 32
    assert one.with_nccl(Nccl(version="2.28.3")).coll_channels == 16
    with pytest.raises(InputError, match=r"2\.21\.5 knows no SM100.*2\.25\.1"):
        assert one.with_nccl(Nccl(version="2.21")).coll_channels
    pair = Cluster.preset("h100x8use2", hosts=2)
    nvls = {v: pair.with_nccl(Nccl(version=v)).nvls_channels for v in ("2.28.3", "2.28.7", "2.30")}
    assert nvls == {"2.28.3": 0, "2.28.7": 16, "2.30": 16}
    quad = Cluster.preset("a100x4", hosts=2)
    channels = {
        v: quad.with_nccl(Nccl(version=v)).coll_channels
        for v in ("2.24.3", "2.25.1", "2.28.9", "2.29.2")
    }
    assert channels == {"2.24.3": 8, "2.25.1": 2, "2.28.9": 2, "2.29.2": 8}
    # Channels raised to the NVLS count exist in 2.21, but its collectives do not use them.
    old = under({"NCCL_MAX_NCHANNELS": "2"}, version="2.21")
    assert (old.coll_channels, len(old.channels)) == (2, 16)
    assert under({"NCCL_MAX_NCHANNELS": "2"}, version="2.27").coll_channels == 16
    per_peer = {v: under({}, version=v).p2p_channels_per_peer for v in ("2.28.9", "2.29.2")}
    assert per_peer == {"2.28.9": 2, "2.29.2": 4}
    # A variable that a release does not read yet does nothing there.
    late = {"NCCL_P2P_PER_CHANNEL_NET_BW": "48"}
    assert under(late, version="2.27").p2p_channels_per_peer == 2
    assert under(late).p2p_channels_per_peer == 1
    between = under({}, version="2.24.3")
    assert not between.exact
    assert "2.24.3 has no compiled tables" in between.notes[0]


def test_with_nccl_is_remembered_and_starts_afresh():
    cluster = Cluster.preset("h100x8", hosts=2)
    few = cluster.with_nccl(Nccl(env={"NCCL_MAX_NCHANNELS": "2"}))
    assert cluster.with_nccl(Nccl(env={"NCCL_MAX_NCHANNELS": "2"})) is few
    assert cluster.with_nccl(Nccl(env={"NCCL_ALGO": "Ring"})) is cluster
    assert few.with_nccl(Nccl()).coll_channels == 16
    assert few.sub(range(8)).coll_channels == 2
    assert cluster.coll_channels == 16


def test_machines_without_a_measured_single_host_say_so():
    for machine in ("b200x8", "h100x8k4", "a100x4"):
        cluster = Cluster.preset(machine, hosts=1)
        assert not cluster.exact
        assert machine in cluster.notes[0]
        assert sorted(cluster.channels[0].ring) == list(range(cluster.n_ranks))
    assert Cluster.preset("h100x8", hosts=1).exact
    assert Cluster.preset("a100x8", hosts=1).exact
    odd = Cluster.preset("h100x8k4", hosts=2).communicator([(0, 1), (0, 2), (1, 1), (1, 2)])
    assert not odd.exact
    assert "not exact" in repr(odd)


def test_sixteen_thousand_ranks():
    start = time.perf_counter()
    cluster = Cluster.preset("h100x8", hosts=2048)
    channel = cluster.channels[3]
    rank = 9001
    assert channel.ring_prev(channel.ring_next(rank)) == rank
    assert rank in channel.tree_down[channel.tree_up[rank]]
    assert cluster.nic(rank, 0, 3, "p2p", "send") == (0, 9000)
    assert cluster.p2p_channels_per_peer == 1
    # Generous: it takes about 20 ms; a thing that grows with ranks x channels would not.
    assert time.perf_counter() - start < 1
    rows = sorted(channel.ring)
    assert rows == list(range(16384))


def test_memory_of_sixteen_thousand_ranks():
    code = (
        "import resource\n"
        "from genie.replay.cluster import Cluster\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "c = Cluster.preset('h100x8', hosts=2048)\n"
        "for x in c.channels: x.ring_next(5), x.tree_up[5], x.tree_down[5]\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 40_000  # KiB


def test_describe_and_reprs():
    cluster = Cluster.preset("h100x8", hosts=2)
    assert repr(cluster) == "<Cluster h100x8:2: 16 ranks, 2 hosts x 8 GPUs, 16 channels>"
    text = cluster.describe()
    assert "ring 0,8: 0 7 6 5 4 3 2 1 9 10 11 12 13 14 15 8" in text
    assert "tree 8: root 8, between hosts 8>0" in text
    assert "send/recv channels: 16, up to 4 a peer" in text
    html = cluster._repr_html_()
    assert html.count("<tr>") >= 6
    assert "crossNic 2" in html
    mixed = cluster.communicator([(0, 0), (0, 1), (1, 5)])
    assert "1-2 GPUs" in repr(mixed)
    assert "more)" in Cluster.preset("h100x8", hosts=8).describe()
    assert Cluster.presets()[0] == "h100x8"


def test_clusters_pickle():
    cluster = Cluster.preset("a100x8", hosts=2).sub([1, 3, 9, 11])
    assert cluster.channels[0].ring
    again = pickle.loads(pickle.dumps(cluster))
    assert [c.ring for c in again.channels] == [c.ring for c in cluster.channels]
    assert again.settings == Settings()


def test_odd_hosts_swap_by_release():
    # 2.20 swaps channels on odd hosts only where their number is even (versions section 2).
    for hosts, swapped in ((2, True), (3, False), (4, True)):
        old = under({}, hosts=hosts, version="2.20.5").channels[0].ring
        new = under({}, hosts=hosts).channels[0].ring
        assert (old == new) == swapped


def test_settings_of_gpu_pairs_leave_single_gpu_hosts_alone():
    assert under({"NCCL_P2P_LEVEL": "LOC"}, "h100x1", 3).coll_channels == 4
    with pytest.raises(InputError, match="NCCL_P2P_LEVEL"):
        under({"NCCL_P2P_LEVEL": "LOC"}, "h100x8use2", 3)


def test_rules_equal_the_measured_presets():
    # The presets hold measured graphs; the rules that serve every other set find the same.
    compared = 0
    for name in Cluster.presets():
        machine = preset_machine(name)
        for one_host in (False, True):
            measured = preset_graphs(name, one_host, (2, 30, 7))
            if measured is None or not machine.family:
                continue
            gpus = tuple(range(machine.gpus_per_host))
            found = search(machine, gpus, one_host=one_host)
            assert found.ring == measured.ring, name
            assert found.tree == measured.tree, name
            assert found.nvls == measured.nvls, name
            compared += 1
    assert compared == 10


def test_machines_outside_the_rules_keep_their_measured_graph():
    members = [(host, gpu) for host in range(2) for gpu in reversed(range(8))]
    cluster = Cluster.preset("h100x8k4", hosts=2).communicator(members)
    assert cluster.graphs == Cluster.preset("h100x8k4", hosts=2).graphs
    assert not cluster.exact
    some = Cluster.preset("h100x8k4", hosts=2).communicator(members[:4] + members[8:12])
    assert some.graphs["nvls"].n_channels == 2
    assert not some.exact


def test_the_largest_tree_pattern_of_any_host_counts():
    # One host with a balanced tree, one with a single GPU (a chain): costs use the chain's.
    mixed = Cluster.preset("a100x8", hosts=2).communicator([(0, 0), (0, 1), (1, 0)])
    assert [f.graphs.tree.pattern for f in mixed._found] == [1, 3]
    assert mixed.graphs["tree"].pattern == 3
