"""nccl-tests: its text tables (with a launcher's prefixes, elided rows) and its JSON (`-J`, v3)."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from genie.compare.truth.model import KINDS, UNKNOWN, Labels, Truth, ops_of
from genie.errors import CompareError

#: Names of the test programs → kinds as traces spell them.
PROGRAMS = {
    "all_reduce": "all_reduce",
    "allreduce": "all_reduce",
    "all_gather": "all_gather",
    "allgather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "all_to_all": "all_to_all",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "sendrecv": "send",
    "hypercube": "unknown",
}
DTYPES = {
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "bfloat16": "bfloat16",
    "int8": "int8",
    "uint8": "uint8",
    "int32": "int32",
    "uint32": "uint32",
    "int64": "int64",
    "uint64": "uint64",
    "fp8_e4m3": "float8_e4m3",
    "f8e4m3": "float8_e4m3",
    "fp8_e5m2": "float8_e5m2",
    "f8e5m2": "float8_e5m2",
}

_PROGRAM = re.compile(r"\b(" + "|".join(sorted(PROGRAMS, key=len, reverse=True)) + r")_perf\b")
_RANK = re.compile(r"#\s+Rank\s+(\d+)\s+(?:Group\s+\d+\s+)?Pid\s")
#: A row: size, count, type, then the rest as tokens; whatever a launcher puts before is skipped.
_ROW = re.compile(
    r"(?:^|[\s:>|\]])(\d+)\s+(\d+)\s+("
    + "|".join(sorted(map(re.escape, DTYPES), key=len, reverse=True))
    + r")\s+(.*)$"
)
_HEADER = re.compile(r"#\s+size\s+count\s+type\b(.*)$")
_DEFAULT = ["redop", "root", "time", "algbw", "busbw", "#wrong"]


def is_text(head: str) -> bool:
    """Return whether text looks like nccl-tests output: a header line or a row."""
    return any(_HEADER.search(line) or _ROW.search(line) for line in head.splitlines())


def _number(text: str) -> float:
    if text.upper() == "N/A":
        return float("nan")
    try:
        return float(text)
    except ValueError:
        return float("nan")


def _count(text: str) -> int:
    value = _number(text)
    return int(value) if np.isfinite(value) else -1


def read_text(path: Path, text: str) -> Truth:
    """Return every row of every table in file order.

    Raises:
        CompareError: No row was found.
    """
    labels = Labels()
    rows: list[dict[str, Any]] = []
    unused: dict[str, int] = {}
    columns: list[str] = []
    kind = UNKNOWN
    ranks: set[int] = set()
    table = -1
    for line in text.splitlines():
        program = _PROGRAM.search(line)
        if program:
            kind = KINDS.index(PROGRAMS[program[1]])
        header = _HEADER.search(line)
        if header:
            columns = header[1].split()
            table += 1
            continue
        rank = _RANK.search(line)
        if rank:
            if int(rank[1]) == 0:
                ranks = set()
            ranks.add(int(rank[1]))
            continue
        if line.lstrip().startswith("#"):
            continue
        row = _ROW.search(line)
        if row:
            parsed = _parse_row(row, columns)
            if parsed is None:
                unused["row without times"] = unused.get("row without times", 0) + 1
                continue
            parsed |= {"kind": kind, "table": max(table, 0), "group_size": len(ranks) or -1}
            rows.append(parsed)
        elif re.search(r"(?:^|[\s:>])(?:\.{3}|…)\s*$", line):
            unused["elided rows ('...')"] = unused.get("elided rows ('...')", 0) + 1
    return _truth(path, "nccl-tests", rows, labels, unused, max(table + 1, 1))


def _parse_row(row: re.Match[str], columns: list[str]) -> dict[str, Any] | None:
    """Return one printed row as named values, None when it has no time."""
    tokens = row[4].split()
    names = columns or _DEFAULT + _DEFAULT[2:]
    if len(tokens) > len(names) and not columns:
        return None
    first = next((i for i, name in enumerate(names) if name == "time"), None)
    if first is None:
        return None
    # Fewer tokens than the header names: columns before the times were left out, as old
    # versions do without a root.
    lead = max(0, len(names) - len(tokens)) if len(tokens) < len(names) else 0
    if lead and lead <= first:
        names = names[:first][: first - lead] + names[first:]
    values: dict[str, list[str]] = {}
    for name, token in zip(names, tokens, strict=False):
        values.setdefault(name, []).append(token)
    times = values.get("time", [])
    if not times or not np.isfinite(_number(times[0])):
        return None
    found: dict[str, Any] = {
        "nbytes": int(row[1]),
        "count": int(row[2]),
        "dtype": DTYPES[row[3]],
        "root": _count(values["root"][0]) if "root" in values else -1,
    }
    wrong = values.get("#wrong", values.get("error", []))
    for half, suffix in enumerate(("", "_in")):
        if half < len(times):
            found["time" + suffix + "_ns"] = _number(times[half]) * 1e3
            for name in ("algbw", "busbw"):
                if half < len(values.get(name, [])):
                    found[name + suffix] = _number(values[name][half])
            if half < len(wrong):
                found["wrong" + suffix] = _count(wrong[half])
    return found


def is_json(document: Any) -> bool:
    """Return whether a JSON document is nccl-tests' or holds tables typed off one."""
    if not isinstance(document, dict):
        return False
    results = document.get("results")
    if isinstance(results, list) and results and isinstance(results[0], dict):
        return {"size", "out_of_place"} & set(results[0]) == {"size", "out_of_place"}
    return isinstance(document.get("tables"), list)


def read_json(path: Path, document: dict[str, Any]) -> Truth:
    """Return every result of a `-J` document, or every row of typed tables ("oop", "ip")."""
    labels = Labels()
    unused: dict[str, int] = {}
    kind = _json_kind(document)
    rows: list[dict[str, Any]] = []
    tables = document.get("tables")
    if isinstance(tables, list):
        lists = [(i, entry.get("rows", [])) for i, entry in enumerate(tables)]
        names = ("oop", "ip")
    else:
        lists = [(0, document["results"])]
        names = ("out_of_place", "in_place")
    n_ranks = _json_ranks(document)
    for table, entries in lists:
        for entry in entries:
            row = _json_row(entry, names)
            if row is None:
                unused["row without times"] = unused.get("row without times", 0) + 1
                continue
            name = entry.get("experiment_name") or ""
            own = _PROGRAM.search(str(name))
            rows.append(
                row
                | {
                    "kind": KINDS.index(PROGRAMS[own[1]]) if own else kind,
                    "table": table,
                    "group_size": n_ranks,
                }
            )
    return _truth(path, "nccl-tests", rows, labels, unused, len(lists))


def _json_kind(document: dict[str, Any]) -> int:
    for text in (document.get("args"), document.get("config"), document.get("name")):
        found = _PROGRAM.search(json.dumps(text)) if text is not None else None
        if found:
            return KINDS.index(PROGRAMS[found[1]])
    return UNKNOWN


def _json_ranks(document: dict[str, Any]) -> int:
    devices = document.get("devices")
    return len(devices) if isinstance(devices, list) and devices else -1


def _json_row(entry: dict[str, Any], names: tuple[str, str]) -> dict[str, Any] | None:
    out: dict[str, Any] = {
        "nbytes": int(entry["size"]),
        "count": int(entry.get("count", -1)),
        "dtype": DTYPES.get(str(entry.get("type")), str(entry.get("type") or "")),
        "root": _count(str(entry.get("root", -1))),
    }
    timed = False
    for name, suffix in zip(names, ("", "_in"), strict=True):
        half = entry.get(name)
        if not isinstance(half, dict):
            continue
        time = half.get("time", half.get("time_us", half.get("cpu_time")))
        if time is None or not np.isfinite(_number(str(time))):
            continue
        timed = timed or not suffix
        out["time" + suffix + "_ns"] = _number(str(time)) * 1e3
        for ours, keys in (("algbw", ("alg_bw", "algbw")), ("busbw", ("bus_bw", "busbw"))):
            value = next((half[key] for key in keys if key in half), None)
            if value is not None:
                out[ours + suffix] = _number(str(value))
        out["wrong" + suffix] = _count(str(half.get("nwrong", half.get("wrong", -1))))
    return out if timed else None


def _truth(
    path: Path,
    name: str,
    rows: list[dict[str, Any]],
    labels: Labels,
    unused: dict[str, int],
    tables: int,
) -> Truth:
    """Return the rows as a Truth."""
    if not rows:
        raise CompareError(f"{path}: no row of an nccl-tests table", path=str(path))
    ops = ops_of(rows, labels)
    notes: tuple[str, ...] = ()
    if (ops["kind"] == UNKNOWN).any():
        notes = ("the text does not say which collective some rows are: kind is unknown",)
    return Truth(
        ops=ops,
        source=str(path),
        format=name,
        labels=labels.tables(),
        counts={"tables": tables, "rows": len(rows)},
        unused=unused,
        notes=notes,
    )
