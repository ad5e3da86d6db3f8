"""NCCL_DEBUG=INFO logs: every historic form, what is missing, what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.log_text import facts_of, log
from genie.errors import GenieError, InputError, ScheduleError
from genie.replay.cluster import Cluster
from genie.replay.nccl.env import Nccl

FORMS = ("children first", "parent first", "one a line", "both trees")


def same(ours: Cluster, theirs: Cluster) -> None:
    assert len(ours.channels) == len(theirs.channels)
    for a, b in zip(ours.channels, theirs.channels, strict=True):
        assert a.ring == b.ring
        assert a.tree_up == b.tree_up
        assert a.tree_down == b.tree_down


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["h100x8", "a100x8", "h100x8use2", "a100x1", "h100x8k4"])
def test_whole_log_gives_the_cluster_back(name, form):
    cluster = Cluster.preset(name, hosts=2)
    read = Cluster.from_nccl_log(log(facts_of(cluster), form=form))
    same(read, cluster)
    assert read.exact
    assert read.n_hosts == 2
    assert read.p2p_channels == cluster.p2p_channels
    assert read.p2p_channels_per_peer == cluster.p2p_channels_per_peer
    assert read.p2p_chunk_bytes == cluster.p2p_chunk_bytes
    assert read.p2p_group_size == cluster.p2p_group_size
    assert read.nvls_channels == cluster.nvls_channels
    if cluster.nvls_trees:
        assert read.nvls_trees is not None
        for a, b in zip(read.nvls_trees, cluster.nvls_trees, strict=True):
            assert a.up == b.up
            assert a.down == b.down


@pytest.mark.parametrize("hosts", [2, 3, 4])
def test_rows_of_one_host_settle_the_others(hosts):
    cluster = Cluster.preset("h100x8", hosts=hosts)
    facts = facts_of(cluster, range(8))
    # NCCL prints no more than the first 20 ranks of a ring.
    facts["ring_width"] = 20
    read = Cluster.from_nccl_log(log(facts), like="h100x8")
    same(read, cluster)
    notes = "\n".join(read.notes)
    assert "tree rows of ranks 8-" in notes
    assert ("rings of channels 0-15 are derived" in notes) == (hosts > 2)


def test_an_unsettled_pattern_is_missing_not_guessed():
    cluster = Cluster.preset("a100x8", hosts=4)
    read = Cluster.from_nccl_log(log(facts_of(cluster, range(8))))
    assert not read.exact
    assert any("lack rows of up to" in note for note in read.notes)
    unknown = 0
    for ours, theirs in zip(read.channels, cluster.channels, strict=True):
        assert ours.ring == theirs.ring
        for rank in range(32):
            try:
                assert ours.tree_up[rank] == theirs.tree_up[rank]
                assert ours.tree_down[rank] == theirs.tree_down[rank]
            except ScheduleError as error:
                assert f"rank {rank}" in str(error)
                unknown += 1
    assert unknown > 0
    assert "known in part" in read.describe()


def test_links_make_rings():
    cluster = Cluster.preset("a100x4", hosts=3)
    facts = facts_of(cluster)
    facts["speakers"] = range(12)
    facts["rings"] = {}
    facts["ring_prev_next"] = {
        c.index: {r: (c.ring_prev(r), c.ring_next(r)) for r in range(12)} for c in cluster.channels
    }
    same(Cluster.from_nccl_log(log(facts)), cluster)
    some = {c: {r: row for r, row in rows.items() if r in (0, 5)}
            for c, rows in facts["ring_prev_next"].items()}  # fmt: skip
    read = Cluster.from_nccl_log(log({**facts, "ring_prev_next": some}))
    channel = read.channels[2]
    assert not channel.has_ring
    assert channel.ring_next(5) == cluster.channels[2].ring_next(5)
    assert channel.ring_prev(0) == cluster.channels[2].ring_prev(0)
    with pytest.raises(ScheduleError, match="ring of channel 2 is not known"):
        channel.ring_next(8)
    assert any("rings of channels 0-7 are not in the log" in note for note in read.notes)


def test_environment_and_release_of_the_job():
    facts = facts_of(Cluster.preset("h100x1", hosts=2).with_nccl(Nccl(version="2.27")))
    facts["env"] = {"NCCL_BUFFSIZE": "8388608", "NCCL_ALGO": "Ring", "NCCL_DEBUG": "INFO"}
    read = Cluster.from_nccl_log(log(facts))
    assert read.settings.version == (2, 27, 7)
    assert read.buffer_bytes["simple"] == 8388608
    assert any("NCCL_ALGO=Ring" in note for note in read.notes)
    assert not any("NCCL_DEBUG=" in note for note in read.notes)
    # The log's own environment stays below the one given later.
    later = read.with_nccl(Nccl(env={"NCCL_LL_BUFFSIZE": "65536"}))
    assert later.buffer_bytes == {"ll": 65536, "ll128": 4915200, "simple": 8388608}
    assert later.p2p_channels_per_peer == 2
    assert read.with_nccl(Nccl(env={"NCCL_BUFFSIZE": "4194304"})).buffer_bytes["simple"] == 4194304
    few = read.with_nccl(Nccl(env={"NCCL_MAX_NCHANNELS": "1"}))
    assert len(few.channels) == few.coll_channels == few.p2p_channels == 1
    more = read.with_nccl(Nccl(env={"NCCL_MIN_NCHANNELS": "6"}))
    assert [c.ring for c in more.channels] == [[0, 1]] * 6
    assert more.channels[5].tree_up == read.channels[1].tree_up


def test_nics_of_edges():
    cluster = Cluster.preset("h100x8", hosts=2)
    facts = facts_of(cluster)
    facts["net_edges"] = []
    for channel in cluster.channels[:8]:
        for rank in range(8):
            peer = channel.ring_next(rank)
            if not cluster.same_host(rank, peer):
                nic, _ = cluster.nic(rank, peer, channel.index, "ring", "send")
                facts["net_edges"].append(
                    {"ch": channel.index, "src": rank, "dst": peer, "nic": nic}
                )
    facts["net_edges"][0]["proxy"] = 5
    read = Cluster.from_nccl_log(log(facts))
    for channel in cluster.channels:
        for rank in range(8):
            peer = channel.ring_next(rank)
            if not cluster.same_host(rank, peer):
                edge = (rank, peer, channel.index, "ring", "send")
                assert read.nic(*edge)[0] == cluster.nic(*edge)[0]
    first = facts["net_edges"][0]
    assert read.nic(first["src"], first["dst"], first["ch"], "ring", 0)[1] == 5
    assert read.nic(first["dst"], first["src"], first["ch"], "ring", 1)[1] == first["dst"]


def patterns(cluster: Cluster, gpu="GPU/{}", net="NET/{}") -> list[list[str]]:
    """What the GRAPH subsystem prints of a cluster's search."""
    blocks = []
    for graph in cluster.graphs.values():
        intra, inter = graph.type_names()
        head = (
            f"Pattern {graph.pattern}, crossNic {graph.cross_nic}, nChannels {graph.n_channels}, "
            f"bw {graph.bw_intra:f}/{graph.bw_inter:f}, type {intra}/{inter}, "
            f"sameChannels {int(graph.same_channels)}"
        )
        rows = []
        for i, (order, nics) in enumerate(zip(graph.intra, graph.inter, strict=True)):
            gpus = " ".join(gpu.format(g, (g + 1) * 4096) for g in order)
            rows.append(f" {i} : {net.format(nics[0])} {gpus} {net.format(nics[1])}")
        blocks.append([head, *rows])
    return blocks


@pytest.mark.parametrize(
    ("gpu", "net"), [("GPU/{}", "NET/{}"), ("GPU/0-{1:x}", "NET/0-{:x}")], ids=["rank", "bus id"]
)
def test_search_results_from_the_graph_subsystem(gpu, net):
    cluster = Cluster.preset("h100x8", hosts=2)
    facts = facts_of(cluster)
    facts["patterns"] = patterns(cluster, gpu, net)
    read = Cluster.from_nccl_log(log(facts), like="h100x8")
    assert read.graphs == cluster.graphs
    assert not any("bandwidths" in note for note in read.notes)
    assert read.sm == 90
    # Without the bus ids the orders are the ring lines' own, and speeds are still known.
    facts["patterns"] = patterns(cluster, "GPU/0-{1:x}9", "NET/{}")
    assert Cluster.from_nccl_log(log(facts)).graphs["ring"].bw_intra == 48
    same(Cluster.from_nccl_log(log(facts)), cluster)


def test_like_a_preset():
    cluster = Cluster.preset("a100x8", hosts=2)
    text = log(facts_of(cluster))
    read = Cluster.from_nccl_log(text)
    assert any("those of preset a100x8, so that preset's are used" in n for n in read.notes)
    assert read.graphs == cluster.graphs
    plain = Cluster.from_nccl_log(log(facts_of(Cluster.preset("a100x1", hosts=3))))
    assert any("a100x1_100g" in note for note in plain.notes)
    assert any("NICs are not in the log: 1 a host" in note for note in plain.notes)
    told = Cluster.from_nccl_log(text, like="a100x8")
    assert told.notes == ()
    assert told.graphs == cluster.graphs
    for channel in cluster.channels:
        for rank in range(16):
            peer = channel.ring_next(rank)
            if not cluster.same_host(rank, peer):
                for kind in ("ring", "p2p"):
                    for way in (0, 1):
                        edge = (rank, peer, channel.index, kind, way)
                        assert told.nic(*edge) == cluster.nic(*edge)
    # Another machine's speeds can be lent, but not its NICs.
    lent = Cluster.from_nccl_log(text, like="h100x8")
    assert lent.graphs["ring"].bw_inter == 48
    same(lent, cluster)


def test_hosts_from_whatever_shows_them():
    cluster = Cluster.preset("h100x8", hosts=2)
    facts = facts_of(cluster)
    bare = log(facts, comm_lines=False, prefix=False)
    assert Cluster.from_nccl_log(bare).n_hosts == 2
    named = log({**facts, "speakers": range(16)}, comm_lines=True)
    assert Cluster.from_nccl_log(named).n_hosts == 2
    # Every rank's own line, without any line that names ranks or hosts: prefixes settle it,
    # also where ranks are dealt to hosts in turn.
    turns = Cluster.local(2, 2).communicator([(0, 0), (1, 0), (0, 1), (1, 1)])
    text = log(facts_of(turns), comm_lines=False)
    for rank, host in enumerate((0, 1, 0, 1)):
        text = text.replace(f"job-host{rank // 2}:{1000 + rank}:", f"box{host}:{1000 + rank}:")
    read = Cluster.from_nccl_log(text)
    assert read.host_of.tolist() == [0, 1, 0, 1]
    same(read, turns)
    flat = facts_of(Cluster.local(2, 4))
    flat["trees"] = {}
    with pytest.raises(InputError, match="1, 2, 4, 8 ranks a host would fit: give hosts="):
        Cluster.from_nccl_log(log(flat, comm_lines=False, prefix=False))
    told = Cluster.from_nccl_log(log(flat, comm_lines=False, prefix=False), hosts=4)
    assert told.n_hosts == 4
    with pytest.raises(InputError, match="nNodes is 2, but hosts=4"):
        Cluster.from_nccl_log(log(facts), hosts=4)


def test_a_second_communicator_of_the_job_is_no_second_job():
    cluster = Cluster.preset("h100x8", hosts=2)
    world = log(facts_of(cluster))
    pair = log(facts_of(cluster.sub([0, 8])), comm_id=0xBEEF)
    # The pair's ranks 0 and 1 are the processes of ranks 0 and 8.
    pair = pair.replace("job-host1:1001:2001 [0]", "job-host1:1008:2008 [0]")
    pair = pair.replace("comm 0x10 ", "comm 0x90 ").replace("comm 0x11 ", "comm 0x91 ")
    same(Cluster.from_nccl_log(world + pair), cluster)
    same(Cluster.from_nccl_log(pair + world), cluster)
    again = log(facts_of(cluster), comm_id=0xF00D).replace("comm 0x", "comm 0x7")
    same(Cluster.from_nccl_log(world + again), cluster)


@pytest.mark.parametrize("comm_lines", [True, False])
def test_two_jobs_are_refused(comm_lines):
    facts = facts_of(Cluster.preset("h100x8", hosts=1))
    one = log(facts, job="a", comm_lines=comm_lines)
    other = log(facts, job="b", comm_id=0xF00D, comm_lines=comm_lines)
    with pytest.raises(InputError, match="two jobs in one log"):
        Cluster.from_nccl_log(one + other)
    mixed = [line for pair in zip(one.splitlines(), other.splitlines(), strict=True)
             for line in pair]  # fmt: skip
    with pytest.raises(InputError, match="two jobs in one log"):
        Cluster.from_nccl_log("\n".join(mixed))


def test_two_communicators_of_nobody_knows_whom():
    facts = facts_of(Cluster.preset("h100x8", hosts=1))
    one, other = log(facts, prefix=False), log(facts, prefix=False, comm_id=0xF00D)
    with pytest.raises(InputError, match="two communicators of 8 ranks, perhaps of two jobs"):
        Cluster.from_nccl_log(one + other)
    split = other.replace("ncclCommInitRank", "ncclCommSplit")
    read = Cluster.from_nccl_log(one + split)
    assert any("2 communicators" in note for note in read.notes)
    same(Cluster.from_nccl_log(one + one), read)


def test_two_jobs_of_different_size_or_without_prefix():
    big = facts_of(Cluster.preset("h100x8", hosts=2))
    small = facts_of(Cluster.preset("a100x4", hosts=2))
    with pytest.raises(InputError, match="two jobs in one log"):
        Cluster.from_nccl_log(log(big, job="a") + log(small, job="b", comm_id=0xF00D))
    with pytest.raises(InputError, match=r"two|earlier line"):
        Cluster.from_nccl_log(
            log(big, prefix=False, comm_lines=False) + log(small, prefix=False, comm_lines=False)
        )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "cannot read|no NCCL lines"),
        ("NCCL INFO Bootstrap : Using eth0\n", "no NCCL lines about channels"),
        ("NCCL INFO Channel 00/02 : 0 1 1\n", "lists a rank twice"),
        ("NCCL INFO Channel 02/02 : 0 1\n", "channel 2 of 2"),
        ("NCCL INFO Channel 00/02 : 0 1\nNCCL INFO Channel 01/04 : 0 1\n", "earlier line"),
        ("NCCL INFO Channel 00/02 : 0 1\nNCCL INFO Channel 00/02 : 1 0\n", "two different rings"),
        (
            "NCCL INFO Trees [0] 1/-1/-1->0->-1\nNCCL INFO Trees [0] -1/-1/-1->0->1\n",
            "rank 0 has two different trees",
        ),
        (
            "NCCL INFO comm 0x1 rank 0 nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0\n"
            "NCCL INFO Channel 00/02 : 0 1 2\n",
            "rank 2 in a communicator of 2",
        ),
        ("NCCL INFO 4 coll channels, 4 p2p channels, 2 p2p channels per peer\n", "no rings"),
    ],
)
def test_refusals(text, message):
    with pytest.raises(InputError, match=message):
        Cluster.from_nccl_log(text, hosts=None)


def test_forms_of_old_releases():
    text = (
        "box:10:20 [0] NCCL INFO Ring 00 :    0   1   2   3\n"
        "box:10:20 [0] NCCL INFO Ring 01 :    0   1   2   3\n"
        "box:10:20 [0] NCCL INFO Trees [0] -1->0->1/-1/-1 [1] -1->0->1/-1/-1\n"
        "box:11:21 [1] NCCL INFO Trees [0] 0->1->2/-1/-1 [1] 0->1->2/-1/-1\n"
        "box:12:22 [2] NCCL INFO Trees [0] 1->2->3/-1/-1 [1] 1->2->3/-1/-1\n"
        "box:13:23 [3] NCCL INFO Trees [0] 2->3->-1/-1/-1 [1] 2->3->-1/-1/-1\n"
        "box:10:20 [0] NCCL INFO 2 coll channels, 2 p2p channels, 2 p2p channels per peer\n"
        "box:10:20 [0] NCCL INFO comm 0x7f rank 0 nranks 4 cudaDev 0 busId 1000 - Init COMPLETE\n"
        "box:11:21 [1] NCCL INFO comm 0x8f rank 1 nranks 4 cudaDev 1 busId 2000 - Init COMPLETE\n"
        "box:12:22 [2] NCCL INFO comm 0x9f rank 2 nranks 4 cudaDev 2 busId 3000 - Init COMPLETE\n"
        "box:13:23 [3] NCCL INFO comm 0xaf rank 3 nranks 4 cudaDev 3 busId 4000 - Init COMPLETE\n"
    )
    read = Cluster.from_nccl_log(text)
    assert read.n_hosts == 1
    assert read.channels[1].tree_down == [[1], [2], [3], []]
    assert read.channels[0].ring == [0, 1, 2, 3]
    assert read.exact


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_damaged_log_is_refused_or_read(data):
    cluster = Cluster.preset("h100x8use2", hosts=2)
    facts = {**facts_of(cluster), "patterns": patterns(cluster)}
    facts["net_edges"] = [{"ch": 0, "src": 1, "dst": 2, "nic": 3, "proxy": 0}]
    lines = log(facts).splitlines()
    kept = data.draw(st.lists(st.sampled_from(lines), min_size=1, max_size=len(lines)))
    at = data.draw(st.integers(0, len(kept) - 1))
    cut = data.draw(st.integers(0, len(kept[at])))
    kept[at] = kept[at][:cut] + data.draw(st.text(max_size=3)) + kept[at][cut:]
    try:
        cluster = Cluster.from_nccl_log("\n".join(kept) + "\n")
        for channel in cluster.channels:
            if channel.has_ring:
                assert sorted(channel.ring) == list(range(cluster.n_ranks))
            if channel.has_tree:
                assert len(channel.tree_up.tolist()) == cluster.n_ranks
        cluster.describe()
    except GenieError:
        return


def test_log_files_and_pickles(tmp_path):
    import pickle

    cluster = Cluster.preset("h100x8", hosts=2)
    path = tmp_path / "nccl.log"
    path.write_text("launcher says hello\n" + log(facts_of(cluster)))
    read = Cluster.from_nccl_log(path)
    same(pickle.loads(pickle.dumps(read)), cluster)
    assert str(path) in read.name
    with pytest.raises(InputError, match="cannot read the log"):
        Cluster.from_nccl_log(tmp_path / "absent.log")
