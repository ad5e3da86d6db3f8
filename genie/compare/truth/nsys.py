"""Nsight Systems' sqlite exports: one operation an NCCL kernel.

Tables are created lazily and columns vary by version, so only what is there is asked for. Times
are ns from the session's start; `TARGET_INFO_SESSION_START_TIME.utcEpochNs`, where present, makes
them comparable between files.
"""

from __future__ import annotations

import re
import sqlite3
from bisect import bisect_right
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from genie.compare.truth.kernels import NCCL_KERNEL, kernel_choice, kernel_kind, torch_kind
from genie.compare.truth.model import KINDS, Labels, Truth, ops_of
from genie.errors import CompareError

MAGIC = b"SQLite format 3\x00"
_KERNEL, _RUNTIME = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME"
_RANK = re.compile(r"(?:rank|worker)[-_.]?(\d+)", re.IGNORECASE)
_CALL = re.compile(r"^nccl([A-Z]\w*)")
_PUSH_POP, _START_END = 59, 60  # NVTX event types with an end


def _columns(db: sqlite3.Connection, table: str) -> set[str]:
    return {row[1] for row in db.execute(f"PRAGMA table_info({table})")}


def read(path: Path) -> Truth:
    """Return the GPU's operations of one export.

    Ranks are the numbers of the devices where the file holds several, else the file name's, else
    0. nbytes stays -1: stock NCCL's NVTX ranges carry no sizes in the export.

    Raises:
        CompareError: Damaged, no kernel table, or no NCCL kernel in it.
    """
    try:
        db = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
        try:
            return _read(db, path)
        finally:
            db.close()
    except sqlite3.DatabaseError as error:
        raise CompareError(f"{path}: damaged sqlite file: {error}", path=str(path)) from error


def _read(db: sqlite3.Connection, path: Path) -> Truth:
    columns = _columns(db, _KERNEL)
    if not {"start", "end"} <= columns:
        raise CompareError(
            f"{path}: an sqlite file without {_KERNEL}: not an Nsight Systems export of a run "
            "that used a GPU",
            path=str(path),
        )
    name = next((c for c in ("demangledName", "shortName", "mangledName") if c in columns), None)
    if name is None:
        raise CompareError(f"{path}: {_KERNEL} names no kernels", path=str(path))
    strings = {}
    if {"id", "value"} <= _columns(db, "StringIds"):
        strings = dict(db.execute("SELECT id, value FROM StringIds"))
    base = _base_ns(db)
    wanted = ["start", "end", name] + [
        c for c in ("deviceId", "streamId", "correlationId", "gridX", "globalPid") if c in columns
    ]
    launches = _launches(db)
    spans = _ranges(db, strings)
    labels, unused = Labels(), Counter[str]()
    rows: list[dict[str, Any]] = []
    kernels = 0
    for values in db.execute(f"SELECT {', '.join(wanted)} FROM {_KERNEL} ORDER BY start"):
        found = dict(zip(wanted, values, strict=True))
        kernels += 1
        text = (
            strings.get(found[name], found[name]) if isinstance(found[name], int) else found[name]
        )
        if found["end"] is None or found["end"] < found["start"]:
            unused["kernel with a negative or no duration"] += 1
            continue
        rows.append(_row(found, str(text), base, launches, spans))
    devices = sorted({row["device"] for row in rows})
    match = _RANK.search(path.name)
    for row in rows:
        device = row.pop("device")
        row["rank"] = (
            device if len(devices) > 1 else int(match[1]) if match else 0
        )  # several devices of one process are several ranks
    ops = ops_of(rows, labels)
    computes = ops["kind"] == KINDS.index("comp")
    if computes.all():
        raise CompareError(
            f"{path}: no NCCL kernel among {kernels} GPU kernels: nothing to compare",
            path=str(path),
        )
    return Truth(
        ops=ops[~computes],
        compute=ops[computes],
        source=str(path),
        format="nsys-sqlite",
        labels=labels.tables(),
        counts={"kernels": kernels, "ranks": max(len(devices), 1)},
        unused=dict(unused),
        notes=(
            "Nsight exports carry no sizes: operations without one are left out of the metrics",
        ),
    )


def _base_ns(db: sqlite3.Connection) -> int:
    table = "TARGET_INFO_SESSION_START_TIME"
    if "utcEpochNs" not in _columns(db, table):
        return 0
    row = db.execute(f"SELECT utcEpochNs FROM {table} LIMIT 1").fetchone()
    return int(row[0]) if row and row[0] is not None else 0


def _launches(db: sqlite3.Connection) -> dict[int, tuple[int, int]]:
    """Return correlation id → (thread, start) of runtime calls."""
    if not {"start", "globalTid", "correlationId"} <= _columns(db, _RUNTIME):
        return {}
    query = f"SELECT correlationId, globalTid, start FROM {_RUNTIME}"
    return {c: (tid, start) for c, tid, start in db.execute(query)}


def _ranges(
    db: sqlite3.Connection, strings: dict[int, str]
) -> dict[int, list[tuple[int, int, str]]]:
    """Return thread → (start, end, call) of NVTX ranges of NCCL calls, by start."""
    columns = _columns(db, "NVTX_EVENTS")
    if not {"start", "end", "globalTid"} <= columns:
        return {}
    texts = [c for c in ("text", "textId") if c in columns]
    kind = " AND eventType IN (?, ?)" if "eventType" in columns else ""
    query = f"SELECT start, end, globalTid, {', '.join(texts)} FROM NVTX_EVENTS WHERE end NOT NULL"
    found: dict[int, list[tuple[int, int, str]]] = defaultdict(list)
    arguments = (_PUSH_POP, _START_END) if kind else ()
    for start, end, tid, *labels in db.execute(query + kind, arguments):
        text = next((x for x in labels if isinstance(x, str)), None) or next(
            (strings[x] for x in labels if isinstance(x, int) and x in strings), ""
        )
        if _CALL.match(text) or text.startswith("nccl:"):
            found[tid].append((start, end, text))
    for spans in found.values():
        spans.sort()
    return found


def _row(
    found: dict[str, Any],
    name: str,
    base: int,
    launches: dict[int, tuple[int, int]],
    spans: dict[int, list[tuple[int, int, str]]],
) -> dict[str, Any]:
    row: dict[str, Any] = {
        "device": found.get("deviceId") or 0,
        "name": name.split("(", 1)[0],
        "start_ns": base + found["start"],
        "end_ns": base + found["end"],
        "time_ns": float(found["end"] - found["start"]),
        "stream": found.get("streamId", -1),
        "kind": KINDS.index("comp"),
    }
    if not NCCL_KERNEL.match(name):
        return row
    kind = kernel_kind(name)
    launch = launches.get(found.get("correlationId", -1))
    if kind == "unknown" and launch is not None:
        kind = _call_at(spans.get(launch[0], []), launch[1]) or kind
    algorithm, protocol = kernel_choice(name)
    return row | {
        "kind": KINDS.index(kind),
        "algorithm": algorithm,
        "protocol": protocol,
        "channels": found.get("gridX", -1),
    }


def _call_at(spans: list[tuple[int, int, str]], at: int) -> str | None:
    """Return the kind of the innermost NCCL range around a time."""
    for start, end, text in reversed(spans[: bisect_right(spans, (at, 1 << 63, ""))]):
        if start <= at <= end:
            call = _CALL.match(text)
            kind = torch_kind(text.removeprefix("nccl").lstrip(":") if call else text)
            if kind:
                return kind
    return None
