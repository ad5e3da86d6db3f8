"""`load`: files of a set to a `Trace`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from genie import checks
from genie._core import scanner
from genie.errors import TraceError
from genie.trace import groups as groups_
from genie.trace import jsonforms, kineto, splits, version, wire
from genie.trace.files import MOST_RANKS_MISSING, FileSet, Source, find
from genie.trace.gunzip import most_unpacked
from genie.trace.kinds import Kind, dtype_bytes
from genie.trace.model import Order, RankTrace, Trace
from genie.trace.notes import read_notes, where_is
from genie.trace.records import WireRecords

_STG = "symbolic_tensor_network"
_ZEROS = 4096


def load(
    path: str | os.PathLike[str],
    groups: str | os.PathLike[str] | Mapping[str, Sequence[int]] | None = None,
    *,
    elements: str | None = None,
    undefined_group: str | None = None,
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
    checks.path("path", path, "a folder, prefix or file")
    checks.truth("names", names)
    if undefined_group is not None:
        checks.one_of("undefined_group", undefined_group, ("world",))
    unit = None if elements is None else dtype_bytes(elements)
    profiles = kineto.files_of(Path(path))
    if profiles:
        trace = kineto.load(str(path), profiles)
        trace.undefined_group = undefined_group
        if groups is not None:
            trace.groups = groups_.given(groups)
        for name in trace.groups:
            if name not in trace.group_names:
                trace.group_names.append(name)
        splits.complete(trace)
        return trace
    chosen = find(path)
    _refuse_sparse(chosen)
    sources = _sources(chosen)
    trace = (
        jsonforms.load(chosen, sources) if _is_json(sources) else _load_wire(chosen, sources, names)
    )
    trace.path = str(path)
    trace.undefined_group = undefined_group
    trace.warnings[:0] = chosen.warnings
    for source in sources.values():
        if source.problem is not None:
            trace.load_problems.append(source.problem)
    _define_groups(trace, chosen, groups)
    _scale(trace, elements, unit)
    splits.complete(trace)
    return trace


def _sources(chosen: FileSet) -> dict[int, Source]:
    # What gzip files unpack to is bounded for all of them together.
    sources: dict[int, Source] = {}
    room = most_unpacked()
    for rank, file in chosen.files.items():
        source = sources[rank] = Source(file, room)
        if source.compressed:
            room -= source.size
    return sources


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
    if source.size >= _ZEROS and not source.read(source.size - _ZEROS, _ZEROS).strip(b"\0"):
        # Each would count as an empty node, and cost as much memory.
        return _refused(rank, path, f"the last {_ZEROS} bytes are zeros, as after a crash")
    head = source.read(0, 512)
    with source.view() as data:
        if version.looks_like_text(head) and 0 in scanner.probe(data, 1)[:2]:
            return _refused(rank, path, "not a Chakra trace but text")
        try:
            read = scanner.scan(data, found, names)
        except MemoryError as error:
            raise TraceError(f"{path}: {error}", path=path, rank=rank) from error
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
    read_notes(made, read)
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
            said = groups_.beside(chosen)
            found = said.groups
            if said.path is not None:
                trace.groups_path = str(said.path)
            trace.unread_groups = {str(path): why for path, why in said.unreadable.items()}
            trace.warnings += [
                f"{path} was passed over: {why}" for path, why in trace.unread_groups.items()
            ]
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
            f"{where_is(rank)}: {rank.describe(node)} defines no groups that can be read: {error}"
        )
        return
    where = f"{where_is(rank)}: {rank.describe(node)}"
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
                text = f"{where_is(rank)}: a size does not fit into 64 bits as {elements}"
                problem = TraceError(text, path=rank.path, rank=rank.rank)
                rank.problems.append((Order.VALUES, problem))
                column[known] = 0
            column[known] *= unit
        scaled = [(sent * unit, received * unit) for sent, received in rank.split_lists]
        if rank.splits_in_bytes:
            text = f"{where_is(rank)}: splits that say their element type, so not {elements}"
            problem = TraceError(text, path=rank.path, rank=rank.rank)
            rank.problems.append((Order.VALUES, problem))
        rank.split_lists = scaled
