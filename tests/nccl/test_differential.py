"""Random clusters, collectives, sizes and settings: fast path = plain reference."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest
from hypothesis import assume, given, settings
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


sizes = st.one_of(st.integers(1, 5000), st.integers(1, 3_000_000), st.integers(1, 1 << 24))
versions = st.sampled_from(["2.30", "2.27", "2.21"])


@given(
    cluster=clusters(),
    kind=st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"]),
    count=sizes,
    dtype=st.sampled_from(sorted(SIZE)),
    algorithm=st.sampled_from([None, "Ring", "Tree", "NVLSTree", "PAT"]),
    protocol=st.sampled_from([None, "LL", "LL128", "Simple"]),
    version=versions,
    root=st.integers(0, 100),
    data=st.data(),
)
@settings(deadline=None, max_examples=150)
def test_collectives(cluster, kind, count, dtype, algorithm, protocol, version, root, data):
    env = {"NCCL_ALGO": algorithm, "NCCL_PROTO": protocol}
    nccl = Nccl(version=version, env=env)
    try:
        made = schedule(
            kind,
            count=count,
            dtype=dtype,
            cluster=cluster,
            nccl=nccl,
            root=root % cluster.n_ranks,
        )
    except UnsupportedCollectiveError:
        assume(False)
    rank = data.draw(st.integers(0, cluster.n_ranks - 1))
    expected = expected_sends(made, rank, version)
    ours = {}
    table = made.messages(rank)
    for row in table[table["direction"] == 0].tolist():
        ours.setdefault((row[0], row[1], row[2]), []).append(row[4])
    assert ours == expected


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
            flows = plain.sends(calls, choice.algorithm, choice.protocol, made.kind, es)
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
    max_size=30,
)


@given(cluster=clusters(), sends=calls, receives=calls, version=versions, data=st.data())
@settings(deadline=None, max_examples=150)
def test_sends_and_receives(cluster, sends, receives, version, data):
    """Any group of calls, several to one peer too."""
    counts = np.bincount(cluster.host_of)
    if version == "2.27":
        assume(len(set(counts.tolist())) == 1)  # the specification says nothing of uneven hosts
    rank = data.draw(st.integers(0, cluster.n_ranks - 1))
    sends = [(peer % cluster.n_ranks, nbytes) for peer, nbytes in sends]
    receives = [(peer % cluster.n_ranks, nbytes) for peer, nbytes in receives]
    made = p2p_group(sends, receives, cluster, Nccl(version=version), rank)
    rules = made.rules
    facts = (
        rules.per_peer,
        rules.channels,
        rules.chunk_bytes,
        cluster.n_ranks,
        cluster.n_hosts > 1,
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
def test_one_host_sends(version):
    """p2p on one host has other part limits; the two implementations agree there as well."""
    cluster = preset("h100x8", 2).communicator([(0, g) for g in range(8)])
    made = schedule(
        "all_to_all", count=5_000_000, dtype="int8", cluster=cluster, nccl=Nccl(version=version)
    )
    rules = made.rules
    facts = (rules.per_peer, rules.channels, rules.chunk_bytes, 8, False)
    sends = [(peer, 5_000_000) for peer in range(8)]
    rows = plain_p2p.plan(3, sends, sends, [0] * 8, facts, version)
    table = made.messages(3, intra=True)
    assert table["nbytes"].tolist() == [row[4] for row in plain_p2p.messages(rows)]
