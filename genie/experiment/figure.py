"""Figures of an experiment: run after run against the simulation, and conditions side by side."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from genie.experiment.result import ExperimentResult, Row

#: More conditions than this are drawn side by side only.
MOST_LINES = 6


def figures(result: ExperimentResult) -> Iterator[tuple[str, str, Figure]]:
    """Yield (name, caption, figure) of what there is to draw."""
    from genie.compare.figures.style import new_figure, style

    names = list(dict.fromkeys(run.condition for run in result.runs))
    for what in dict.fromkeys(w for run in result.counted() for w in run.values):
        suffix = what.replace(" ", "-").lower()
        if len(names) <= MOST_LINES:
            with style():
                figure = new_figure("single", 0.75)
                draw_runs(result, figure.subplots(), what)
            yield f"runs-{suffix}", _CAPTION_RUNS, figure
        rows = [row for row in result.rows() if row.what == what]
        if len(rows) > 1:
            with style():
                figure = new_figure("single", 0.3 + 0.12 * len(rows))
                draw_conditions(rows, figure.subplots())
            yield f"conditions-{suffix}", _CAPTION_ROWS, figure


_CAPTION_RUNS = (
    "Each point is one run; the dashed line is what the simulation predicts. A dotted line marks "
    "the run from which a condition was changed, which the simulation does not know."
)
_CAPTION_ROWS = (
    "Mean and confidence interval of each condition; a cross is what the simulation predicts."
)


def _scaled(unit: str, largest: float) -> tuple[float, str]:
    """Return the factor and label of an axis for values up to `largest`."""
    if unit == "ns":
        return 1e-6, "step time [ms]"
    return (1.0, "bus bandwidth [GB/s]") if largest >= 0.1 else (1e3, "bus bandwidth [MB/s]")


def draw_runs(result: ExperimentResult, ax: Axes, what: str | None = None) -> Axes:
    """Draw the value of every run, a line a condition, with the simulation (the paper's Figure 1).

    Args:
        result: An experiment.
        ax: Where to draw.
        what: Such as "all_reduce 4 MiB"; None takes the first.
    """
    from genie.compare.figures.comparison import draw_values

    counted = result.counted()
    what = what or next((w for run in counted for w in run.values), "")
    largest = max((run.value(what) for run in counted if what in run.values), default=0.0)
    scale, label = _scaled(result.unit, largest)
    names = list(dict.fromkeys(run.condition for run in counted))
    series: dict[str, tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]] = {}
    lines: dict[str, float] = {}
    for name in names:
        mine = [run for run in counted if run.condition == name and what in run.values]
        x = np.array([run.repetition for run in mine], float)
        y = np.array([run.value(what) * scale for run in mine])
        series["replay" if len(names) == 1 else name] = (x, y)
        model = result.simulated.get(name, {}).get(what)
        if model is not None:
            lines["simulate" if len(names) == 1 else f"simulate: {name}"] = model * scale
    if len({round(v, 12) for v in lines.values()}) == 1:
        lines = {"simulate": next(iter(lines.values()))}
    draw_values(series, lines, ax)
    ax.set_ylim(0, 1.12 * ax.get_ylim()[1])
    for first in sorted({c.from_run for k in result.spec.conditions for c in k.changes}):
        ax.axvline(first - 0.5, color="0.4", linestyle=":", linewidth=0.9)
        ax.annotate(
            _changed(result, first),
            (first - 0.5, 0.02),
            xycoords=("data", "axes fraction"),
            xytext=(3, 2),
            textcoords="offset points",
            fontsize="small",
        )
    ax.set_ylabel(label)
    ax.set_title(f"{what}, run after run")
    return ax


def _changed(result: ExperimentResult, first: int) -> str:
    """Return what changes at a run, in a few words."""
    parts = []
    for condition in result.spec.conditions:
        for change in condition.changes:
            if change.from_run != first:
                continue
            specs = {**change.links}
            if (change.rate, change.delay, change.loss) != (None, None, None):
                specs["hosts"] = change
            for name, spec in specs.items():
                told = (spec.rate, f"+{spec.delay}" if spec.delay else None,
                        f"{spec.loss} loss" if spec.loss else None)  # fmt: skip
                parts.append(f"{name}: {', '.join(t for t in told if t)}")
    return "; ".join(dict.fromkeys(parts))


def draw_conditions(rows: list[Row], ax: Axes) -> Axes:
    """Draw mean and interval of each row, and what the simulation says.

    Args:
        rows: Of one thing measured.
        ax: Where to draw.
    """
    from genie.compare.figures.style import COLOURS

    scale, label = _scaled(rows[0].unit, max(row.largest for row in rows))
    y = np.arange(len(rows))
    mean = np.array([row.mean for row in rows]) * scale
    low = np.array([row.low for row in rows]) * scale
    high = np.array([row.high for row in rows]) * scale
    bars = np.nan_to_num(np.array([mean - low, high - mean])).clip(min=0)
    ax.errorbar(mean, y, xerr=bars, fmt="o", color=COLOURS["replay"], label="replay", capsize=2)
    model = np.array([row.simulated for row in rows]) * scale
    if np.isfinite(model).any():
        ax.plot(model, y, "x", color=COLOURS["simulate"], label="simulate", markersize=6)
    ax.set_yticks(y, [row.condition + (f"\n{row.phase}" if row.phase else "") for row in rows])
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.set_xlim(left=0)
    ax.set_xlabel(label)
    ax.set_title(rows[0].what)
    ax.legend(ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.3))
    return ax
