"""L3: does a fault slow the replay as much as it slows the truth?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from genie.compare.metrics.step import step_times
from genie.compare.truth.model import UNKNOWN
from genie.errors import CompareError

if TYPE_CHECKING:
    from genie.compare.truth.model import Truth

#: What is slowed down: the step, and the collectives of each kind and size.
QUANTITIES = ("step", "collectives")


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


def of_slowdowns(replay: Mapping[str, float], truth: Mapping[str, float]) -> Sensitivity:
    """Compare slowdowns by fault.

    Args:
        replay: Fault → time with it / time without, of the replay.
        truth: The same of the truth.

    Raises:
        CompareError: The two sides do not have a fault in common.
    """
    from scipy.stats import spearmanr

    faults = tuple(name for name in replay if name in truth)
    if not faults:
        raise CompareError(
            f"no fault was tried on both sides: {sorted(replay)} and {sorted(truth)}"
        )
    ours, other = [replay[name] for name in faults], [truth[name] for name in faults]
    rho = float("nan")
    if len(faults) >= 3 and len(set(ours)) > 1 and len(set(other)) > 1:
        rho = float(spearmanr(ours, other).statistic)
    errors = tuple(a / b - 1 for a, b in zip(ours, other, strict=True))
    return Sensitivity(faults, tuple(ours), tuple(other), errors, rho)


def sensitivity(
    replay_healthy: Sequence[float],
    replay_faults: Mapping[str, Sequence[float]],
    truth_healthy: Sequence[float],
    truth_faults: Mapping[str, Sequence[float]],
) -> Sensitivity:
    """Compare slowdowns of medians; every argument holds repeated times of the same thing.

    Raises:
        CompareError: The two sides do not have a fault in common.
    """
    ours_base, other_base = np.median(replay_healthy), np.median(truth_healthy)
    return of_slowdowns(
        {name: float(np.median(times) / ours_base) for name, times in replay_faults.items()},
        {name: float(np.median(times) / other_base) for name, times in truth_faults.items()},
    )


def slowdown(healthy: Truth, faulted: Truth, quantity: str) -> float | None:
    """Return how many times as long a quantity takes with the fault, None where it has no time.

    step: median over iterations of the slowest rank's step. collectives: by kind, size and number
    of ranks, the median time with the fault / without; of these ratios the geometric mean.

    Args:
        healthy: A run without the fault.
        faulted: The same run with it.
        quantity: One of `QUANTITIES`.
    """
    if quantity == "step":
        base, slow = _step(healthy), _step(faulted)
        return None if base is None or slow is None or base <= 0 else slow / base
    before, after = _medians(healthy), _medians(faulted)
    ratios = [after[key] / before[key] for key in before if key in after and before[key] > 0]
    positive = [ratio for ratio in ratios if ratio > 0]
    return float(np.exp(np.log(positive).mean())) if positive else None


def _step(side: Truth) -> float | None:
    rows = step_times(side)
    if not len(rows):
        return None
    worst = [rows["step_ns"][rows["iteration"] == i].max() for i in np.unique(rows["iteration"])]
    return float(np.median(worst))


def _medians(side: Truth) -> dict[tuple[int, int, int], float]:
    from genie.compare.instances import instances

    rows = instances(side)
    keep = (rows["nbytes"] > 0) & np.isfinite(rows["transfer_ns"]) & (rows["kind"] != UNKNOWN)
    if (rows["iteration"] >= 0).any():
        keep &= rows["iteration"] >= 0
    rows = rows[keep]
    sizes = np.where(rows["group_size"] > 0, rows["group_size"], rows["ranks"])
    keys = np.stack([rows["kind"], rows["nbytes"], sizes], axis=1).astype(np.int64)
    unique, inverse = np.unique(keys, axis=0, return_inverse=True)
    inverse = inverse.reshape(-1)
    return {
        (key[0], key[1], key[2]): float(np.median(rows["transfer_ns"][inverse == i]))
        for i, key in enumerate(unique.tolist())
    }


def of_runs(
    healthy: tuple[Truth, Truth], faults: Mapping[str, tuple[Truth, Truth]]
) -> dict[str, Sensitivity]:
    """Return quantity → slowdowns under the same faults in both worlds.

    Args:
        healthy: Replay and truth without a fault.
        faults: Fault → replay and truth with it.

    Raises:
        CompareError: No fault slows anything that both worlds time.
    """
    found = {}
    for quantity in QUANTITIES:
        ratios: tuple[dict[str, float], dict[str, float]] = ({}, {})
        for name, pair in faults.items():
            both = [slowdown(healthy[i], pair[i], quantity) for i in (0, 1)]
            for side, ratio in zip(ratios, both, strict=True):
                if ratio is not None:
                    side[name] = ratio
        if set(ratios[0]) & set(ratios[1]):
            found[quantity] = of_slowdowns(*ratios)
    if faults and not found:
        raise CompareError(
            f"faults {', '.join(faults)}: neither a step nor a collective of one kind and size "
            "has a time with and without the fault on both sides"
        )
    return found
