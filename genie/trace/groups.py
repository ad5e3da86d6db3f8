"""Groups of ranks: comm-group JSON beside the traces, METADATA nodes, and what `load` is given."""

from __future__ import annotations

import ast
import codecs
import gzip
import json
import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any

from genie.errors import InputError, TraceError
from genie.trace.files import RANK_FILE, FileSet
from genie.trace.splits import short

Groups = dict[str, tuple[int, ...]]
_LARGEST_GROUP_FILE = 1 << 28
_LARGEST_GROUP = 1 << 24


class _Pairs(dict[str, Any]):
    """A JSON object that remembers whether a key came twice."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        names = [name for name, _ in pairs]
        self.twice = (
            sorted({name for name in names if names.count(name) > 1})
            if len(self) < len(pairs)
            else []
        )


class _Unreadable(ValueError):
    """Why a file is no JSON document; the text completes "FILE: ..."."""


def _read(path: Path) -> Any:
    # The JSON document in `path`, None if it is no object (or too large to be a list of groups).
    try:
        if path.stat().st_size > _LARGEST_GROUP_FILE:
            return None
        with open(path, "rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            # A small gzip file may unpack to any size.
            with gzip.GzipFile(fileobj=file) if packed else file as content:
                data = content.read(_LARGEST_GROUP_FILE + 1)
        if len(data) > _LARGEST_GROUP_FILE:
            return None
        data = data.removeprefix(codecs.BOM_UTF8)
        if data.lstrip()[:1] == b"[":
            return None
        return json.loads(data, object_pairs_hook=_Pairs)
    except OSError as error:
        raise _Unreadable(error.strerror or str(error)) from error
    except (ValueError, EOFError, RecursionError, zlib.error) as error:
        raise _Unreadable(f"not readable as JSON ({error})") from error


def _is_rank(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _maps_groups(document: object) -> bool:
    # Text to lists of ranks; a document with nothing in it defines nothing.
    return (
        isinstance(document, dict)
        and bool(document)
        and all(isinstance(ranks, list) for ranks in document.values())
        and any(_is_rank(rank) for ranks in document.values() for rank in ranks)
        and not any(isinstance(rank, dict | list) for ranks in document.values() for rank in ranks)
    )


def _is_meant(path: Path, document: object) -> bool:
    # Whether a document beside the traces is there to say groups, right or wrong.
    if _maps_groups(document) or "group" in path.name.lower():
        return True
    return (
        isinstance(document, dict)
        and bool(document)
        and all(str(name).isdecimal() for name in document)
        and any(isinstance(ranks, list) for ranks in document.values())
    )


def is_group_file(path: Path) -> bool:
    """Whether `path` is JSON that maps text to lists of ranks."""
    try:
        return path.name.endswith((".json", ".json.gz")) and _maps_groups(_read(path))
    except _Unreadable:
        return False


def checked(groups: Mapping[str, Sequence[object]], path: str) -> Groups:
    """Return `groups` with tuples, refusing what is no list of different ranks.

    Raises:
        TraceError: A group lists something else, or a rank twice.
    """
    found: Groups = {}
    if isinstance(groups, _Pairs) and groups.twice:
        raise TraceError(f"{path}: groups defined twice: {', '.join(groups.twice)}", path=path)
    for name, listed in groups.items():
        if isinstance(listed, str | bytes | Mapping) or not isinstance(listed, Iterable):
            raise TraceError(
                f"{path}: group {name!r} is {short(listed)}, not a list of ranks", path=path
            )
        ranks = list(listed)
        bad = [rank for rank in ranks if not _is_rank(rank) or rank < 0]  # type: ignore[operator]
        if bad:
            raise TraceError(f"{path}: group {name!r} lists {bad[0]!r}, not a rank", path=path)
        members = tuple(int(rank) for rank in ranks)  # type: ignore[call-overload]
        if len(set(members)) < len(members):
            twice = next(rank for rank in members if members.count(rank) > 1)
            raise TraceError(f"{path}: group {name!r} lists rank {twice} twice", path=path)
        found[str(name)] = members
    return found


def given(groups: str | os.PathLike[str] | Mapping[str, Sequence[int]]) -> Groups:
    """Return the groups that `load(groups=...)` was given: a mapping, or a JSON file.

    Raises:
        InputError: The file does not map text to lists of ranks.
        TraceError: A group is no list of different ranks.
    """
    if isinstance(groups, Mapping):
        return checked(groups, "groups")
    if not isinstance(groups, str | os.PathLike):
        raise InputError(
            f"groups is a dict of names to lists of ranks or a JSON file, not {short(groups)}"
        )
    path = Path(groups)
    if not path.is_file():
        raise InputError(f"no group file at {path}")
    try:
        document = _read(path)
    except _Unreadable as error:
        raise InputError(f"{path}: {error}") from error
    if not isinstance(document, dict) or (document and not _maps_groups(document)):
        raise InputError(f"{path}: not JSON that maps text to lists of ranks")
    return checked(document, str(path))


@dataclass
class Beside:
    """What the JSON files beside a set say.

    Attributes:
        groups: Group name to ranks.
        path: The file that says so.
        unreadable: Files that are no JSON, and why, so that nobody knows what they say.
    """

    groups: Groups
    path: Path | None
    unreadable: dict[Path, str]


def beside(chosen: FileSet) -> Beside:
    """Return the groups in the one comm-group JSON beside a set's files, and that file.

    Files that carry the name of another set in the folder belong to that set. A file that maps
    names to lists of ranks, or is called a group file, or has numbers for names, says groups.

    Raises:
        TraceError: There are two such files, or one that is wrong.
    """
    own = {file.name for file in chosen.files.values()}
    others = {
        f"{prefix}{suffix}"
        for prefix in chosen.other_prefixes
        for suffix in (".json", ".groups.json", ".json.gz", ".groups.json.gz")
    }
    found: list[tuple[Path, Any]] = []
    unreadable: dict[Path, str] = {}
    for path in sorted(chosen.folder.iterdir()):
        if (
            path.name.endswith((".json", ".json.gz"))
            and (path.is_file() or (path.is_symlink() and not path.exists()))
            and path.name not in own
            and path.name not in others
            and not RANK_FILE.fullmatch(path.name)
        ):
            try:
                document = _read(path)
            except _Unreadable as error:
                if "group" in path.name.lower():
                    raise TraceError(f"{path}: {error}", path=str(path)) from error
                unreadable[path] = str(error)
                continue
            if _is_meant(path, document):
                found.append((path, document))
    if not found:
        return Beside({}, None, unreadable)
    if len(found) > 1:
        names = " and ".join(path.name for path, _ in found)
        raise TraceError(
            f"{chosen.folder}: {len(found)} files map names to groups of ranks, {names}; "
            "say which with groups",
            path=str(chosen.folder),
        )
    path, document = found[0]
    if not isinstance(document, dict):
        text = f"{path}: called a group file, but no JSON that maps names to lists of ranks"
        raise TraceError(text, path=str(path))
    return Beside(checked(document, str(path)), path, unreadable)


def from_metadata(values: str) -> Groups:
    """Return the groups in the input of a `process_group:init` node.

    Chakra's converter keeps Python's `str()` of a list that holds one JSON text (trace-formats
    section 1.6): a list of {pg_name, ranks, group_size}; no ranks means all of 0..group_size-1.

    Raises:
        ValueError: The text is something else, or cut short.
    """
    try:
        listed = ast.literal_eval(values)
        inner = listed[0] if isinstance(listed, list) and listed else values
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        inner = values[2:-2]
    document = json.loads(inner) if isinstance(inner, str) else inner
    if not isinstance(document, list):
        raise ValueError("not a list of groups")
    found: Groups = {}
    for entry in document:
        if not isinstance(entry, dict) or "pg_name" not in entry:
            raise ValueError("a group without pg_name")
        ranks = entry.get("ranks") or []
        if not ranks:
            size = entry.get("group_size", 0)
            if not _is_rank(size) or not 0 <= size <= _LARGEST_GROUP:
                raise ValueError(f"group {entry['pg_name']!r} has the size {size!r}")
            ranks = range(size)
        found[str(entry["pg_name"])] = tuple(_whole(rank) for rank in ranks)
    return found


def _whole(value: object) -> int:
    if not _is_rank(value) or value < 0:  # type: ignore[operator]
        raise ValueError(f"{value!r} is not a rank")
    return int(value)  # type: ignore[call-overload, no-any-return]


def merge(found: Groups, more: Iterable[tuple[str, tuple[int, ...]]], where: str) -> list[str]:
    """Add `more` to `found`; return a line for every name that now means two things."""
    clashes = []
    for name, ranks in more:
        if name in found and found[name] != ranks:
            clashes.append(
                f"{where}: group {name!r} is {_short(ranks)} here and {_short(found[name])} before"
            )
        else:
            found[name] = ranks
    return clashes


def _short(ranks: tuple[int, ...]) -> str:
    text = ", ".join(str(rank) for rank in ranks[:8])
    return f"[{text}, ... {len(ranks)} ranks]" if len(ranks) > 8 else f"[{text}]"
