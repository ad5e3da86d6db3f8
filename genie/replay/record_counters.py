"""What the counters of a recorded run say, in short."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from genie.replay.recording import Recording

#: One row a counter of a worker: codes of device, name and meaning as in table counters.
CHANGE = np.dtype(
    [
        ("worker", "i4"),
        ("device", "i4"),
        ("name", "i4"),
        ("meaning", "i4"),
        ("before", "i8"),
        ("after", "i8"),
        ("delta", "i8"),
    ]
)
#: What stays out of the line: neither tells of trouble by itself.
_QUIET = {"", "pause"}


def changes(rec: Recording) -> npt.NDArray[np.void]:
    """Return first value, last value and difference of every counter of every worker."""
    table = rec.counters
    key = np.stack([table["worker"], table["device"], table["name"]], axis=1)
    new = np.ones(len(table), dtype=bool)
    new[1:] = (key[1:] != key[:-1]).any(axis=1)
    first = np.flatnonzero(new)
    last = np.append(first[1:], len(table)) - 1 if len(first) else first
    out = np.zeros(len(first), dtype=CHANGE)
    for column in ("worker", "device", "name", "meaning"):
        out[column] = table[column][first]
    out["before"], out["after"] = table["value"][first], table["value"][last]
    out["delta"] = out["after"] - out["before"]
    return out


def counters_line(rec: Recording) -> str:
    """Return what the NICs and TCP counted of loss and congestion; "" when nothing.

    Workers of one host see the same device: the largest of their counts stands for it.
    """
    found = changes(rec)
    found = found[found["delta"] > 0]
    workers = rec.manifest.get("workers", ())
    labels = {name: rec.labels["counters", name] for name in ("device", "name", "meaning")}
    most: Counter[tuple[str, str, str, str]] = Counter()
    for row in found:
        meaning = labels["meaning"][row["meaning"]]
        if meaning in _QUIET:
            continue
        index = int(row["worker"])
        host = str(workers[index].get("host", index)) if index < len(workers) else str(index)
        device, name = labels["device"][row["device"]], labels["name"][row["name"]]
        key = meaning, host, device, name
        most[key] = max(most[key], int(row["delta"]))
    if not most:
        return ""
    parts = []
    for meaning in dict.fromkeys(key[0] for key in sorted(most)):
        mine = [(count, *key[1:]) for key, count in most.items() if key[0] == meaning]
        mine.sort(key=lambda row: -row[0])
        count, host, device, name = mine[0]
        more = f", and {len(mine) - 1} more" if len(mine) > 1 else ""
        parts.append(f"{meaning} {count} ({device} {name} on {host}{more})")
    return f"counters: {'; '.join(parts)}"
