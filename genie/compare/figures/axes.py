"""Axes of figures: scales that suit the data, ticks with units."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from genie.compare.figures.style import COLOURS, LINES
from genie.units import format_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Below this ratio of largest to smallest a logarithmic axis shows nothing a linear one hides.
LOG_FROM = 20
#: From the bottom of axes to a legend below: ticks, their labels and the axis label.
BELOW_POINTS = 28


def log_if_wide(ax: Axes, smallest: float, largest: float) -> None:
    """Make the x axis logarithmic where the data span more than a decade, else linear from 0."""
    if smallest > 0 and largest / smallest >= LOG_FROM:
        ax.set_xscale("log")
    else:
        ax.set_xlim(0, largest * 1.05 if largest > 0 else 1)


def size_axis(ax: Axes, smallest: int, largest: int) -> None:
    """Make the x axis one of sizes: powers of two, ticks such as "64 KiB"."""
    ax.set_xscale("log", base=2)
    low = int(np.floor(np.log2(max(smallest, 1))))
    high = int(np.ceil(np.log2(max(largest, 1))))
    step = max(1, -(-(high - low) // 5))
    ticks = [1 << power for power in range(low, high + 1, step)]
    ax.set_xticks(ticks, [format_size(tick) for tick in ticks])
    ax.minorticks_off()
    ax.set_xlabel("size [B]")


def steps(values: npt.NDArray[Any], name: str, ax: Axes) -> None:
    """Draw the distribution of sorted values as steps from 0 to 1."""
    share = np.arange(len(values) + 1) / len(values)
    ax.step(np.append(values[:1], values), share, where="post", label=name,
            color=COLOURS.get(name), linestyle=LINES.get(name, "-"))  # fmt: skip


def legend_below(ax: Axes) -> None:
    """Put the legend below the axes, where it covers nothing; constrained layout makes room.

    Its distance is in points, not in parts of the axes, so that the layout is the same however
    often the figure is drawn.
    """
    from matplotlib.transforms import ScaledTranslation

    figure = ax.figure
    below = ScaledTranslation(0, -BELOW_POINTS / 72, figure.dpi_scale_trans)
    handles, _ = ax.get_legend_handles_labels()
    ax.legend(ncols=min(len(handles), 3), loc="upper center", bbox_to_anchor=(0.5, 0),
              bbox_transform=ax.transAxes + below, borderaxespad=0)  # fmt: skip
