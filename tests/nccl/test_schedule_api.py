"""The public face of schedules: arguments, tables, errors, reuse, cost."""

from __future__ import annotations

import time
import tracemalloc

import numpy as np
import pytest

import genie
from genie.errors import InputError, ScheduleError, UnsupportedCollectiveError
from genie.replay.cluster import Cluster
from genie.replay.nccl.env import Nccl
from genie.replay.nccl.messages import MESSAGE
from genie.replay.nccl.program import INTRA, OP, STREAM
from genie.replay.nccl.schedule import p2p_group, schedule, schedule_group


@pytest.fixture(scope="module")
def cluster():
    return Cluster.preset("h100x8", hosts=4)


def test_the_issue_s_example(cluster):
    nccl = Nccl(env={"NCCL_ALGO": "Tree"})
    made = schedule("all_reduce", count=1000, dtype="float32", cluster=cluster, root=0, nccl=nccl)
    assert made.choice.algorithm == "tree"
    assert (made.kind, made.count, made.dtype) == ("all_reduce", 1000, "float32")
    assert made.parts.dtype.names == ("channel", "count", "chunk_bytes")
    assert made.parts["count"].sum() == made.count
    table = made.messages(0)
    assert table.dtype == MESSAGE
    assert table.dtype.names[:6] == ("channel", "group", "peer", "direction", "nbytes", "step")
    assert "tree" in repr(made) and "32 ranks" in repr(made)
    made.check()


def test_counts_mean_what_nccl_s_counts_mean(cluster):
    """all_gather and broadcast are planned in bytes, the others in elements (design 5)."""
    for kind, count in {
        "all_gather": 4000,
        "broadcast": 4000,
        "all_reduce": 1000,
        "reduce_scatter": 1000,
        "reduce": 1000,
        "reduce_scatter_block": 1000,
    }.items():
        made = schedule(kind, count=1000, dtype="float32", cluster=cluster)
        assert made.kind == kind
        assert made.count == count == made.parts["count"].sum()
        assert made.count * made.choice.element_size == 4000


def test_programs_have_the_engine_s_layout(cluster):
    for kind in ("all_reduce", "all_gather", "broadcast", "all_to_all", "gather"):
        made = schedule(kind, count=100_000, cluster=cluster)
        for rank in (0, 5, 31):
            program = made.program(rank)
            assert program.streams.dtype == STREAM and program.ops.dtype == OP
            assert program.streams["count"].sum() == len(program.ops)
            ends = program.streams["first"] + program.streams["count"]
            assert (program.streams["first"][1:] == ends[:-1]).all()
            assert len(program.windows) == len(program.streams)
            local = cluster.host_of[program.ops["peer"]] == cluster.host_of[rank]
            assert (((program.ops["flags"] & INTRA) != 0) == local).all()
            assert not program.ops.flags.writeable
            assert made.program(rank) is program


def test_messages_are_the_program_without_the_host_s_own(cluster):
    made = schedule("all_reduce", count=1 << 20, cluster=cluster, nccl=Nccl(version="2.27"))
    for rank in (0, 7, 8):
        everything, network = made.messages(rank, intra=True), made.messages(rank)
        remote = cluster.host_of[everything["peer"]] != cluster.host_of[rank]
        assert network.tolist() == everything[remote].tolist()
        assert (network["nic"] >= 0).all()
        assert (everything["nic"][~remote] == -1).all()
        assert len(made.program(rank).ops) == len(everything)


def test_steps_follow_each_other_on_a_connection(cluster):
    nccl = Nccl(env={"NCCL_ALGO": "allreduce:Ring", "NCCL_PROTO": "Simple"})
    made = schedule("all_reduce", count=1 << 22, cluster=cluster, nccl=nccl)
    table = made.messages(0)
    for channel in np.unique(table["channel"]):
        for direction in (0, 1):
            rows = table[(table["channel"] == channel) & (table["direction"] == direction)]
            assert rows["step"].tolist() == list(range(0, 2 * len(rows), 2))


def test_calls(cluster):
    """Calls count data, whatever the protocol puts on the wire."""
    nccl = Nccl(env={"NCCL_ALGO": "allreduce:Ring", "NCCL_PROTO": "LL"})
    made = schedule("all_reduce", count=10_000, cluster=cluster, nccl=nccl)
    for rank in (0, 9):
        calls, table = made.calls(rank), made.messages(rank, intra=True)
        sent = calls[calls["direction"] == 0]
        assert sent["nbytes"].sum() * 2 <= table["nbytes"][table["direction"] == 0].sum()
        assert (calls["nbytes"] == 4 * calls["elements"]).all()
    total = sum(
        int(c["elements"][c["direction"] == 0].sum())
        for c in (made.calls(rank) for rank in range(32))
    )
    assert total == 2 * 31 * 10_000
    exchange = schedule("all_to_all", count=10, cluster=cluster).calls(3)
    assert exchange["elements"].tolist() == [10] * 62


def test_all_to_all_with_splits(cluster):
    """Zero splits are messages of no bytes, or no messages where PyTorch makes no call."""
    splits = np.zeros((32, 32), int)
    splits[0, 9] = 1000
    splits[9, 0] = 5
    made = schedule("all_to_all", splits=splits, dtype="float16", cluster=cluster)
    dropped = schedule(
        "all_to_all", splits=splits, dtype="float16", cluster=cluster, drop_zeros=True
    )
    made.check()
    dropped.check()
    assert len(made.messages(0)) == 2 * 24
    assert sorted(made.messages(0)["nbytes"])[-2:] == [10, 2000]
    rows = dropped.messages(0)
    assert [(r["peer"], r["direction"], r["nbytes"]) for r in rows] == [(9, 1, 10), (9, 0, 2000)]
    assert len(dropped.messages(1)) == 0


def test_gather_scatter_send_recv(cluster):
    gather = schedule("gather", count=7, dtype="int8", cluster=cluster, root=3)
    scatter = schedule("scatter", count=7, dtype="int8", cluster=cluster, root=3)
    gather.check()
    scatter.check()
    assert sorted(gather.messages(3)["peer"]) == [*range(8, 32)]
    assert (gather.messages(3)["direction"] == 1).all()
    assert (scatter.messages(3)["direction"] == 0).all()
    assert len(gather.messages(4)) == 0  # the root is on the same host
    assert len(gather.messages(4, intra=True)) == 1
    send = schedule("send", count=100, cluster=cluster, root=0, peer=8)
    send.check()
    alone = p2p_group([(8, 400)], [], cluster)
    assert send.messages(0).tolist() == alone.messages(0).tolist()
    assert send.messages(8)["direction"].tolist() == [1]


def test_a_group_of_sends_and_receives(cluster):
    made = p2p_group([(8, 10), (8, 20), (9, 0)], [(8, 30)], cluster, rank=0)
    rows = made.messages(0)
    sent = rows[rows["direction"] == 0]
    assert sent["nbytes"][sent["peer"] == 8].tolist() == [10, 20]
    # The second send to one peer waits for the first one's batch.
    assert sent["group"][sent["peer"] == 8].tolist() == [0, 1]
    assert sent["step"][sent["peer"] == 8].tolist() == [0, 1]
    with pytest.raises(InputError, match="calls of rank 0, not 1"):
        made.messages(1)
    with pytest.raises(InputError, match="peer 99"):
        p2p_group([(99, 1)], [], cluster)


def test_windows_of_concurrent_receives(cluster):
    """Eight receives of one batch share a queue of 16: two messages each (spec 3.9)."""
    made = schedule("all_to_all", count=1 << 20, dtype="int8", cluster=cluster)
    parts = made.p2p_parts(0)
    remote = parts[parts["intra"] == 0]
    receives = remote[remote["direction"] == 1]
    assert set(receives["window"]) == {2}
    # Sends leave through eight proxies (PXN), one each: the whole window.
    assert set(remote["window"][remote["direction"] == 0]) == {8}


def test_no_network(cluster):
    one = Cluster.preset("h100x1", hosts=1)
    for kind in ("all_reduce", "all_gather", "broadcast", "all_to_all", "gather", "barrier"):
        made = schedule(kind, count=1000, cluster=one)
        assert len(made.messages(0, intra=True)) == 0
        assert len(made.program(0).ops) == 0
        made.check()
    host = cluster.sub(range(8))
    for kind in ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all"):
        made = schedule(kind, count=1000, cluster=host)
        assert len(made.messages(0)) == 0
        assert len(made.messages(0, intra=True)) > 0
        made.check()


def test_groups_in_plan_order(cluster):
    made = schedule_group(
        [("all_reduce", 1 << 20, "float32"), ("all_gather", 0, "int8"), ("reduce", 8, "int8")],
        cluster=cluster,
    )
    assert sorted(one.kind for one in made) == ["all_reduce", "reduce"]
    for one in made:
        one.check()
        assert one.parts["count"].sum() == one.count
    with pytest.raises(UnsupportedCollectiveError, match="AllGatherV"):
        schedule_group(
            [("broadcast", 8, "int8", "sum", 0), ("broadcast", 8, "int8", "sum", 1)],
            cluster=cluster,
        )


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (
            {"kind": "all_reduce", "count": -1},
            InputError,
            "count is a whole number from 0 on, not -1",
        ),
        ({"kind": "all_reduce"}, InputError, "number of elements, not None"),
        ({"kind": "all_reduce", "count": 1.5}, InputError, "not 1.5"),
        ({"kind": "all_reduce", "count": True}, InputError, "not True"),
        ({"kind": "all_reduce", "count": 8, "dtype": "decimal"}, InputError, "decimal"),
        ({"kind": "all_reduce", "count": 8, "op": "xor"}, InputError, "xor"),
        ({"kind": "broadcast", "count": 8, "root": 32}, InputError, "root 32"),
        ({"kind": "gossip", "count": 8}, UnsupportedCollectiveError, "unknown collective"),
        ({"kind": "all_gather", "splits": [[1]]}, InputError, "splits are for all_to_all"),
        ({"kind": "all_to_all", "splits": [[1]]}, InputError, "expected 32 x 32"),
        ({"kind": "send", "count": 8}, InputError, "give peer="),
    ],
)
def test_bad_arguments(cluster, arguments, error, text):
    with pytest.raises(error, match=text):
        schedule(cluster=cluster, **arguments)


def test_bad_ranks_and_no_candidate(cluster):
    made = schedule("all_reduce", count=8, cluster=cluster)
    for call in (made.messages, made.program, made.calls, made.work_requests):
        with pytest.raises(InputError, match="rank 32"):
            call(32)
    with pytest.raises(ScheduleError, match="no algorithm left"):
        schedule("broadcast", count=8, cluster=cluster, nccl=Nccl(env={"NCCL_ALGO": "Tree"}))


def test_equal_calls_share_one_schedule(cluster):
    first = schedule("all_reduce", count=4096, cluster=cluster)
    assert schedule("all_reduce", count=4096, cluster=cluster) is first
    assert schedule("all_reduce", count=4096, cluster=cluster, root=3) is first
    assert schedule("all_reduce", count=4096, cluster=cluster, dtype="bfloat16") is not first
    assert schedule("all_reduce", count=4096, cluster=cluster, nccl=Nccl("2.27")) is not first


def test_planning_a_step_reuses_shapes(cluster):
    """10 000 collectives of 20 shapes over two communicators cost their lookup only."""
    group = cluster.sub(range(0, 32, 8))
    schedule("all_reduce", count=1, cluster=cluster)
    begin = time.perf_counter()
    for i in range(10_000):
        where = cluster if i % 2 else group
        made = schedule("all_reduce", count=1 + i % 20 * 100_000, cluster=where)
        made.program(0)
    assert time.perf_counter() - begin < 2  # the goal of 1 s is measured in benchmarks/


def test_one_rank_of_16384():
    """One rank's messages cost what they are: under a second and 200 MB for 1 GiB."""
    big = Cluster.preset("h100x8", hosts=2048)
    nccl = Nccl(env={"NCCL_ALGO": "allreduce:Ring", "NCCL_PROTO": "Simple"})
    tracemalloc.start()
    made = schedule("all_reduce", count=1 << 28, cluster=big, nccl=nccl)
    table = made.messages(0)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    sends = table[table["direction"] == 0]
    # 2 x (R - 1) calls of two slices on every channel that leaves the host here.
    channels = len(np.unique(sends["channel"]))
    assert len(sends) == channels * 2 * 16383 * 2
    assert peak < 200e6
    assert table.nbytes <= 32 * len(table)


@pytest.mark.parametrize("kind", ["gather", "scatter", "all_to_all"])
@pytest.mark.parametrize("hosts", [2, 3, 5])
def test_a_receive_mirrors_its_senders_group(kind, hosts):
    """Also where the two ends number their batches differently (unequal hosts, one root)."""
    cluster = genie.Cluster.preset("a100x4", hosts=hosts)
    members = [(h, g) for h in range(hosts) for g in range(4 if h % 2 == 0 else 1 + h % 3)]
    sub = cluster.communicator(members)
    made = genie.schedule(kind, count=5000, dtype="float32", cluster=sub, root=1)
    tables = [made.messages(rank) for rank in range(sub.n_ranks)]
    names = ["channel", "group", "nbytes"]
    for src in range(sub.n_ranks):
        for dst in range(sub.n_ranks):
            sent = tables[src][(tables[src]["peer"] == dst) & (tables[src]["direction"] == 0)]
            got = tables[dst][(tables[dst]["peer"] == src) & (tables[dst]["direction"] == 1)]
            assert sorted(sent[names].tolist()) == sorted(got[names].tolist())
