"""Which figures there are, by name, and how to make each from runs or a comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from genie.compare.figures import comparison as draw
from genie.compare.figures import traffic
from genie.compare.figures.style import Column, new_figure, style
from genie.errors import InputError

if TYPE_CHECKING:
    from genie.compare.comparison import Comparison
    from genie.compare.figures.picture import Picture
    from genie.compare.truth.model import Truth

Sides = dict[str, "Truth"]

#: Name → (title, caption, function of sides and axes) of figures that take one run or more.
RUN_FIGURES: dict[str, tuple[str, str, Callable[..., object]]] = {
    "busbw": (
        "Bus bandwidth by size",
        "Lines are medians, bands the quartiles; lines apart mean that one side is slower.",
        draw.draw_busbw,
    ),
    "cdf": (
        "Collective times",
        "Share of collectives that took at most this long; a long tail shows as a slow top.",
        draw.draw_cdf,
    ),
    "rate": (
        "Rate of all senders",
        "Sent bytes in each 100 us; the same shape means the same bursts.",
        traffic.draw_rate,
    ),
    "concurrency": (
        "Flows at once",
        "How many flows of a NIC have a message under way when one starts.",
        traffic.draw_concurrency,
    ),
    "runs": (
        "Bandwidth run after run",
        "Every run of the size that took most time; circles are anomalies.",
        draw.draw_runs,
    ),
    "bursts": (
        "Burst sizes",
        "Bytes that a NIC sends without a pause.",
        traffic.draw_bursts,
    ),
    "gaps": (
        "Gaps between bursts",
        "How long a NIC pauses: compute that nothing hides, or a slower sender.",
        traffic.draw_gaps,
    ),
}

#: Name → (title, caption, function of one side and axes) of figures with a panel a run.
SIDE_FIGURES: dict[str, tuple[str, str, Callable[..., object]]] = {
    "timeline": (
        "One step, a row a rank",
        "Grey computes, blue communicates, orange waits for another rank; a panel a run, each on "
        "its own clock.",
        draw.draw_timeline,
    ),
    "path": (
        "Critical path of a step",
        "Which rank the step waited for, and what that rank did; shares add up to the step.",
        draw.draw_path,
    ),
    "nics": (
        "Rate of each NIC",
        "A row a NIC, brighter sends faster; rows alike in time mean synchronous bursts.",
        traffic.draw_nics,
    ),
    "matrix": (
        "Traffic matrix",
        "Bytes from each rank to each other rank in one iteration.",
        traffic.draw_matrix,
    ),
    "matrix-host": (
        "Traffic matrix by host",
        "Bytes from each host to each other host in one iteration.",
        partial(traffic.draw_matrix, by="host"),
    ),
    "matrix-rail": (
        "Traffic matrix by rail",
        "Bytes by position of sender and receiver on their hosts: off the diagonal crosses rails.",
        partial(traffic.draw_matrix, by="rail"),
    ),
}


#: Name → (title, caption, function of a comparison and axes) of figures of two runs.
COMPARISON_FIGURES: dict[str, tuple[str, str, Callable[..., object]]] = {
    "errors": (
        "Error by size band",
        "Boxes around zero mean a faithful replay; small sizes show host latency.",
        draw.draw_errors,
    ),
    "sensitivity": (
        "Slowdown by fault",
        "Dots together mean that a fault slows the replay as much as the truth; 1 is no slowdown.",
        draw.draw_sensitivity,
    ),
}


def run_figure(name: str, sides: Sides, column: Column | None = None) -> Picture:
    """Return the figure `name` of one run or several.

    Args:
        name: Of `run_names`.
        sides: Label → run.
        column: Width; None takes a single column for one picture and a double for panels.

    Raises:
        InputError: There is no such figure, or the runs lack what it shows.
    """
    if name in RUN_FIGURES:
        with style():
            figure = new_figure(column or "single", 0.75 if column != "double" else 0.4)
            RUN_FIGURES[name][2](sides, figure.subplots())
        return figure
    if name in SIDE_FIGURES:
        beside = (column or "double") == "double" and len(sides) > 1
        with style():
            figure = _panels(len(sides), column or ("double" if beside else "single"), beside)
            axes = figure.subplots(*((1, len(sides)) if beside else (len(sides), 1)), squeeze=False)
            for ax, (label, side) in zip(axes.flat, sides.items(), strict=True):
                SIDE_FIGURES[name][2](side, ax)
                ax.set_title(label)
        return figure
    raise InputError(f"no figure {name!r}; there are {', '.join(run_names())}")


def _panels(number: int, column: Column, beside: bool) -> Picture:
    """Return a figure for panels side by side, or one below the other."""
    if beside:
        return new_figure(column, 0.9 / number)
    return new_figure(column, (0.8 if column == "single" else 0.4) * number)


def comparison_figure(name: str, comparison: Comparison, column: Column | None = None) -> Picture:
    """Return the figure `name` of a comparison: its own, or that of both its runs.

    Raises:
        InputError: There is no such figure, or the comparison lacks what it shows.
    """
    if name not in COMPARISON_FIGURES:
        sides = {"replay": comparison.replay, "truth": comparison.truth}
        return run_figure(name, sides, column)
    with style():
        figure = new_figure(column or "single", 0.75 if column != "double" else 0.4)
        COMPARISON_FIGURES[name][2](comparison, figure.subplots())
    return figure


def run_names() -> list[str]:
    """Return the names of the figures of runs."""
    return [*RUN_FIGURES, *SIDE_FIGURES]


def run_figures(sides: Sides, column: Column | None = None) -> Iterator[tuple[str, Picture]]:
    """Yield every figure that these runs have the data for."""
    for name in run_names():
        try:
            yield name, run_figure(name, sides, column)
        except InputError:
            continue


def comparison_figures(
    comparison: Comparison, column: Column | None = None
) -> Iterator[tuple[str, str, str, Picture]]:
    """Yield (name, title, caption, figure) of every figure that a comparison has the data for."""
    every = {**RUN_FIGURES, **SIDE_FIGURES, **COMPARISON_FIGURES}
    for name, (title, caption, _) in every.items():
        try:
            figure = comparison_figure(name, comparison, column)
        except InputError:
            continue
        yield name, title, caption, figure
