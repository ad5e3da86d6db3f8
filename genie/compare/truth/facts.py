"""JSON documents of facts taken from reports: choices, bandwidth cells, links, pairs of hosts.

These are records of published measurements without a log behind them. What is an operation with
a number becomes a row; a document that describes something else (a graph, counters, failed
completions) is refused by what it is.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from genie.compare.truth.inspector import FUNCTIONS
from genie.compare.truth.kernels import torch_kind
from genie.compare.truth.model import KINDS, UNKNOWN, Labels, Truth, ops_of
from genie.compare.truth.perftest import row_of, truth_of
from genie.errors import CompareError

_SIZE = re.compile(r"\b(\d{4,}) B\b")
_COUNTER = re.compile(
    r"^(np_|rp_|roce_|rx_|tx_|req_|resp_|rnr_|out_of_|local_ack|packet_seq|duplicate_request|"
    r"implied_nak|port_|symbol_error|lifespan)"
)


def read(path: Path, document: Any) -> Truth | None:
    """Return the operations of a document of facts, None if it is none that is known.

    Raises:
        CompareError: The document is known and has no operation, with what it is.
    """
    if not isinstance(document, dict):
        return None
    _refuse_graph(path, document)
    records = document.get("records")
    if isinstance(records, dict):
        _refuse_counters(path, records)
        return None
    if _counters(document):
        _refuse_counters(path, document)
    if isinstance(records, list) and records and all(isinstance(r, dict) for r in records):
        return _records(path, records)
    if isinstance(document.get("files"), dict):
        return _selections(path, document["files"])
    return _cells(path, document)


def _refuse_graph(path: Path, document: dict[str, Any]) -> None:
    if "n_ranks" in document and ({"rings", "trees"} & set(document)):
        raise CompareError(
            f"{path}: describes NCCL's graph ({document['n_ranks']} ranks, "
            f"{document.get('coll_channels', '?')} channels): no operation in it; a cluster is "
            "given to --cluster FILE",
            path=str(path),
        )


def _counters(document: dict[str, Any]) -> bool:
    known = [name for name in document if isinstance(name, str) and _COUNTER.match(name)]
    return len(known) >= 3 and len(known) * 2 >= len(document)


def _refuse_counters(path: Path, counters: dict[str, Any]) -> None:
    if not _counters(counters):
        return
    raised = [
        f"{name} {value}"
        for name, value in counters.items()
        if isinstance(value, int) and value > 0 and name != "lifespan"
    ]
    raise CompareError(
        f"{path}: RoCE counters ({len(counters)}) are totals of a device: no operation to compare"
        + (f"; not zero: {', '.join(raised[:6])}" if raised else ""),
        path=str(path),
    )


def _records(path: Path, records: list[dict[str, Any]]) -> Truth | None:
    if all("status" in r and ("vendor_err" in r or "opcode" in r) for r in records):
        by = Counter(r["status"] for r in records)
        shown = ", ".join(f"{n} x status {status}" for status, n in by.items())
        raise CompareError(
            f"{path}: failed work completions ({shown}): opcode and length are not valid in a "
            "failed completion, so no message can be read",
            path=str(path),
        )
    unused: Counter[str] = Counter()
    if any("tool" in r for r in records):
        rows = list(_perftest(records, unused))
        return truth_of(rows, path, dict(unused)) if rows else None
    rows = []
    for table, record in enumerate(records):
        found = list(_pairs(record)) + list(_choice(record, unused))
        if not found:
            unused["record without a size, bandwidth or choice"] += 1
        rows += [row | {"table": table} for row in found]
    if not rows:
        return None
    return _made(path, rows, unused, "facts")


def _perftest(records: list[dict[str, Any]], unused: Counter[str]) -> Iterator[dict[str, Any]]:
    for table, record in enumerate(records):
        rows = record.get("rows", [record["row"]] if "row" in record else [])
        for row in rows:
            if not isinstance(row, dict) or "bytes" not in row or "bw_avg" not in row:
                unused["perftest row without bytes and an average"] += 1
                continue
            tool = str(record.get("tool", "")) or None
            unit = str(record.get("unit", ""))
            made = row_of(row["bytes"], row.get("iters", -1), row["bw_avg"], unit, tool)
            yield made | {"table": table}


def _kind(text: Any) -> int:
    found = FUNCTIONS.get(str(text)) or torch_kind(str(text).split(",")[0].split(" ")[0])
    return KINDS.index(found) if found in KINDS else UNKNOWN


def _pairs(record: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield bandwidths of one test: by pair of hosts, by size, by algorithm."""
    text = str(record.get("test", ""))
    size = _SIZE.search(text)
    base: dict[str, Any] = {
        "kind": _kind(text) if text else UNKNOWN,
        "nbytes": int(size[1]) if size else -1,
    }
    for suffix, key in (("", "busbw_oop"), ("_in", "busbw_ip")):
        for nbytes, value in dict(record.get(key) or {}).items():
            yield base | {"nbytes": int(nbytes), f"busbw{suffix}": float(value)}
    for pair in record.get("pairs") or []:
        name = "+".join(map(str, pair.get("nodes", ())))
        yield base | {"name": name or None, "busbw": float(pair["busbw"])}
    for row in record.get("rows") or []:
        if isinstance(row, dict) and "busbw" in row:
            yield base | {
                "group_size": int(row.get("gpus", -1)),
                "algorithm": str(row["algo"]).lower() if "algo" in row else None,
                "nbytes": int(row.get("bytes", row.get("size", base["nbytes"]))),
                "busbw": float(row["busbw"]),
            }


def _choice(record: dict[str, Any], unused: Counter[str]) -> Iterator[dict[str, Any]]:
    """Yield what NCCL chose for one size."""
    if "algo" not in record or "proto" not in record:
        return
    nbytes = record.get("bytes", record.get("size"))
    if not isinstance(nbytes, int):
        unused["choice for a range of sizes"] += 1
        return
    channels = record.get("ch")
    if "ch_lo" in record and "ch_hi" in record:
        channels = [record["ch_lo"], record["ch_hi"]]
    time = record.get("time_us")
    yield {
        "kind": _kind(record.get("coll", "")),
        "nbytes": nbytes,
        "group_size": int(record.get("ranks", -1)),
        "algorithm": str(record["algo"]).lower(),
        "protocol": str(record["proto"]).lower(),
        "channels": channels[1] - channels[0] + 1 if isinstance(channels, list) else -1,
        "time_ns": float(time) * 1e3 if isinstance(time, int | float) else float("nan"),
    }


def _selections(path: Path, files: dict[str, Any]) -> Truth | None:
    unused: Counter[str] = Counter()
    rows = []
    for table, entry in enumerate(files.values()):
        listed = entry.get("distinct", []) if isinstance(entry, dict) else entry
        for record in listed if isinstance(listed, list) else []:
            if isinstance(record, dict):
                rows += [row | {"table": table} for row in _choice(record, unused)]
    return _made(path, rows, unused, "nccl-tuning facts") if rows else None


def _cells(path: Path, document: dict[str, Any]) -> Truth | None:
    """Return tables of {"size", "cells"} rows whose column names are beside them."""
    names = [v for k, v in document.items() if k.startswith("columns") and isinstance(v, list)]
    tables = [
        v
        for v in document.values()
        if isinstance(v, list) and v and isinstance(v[0], dict) and {"size", "cells"} <= set(v[0])
    ]
    if not tables:
        return None
    unused: Counter[str] = Counter()
    rows: list[dict[str, Any]] = []
    number = 0
    for table in tables:
        width = len(table[0]["cells"])
        columns = next((n for n in names if len(n) == width), [f"column {i}" for i in range(width)])
        for i, column in enumerate(columns):
            found = []
            for row in table:
                try:
                    found.append((int(row["size"]), float(row["cells"][i])))
                except (ValueError, IndexError, TypeError):
                    unused["cell that is no bandwidth (a change in per cent, or empty)"] += 1
            rows += [
                {"nbytes": size, "busbw": value, "name": str(column), "table": number}
                for size, value in found
            ]
            number += bool(found)
    note = "cells are bus bandwidths in GB/s, one table a column; the text names no collective"
    return _made(path, rows, unused, "facts", (note,)) if rows else None


def _made(
    path: Path,
    rows: list[dict[str, Any]],
    unused: Counter[str],
    name: str,
    notes: tuple[str, ...] = (),
) -> Truth:
    labels = Labels()
    return Truth(
        ops=ops_of(rows, labels),
        source=str(path),
        format=name,
        labels=labels.tables(),
        counts={"rows": len(rows)},
        unused=dict(unused),
        notes=notes,
    )
