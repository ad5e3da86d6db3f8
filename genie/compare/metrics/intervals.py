"""Interval algebra on busy times: union, intersection, what is left exposed."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Intervals = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]


def union(starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> Intervals:
    """Return disjoint intervals, sorted, that cover the same times; empty ones are dropped."""
    from genie.compare.metrics.kernels import merge

    order = np.argsort(starts, kind="stable")
    starts = np.ascontiguousarray(starts[order], np.int64)
    ends = np.ascontiguousarray(ends[order], np.int64)
    out_starts, out_ends = np.empty_like(starts), np.empty_like(ends)
    n = merge(starts, ends, out_starts, out_ends)
    return out_starts[:n], out_ends[:n]


def length(intervals: Intervals) -> int:
    """Return the total length of disjoint intervals."""
    return int((intervals[1] - intervals[0]).sum())


def overlap(a: Intervals, b: Intervals) -> int:
    """Return how long both are on; each must come from `union`."""
    from genie.compare.metrics.kernels import intersection_length

    return int(intersection_length(*a, *b))
