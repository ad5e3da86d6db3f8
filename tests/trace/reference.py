"""A plain reader of v0.0.4 files through the protobuf package: the oracle of the scanner."""

from __future__ import annotations

import math
from typing import Any

from genie.trace.kinds import DTYPES
from genie.trace.model import COLUMNS
from genie.trace.schema import GlobalMetadata, Node

INT32, INT64 = (1 << 31) - 1, (1 << 63) - 1


def records(data: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(data):
        length = shift = 0
        while True:
            byte = data[at]
            at += 1
            length |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        found.append(data[at : at + length])
        at += length
    return found


def whole(value: Any) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    if isinstance(value, float) and math.isfinite(value) and value.is_integer():
        return int(value)
    return None


def truth(value: Any) -> int | None:
    return int(value) if isinstance(value, bool) else whole(value)


def between(value: Any, most: int) -> int | None:
    number = whole(value)
    return number if number is not None and 0 <= number <= most else None


def fold(value: Any) -> int | None:
    number = whole(value)
    if number is None or not -(1 << 63) <= number <= INT64:
        return None
    return -1 if number < 0 else (number ^ number >> 31) & INT32


def attributes(node: Any) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for attribute in node.attr:
        arm = attribute.WhichOneof("value")
        value = None if arm is None else getattr(attribute, arm)
        if arm is not None and arm.endswith("_list"):
            value = ("list", list(value.values))
        found.setdefault(attribute.name, []).append(value)
    return found


def last(values: list[Any], convert: Any) -> int | None:
    # The last usable one counts, as in the scanner.
    usable = [number for value in values if (number := convert(value)) is not None]
    return usable[-1] if usable else None


def read(data: bytes) -> tuple[dict[str, list[int]], list[list[int]], list[str], list[str]]:
    """Return columns, parents by position (file order, once each), names, group names."""
    parts = records(data)
    GlobalMetadata.FromString(parts[0])
    nodes = [Node.FromString(part) for part in parts[1:]]
    position: dict[int, int] = {}
    for i, node in enumerate(nodes):
        position.setdefault(node.id, i)
    columns: dict[str, list[int]] = {name: [] for name in COLUMNS if name != "splits"}
    parents: list[list[int]] = []
    groups: list[str] = []
    for node in nodes:
        attrs = attributes(node)

        def take(name: str, convert: Any, default: int = -1, attrs: Any = attrs) -> int:
            number = last(attrs.get(name, []), convert)
            return default if number is None else number

        kind = node.type if 0 <= node.type <= 7 else 0
        micros = node.duration_micros
        duration = micros * 1000 if node.duration_micros and micros <= INT64 // 1000 else -1
        duration = take("duration_ns", lambda v: between(v, INT64), duration)
        start = node.start_time_micros
        row = {
            "id": node.id,
            "kind": kind,
            "duration_ns": duration,
            "start_ns": start * 1000 if start and start <= INT64 // 1000 else -1,
            "num_ops": take("num_ops", lambda v: between(v, INT64)),
            "tensor_size": take("tensor_size", lambda v: between(v, INT64)),
            "stream": take("stream", fold),
            "thread": take("tid", fold),
            "tag": take("comm_tag", lambda v: between(v, INT32), 0),
            "root": take("comm_root", lambda v: between(v, INT32), 0),
            "is_cpu": int(bool(take("is_cpu_op", truth, 0))),
            "coll": -1,
            "nbytes": -1,
            "peer": -1,
            "dtype": -1,
            "group": -1,
        }
        for value in attrs.get("comm_dtype", []):
            row["dtype"] = DTYPES.index(value) if value in DTYPES else -1
        for value in attrs.get("pg_name", []):
            if isinstance(value, str | bytes):
                name = (
                    value if isinstance(value, str) else value.decode("utf-8", "backslashreplace")
                )
            elif (number := whole(value)) is not None and -(1 << 63) <= number <= INT64:
                name = str(number)
            else:
                continue
            if name and name not in groups:
                groups.append(name)
            row["group"] = groups.index(name) if name else -1
        if kind >= 5:
            size = attrs.get("comm_size", [None])[-1]
            number = between(size, INT64)
            row["nbytes"] = -1 if number is None else number
            if kind == 7:
                coll = between(attrs.get("comm_type", [None])[-1], 9)
                row["coll"] = -1 if coll is None else coll
            else:
                peer = between(
                    attrs.get("comm_dst" if kind == 5 else "comm_src", [None])[-1], INT32
                )
                row["peer"] = -1 if peer is None else peer
                if size is None and row["tensor_size"] >= 0:
                    row["nbytes"] = row["tensor_size"]
        for name, value in row.items():
            columns[name].append(value)
        listed = [position[k] for k in [*node.ctrl_deps, *node.data_deps] if k in position]
        parents.append(list(dict.fromkeys(listed)))
    return columns, parents, [node.name for node in nodes], groups
