"""`genie.figure()` and `genie.draw()`: every figure by name, from runs or a comparison."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from genie.compare.comparison import Comparison
from genie.compare.figures.style import Column
from genie.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from genie.compare.figures.picture import Picture
    from genie.compare.truth.model import Truth
    from genie.replay.recording import Recording


def figure(
    name: str,
    data: Recording | Truth | Comparison | Mapping[str, Recording | Truth] | None = None,
    *,
    column: Column | None = None,
    **options: Any,
) -> Picture:
    """Return a figure in the style of the paper; it has `save(path)` and shows itself in notebooks.

    Args:
        name: As `genie figure` names it: "busbw", "timeline", "errors", …; "schedule" takes no data
            but `kind`, `nbytes`, `cluster` and optionally `nccl`, `root`, `channel`.
        data: A run, label → run, or a comparison ("errors" and "sensitivity" take only that).
        column: Width of one or both columns of a two-column paper; None suits the figure.
        options: Of "schedule".

    Raises:
        InputError: There is no such figure, or the data lack what it shows.
    """
    from genie.compare.figures import catalogue

    if name == "schedule":
        from genie.compare.figures.schedule import figure_schedule

        return figure_schedule(**options)
    if options:
        raise InputError(f"figure {name!r} takes no {', '.join(options)}")
    if isinstance(data, Comparison):
        return catalogue.comparison_figure(name, data, column)
    if name in catalogue.COMPARISON_FIGURES:
        raise InputError(f"figure {name!r} takes a comparison (genie.compare)")
    return catalogue.run_figure(name, _sides(data), column)


def draw(
    name: str,
    data: Recording | Truth | Comparison | Mapping[str, Recording | Truth],
    ax: Axes,
    **options: Any,
) -> Axes:
    """Draw one figure into your axes and return them.

    Args:
        name: As for `figure`, without "schedule". Figures with a panel a run take one run.
        data: As for `figure`.
        ax: Where to draw.
        options: Of the drawing function, such as `kind` of "busbw" or `by` of "matrix".

    Raises:
        InputError: There is no such figure, or the data lack what it shows.
    """
    from genie.compare.figures import catalogue

    if name in catalogue.COMPARISON_FIGURES:
        if not isinstance(data, Comparison):
            raise InputError(f"figure {name!r} takes a comparison (genie.compare)")
        catalogue.COMPARISON_FIGURES[name][2](data, ax, **options)
        return ax
    if isinstance(data, Comparison):
        data = {"replay": data.replay, "truth": data.truth}
    sides = _sides(data)
    if name in catalogue.RUN_FIGURES:
        catalogue.RUN_FIGURES[name][2](sides, ax, **options)
        return ax
    if name not in catalogue.SIDE_FIGURES:
        known = [*catalogue.run_names(), *catalogue.COMPARISON_FIGURES]
        raise InputError(f"no figure {name!r} to draw into axes; there are {', '.join(known)}")
    if len(sides) != 1:
        raise InputError(f"figure {name!r} has axes for one run, got {len(sides)}")
    catalogue.SIDE_FIGURES[name][2](next(iter(sides.values())), ax, **options)
    return ax


def _sides(data: Any) -> dict[str, Truth]:
    """Return label → run; a lone one is called by its mode."""
    from genie.compare.truth.model import Truth
    from genie.compare.truth.recording import from_recording
    from genie.replay.recording import Recording

    if isinstance(data, Recording | Truth):
        mode = data.mode if isinstance(data, Truth) else str(data.manifest.get("mode", ""))
        data = {mode or "run": data}
    if not isinstance(data, Mapping) or not data:
        raise InputError(f"a figure takes runs or a comparison, not {type(data).__name__}")
    sides = {}
    for label, given in data.items():
        side = from_recording(given, str(label)) if isinstance(given, Recording) else given
        if not isinstance(side, Truth):
            raise InputError(f"{label}: a run is a Recording or Truth, not {type(side).__name__}")
        sides[str(label)] = side
    return sides
