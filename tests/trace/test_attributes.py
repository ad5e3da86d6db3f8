"""Attributes that say something twice, or not what they should (bug reports 12, 14, 30, 31)."""

from __future__ import annotations

import gzip
import io
import json
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from genie.errors import InputError, TraceError
from genie.trace import Builder, Trace, load, write
from genie.trace.gunzip import gunzip

from trace import wirebytes as w  # isort: skip


# The module; the package's attribute of that name is the function.
LOAD = sys.modules["genie.trace.load"]


def true(name: str) -> bytes:
    return w.attr(name, w.number(27, 1))


def told(trace: Trace) -> str:
    return "\n".join(problem.message for problem in trace.problems())


def one(folder: Path, *attrs: bytes, kind: int = 7) -> Trace:
    (folder / "t.0.et").write_bytes(w.framed(w.HEAD_V4, w.v4(3, "x", kind, *attrs)))
    return load(folder)


SIZE, TYPE = w.int_v4("comm_size", 8), w.int_v4("comm_type", 0)


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        ("comm_size", SIZE, w.int_v4("comm_size", 16)),
        ("comm_size", SIZE, SIZE),
        ("comm_type", TYPE, w.int_v4("comm_type", 2)),
        ("pg_name", w.attr("pg_name", w.text(29, "a")), w.attr("pg_name", w.text(29, "b"))),
        ("stream", w.int_v4("stream", 1), w.int_v4("stream", 2)),
        ("duration_ns", w.int_v4("duration_ns", 1), w.int_v4("duration_ns", 2)),
        ("is_cpu_op", true("is_cpu_op"), true("is_cpu_op")),
        ("comm_root", w.int_v4("comm_root", 0), w.int_v4("comm_root", 0)),
    ],
)
def test_two_attributes_of_one_name(tmp_path: Path, name: str, first: bytes, second: bytes) -> None:
    rest = [part for part in (SIZE, TYPE) if part != first]
    text = told(one(tmp_path, *rest, first, second))
    assert f"node 3 (x) has two attributes {name}: which one counts?" in text
    assert "rank 0" in text


def test_two_sizes_in_an_old_attribute(tmp_path: Path) -> None:
    size = w.int_v3("comm_size", 8)
    record = w.old(1, "x", 7, w.int_v3("comm_type", 0), size, size, w.text_v3("a", "b"))
    (tmp_path / "t.0.et").write_bytes(w.framed(record))
    assert "has two attributes comm_size" in told(load(tmp_path))


def test_other_attributes_may_come_twice(tmp_path: Path) -> None:
    trace = one(tmp_path, SIZE, TYPE, w.int_v4("seq_id", 1), w.int_v4("seq_id", 2))
    assert told(trace) == ""


@pytest.mark.parametrize("name", ["comm_size", "comm_type", "comm_tag", "num_ops", "tensor_size"])
def test_a_truth_value_is_no_number(tmp_path: Path, name: str) -> None:
    rest = [part for key, part in (("comm_size", SIZE), ("comm_type", TYPE)) if key != name]
    text = told(one(tmp_path, *rest, true(name)))
    assert f"node 3 (x): {name} True is no number" in text


def test_is_cpu_op_is_a_truth_value(tmp_path: Path) -> None:
    trace = one(tmp_path, true("is_cpu_op"), kind=4)
    assert told(trace) == ""
    assert trace.ranks[0].is_cpu.tolist() == [1]


def test_pg_name_wins_over_comm_group_in_any_order(tmp_path: Path) -> None:
    names = w.attr("pg_name", w.text(29, "new")), w.attr("comm_group", w.text(29, "old"))
    for order in (names, names[::-1]):
        trace = one(tmp_path, SIZE, TYPE, *order)
        assert trace.group_names[trace.ranks[0].group[0]] == "new"


FEEDER = {"Id": 1, "Name": "x", "NodeType": 7, "comm_type": 0, "comm_size": 8}


def feeder(folder: Path, *texts: str) -> Trace:
    for rank, text in enumerate(texts):
        (folder / f"t.{rank}.json").write_text(text)
    return load(folder)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ('"comm_size": 16', "has two attributes comm_size"),
        ('"commSize": 16', "has two attributes comm_size"),
        ('"Id": 2', "has two attributes id"),
    ],
)
def test_a_json_key_that_comes_twice(tmp_path: Path, more: str, said: str) -> None:
    node = json.dumps(FEEDER)[:-1] + ", " + more + "}"
    assert said in told(feeder(tmp_path, f'{{"workload_graph": [{node}]}}'))


def test_a_truth_value_for_a_size_in_json(tmp_path: Path) -> None:
    graph = {"workload_graph": [FEEDER | {"comm_size": True}]}
    assert "comm_size True is no number" in told(feeder(tmp_path, json.dumps(graph)))


def test_a_builder_refuses_an_attribute_that_it_sets_itself() -> None:
    with pytest.raises(InputError, match="comm_size"):
        Builder().node("COMM_COLL", "x", coll="all_reduce", nbytes=8, attrs={"comm_size": 16})


# Splits, as bytes (GENIE's own) and as elements (PyTorch's), in every form of a trace.

SENT, RECEIVED = [[0, 12], [8, 4]], [[0, 8], [12, 4]]


def wire_set(folder: Path, *attrs: dict[str, Any], nbytes: int = 12) -> Trace:
    ranks = []
    for more in attrs:
        ranks.append(Builder())
        ranks[-1].node("COMM_COLL", "a2a", coll="all_to_all", nbytes=nbytes, attrs=more)
    return load(write(folder, "t", ranks))


def json_set(folder: Path, *attrs: dict[str, Any], nbytes: int = 12) -> Trace:
    node = FEEDER | {"comm_type": 6, "comm_size": nbytes}
    return feeder(folder, *(json.dumps({"workload_graph": [node | more]}) for more in attrs))


def stg_set(folder: Path, *attrs: dict[str, Any], nbytes: int = 12) -> Trace:
    node = {"id": 1, "name": "x", "node_type": "coll_comm_node", "comm_type": "ALL_TO_ALL",
            "comm_size": nbytes}  # fmt: skip
    for rank, more in enumerate(attrs):
        (folder / f"t.{rank}.json").write_text(json.dumps({"nodes": [node | more]}))
    return load(folder, elements="int8")


FORMS = pytest.mark.parametrize("make", [wire_set, json_set, stg_set])


def of_bytes(rank: int) -> dict[str, Any]:
    return {"comm_in_splits": SENT[rank], "comm_out_splits": RECEIVED[rank]}


def lists(trace: Trace) -> list[tuple[list[int], list[int]]]:
    return [
        (rank.split_lists[rank.splits[0]][0].tolist(), rank.split_lists[rank.splits[0]][1].tolist())
        for rank in trace.ranks
    ]


@FORMS
def test_splits_in_bytes(tmp_path: Path, make: Any) -> None:
    trace = make(tmp_path, of_bytes(0), of_bytes(1))
    assert told(trace) == ""
    assert lists(trace) == [(SENT[0], RECEIVED[0]), (SENT[1], RECEIVED[1])]


@FORMS
def test_one_mismatched_pair_while_the_totals_agree(tmp_path: Path, make: Any) -> None:
    wrong = {"comm_in_splits": [4, 8], "comm_out_splits": RECEIVED[1]}
    text = told(make(tmp_path, of_bytes(0), wrong))
    assert "rank 1 sends 4 bytes to rank 0 (node " in text
    assert "which expects 8" in text


@FORMS
def test_splits_of_another_number_of_ranks(tmp_path: Path, make: Any) -> None:
    four = {"comm_in_splits": [3, 3, 3, 3], "comm_out_splits": [3, 3, 3, 3]}
    assert "splits for 4 and 4 ranks, but its group has 2" in told(make(tmp_path, four, four))


@FORMS
@pytest.mark.parametrize("bad", ["12", 12, [True, 11], [-1, 13], [0.5, 11.5], [1 << 62, 1 << 63]])
def test_splits_that_are_no_sizes(tmp_path: Path, make: Any, bad: Any) -> None:
    if make is wire_set and isinstance(bad, list) and True in bad:
        pytest.skip("a protobuf list holds one kind of value")
    if isinstance(bad, list) and max(bad) >= 1 << 63 and make is wire_set:
        pytest.skip("an int64 list holds no such number")
    text = told(make(tmp_path, {"comm_in_splits": bad, "comm_out_splits": [0, 12]}, of_bytes(1)))
    assert "comm_in_splits" in text
    assert "no list of sizes" in text


def torch(rank: int, as_text: bool, dtype: str | None = "float32") -> dict[str, Any]:
    sent, received = ([n // 4 for n in side[rank]] for side in (SENT, RECEIVED))
    say = json.dumps if as_text else list
    made = {"in_split_size": say(sent), "out_split_size": say(received)}
    return made if dtype is None else made | {"dtype": dtype}


@pytest.mark.parametrize("as_text", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "Float", None])
@pytest.mark.parametrize("make", [wire_set, json_set])
def test_pytorchs_splits_are_elements(
    tmp_path: Path, make: Any, as_text: bool, dtype: str | None
) -> None:
    trace = make(tmp_path, torch(0, as_text, dtype), torch(1, as_text, dtype))
    assert told(trace) == ""
    assert lists(trace) == [(SENT[0], RECEIVED[0]), (SENT[1], RECEIVED[1])]


def test_splits_say_what_is_sent_of_a_larger_buffer(tmp_path: Path) -> None:
    # 39 of 50 elements: what counts is the splits, not the buffer.
    first = {"in_split_size": "[20, 19]", "out_split_size": "[20, 11]", "dtype": "float32"}
    second = {"in_split_size": "[11, 30]", "out_split_size": "[19, 30]", "dtype": "float32"}
    trace = wire_set(tmp_path, first, second, nbytes=200)
    assert told(trace) == ""
    assert trace.ranks[0].nbytes.tolist() == [39 * 4]
    assert lists(trace)[0] == ([80, 76], [80, 44])


@pytest.mark.parametrize(
    ("attrs", "said"),
    [
        ({"in_split_size": "[20, 40]", "dtype": "float32"}, "no size that says"),
        ({"in_split_size": "[20, 40]", "out_split_size": "[1, 1]", "dtype": "float32"},
         "in_split_size of 60 elements, 240 bytes, but a comm_size of 200"),
        ({"in_split_size": "[20, 1, ...", "out_split_size": "[1, 1]"}, "no list (cut short?)"),
        ({"in_split_size": "[20, 19]", "out_split_size": "[1, 1]"}, "no dtype that says"),
    ],
)  # fmt: skip
def test_pytorchs_splits_that_cannot_be_used(
    tmp_path: Path, attrs: dict[str, Any], said: str
) -> None:
    text = told(wire_set(tmp_path, attrs, attrs, nbytes=200))
    assert said in text
    assert "a2a" in text


def test_empty_splits_mean_even_ones(tmp_path: Path) -> None:
    none = {"in_split_size": "[]", "out_split_size": "[]", "dtype": "float32"}
    trace = wire_set(tmp_path, none, none)
    assert told(trace) == ""
    assert all(rank.splits[0] < 0 for rank in trace.ranks)


def test_one_side_even(tmp_path: Path) -> None:
    first = {"in_split_size": "[]", "out_split_size": "[1, 2]", "in_msg_nelems": 2,
             "dtype": "float32"}  # fmt: skip
    second = {"in_split_size": "[2, 2]", "out_split_size": "[1, 2]", "dtype": "float32"}
    trace = wire_set(tmp_path, first, second, nbytes=16)
    assert told(trace) == ""
    assert lists(trace) == [([4, 4], [4, 8]), ([8, 8], [4, 8])]


def test_a_rank_whose_splits_are_even_by_chance(tmp_path: Path) -> None:
    # Rank 0 sends and receives 6 bytes of each: its framework recorded no splits.
    second = {"comm_in_splits": [6, 4], "comm_out_splits": [6, 4]}
    ranks = [Builder(), Builder()]
    ranks[0].node("COMM_COLL", "a2a", coll="all_to_all", nbytes=12)
    ranks[1].node("COMM_COLL", "a2a", coll="all_to_all", nbytes=10, attrs=second)
    trace = load(write(tmp_path, "t", ranks))
    assert told(trace) == ""
    assert lists(trace) == [([6, 6], [6, 6]), ([6, 4], [6, 4])]


def test_splits_reach_the_messages(tmp_path: Path) -> None:
    from genie import Cluster, plan

    trace = json_set(tmp_path, of_bytes(0), of_bytes(1))
    made = plan(trace, Cluster.local(2))
    by_pair = {
        (int(row["src_host"]), int(row["dst_host"])): int(row["nbytes"]) for row in made.traffic()
    }
    assert by_pair == {(0, 1): 12, (1, 0): 8}


# What unpacks to more than there is room for.


def test_a_gzip_bomb_is_refused_before_it_fills_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "t.0.et").write_bytes(gzip.compress(bytes(64 << 20), compresslevel=1))
    monkeypatch.setattr(LOAD, "most_unpacked", lambda: 8 << 20)
    tracemalloc.start()
    with pytest.raises(TraceError, match=r"t\.0\.et: unpacks to more than 8388608 bytes"):
        load(tmp_path)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 32 << 20


def test_gzip_files_of_a_set_share_the_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = w.framed(w.HEAD_V4, *(w.coll_v4(i) for i in range(1, 200)))
    for rank in range(3):
        (tmp_path / f"t.{rank}.et").write_bytes(gzip.compress(data))
    monkeypatch.setattr(LOAD, "most_unpacked", lambda: 3 * len(data))
    assert load(tmp_path).n == 3 * 199
    monkeypatch.setattr(LOAD, "most_unpacked", lambda: 3 * len(data) - 1)
    with pytest.raises(TraceError, match=r"t\.2\.et: unpacks to more"):
        load(tmp_path)


@pytest.mark.parametrize("seed", range(8))
def test_gunzip_like_the_standard_library(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    parts = [
        rng.integers(
            0, rng.choice([1, 3, 256]), int(rng.choice([0, 1, 5000, 300_000])), np.uint8
        ).tobytes()
        for _ in range(int(rng.integers(1, 6)))
    ]
    packed = b"".join(gzip.compress(part, 1) for part in parts)
    assert gunzip(io.BytesIO(packed), 1 << 30) == (b"".join(parts), "")
    cut = int(rng.integers(1, len(packed)))
    found, _ = gunzip(io.BytesIO(packed[:cut]), 1 << 30)
    assert b"".join(parts).startswith(found)
