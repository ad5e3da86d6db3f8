"""Algorithm and bus bandwidth of a collective, as nccl-tests defines them.

Source: nccl-tests 2.17, `doc/PERFORMANCE.md` and the `GetBw` functions of its `src/*.cu`:
`algbw = size / time`; `busbw = algbw * factor`, with the factor that makes `busbw` comparable
with the speed of the slowest link whatever the number of ranks. GB/s = 1e9 bytes/s.
"""

from __future__ import annotations

from typing import Any, overload

import numpy as np
import numpy.typing as npt

#: Kinds whose nccl-tests size is (NCCL count) x (element size) x (ranks).
WHOLE_BUFFER_KINDS = frozenset(
    {"all_gather", "reduce_scatter", "reduce_scatter_block", "all_to_all", "gather", "scatter"}
)


def size_bytes(kind: str, count_bytes: int, n_ranks: int) -> int:
    """Return nccl-tests' `size` column of one collective, in bytes.

    Args:
        kind: The collective, or "send" or "recv".
        count_bytes: NCCL's count times the element size: one rank's part for all_gather,
            reduce_scatter, all_to_all, gather and scatter; the whole buffer otherwise.
        n_ranks: Ranks of the communicator.
    """
    return count_bytes * n_ranks if kind in WHOLE_BUFFER_KINDS else count_bytes


def bus_factor(kind: str, n_ranks: int) -> float:
    """Return busbw / algbw for `kind` over `n_ranks` ranks (0 for a lone rank's collective).

    all_reduce 2(n-1)/n; all_gather, reduce_scatter, all_to_all, gather, scatter (n-1)/n;
    broadcast, reduce, send, recv 1. A barrier moves no data and has no bandwidth: NaN.
    """
    if kind == "barrier":
        return float("nan")
    if kind == "all_reduce":
        return 2.0 * (n_ranks - 1) / n_ranks
    if kind in WHOLE_BUFFER_KINDS:
        return (n_ranks - 1) / n_ranks
    return 1.0


def bus_formula(kind: str) -> str:
    """Return how `bus_factor` makes busbw of algbw, to stand beside the numbers."""
    if kind == "all_reduce":
        return "busbw = algbw x 2(n-1)/n"
    if kind in WHOLE_BUFFER_KINDS:
        return "busbw = algbw x (n-1)/n, size = that of all n parts"
    return "busbw = algbw"


@overload
def algbw_gbps(nbytes: int, time_ns: float) -> float: ...
@overload
def algbw_gbps(nbytes: npt.NDArray[Any], time_ns: npt.NDArray[Any]) -> npt.NDArray[np.float64]: ...
def algbw_gbps(nbytes: Any, time_ns: Any) -> Any:
    """Return nbytes / time in GB/s; NaN where the time is not positive.

    Bytes per nanosecond are exactly GB/s (1e9 bytes / 1e9 ns).
    """
    time = np.asarray(time_ns, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        out = np.where(time > 0, np.asarray(nbytes, dtype=np.float64) / time, np.nan)
    return float(out) if out.ndim == 0 else out
