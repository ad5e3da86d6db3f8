"""Random clusters, collectives, sizes and settings: fast path = plain reference."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from genie.errors import UnsupportedCollectiveError
from genie.replay.cluster import Cluster
from genie.replay.nccl.env import Nccl
from genie.replay.nccl.schedule import p2p_group, schedule
from reference import plain, plain_p2p, plain_pat

SIZE = {"float32": 4, "int8": 1, "float64": 8, "float16": 2}
MACHINES = ["h100x1", "a100x1", "h100x8", "a100x8", "h100x8use4", "h100x8k4", "v100x1_100g"]


@lru_cache(maxsize=64)
def preset(machine: str, hosts: int) -> Cluster:
    return Cluster.preset(machine, hosts=hosts)


@st.composite
def clusters(draw) -> Cluster:
    """A preset, or a communicator of some of its ranks in any order."""
    machine = draw(st.sampled_from(MACHINES))
    hosts = draw(st.integers(2, 3 if "x8" in machine else 9))
    whole = preset(machine, hosts)
    if machine not in ("h100x8", "a100x8") or draw(st.booleans()):
        return whole
    members = [(h, g) for h in range(hosts) for g in range(8)]
    chosen = draw(st.lists(st.sampled_from(members), min_size=2, max_size=9, unique=True))
    assume(len({host for host, _ in chosen}) > 1)
    return whole.communicator(chosen)


#: Every order of magnitude is as likely as any other.
sizes = st.integers(0, 24).flatmap(lambda power: st.integers(1 << power, 2 << power))
versions = st.sampled_from(["2.30", "2.27", "2.21"])

PROTOCOLS = ["LL", "LL128", "Simple"]
KINDS = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"]
CHOICES = [
    *((kind, "Ring", protocol) for kind in KINDS for protocol in PROTOCOLS),
    *(("all_reduce", "Tree", protocol) for protocol in PROTOCOLS),
    ("all_reduce", "NVLSTree", "Simple"),
    ("all_gather", "PAT", "Simple"),
    ("reduce_scatter", "PAT", "Simple"),
    *((kind, None, None) for kind in KINDS),
]
MORE = [
    {},
    {},
    {"NCCL_BUFFSIZE": 1 << 20},
    {"NCCL_BUFFSIZE": 16 << 20, "NCCL_MAX_NCHANNELS": 3},
    {"NCCL_LL_BUFFSIZE": 1 << 20, "NCCL_LL128_BUFFSIZE": 9830400},
    {"NCCL_MIN_NCHANNELS": 12},
]


@st.composite
def clusters_for(draw, algorithm):
    """A cluster on which the algorithm exists."""
    if algorithm == "PAT":
        machine = draw(st.sampled_from(["h100x1", "a100x1", "v100x1_100g"]))
        return preset(machine, draw(st.integers(2, 20)))
    if algorithm == "NVLSTree":
        return preset(draw(st.sampled_from(["h100x8", "h100x8use4"])), draw(st.integers(2, 5)))
    return draw(clusters())


@pytest.mark.parametrize("choice", CHOICES, ids=str)
@given(
    count=sizes,
    dtype=st.sampled_from(sorted(SIZE)),
    version=versions,
    root=st.integers(0, 100),
    more=st.sampled_from(MORE),
    data=st.data(),
)
@settings(
    deadline=None,
    max_examples=25,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
def test_collectives(choice, count, dtype, version, root, more, data):
    kind, algorithm, protocol = choice
    cluster = data.draw(clusters_for(algorithm))
    env = {"NCCL_ALGO": algorithm, "NCCL_PROTO": protocol, **more}
    try:
        made = schedule(
            kind,
            count=count,
            dtype=dtype,
            cluster=cluster,
            nccl=Nccl(version=version, env=env),
            root=root % cluster.n_ranks,
        )
    except UnsupportedCollectiveError:
        assume(False)
    rank = data.draw(st.integers(0, cluster.n_ranks - 1))
    table = made.messages(rank)
    assert by_flow(table, 0) == expected_sends(made, rank, version)
    # What is received is what the peers send here, in the reference as well.
    received = by_flow(table, 1)
    assert received == {
        (channel, group, peer): sizes
        for peer in {key[2] for key in received}
        for (channel, group, to), sizes in expected_sends(made, peer, version).items()
        if to == rank
    }


def by_flow(table, direction):
    found = {}
    for row in table[table["direction"] == direction].tolist():
        found.setdefault((row[0], row[1], row[2]), []).append(row[4])
    return found


def expected_sends(made, rank, version):
    """Network sends of a rank by (channel, group, peer), from the plain reference."""
    cluster, choice = made.cluster, made.choice
    es, n = choice.element_size, cluster.n_ranks
    align = 16 // es
    if version == "2.21":
        align = {
            "simple": 4096 // es,
            "ll128": 480 // es * choice.warps,
            "ll": 8 // es * choice.warps * 32,
        }[choice.protocol]
    found = {}
    for channel, count, chunk_bytes in made.parts.tolist():
        chunk = chunk_bytes // es
        if choice.algorithm == "pat":
            flows = plain_pat.sends(made.kind, rank, n, count, chunk, es)
            flows = {(0, peer): sizes for peer, sizes in flows.items()}
        else:
            calls = calls_of(made, cluster, rank, channel, count, chunk, align)
            step = cluster.buffer_bytes[choice.protocol] // 8
            flows = plain.sends(calls, choice.algorithm, choice.protocol, made.kind, es, step)
        for (group, peer), sizes in flows.items():
            if not cluster.same_host(rank, peer):
                found[channel, group, peer] = sizes
    return found


def calls_of(made, cluster, rank, channel, count, chunk, align):
    choice = made.choice
    at = cluster.channels[channel] if choice.algorithm != "nvls_tree" else None
    if choice.algorithm == "ring":
        return plain.ring(made.kind, at.ring, rank, count, chunk, align, made.root)
    if choice.algorithm == "tree":
        return plain.tree(at.tree_up, at.tree_down, rank, count, chunk, choice.protocol)
    tree = cluster.nvls_trees[channel % 2]
    heads = tree.heads[int(cluster.host_of[rank])].tolist()
    return plain.nvls_tree(tree.up, tree.down, heads, rank, count, chunk, align)


calls = st.lists(
    st.tuples(
        st.integers(0, 1000),
        st.one_of(st.sampled_from([0, 1, 16384, 131072, 1 << 20]), st.integers(0, 1 << 22)),
    ),
    max_size=60,
)


P2P_SETTINGS = [
    {},
    {},
    {"NCCL_P2P_NET_CHUNKSIZE": 65536},
    {"NCCL_P2P_NET_CHUNKSIZE": 400000},
    {"NCCL_CHUNK_SIZE": 50000},
    {"NCCL_P2P_LL_THRESHOLD": 0},
    {"NCCL_P2P_LL_THRESHOLD": 100000},
    {"NCCL_MAX_P2P_NCHANNELS": 2},
]


@given(
    cluster=clusters(),
    sends=calls,
    receives=calls,
    version=versions,
    env=st.sampled_from(P2P_SETTINGS),
    data=st.data(),
)
@settings(deadline=None, max_examples=200)
def test_sends_and_receives(cluster, sends, receives, version, env, data):
    """Any group of calls, several to one peer too."""
    counts = np.bincount(cluster.host_of)
    if version == "2.27":
        assume(len(set(counts.tolist())) == 1)  # the specification says nothing of uneven hosts
    rank = data.draw(st.integers(0, cluster.n_ranks - 1))
    sends = [(peer % cluster.n_ranks, nbytes) for peer, nbytes in sends]
    receives = [(peer % cluster.n_ranks, nbytes) for peer, nbytes in receives]
    made = p2p_group(sends, receives, cluster, Nccl(version=version, env=env), rank)
    rules = made.rules
    facts = (
        rules.per_peer,
        rules.channels,
        rules.chunk_bytes,
        cluster.n_ranks,
        cluster.n_hosts > 1,
        int(env.get("NCCL_P2P_LL_THRESHOLD", 16384)),
        int(env.get("NCCL_CHUNK_SIZE", 0)),
    )
    rows = plain_p2p.plan(rank, sends, receives, cluster.host_of.tolist(), facts, version)
    table = made.messages(rank, intra=True)
    ours = list(
        zip(
            table["channel"].tolist(),
            table["group"].tolist(),
            table["peer"].tolist(),
            table["direction"].tolist(),
            table["nbytes"].tolist(),
            strict=True,
        )
    )
    assert ours == plain_p2p.messages(rows)


@pytest.mark.parametrize("version", ["2.30", "2.27", "2.21"])
@pytest.mark.parametrize("gpus", [2, 8])
def test_one_host_sends(version, gpus):
    """p2p on one host has other part limits; the two implementations agree there as well."""
    cluster = preset("h100x8", 2).communicator([(0, g) for g in range(gpus)])
    nccl = Nccl(version=version)
    for power in range(0, 29):
        nbytes = (1 << power) + 3
        made = schedule("all_to_all", count=nbytes, dtype="int8", cluster=cluster, nccl=nccl)
        rules = made.rules
        numbers = rules.per_peer, rules.channels, rules.chunk_bytes
        facts = (*numbers, gpus, False, 16384, 0)
        calls = [(peer, nbytes) for peer in range(gpus)]
        rows = plain_p2p.plan(1, calls, calls, [0] * gpus, facts, version)
        table = made.messages(1, intra=True)
        expected = [(row[0], row[2], row[4]) for row in plain_p2p.messages(rows)]
        ours = table[["channel", "peer", "nbytes"]].tolist()
        assert ours == expected
