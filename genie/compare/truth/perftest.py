"""perftest (ib_write_bw and kin): its text table and its JSON."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from genie.compare.truth.model import KINDS, Labels, Truth, ops_of
from genie.errors import CompareError

_HEADER = re.compile(r"#bytes\s+#iterations\s+(.*)$", re.MULTILINE)
_ROW = re.compile(r"^\s*(\d+)\s+(\d+)\s+([\d.eE+-]+(?:\s+[\d.eE+-]+)*)\s*$")
_UNIT = re.compile(r"\[([^\]]+)\]")
#: Bytes per second of perftest's units (its MB is 2**20 bytes, as its man page says).
UNITS = {"MB/sec": float(1 << 20), "MiB/sec": float(1 << 20), "Gb/sec": 1e9 / 8, "GB/sec": 1e9}


def is_text(text: str) -> bool:
    """Return whether a text is perftest's output."""
    return _HEADER.search(text) is not None


def row_of(
    nbytes: int, iterations: int, average: float, unit: str, tool: str | None
) -> dict[str, Any]:
    """Return one bandwidth row as columns of OPS: a send of `nbytes` at the average rate.

    Raises:
        CompareError: The unit is not one of perftest's.
    """
    if unit not in UNITS:
        raise CompareError(f"perftest unit {unit!r}: known are {', '.join(UNITS)}")
    gbps = average * UNITS[unit] / 1e9
    return {
        "kind": KINDS.index("send"),
        "name": tool,
        "nbytes": nbytes,
        "count": iterations,
        "algbw": gbps,
        "busbw": gbps,
        "time_ns": nbytes / gbps if gbps > 0 else float("nan"),
        "group_size": 2,
    }


def truth_of(
    rows: list[dict[str, Any]], source: Path, unused: dict[str, int] | None = None
) -> Truth:
    """Return rows as Truth."""
    labels = Labels()
    return Truth(
        ops=ops_of(rows, labels),
        source=str(source),
        format="perftest",
        labels=labels.tables(),
        counts={"rows": len(rows)},
        unused=unused or {},
        notes=(
            "perftest measures one link: a row is the average rate of many messages, its time is "
            "size / rate; a BW peak of 0.00 means not measured",
        ),
    )


def read_text(path: Path, text: str) -> Truth:
    """Return every row of every table; bandwidth tests give rates, latency tests times."""
    rows: list[dict[str, Any]] = []
    columns: list[str] = []
    unit = ""
    for line in text.splitlines():
        header = _HEADER.search(line)
        if header:
            columns = re.split(r"\s{2,}", header[1].strip())
            found = next((_UNIT.search(c) for c in columns if "average" in c.lower()), None)
            unit = found[1] if found else ""
            continue
        match = _ROW.match(line)
        if not match or not columns:
            continue
        values = [float(text) for text in match[3].split()]
        place = next((i for i, c in enumerate(columns) if "average" in c or "t_avg" in c), None)
        if place is None or place >= len(values):
            continue
        if unit in UNITS:
            rows.append(row_of(int(match[1]), int(match[2]), values[place], unit, None))
        else:
            rows.append({"kind": KINDS.index("send"), "nbytes": int(match[1]), "group_size": 2,
                         "count": int(match[2]), "time_ns": values[place] * 1e3})  # fmt: skip
    return truth_of(rows, path)


def is_json(document: Any) -> bool:
    """Return whether a JSON document is perftest's."""
    return (
        isinstance(document, dict)
        and "test_info" in document
        and isinstance(document.get("results"), dict | list)
    )


def read_json(path: Path, document: dict[str, Any]) -> Truth:
    """Return the results of a `--out_json` document."""
    results = document["results"]
    info = document["test_info"] if isinstance(document["test_info"], dict) else {}
    rows: list[dict[str, Any]] = []
    unused: dict[str, int] = {}
    for result in results if isinstance(results, list) else [results]:
        size = result.get("MsgSize")
        average = result.get("BW_average", result.get("BW_average_Gbps"))
        unit = str(result.get("BW_unit", info.get("BW_unit", "Gb/sec")))
        late = result.get("t_avg", result.get("t_avg_usec"))
        tool = str(info.get("test", info.get("Device", ""))) or None
        if isinstance(size, int) and isinstance(average, int | float):
            rows.append(row_of(size, int(result.get("n_iterations", -1)), average, unit, tool))
        elif isinstance(size, int) and isinstance(late, int | float):
            rows.append({"kind": KINDS.index("send"), "nbytes": size, "group_size": 2,
                         "time_ns": late * 1e3, "name": tool})  # fmt: skip
        else:
            unused["result without a size and an average"] = (
                unused.get("result without a size and an average", 0) + 1
            )
    return truth_of(rows, path, unused)
