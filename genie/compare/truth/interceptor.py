"""JSON of a verbs interceptor: one record a posted work request or completion.

Records are found by what they hold (a queue pair and an opcode or length), whatever the program
that wrote them called the list: a list, one object a line, or an object with one list in it.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

from genie.compare.truth.model import Labels, Truth, empty_ops, messages_of
from genie.compare.truth.plugin import OPCODES

_QP = ("qp_num", "qpn", "qp", "qpNum", "local_qpn", "src_qp")
_SIZE = ("length", "byte_len", "size", "bytes", "msg_size", "total_length")
_TIME = ("timestamp_ns", "time_ns", "ts_ns", "start_ns", "timestamp", "ts", "time")
_END = ("completed_ns", "end_ns", "completion_ns")
_OPCODE = ("opcode", "wr_opcode", "op")
_RANK = re.compile(r"(?:rank|worker)[-_.]?(\d+)", re.IGNORECASE)


def _first(record: dict[str, Any], names: tuple[str, ...]) -> Any:
    return next((record[name] for name in names if name in record), None)


def is_request(record: Any) -> bool:
    """Return whether a JSON value is a record of a work request."""
    return (
        isinstance(record, dict)
        and _first(record, _QP) is not None
        and _first(record, _SIZE) is not None
        and _first(record, _OPCODE) is not None
    )


def requests_of(document: Any) -> list[Any] | None:
    """Return the list of records in a document, None if it is something else."""
    candidates = [document] if isinstance(document, list) else []
    if isinstance(document, dict):
        candidates = [value for value in document.values() if isinstance(value, list)]
        if is_request(document):
            candidates.append([document])
    for found in candidates:
        if found and any(is_request(record) for record in found[:64]):
            return found
    return None


def read(documents: dict[Path, list[Any]], source: Path) -> Truth:
    """Return one message a successful record; failed and unreadable ones are counted."""
    labels = Labels()
    unused: Counter[str] = Counter()
    rows: list[dict[str, Any]] = []
    for table, (path, records) in enumerate(documents.items()):
        match = _RANK.search(path.name)
        rank = int(match[1]) if match else table
        for record in records:
            if not is_request(record):
                unused["record without a queue pair, opcode and length"] += 1
                continue
            status = record.get("status", 0)
            if status not in (0, "0", "IBV_WC_SUCCESS", "success", None, "OK"):
                unused["failed completion (opcode and length are not valid)"] += 1
                continue
            rows.append(_row(record, rank))
    return Truth(
        ops=empty_ops(0),
        messages=messages_of(rows, labels) if rows else None,
        source=str(source),
        format="verbs-interceptor",
        labels=labels.tables(),
        counts={"files": len(documents), "requests": len(rows)},
        unused=dict(unused),
        notes=("work requests without the collective they belong to",),
    )


def _row(record: dict[str, Any], rank: int) -> dict[str, Any]:
    opcode = _first(record, _OPCODE)
    text = str(OPCODES.get(opcode, opcode)) if isinstance(opcode, int) else str(opcode)
    text = text.removeprefix("IBV_WR_").removeprefix("IBV_WC_")
    start, end = _first(record, _TIME), _first(record, _END)
    own = record.get("rank")
    return {
        "rank": own if isinstance(own, int) else rank,
        "peer": _int(record.get("peer", record.get("remote_rank"))),
        "channel": _int(record.get("channel")),
        "direction": int("RECV" in text.upper()),
        "nbytes": max(_int(_first(record, _SIZE)), 0),
        "qp": _int(_first(record, _QP)),
        "opcode": text,
        "start_ns": _int(start),
        "end_ns": _int(end),
    }


def _int(value: Any) -> int:
    try:
        number = int(value, 0) if isinstance(value, str) else int(value)
    except (TypeError, ValueError, OverflowError):
        return -1
    return number if -(1 << 63) <= number < 1 << 63 else -1
