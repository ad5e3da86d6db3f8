"""Which figures there are, by name, and how to make each from runs or a comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from genie.compare.figures import comparison as draw
from genie.compare.figures.style import new_figure, style
from genie.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from genie.compare.comparison import Comparison
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
        draw.draw_rate,
    ),
    "concurrency": (
        "Messages in flight",
        "How many messages are under way when one starts.",
        draw.draw_concurrency,
    ),
    "runs": (
        "Bandwidth run after run",
        "Every run of the size that took most time; circles are anomalies.",
        draw.draw_runs,
    ),
    "bursts": (
        "Burst sizes",
        "Bytes that a sender sends without a pause.",
        draw.draw_bursts,
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
    "matrix": (
        "Traffic matrix",
        "Bytes from each rank to each other rank in one iteration.",
        draw.draw_matrix,
    ),
    "matrix-host": (
        "Traffic matrix by host",
        "Bytes from each host to each other host in one iteration.",
        partial(draw.draw_matrix, by="host"),
    ),
    "matrix-rail": (
        "Traffic matrix by rail",
        "Bytes by position of sender and receiver on their hosts: off the diagonal crosses rails.",
        partial(draw.draw_matrix, by="rail"),
    ),
}


def run_figure(name: str, sides: Sides) -> Figure:
    """Return the figure `name` of one run or several.

    Raises:
        InputError: There is no such figure, or the runs lack what it shows.
    """
    if name in RUN_FIGURES:
        with style():
            figure = new_figure("single", 0.75)
            RUN_FIGURES[name][2](sides, figure.subplots())
        return figure
    if name in SIDE_FIGURES:
        with style():
            figure = new_figure("double" if len(sides) > 1 else "single", 0.45 * len(sides) ** -0.3)
            axes = figure.subplots(1, len(sides), squeeze=False)[0]
            for ax, (label, side) in zip(axes, sides.items(), strict=True):
                SIDE_FIGURES[name][2](side, ax)
                ax.set_title(label)
        return figure
    raise InputError(f"no figure {name!r}; there are {', '.join(run_names())}")


def run_names() -> list[str]:
    """Return the names of the figures of runs."""
    return [*RUN_FIGURES, *SIDE_FIGURES]


def run_figures(sides: Sides) -> Iterator[tuple[str, Figure]]:
    """Yield every figure that these runs have the data for."""
    for name in run_names():
        try:
            yield name, run_figure(name, sides)
        except InputError:
            continue


def comparison_figures(comparison: Comparison) -> Iterator[tuple[str, str, str, Figure]]:
    """Yield (name, title, caption, figure) of every figure of a comparison."""
    sides = {"replay": comparison.replay, "truth": comparison.truth}
    captions = {name: (title, text) for name, (title, text, _) in RUN_FIGURES.items()}
    captions |= {name: (title, text) for name, (title, text, _) in SIDE_FIGURES.items()}
    for name, figure in run_figures(sides):
        yield name, *captions[name], figure
    errors = errors_figure(comparison)
    if errors is not None:
        yield (
            "errors",
            "Error by size band",
            "Boxes around zero mean a faithful replay; small sizes show host latency.",
            errors,
        )


def errors_figure(comparison: Comparison) -> Figure | None:
    """Return the figure of errors by size band, None where no pair has a size and a time."""
    try:
        with style():
            figure = new_figure("single", 0.75)
            draw.draw_errors(comparison, figure.subplots())
    except InputError:
        return None
    return figure
