"""A comparison as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from genie.compare.metrics.collective import label
from genie.compare.metrics.shape import ALL, DISTRIBUTIONS
from genie.replay.plan_text import table
from genie.units import format_time

if TYPE_CHECKING:
    from genie.compare.comparison import Comparison


#: Distribution of the shape of traffic → what it is called.
WORDS = {
    "burst_bytes": "burst size",
    "gap_ns": "gap between bursts",
    "concurrency": "flows at once",
    "rate_1ms": "rate in 1 ms",
    "rate_100us": "rate in 100 us",
}


def percent(value: float) -> str:
    """Return a signed percentage, "-" for NaN."""
    return f"{value:+.1%}" if np.isfinite(value) else "-"


SHAPE_HEADER = ["traffic shape, all NICs", "KS", "p", "Wasserstein / mean"]


def shape_rows(comparison: Comparison, nic: str = ALL) -> list[list[str]]:
    """Return a row a distribution of one NIC."""
    return [
        [WORDS[name], f"{v['ks']:.3f}", f"{v['p']:.2g}", f"{v['wasserstein']:.3f}"]
        for name, v in comparison.shape[nic].items()
    ]


def _furthest(comparison: Comparison) -> str:
    """Return which NIC is furthest apart in each distribution."""
    words = []
    for name in DISTRIBUTIONS:
        found = {
            nic: rows[name]["ks"]
            for nic, rows in comparison.shape.items()
            if nic != ALL and name in rows
        }
        if found:
            worst = max(found, key=lambda nic: found[nic])
            words.append(f"{WORDS[name]}: {worst} (KS {found[worst]:.3f})")
    return "furthest apart of single NICs: " + ", ".join(words)


def summary(comparison: Comparison) -> str:
    """Return the numbers of a comparison: L0, L1, L2, what did not match, health."""
    parts = [repr(comparison)]
    match = comparison.messages
    if match is not None:
        text = f"L0 messages: {match.equal} of {match.compared} equal ({match.rate:.2%})"
        if match.first_difference:
            text += f"; first difference: {match.first_difference}"
        parts.append(text)
    names = comparison.replay.labels.get("communicator", ())
    rows = [
        [
            label(row, names),
            str(row["count"]),
            percent(row["median_error"]),
            f"{percent(row['low'])} .. {percent(row['high'])}",
            f"{row['geomean_ratio']:.3f}",
            percent(row["worst_error"]),
        ]
        for row in comparison.collectives
    ]
    header = ["L1 collective time (replay / truth - 1)", "pairs", "median", "95 % interval"]
    parts.append(table([*header, "geomean", "worst"], rows))
    overall = comparison.overall
    parts.append(
        f"over all pairs: mean |error| {percent(overall['mean_abs_error'])}, geometric mean "
        f"|error| {percent(overall['geomean_abs_error'])} (ASTRA-sim's definition), alignment "
        f"{overall['alignment']:.1%} (SimAI's)"
    )
    found = comparison.step
    if found:
        lines = [
            [
                name,
                format_time(found[f"{name}_replay_ns"]),
                format_time(found[f"{name}_truth_ns"]),
                percent(found[f"{name}_error"]),
            ]
            for name in ("step", "compute", "communication", "exposed", "overlap", "runtime")
        ]
        lines[-1][0] = "run time"
        parts.append(table(["L2 step", "replay", "truth", "error"], lines))
    for quantity, tried in comparison.sensitivity.items():
        lines = [
            [name, f"{ours:.3f}", f"{other:.3f}", percent(error)]
            for name, ours, other, error in zip(
                tried.faults, tried.replay, tried.truth, tried.errors, strict=True
            )
        ]
        lines.append(["rank correlation", f"{tried.rank_correlation:.3f}", "", ""])
        header = [f"L3 slowdown of the {quantity} by fault", "replay", "truth", "error"]
        parts.append(table(header, lines))
    if comparison.shape:
        parts.append(table(SHAPE_HEADER, shape_rows(comparison)))
        if len(comparison.shape) > 2:
            parts.append(_furthest(comparison))
    for side, reasons in (
        ("replay", comparison.alignment.only_replay),
        ("truth", comparison.alignment.only_truth),
    ):
        parts += [f"only in the {side}: {len(rows)} x {why}" for why, rows in reasons.items()]
    parts += [f"not used of the truth: {n} x {why}" for why, n in comparison.truth.unused.items()]
    parts += [f"note: {text}" for text in (*comparison.alignment.notes, *comparison.truth.notes)]
    if comparison.health:
        shown = ", ".join(
            f"{name.removesuffix('_ns')} {format_time(value)}"
            for name, value in comparison.health.items()
            if name.startswith(("timer_error", "poll_gap", "clock_bound")) and np.isfinite(value)
        )
        parts.append(f"the replay's own error: {shown}")
    return "\n\n".join(parts)
