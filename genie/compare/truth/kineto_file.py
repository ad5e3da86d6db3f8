"""One Kineto (PyTorch profiler) JSON file, decoded straight into typed records.

Only the fields GENIE uses are decoded; msgspec skips the rest without making objects, so integers
beyond 64 bits in unused fields do no harm. Files of old profilers hold JSON that is not JSON
(a comma before a bracket, a key without a value); those are mended and read again.
"""

from __future__ import annotations

import gc
import re
from pathlib import Path

import msgspec

from genie.compare.truth.load import read_bytes
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
    """A whole file."""

    events: list[Event] = msgspec.field(name="traceEvents")
    distributed: Distributed | None = msgspec.field(default=None, name="distributedInfo")
    base_ns: Number = msgspec.field(default=0, name="baseTimeNanoseconds")


_FILE = msgspec.json.Decoder(File)
_ARGS = msgspec.json.Decoder(Args, strict=False)
_ANY = msgspec.json.Decoder()

_TRAILING = re.compile(rb",(\s*[\]}])")
_EMPTY_VALUE = re.compile(rb":(\s*[,}])")
_NOT_NUMBERS = re.compile(rb":\s*(-?(?:nan|inf|infinity))\b", re.IGNORECASE)


def is_kineto(data: bytes) -> bool:
    """Return whether a file's content looks like a Chrome trace of a profiler."""
    return b'"traceEvents"' in data


def decode(path: Path, data: bytes | None = None) -> File:
    """Return a file's events.

    Raises:
        CompareError: Not JSON even after mending, or no trace.
    """
    data = read_bytes(path) if data is None else data
    # Collecting while hundreds of thousands of records are made is most of the time otherwise.
    was = gc.isenabled()
    gc.disable()
    try:
        return _decode(path, data)
    finally:
        if was:
            gc.enable()


def mend(data: bytes) -> bytes:
    """Return JSON text with what old profilers get wrong put right.

    NaN and Infinity and missing values become null, commas before a bracket go.
    """
    mended = _NOT_NUMBERS.sub(b": null", data)
    mended = _EMPTY_VALUE.sub(rb": null\1", mended)
    return _TRAILING.sub(rb"\1", mended)


def _decode(path: Path, data: bytes) -> File:
    try:
        return _FILE.decode(data)
    except msgspec.DecodeError:
        pass
    try:
        return _FILE.decode(mend(data))
    except msgspec.DecodeError as error:
        raise CompareError(f"{path}: not a readable profiler trace: {error}", path=str(path)) from (
            error
        )


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
