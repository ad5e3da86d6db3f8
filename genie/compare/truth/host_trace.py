"""PyTorch execution traces of the host (schema 1.0.1 to 1.1.x), also linked ones ("ET+").

A host trace says what was communicated (kind, size, splits, group) but not when: its ops have no
times. A linked trace has copies of the GPU's events with times; its NCCL kernels are the
operations, and the `record_param_comms` node above each says the rest.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from genie.compare.truth.kernels import NCCL_KERNEL, kernel_choice, kernel_kind, torch_kind
from genie.compare.truth.model import KINDS, UNKNOWN, Labels, Truth, ops_of
from genie.errors import CompareError
from genie.replay.bandwidth import bus_factor, size_bytes
from genie.trace.kinds import DTYPE_BYTES, DTYPES, dtype_index

#: Records of `record_param_comms` that move no data.
NO_OPERATION = frozenset({"wait", "init", "synchronize", "start", "end", "startcoalescing"})
_RANK = re.compile(r"(?:rank|worker)[-_.]?(\d+)", re.IGNORECASE)
_LAST_NUMBER = re.compile(r"(\d+)(?:_plus|_linked|_et)?$", re.IGNORECASE)
_ELEMENT = re.compile(r"Tensor\(([^()]*)\)")
_POINTER = 1 << 20  # an int "group" above this is an address, which differs in every process
_COMPUTE, _MEMCPY = KINDS.index("comp"), KINDS.index("mem_store")
#: C++ names of element types, as 1.0.1 files print them.
_CPP = {
    "long int": "int64",
    "long": "int64",
    "unsigned char": "uint8",
    "signed char": "int8",
    "short int": "float16",
    "bool": "uint8",
}


def is_host_trace(document: Any) -> bool:
    """Return whether a JSON document is a PyTorch execution trace."""
    if not isinstance(document, dict) or "schema" not in document:
        return False
    nodes = document.get("nodes")
    return isinstance(nodes, list) and (
        not nodes or (isinstance(nodes[0], dict) and "name" in nodes[0] and "id" in nodes[0])
    )


@dataclass
class CommRecord:
    """What one `record_param_comms` node says.

    Attributes:
        node: Node id.
        name: PyTorch's name of the operation ("allreduce").
        kind: Kind, "unknown" for a name that is not known.
        group: Name of the process group, None unknown.
        group_size: Ranks, -1 unknown.
        elements_in: Input elements, -1 unknown.
        elements_out: Output elements, -1 unknown.
        element_bytes: Bytes of an element, -1 unknown.
        dtype: Index into `DTYPES`, -1 unknown.
        in_split: Elements to each rank; None for even ones.
        out_split: Elements from each rank; None for even ones.
        position: The "rank" field: peer or root within the group, -1 unknown.
    """

    node: int
    name: str
    kind: str
    group: str | None = None
    group_size: int = -1
    elements_in: int = -1
    elements_out: int = -1
    element_bytes: int = -1
    dtype: int = -1
    in_split: list[int] | None = None
    out_split: list[int] | None = None
    position: int = -1


@dataclass
class HostTrace:
    """One file: communications and, in a linked trace, the GPU's events.

    Attributes:
        path: File.
        schema: As the file says.
        records: Communications in the order of node ids.
        device: (event, record above it or None) of GPU events.
        groups: Process groups that the file defines.
        unused: Why a record was not used → how often.
    """

    path: Path
    schema: str
    records: list[CommRecord]
    device: list[tuple[dict[str, Any], CommRecord | None]] = field(default_factory=list)
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)
    unused: Counter[str] = field(default_factory=Counter)


def parse(path: Path, document: dict[str, Any]) -> HostTrace:
    """Return what a file says about communication.

    Raises:
        CompareError: A node is no JSON object.
    """
    nodes = document["nodes"]
    if not all(isinstance(node, dict) for node in nodes):
        raise CompareError(f"{path}: a node is not a JSON object", path=str(path))
    made = HostTrace(path, str(document.get("schema")), [])
    parents = {node.get("id"): node.get("ctrl_deps", node.get("parent")) for node in nodes}
    by_node: dict[Any, CommRecord] = {}
    pointers: dict[int, str] = {}
    for node in nodes:
        name = node.get("name", "")
        if "process_group:init" in name:
            made.groups |= _groups(node)
        if name != "record_param_comms":
            continue
        record = _record(node, pointers)
        if record is None:
            made.unused["record_param_comms that cannot be read"] += 1
        elif record.name.lower().replace("_", "") in NO_OPERATION:
            made.unused[f"{record.name} records (no operation)"] += 1
        else:
            by_node[node.get("id")] = record
    made.records = sorted(by_node.values(), key=lambda record: record.node)
    for record in made.records:
        if record.group_size < 0 and record.group in made.groups:
            record.group_size = len(made.groups[record.group])
    for node in nodes:
        if str(node.get("cat", "")).lower() in ("kernel", "gpu_memcpy", "gpu_memset"):
            made.device.append((node, _above(node.get("id"), parents, by_node)))
    return made


def _above(node: Any, parents: dict[Any, Any], records: dict[Any, CommRecord]) -> CommRecord | None:
    """Return the record that a node hangs under."""
    for _ in range(64):
        node = parents.get(node)
        if isinstance(node, list):
            node = node[0] if node else None
        if node is None:
            return None
        if node in records:
            return records[node]
    return None


def _parts(node: dict[str, Any], side: str) -> tuple[list[Any], list[str]]:
    """Return values and types of "inputs" or "outputs" in either form."""
    found = node.get(side)
    if isinstance(found, dict):
        values, types = found.get("values"), found.get("types")
    else:
        values, types = found, node.get(f"{side[:-1]}_types")
    values = values if isinstance(values, list) else []
    types = types if isinstance(types, list) else []
    return values, [str(text) for text in types] + [""] * (len(values) - len(types))


def _attrs(node: dict[str, Any]) -> dict[str, Any]:
    attrs = node.get("attrs")
    if not isinstance(attrs, list):
        return {}
    return {str(a.get("name")): a.get("value") for a in attrs if isinstance(a, dict)}


def _tensors(value: Any) -> Iterator[tuple[int, int]]:
    """Yield (elements, bytes of one) of a tensor or nested lists of tensors."""
    if not isinstance(value, list):
        return
    if (
        len(value) >= 5
        and all(isinstance(item, int) for item in value[:5])
        and (len(value) == 5 or isinstance(value[5], str))
    ):
        yield value[3], value[4]
        return
    for item in value:
        yield from _tensors(item)


def element_type(text: str) -> int:
    """Return the index into `DTYPES` of a C++ or PyTorch name of an element type, -1 unknown."""
    text = text.strip().removeprefix("c10::")
    return dtype_index(_CPP.get(text, text))


def _record(node: dict[str, Any], pointers: dict[int, str]) -> CommRecord | None:
    values, types = _parts(node, "inputs")
    outputs, _ = _parts(node, "outputs")
    attrs = _attrs(node)
    name_at = next((i for i, v in enumerate(values) if isinstance(v, str)), None)
    name = attrs.get("collective_name") or (values[name_at] if name_at is not None else None)
    if not isinstance(name, str) or not name:
        return None
    made = CommRecord(_number(node.get("id")), name, torch_kind(name) or "unknown")
    tensor = next((i for i, text in enumerate(types) if "Tensor" in text), None)
    if tensor is not None:
        sizes = list(_tensors(values[tensor]))
        made.elements_in = sum(n for n, _ in sizes)
        made.element_bytes = sizes[0][1] if sizes else -1
        element = _ELEMENT.search(types[tensor])
        made.dtype = element_type(element[1]) if element else -1
    outs = list(_tensors(outputs))
    if outs:
        made.elements_out = sum(n for n, _ in outs)
        if made.element_bytes < 0:
            made.element_bytes = outs[0][1]
    if name_at is not None:
        before = [v for i, v in enumerate(values[:name_at]) if i != tensor]
        after = values[name_at + 1 :]
        if len(before) >= 2:
            made.group = _group_name(before[1], pointers)
        if len(before) >= 3:
            made.position = _number(before[2])
        lists = [v for v in after if isinstance(v, list)]
        made.in_split = lists[0] or None if lists else None
        made.out_split = lists[1] or None if len(lists) > 1 else None
        numbers = [v for v in after if isinstance(v, int)]
        if len(numbers) >= 3:
            made.group_size = numbers[2]
    _from_attrs(made, attrs)
    if made.group_size <= 0:
        made.group_size = len(made.in_split or made.out_split or ()) or -1
    return made


def _from_attrs(made: CommRecord, attrs: dict[str, Any]) -> None:
    """Overwrite with what schema 1.1.0 and later says in attributes."""
    if attrs.get("pg_name"):
        made.group = str(attrs["pg_name"])
    for ours, key in (
        ("elements_in", "in_msg_nelems"),
        ("elements_out", "out_msg_nelems"),
        ("group_size", "pg_size"),
    ):
        if key in attrs and _number(attrs[key]) >= 0:
            setattr(made, ours, _number(attrs[key]))
    if isinstance(attrs.get("dtype"), str):
        index = element_type(attrs["dtype"])
        if index >= 0:
            made.dtype, made.element_bytes = index, DTYPE_BYTES[index]
    for ours, key in (("in_split", "in_split_size"), ("out_split", "out_split_size")):
        found = attrs.get(key)
        if isinstance(found, str):
            try:
                found = msgspec.json.decode(found.encode())
            except msgspec.DecodeError:
                found = None
        if isinstance(found, list) and found and all(isinstance(v, int) for v in found):
            setattr(made, ours, found)


def _group_name(value: Any, pointers: dict[int, str]) -> str | None:
    if isinstance(value, list):
        return str(value[0]) if value and value[0] != "" else None
    if isinstance(value, str):
        return value or None
    if not isinstance(value, int):
        return None
    if value > _POINTER:
        return pointers.setdefault(value, f"group {len(pointers)}")
    return str(value)


def _number(value: Any) -> int:
    if isinstance(value, list):
        value = value[0] if value else -1
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return -1
    return number if -(1 << 63) <= number < 1 << 63 else -1


def _groups(node: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the groups of a "## process_group:init ##" node; {} where its text is cut."""
    values, _ = _parts(node, "inputs")
    text = values[0] if values else None
    if not isinstance(text, str):
        return {}
    try:
        entries = msgspec.json.decode(text.encode())
    except msgspec.DecodeError:
        return {}
    found: dict[str, tuple[int, ...]] = {}
    for entry in entries if isinstance(entries, list) else []:
        if not isinstance(entry, dict) or "pg_name" not in entry:
            continue
        ranks = entry.get("ranks") or list(range(_number(entry.get("group_size"))))
        if isinstance(ranks, list) and ranks and all(isinstance(r, int) for r in ranks):
            found[str(entry["pg_name"])] = tuple(ranks)
    return found


def size_of(record: CommRecord) -> tuple[int, int]:
    """Return (NCCL's count, nccl-tests' bytes) of a communication, -1 where it does not say."""
    size, n = record.element_bytes, record.group_size
    elements_in, elements_out = record.elements_in, record.elements_out
    if record.kind == "barrier":
        return 0, 0
    if size <= 0 or (elements_in < 0 and elements_out < 0):
        return -1, -1
    if record.kind == "all_to_all" and record.in_split and len(set(record.in_split)) > 1:
        return -1, elements_in * size
    if record.kind == "all_gather":
        count = elements_in if elements_in >= 0 else elements_out // max(n, 1)
        if n <= 0:
            return count, elements_out * size if elements_out >= 0 else -1
    elif record.kind == "reduce_scatter":
        count = elements_out if elements_out >= 0 else elements_in // max(n, 1)
        if n <= 0:
            return count, elements_in * size if elements_in >= 0 else -1
    elif record.kind in ("all_to_all", "scatter"):
        return elements_in // n if n > 0 else -1, elements_in * size
    else:
        count = elements_in if elements_in >= 0 else elements_out
    return count, size_bytes(record.kind, count * size, max(n, 1))


def columns_of(record: CommRecord) -> dict[str, Any]:
    """Return the columns of `OPS` that a record fills."""
    count, nbytes = size_of(record)
    row: dict[str, Any] = {
        "kind": KINDS.index(record.kind) if record.kind in KINDS else UNKNOWN,
        "communicator": record.group,
        "group_size": record.group_size,
        "count": count,
        "nbytes": nbytes,
        "dtype": DTYPES[record.dtype] if record.dtype >= 0 else None,
    }
    if record.kind in ("broadcast", "reduce", "gather", "scatter"):
        row["root"] = record.position
    return row


def rank_of(path: Path, files: int) -> int:
    """Return a file's rank by its name; a lone file whose name does not say is rank 0."""
    match = _RANK.search(path.name)
    if match is None and files > 1:
        match = _LAST_NUMBER.search(path.name.split(".", 1)[0])
    if match:
        return int(match[1])
    if files == 1:
        return 0
    raise CompareError(f"{path}: the file name does not say which rank this is", path=str(path))


def read(documents: dict[Path, Any], source: Path) -> Truth:
    """Return the communications of one file or several (one a rank).

    Raises:
        CompareError: No file has a communication.
    """
    labels = Labels()
    rows: list[dict[str, Any]] = []
    unused: Counter[str] = Counter()
    groups: dict[str, tuple[int, ...]] = {}
    ranks: list[int] = []
    linked = False
    for table, (path, document) in enumerate(documents.items()):
        trace = parse(path, document)
        rank = rank_of(path, len(documents))
        if rank in ranks:
            raise CompareError(f"{path}: rank {rank} is in the set twice", path=str(path))
        ranks.append(rank)
        groups |= trace.groups
        found = list(_device_rows(trace, unused)) if trace.device else []
        if any(row["kind"] not in (_COMPUTE, _MEMCPY) for row in found):
            linked = True
        else:
            found = [
                columns_of(record) | {"name": record.name, "seq": i}
                for i, record in enumerate(trace.records)
            ]
        unused.update(trace.unused)
        rows += [row | {"rank": rank, "table": table} for row in found]
    if not rows:
        raise CompareError(
            f"{source}: this execution trace has no collective, send or recv: nothing to compare",
            path=str(source),
        )
    ops = ops_of(rows, labels)
    device_only = (ops["kind"] == _COMPUTE) | (ops["kind"] == _MEMCPY)
    notes = [] if linked else ["a host trace has no GPU times: sizes, kinds and order only"]
    if linked:
        notes.append(
            "starts in a linked trace may be those of launches (mlcommons/chakra issue 181): "
            "durations are the GPU's, waiting and overlap are not judged well"
        )
    without = int((ops["nbytes"][~device_only] < 0).sum())
    if without:
        notes.append(f"{without} operations carry no size; they are left out of the metrics")
    return Truth(
        ops=ops[~device_only],
        compute=ops[device_only] if linked else None,
        source=str(source),
        format="pytorch-et-linked" if linked else "pytorch-et",
        labels=labels.tables(),
        counts={"files": len(documents), "ranks": len(ranks)},
        unused=dict(unused),
        communicators=groups,
        world_size=max((len(g) for g in groups.values()), default=-1),
        notes=tuple(notes),
    )


def _device_rows(trace: HostTrace, unused: Counter[str]) -> Iterator[dict[str, Any]]:
    """Yield a row an event of the GPU, in time order."""
    for event, record in sorted(trace.device, key=lambda pair: pair[0].get("ts") or 0):
        duration = event.get("dur", event.get("exclusive_dur", event.get("inclusive_dur")))
        ts = event.get("ts")
        if not isinstance(ts, int | float) or not isinstance(duration, int | float) or duration < 0:
            unused["device event with a negative or no duration"] += 1
            continue
        name = str(event.get("name", ""))
        args = event.get("args") if isinstance(event.get("args"), dict) else {}
        assert isinstance(args, dict)
        start = round(ts * 1000)
        row: dict[str, Any] = {
            "name": name.split("(", 1)[0],
            "start_ns": start,
            "end_ns": start + round(duration * 1000),
            "time_ns": float(round(duration * 1000)),
            "stream": _number(args.get("stream", event.get("stream", event.get("tid")))),
            "kind": _COMPUTE if str(event["cat"]).lower() == "kernel" else _MEMCPY,
        }
        if not NCCL_KERNEL.match(name):
            yield row
            continue
        row["kind"] = KINDS.index(kernel_kind(name))
        row["algorithm"], row["protocol"] = kernel_choice(name)
        grid = args.get("grid")
        row["channels"] = _number(grid[0]) if isinstance(grid, list) and grid else -1
        if record is not None:
            row |= columns_of(record)
            if row["kind"] != UNKNOWN and row["nbytes"] > 0 and duration > 0:
                row["algbw"] = row["nbytes"] / row["time_ns"]
                if row["group_size"] > 0:
                    row["busbw"] = row["algbw"] * bus_factor(record.kind, row["group_size"])
        elif event.get("pg_name") is not None:
            row["communicator"] = str(event["pg_name"])
        yield row
