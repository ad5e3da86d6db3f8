"""L3: does a fault slow the replay as much as it slows the truth?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from genie.errors import CompareError


@dataclass(frozen=True)
class Sensitivity:
    """Slowdowns of the same faults in two worlds.

    Attributes:
        faults: Names, in order.
        replay: Slowdown of each, time with the fault / time without.
        truth: The same of the truth.
        errors: replay / truth - 1 of each.
        rank_correlation: Spearman's rho over the faults, NaN below 3 of them.
    """

    faults: tuple[str, ...]
    replay: tuple[float, ...]
    truth: tuple[float, ...]
    errors: tuple[float, ...]
    rank_correlation: float


def sensitivity(
    replay_healthy: Sequence[float],
    replay_faults: Mapping[str, Sequence[float]],
    truth_healthy: Sequence[float],
    truth_faults: Mapping[str, Sequence[float]],
) -> Sensitivity:
    """Compare slowdowns; every argument holds repeated times of the same thing.

    Raises:
        CompareError: The two sides do not have a fault in common.
    """
    from scipy.stats import spearmanr

    faults = tuple(name for name in replay_faults if name in truth_faults)
    if not faults:
        raise CompareError(
            f"no fault was tried on both sides: {sorted(replay_faults)} and {sorted(truth_faults)}"
        )
    ours_base, other_base = np.median(replay_healthy), np.median(truth_healthy)
    ours = [float(np.median(replay_faults[name]) / ours_base) for name in faults]
    other = [float(np.median(truth_faults[name]) / other_base) for name in faults]
    rho = float("nan")
    if len(faults) >= 3 and len(set(ours)) > 1 and len(set(other)) > 1:
        rho = float(spearmanr(ours, other).statistic)
    errors = tuple(a / b - 1 for a, b in zip(ours, other, strict=True))
    return Sensitivity(faults, tuple(ours), tuple(other), errors, rho)
