"""Writing: what a Builder was told is what the reader, and protobuf, find."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

from genie.errors import InputError
from genie.trace import DTYPES, Builder, Coll, Kind, load, schema, write

from trace.reference import records  # isort: skip

_PROTO = Path(schema.__file__).with_name("chakra.proto")


def maybe(strategy: st.SearchStrategy) -> st.SearchStrategy:
    return st.none() | strategy


@st.composite
def arguments(draw: st.DrawFn) -> dict:
    kind = draw(st.sampled_from(list(Kind)[1:]))
    found = {
        "kind": kind,
        "name": draw(st.text(max_size=8)),
        "duration_ns": draw(maybe(st.integers(0, 1 << 40))),
        "nbytes": draw(maybe(st.integers(0, 1 << 50))),
        "group": draw(maybe(st.sampled_from(["tp", "0"]))),
        "tag": draw(maybe(st.integers(0, 1000))),
        "stream": draw(maybe(st.integers(0, 100))),
        "thread": draw(maybe(st.integers(0, 100))),
        "dtype": draw(maybe(st.sampled_from(DTYPES))),
        "num_ops": draw(maybe(st.integers(0, 1 << 60))),
        "tensor_size": draw(maybe(st.integers(0, 1 << 60))),
        "is_cpu": draw(maybe(st.booleans())),
        "root": draw(maybe(st.integers(0, 9))),
        "attrs": draw(st.dictionaries(st.sampled_from(["x", "y"]),
                                      st.integers(-9, 9) | st.text(max_size=3) | st.booleans()
                                      | st.lists(st.integers(0, 5), max_size=3))),
    }  # fmt: skip
    if kind == Kind.COMM_COLL:
        found["coll"] = draw(st.sampled_from(list(Coll)))
    if kind in {Kind.COMM_SEND, Kind.COMM_RECV}:
        found["peer"] = draw(maybe(st.integers(0, 100)))
    return found


@settings(max_examples=120, deadline=None)
@given(st.lists(arguments(), max_size=6))
def test_round_trip(tmp_path_factory, listed: list[dict]) -> None:
    builder = Builder({"schema": "x", "pid": 4})
    ids: list[int] = []
    for entry in listed:
        ids.append(builder.node(**entry, deps=ids[-2:], ctrl_deps=ids[:1]))
    folder = write(tmp_path_factory.mktemp("t"), "t", [builder], groups={"tp": [0], "0": [0]})
    trace = load(folder)
    rank = trace.ranks[0]
    assert rank.metadata == {"version": "0.0.4", "schema": "x", "pid": 4}
    assert trace.groups == {"tp": (0,), "0": (0,)}
    assert rank.names() == [entry["name"] for entry in listed]

    def column(name: str, default: int) -> list[int]:
        return [default if (value := entry.get(name)) is None else value for entry in listed]

    assert rank.kind.tolist() == column("kind", 0)
    assert rank.coll.tolist() == column("coll", -1)
    # proto3 has no 0 on the wire: a duration of 0 is a missing one.
    assert [max(d, 0) for d in rank.duration_ns.tolist()] == column("duration_ns", 0)
    for name, default in (("tag", 0), ("root", 0), ("stream", -1), ("thread", -1), ("num_ops", -1),
                          ("tensor_size", -1), ("peer", -1)):  # fmt: skip
        assert getattr(rank, name).tolist() == column(name, default), name
    for i, entry in enumerate(listed):
        dtype = entry["dtype"]
        assert rank.dtype[i] == (-1 if dtype is None else DTYPES.index(dtype))
        group = None if rank.group[i] < 0 else trace.group_names[rank.group[i]]
        assert group == entry["group"]
        expected = sorted({*ids[:i][-2:], *ids[:i][:1]})
        assert sorted(rank.id[rank.parents(i)].tolist()) == expected
        told = rank.attrs(i)
        for name, value in entry["attrs"].items():
            assert told[name] == value
        if entry["kind"] == Kind.COMM_COLL:
            assert rank.nbytes[i] == (-1 if entry["nbytes"] is None else entry["nbytes"])


def test_protobuf_reads_what_we_write(tmp_path: Path) -> None:
    builder = Builder()
    one = builder.node("COMP", "a", duration_ns=5_000)
    builder.node("COMM_COLL", "b", id=9, deps=[one], coll="all_gather", nbytes=64)
    write(tmp_path, "t", [builder])
    parts = records((tmp_path / "t.0.et").read_bytes())
    assert schema.GlobalMetadata.FromString(parts[0]).version == "0.0.4"
    node = schema.Node.FromString(parts[2])
    assert (node.id, node.name, list(node.data_deps)) == (9, "b", [0])
    assert {a.name: a.int64_val for a in node.attr} == {"comm_type": 2, "comm_size": 64}


def test_the_proto_file_is_the_schema(tmp_path: Path) -> None:
    protoc = shutil.which("protoc")
    out = tmp_path / "set.bin"
    command = [f"--proto_path={_PROTO.parent}", f"--descriptor_set_out={out}", _PROTO.name]
    if protoc is not None:
        subprocess.run([protoc, *command], check=True)
    else:
        tools = pytest.importorskip("grpc_tools.protoc", reason="neither protoc nor grpcio-tools")
        assert tools.main(["protoc", *command]) == 0
    found = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file[0]
    ours = schema.file_descriptor()
    for file in (found, ours):
        for message in file.message_type:
            for field in message.field:
                field.ClearField("json_name")
        file.message_type.sort(key=lambda message: message.name)
        for message in file.message_type:
            message.field.sort(key=lambda field: field.number)
    assert found == ours


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"kind": "COMM_COLL", "name": "x"}, "coll goes with COMM_COLL nodes"),
        ({"kind": "COMP", "name": "x", "coll": "all_reduce"}, "coll goes with COMM_COLL nodes"),
        ({"kind": "COMP", "name": "x", "peer": 1}, "peer goes with sends"),
        ({"kind": "THING", "name": "x"}, "not a Kind: 'THING'"),
        ({"kind": "COMM_COLL", "name": "x", "coll": "reduce_all"}, "not a Coll"),
        ({"kind": "COMP", "name": "x", "dtype": "floaty"}, "dtype 'floaty'"),
        ({"kind": "COMP", "name": "x", "duration_ns": -1}, "duration_ns -1 is negative"),
        ({"kind": "COMP", "name": "x", "id": 0}, "node id 0 is used twice"),
        ({"kind": "COMP", "name": "x", "id": 1 << 64}, "not a 64-bit"),
    ],
)
def test_a_node_that_makes_no_sense(arguments: dict, why: str) -> None:
    builder = Builder()
    builder.node("COMP", "first")
    with pytest.raises(InputError, match=why):
        builder.node(**arguments)


def test_a_set_needs_a_rank(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="at least one rank"):
        write(tmp_path, "t", [])
