"""How long one operator takes on a GPU: a roofline with an efficiency table, or measured times."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from genie.errors import InputError
from genie.trace.kinds import DTYPES, dtype_bytes, dtype_index
from genie.workload.models import DATA, read_toml
from genie.workload.spec import Hardware

#: Tiles of the result that a library chooses among (CUTLASS's and cuBLAS's usual largest ones).
_TILES = ((128, 256), (256, 128), (128, 128))
#: Kinds of operator that do arithmetic on tensor cores, all others stream through memory.
_PRODUCTS = {"matmul", "matmul_16", "grouped_matmul"}
_ATTENTION = {"attention", "attention_backward"}


@lru_cache(maxsize=1)
def _tables() -> dict[str, Any]:
    return read_toml(DATA / "gpus.toml")


def gpu_names() -> list[str]:
    """Return the known GPUs."""
    return [name for name in _tables() if name != "efficiency"]


@dataclass(frozen=True)
class Work:
    """One kernel.

    Attributes:
        kind: "matmul" and "grouped_matmul" (in the compute type), "matmul_16" (in 16 bits),
            "attention", "attention_backward" or "memory".
        flops: FLOP.
        nbytes: Bytes from and to memory while the arithmetic runs.
        result: Bytes of a product's result, written once the arithmetic of a tile is over.
        rows, columns: Of the result of one product; 0 where it is none.
        many: Products of that shape in the kernel.
    """

    kind: str
    flops: float
    nbytes: float
    result: float = 0.0
    rows: float = 0.0
    columns: float = 0.0
    many: int = 1

    def times(self, factor: float) -> Work:
        """Return the same work `factor` times."""
        return replace(
            self,
            flops=self.flops * factor,
            nbytes=self.nbytes * factor,
            result=self.result * factor,
        )


#: Operators that run one after the other.
Works = tuple[Work, ...]


def times(works: Works, factor: float) -> Works:
    """Return the same operators, each `factor` times."""
    return tuple(work.times(factor) for work in works)


@lru_cache(maxsize=4096)
def wave_efficiency(rows: float, columns: float, many: int, sms: int) -> float:
    """Return the share of multiprocessors that a product keeps busy.

    A result is computed in tiles, as many at a time as there are multiprocessors; the last wave is
    not full (NVIDIA, "Matrix Multiplication Background User's Guide", wave and tile quantization).
    The best of the usual tiles is taken.
    """
    best = 0.0
    for high, wide in _TILES:
        tiles = many * math.ceil(rows / high) * math.ceil(columns / wide)
        used = many * (rows / high) * (columns / wide)
        best = max(best, used / (math.ceil(tiles / sms) * sms))
    return min(1.0, best)


class Roofline:
    """Times of one GPU.

    A product takes the longer of its arithmetic (efficiency x peak, times the share of
    multiprocessors that its tiles keep busy) and its operands' way through memory, and then the
    writing of its result; anything else the longer of arithmetic and memory traffic. A kernel takes
    a few microseconds more (`kernel_us`). Measured against public benchmarks of products in
    tests/workload/test_cost.py. A measured time, where the CSV has one for its name, wins.
    """

    def __init__(self, hardware: Hardware, compute_dtype: str, scaling: str = "tensor") -> None:
        """Look the GPU up.

        Args:
            hardware: Which GPU, and how it is used.
            compute_dtype: Element type of products.
            scaling: Of 8-bit products, as in `spec.Precision`.

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
        # Attention and the head of training run in bfloat16 where products are in 8 bits
        # (Transformer Engine's default; DeepSeek-V3, section 3.3.1).
        wide = "bfloat16" if dtype_bytes(dtype) == 1 else dtype
        self.wide_tflops = float(row["tflops"][wide])
        self.memory_gbps = float(row["memory_gbps"])
        self.memory_bytes = int(float(row["memory_gb"]) * 1e9)
        self.sms = int(row["sms"])
        if not 0 <= hardware.comm_sms < self.sms:
            raise InputError(
                f"comm_sms ({hardware.comm_sms}) must be below the {self.sms} multiprocessors of "
                f"{hardware.gpu}"
            )
        self._busy = self.sms - hardware.comm_sms
        table = dict(known["efficiency"])
        self.kernel_ns = 1e3 * float(table.pop("kernel_us"))
        eight = {"tensor": float(table.pop("matmul_8")), "block": float(table.pop("matmul_block"))}
        self.efficiency = {
            kind: min(1.0, float(value) * hardware.efficiency) for kind, value in table.items()
        }
        self.efficiency["matmul_16"] = self.efficiency["matmul"]
        if dtype_bytes(dtype) == 1:
            for kind in ("matmul", "grouped_matmul"):
                self.efficiency[kind] = min(1.0, eight[scaling] * hardware.efficiency)
        self.write_gbps = self.memory_gbps * min(1.0, hardware.efficiency)
        self.measured = _measured(hardware.times) if hardware.times else {}

    def time_ns(self, work: Work) -> float:
        """Return the modelled time of one operator in ns."""
        memory = work.nbytes / (self.memory_gbps * self.efficiency["memory"])
        arithmetic = 0.0
        if work.kind in _PRODUCTS | _ATTENTION:
            narrow = work.kind in {"matmul", "grouped_matmul"}
            peak = self.peak_tflops if narrow else self.wide_tflops
            share = self._busy / self.sms
            if work.rows:
                share *= wave_efficiency(work.rows, work.columns, work.many, self._busy)
            arithmetic = work.flops / (peak * 1e3 * self.efficiency[work.kind] * share)
        fixed = self.kernel_ns if work.flops or work.nbytes else 0.0
        return fixed + max(arithmetic, memory) + work.result / self.write_gbps

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
