"""How long a compute or memory node takes when the trace does not say.

A model with its parameters: the roofline of one GPU. A recorded duration always wins.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from genie import checks


@dataclass(frozen=True)
class ComputeModel:
    """Roofline of one GPU.

    Attributes:
        peak_tflops: Dense BF16 peak, 1e12 operations/s.
        memory_gbps: Memory bandwidth, GB/s.
        efficiency: Fraction of the peak that kernels reach.
    """

    peak_tflops: float
    memory_gbps: float
    efficiency: float = 1.0

    def __post_init__(self) -> None:
        checks.real("peak_tflops", self.peak_tflops, 1e-9, 1e12)
        checks.real("memory_gbps", self.memory_gbps, 1e-9, 1e12)
        checks.real("efficiency", self.efficiency, 1e-9, 1e3)

    @classmethod
    def for_sm(cls, sm: int) -> ComputeModel:
        """Return the roofline of the GPU generation with compute capability `sm` / 10.

        Sources: NVIDIA data sheets of V100 SXM2, A100 SXM4 80 GB, H100 SXM5 and B200 (dense BF16
        or, on V100, FP16).
        """
        if sm >= 100:
            return cls(peak_tflops=2250.0, memory_gbps=8000.0)
        if sm >= 90:
            return cls(peak_tflops=989.5, memory_gbps=3350.0)
        if sm >= 80:
            return cls(peak_tflops=312.0, memory_gbps=2039.0)
        return cls(peak_tflops=125.0, memory_gbps=900.0)

    def duration_ns(
        self, num_ops: npt.NDArray[np.int64], tensor_size: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        """Return the longer of arithmetic and memory time of each node, in ns.

        Args:
            num_ops: Floating-point operations, -1 missing.
            tensor_size: Bytes moved, -1 missing.
        """
        ops = np.maximum(num_ops, 0) / (self.peak_tflops * 1e3 * self.efficiency)
        mem = np.maximum(tensor_size, 0) / self.memory_gbps
        return np.ceil(np.maximum(ops, mem)).astype(np.int64)
