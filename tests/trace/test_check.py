"""Checks across nodes and ranks (bug reports A and C): what is refused, and how it is said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from genie.errors import DependencyCycleError, TraceError
from genie.trace import Builder, Trace, load, write

from trace import wirebytes as w  # isort: skip


def raw(folder: Path, *records: bytes) -> Trace:
    (folder / "t.0.et").write_bytes(w.framed(w.HEAD_V4, *records))
    return load(folder)


def comp(id: int, *data: int, ctrl: tuple[int, ...] = ()) -> bytes:
    return w.v4(id, f"n{id}", 4, w.number(7, 10_000), data=data, ctrl=ctrl)


def built(folder: Path, ranks: int, fill: Callable[[Builder, int], None], groups=None) -> Trace:
    made = []
    for rank in range(ranks):
        builder = Builder()
        fill(builder, rank)
        made.append(builder)
    return load(write(folder, "t", made, groups=groups))


def reason(trace: Trace) -> str:
    with pytest.raises(TraceError) as caught:
        trace.check()
    return str(caught.value)


# A. Structure and dependencies.


def test_cycle_of_three(tmp_path: Path) -> None:
    trace = raw(tmp_path, comp(1, 3), comp(2, 1), comp(3, 2))
    with pytest.raises(DependencyCycleError) as caught:
        trace.check()
    assert caught.value.nodes == [1, 3, 2]
    assert "rank 0" in str(caught.value)
    assert "node 1 (n1) <- node 3 (n3) <- node 2 (n2) <- node 1 (n1)" in str(caught.value)
    with pytest.raises(DependencyCycleError):
        trace.issue_order(0)


def test_the_shortest_cycle_of_an_otherwise_good_graph(tmp_path: Path) -> None:
    # A cycle of four (10..13), one of two (20, 21) behind it, and good nodes around.
    records = [comp(1), comp(2, 1), comp(10, 13, 2), comp(11, 10), comp(12, 11), comp(13, 12),
               comp(20, 21, 13), comp(21, 20), comp(30, 21)]  # fmt: skip
    text = reason(raw(tmp_path, *records))
    assert "the shortest cycle has 2 nodes" in text
    assert "node 20 (n20) <- node 21 (n21)" in text
    assert "7 can never start" in text


def test_self_dependency_is_a_cycle_of_one(tmp_path: Path) -> None:
    text = reason(raw(tmp_path, comp(4), comp(5, 5)))
    assert "1 node, a self-dependency: node 5 (n5) <- node 5 (n5)" in text


def test_a_chain_of_200_000(tmp_path: Path) -> None:
    count = 200_000
    records = [comp(0), *(comp(k, k - 1) for k in range(1, count))]
    trace = raw(tmp_path, *records)
    trace.check()
    assert np.array_equal(trace.issue_order(0), np.arange(count))
    assert trace.inspect()["total"]["critical_path_ns"] == count * 10_000_000
    backward = raw(tmp_path, comp(0, count - 1), *records[1:])
    text = reason(backward)
    assert "the shortest cycle has 200000 nodes" in text
    assert "199989 more" in text


def test_missing_parent_is_named(tmp_path: Path) -> None:
    text = reason(raw(tmp_path, comp(1, 999_999)))
    assert "rank 0" in text
    assert "node 1 (n1) depends on node 999999, which the file does not have" in text


def test_a_communication_node_behind_a_missing_ancestor_is_counted(tmp_path: Path) -> None:
    trace = raw(tmp_path, comp(1), w.coll_v4(2, data=(1,)), comp(3, 4), w.coll_v4(5, data=(3,)))
    document = trace.inspect()
    assert document["total"]["communication"] == {"read": 2, "can_start": 1}
    assert "node 4" in document["problems"][0]


def test_control_dependencies_gate_too(tmp_path: Path) -> None:
    trace = raw(tmp_path, comp(1), comp(2, ctrl=(1,)))
    assert trace.inspect()["total"]["critical_path_ns"] == 20_000_000
    before = trace.ranks[0].deps.copy()
    trace.issue_order(0)
    assert np.array_equal(trace.ranks[0].deps, before)


def test_a_parent_listed_three_times_gates_once(tmp_path: Path) -> None:
    trace = raw(tmp_path, comp(1), comp(2, 1, 1, ctrl=(1,)))
    assert trace.ranks[0].parents(1).tolist() == [0]
    assert trace.ranks[0].ignored == {"repeated dependencies": 2}
    trace.check()


def test_file_order_is_not_execution_order(tmp_path: Path) -> None:
    records = [comp(1), comp(2, 1), w.coll_v4(3, data=(2,)), comp(4, 3, 1), comp(5, 4)]
    forward = raw(tmp_path, *records)
    ids = forward.ranks[0].id[forward.issue_order(0)].tolist()
    document = forward.inspect()["total"]
    backward = raw(tmp_path, *records[::-1])
    backward.check()
    assert backward.ranks[0].id[backward.issue_order(0)].tolist() == ids
    assert backward.inspect()["total"] == document


def test_duplicate_ids_are_named_with_both_offsets(tmp_path: Path) -> None:
    first, second = comp(7), comp(7)
    head = len(w.framed(w.HEAD_V4))
    trace = raw(tmp_path, first, second)
    text = reason(trace)
    assert "node 7" in text
    assert f"at byte {head + 1} and at byte {head + 1 + len(first) + 1}" in text


def test_the_same_ids_in_every_rank_are_fine(tmp_path: Path) -> None:
    data = w.framed(w.HEAD_V4, comp(7))
    for rank in range(3):
        (tmp_path / f"t.{rank}.et").write_bytes(data)
    load(tmp_path).check()


def test_fourteen_sends_with_one_tag(tmp_path: Path) -> None:
    def fill(builder: Builder, rank: int) -> None:
        last: list[int] = []
        for k in range(14):
            kind = "COMM_SEND" if rank == 0 else "COMM_RECV"
            last = [builder.node(kind, f"m{k}", deps=last, peer=1 - rank, nbytes=100 + k)]

    built(tmp_path, 2, fill).check()


@pytest.mark.parametrize(
    ("drop", "why"),
    [
        ("comm_type", "collectives without comm_type: node 2 (c)"),
        ("comm_size", "collectives without comm_size: node 2 (c)"),
        ("both", "collectives without comm_type and comm_size: node 2 (c)"),
    ],
)
def test_absent_is_not_zero(tmp_path: Path, drop: str, why: str) -> None:
    attrs = {"comm_type": w.int_v4("comm_type", 0), "comm_size": w.int_v4("comm_size", 0)}
    kept = [value for name, value in attrs.items() if drop not in {name, "both"}]
    trace = raw(tmp_path, w.v4(2, "c", 7, *kept))
    assert why in reason(trace)


def test_explicit_zero_is_a_size(tmp_path: Path) -> None:
    trace = raw(tmp_path, w.coll_v4(1, size=0))
    trace.check()
    assert int(trace.ranks[0].nbytes[0]) == 0


def test_a_barrier_needs_no_size(tmp_path: Path) -> None:
    raw(tmp_path, w.v4(1, "b", 7, w.int_v4("comm_type", 9))).check()


def test_no_hint_is_needed(tmp_path: Path) -> None:
    # Neither is_cpu_op nor involved_dim: the node type decides.
    raw(tmp_path, w.coll_v4(1)).check()


def test_comm_type_of_sends_is_ignored(tmp_path: Path) -> None:
    # The MSCCL converter writes the node type there.
    send = w.v4(
        1, "s", 5, w.int_v4("comm_type", 5), w.int_v4("comm_size", 8), w.int_v4("comm_dst", 1)
    )
    receive = w.v4(1, "r", 6, w.int_v4("comm_type", 6), w.int_v4("comm_size", 8),
                   w.int_v4("comm_src", 0))  # fmt: skip
    for rank, record in enumerate((send, receive)):
        (tmp_path / f"t.{rank}.et").write_bytes(w.framed(w.HEAD_V4, record))
    trace = load(tmp_path)
    trace.check()
    assert trace.ranks[0].coll.tolist() == [-1]


def test_the_size_of_an_old_send_is_in_tensor_size(tmp_path: Path) -> None:
    send = w.v4(1, "s", 5, w.int_v4("tensor_size", 64), w.int_v4("comm_dst", 1))
    receive = w.v4(1, "r", 6, w.int_v4("tensor_size", 64), w.int_v4("comm_src", 0))
    for rank, record in enumerate((send, receive)):
        (tmp_path / f"t.{rank}.et").write_bytes(w.framed(w.HEAD_V4, record))
    trace = load(tmp_path)
    trace.check()
    assert trace.ranks[1].nbytes.tolist() == [64]


def test_an_absurd_size(tmp_path: Path) -> None:
    assert "sizes above" in reason(raw(tmp_path, w.coll_v4(1, size=1 << 51)))


# C. Collectives, groups, sizes.


def test_overlapping_groups_of_part_of_the_ranks(tmp_path: Path) -> None:
    def fill(builder: Builder, rank: int) -> None:
        builder.node("COMM_COLL", "a", coll="all_reduce", nbytes=1024, group="1")
        if rank >= 4:
            builder.node("COMM_COLL", "b", coll="all_reduce", nbytes=1024, group="2")

    built(tmp_path, 8, fill, {"1": list(range(8)), "2": [4, 5, 6, 7]}).check()


def test_a_rank_that_lacks_a_collective(tmp_path: Path) -> None:
    def fill(builder: Builder, rank: int) -> None:
        for k in range(3 if rank != 2 else 2):
            builder.node("COMM_COLL", f"c{k}", coll="all_reduce", nbytes=64 << k)

    text = reason(built(tmp_path, 4, fill))
    assert "collective 3 of the world differs" in text
    assert "rank 0 has all_reduce of 256 bytes (node 2, c2)" in text
    assert "rank 2 has only 2 collectives" in text


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"coll": "all_gather"}, "rank 1 has all_gather of 64 bytes"),
        ({"nbytes": 65}, "rank 1 has all_reduce of 65 bytes"),
        ({"dtype": "int8"}, "collective 2 of group 'g' differs"),
    ],
)
def test_a_collective_that_differs(tmp_path: Path, change: dict, why: str) -> None:
    def fill(builder: Builder, rank: int) -> None:
        for k in range(3):
            odd = change if rank == 1 and k == 1 else {}
            what = {"coll": "all_reduce", "nbytes": 64, **odd}
            builder.node("COMM_COLL", f"c{k}", group="g", **what)

    text = reason(built(tmp_path, 2, fill, {"g": [0, 1]}))
    assert "collective 2 of group 'g' differs" in text
    assert why in text


def test_roots(tmp_path: Path) -> None:
    def fill(builder: Builder, rank: int) -> None:
        builder.node("COMM_COLL", "b", coll="broadcast", nbytes=8, root=rank)

    assert "with root 1" in reason(built(tmp_path, 2, fill))

    def beyond(builder: Builder, rank: int) -> None:
        builder.node("COMM_COLL", "b", coll="broadcast", nbytes=8, root=2)

    assert "has the root 2, but its group has 2 ranks" in reason(built(tmp_path, 2, beyond))


def test_collectives_in_another_order(tmp_path: Path) -> None:
    def fill(builder: Builder, rank: int) -> None:
        order = ("all_reduce", "all_gather") if rank == 0 else ("all_gather", "all_reduce")
        for kind in order:
            builder.node("COMM_COLL", kind, coll=kind, nbytes=64)

    text = reason(built(tmp_path, 2, fill))
    assert "collective 1 of the world differs" in text
    assert "rank 0 has all_reduce" in text and "rank 1 has all_gather" in text


def pipeline(builder: Builder, rank: int, size: int = 4096, ranks: int = 4) -> None:
    last: list[int] = []
    for k in range(8):
        if rank > 0:
            last = [
                builder.node("COMM_RECV", f"r{k}", deps=last, peer=rank - 1, nbytes=4096, tag=k)
            ]
        last = [builder.node("COMP", f"c{k}", deps=last, duration_ns=1000)]
        if rank < ranks - 1:
            builder.node("COMM_SEND", f"s{k}", deps=last, peer=rank + 1, nbytes=size, tag=k)


def test_pipelines_of_any_length(tmp_path: Path) -> None:
    built(tmp_path, 4, pipeline).check()


def test_sizes_of_a_send_and_its_receive(tmp_path: Path) -> None:
    text = reason(built(tmp_path, 4, lambda b, rank: pipeline(b, rank, 4096 + rank)))
    assert "rank 1 node" in text and "sends 4097 bytes" in text and "expects 4096" in text


def test_sends_nobody_receives(tmp_path: Path) -> None:
    def fill(builder: Builder, rank: int) -> None:
        if rank == 0:
            for k in range(3):
                builder.node("COMM_SEND", f"s{k}", peer=1, nbytes=8)
        else:
            builder.node("COMM_RECV", "r", peer=0, nbytes=8)
            builder.node("COMM_RECV", "x", peer=0, nbytes=8, tag=9)

    trace = built(tmp_path, 2, fill)
    reasons = [problem.message for problem in trace.problems()]
    assert len(reasons) == 3
    assert "rank 0 node 1 (s1) sends to rank 1, which never receives it" in reasons[0]
    assert "number 2" in reasons[0]
    assert "rank 1 node 1 (x) receives from rank 0, which never sends it" in reasons[2]


def test_a_peer_beyond_the_ranks(tmp_path: Path) -> None:
    def fill(builder: Builder, rank: int) -> None:
        builder.node("COMM_SEND", "s", peer=5, nbytes=8)

    assert "has the peer 5, but there are 1 ranks" in reason(built(tmp_path, 1, fill))


def test_a_send_without_a_destination(tmp_path: Path) -> None:
    assert "sends without comm_dst" in reason(
        raw(tmp_path, w.v4(1, "s", 5, w.int_v4("comm_size", 8)))
    )


def all_to_all(table: list[list[int]], expected: list[list[int]] | None = None):
    def fill(builder: Builder, rank: int) -> None:
        sent = table[rank]
        received = [row[rank] for row in (expected or table)]
        builder.node(
            "COMM_COLL", "a2a", coll="all_to_all", nbytes=sum(sent), splits=(sent, received)
        )

    return fill


def test_uneven_splits_with_zeros_and_a_self_chunk(tmp_path: Path) -> None:
    trace = built(tmp_path, 3, all_to_all([[5, 0, 7], [1, 2, 0], [0, 0, 9]]))
    trace.check()
    sent, received = trace.ranks[0].split_lists[0]
    assert sent.tolist() == [5, 0, 7] and received.tolist() == [5, 1, 0]


def test_one_pair_that_disagrees_although_the_totals_agree(tmp_path: Path) -> None:
    table = [[5, 0, 7], [1, 2, 0], [0, 0, 9]]
    wrong = [[5, 1, 6], [1, 2, 0], [0, 0, 9]]
    text = reason(built(tmp_path, 3, all_to_all(table, wrong)))
    assert "rank 0 sends 0 bytes to rank 1 (node 0), which expects 1 (node 0)" in text
    assert "2 pairs differ" in text


def test_splits_for_another_number_of_ranks(tmp_path: Path) -> None:
    def fill(builder: Builder, rank: int) -> None:
        builder.node("COMM_COLL", "a", coll="all_to_all", nbytes=8, splits=([2] * 4, [2] * 4))

    text = reason(built(tmp_path, 2, fill))
    assert "splits for 4 and 4 ranks, but its group has 2" in text


def test_splits_that_sum_to_something_else(tmp_path: Path) -> None:
    def fill(builder: Builder, rank: int) -> None:
        builder.node("COMM_COLL", "a", coll="all_to_all", nbytes=9, splits=([4, 4], [4, 4]))

    assert "sum to 8 bytes, but a comm_size of 9" in reason(built(tmp_path, 2, fill))


def test_ranks_that_wait_for_each_other(tmp_path: Path) -> None:
    # Rank 0 runs a before b, rank 1 b before a; each rank alone is in order.
    def fill(builder: Builder, rank: int) -> None:
        names = ("a", "b") if rank == 0 else ("b", "a")
        one = builder.node("COMM_COLL", names[0], coll="all_reduce", nbytes=8, group=names[0])
        builder.node("COMM_COLL", names[1], coll="all_reduce", nbytes=8, group=names[1], deps=[one])

    text = reason(built(tmp_path, 2, fill, {"a": [0, 1], "b": [0, 1]}))
    assert "wait for each other for ever" in text
    assert "(a) of group 'a'" in text and "(b) of group 'b'" in text

    def free(builder: Builder, rank: int) -> None:
        for name in ("a", "b") if rank == 0 else ("b", "a"):
            builder.node("COMM_COLL", name, coll="all_reduce", nbytes=8, group=name)

    built(tmp_path, 2, free, {"a": [0, 1], "b": [0, 1]}).check()


def test_receives_that_wait_for_each_other(tmp_path: Path) -> None:
    def fill(builder: Builder, rank: int) -> None:
        got = builder.node("COMM_RECV", "r", peer=1 - rank, nbytes=8)
        builder.node("COMM_SEND", "s", peer=1 - rank, nbytes=8, deps=[got])

    with pytest.raises(DependencyCycleError, match="wait for each other") as caught:
        built(tmp_path, 2, fill).check()
    assert len(caught.value.nodes) == 4

    def exchange(builder: Builder, rank: int) -> None:
        builder.node("COMM_RECV", "r", peer=1 - rank, nbytes=8)
        builder.node("COMM_SEND", "s", peer=1 - rank, nbytes=8)

    built(tmp_path, 2, exchange).check()


def test_every_reason_is_told(tmp_path: Path) -> None:
    trace = raw(tmp_path, comp(1, 1), comp(2, 77), w.v4(3, "c", 7), w.coll_v4(4, size=1 << 60))
    assert len(trace.problems()) == 4
    assert "(and 3 more: genie inspect" in reason(trace)
