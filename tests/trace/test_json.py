"""The three JSON forms, and the JSON that is refused."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from google.protobuf import json_format

from genie.errors import TraceError
from genie.trace import Builder, Coll, Kind, Trace, load, write
from genie.trace.schema import GlobalMetadata, Node

from trace.reference import records  # isort: skip


def step(builder: Builder, rank: int) -> None:
    first = builder.node("COMP", "fwd", duration_ns=7_000, stream=7, num_ops=99, tensor_size=640)
    reduced = builder.node(
        "COMM_COLL", "ar", deps=[first], coll="all_reduce", nbytes=4096, group="g"
    )
    if rank == 0:
        builder.node("COMM_SEND", "s", deps=[reduced], peer=1, nbytes=64, tag=3)
    else:
        builder.node("COMM_RECV", "r", deps=[reduced], peer=0, nbytes=64, tag=3)


def protobuf_set(folder: Path) -> Path:
    builders = []
    for rank in range(2):
        builders.append(Builder())
        step(builders[-1], rank)
    return write(folder / "et", "t", builders, groups={"g": [0, 1]})


def same(one: Trace, other: Trace, *, without: tuple[str, ...] = ()) -> None:
    assert other.groups == one.groups
    for a, b in zip(one.ranks, other.ranks, strict=True):
        for (name, column), (_, twin) in zip(a.columns(), b.columns(), strict=True):
            if name not in without:
                assert column.tolist() == twin.tolist(), name
        assert a.deps.tolist() == b.deps.tolist()
        assert a.dep_indptr.tolist() == b.dep_indptr.tolist()
        assert a.names() == b.names()


@pytest.mark.parametrize("snake", [False, True])
@pytest.mark.parametrize("separator", ["", "\n"])
def test_jsonizer(tmp_path: Path, snake: bool, separator: str) -> None:
    folder = protobuf_set(tmp_path)
    target = tmp_path / "json"
    target.mkdir()
    for rank in range(2):
        parts = records((folder / f"t.{rank}.et").read_bytes())
        messages = [GlobalMetadata.FromString(parts[0]), *map(Node.FromString, parts[1:])]
        text = separator.join(
            json_format.MessageToJson(message, preserving_proto_field_name=snake)
            for message in messages
        )
        (target / f"t.{rank}.json").write_text(text)
    (target / "t.groups.json").write_text((folder / "t.groups.json").read_text())
    trace = load(target)
    assert trace.version == "jsonizer JSON"
    trace.check()
    same(load(folder), trace)
    assert trace.ranks[0].attrs(1)["comm_size"] == 4096


def test_feeder_json(tmp_path: Path) -> None:
    one = load(protobuf_set(tmp_path))
    target = tmp_path / "json"
    target.mkdir()
    for rank in one.ranks:
        graph = []
        for i in range(rank.n):
            entry = {
                "Id": int(rank.id[i]),
                "Name": rank.name(i),
                "NodeType": int(rank.kind[i]),
                "data_deps": [int(rank.id[k]) for k in rank.parents(i)],
                "ctrlDeps": [],
                "is_cpu_op": False,
            }
            if rank.kind[i] == Kind.COMP:
                entry |= {"runtime": 7, "num_ops": 99, "tensor_size": 640}
            else:
                entry |= {"comm_size": int(rank.nbytes[i]), "comm_tag": int(rank.tag[i])}
                entry |= {"comm_type": 0, "comm_src": 0, "comm_dst": 1}
            if rank.kind[i] == Kind.COMM_COLL:
                entry["pg_name"] = "g"
            graph.append(entry)
        document = {"workload_graph": graph, "workload_name": "w", "ngpus": 2, "soc": "s"}
        packed = gzip.compress(json.dumps(document).encode())
        (target / f"t.{rank.rank}.json").write_bytes(packed)
    (target / "groups.json").write_text('{"g": [0, 1]}')
    trace = load(target)
    assert trace.version == "feeder JSON"
    trace.check()
    same(one, trace, without=("stream",))


def test_stg_json_counts_elements(tmp_path: Path) -> None:
    for rank in range(2):
        nodes = [
            {"id": 1, "name": "a", "node_type": "comp_node", "data_deps": [], "ctrl_deps": [],
             "num_ops": 5, "y_tensor_size": 6},
            {"id": 2, "name": "b", "node_type": "coll_comm_node", "data_deps": [1], "ctrl_deps": [],
             "comm_size": 16, "comm_type": "ALL_GATHER", "comm_group": "7"},
            {"id": 3, "name": "c", "node_type": ("comm_send_node", "comm_recv_node")[rank],
             "data_deps": [2], "comm_size": 8, "comm_tag": 1,
             ("comm_dst", "comm_src")[rank]: 1 - rank},
        ]  # fmt: skip
        (tmp_path / f"t.{rank}.json").write_text(json.dumps({"nodes": nodes}))
    (tmp_path / "g.json").write_text('{"7": [0, 1]}')
    trace = load(tmp_path)
    with pytest.raises(TraceError, match="in elements"):
        trace.check()
    trace = load(tmp_path, elements="float32")
    trace.check()
    assert trace.version == "STG JSON"
    rank = trace.ranks[0]
    assert rank.nbytes.tolist() == [-1, 64, 32]
    assert rank.tensor_size.tolist() == [24, -1, -1]
    assert Coll(rank.coll[1]) == Coll.ALL_GATHER
    assert trace.group_names == ["7"]


def feeder(*entries: dict) -> str:
    return json.dumps({"workload_graph": list(entries)})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"schema": "1.1.1-chakra.0.0.4", "nodes": []}', "PyTorch host trace (schema '1.1.1"),
        ('{"traceEvents": []}', "a Kineto profile"),
        ('{"a": 1}', "of no form that holds a Chakra trace"),
        ("[1, 2]", "of no form that holds a Chakra trace"),
        ('{"workload_graph": 3}', "workload_graph is no list"),
        ('{"workload_graph": [3]}', "entry 0 is no object"),
        ('{"workload_graph": [{"Name": "x"}]}', "entry 0: a node without Id"),
        ('{"workload_graph": [{"Id": -1}]}', "is no node id"),
        ('{"workload_graph": [{"Id": 1,', "JSON cut short"),
        ('{"nodes": [{"id": 1, "node_type": "odd"}]}', "node_type 'odd' is not known"),
        ('{"version": "0.0.4"}{"id": "1", "type": "COMP_NODE"}{"id', "JSON cut short"),
        ('{"id": "1", "type": "ODD_NODE"}', "'ODD_NODE' is not known"),
        ('{"id": "x1", "type": "COMP_NODE"}', "object 0"),
        ("{" * 100_000, "JSON"),
    ],
)
def test_refused(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "t.0.json").write_text(text)
    with pytest.raises(TraceError) as caught:
        load(tmp_path)
    assert why in str(caught.value)


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ({"NodeType": 7}, "collectives without comm_type and comm_size"),
        ({"NodeType": 7, "comm_type": 0, "comm_size": -1}, "comm_size -1 is negative"),
        ({"NodeType": 7, "comm_type": 0, "comm_size": 1.5}, "comm_size 1.5 is no whole number"),
        ({"NodeType": 7, "comm_type": 0, "comm_size": "9"}, "comm_size '9' is no number"),
        ({"NodeType": 7, "comm_type": 12, "comm_size": 9}, "comm_type 12"),
        ({"NodeType": 9}, "node type 9"),
        ({"NodeType": 4, "data_deps": [1]}, "self-dependency"),
        ({"NodeType": 4, "ctrlDeps": 5}, "depends on node 5"),
        ({"NodeType": 4, "runtime": -3}, "duration -3 is negative"),
    ],
)
def test_same_checks_as_protobuf(tmp_path: Path, entry: dict, why: str) -> None:
    (tmp_path / "t.0.json").write_text(feeder({"Id": 1, "Name": "n", **entry}))
    with pytest.raises(TraceError) as caught:
        load(tmp_path).check()
    assert why in str(caught.value)


def test_duplicates_name_both_entries(tmp_path: Path) -> None:
    (tmp_path / "t.0.json").write_text(feeder({"Id": 1, "NodeType": 4}, {"Id": 1, "NodeType": 4}))
    with pytest.raises(TraceError, match="two nodes have this id, entry 0 and entry 1"):
        load(tmp_path).check()


def test_forms_do_not_mix(tmp_path: Path) -> None:
    (tmp_path / "t.0.json").write_text(feeder({"Id": 1, "NodeType": 4}))
    (tmp_path / "t.1.json").write_text('{"nodes": [{"id": 1, "node_type": "comp_node"}]}')
    with pytest.raises(TraceError, match="differ in form"):
        load(tmp_path)
