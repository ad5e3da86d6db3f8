"""What must hold for every communicator, and the plain reference beside the arrays."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genie.errors import InputError
from genie.replay.cluster import Cluster
from genie.replay.nccl.trees import double_binary_tree
from reference import plain_cluster

MACHINES = ("h100x8", "h100x8_nonvls", "a100x8", "b200x8", "h100x8k4", "a100x4", "h100x8use4")


@st.composite
def communicators(draw):
    machine = draw(st.sampled_from(MACHINES))
    hosts = draw(st.integers(1, 9))
    whole = Cluster.preset(machine, hosts=hosts)
    gpus = whole.machine.n_gpus if machine != "h100x8use4" else 4
    members = []
    equal = draw(st.booleans())
    one = draw(st.sets(st.integers(0, gpus - 1), min_size=1))
    for host in range(hosts):
        chosen = one if equal else draw(st.sets(st.integers(0, gpus - 1), min_size=1))
        members += [(host, gpu) for gpu in sorted(chosen)]
    if draw(st.booleans()):
        random.Random(draw(st.integers(0, 99))).shuffle(members)
    return whole.communicator(members), members


@settings(max_examples=150, deadline=None)
@given(communicators())
def test_rings_and_trees(made):
    cluster, members = made
    n = len(members)
    by_host = [cluster._found[i].graphs for i in cluster.layout.gpu_sets[1]]
    search = min(cluster.graphs["ring"].n_channels, cluster.graphs["tree"].n_channels)
    for channel in cluster.channels:
        assert sorted(channel.ring) == list(range(n))
        assert channel.ring[0] == 0
        for rank in (0, n - 1, n // 2):
            assert channel.ring_prev(channel.ring_next(rank)) == rank
            assert channel.ring[channel.ring_position(rank)] == rank
        q, second = channel.index % search, (channel.index // search) % 2 == 1
        assert channel.ring == plain_cluster.ring(members, [g.ring for g in by_host], q, search)
        up, down = plain_cluster.tree(members, [g.tree for g in by_host], q, second)
        assert channel.tree_up == up
        assert channel.tree_down == down
        _is_a_tree(up, down, n)


def _is_a_tree(up, down, n):
    roots = [rank for rank in range(n) if up[rank] < 0]
    assert len(roots) == 1
    reached, todo = set(), roots
    while todo:
        rank = todo.pop()
        assert rank not in reached
        reached.add(rank)
        assert len(down[rank]) <= 3
        for child in down[rank]:
            assert up[child] == rank
        todo = todo + down[rank]
    assert reached == set(range(n))


@settings(max_examples=150, deadline=None)
@given(communicators())
def test_counts_and_nics(made):
    cluster, _ = made
    for count in (cluster.p2p_channels, cluster.p2p_channels_per_peer, cluster.p2p_group_size):
        assert count >= 1
        assert count & (count - 1) == 0 or count == cluster.p2p_group_size
    assert cluster.p2p_channels_per_peer <= cluster.p2p_channels
    assert cluster.coll_channels == len(cluster.channels)
    assert cluster.notes == () or not cluster.exact
    for channel in cluster.channels[:3]:
        for rank in range(cluster.n_ranks):
            peer = channel.ring_next(rank)
            if cluster.same_host(rank, peer):
                continue
            nic, proxy = cluster.nic(rank, peer, channel.index, "ring", "send")
            assert 0 <= nic < cluster.nics_per_host
            assert cluster.same_host(rank, proxy)
            nic, proxy = cluster.nic(peer, rank, channel.index, "ring", "recv")
            assert 0 <= nic < cluster.nics_per_host
            assert proxy == peer
            nic, proxy = cluster.nic(rank, peer, channel.index, "p2p", "send")
            assert 0 <= nic < cluster.nics_per_host
            assert cluster.same_host(rank, proxy)


@settings(max_examples=60, deadline=None)
@given(communicators())
def test_nvls_heads(made):
    cluster, _ = made
    if cluster.nvls_trees is None:
        return
    for tree in cluster.nvls_trees:
        assert tree.heads.shape == (cluster.n_hosts, cluster.graphs["nvls"].n_channels)
        for head in range(tree.n_heads):
            ranks = tree.heads[:, head].tolist()
            assert [int(cluster.host_of[r]) for r in ranks] == list(range(cluster.n_hosts))
            assert sum(tree.up[r] < 0 for r in ranks) == 1
            for rank in ranks:
                assert all(tree.up[child] == rank for child in tree.down[rank])


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 3000))
def test_double_tree_is_a_tree_and_matches_the_reference(n):
    rows = double_binary_tree(n)
    assert rows.shape == (n, 8)
    for second in (False, True):
        block = rows[:, 4:] if second else rows[:, :4]
        assert (block[:, 0] < 0).sum() == 1
        for vertex in {0, 1 % n, n // 2, n - 1}:
            assert tuple(block[vertex]) == plain_cluster.dtree(n, vertex, second)


@settings(max_examples=60, deadline=None)
@given(communicators(), st.data())
def test_sub_equals_communicator(made, data):
    cluster, members = made
    picked = data.draw(
        st.lists(st.integers(0, len(members) - 1), min_size=1, unique=True), label="ranks"
    )
    sub = cluster.sub(picked)
    other = cluster.communicator([members[rank] for rank in picked])
    assert [c.ring for c in sub.channels] == [c.ring for c in other.channels]
    assert [c.tree_up for c in sub.channels] == [c.tree_up for c in other.channels]
    assert sub.graphs == other.graphs
    assert cluster.sub(picked) is sub


def test_what_a_communicator_cannot_be():
    cluster = Cluster.preset("h100x8", hosts=2)
    with pytest.raises(InputError, match="GPU 3 of host 1 is named twice"):
        cluster.communicator([(0, 3), (1, 3), (1, 3)])
    with pytest.raises(InputError, match=r"rank 1: h100x8 has GPUs 0\.\.7, not 8"):
        cluster.communicator([(0, 0), (0, 8)])
    with pytest.raises(InputError, match="rank 1: host 2 is not one of the cluster's 2"):
        cluster.communicator([(0, 0), (2, 0)])
    with pytest.raises(InputError, match="non-empty"):
        cluster.communicator([])
    with pytest.raises(InputError, match=r"rank 16 is not one of 0\.\.15"):
        cluster.sub([0, 16])
    with pytest.raises(InputError, match="twice"):
        cluster.sub([0, 0])
    with pytest.raises(InputError, match="at least one rank"):
        cluster.sub([])
    with pytest.raises(InputError, match="at least one host"):
        Cluster.preset("h100x8", hosts=0)
    with pytest.raises(InputError, match="known: h100x8, "):
        Cluster.preset("dgx", hosts=1)
    with pytest.raises(InputError, match="kind 'star'"):
        cluster.nic(0, 8, 0, "star", 0)
    with pytest.raises(InputError, match="direction 2"):
        cluster.nic(0, 8, 0, "ring", 2)
