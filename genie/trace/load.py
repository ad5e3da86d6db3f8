"""`load`: files of a set to a `Trace`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from genie._core import scanner
from genie.errors import InputError, TraceError
from genie.trace import groups as groups_
from genie.trace import jsonforms, version, wire
from genie.trace.files import MOST_RANKS_MISSING, FileSet, Source, find
from genie.trace.kinds import Kind, dtype_bytes
from genie.trace.model import Order, RankTrace, Splits, Trace
from genie.trace.records import WireRecords

_STG = "symbolic_tensor_network"
_MOST_LISTED = 20
_STATUS = {
    scanner.STATUS_FRACTION: "is no whole number",
    scanner.STATUS_RANGE: "is negative or too large",
    scanner.STATUS_TEXT: "is no number",
}


def load(
    path: str | os.PathLike[str],
    groups: str | os.PathLike[str] | Mapping[str, Sequence[int]] | None = None,
    elements: str | None = None,
    undefined_group: str | None = None,
    *,
    names: bool = True,
) -> Trace:
    """Return the trace set at `path`.

    What can be read is read; what makes the set useless for a replay is found by
    `Trace.problems()` and raised by `Trace.check()`.

    Args:
        path: A folder, a prefix (`folder/name` of `name.0.et`, `name.1.et`, ...) or one file;
            Chakra protobuf v0.0.1 to v0.0.4 or JSON, also gzip under any name.
        groups: Groups of ranks (a mapping, or a JSON file) instead of those beside the traces.
        elements: Element type of the sizes, for traces that count elements (STG).
        undefined_group: "world" lets a group that nothing defines mean all ranks.
        names: Whether to keep where node names are.

    Raises:
        InputError: An option cannot be used.
        TraceError: Nothing there can be read as a trace.
    """
    if undefined_group not in {None, "world"}:
        raise InputError(f'undefined_group can only be "world", not {undefined_group!r}')
    unit = None if elements is None else dtype_bytes(elements)
    chosen = find(path)
    _refuse_sparse(chosen)
    sources = {rank: Source(file) for rank, file in chosen.files.items()}
    trace = jsonforms.load(chosen, sources) if _is_json(sources) else _load_wire(
        chosen, sources, names
    )
    trace.path = str(path)
    trace.undefined_group = undefined_group
    trace.warnings[:0] = chosen.warnings
    for source in sources.values():
        if source.problem is not None:
            trace.load_problems.append(source.problem)
    _define_groups(trace, chosen, groups)
    _scale(trace, elements, unit)
    return trace


def _refuse_sparse(chosen: FileSet) -> None:
    last = max(chosen.files)
    if last + 1 - len(chosen.files) > MOST_RANKS_MISSING:
        raise TraceError(
            f"{chosen.folder / chosen.prefix}: {len(chosen.files)} files, but rank {last} among "
            "them: not the files of one set",
            path=str(chosen.folder),
        )


def _is_json(sources: dict[int, Source]) -> bool:
    return any(jsonforms.looks_like_json(source.read(0, 512)) for source in sources.values())


def _load_wire(chosen: FileSet, sources: dict[int, Source], names: bool) -> Trace:
    found = version.detect(list(sources.values()))
    ranks: list[RankTrace] = []
    known: dict[str, int] = {}
    for rank in range(max(sources) + 1):
        source = sources.get(rank)
        if source is None:
            file = str(chosen.folder / f"{chosen.prefix}.{rank}.et")
            ranks.append(RankTrace.empty(rank, file, missing=True))
        else:
            ranks.append(_read_rank(rank, source, found, known, names))
    return Trace(
        ranks,
        path=str(chosen.folder),
        version=wire.VERSION_NAMES[found],
        groups={},
        group_names=known,
    )


def _read_rank(
    rank: int, source: Source, found: int, known: dict[str, int], names: bool
) -> RankTrace:
    path = str(source.path)
    if source.size == 0:
        return _refused(rank, path, "empty file")
    head = source.read(0, 512)
    with source.view() as data:
        if version.looks_like_text(head) and 0 in scanner.probe(data, 1)[:2]:
            return _refused(rank, path, "not a Chakra trace but text")
        read = scanner.scan(data, found, names)
        header = bytes(data[slice(*_range(read.metadata))]) if read.metadata else b""
    metadata = wire.metadata(header, found)
    schema = metadata.get("schema") or metadata.get("version") or ""
    columns: dict[str, npt.NDArray[Any]] = dict(read.columns)
    _name_groups(columns, read.groups, known)
    made = RankTrace(
        rank,
        path,
        columns,
        read.dep_indptr,
        read.deps,
        WireRecords(source, read, found),
        version=wire.VERSION_NAMES[found],
        schema=str(schema),
    )
    made.metadata = metadata
    if found == scanner.V4 and (unknown := version.known_version(metadata)) is not None:
        text = f"{path}: version {unknown!r} is not known (known: 0.0.4, 1.0.x)"
        made.problems.append((Order.FILE, TraceError(text, path=path, rank=rank)))
    _read_notes(made, read)
    if read.repeated:
        made.ignored["repeated dependencies"] = read.repeated
    for number, count in read.unknown.items():
        made.ignored[f"unknown field {number} of a node"] = count
    return made


def _range(place: tuple[int, ...]) -> tuple[int, int]:
    return place[0], place[0] + place[1]


def _refused(rank: int, path: str, why: str) -> RankTrace:
    made = RankTrace.empty(rank, path)
    made.problems.append((Order.FILE, TraceError(f"{path}: {why}", path=path, rank=rank)))
    return made


def _name_groups(
    columns: dict[str, npt.NDArray[Any]], names: list[bytes | int], known: dict[str, int]
) -> None:
    # From the file's own numbers of groups to the set's.
    if not names:
        return
    texts = [wire.text(name) if isinstance(name, bytes) else str(name) for name in names]
    numbers = [known.setdefault(text, len(known)) for text in texts]
    table = np.array([*numbers, -1], np.int32)
    columns["group"] = table[columns["group"]]


def _read_notes(made: RankTrace, read: scanner.Scan) -> None:
    if read.error:
        made.problems.append((Order.FILE, _frame_error(made, read)))
    notes = read.notes
    nodes, codes, values = notes["f1"], notes["f2"], notes["f0"]
    _read_splits(made, nodes, codes)
    skip = {scanner.NOTE_IN_SPLITS, scanner.NOTE_OUT_SPLITS}
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
            problem = TraceError(f"{_at(made)}: {more}", path=made.path, rank=made.rank)
            made.problems.append((_RANKING[int(code)], problem))


_RANKING = {
    scanner.NOTE_CORRUPT: Order.FILE,
    scanner.NOTE_DUPLICATE: Order.IDS,
    scanner.NOTE_TWO_IDS: Order.IDS,
    scanner.NOTE_DANGLING: Order.DANGLING,
    scanner.NOTE_KIND: Order.VALUES,
    scanner.NOTE_COLL: Order.VALUES,
    scanner.NOTE_VALUE: Order.VALUES,
}
_WHAT = {
    scanner.NOTE_DANGLING: "{} dependencies on missing nodes",
    scanner.NOTE_DUPLICATE: "{} duplicate node ids",
    scanner.NOTE_KIND: "{} unknown node types",
    scanner.NOTE_COLL: "{} unknown collectives",
    scanner.NOTE_VALUE: "{} unusable attributes",
    scanner.NOTE_CORRUPT: "{} records that are no nodes",
    scanner.NOTE_TWO_IDS: "{} nodes with two ids",
}


def _at(made: RankTrace) -> str:
    return f"rank {made.rank} ({made.path})"


def _frame_error(made: RankTrace, read: scanner.Scan) -> TraceError:
    kind, at, want = read.error  # type: ignore[misc]
    where = f"{_at(made)}: truncated after {made.n} nodes: the record at byte {at}"
    if kind == scanner.FRAME_LENGTH_CUT:
        text = f"{where} ends within its length"
    elif kind == scanner.FRAME_RECORD_CUT:
        text = f"{where} should have {want} bytes and the file ends before"
    elif kind == scanner.FRAME_TOO_LONG:
        text = f"{_at(made)}: the record at byte {at} has an impossible length ({made.n} nodes read)"
    else:
        text = f"{_at(made)}: more than {made.n} nodes"
    return TraceError(text, path=made.path, rank=made.rank, offset=at)


def _problem(
    made: RankTrace, read: scanner.Scan, code: int, node: int, value: int
) -> TraceError:
    offset = int(read.offset[node])
    number = int(made.id[node])
    fields: dict[str, Any] = {"path": made.path, "rank": made.rank, "node": number}
    where = f"{_at(made)}: node {number}"
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
    else:
        name = scanner.ATTRIBUTES[value >> 8]
        told = made.attrs(node).get(name)
        shown = "" if told is None else f" {_short(told)}"
        text = f"{where}: {name}{shown} {_STATUS[value & 255]}"
    return TraceError(text, **fields)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _read_splits(
    made: RankTrace, nodes: npt.NDArray[np.uint32], codes: npt.NDArray[np.uint32]
) -> None:
    wanted = (codes == scanner.NOTE_IN_SPLITS) | (codes == scanner.NOTE_OUT_SPLITS)
    for node in np.unique(nodes[wanted]).tolist():
        attrs = made.attrs(node)
        pair: list[npt.NDArray[np.int64]] = []
        for name in ("comm_in_splits", "comm_out_splits"):
            values = attrs.get(name)
            whole = isinstance(values, list) and all(
                isinstance(v, int) and 0 <= v < 1 << 63 for v in values
            )
            if not whole:
                text = f"{_at(made)}: {made.describe(node)}: {name} {_short(values)} is no list of sizes"
                number = int(made.id[node])
                problem = TraceError(text, path=made.path, rank=made.rank, node=number)
                made.problems.append((Order.VALUES, problem))
                break
            pair.append(np.array(values, np.int64))
        if len(pair) == 2:
            made.splits[node] = len(made.split_lists)
            splits: Splits = (pair[0], pair[1])
            made.split_lists.append(splits)


def _define_groups(
    trace: Trace,
    chosen: FileSet,
    given: str | os.PathLike[str] | Mapping[str, Sequence[int]] | None,
) -> None:
    found: groups_.Groups = {}
    if given is not None:
        found = groups_.given(given)
    else:
        try:
            found, file = groups_.beside(chosen)
            if file is not None:
                trace.groups_path = str(file)
        except TraceError as error:
            trace.load_problems.append(error)
        told: groups_.Groups = {}
        for rank in trace.ranks:
            for node in np.flatnonzero(rank.kind == Kind.METADATA).tolist():
                _groups_of_node(trace, rank, node, told)
        # What the nodes say overrides the file.
        found = {**found, **told}
    trace.groups = found
    known = {name: k for k, name in enumerate(trace.group_names)}
    for name in found:
        if name not in known:
            trace.group_names.append(name)


def _groups_of_node(trace: Trace, rank: RankTrace, node: int, told: groups_.Groups) -> None:
    if "process_group:init" not in rank.name(node):
        return
    values = rank.attrs(node).get("inputs")
    text = values.get("values") if isinstance(values, dict) else values
    if not isinstance(text, str):
        return
    try:
        named = groups_.from_metadata(text)
    except ValueError as error:
        trace.warnings.append(
            f"{_at(rank)}: {rank.describe(node)} defines no groups that can be read: {error}"
        )
        return
    where = f"{_at(rank)}: {rank.describe(node)}"
    for clash in groups_.merge(told, named.items(), where):
        trace.load_problems.append(TraceError(clash, path=rank.path, rank=rank.rank))


def _scale(trace: Trace, elements: str | None, unit: int | None) -> None:
    counts_elements = any(rank.schema == _STG or rank.version == "STG JSON" for rank in trace.ranks)
    if unit is None:
        trace.sizes_in_elements = counts_elements
        if counts_elements:
            trace.warnings.append(
                "sizes are in elements (made by the symbolic tensor graph): "
                "say of what type with --elements (elements=...)"
            )
        return
    trace.elements = elements
    if not counts_elements:
        trace.warnings.append(
            f"sizes are taken as {elements} elements, although nothing in the set says that they "
            "are elements"
        )
    for rank in trace.ranks:
        for column in (rank.nbytes, rank.tensor_size):
            known = column >= 0
            if known.any() and int(column[known].max()) > (1 << 63) // unit - 1:
                text = f"{_at(rank)}: a size does not fit into 64 bits as {elements}"
                problem = TraceError(text, path=rank.path, rank=rank.rank)
                rank.problems.append((Order.VALUES, problem))
                column[known] = 0
            column[known] *= unit
        for sent, received in rank.split_lists:
            sent *= unit
            received *= unit
