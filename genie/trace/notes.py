"""What the scanner noted about single nodes, as problems that name rank, node and bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from genie._core import scanner
from genie.errors import TraceError
from genie.trace import splits as splits_
from genie.trace.model import Order, RankTrace

_MOST_LISTED = 20
_STATUS = {
    scanner.STATUS_FRACTION: "is no whole number",
    scanner.STATUS_RANGE: "is negative or too large",
    scanner.STATUS_TEXT: "is no number",
}


def where_is(rank: RankTrace) -> str:
    """Return how a message names a rank and its file."""
    return f"rank {rank.rank} ({rank.path})"


def read_notes(made: RankTrace, read: scanner.Scan) -> None:
    """Add to a rank the problems and splits that the scanner noted."""
    if read.error:
        made.problems.append((Order.FILE, _frame_error(made, read)))
    notes = read.notes
    nodes, codes, values = notes["f1"], notes["f2"], notes["f0"]
    skip = {scanner.NOTE_IN_SPLITS, scanner.NOTE_OUT_SPLITS, scanner.NOTE_COUNTS}
    _read_splits(made, nodes[np.isin(codes, list(skip))])
    for code in np.unique(codes):
        if code in skip:
            continue
        here = np.flatnonzero(codes == code)
        if code == scanner.NOTE_DANGLING:
            made.dangling = np.unique(nodes[here]).astype(np.int64)
        elif code not in {scanner.NOTE_DUPLICATE, scanner.NOTE_TWO_IDS}:
            made.noted.update(nodes[here].tolist())
        for k in here[:_MOST_LISTED]:
            problem = _problem(made, read, int(code), int(nodes[k]), int(values[k]))
            made.problems.append((_RANKING[int(code)], problem))
        if len(here) > _MOST_LISTED:
            more = _WHAT[int(code)].format(f"{len(here) - _MOST_LISTED} more")
            problem = TraceError(f"{where_is(made)}: {more}", path=made.path, rank=made.rank)
            made.problems.append((_RANKING[int(code)], problem))


_RANKING = {
    scanner.NOTE_CORRUPT: Order.FILE,
    scanner.NOTE_DUPLICATE: Order.IDS,
    scanner.NOTE_TWO_IDS: Order.IDS,
    scanner.NOTE_DANGLING: Order.DANGLING,
    scanner.NOTE_KIND: Order.VALUES,
    scanner.NOTE_COLL: Order.VALUES,
    scanner.NOTE_VALUE: Order.VALUES,
    scanner.NOTE_TWICE: Order.VALUES,
}
_WHAT = {
    scanner.NOTE_DANGLING: "{} dependencies on missing nodes",
    scanner.NOTE_DUPLICATE: "{} duplicate node ids",
    scanner.NOTE_KIND: "{} unknown node types",
    scanner.NOTE_COLL: "{} unknown collectives",
    scanner.NOTE_VALUE: "{} unusable attributes",
    scanner.NOTE_CORRUPT: "{} records that are no nodes",
    scanner.NOTE_TWO_IDS: "{} nodes with two ids",
    scanner.NOTE_TWICE: "{} attributes that a node has twice",
}


def _frame_error(made: RankTrace, read: scanner.Scan) -> TraceError:
    kind, at, want = read.error  # type: ignore[misc]
    where = f"{where_is(made)}: truncated after {made.n} nodes: the record at byte {at}"
    if kind == scanner.FRAME_LENGTH_CUT:
        text = f"{where} ends within its length"
    elif kind == scanner.FRAME_RECORD_CUT:
        text = f"{where} should have {want} bytes and the file ends before"
    elif kind == scanner.FRAME_TOO_LONG:
        text = f"{where_is(made)}: the record at byte {at} has an impossible length"
    else:
        text = f"{where_is(made)}: more than {made.n} nodes"
    return TraceError(text, path=made.path, rank=made.rank, offset=at)


def _problem(made: RankTrace, read: scanner.Scan, code: int, node: int, value: int) -> TraceError:
    offset = int(read.offset[node])
    number = int(made.id[node])
    fields: dict[str, Any] = {"path": made.path, "rank": made.rank, "node": number}
    where = f"{where_is(made)}: node {number}"
    if code == scanner.NOTE_CORRUPT:
        fault = scanner.FAULTS.get(value & 255, "not readable")
        text = f"{where} (record at byte {offset}) is no node: {fault} at byte {value >> 8}"
        return TraceError(text, offset=offset, **fields)
    where = f"{where} ({made.name(node)})"
    if code == scanner.NOTE_DANGLING:
        text = f"{where} depends on node {value}, which the file does not have"
    elif code == scanner.NOTE_DUPLICATE:
        first = int(read.offset[value])
        text = f"{where}: two nodes have this id, at byte {first} and at byte {offset}"
        fields["offsets"] = (first, offset)
    elif code == scanner.NOTE_KIND:
        text = f"{where} has node type {value}, which {made.version} does not have"
    elif code == scanner.NOTE_COLL:
        text = f"{where} has comm_type {value}, which {made.version} does not have"
    elif code == scanner.NOTE_TWO_IDS:
        text = f"{where} also has the id {value}"
    elif code == scanner.NOTE_TWICE:
        text = f"{where} has two attributes {scanner.ATTRIBUTES[value]}: which one counts?"
    else:
        name = scanner.ATTRIBUTES[value >> 8]
        told = made.attrs(node).get(name)
        shown = "" if told is None else f" {splits_.short(told)}"
        text = f"{where}: {name}{shown} {_STATUS[value & 255]}"
    return TraceError(text, **fields)


def _read_splits(made: RankTrace, nodes: npt.NDArray[np.uint32]) -> None:
    for node in np.unique(nodes).tolist():
        try:
            splits_.set_splits(made, node, made.attrs(node))
        except splits_.BadSplits as error:
            made.noted.add(node)
            text = f"{where_is(made)}: {made.describe(node)} has {error}"
            number = int(made.id[node])
            problem = TraceError(text, path=made.path, rank=made.rank, node=number)
            made.problems.append((Order.VALUES, problem))
