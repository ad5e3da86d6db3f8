"""NCCL Inspector logs (`<host>-pid<pid>.log`): one JSON object a finished operation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from genie.compare.truth.model import KINDS, UNKNOWN, Labels, Truth, ops_of
from genie.replay.bandwidth import WHOLE_BUFFER_KINDS

#: NCCL's function names → kinds.
FUNCTIONS = {
    "AllReduce": "all_reduce",
    "AllGather": "all_gather",
    "ReduceScatter": "reduce_scatter",
    "Broadcast": "broadcast",
    "Reduce": "reduce",
    "AlltoAll": "all_to_all",
    "AllToAll": "all_to_all",
    "Gather": "gather",
    "Scatter": "scatter",
    "Send": "send",
    "Recv": "recv",
}
_KEYS = ("coll_perf", "p2p_perf", "coll_msg_size_bytes", "p2p_msg_size_bytes")


def is_record(document: Any) -> bool:
    """Return whether a JSON object is an Inspector record."""
    return isinstance(document, dict) and any(key in document for key in _KEYS)


def records(text: str) -> Iterator[Any]:
    """Yield the JSON values of a text of objects, one a line or one after the other."""
    decoder = json.JSONDecoder()
    at = 0
    while at < len(text):
        while at < len(text) and text[at] in " \t\r\n,":
            at += 1
        if at >= len(text):
            return
        try:
            value, at = decoder.raw_decode(text, at)
        except ValueError:
            # A record cut short by the end of the job: go on with the next line.
            end = text.find("\n", at)
            yield None
            if end < 0:
                return
            at = end + 1
            continue
        if isinstance(value, list):
            yield from value
        else:
            yield value


def read(texts: dict[Path, str], source: Path) -> Truth:
    """Return the operations of one log or several (one a process).

    `coll_msg_size_bytes` is the whole buffer for all_reduce, broadcast, reduce and one rank's
    part for the others (checked on records: size x n / time = algbw there), so those are
    multiplied by the ranks here.
    """
    labels = Labels()
    unused: dict[str, int] = {}
    rows: list[dict[str, Any]] = []
    for table, text in enumerate(texts.values()):
        for record in records(text):
            if not is_record(record):
                why = "not an Inspector record" if record is not None else "record cut short"
                unused[why] = unused.get(why, 0) + 1
                continue
            row = _row(record)
            if row is None:
                unused["record without a time"] = unused.get("record without a time", 0) + 1
                continue
            rows.append(row | {"table": table})
    return Truth(
        ops=ops_of(rows, labels),
        source=str(source),
        format="nccl-inspector",
        labels=labels.tables(),
        counts={"files": len(texts), "records": len(rows) + sum(unused.values())},
        unused=unused,
        notes=(
            "the Inspector drops operations below 8192 B and CPU-timed ones by default, and keeps "
            "the last 1024 of each communicator",
        ),
    )


def _row(record: dict[str, Any]) -> dict[str, Any] | None:
    header = record.get("header") or {}
    perf = record.get("coll_perf") or record.get("p2p_perf") or record
    is_p2p = "p2p_msg_size_bytes" in perf
    prefix = "p2p" if is_p2p else "coll"
    time_us = perf.get(f"{prefix}_exec_time_us")
    if not isinstance(time_us, int | float) or not np.isfinite(time_us):
        return None
    name = str(perf.get(prefix, ""))
    kind = FUNCTIONS.get(name, "unknown")
    n = int(header.get("n_ranks", record.get("n_ranks", -1)))
    size = int(perf.get(f"{prefix}_msg_size_bytes", -1))
    return {
        "rank": int(header.get("rank", record.get("rank", -1))),
        "kind": KINDS.index(kind) if kind in KINDS else UNKNOWN,
        "communicator": str(header.get("id", record.get("id", "")) or ""),
        "group_size": n,
        "seq": int(perf.get(f"{prefix}_sn", -1)),
        "nbytes": size * n if kind in WHOLE_BUFFER_KINDS and size >= 0 and n > 0 else size,
        "time_ns": float(time_us) * 1e3,
        "algbw": float(perf.get(f"{prefix}_algobw_gbs", np.nan)),
        "busbw": float(perf.get(f"{prefix}_busbw_gbs", np.nan)),
        "peer": int(perf.get("p2p_peer", -1)) if is_p2p else -1,
    }
