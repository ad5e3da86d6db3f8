"""One Kineto (PyTorch profiler) JSON file, read piece by piece into typed records.

A file is never held whole, so that one larger than memory can be read: of each piece the events
that are asked for are picked by category or name (`genie._core.events`), and only those are
decoded, and of them only the fields GENIE uses; integers beyond 64 bits in other fields do no
harm. Files of old profilers hold JSON that is not JSON (a comma before a bracket, a key without a
value); the events of such a piece are mended and read again. Events that are passed over are not
checked to be JSON.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from genie._core.events import Picker
from genie.errors import CompareError

Number = int | float
Text = str | int | float | None


class Args(msgspec.Struct, gc=False):
    """Arguments of an event that say something about communication or order."""

    stream: Text = None
    correlation: Text = None
    external_id: Text = msgspec.field(default=None, name="External id")
    grid: list[Number] | None = None
    collective: Text = msgspec.field(default=None, name="Collective name")
    in_nelems: Text = msgspec.field(default=None, name="In msg nelems")
    out_nelems: Text = msgspec.field(default=None, name="Out msg nelems")
    in_size: Text = msgspec.field(default=None, name="In msg size")
    out_size: Text = msgspec.field(default=None, name="Out msg size")
    group_size: Text = msgspec.field(default=None, name="Group size")
    dtype: Text = None
    in_split: str | list[int] | None = msgspec.field(default=None, name="In split size")
    out_split: str | list[int] | None = msgspec.field(default=None, name="Out split size")
    group: Text = msgspec.field(default=None, name="Process Group Name")
    group_ranks: str | list[int] | None = msgspec.field(default=None, name="Process Group Ranks")
    seq: Text = msgspec.field(default=None, name="Seq")
    src_rank: Text = msgspec.field(default=None, name="Src Rank")
    dst_rank: Text = msgspec.field(default=None, name="Dst Rank")
    rank: Text = msgspec.field(default=None, name="Rank")
    sync_stream: Text = msgspec.field(default=None, name="wait_on_stream")
    sync_record: Text = msgspec.field(default=None, name="wait_on_cuda_event_record_corr_id")
    sync_kind: Text = msgspec.field(default=None, name="cuda_sync_kind")


class Event(msgspec.Struct, gc=False):
    """One event; `ts` and `dur` in us."""

    name: str = ""
    cat: str = ""
    ph: str = ""
    ts: Number = 0
    dur: Number | None = None
    tid: Text = None
    args: msgspec.Raw = msgspec.Raw()


class Group(msgspec.Struct):
    """One entry of distributedInfo.pg_config."""

    pg_name: Text = None
    pg_desc: Text = None
    pg_size: int | None = None
    ranks: list[int] | None = None


class Distributed(msgspec.Struct):
    """Who the process was."""

    backend: str | None = None
    rank: int | None = None
    world_size: int | None = None
    pg_config: list[Group] | dict[str, Group] | None = None
    nccl_version: str | None = None


class File(msgspec.Struct):
    """What a file says beside its events."""

    distributed: Distributed | None = msgspec.field(default=None, name="distributedInfo")
    base_ns: Number = msgspec.field(default=0, name="baseTimeNanoseconds")


_FILE = msgspec.json.Decoder(File)
_EVENTS = msgspec.json.Decoder(list[Event])
_ARGS = msgspec.json.Decoder(Args, strict=False)
_ANY = msgspec.json.Decoder()

_LIST = re.compile(rb'"traceEvents"\s*:\s*\[')
_TRAILING = re.compile(rb",(\s*[\]}])")
_EMPTY_VALUE = re.compile(rb":(\s*[,}])")
_NOT_NUMBERS = re.compile(rb":\s*(-?(?:nan|inf|infinity))\b", re.IGNORECASE)

#: Bytes read at once; memory is a small multiple of it, whatever the size of the file.
PIECE = 1 << 22


def is_kineto(data: bytes) -> bool:
    """Return whether a file's content (or the head of it) looks like a profiler's trace."""
    return b'"traceEvents"' in data


class Profile:
    """A file that can be gone through more than once, each time for other events.

    Attributes:
        path: The file.
        events: Events in it, known after the first time.
    """

    def __init__(self, path: Path, piece: int = PIECE) -> None:
        self.path = path
        self.events = 0
        self._piece = piece
        self._about: File | None = None

    @property
    def about(self) -> File:
        """What the file says beside its events; known when `pick` has gone through it."""
        if self._about is None:
            for _ in self.pick({}):
                pass
        assert self._about is not None
        return self._about

    def pick(self, wanted: Mapping[str, Sequence[str]]) -> Iterator[list[Event]]:
        """Yield the events that have one of these members, in the file's order.

        Args:
            wanted: Key → values, as `genie._core.events.Picker` takes them.

        Raises:
            CompareError: Unreadable, damaged, cut short, or not JSON even after mending.
        """
        picker = Picker(wanted)
        self.events = 0
        try:
            with self._open() as file:
                head, rest = self._head(file)
                while True:
                    found, seen, at, ended = picker.pick(rest)
                    self.events += seen
                    if len(found) > 2:
                        yield self._decode(found)
                    rest = rest[at:]
                    if ended:
                        break
                    more = file.read(max(self._piece, len(rest)))
                    if not more:
                        raise self._error(f"the file ends after {self.events} whole events")
                    rest += more
                self._about = self._outside(head + rest + file.read())
        except ValueError as error:
            raise self._error(str(error)) from error
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise CompareError(
                f"{self.path}: damaged gzip: {error}", path=str(self.path)
            ) from error
        except OSError as error:
            raise CompareError(f"{self.path}: {error.strerror}", path=str(self.path)) from error

    def _open(self) -> BinaryIO | gzip.GzipFile:
        with open(self.path, "rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        return gzip.open(self.path) if packed else open(self.path, "rb")

    def _head(self, file: BinaryIO | gzip.GzipFile) -> tuple[bytes, bytes]:
        """Return what comes before the first event, and what was read beyond."""
        data = b""
        while True:
            more = file.read(max(self._piece, len(data)))
            searched = max(0, len(data) - 64)
            data += more
            match = _LIST.search(data, searched)
            if match:
                return data[: match.end()], data[match.end() :]
            if not more:
                raise self._error("no list of traceEvents")

    def _decode(self, found: bytes) -> list[Event]:
        try:
            return _EVENTS.decode(found)
        except msgspec.DecodeError:
            pass
        try:
            return _EVENTS.decode(mend(found))
        except msgspec.DecodeError as error:
            raise self._error(f"after event {self.events}: {error}") from error

    def _outside(self, text: bytes) -> File:
        """Decode what is around the events; `text` lacks only the bracket that closed them."""
        match = _LIST.search(text)
        assert match is not None
        text = text[: match.end()] + b"]" + text[match.end() :]
        try:
            return _FILE.decode(text)
        except msgspec.DecodeError:
            pass
        try:
            return _FILE.decode(mend(text))
        except msgspec.DecodeError as error:
            raise self._error(f"beside its events: {error}") from error

    def _error(self, what: str) -> CompareError:
        return CompareError(f"{self.path}: not a readable profiler trace: {what}",
                            path=str(self.path))  # fmt: skip


def mend(data: bytes) -> bytes:
    """Return JSON text with what old profilers get wrong put right.

    NaN and Infinity and missing values become null, commas before a bracket go.
    """
    mended = _NOT_NUMBERS.sub(b": null", data)
    mended = _EMPTY_VALUE.sub(rb": null\1", mended)
    return _TRAILING.sub(rb"\1", mended)


def arguments(event: Event) -> Args:
    """Return an event's arguments; fields of odd types are left out rather than refused."""
    raw = bytes(event.args)
    if not raw or raw == b"null":
        return Args()
    try:
        return _ARGS.decode(raw)
    except (msgspec.DecodeError, msgspec.ValidationError):
        pass
    found = _ANY.decode(raw)
    made = Args()
    if isinstance(found, dict):
        for field, key in _ARG_KEYS.items():
            value = found.get(key)
            if isinstance(value, str | int | float) or (
                isinstance(value, list) and field in _LISTS
            ):
                setattr(made, field, value)
    return made


def correlation_of(event: Event) -> int:
    """Return an event's correlation id without decoding its other arguments; -1 if none."""
    raw = bytes(event.args)
    at = raw.find(b'"correlation":')
    if at < 0:
        return -1
    match = _DIGITS.match(raw, at + 14)
    return int(match[1]) if match else -1


_DIGITS = re.compile(rb'\s*"?(\d{1,18})\b')
_LISTS = ("in_split", "out_split", "group_ranks", "grid")
_ARG_KEYS = {field.name: field.encode_name for field in msgspec.structs.fields(Args)}


def as_int(value: Text, default: int = -1) -> int:
    """Return an argument as an integer within int64, `default` for anything else."""
    try:
        number = int(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return default
    return number if -(1 << 63) <= number < 1 << 63 else default


def as_list(value: str | list[int] | None) -> list[int] | None:
    """Return a list argument; None for a missing, cut ("...") or unreadable one."""
    if isinstance(value, list):
        return [int(item) for item in value]
    if not isinstance(value, str):
        return None
    try:
        found = msgspec.json.decode(value.encode())
    except msgspec.DecodeError:
        return None
    if isinstance(found, list) and all(isinstance(item, int) for item in found):
        return found
    return None


def groups(info: Distributed | None) -> dict[str, tuple[int, ...]]:
    """Return process groups whose ranks the file gives in full."""
    if info is None or not info.pg_config:
        return {}
    entries = info.pg_config.values() if isinstance(info.pg_config, dict) else info.pg_config
    found = {}
    for entry in entries:
        ranks = entry.ranks
        if not ranks and entry.pg_size and info.world_size == entry.pg_size:
            ranks = list(range(entry.pg_size))
        if entry.pg_name is not None and ranks and len(ranks) == (entry.pg_size or len(ranks)):
            found[str(entry.pg_name)] = tuple(ranks)
    return found
