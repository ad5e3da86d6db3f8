"""Finding the files of a trace set, and the bytes in them."""

from __future__ import annotations

import contextlib
import mmap
import os
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path

from genie.errors import TraceError
from genie.trace.gunzip import MAGIC, TooLargeError, gunzip, most_unpacked, read_head

RANK_FILE = re.compile(r"(?P<prefix>.+)\.(?P<rank>[0-9]+)\.(?P<kind>et|eg|json)(?:\.gz)?")
#: Bytes at the beginning of a file by which its form is known.
_HEAD = 1 << 16
MOST_RANKS_MISSING = 4096


@dataclass
class FileSet:
    """The files of one trace set, by rank."""

    folder: Path
    prefix: str
    files: dict[int, Path]
    warnings: list[str] = field(default_factory=list)
    other_prefixes: tuple[str, ...] = ()


class Source:
    """The bytes of one file: mapped while they are scanned, read again when names are asked for.

    A file that stays mapped would end the process (SIGBUS) once somebody truncates it, so the
    mapping lives only as long as a scan, and what is read later is checked to be the same file.
    """

    def __init__(self, path: Path, room: int | None = None) -> None:
        self.path = path
        self.problem: TraceError | None = None
        self._data: bytearray | None = None
        self._room = most_unpacked() if room is None else room
        try:
            with open(path, "rb") as file:
                status = os.fstat(file.fileno())
                self._identity = (status.st_size, status.st_mtime_ns)
                if file.read(2) == MAGIC:
                    file.seek(0)
                    self._data = self._gunzip(file)
        except OSError as error:
            raise TraceError(f"{path}: {error.strerror or error}", path=str(path)) from error

    def _gunzip(self, file: BufferedReader) -> bytearray:
        try:
            found, wrong = gunzip(file, self._room)
        except TooLargeError as error:
            raise TraceError(f"{self.path}: {error}", path=str(self.path)) from error
        if wrong:
            self._spoilt(wrong)
        return found

    def _spoilt(self, why: str) -> None:
        self.problem = TraceError(f"{self.path}: {why}", path=str(self.path))

    @property
    def compressed(self) -> bool:
        """Whether the file is gzip; its content is then in memory."""
        return self._data is not None

    @property
    def size(self) -> int:
        """Bytes of the content."""
        return self._identity[0] if self._data is None else len(self._data)

    @contextlib.contextmanager
    def view(self) -> Iterator[mmap.mmap | bytes | bytearray]:
        """Give the content as one buffer."""
        if self._data is not None:
            yield self._data
            return
        with self._opened() as file:
            status = os.fstat(file.fileno())
            if (status.st_size, status.st_mtime_ns) != self._identity:
                raise TraceError(f"{self.path}: changed since it was loaded", path=str(self.path))
            if status.st_size == 0:
                yield b""
                return
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
                yield mapped

    def read(self, offset: int, length: int) -> bytes:
        """Return `length` bytes of the content from `offset` on."""
        if self._data is not None:
            return bytes(self._data[offset : offset + length])
        with self._opened() as file:
            file.seek(offset)
            return file.read(length)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[BufferedReader]:
        try:
            file = open(self.path, "rb")  # noqa: SIM115
        except OSError as error:
            raise TraceError(
                f"{self.path}: {error.strerror or error}", path=str(self.path)
            ) from error
        with file:
            yield file


def find(path: str | os.PathLike[str]) -> FileSet:
    """Return the files of the set that `path` names: a folder, a prefix, or a single file.

    Raises:
        TraceError: There is none, or there is more than one.
    """
    target = Path(path)
    try:
        return _find(target)
    except OSError as error:
        raise TraceError(f"{target}: {error.strerror or error}", path=str(path)) from error


def _find(target: Path) -> FileSet:
    if target.is_dir():
        return _in_folder(target)
    if target.is_file():
        return _single(target)
    folder = target.parent
    sets = _sets(folder) if folder.is_dir() else {}
    name = target.name.rstrip(".")
    if name in sets:
        return _choose(folder, name, sets)
    known = f"; {folder} holds the prefixes {_listed(sets)}" if sets else ""
    raise TraceError(
        f"no trace at {target}: no such file, folder or prefix{known}", path=str(target)
    )


def _listed(names: object, most: int = 8) -> str:
    ordered = sorted(str(name) for name in names)  # type: ignore[attr-defined]
    more = f" and {len(ordered) - most} more" if len(ordered) > most else ""
    return ", ".join(ordered[:most]) + more


def _sets(folder: Path) -> dict[str, dict[str, list[tuple[int, Path]]]]:
    # prefix -> "et" or "json" -> [(rank, file)]
    found: dict[str, dict[str, list[tuple[int, Path]]]] = defaultdict(lambda: defaultdict(list))
    for entry in sorted(folder.iterdir()):
        match = RANK_FILE.fullmatch(entry.name)
        if match:
            kind = "json" if match["kind"] == "json" else "et"
            found[match["prefix"]][kind].append((int(match["rank"]), entry))
    for prefix, kinds in list(found.items()):
        for kind, files in list(kinds.items()):
            if not any(file.is_file() for _, file in files):
                del kinds[kind]
        if not kinds:
            del found[prefix]
    return found


def _what(path: Path) -> str:
    if path.is_symlink() and not path.exists():
        return "a link to what does not exist"
    return "a folder" if path.is_dir() else "a pipe, socket or device"


def _choose(
    folder: Path, prefix: str, sets: dict[str, dict[str, list[tuple[int, Path]]]]
) -> FileSet:
    kinds = sets[prefix]
    kind = "et" if "et" in kinds else "json"
    files: dict[int, Path] = {}
    for rank, file in kinds[kind]:
        if not file.is_file():
            # Passing it over would replay a smaller job; opening a pipe would wait for ever.
            raise TraceError(f"{file}: {_what(file)}, not a file", path=str(file), rank=rank)
        if rank in files:
            raise TraceError(
                f"two files for rank {rank}: {files[rank]} and {file}",
                path=str(file),
                rank=rank,
            )
        files[rank] = file
    chosen = FileSet(folder, prefix, dict(sorted(files.items())))
    chosen.other_prefixes = tuple(name for name in sets if name != prefix)
    if kind == "et" and "json" in kinds:
        chosen.warnings.append(
            f"{len(kinds['json'])} JSON files with the prefix {prefix} were passed over: "
            "the .et files were read"
        )
    return chosen


def _is_host_trace(file: Path) -> bool:
    """Return whether a file begins as an execution trace of PyTorch's host side does."""
    head = read_head(file, _HEAD)
    return head.lstrip()[:1] == b"{" and b'"schema"' in head and b'"nodes"' in head


def _in_folder(folder: Path) -> FileSet:
    sets = _sets(folder)
    prefixes = [name for name, kinds in sets.items() if "et" in kinds] or list(sets)
    if len(prefixes) > 1:
        raise TraceError(
            f"{folder} holds {len(prefixes)} trace sets; give one of the prefixes: "
            + _listed(str(folder / name) for name in prefixes),
            path=str(folder),
        )
    if prefixes:
        return _choose(folder, prefixes[0], sets)
    from genie.trace.groups import is_group_file

    files = [
        entry
        for entry in sorted(folder.iterdir())
        if entry.is_file() and not entry.name.startswith(".") and not is_group_file(entry)
    ]
    if len(files) == 1:
        return FileSet(folder, files[0].name, {0: files[0]})
    found = f"it holds {_listed(file.name for file in files)}" if files else "it is empty"
    hosts = sum(_is_host_trace(file) for file in files)
    if hosts:
        found += (
            f"; {hosts} of them are PyTorch host traces, which have neither durations nor the "
            "GPU's order: give the folder of their Kineto profiles, or link and convert them to "
            ".et (chakra_trace_link, chakra_converter)"
        )
    raise TraceError(f"no <prefix>.<rank>.et files in {folder}: {found}", path=str(folder))


def _single(file: Path) -> FileSet:
    match = RANK_FILE.fullmatch(file.name)
    if match is None:
        return FileSet(file.parent, file.name, {0: file})
    chosen = FileSet(file.parent, match["prefix"], {int(match["rank"]): file})
    sets = _sets(file.parent)
    chosen.other_prefixes = tuple(name for name in sets if name != match["prefix"])
    siblings = sum(len(found) for found in sets[match["prefix"]].values()) - 1
    if siblings > 0:
        chosen.warnings.append(
            f"only {file.name} was read; {siblings} more files have the prefix {match['prefix']}"
        )
    return chosen
