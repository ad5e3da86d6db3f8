"""The scanner against the protobuf package, field by field."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corpus_data import corpus
from genie._core import scanner
from genie.trace import load
from genie.trace.schema import ARMS, GlobalMetadata, Node

from trace.reference import read  # isort: skip
from trace.wirebytes import framed  # isort: skip

NAMES = (
    "comm_size", "comm_type", "comm_src", "comm_dst", "comm_tag", "comm_root", "comm_dtype",
    "pg_name", "tensor_size", "num_ops", "duration_ns", "stream", "tid", "is_cpu_op", "seq_id",
    "op_schema", "fw_parent", "",
)  # fmt: skip

_RANGES = {
    "int32": (-(1 << 31), (1 << 31) - 1),
    "int64": (-(1 << 63), (1 << 63) - 1),
    "uint32": (0, (1 << 32) - 1),
    "uint64": (0, (1 << 64) - 1),
}
for _arm, _like in (
    ("sint32", "int32"), ("sint64", "int64"), ("fixed32", "uint32"), ("fixed64", "uint64"),
    ("sfixed32", "int32"), ("sfixed64", "int64"),
):  # fmt: skip
    _RANGES[_arm] = _RANGES[_like]

small = st.integers(0, 12)


@st.composite
def values(draw: st.DrawFn, arm: str):
    if arm in _RANGES:
        low, high = _RANGES[arm]
        return draw(small | st.integers(low, high))
    if arm in {"double", "float"}:
        return draw(st.integers(-5, 1 << 20).map(float) | st.floats(width=32))
    if arm == "bool":
        return draw(st.booleans())
    if arm == "string":
        return draw(st.sampled_from(["", "0", "1", "tp", "dp", "float32", "bfloat16", "ü"]))
    return draw(st.binary(max_size=4).filter(lambda raw: raw.isascii()))


@st.composite
def nodes(draw: st.DrawFn, ids: list[int]):
    node = Node(id=draw(st.sampled_from(ids)), name=draw(st.text(max_size=6)))
    node.type = draw(st.sampled_from([4, 5, 6, 7, 7, 7, 1, 0, 9]))
    for deps in (node.ctrl_deps, node.data_deps):
        deps.extend(draw(st.lists(st.sampled_from([*ids, 99_999]), max_size=20)))
    if draw(st.booleans()):
        node.duration_micros = draw(small | st.integers(0, (1 << 64) - 1))
        node.start_time_micros = draw(small | st.integers(0, (1 << 64) - 1))
        node.inputs.values = "[1]"
        node.outputs.SetInParent()
    for _ in range(draw(st.integers(0, 6))):
        attribute = node.attr.add(name=draw(st.sampled_from(NAMES)))
        arm = draw(st.sampled_from(ARMS))
        if draw(st.integers(0, 7)) == 0:
            twin = getattr(attribute, f"{arm}_list")
            twin.SetInParent()
            twin.values.extend(draw(st.lists(values(arm), max_size=3)))
        elif draw(st.integers(0, 9)):
            setattr(attribute, f"{arm}_val", draw(values(arm)))
    return node


@st.composite
def files(draw: st.DrawFn) -> bytes:
    spread = draw(st.sampled_from([1, 7, 1 << 40]))
    base = draw(st.sampled_from([0, 1, 1 << 33]))
    ids = [base + spread * k for k in range(draw(st.integers(1, 12)))]
    records = [draw(nodes(ids)).SerializeToString() for _ in range(draw(st.integers(0, 14)))]
    return framed(GlobalMetadata(version="0.0.4").SerializeToString(), *records)


def compare(data: bytes) -> None:
    columns, parents, names, groups = read(data)
    found = scanner.scan(data, scanner.V4)
    assert found.error == ()
    for name, expected in columns.items():
        got = found.columns[name].tolist()
        if name == "group":
            told = [g.decode("utf-8", "backslashreplace") if isinstance(g, bytes) else str(g)
                    for g in found.groups]  # fmt: skip
            got = [told[k] if k >= 0 else None for k in got]
            expected = [groups[k] if k >= 0 else None for k in expected]
        assert got == expected, name
    got_parents = [
        found.deps[found.dep_indptr[i] : found.dep_indptr[i + 1]].tolist()
        for i in range(len(parents))
    ]
    assert got_parents == parents
    start = found.offset + found.name_at
    for i, name in enumerate(names):
        at = int(start[i])
        assert data[at : at + int(found.name_length[i])].decode() == name


@settings(max_examples=150, deadline=None)
@given(files())
def test_columns_equal_protobufs(data: bytes) -> None:
    compare(data)


@settings(max_examples=30, deadline=None)
@given(files())
def test_without_names_all_else_is_equal(data: bytes) -> None:
    one, two = scanner.scan(data, scanner.V4), scanner.scan(data, scanner.V4, False)
    assert len(two.name_at) == 0
    for name, column in one.columns.items():
        assert np.array_equal(column, two.columns[name])
    assert np.array_equal(one.deps, two.deps)


@pytest.mark.parametrize(
    "name",
    ["et-resnet50-1rank-cycles", "et-t3d8", "et-stg-dense-dp2tp2pp2", "et-custom-ring8",
     "et-multitenant-denseA", "et-hgx-ar1m"],
)  # fmt: skip
def test_corpus_files_equal_protobufs(name: str) -> None:
    for path in sorted(corpus(name).glob("*.et")):
        compare(path.read_bytes())


@settings(max_examples=20, deadline=None)
@given(files())
def test_every_attribute_is_told(tmp_path_factory, data: bytes) -> None:
    # attrs() gives every attribute, with or without a column, as protobuf reads it.
    folder = tmp_path_factory.mktemp("attrs")
    path = Path(folder) / "x.0.et"
    path.write_bytes(data)
    rank = load(path).ranks[0]
    for i, record in enumerate(_records(data)[1:]):
        node = Node.FromString(record)
        told = rank.attrs(i)
        for attribute in node.attr:
            arm = attribute.WhichOneof("value")
            # The last attribute of a name is the one that is told.
            if attribute is not [a for a in node.attr if a.name == attribute.name][-1]:
                continue
            expected = None if arm is None else getattr(attribute, arm)
            if arm is not None and arm.endswith("_list"):
                expected = list(expected.values)
            got = told[attribute.name]
            assert repr(got) == repr(expected)


def _records(data: bytes) -> list[bytes]:
    from trace.reference import records

    return records(data)


@pytest.mark.parametrize("count", [0, 1, 11, 12, 13, 14, 200])
def test_many_parents_are_listed_once(count: int) -> None:
    ids = list(range(count))
    node = Node(id=count, name="last", type=4)
    node.data_deps.extend(ids + ids[::-1])
    node.ctrl_deps.extend(ids[:3])
    records = [Node(id=k, name="x", type=4).SerializeToString() for k in ids]
    data = framed(
        GlobalMetadata(version="0.0.4").SerializeToString(), *records, node.SerializeToString()
    )
    compare(data)
    found = scanner.scan(data, scanner.V4)
    assert found.repeated == count + min(count, 3)


def test_unpacked_parents_are_read_too() -> None:
    from trace.wirebytes import number, text

    record = number(1, 2) + text(2, "n") + number(3, 4) + number(4, 0) + number(5, 1) + number(5, 0)
    first = number(1, 0) + text(2, "a") + number(3, 4)
    second = number(1, 1) + text(2, "b") + number(3, 4)
    found = scanner.scan(framed(text(1, "0.0.4"), first, second, record), scanner.V4)
    assert found.deps.tolist() == [0, 1]
    assert found.repeated == 1


@pytest.mark.parametrize("how", ["later parent", "id that skips", "id again", "parent nowhere"])
@pytest.mark.parametrize("at", [1, 4096, 4097])
def test_what_breaks_the_single_pass_breaks_nothing(how: str, at: int) -> None:
    # Ids count up and parents come first up to node `at`; the columns have grown on the way, by
    # a guess that the long records at the end upset.
    count = 5000
    records = []
    for k in range(count):
        node = Node(id=k + 5, name=f"n{k}" if k < 4800 else "n" * 2000, type=4)
        node.data_deps.extend(sorted({max(5, k + 5 - back) for back in (1, 3, 70)} - {k + 5}))
        if k == at:
            if how == "later parent":
                node.data_deps.append(count)
                node.data_deps.extend(range(5, 5 + min(k, 30)))
            elif how == "parent nowhere":
                node.data_deps.append(1 << 50)
        if how == "id that skips" and k >= at:
            node.id += 1 << 40
        if how == "id again" and k == at:
            node.id = 5
        records.append(node.SerializeToString())
    compare(framed(GlobalMetadata(version="0.0.4").SerializeToString(), *records))


@pytest.mark.parametrize("cut", range(0, 40, 3))
def test_quick_and_careful_readers_agree(cut: int) -> None:
    # Only bytes with others behind them are read quickly: the same records, first and last.
    node = Node(id=300, name="x" * 130, type=7, duration_micros=70_000, start_time_micros=1 << 40)
    node.ctrl_deps.extend([300])
    node.data_deps.extend([300, 1, 1 << 30, (1 << 64) - 1])
    for name, value in (("comm_size", 1 << 40), ("comm_type", 2), ("tid", -1), ("stream", 7)):
        node.attr.add(name=name, int64_val=value)
    node.attr.add(name="pg_name", string_val="a" * 200)
    node.attr.add(name="is_cpu_op", bool_val=True)
    node.attr.add(name="op_schema", string_val="y" * 300)
    record = node.SerializeToString()
    bad = record[: len(record) - cut]
    alone, before = framed(bad), framed(bad, *[b"\x08\x02\x12\x02zz"] * 8)
    one, two = scanner.scan(alone, scanner.V4), scanner.scan(before, scanner.V4)
    assert one.notes[one.notes["f1"] == 0].tolist() == two.notes[two.notes["f1"] == 0].tolist()
    for name, column in one.columns.items():
        assert column[0] == two.columns[name][0], name
    assert one.deps.tolist() == two.deps[: two.dep_indptr[1]].tolist()
