"""How long one operator takes on a GPU: a roofline with an efficiency table, or measured times."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from genie.errors import InputError
from genie.trace.kinds import DTYPES, dtype_bytes, dtype_index
from genie.workload.models import DATA, read_toml
from genie.workload.spec import Hardware


@lru_cache(maxsize=1)
def _tables() -> dict[str, Any]:
    return read_toml(DATA / "gpus.toml")


def gpu_names() -> list[str]:
    """Return the known GPUs."""
    return [name for name in _tables() if name != "efficiency"]


@dataclass(frozen=True)
class Work:
    """What an operator does: FLOP, bytes to and from memory, and its class of kernel."""

    kind: str
    flops: float
    nbytes: float

    def times(self, factor: float) -> Work:
        """Return the same work `factor` times."""
        return Work(self.kind, self.flops * factor, self.nbytes * factor)


#: Operators that run one after the other.
Works = tuple[Work, ...]


def times(works: Works, factor: float) -> Works:
    """Return the same operators, each `factor` times."""
    return tuple(work.times(factor) for work in works)


class Roofline:
    """Times of one GPU.

    An operator takes the longer of arithmetic at (efficiency x peak) and memory traffic at
    (efficiency x bandwidth). A measured time, where the CSV has one for its name, wins.
    """

    def __init__(self, hardware: Hardware, compute_dtype: str) -> None:
        """Look the GPU up.

        Raises:
            InputError: The GPU, or its peak for that element type, is not known.
        """
        known = _tables()
        row = known.get(hardware.gpu.lower()) if hardware.gpu != "efficiency" else None
        if row is None:
            raise InputError(f"no GPU {hardware.gpu!r} (known: {', '.join(gpu_names())})")
        dtype = DTYPES[dtype_index(compute_dtype)]
        if dtype not in row["tflops"]:
            raise InputError(
                f"{hardware.gpu} has no peak for {dtype} (known: {', '.join(row['tflops'])})"
            )
        self.peak_tflops = float(row["tflops"][dtype])
        # Attention kernels of training run in bfloat16 where products are in 8 bits (Transformer
        # Engine's default; DeepSeek-V3, section 3.3.1).
        attention = "bfloat16" if dtype_bytes(dtype) == 1 else dtype
        self.attention_tflops = float(row["tflops"][attention])
        self.memory_gbps = float(row["memory_gbps"])
        self.memory_bytes = int(float(row["memory_gb"]) * 1e9)
        self.efficiency = {
            kind: min(1.0, float(value) * hardware.efficiency)
            for kind, value in known["efficiency"].items()
        }
        self.measured = _measured(hardware.times) if hardware.times else {}

    def time_ns(self, work: Work) -> float:
        """Return the modelled time of one operator in ns."""
        arithmetic = 0.0
        if work.kind != "memory":
            peak = self.attention_tflops if work.kind == "attention" else self.peak_tflops
            arithmetic = work.flops / (peak * 1e3 * self.efficiency[work.kind])
        return max(arithmetic, work.nbytes / (self.memory_gbps * self.efficiency["memory"]))

    def total_ns(self, name: str, works: list[Work]) -> int:
        """Return the time of operators that run one after the other, at least 1 ns.

        Args:
            name: What a CSV of measured times calls them ("forward.attention").
            works: The operators.
        """
        measured = self.measured.get(name)
        if measured is not None:
            return max(1, round(measured))
        return max(1, round(sum(self.time_ns(work) for work in works)))


def _measured(path: str) -> dict[str, float]:
    # CSV with the columns name and time_us -> ns by name
    try:
        with Path(path).open(newline="") as file:
            rows = csv.DictReader(file)
            if rows.fieldnames is None or not {"name", "time_us"} <= set(rows.fieldnames):
                raise InputError(f"{path}: needs the columns name and time_us")
            found = {}
            for number, row in enumerate(rows, 2):
                try:
                    ns = float(row["time_us"]) * 1e3
                except (TypeError, ValueError):
                    ns = -1.0
                if not 0 <= ns < float("inf"):
                    raise InputError(f"{path}: line {number}: not a time: {row['time_us']!r}")
                found[row["name"].strip()] = ns
            return found
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
