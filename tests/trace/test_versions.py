"""Wire versions: each is found by what only it can have, and means the same once read."""

from __future__ import annotations

from pathlib import Path

import pytest

from genie.errors import TraceError
from genie.trace import Coll, Kind, Trace, load

from trace import wirebytes as w  # isort: skip


def put(folder: Path, *ranks: bytes, suffix: str = "et") -> Path:
    for rank, data in enumerate(ranks):
        (folder / f"t.{rank}.{suffix}").write_bytes(data)
    return folder


def v1_rank(rank: int) -> bytes:
    # COMP, four collectives, a send or a receive.
    records = [w.v1(10, "comp", 3, time=7, num_ops=99, tensor_size=5)]
    for k, comm_type in enumerate((1, 2, 3, 4)):
        records.append(w.v1(11 + k, f"c{k}", 6, (10 + k,), comm_type=comm_type, size=64))
    records.append(w.v1(20, "p2p", 4 + rank, (14,), src=0, dst=1, size=32, tag=3))
    return w.framed(*records)


def old_rank(number, kinds: dict[str, int], comp: int) -> bytes:
    records = [w.old(10, "comp", comp, number("runtime", 7), number("num_ops", 99))]
    for k, comm_type in enumerate((0, 1, 2, 3)):
        records.append(
            w.old(11 + k, f"c{k}", comp + 3, number("comm_type", comm_type),
                  number("comm_size", 64), parents=(10 + k,))
        )  # fmt: skip
    return w.framed(*records)


COLLS = [Coll.ALL_REDUCE, Coll.ALL_TO_ALL, Coll.ALL_GATHER, Coll.REDUCE_SCATTER]


def expect_collectives(trace: Trace) -> None:
    for rank in trace.ranks:
        nodes = [i for i in range(rank.n) if rank.kind[i] == Kind.COMM_COLL]
        assert [Coll(rank.coll[i]) for i in nodes] == COLLS
        assert [int(rank.nbytes[i]) for i in nodes] == [64] * 4
        assert int(rank.duration_ns[0]) == 7000
        assert int(rank.num_ops[0]) == 99
        assert [rank.parents(i).tolist() for i in nodes] == [[0], [1], [2], [3]]
    trace.check()


def test_v001(tmp_path: Path) -> None:
    trace = load(put(tmp_path, v1_rank(0), v1_rank(1), suffix="eg"))
    assert trace.version == "v0.0.1"
    expect_collectives(trace)
    assert [int(rank.peer[5]) for rank in trace.ranks] == [1, 0]
    assert [int(rank.nbytes[5]) for rank in trace.ranks] == [32, 32]
    assert int(trace.ranks[0].tag[5]) == 3
    assert trace.ranks[0].attrs(5)["comm_size"] == 32


def test_v001_with_a_communicator(tmp_path: Path) -> None:
    record = w.v1(1, "c", 6, comm_type=1, size=8, communicator=5)
    (tmp_path / "groups.json").write_text('{"5": [1, 0]}')
    trace = load(put(tmp_path, w.framed(record), w.framed(record)))
    assert trace.members(int(trace.ranks[0].group[0])) == (1, 0)
    trace.check()


@pytest.mark.parametrize(
    ("version", "number", "comp"),
    [("v0.0.2", w.int_v2, 3), ("v0.0.3", w.int_v3a, 4), ("v0.0.3", w.int_v3, 4)],
)
def test_v002_and_v003(tmp_path: Path, version: str, number, comp: int) -> None:
    data = old_rank(number, {}, comp)
    trace = load(put(tmp_path, data, data))
    assert trace.version == version
    expect_collectives(trace)
    assert trace.ranks[0].attrs(1) == {"comm_type": 0, "comm_size": 64}


@pytest.mark.parametrize(
    ("word", "text", "comp"),
    [("v0.0.2", w.text_v2, 3), ("v0.0.3", w.text_v3a, 4), ("v0.0.3", w.text_v3, 4)],
)
def test_text_attributes_of_old_versions(tmp_path: Path, word: str, text, comp: int) -> None:
    number = {w.text_v2: w.int_v2, w.text_v3a: w.int_v3a, w.text_v3: w.int_v3}[text]
    record = w.old(
        1, "c", comp + 3, number("comm_type", 0), number("comm_size", 8), text("pg_name", "tp")
    )
    (tmp_path / "groups.json").write_text('{"tp": [0]}')
    trace = load(put(tmp_path, w.framed(record)))
    assert trace.version == word
    assert trace.group_names == ["tp"]
    assert trace.ranks[0].attrs(0)["pg_name"] == "tp"
    trace.check()


def test_v003_broadcast_and_metadata(tmp_path: Path) -> None:
    head = w.text(1, w.text(1, "schema") + w.number(2, 4) + w.text(8, "s"))
    record = w.old(1, "b", 7, w.int_v3("comm_type", 4), w.int_v3("comm_size", 8))
    trace = load(put(tmp_path, w.framed(head, record)))
    assert trace.n == 1
    assert trace.ranks[0].metadata == {"schema": "s"}
    assert Coll(trace.ranks[0].coll[0]) == Coll.BROADCAST


def test_the_set_decides_what_one_file_cannot(tmp_path: Path) -> None:
    # Alone, the first file is v0.0.1 or v0.0.4; the second can only be v0.0.1.
    plain = w.framed(w.v1(1, "n", 3, time=5))
    with pytest.raises(TraceError, match=r"ambiguous wire version.*v0.0.1 or v0.0.4"):
        load(put(tmp_path, plain))
    clear = w.framed(w.v1(1, "n", 3, time=5, num_ops=1))
    trace = load(put(tmp_path, plain, clear))
    assert trace.version == "v0.0.1"
    assert [int(rank.kind[0]) for rank in trace.ranks] == [Kind.COMP, Kind.COMP]


def test_a_late_record_decides(tmp_path: Path) -> None:
    records = [w.v1(k, "n", 3, time=5) for k in range(3000)]
    records.append(w.v1(3000, "n", 3, time=5, num_ops=1))
    assert load(put(tmp_path, w.framed(*records))).version == "v0.0.1"


def test_v002_or_v003_without_attributes_is_ambiguous(tmp_path: Path) -> None:
    data = w.framed(w.old(1, "n", 4, w.text(6, "[[2]]")))
    with pytest.raises(TraceError, match=r"v0.0.2 or v0.0.3"):
        load(put(tmp_path, data))
    # Type 7 exists since v0.0.3 only.
    more = w.framed(w.old(1, "n", 4, w.text(6, "[[2]]")), w.old(2, "m", 7, w.text(6, "[]")))
    assert load(put(tmp_path, more)).version == "v0.0.3"


def test_no_metadata_and_an_absent_id_is_v004(tmp_path: Path) -> None:
    # proto2 requires the id; only proto3 leaves out a 0.
    data = w.framed(w.v4(0, "n", 4, w.number(7, 5)), w.v4(1, "m", 4, w.number(7, 5), ctrl=(0,)))
    assert load(put(tmp_path, data)).version == "v0.0.4"


def test_files_of_different_versions_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="differ in their wire version"):
        load(put(tmp_path, v1_rank(0), w.framed(w.HEAD_V4, w.coll_v4(1))))


def test_unknown_version_is_refused_by_name(tmp_path: Path) -> None:
    head = w.text(1, "0.0.9")
    trace = load(put(tmp_path, w.framed(head, w.coll_v4(1))))
    with pytest.raises(TraceError, match=r"version '0\.0\.9' is not known"):
        trace.check()


@pytest.mark.parametrize(
    "schema",
    ["1.0.1", "1.0.2-chakra.0.0.4", "1.1.1-chakra.0.0.4", "1.0.2-chakra.1.0.0"],
)
def test_known_schemas(tmp_path: Path, schema: str) -> None:
    head = w.text(2, w.text(1, "schema") + w.text(29, schema))
    trace = load(put(tmp_path, w.framed(head, w.coll_v4(1))))
    trace.check()
    assert trace.ranks[0].schema == schema


def test_storage_nodes_are_refused_by_type(tmp_path: Path) -> None:
    record = w.number(1, 1) + w.text(2, "s") + w.number(3, 8) + w.text(11, b"\x08\x01")
    trace = load(put(tmp_path, w.framed(w.HEAD_V4, record)))
    with pytest.raises(TraceError, match=r"node 1 \(s\) has node type 8, which v0.0.4 does not"):
        trace.check()
    assert trace.ranks[0].ignored == {"unknown field 11 of a node": 1}


def test_unknown_fields_are_counted(tmp_path: Path) -> None:
    record = w.coll_v4(1) + w.number(50, 3)
    trace = load(put(tmp_path, w.framed(w.HEAD_V4, record)))
    trace.check()
    assert trace.inspect()["ignored"][0]["count"] == 1


def test_comm_type_99_is_no_collective(tmp_path: Path) -> None:
    trace = load(put(tmp_path, w.framed(w.HEAD_V4, w.coll_v4(1, coll=99))))
    with pytest.raises(TraceError, match="comm_type 99"):
        trace.check()
