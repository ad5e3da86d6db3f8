"""Recordings that stay on the hosts (`--keep-remote`): one file a worker, joined when loaded.

A worker's file holds its part of the plan and its raw logs, so that it needs nothing else; the
coordinator's recording has everything that is small (health, counters, failures, clocks) and says
which file is where, with its SHA-256. `Recording.load` takes the files from where they were
written, when that is this machine, or from `remote/` inside the recording's folder.
"""

from __future__ import annotations

import hashlib
import os
import socket
import tempfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from genie.errors import RecordError

if TYPE_CHECKING:
    from genie.replay.assemble import Labels, Tables

FORMAT = 1
#: Folder inside a recording's for files brought home.
HOME = "remote"
#: Of a worker's blobs, those that stay; counters come home.
LOGS = ("ops", "messages", "connections")
Logs = dict[str, npt.NDArray[np.void]]


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a worker's file holds: its shard and logs, each compressed by zlib."""

    format: int
    run: str
    worker: int
    start_ns: int
    """CLOCK_MONOTONIC of the worker that is 0 in its logs."""
    shard: bytes
    logs: dict[str, bytes]


class Kept(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a worker's file is."""

    path: str
    nbytes: int
    sha256: str


def keep(folder: str, run: str, worker: int, start_ns: int, shard: bytes, logs: Logs) -> Kept:
    """Write a worker's file.

    Raises:
        OSError: The disk refused; nothing is left.
    """
    part = Part(
        FORMAT,
        run,
        worker,
        start_ns,
        zlib.compress(shard, 1),
        {name: zlib.compress(table.tobytes(), 1) for name, table in logs.items()},
    )
    data = msgspec.msgpack.encode(part)
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    path = target.resolve() / f"{run}.worker{worker}.genie"
    handle, scratch = tempfile.mkstemp(prefix=".genie-", dir=target)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, path)
    except OSError:
        os.unlink(scratch)
        raise
    return Kept(str(path), len(data), hashlib.sha256(data).hexdigest())


def gather(manifest: dict[str, Any], folder: Path | None) -> tuple[Tables, Labels] | None:
    """Return the `ops` and `messages` of the files that are here; None when none is.

    Args:
        manifest: Of the recording; entries of "remote" that are found move to "joined".
        folder: The recording's, None when it is in memory only.

    Raises:
        RecordError: A file is damaged, or is another run's.
    """
    from genie.replay.assemble import merge

    parts, left, joined = [], [], []
    for entry in manifest.get("remote", ()):
        path = _find(entry, folder)
        if path is None:
            left.append(entry)
        else:
            joined.append(entry)
            parts.append(_read(path, entry, manifest))
    if not parts:
        return None
    manifest["joined"] = [*manifest.get("joined", ()), *joined]
    manifest["remote"] = left
    return merge(parts)


def missing(manifest: dict[str, Any]) -> list[str]:
    """Return host:path of the files that are not joined."""
    return [f"{entry['host']}:{entry['path']}" for entry in manifest.get("remote", ())]


def _find(entry: dict[str, Any], folder: Path | None) -> Path | None:
    written = Path(entry["path"])
    home = folder / HOME / written.name if folder is not None else None
    if home is not None and home.is_file():
        return home
    here = entry["host"] == socket.gethostname() and written.is_file()
    return written if here else None


def _read(path: Path, entry: dict[str, Any], manifest: dict[str, Any]) -> tuple[Tables, Labels]:
    from genie._core.engine import CONNECTIONS, MESSAGES, OPS
    from genie.replay.clocks import ClockFit
    from genie.replay.collect import part_of
    from genie.replay.shard import Shard

    data = path.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    if digest != entry["sha256"]:
        raise RecordError(
            f"{path}: damaged, or of another run: its SHA-256 is {digest[:12]}..., the recording "
            f"says {entry['sha256'][:12]}...",
            path=str(path),
        )
    try:
        part = msgspec.msgpack.decode(data, type=Part)
        dtypes = {"ops": OPS, "messages": MESSAGES, "connections": CONNECTIONS}
        logs = {
            name: np.frombuffer(zlib.decompress(part.logs[name]), dtype=dtype)
            for name, dtype in dtypes.items()
        }
        shard = Shard.from_bytes(zlib.decompress(part.shard))
    except (msgspec.DecodeError, zlib.error, KeyError, ValueError) as exc:
        raise RecordError(f"{path}: not a worker's recording: {exc}", path=str(path)) from exc
    clock = manifest["clock"]
    row = clock["corrections"][part.worker]
    fit = ClockFit(
        row["reference_ns"],
        row["offset_ns"],
        row["drift"],
        row["bound_ns"],
        row["steady"],
        row["exchanges"],
    )
    return part_of(shard, logs, fit, (part.start_ns, clock["start_ns"]))
