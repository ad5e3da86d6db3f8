"""One timeline for all workers: offset and drift of each clock, with a bound on the error.

The coordinator asks for a worker's CLOCK_MONOTONIC and notes its own before and after. The worker
read its clock somewhere in between, so for each exchange the offset (worker minus coordinator) is
known to within half of the round trip, whatever the network's asymmetry. With a constant drift all
these intervals are crossed by one straight line; every line that crosses them all is possible, and
the bound is how far the possible lines lie from the one chosen. Nothing is assumed about delays.
Workers that share the coordinator's clock (same boot, same time namespace) need no correction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

#: Largest drift considered, s/s: twice the 500 ppm to which Linux slews a clock (adjtimex(2)).
MAX_DRIFT = 1e-3
#: Exchanges kept of those that lie close together: the ones with the shortest round trip.
KEEP = 8
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Exchange:
    """One question for a clock, ns: our clock before and after, the worker's in between."""

    before_ns: int
    after_ns: int
    worker_ns: int


@dataclass(frozen=True)
class ClockFit:
    """Worker clock minus coordinator clock = `offset_ns` + `drift` * (t - `reference_ns`).

    Attributes:
        reference_ns: Instant of the coordinator's clock at which `offset_ns` holds.
        offset_ns: Offset there, ns.
        drift: Rate difference, s/s.
        bound_ns: The correction is wrong by no more than this, ns, over the run.
        steady: False when no straight line fits: the clock stepped or its rate changed; the
            bound then also covers the misfit that was seen.
        exchanges: Number of exchanges.
    """

    reference_ns: int
    offset_ns: float
    drift: float
    bound_ns: float
    steady: bool = True
    exchanges: int = 0

    def offset_at(self, t_ns: int) -> float:
        """Return the offset at instant `t_ns` of the coordinator's clock, ns."""
        return self.offset_ns + self.drift * (t_ns - self.reference_ns)

    def correct(
        self, times: npt.NDArray[np.int64], zero_worker_ns: int, zero_ns: int
    ) -> npt.NDArray[np.int64]:
        """Return worker times on the common timeline; -1 stays -1.

        Args:
            times: ns after `zero_worker_ns` on the worker's clock.
            zero_worker_ns: Where the worker's times begin, its clock.
            zero_ns: Where the common timeline begins, the coordinator's clock.
        """
        if self.offset_ns == 0 and self.drift == 0 and zero_worker_ns == zero_ns:
            return times
        # worker = t + offset + drift (t - ref), solved for t; differences keep float64 exact.
        worker = times.astype(np.float64) + float(zero_worker_ns - zero_ns)
        ref = float(self.reference_ns - zero_ns)
        true = (worker - self.offset_ns + self.drift * ref) / (1.0 + self.drift)
        out = np.rint(true).astype(np.int64)
        return np.where(times == -1, -1, out)


SHARED = ClockFit(0, 0.0, 0.0, 0.0)


def clock_identity() -> str:
    """Return a name that two processes share exactly when they share CLOCK_MONOTONIC."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = Path("/proc/self/ns/time").readlink().name
    except OSError:
        return ""
    return f"{boot} {namespace}"


def fit(exchanges: Sequence[Exchange], start_ns: int, end_ns: int) -> ClockFit:
    """Return the clock that the exchanges tell of, and its bound between two instants.

    Args:
        exchanges: At least one.
        start_ns: Begin of the run, coordinator's clock.
        end_ns: End of the run, coordinator's clock.
    """
    ref = int(exchanges[0].before_ns)
    t, offset, half = _intervals(exchanges, ref)
    t, offset, half = _best(t, offset, half)
    slack = 0.0
    limits = _drift_limits(t, offset, half)
    if limits is None:
        slack = _slack(t, offset, half)
        half = half + slack
        limits = _drift_limits(t, offset, half)
        assert limits is not None
    low, high = limits
    drift = (low + high) / 2
    top = float((offset + half - drift * t).min())
    bottom = float((offset - half - drift * t).max())
    middle = (top + bottom) / 2
    bound = max(
        _reach(t, offset, half, low, high, middle, drift, float(at - ref))
        for at in (start_ns, end_ns)
    )
    if slack:
        # At every exchange line and truth are both in the widened interval.
        bound = max(bound, 2 * float(half.max()) - slack)
    return ClockFit(ref, middle, drift, bound, slack == 0.0, len(exchanges))


def _intervals(exchanges: Sequence[Exchange], ref: int) -> tuple[Floats, Floats, Floats]:
    before = np.array([e.before_ns - ref for e in exchanges], dtype=np.float64)
    after = np.array([e.after_ns - ref for e in exchanges], dtype=np.float64)
    worker = np.array([e.worker_ns - ref for e in exchanges], dtype=np.float64)
    middle = (before + after) / 2
    # Two clock readings of 1 ns resolution each: one more ns to be safe.
    return middle, worker - middle, (after - before) / 2 + 1.0


def _best(t: Floats, offset: Floats, half: Floats) -> tuple[Floats, Floats, Floats]:
    """Of each stretch of 1/64 of the whole time keep the KEEP exchanges with the shortest trip."""
    span = float(t.max() - t.min())
    bins = np.zeros(len(t)) if span == 0 else np.floor((t - t.min()) / span * 63.999)
    keep: list[int] = []
    for number in np.unique(bins):
        members = np.flatnonzero(bins == number)
        keep += members[np.argsort(half[members])[:KEEP]].tolist()
    index = np.array(sorted(keep, key=lambda i: t[i]))
    return t[index], offset[index], half[index]


def _drift_limits(t: Floats, offset: Floats, half: Floats) -> tuple[float, float] | None:
    """Return the least and largest slope of a line through all intervals, None if there is none.

    A line of slope d exists when for every i, j: lower_i - d t_i <= upper_j - d t_j.
    """
    dt = t[None, :] - t[:, None]
    gap = (offset + half)[None, :] - (offset - half)[:, None]
    if (gap[dt == 0] < 0).any():
        return None
    later, earlier = dt > 0, dt < 0
    high = min(float((gap[later] / dt[later]).min(initial=np.inf)), MAX_DRIFT)
    low = max(float((gap[earlier] / dt[earlier]).max(initial=-np.inf)), -MAX_DRIFT)
    return (low, high) if low <= high else None


def _slack(t: Floats, offset: Floats, half: Floats) -> float:
    """Return how much wider every interval must be for one line to cross them all, ns."""
    low, high = 0.0, 1.0
    while _drift_limits(t, offset, half + high) is None:
        low, high = high, high * 4
    for _ in range(60):
        middle = (low + high) / 2
        if _drift_limits(t, offset, half + middle) is None:
            low = middle
        else:
            high = middle
    return high


def _reach(
    t: Floats, offset: Floats, half: Floats, low: float, high: float, middle: float, drift: float,
    at: float,
) -> float:  # fmt: skip
    """Return how far a possible line can be from the chosen one at time `at`, ns."""
    chosen = middle + drift * at

    def upper(d: float) -> float:
        return float((offset + half + d * (at - t)).min())

    def lower(d: float) -> float:
        return float((offset - half + d * (at - t)).max())

    # upper is concave in d, -lower too: a ternary search finds each one's largest value.
    return max(
        _largest(upper, low, high) - chosen, chosen + _largest(lambda d: -lower(d), low, high)
    )


def _largest(f, low: float, high: float) -> float:  # type: ignore[no-untyped-def]
    best = max(f(low), f(high))
    for _ in range(80):
        a, b = low + (high - low) / 3, high - (high - low) / 3
        fa, fb = f(a), f(b)
        best = max(best, fa, fb)
        if fa < fb:
            low = a
        else:
            high = b
    return float(best)
