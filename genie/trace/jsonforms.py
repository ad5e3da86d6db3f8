"""The three JSON forms of Chakra traces, and the JSON that is none of them.

Feeder JSON (`workload_graph`), the output of chakra_jsonizer (protobuf's JSON, objects one after
the other) and STG's JSON (`nodes` with `node_type`) are read. PyTorch's host trace and Kineto's
profile look alike and are refused by name, with what is missing in them.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

from genie.errors import TraceError
from genie.trace.files import FileSet, Source
from genie.trace.kinds import Coll, Kind
from genie.trace.model import Order, RankTrace, Trace
from genie.trace.rows import Row, rank_trace

FEEDER, JSONIZER, STG = "feeder JSON", "jsonizer JSON", "STG JSON"
_Document = Any

_STG_KINDS = {
    "comp_node": Kind.COMP,
    "coll_comm_node": Kind.COMM_COLL,
    "comm_coll_node": Kind.COMM_COLL,
    "comm_send_node": Kind.COMM_SEND,
    "comm_recv_node": Kind.COMM_RECV,
    "mem_load_node": Kind.MEM_LOAD,
    "mem_store_node": Kind.MEM_STORE,
    "metadata_node": Kind.METADATA,
}
# Keys of feeder JSON, lower case without underscores, and the attribute that each one is.
_FEEDER_ATTRS = {
    "iscpuop": "is_cpu_op",
    "numops": "num_ops",
    "tensorsize": "tensor_size",
    "commtype": "comm_type",
    "commpriority": "comm_priority",
    "commsize": "comm_size",
    "commsrc": "comm_src",
    "commdst": "comm_dst",
    "commtag": "comm_tag",
    "commroot": "comm_root",
    "commdtype": "comm_dtype",
    "comminsplits": "comm_in_splits",
    "commoutsplits": "comm_out_splits",
    "insplitsize": "in_split_size",
    "outsplitsize": "out_split_size",
    "inmsgnelems": "in_msg_nelems",
    "outmsgnelems": "out_msg_nelems",
    "dtype": "dtype",
    "durationns": "duration_ns",
    "pgname": "pg_name",
    "commgroup": "comm_group",
    "stream": "stream",
    "tid": "tid",
}


class _Refused(ValueError):
    """Why a document is no trace; the text completes "FILE: ..."."""


class _Twice(dict[str, Any]):
    """A JSON object in which a key came twice; the last one is kept."""

    twice: tuple[str, ...] = ()


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    plain = dict(pairs)
    if len(plain) == len(pairs):
        return plain
    found = _Twice(pairs)
    names = [name for name, _ in pairs]
    found.twice = tuple(sorted({name for name in names if names.count(name) > 1}))
    return found


def looks_like_json(head: bytes) -> bool:
    """Whether the first bytes of a file can be JSON; a protobuf file has control bytes there."""
    start = head.lstrip(b" \t\r\n\xef\xbb\xbf")
    return start[:1] in {b"{", b"["} and all(byte >= 32 or byte in {9, 10, 13} for byte in head)


def load(chosen: FileSet, sources: dict[int, Source]) -> Trace:
    """Return the trace set in JSON files.

    Raises:
        TraceError: No file can be read, or the files differ in form.
    """
    ranks: list[RankTrace] = []
    known: dict[str, int] = {}
    refused: list[TraceError] = []
    warnings: list[str] = []
    for number in range(max(sources) + 1):
        source = sources.get(number)
        path = str(chosen.folder / f"{chosen.prefix}.{number}.json")
        if source is None:
            ranks.append(RankTrace.empty(number, path, missing=True))
            continue
        path = str(source.path)
        try:
            made = _read(number, source, known, warnings)
        except _Refused as reason:
            error = TraceError(f"{path}: {reason}", path=path, rank=number)
            refused.append(error)
            made = RankTrace.empty(number, path)
            made.problems.append((Order.FILE, error))
        ranks.append(made)
    if len(refused) == len(sources):
        more = f" ({len(refused) - 1} more files likewise)" if len(refused) > 1 else ""
        raise TraceError(refused[0].message + more, **refused[0].fields)
    forms = sorted({rank.version for rank in ranks if rank.version})
    if len(forms) > 1:
        raise TraceError(
            f"{chosen.folder}: files of one set differ in form: {', '.join(forms)}",
            path=str(chosen.folder),
        )
    trace = Trace(ranks, path=str(chosen.folder), version=forms[0], groups={}, group_names=known)
    trace.warnings += warnings
    return trace


def _read(number: int, source: Source, known: dict[str, int], warnings: list[str]) -> RankTrace:
    raw = source.read(0, source.size)
    if not raw:
        raise _Refused("empty file")
    documents = _documents(raw)
    first = documents[0][1]
    path = str(source.path)
    if len(documents) > 1 or _is_message(first):
        rows, metadata = _jsonizer(documents)
        schema = str(metadata.get("schema") or metadata.get("version") or "")
        made = rank_trace(number, path, rows, known, version=JSONIZER, schema=schema)
        made.metadata = metadata
        return made
    if isinstance(first, dict) and "workload_graph" in first:
        listed = _list(first, "workload_graph")
        rows = [_row(entry, k, _feeder) for k, entry in enumerate(listed)]
        ngpus = first.get("ngpus")
        if isinstance(ngpus, int) and ngpus > 1 and number == 0:
            warnings.append(f"{path}: the file says ngpus {ngpus}; ranks are the files found")
        return rank_trace(number, path, rows, known, version=FEEDER)
    if isinstance(first, dict) and "nodes" in first:
        if "schema" in first:
            raise _Refused(
                f"a PyTorch host trace (schema {first['schema']!r}), not a Chakra execution "
                "trace: it has neither durations nor the GPU's order; link it with its Kineto "
                "profile and convert it to .et (chakra_trace_link, chakra_converter)"
            )
        listed = _list(first, "nodes")
        rows = [_row(entry, k, _stg) for k, entry in enumerate(listed)]
        return rank_trace(number, path, rows, known, version=STG)
    if isinstance(first, dict) and "traceEvents" in first:
        raise _Refused("a Kineto profile, not a Chakra execution trace (compare reads it)")
    raise _Refused("JSON, but of no form that holds a Chakra trace")


def _documents(raw: bytes) -> list[tuple[int, _Document]]:
    # JSON documents one after the other, each with its offset in characters.
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _Refused(f"not UTF-8 at byte {error.start}") from None
    decoder = json.JSONDecoder(object_pairs_hook=_object)
    found: list[tuple[int, _Document]] = []
    at = 0
    while True:
        while at < len(text) and text[at] in " \t\r\n":
            at += 1
        if at == len(text):
            break
        try:
            document, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            kind = "cut short" if not text[at:].strip().endswith(("}", "]")) else "broken"
            raise _Refused(f"JSON {kind} after {len(found)} whole objects: {error}") from None
        found.append((at, document))
        at = end
    if not found:
        raise _Refused("nothing but white space")
    return found


def _list(document: dict[str, Any], key: str) -> list[Any]:
    listed = document[key]
    if not isinstance(listed, list):
        raise _Refused(f"{key} is no list")
    return listed


def _row(entry: object, k: int, convert: Callable[[dict[str, Any], str], Row]) -> Row:
    place = f"entry {k}"
    if not isinstance(entry, dict):
        raise _Refused(f"{place} is no object")
    try:
        return convert(entry, place)
    except (TypeError, ValueError) as error:
        raise _Refused(f"{place}: {error}") from None


def _plain(key: str) -> str:
    return key.replace("_", "").lower()


def _id(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"{value!r} is no node id")
    number = int(value)
    if not 0 <= number < 1 << 64:
        raise ValueError(f"{value!r} is no node id")
    return number


def _ids(value: object) -> list[int]:
    if value is None:
        return []
    if not isinstance(value, list):
        value = [value]
    return [_id(item) for item in value]


def _feeder(entry: dict[str, Any], place: str) -> Row:
    keys = {_plain(key): value for key, value in entry.items()}
    plain = [_plain(key) for key in entry]
    twice = {key for key in plain if plain.count(key) > 1} if len(keys) < len(entry) else set()
    twice |= {_plain(key) for key in getattr(entry, "twice", ())}
    if "id" not in keys:
        raise ValueError("a node without Id")
    kind = keys.get("nodetype", 0)
    if isinstance(kind, bool) or not isinstance(kind, int):
        raise ValueError(f"NodeType {kind!r} is no number")
    attrs = {name: keys[key] for key, name in _FEEDER_ATTRS.items() if keys.get(key) is not None}
    parents = _ids(keys.get("datadeps")) + _ids(keys.get("ctrldeps"))
    return Row(
        _id(keys["id"]),
        str(keys.get("name", "")),
        kind,
        place,
        duration_us=keys.get("runtime"),
        parents=parents,
        attrs=attrs,
        twice=tuple(_FEEDER_ATTRS.get(key, key) for key in sorted(twice)),
    )


def _stg(entry: dict[str, Any], place: str) -> Row:
    if "id" not in entry:
        raise ValueError("a node without id")
    named = entry.get("node_type")
    kind = _STG_KINDS.get(str(named).lower())
    if kind is None:
        raise ValueError(f"node_type {named!r} is not known")
    own = {"id", "name", "node_type", "data_deps", "ctrl_deps", "duration_micros"}
    attrs = {key: value for key, value in entry.items() if key not in own and value is not None}
    if isinstance(attrs.get("comm_type"), str):
        attrs["comm_type"] = _enum(attrs["comm_type"], Coll)
    if "tensor_size" not in attrs and "y_tensor_size" in attrs:
        attrs["tensor_size"] = attrs["y_tensor_size"]
    return Row(
        _id(entry["id"]),
        str(entry.get("name", "")),
        kind,
        place,
        duration_us=entry.get("duration_micros"),
        parents=_ids(entry.get("data_deps")) + _ids(entry.get("ctrl_deps")),
        attrs=attrs,
        twice=getattr(entry, "twice", ()),
    )


def _enum(name: object, enum: type[Coll] | type[Kind]) -> int:
    if isinstance(name, int):
        return int(name)
    text = str(name).upper().removesuffix("_NODE")
    try:
        return int(enum[text])
    except KeyError:
        raise ValueError(f"{name!r} is not known") from None


def _is_message(document: object) -> bool:
    # A protobuf message as JSON: metadata, or a node.
    if not isinstance(document, dict):
        return False
    keys = {_plain(key) for key in document}
    return bool(keys) and keys <= {
        "version", "attr", "id", "name", "type", "ctrldeps", "datadeps", "starttimemicros",
        "durationmicros", "inputs", "outputs",
    }  # fmt: skip


def _jsonizer(documents: list[tuple[int, _Document]]) -> tuple[list[Row], dict[str, Any]]:
    metadata: dict[str, Any] = {}
    rows: list[Row] = []
    for k, (at, document) in enumerate(documents):
        if not isinstance(document, dict):
            raise _Refused(f"object {k} is no protobuf message")
        keys = {_plain(key): value for key, value in document.items()}
        if k == 0 and keys.keys() <= {"version", "attr"}:
            metadata = _attrs(keys.get("attr"))
            if keys.get("version"):
                metadata["version"] = str(keys["version"])
            continue
        try:
            if again := getattr(document, "twice", ()):
                raise ValueError(f"two keys {again[0]!r}")
            rows.append(_message(keys, f"character {at}"))
        except (TypeError, ValueError) as error:
            raise _Refused(f"object {k}: {error}") from None
    return rows, metadata


def _message(keys: dict[str, Any], place: str) -> Row:
    twice: list[str] = []
    attrs = _attrs(keys.get("attr"), twice)
    for name in ("inputs", "outputs"):
        if name in keys:
            attrs.setdefault(name, keys[name])
    return Row(
        _id(keys.get("id", 0)),
        str(keys.get("name", "")),
        _enum(keys.get("type", 0), Kind),
        place,
        duration_us=_whole(keys.get("durationmicros")),
        start_us=_whole(keys.get("starttimemicros")),
        parents=_ids(keys.get("datadeps")) + _ids(keys.get("ctrldeps")),
        attrs=attrs,
        twice=tuple(twice),
    )


def _whole(value: object) -> object:
    # protobuf's JSON writes 64-bit integers as text.
    if isinstance(value, str):
        return int(value)
    return value


def _attrs(listed: object, twice: list[str] | None = None) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for entry in listed if isinstance(listed, list) else []:
        if not isinstance(entry, dict):
            raise ValueError("an attribute that is no object")
        name, value = "", None
        for key, raw in entry.items():
            arm = _plain(key)
            if arm == "name":
                name = str(raw)
            elif arm.endswith("val"):
                value = _value(arm.removesuffix("val"), raw)
            elif arm.endswith("list"):
                items = raw.get("values", []) if isinstance(raw, dict) else raw
                value = [_value(arm.removesuffix("list"), item) for item in items or []]
        if name in found and twice is not None:
            twice.append(name)
        found[name] = value
    return found


def _value(arm: str, raw: object) -> Any:
    if arm in {"string", "bool"}:
        return raw
    if arm == "bytes":
        return base64.b64decode(str(raw))
    if arm in {"double", "float"}:
        return float(str(raw))
    return int(str(raw)) if isinstance(raw, str) else raw
