"""Hot loops, compiled by numba; each is plain Python underneath (`.py_func`).

This is the only module that imports numba, and it is imported inside functions only. Caches are
not written: an installation may be read-only.
"""

from __future__ import annotations

import numba
import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]


@numba.njit(cache=False)
def union_length(starts: I64, ends: I64) -> int:
    """Return the length of the union of intervals sorted by start."""
    total = 0
    reach = -(1 << 62)
    for i in range(starts.size):
        begin = starts[i] if starts[i] > reach else reach
        if ends[i] > begin:
            total += ends[i] - begin
        reach = max(reach, ends[i])
    return total


@numba.njit(cache=False)
def intersection_length(a_starts: I64, a_ends: I64, b_starts: I64, b_ends: I64) -> int:
    """Return how long both of two sets of disjoint intervals, sorted by start, are on."""
    total = 0
    i = 0
    j = 0
    while i < a_starts.size and j < b_starts.size:
        begin = max(a_starts[i], b_starts[j])
        end = min(a_ends[i], b_ends[j])
        if end > begin:
            total += end - begin
        if a_ends[i] < b_ends[j]:
            i += 1
        else:
            j += 1
    return total


@numba.njit(cache=False)
def merge(starts: I64, ends: I64, out_starts: I64, out_ends: I64) -> int:
    """Write the union of intervals sorted by start as disjoint ones; return their number."""
    n = 0
    for i in range(starts.size):
        if ends[i] <= starts[i]:
            continue
        if n and starts[i] <= out_ends[n - 1]:
            out_ends[n - 1] = max(out_ends[n - 1], ends[i])
        else:
            out_starts[n] = starts[i]
            out_ends[n] = ends[i]
            n += 1
    return n


@numba.njit(cache=False)
def bin_bytes(starts: I64, ends: I64, nbytes: I64, width: int, out: F64) -> None:
    """Spread each message's bytes evenly over its time, into bins of `width` ns from 0."""
    for i in range(starts.size):
        begin = starts[i]
        end = max(ends[i], begin + 1)
        per_ns = nbytes[i] / (end - begin)
        k = begin // width
        while begin < end and k < out.size:
            edge = min((k + 1) * width, end)
            out[k] += per_ns * (edge - begin)
            begin = edge
            k += 1
