"""Choices read in real logs (the corpus's tn-* facts): equal, or the difference explained."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import numpy as np
import pytest

from corpus_data import corpus
from genie.replay.cluster import Cluster
from genie.replay.clusters.graph import NO_NVLS, Graph, HostGraphs
from genie.replay.clusters.layout import Layout
from genie.replay.clusters.machine import preset_machine
from genie.replay.clusters.sources import Found
from genie.replay.nccl.context import context
from genie.replay.nccl.env import Nccl
from genie.replay.nccl.names import (
    ALL_REDUCE,
    COLLNET_CHAIN,
    COLLNET_DIRECT,
    RING,
    SIMPLE,
    TREE,
)
from genie.replay.nccl.schedule import schedule
from genie.replay.nccl.tuner import tune

KIND = {"AllReduce": "all_reduce", "Broadcast": "broadcast"}


@dataclass(frozen=True)
class SocketSource:
    """One RTX 5090 that several containers share, each a host, joined by sockets."""

    machine: object
    kind: str = "graph"

    def find(self, gpus, host_kind, one_host, version):
        # Two search channels at 1.2 GB/s: the speed of Blackwell's table that fits under the
        # 10 Gb/s NCCL assumes of a socket; 4 channels in the log are these doubled. The NIC is
        # reached over the CPU (PHB), which also takes LL128 away.
        graph = Graph(pattern=4, n_channels=2, bw_intra=1.2, bw_inter=1.2, type_inter=8,
                      same_channels=True, intra=((0,), (0,)), inter=((0, 0), (0, 0)))  # fmt: skip
        return Found(HostGraphs(graph, replace(graph, pattern=3), NO_NVLS), (0,))


def sockets(hosts):
    machine = replace(preset_machine("h100x1"), name="rtx5090", sm=120, nic_gbps=1.25)
    layout = Layout(
        host=np.arange(hosts, dtype=np.int32),
        gpu=np.zeros(hosts, dtype=np.int32),
        label=tuple(range(hosts)),
    )
    return Cluster(f"rtx5090:{hosts}", SocketSource(machine), layout)


def test_every_choice_of_eunomia_is_found():
    # NCCL 2.29.7, 4 channels, "2 or 3 ranks": the 16 KiB broadcast over two channels says two
    # (three ranks would need 12 KiB a channel, so one: ring LL's threshold is 8 B x ranks x 512).
    data = json.loads((corpus("tn-eunomia-a") / "selections.json").read_text())
    nccl = Nccl(data["nccl"])
    rows = [row for file in data["files"].values() for row in file["distinct"]]
    assert len(rows) == 35
    assert [differing(rows, hosts, nccl) for hosts in (2, 3)] == [[], [("Broadcast", 16384)]]


def differing(rows, hosts, nccl):
    cluster = sockets(hosts)
    assert cluster.with_nccl(nccl).coll_channels == 4
    found = []
    for row in rows:
        made = schedule(KIND[row["coll"]], count=row["bytes"] // 4, cluster=cluster, nccl=nccl)
        channels = made.parts["channel"]
        got = (made.choice.algorithm, made.choice.protocol, channels[0], channels[-1])
        if got != (row["algo"].lower(), row["proto"].lower(), row["ch_lo"], row["ch_hi"]):
            found.append((row["coll"], row["bytes"]))
    return found


@pytest.fixture
def facts():
    return json.loads((corpus("tn-issues-a") / "facts.json").read_text())["records"]


def test_a_printed_time_before_2_23(facts):
    # "8 Bytes -> Algo 0 proto 0 time 25.200924" on an H100 cluster. The latency is that of 8 GPUs
    # a host and 2 or 3 hosts, the rest 8 B / 8.67 GB/s, tree LL's limit from three hosts on.
    fact = facts[0]
    cluster = Cluster.preset("h100x8", hosts=3)
    choice = schedule("all_reduce", count=2, cluster=cluster, nccl=Nccl("2.21")).choice
    assert (choice.algorithm, choice.protocol) == (fact["algo"].lower(), fact["proto"].lower())
    assert round(choice.time_us, 6) == pytest.approx(fact["time_us"], abs=2e-6)


def test_one_host_of_eight_hoppers(facts):
    one = Cluster.preset("h100x8", hosts=1)
    assert [f["bytes"] for f in facts[1:4]] == [1024, ">=2097152", 33554432]
    off = Nccl(env={"NCCL_NVLS_ENABLE": "0"})
    for nccl in (Nccl(), off):
        small = tune("all_reduce", count=256, cluster=one, nccl=nccl).choice
        assert (small.algorithm, small.protocol) == ("ring", "ll")
    for mib in (2, 4, 32, 1024):
        large = tune("all_reduce", count=mib << 18, cluster=one).choice
        assert (large.algorithm, large.protocol) == ("nvls", "simple")
    without = tune("all_reduce", count=33554432 // 4, cluster=one, nccl=off)
    assert (without.choice.algorithm, without.choice.protocol) == ("ring", "ll128")
    ring = without[(without.algorithm == "ring") & (without.protocol == "ll128")]
    assert int(ring["bandwidth_gbps"][0]) == facts[3]["bw_gbs"]


def test_two_ranks_on_two_hosts_broadcast_over_four_channels(facts):
    # The log does not name the machine; two ranks and four channels are one Hopper a host.
    fact = facts[4]
    cluster = Cluster.preset("h100x1", hosts=fact["ranks"])
    made = schedule("broadcast", count=fact["bytes"] // 4, cluster=cluster)
    assert (made.choice.algorithm, made.choice.protocol) == ("ring", "simple")
    assert [made.parts["channel"][0], made.parts["channel"][-1]] == fact["ch"]


@pytest.mark.parametrize(("ranks", "algorithm"), [(2, "ring"), (6, "nvls")])
def test_some_gpus_of_one_host(facts, ranks, algorithm):
    # NVLS needed three local GPUs until 2.28.7, so two of them take a ring of 24 channels; from
    # then on NVLS is there too and the model takes it: the log is older.
    fact = next(f for f in facts[5:] if f["ranks"] == ranks)
    cluster = Cluster.preset("h100x8", hosts=1).communicator([(0, g) for g in range(ranks)])
    made = schedule("all_reduce", count=1 << 26, cluster=cluster, nccl=Nccl("2.27"))
    assert (made.choice.algorithm, made.choice.protocol) == (algorithm, "simple")
    assert [made.parts["channel"][0], made.parts["channel"][-1]] == fact["ch"]


@pytest.mark.parametrize("name", ["nd-2x8-16ch-nvls8", "nd-4x4-2ch"])
def test_thresholds_and_restrictions_of_graph_logs(name):
    # "8/8/64 | 128/8/64 | 512 | 512": tree, ring (LL times 16 ranks), the two CollNet ones.
    fact = json.loads((corpus(name) / "graph.json").read_text())
    nccl = Nccl(env=fact["env"])
    cluster = Cluster.preset("h100x8", hosts=2)
    assert cluster.n_ranks == fact["n_ranks"]
    limits = context(cluster.with_nccl(nccl), nccl).model.thresholds
    text = " | ".join("/".join(map(str, limits[a])) for a in (TREE, RING))
    collnet = [str(limits[a][SIMPLE]) for a in (COLLNET_DIRECT, COLLNET_CHAIN)]
    assert " | ".join([text, *collnet]) == fact["thread_thresholds"]
    # NCCL prints 2 where LL128 is left to its own checks.
    allowed = nccl.protocols[ALL_REDUCE]
    matrix = [1, 2, 1] if allowed is None else [int(on) for on in allowed]
    assert matrix == fact["proto_matrix_ll_ll128_simple"]
    if "algo_enabled" in fact:
        on = {row.algorithm for row in tune("all_reduce", count=1, cluster=cluster, nccl=nccl)
              if row.enabled}  # fmt: skip
        assert on == {"ring"} and fact["algo_enabled"] == {"Ring": 1, "others": 0}
