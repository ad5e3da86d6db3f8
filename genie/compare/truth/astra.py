"""ASTRA-sim's stdout: the time each simulated rank took."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from genie.compare.truth.model import KINDS, UNKNOWN, Labels, Truth, ops_of
from genie.errors import CompareError

_FINISHED = re.compile(
    r"sys\[(\d+)\] finished, (\d+) cycles(?:, exposed communication (\d+) cycles)?"
)


def is_astra(text: str) -> bool:
    """Return whether a text is ASTRA-sim's output."""
    return _FINISHED.search(text) is not None


def read(path: Path, text: str) -> Truth:
    """Return one row a rank: its exposed communication, after its compute; a cycle is 1 ns.

    The order of both within the run is not in the output; only their lengths are.
    """
    labels = Labels()
    rows: dict[int, dict[str, Any]] = {}
    compute: dict[int, dict[str, Any]] = {}
    for match in _FINISHED.finditer(text):
        rank, cycles = int(match[1]), int(match[2])
        exposed = int(match[3]) if match[3] else cycles
        if exposed > cycles:
            raise CompareError(
                f"{path}: sys[{rank}] exposes {exposed} cycles of {cycles}",
                path=str(path),
                rank=rank,
            )
        row: dict[str, Any] = {"rank": rank, "kind": UNKNOWN, "name": "exposed communication",
                               "start_ns": cycles - exposed, "end_ns": cycles,
                               "time_ns": float(exposed)}  # fmt: skip
        rows[rank] = row
        if match[3]:
            compute[rank] = row | {"kind": KINDS.index("comp"), "name": "compute", "start_ns": 0,
                                   "end_ns": cycles - exposed,
                                   "time_ns": float(cycles - exposed)}  # fmt: skip
    return Truth(
        ops=ops_of(list(rows.values()), labels),
        compute=ops_of(list(compute.values()), labels) if compute else None,
        source=str(path),
        format="astra-sim",
        labels=labels.tables(),
        counts={"ranks": len(rows)},
        world_size=len(rows),
        notes=("ASTRA-sim prints times of whole runs: only the step (L2) can be compared",),
    )
