"""The shape of traffic at each NIC: bursts, gaps, flows at once, rate over time; how far two are.

A flow is what one rank sends to one peer on one channel. A NIC is that of the sender's host; where
a side does not know NICs, each sending rank counts as one.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from genie.compare.metrics.intervals import union

if TYPE_CHECKING:
    from genie.compare.truth.model import Truth

#: A NIC that sends nothing for longer than this ends a burst, ns.
BURST_GAP_NS = 100_000
#: Distributions that are compared.
DISTRIBUTIONS = ("burst_bytes", "gap_ns", "concurrency", "rate_1ms", "rate_100us")
#: Samples up to which the p-value of the KS test is the exact one, which costs their square.
EXACT_UP_TO = 500
#: The name of all NICs taken together.
ALL = "all NICs"


@dataclass(frozen=True, eq=False)
class TrafficShape:
    """Distributions of the sends of one NIC, or of several.

    Attributes:
        burst_bytes: Bytes of each burst.
        gap_ns: Gaps between bursts, ns.
        concurrency: Flows with a message in flight, sampled when a message starts.
        rate_1ms: GB/s in each ms of the run.
        rate_100us: GB/s in each 100 us of the run.
    """

    burst_bytes: npt.NDArray[np.int64]
    gap_ns: npt.NDArray[np.int64]
    concurrency: npt.NDArray[np.int64]
    rate_1ms: npt.NDArray[np.float64]
    rate_100us: npt.NDArray[np.float64]


def knows_nics(side: Truth) -> bool:
    """Return whether a run says which NIC of which host sent a message."""
    return (
        side.messages is not None
        and side.hosts > 0
        and side.world_size > 0
        and bool((side.messages["nic"] >= 0).any())
    )


def nic_shapes(side: Truth, by_nic: bool | None = None) -> dict[str, TrafficShape]:
    """Return NIC → shape of what it sent; none where a run has no timed messages.

    Args:
        side: A run.
        by_nic: False takes senders by rank; None by NIC where the run knows them.
    """
    from genie.compare.metrics.kernels import bin_bytes

    if side.messages is None:
        return {}
    rows = side.messages
    keep = (rows["direction"] == 0) & (rows["start_ns"] >= 0) & (rows["end_ns"] >= 0)
    use_nic = knows_nics(side) if by_nic is None else by_nic
    if use_nic:
        # Messages inside a host use no NIC.
        keep &= rows["nic"] >= 0
    rows = rows[keep]
    if not len(rows):
        return {}
    rows = rows[np.argsort(rows["start_ns"], kind="stable")]
    origin, last = int(rows["start_ns"][0]), int(rows["end_ns"].max())
    place = rows["rank"].astype(np.int64)
    if use_nic:
        host = place // max(1, side.world_size // side.hosts)
        place = host << 16 | rows["nic"]
    found = {}
    for number in np.unique(place).tolist():
        mine = rows[place == number]
        begin = np.ascontiguousarray(mine["start_ns"] - origin)
        end = np.ascontiguousarray(mine["end_ns"] - origin)
        size = np.ascontiguousarray(mine["nbytes"])
        reach = np.maximum.accumulate(end)
        gap = begin[1:] - reach[:-1]
        cut = np.flatnonzero(gap > BURST_GAP_NS)
        rates = []
        for width in (1_000_000, 100_000):
            out = np.zeros((last - origin) // width + 1)
            bin_bytes(begin, end, size, width, out)
            rates.append(out / width)
        name = f"host {number >> 16} NIC {number & 0xFFFF}" if use_nic else f"rank {number}"
        found[name] = TrafficShape(
            np.add.reduceat(size, np.concatenate([[0], cut + 1])),
            gap[cut],
            _flows_at(mine, begin, end),
            rates[0],
            rates[1],
        )
    return found


def _flows_at(
    rows: npt.NDArray[np.void], begin: npt.NDArray[np.int64], end: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Return how many flows have a message in flight when each message starts."""
    keys = np.stack([rows["rank"], rows["peer"], rows["channel"]], axis=1)
    _, flow = np.unique(keys, axis=0, return_inverse=True)
    flow = flow.reshape(-1)
    starts, ends = [], []
    for number in range(int(flow.max()) + 1):
        mine = flow == number
        # A message of no length still is one flow at its start.
        a, b = union(begin[mine], np.maximum(end[mine], begin[mine] + 1))
        starts.append(a)
        ends.append(b)
    started = np.searchsorted(np.sort(np.concatenate(starts)), begin, side="right")
    ended = np.searchsorted(np.sort(np.concatenate(ends)), begin, side="right")
    return started - ended


def together(shapes: Mapping[str, TrafficShape]) -> TrafficShape | None:
    """Return several NICs as one: their samples pooled, their rates added."""
    parts = list(shapes.values())
    if not parts:
        return None
    return TrafficShape(
        np.concatenate([part.burst_bytes for part in parts]),
        np.concatenate([part.gap_ns for part in parts]),
        np.concatenate([part.concurrency for part in parts]),
        np.sum([part.rate_1ms for part in parts], axis=0),
        np.sum([part.rate_100us for part in parts], axis=0),
    )


def traffic_shape(side: Truth) -> TrafficShape | None:
    """Return the shape of all sends of a run, None where it has no timed messages."""
    return together(nic_shapes(side))


def shape_distances(a: TrafficShape, b: TrafficShape) -> dict[str, dict[str, float]]:
    """Return, for each distribution, KS distance, its p-value, and Wasserstein distance.

    The p-value is exact up to 500 samples, asymptotic above. Wasserstein is relative to the
    truth's mean, so that 0.1 reads "ten per cent of it apart".
    """
    from scipy.stats import ks_2samp, wasserstein_distance

    found = {}
    for name in DISTRIBUTIONS:
        ours, other = getattr(a, name), getattr(b, name)
        if not len(ours) or not len(other):
            continue
        exact = max(len(ours), len(other)) <= EXACT_UP_TO
        with warnings.catch_warnings():
            # scipy says so where it takes the asymptotic value after all.
            warnings.simplefilter("ignore", RuntimeWarning)
            test = ks_2samp(ours, other, method="exact" if exact else "asymp")
        mean = float(np.mean(other))
        found[name] = {
            "ks": float(test.statistic),
            "p": float(test.pvalue),
            "wasserstein": float(wasserstein_distance(ours, other)) / mean if mean else 0.0,
        }
    return found


def compare_shapes(replay: Truth, truth: Truth) -> dict[str, dict[str, dict[str, float]]]:
    """Return NIC → distribution → distances; `ALL` first, then what both runs have.

    Both go by NIC only if both know them, else both by sending rank.
    """
    by_nic = knows_nics(replay) and knows_nics(truth)
    ours, other = nic_shapes(replay, by_nic), nic_shapes(truth, by_nic)
    a, b = together(ours), together(other)
    if a is None or b is None:
        return {}
    found = {ALL: shape_distances(a, b)}
    for name in ours:
        if name in other:
            found[name] = shape_distances(ours[name], other[name])
    return found
