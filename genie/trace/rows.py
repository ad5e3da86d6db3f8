"""Columns of a rank from nodes that Python has decoded: the plain twin of the scanner.

JSON traces are read this way. A `Row` is a node with its attributes by their Chakra names; the
rules for attributes (any numeric kind where a number belongs, missing is not 0, integers only)
are those of the scanner.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from genie._core.scanner import ATTRIBUTES
from genie.errors import TraceError
from genie.trace import splits as splits_
from genie.trace.kinds import Kind, dtype_index
from genie.trace.model import COLUMNS, Order, RankTrace
from genie.trace.records import ListRecords

_INT32 = (1 << 31) - 1
_INT64 = (1 << 63) - 1
_MOST_LISTED = 20
COUNTED = frozenset(ATTRIBUTES[1:]) | {
    "id", "nodetype", "node_type", "datadeps", "data_deps", "ctrldeps", "ctrl_deps",
    "duration_micros",
}  # fmt: skip
"""What a column, the parents or the splits come from: a node may have each once."""


@dataclass
class Row:
    """One node as a file has it."""

    id: int
    name: str
    kind: int
    place: str
    duration_us: object = None
    start_us: object = None
    parents: list[int] = field(default_factory=list)
    attrs: dict[str, Any] = field(default_factory=dict)
    twice: tuple[str, ...] = ()


class BadValue(ValueError):
    """An attribute that holds something else than it should; the text says what."""


def number(value: object) -> int | None:
    """Return `value` as an integer, None if it is absent.

    Raises:
        BadValue: It is no number, or no whole one.
    """
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    if isinstance(value, float):
        if value.is_integer():
            return int(value)
        raise BadValue("is no whole number")
    raise BadValue("is no number")


def _truth(value: object) -> int | None:
    if isinstance(value, bool):
        return int(value)
    found = number(value)
    return None if found is None else int(bool(found))


def _bounded(value: object, most: int) -> int | None:
    found = number(value)
    if found is not None and not 0 <= found <= most:
        raise BadValue("is negative or too large")
    return found


def _micros(value: object) -> int | None:
    found = _bounded(value, _INT64 // 1000)
    return None if found is None else found * 1000


def _fold(value: object) -> int | None:
    found = number(value)
    if found is None:
        return None
    return -1 if found < 0 else (found ^ found >> 31) & _INT32


class _Reader:
    """Collects rows into columns, and what is wrong with them into problems."""

    def __init__(self, rank: int, path: str, known: dict[str, int]) -> None:
        self.rank = rank
        self.path = path
        self.known = known
        self.problems: list[tuple[Order, TraceError]] = []
        self.noted: set[int] = set()
        self.values: dict[str, list[int]] = {name: [] for name in COLUMNS}
        self._listed: dict[Order, int] = {}

    def problem(self, order: Order, row: Row, text: str, **fields: Any) -> None:
        count = self._listed[order] = self._listed.get(order, 0) + 1
        if count > _MOST_LISTED:
            return
        where = f"rank {self.rank} ({self.path}): node {row.id} ({row.name})"
        error = TraceError(f"{where}{text}", path=self.path, rank=self.rank, node=row.id, **fields)
        self.problems.append((order, error))

    def close(self) -> None:
        for order, count in self._listed.items():
            if count > _MOST_LISTED:
                text = (
                    f"rank {self.rank} ({self.path}): {count - _MOST_LISTED} more problems of "
                    "the last kind"
                )
                self.problems.append((order, TraceError(text, path=self.path, rank=self.rank)))

    def add(self, i: int, row: Row) -> None:
        attrs = row.attrs

        def read(name: str, convert: Any, *more: Any) -> int | None:
            value = attrs.get(name)
            try:
                return convert(value, *more)  # type: ignore[no-any-return]
            except BadValue as error:
                self.noted.add(i)
                self.problem(Order.VALUES, row, f": {name} {value!r} {error}")
                return None

        def timed(name: str, value: object) -> int | None:
            try:
                return _micros(value)
            except BadValue as error:
                self.noted.add(i)
                self.problem(Order.VALUES, row, f": {name} {value!r} {error}")
                return None

        for name in row.twice:
            if name in COUNTED:
                self.noted.add(i)
                text = f" has two attributes {name}: which one counts?"
                self.problem(Order.VALUES, row, text)
        found: dict[str, int | None] = {"id": row.id}
        kind = row.kind
        if not 0 <= kind <= Kind.COMM_COLL:
            self.noted.add(i)
            self.problem(Order.VALUES, row, f" has node type {kind}, which is not known")
            kind = Kind.INVALID
        found["kind"] = kind
        found["duration_ns"] = timed("duration", row.duration_us)
        exact = read("duration_ns", _bounded, _INT64)
        if exact is not None:
            found["duration_ns"] = exact
        found["start_ns"] = timed("start", row.start_us)
        found["tensor_size"] = read("tensor_size", _bounded, _INT64)
        found["num_ops"] = read("num_ops", _bounded, _INT64)
        found["stream"] = read("stream", _fold)
        found["thread"] = read("tid", _fold)
        found["tag"] = read("comm_tag", _bounded, _INT32)
        found["root"] = read("comm_root", _bounded, _INT32)
        found["is_cpu"] = read("is_cpu_op", _truth)
        found["group"] = self._group(attrs)
        if "comm_dtype" in attrs:
            found["dtype"] = index = dtype_index(str(attrs["comm_dtype"]))
            if index < 0:
                self.noted.add(i)
                self.problem(
                    Order.VALUES, row, f": comm_dtype {attrs['comm_dtype']!r} is no element type"
                )
        if kind >= Kind.COMM_SEND:
            found["nbytes"] = read("comm_size", _bounded, _INT64)
        if kind == Kind.COMM_COLL:
            coll = read("comm_type", number)
            if coll is not None and not 0 <= coll <= 9:
                self.noted.add(i)
                self.problem(Order.VALUES, row, f" has comm_type {coll}, which is not known")
                coll = None
            found["coll"] = coll
        elif kind in {Kind.COMM_SEND, Kind.COMM_RECV}:
            peer = "comm_dst" if kind == Kind.COMM_SEND else "comm_src"
            found["peer"] = read(peer, _bounded, _INT32)
            if attrs.get("comm_size") is None:
                found["nbytes"] = found["tensor_size"]
        for name, (_, default) in COLUMNS.items():
            value = found.get(name)
            self.values[name].append(default if value is None else value)

    def _group(self, attrs: dict[str, Any]) -> int | None:
        name = attrs.get("pg_name", attrs.get("comm_group"))
        if name is None or name == "":
            return None
        return self.known.setdefault(str(name), len(self.known))


def _csr(
    reader: _Reader, rows: list[Row]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint32], list[int], int]:
    position: dict[int, int] = {}
    for i, row in enumerate(rows):
        if row.id in position:
            first = rows[position[row.id]]
            text = f": two nodes have this id, {first.place} and {row.place}"
            reader.problem(Order.IDS, row, text, offsets=(first.place, row.place))
        else:
            position[row.id] = i
    indptr, deps, dangling, repeated = [0], [], [], 0
    for i, row in enumerate(rows):
        unique = dict.fromkeys(row.parents)
        repeated += len(row.parents) - len(unique)
        for parent in unique:
            if parent in position:
                deps.append(position[parent])
            else:
                dangling.append(i)
                text = f" depends on node {parent}, which the file does not have"
                reader.problem(Order.DANGLING, row, text)
        indptr.append(len(deps))
    return np.array(indptr, np.int64), np.array(deps, np.uint32), dangling, repeated


def rank_trace(
    rank: int, path: str, rows: list[Row], known: dict[str, int], *, version: str, schema: str = ""
) -> RankTrace:
    """Return the rank that `rows` make; `known` numbers the set's group names."""
    reader = _Reader(rank, path, known)
    for i, row in enumerate(rows):
        reader.add(i, row)
    indptr, deps, dangling, repeated = _csr(reader, rows)
    columns: dict[str, npt.NDArray[Any]] = {
        name: np.array(reader.values[name], dtype) for name, (dtype, _) in COLUMNS.items()
    }
    records = ListRecords([row.name for row in rows], [row.attrs for row in rows])
    made = RankTrace(rank, path, columns, indptr, deps, records, version=version, schema=schema)
    for i, row in enumerate(rows):
        try:
            splits_.set_splits(made, i, row.attrs)
        except splits_.BadSplits as error:
            made.noted.add(i)
            reader.problem(Order.VALUES, row, f" has {error}")
    reader.close()
    made.problems = reader.problems
    made.noted |= reader.noted
    made.dangling = np.unique(np.array(dangling, np.int64))
    if repeated:
        made.ignored["repeated dependencies"] = repeated
    return made
