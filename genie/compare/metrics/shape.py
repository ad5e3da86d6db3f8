"""The shape of traffic: bursts, gaps, flows at once, rate over time, and how far two are apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from genie.compare.truth.model import Truth

#: A gap between messages of a sender longer than this ends a burst, ns.
BURST_GAP_NS = 100_000


@dataclass(frozen=True, eq=False)
class TrafficShape:
    """Distributions of one run's sends.

    Attributes:
        burst_bytes: Bytes of each burst of a sender.
        gap_ns: Gaps between a sender's bursts, ns.
        concurrency: Messages in flight, sampled when one starts.
        rate_1ms: GB/s of all senders in each ms.
        rate_100us: GB/s of all senders in each 100 us.
    """

    burst_bytes: npt.NDArray[np.int64]
    gap_ns: npt.NDArray[np.int64]
    concurrency: npt.NDArray[np.int64]
    rate_1ms: npt.NDArray[np.float64]
    rate_100us: npt.NDArray[np.float64]


def traffic_shape(side: Truth) -> TrafficShape | None:
    """Return the shape of a run's sends, None where it has no timed messages."""
    from genie.compare.metrics.kernels import bin_bytes

    if side.messages is None:
        return None
    rows = side.messages
    rows = rows[(rows["direction"] == 0) & (rows["start_ns"] >= 0) & (rows["end_ns"] >= 0)]
    if not len(rows):
        return None
    rows = rows[np.argsort(rows["start_ns"], kind="stable")]
    origin = int(rows["start_ns"][0])
    starts, ends = rows["start_ns"] - origin, rows["end_ns"] - origin
    bursts, gaps = [], []
    for rank in np.unique(rows["rank"]):
        mine = rows["rank"] == rank
        begin, end, size = starts[mine], ends[mine], rows["nbytes"][mine]
        reach = np.maximum.accumulate(end)
        gap = begin[1:] - reach[:-1]
        cut = np.flatnonzero(gap > BURST_GAP_NS)
        edges = np.concatenate([[0], cut + 1])
        bursts.append(np.add.reduceat(size, edges))
        gaps.append(gap[cut])
    sorted_ends = np.sort(ends)
    started = np.arange(1, len(starts) + 1)
    concurrency = started - np.searchsorted(sorted_ends, starts, side="right")
    rates = []
    for width in (1_000_000, 100_000):
        out = np.zeros(int(ends.max()) // width + 1)
        bin_bytes(
            np.ascontiguousarray(starts), np.ascontiguousarray(ends),
            np.ascontiguousarray(rows["nbytes"]), width, out,
        )  # fmt: skip
        rates.append(out / width)
    return TrafficShape(
        np.concatenate(bursts), np.concatenate(gaps), concurrency, rates[0], rates[1]
    )


def shape_distances(a: TrafficShape, b: TrafficShape) -> dict[str, dict[str, float]]:
    """Return, for each distribution, KS distance, its p-value, and Wasserstein distance.

    Wasserstein is relative to the truth's mean, so that 0.1 reads "ten per cent of it apart".
    """
    from scipy.stats import ks_2samp, wasserstein_distance

    found = {}
    for name in ("burst_bytes", "gap_ns", "concurrency", "rate_1ms", "rate_100us"):
        ours, other = getattr(a, name), getattr(b, name)
        if not len(ours) or not len(other):
            continue
        test = ks_2samp(ours, other)
        mean = float(np.mean(other))
        found[name] = {
            "ks": float(test.statistic),
            "p": float(test.pvalue),
            "wasserstein": float(wasserstein_distance(ours, other)) / mean if mean else 0.0,
        }
    return found
