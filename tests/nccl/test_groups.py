"""Grouped collectives: order, shared choices, parts, plans (golden: test_selftest)."""

from __future__ import annotations

import pytest

from genie.errors import InputError, UnsupportedCollectiveError
from genie.replay.cluster import Cluster
from genie.replay.nccl.choice import choose
from genie.replay.nccl.env import Nccl
from genie.replay.nccl.group import Task, plan_group
from genie.replay.nccl.partition import parts


@pytest.fixture
def cluster():
    return Cluster.preset("h100x8", hosts=2)


def indices(planned):
    return [one.index for one in planned]


def test_a_group_of_one_is_the_collective_alone(cluster):
    nccl = Nccl()
    for kind in ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"):
        for count in (1, 1000, 1 << 20, 12_345_678):
            [one] = plan_group([(kind, count, "bfloat16", "max")], cluster, nccl)
            alone = choose(kind, count, "bfloat16", "max", cluster, nccl)
            assert one.choice == alone and one.plan == one.index == 0
            want = parts(alone, kind, count, "bfloat16", cluster, nccl)
            assert one.parts.tolist() == want.tolist()


def test_equal_sizes_keep_call_order_and_smaller_ones_go_first(cluster):
    tasks = [("all_reduce", n, "float32") for n in (4096, 4097, 64, 4096, 1 << 20)]
    assert indices(plan_group(tasks, cluster, Nccl())) == [2, 0, 1, 3, 4]
    # 2.21: largest count first.
    assert indices(plan_group(tasks, cluster, Nccl("2.21"))) == [4, 1, 0, 3, 2]


def test_families_of_function_operation_and_type_stay_together(cluster):
    tasks = [
        ("all_reduce", 1000, "float32"),
        ("all_reduce", 1000, "float32", "max"),
        ("all_reduce", 1200, "float16"),
        ("all_reduce", 900, "float32"),
        ("all_gather", 900, "float32"),
        ("all_gather", 3600, "uint8", "max"),
    ]
    planned = plan_group(tasks, cluster, Nccl())
    # Gathers are bytes of no operation, so those two are one family, and the largest.
    assert indices(planned)[:2] == [4, 5]
    assert planned[0].choice is planned[1].choice
    assert indices(planned)[2:].index(0) + 1 == indices(planned)[2:].index(3) or (
        indices(planned)[2:].index(3) + 1 == indices(planned)[2:].index(0)
    )


def test_neighbours_within_four_times_share_a_choice(cluster):
    near = plan_group([("all_reduce", n, "float32") for n in (1000, 3999)], cluster, Nccl())
    assert near[0].choice == near[1].choice and near[0].choice.nbytes == 4999 * 4
    far = plan_group([("all_reduce", n, "float32") for n in (1000, 4000)], cluster, Nccl())
    assert [one.choice.nbytes for one in far] == [4000, 16000]


def test_nvls_collectives_come_last_and_start_at_channel_0(cluster):
    tasks = [("all_reduce", 1 << 22, "float32"), ("all_gather", 1 << 22, "float32")]
    planned = plan_group(tasks, cluster, Nccl())
    assert indices(planned) == [1, 0]
    assert planned[1].choice.algorithm == "nvls_tree"
    assert planned[0].parts["channel"][0] == planned[1].parts["channel"][0] == 0


def test_collectives_of_no_data_are_dropped(cluster):
    tasks = [("all_reduce", 0, "float32"), ("all_reduce", 8, "float32"), ("broadcast", 0, "int8")]
    assert indices(plan_group(tasks, cluster, Nccl())) == [1]
    assert plan_group([], cluster, Nccl()) == []
    for version in ("2.21", "2.30"):
        assert plan_group([("all_reduce", 0, "int8")], cluster, Nccl(version)) == []


def test_a_large_group_is_cut_into_plans(cluster):
    # 4 KiB of arguments hold 254 batch headers; NCCL guesses four collectives a batch.
    tasks = [("all_reduce", 1000 + i % 7, "float16") for i in range(2500)]
    planned = plan_group(tasks, cluster, Nccl())
    numbers = [one.plan for one in planned]
    assert [numbers.count(plan) for plan in range(3)] == [1017, 1017, 466]
    assert numbers == sorted(numbers)
    assert sorted(indices(planned)) == list(range(2500))
    for number in range(3):
        mine = [one for one in planned if one.plan == number]
        assert mine[0].parts["channel"][0] == 0
        assert sum(int(one.parts["count"].sum()) for one in mine) == sum(m.count for m in mine)
    # Fewer argument bytes, more plans; 2.21's work queue is never full.
    tight = plan_group(tasks, cluster, Nccl(env={"NCCL_WORK_ARGS_BYTES": 1024}))
    assert [one.plan for one in tight].count(0) == 249
    fifo = plan_group(tasks, cluster, Nccl(env={"NCCL_WORK_FIFO_BYTES": 19200}))
    assert [one.plan for one in fifo].count(0) == 100
    assert {one.plan for one in plan_group(tasks, cluster, Nccl("2.21"))} == {0}


def test_a_plan_keeps_room_for_a_batch_on_every_channel(cluster):
    # 32 bytes are the header's; 30 batches of 16 bytes hold one collective over 16 channels and
    # not the next, which may need 16 more.
    nccl = Nccl(env={"NCCL_WORK_ARGS_BYTES": 32 + 30 * 16})
    tasks = [("all_reduce", 1 << 24, "float32", op) for op in ("max", "min", "prod")]
    planned = plan_group(tasks, cluster, nccl)
    spans = [len(one.parts) for one in planned]
    assert [one.plan for one in plan_group(tasks, cluster, Nccl())] == [0, 0, 0]
    assert [one.plan for one in planned] == [0, 0, 0] and sum(spans) <= 30
    apart = Nccl(env={"NCCL_WORK_ARGS_BYTES": 32 + 16 * 16})
    planned = plan_group(tasks, cluster, apart)
    assert [one.plan for one in planned] == [0, 0, 1]
    # The one left over starts at channel 0 again and has all channels to itself.
    assert planned[2].parts["channel"].tolist() == list(range(16))


def test_broadcasts_of_several_roots_are_refused_where_nccl_fuses_them(cluster):
    tasks = [Task("broadcast", 100, "float32", root=root) for root in (0, 1)]
    with pytest.raises(UnsupportedCollectiveError, match="AllGatherV"):
        plan_group(tasks, cluster, Nccl())
    apart = Nccl(env={"NCCL_ALLGATHERV_ENABLE": "0"})
    assert len(plan_group(tasks, cluster, apart)) == 2
    assert len(plan_group(tasks, cluster, Nccl("2.28.9"))) == 2
    same = [Task("broadcast", 100, "float32", root=1)] * 2
    assert len(plan_group(same, cluster, Nccl())) == 2


def test_what_is_no_collective(cluster):
    for task in ("all_reduce", ("all_reduce", 1), ("all_reduce", 1, "float32", "sum", 0, 1)):
        with pytest.raises(InputError, match="a collective of a group is"):
            plan_group([task], cluster, Nccl())
    with pytest.raises(InputError, match="whole number"):
        plan_group([("all_reduce", 1.5, "float32")], cluster, Nccl())
    with pytest.raises(UnsupportedCollectiveError, match="all_to_all"):
        plan_group([("all_to_all", 1, "float32")], cluster, Nccl())
