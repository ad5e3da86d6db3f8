"""NCCL's graph dumps: round trips, what they leave open, what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genie.errors import GenieError, InputError
from genie.replay.cluster import Cluster
from genie.replay.nccl.env import Nccl

# One 4-GPU host with two NICs, written by hand in the form of NCCL's dumps.
QUAD = """
<graphs version="1">
  <graph id="0" pattern="4" crossnic="0" nchannels="2" speedintra="20" speedinter="20"
         latencyinter="0" typeintra="NVL" typeinter="PXN" samechannels="0">
    <channel><net dev="0"/><gpu dev="0"/><gpu dev="3"/><gpu dev="2"/><gpu dev="1"/>
      <net dev="0"/></channel>
    <channel><net dev="1"/><gpu dev="2"/><gpu dev="1"/><gpu dev="0"/><gpu dev="3"/>
      <net dev="1"/></channel>
  </graph>
  <graph id="1" pattern="1" crossnic="0" nchannels="2" speedintra="20" speedinter="20"
         latencyinter="0" typeintra="NVL" typeinter="PHB" samechannels="0">
    <channel><net dev="0"/><gpu dev="0"/><gpu dev="1"/><gpu dev="2"/><gpu dev="3"/>
      <net dev="0"/></channel>
    <channel><net dev="1"/><gpu dev="2"/><gpu dev="3"/><gpu dev="0"/><gpu dev="1"/>
      <net dev="1"/></channel>
  </graph>
  <graph id="3" pattern="5" crossnic="0" nchannels="0" speedintra="0" speedinter="0"
         latencyinter="0" typeintra="LOC" typeinter="LOC" samechannels="0"/>
</graphs>
"""

SAME = ("coll_channels", "p2p_channels", "p2p_channels_per_peer", "p2p_group_size",
        "p2p_chunk_bytes", "nvls_channels", "sm", "cpu_vendor", "nic_gbps")  # fmt: skip


@pytest.mark.parametrize("name", Cluster.presets())
@pytest.mark.parametrize("hosts", [1, 2, 5])
def test_round_trip(name, hosts):
    cluster = Cluster.preset(name, hosts=hosts)
    again = Cluster.from_nccl_graph(cluster.to_nccl_graph(), hosts=hosts, like=name)
    for ours, theirs in zip(again.channels, cluster.channels, strict=True):
        assert ours.ring == theirs.ring
        assert ours.tree_up == theirs.tree_up
        assert ours.tree_down == theirs.tree_down
    for field in SAME:
        assert getattr(again, field) == getattr(cluster, field), field
    assert again.exact
    if hosts == 1:
        return
    assert again.graphs == cluster.graphs
    for channel in cluster.channels:
        for rank in range(cluster.n_ranks):
            for kind, peer in (
                ("ring", channel.ring_next(rank)),
                ("tree", channel.tree_up[rank]),
            ):
                if peer >= 0 and not cluster.same_host(rank, peer):
                    for way in (0, 1):
                        edge = (rank, peer, channel.index, kind, way)
                        assert again.nic(*edge) == cluster.nic(*edge)


@pytest.mark.parametrize("name", ["h100x8", "a100x8", "b200x8", "h100x8use4"])
def test_communicators_of_a_known_machine(name):
    cluster = Cluster.preset(name, hosts=2)
    dump = Cluster.from_nccl_graph(cluster.to_nccl_graph(), hosts=2, like=name)
    for ranks in ([0, cluster.n_ranks // 2], [1, 2, 3, cluster.n_ranks - 1], [3]):
        ours, theirs = dump.sub(ranks), cluster.sub(ranks)
        assert ours.graphs == theirs.graphs
        assert [c.ring for c in ours.channels] == [c.ring for c in theirs.channels]
        assert ours.nic(0, len(ranks) - 1, 1, "p2p", 0) == theirs.nic(
            0, len(ranks) - 1, 1, "p2p", 0
        )
        # The rules are those of the preset; that the machine is one is the user's word.
        assert not ours.exact


def test_hand_written():
    cluster = Cluster.from_nccl_graph(QUAD, hosts=2, like="a100x8")
    assert cluster.coll_channels == 4
    assert cluster.channels[0].ring == [0, 3, 2, 1, 4, 7, 6, 5]
    assert cluster.channels[1].ring == [0, 3, 6, 5, 4, 7, 2, 1]
    assert cluster.channels[1].tree_up == [3, 0, -1, 2, 7, 4, 2, 6]
    # GPU 1 sends ring 0 through GPU 0, beside NIC 0.
    assert cluster.nic(1, 4, 0, "ring", "send") == (0, 0)
    assert cluster.nic(4, 1, 0, "ring", "recv") == (0, 4)
    off = cluster.with_nccl(Nccl(env={"NCCL_PXN_DISABLE": "1"}))
    assert off.nic(1, 4, 0, "ring", "send") == (0, 1)
    assert any("derived" in note for note in cluster.notes)
    alone = cluster.sub([0, 5])
    assert alone.channels[0].ring == [0, 1]
    assert not alone.exact


def test_what_the_dump_does_not_say_is_said():
    cluster = Cluster.from_nccl_graph(QUAD)
    assert cluster.n_hosts == 2
    notes = "\n".join(cluster.notes)
    assert "how many hosts there are: 2 assumed" in notes
    assert "compute capability, CPU vendor, NIC speed" in notes
    told = Cluster.from_nccl_graph(QUAD, hosts=3, sm=80, cpu_vendor="amd", nic_gbps=25.0)
    assert "assumed" not in "\n".join(told.notes)
    assert (told.sm, told.cpu_vendor, told.nic_gbps) == (80, "amd", 25.0)
    ring_only = QUAD[: QUAD.index('  <graph id="1"')] + "</graphs>"
    chains = Cluster.from_nccl_graph(ring_only, hosts=2)
    assert any("no tree graph" in note for note in chains.notes)
    assert chains.channels[0].tree_up[:4] == [-1, 2, 3, 0]
    assert not chains.exact
    single = Cluster.from_nccl_graph(Cluster.preset("a100x8", hosts=1).to_nccl_graph())
    assert single.n_hosts == 1


def test_crossnic_of_older_releases():
    dump = Cluster.preset("h100x8", hosts=2).to_nccl_graph()
    old = dump.replace('crossnic="2"', 'crossnic="1"')
    swapped = Cluster.from_nccl_graph(old, hosts=2, nccl_version="2.21.5")
    assert swapped.graphs["ring"].cross_nic == 2
    assert swapped.channels[0].ring == Cluster.preset("h100x8", hosts=2).channels[0].ring
    today = Cluster.from_nccl_graph(old, hosts=2, nccl_version="2.27.7")
    assert today.channels[0].ring[8:] == [8, 15, 14, 13, 12, 11, 10, 9]
    assert any("crossnic 1" in note for note in Cluster.from_nccl_graph(old, hosts=2).notes)


def test_a_dump_for_each_host(tmp_path):
    whole, four = Cluster.preset("h100x8", hosts=2), Cluster.preset("h100x8use4", hosts=2)
    files = [tmp_path / "a.xml", tmp_path / "b.xml"]
    files[0].write_text(whole.to_nccl_graph())
    files[1].write_text(four.to_nccl_graph())
    mixed = Cluster.from_nccl_graph(files, like="h100x8")
    members = [(0, g) for g in range(8)] + [(1, g) for g in range(4)]
    same = whole.communicator(members)
    assert mixed.n_ranks == 12
    assert [c.ring for c in mixed.channels] == [c.ring for c in same.channels]
    assert [c.tree_up for c in mixed.channels] == [c.tree_up for c in same.channels]
    assert mixed.graphs["ring"].n_channels == same.graphs["ring"].n_channels
    with pytest.raises(InputError, match="2 graph dumps for 3 hosts"):
        Cluster.from_nccl_graph(files, hosts=3)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("<graphs ", "<system ", "not XML"),
        ('version="1"', 'version="2"', "version 2"),
        ('nchannels="2"', 'nchannels="3"', "nchannels is 3, but 2"),
        ('<gpu dev="3"/><gpu dev="2"/>', '<gpu dev="3"/><gpu dev="3"/>', "expected each once"),
        ('<gpu dev="3"/><gpu dev="2"/>', '<gpu dev="3"/>', "in ring channel 0"),
        ('typeinter="PXN"', 'typeinter="WIFI"', "WIFI"),
        ('speedintra="20"', 'speedintra="-20"', "not a number that can be"),
        ('speedintra="20"', "", "has no speedintra"),
        ('pattern="4"', 'pattern="9"', "pattern 9"),
        ('<graph id="1"', '<graph id="0"', "0 twice"),
        ('<graph id="0"', '<graph id="7"', "no ring graph"),
        ('<graphs version="1">', '<!DOCTYPE x><graphs version="1">', "DOCTYPE"),
        ('<channel><net dev="0"/><gpu', "<channel><gpu", "expected none or two"),
    ],
)
def test_refusals(old, new, message):
    assert old in QUAD
    with pytest.raises(InputError, match=message):
        Cluster.from_nccl_graph(QUAD.replace(old, new, 1), hosts=2)


def test_refusals_of_arguments(tmp_path):
    with pytest.raises(InputError, match="cannot read"):
        Cluster.from_nccl_graph(tmp_path / "none.xml", hosts=2)
    one = Cluster.preset("h100x8", hosts=1).to_nccl_graph()
    with pytest.raises(InputError, match="no NICs"):
        Cluster.from_nccl_graph(one, hosts=2)
    with pytest.raises(InputError, match="like is one of"):
        Cluster.from_nccl_graph(QUAD, hosts=2, like="nothing")
    with pytest.raises(InputError, match="no graph dump"):
        Cluster.from_nccl_graph([])


@settings(max_examples=200, deadline=None)
@given(st.integers(0, len(QUAD) - 1), st.text(max_size=4), st.integers(0, 40))
def test_a_damaged_dump_is_refused_or_read(at, put, cut):
    damaged = QUAD[:at] + put + QUAD[at + cut :]
    try:
        cluster = Cluster.from_nccl_graph("<" + damaged.lstrip()[1:], hosts=2)
        rings = [c.ring for c in cluster.channels]
    except GenieError:
        return
    assert all(sorted(ring) == list(range(cluster.n_ranks)) for ring in rings)
