"""What the runs of a condition say together: mean and its confidence interval."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

RESAMPLES = 9999


def interval(values: Sequence[float], confidence: float, seed: int) -> tuple[float, float]:
    """Return the bootstrap interval of the mean of independent runs.

    BCa of Efron (1987), by `scipy.stats.bootstrap`. One run has none: NaN.

    Args:
        values: One a run.
        confidence: Such as 0.95.
        seed: Of the resampling, so that a summary repeats.
    """
    data = np.asarray(values, np.float64)
    data = data[np.isfinite(data)]
    if len(data) < 2:
        return float("nan"), float("nan")
    if np.ptp(data) == 0:
        return float(data[0]), float(data[0])
    from scipy.stats import bootstrap

    found = bootstrap(
        (data,),
        np.mean,
        n_resamples=RESAMPLES,
        confidence_level=confidence,
        method="BCa",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return float(found.low), float(found.high)
