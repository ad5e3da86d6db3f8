"""Axes of figures: scales that suit the data, ticks with units."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from genie.units import format_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Below this ratio of largest to smallest a logarithmic axis shows nothing a linear one hides.
LOG_FROM = 20


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
    ax.set_xlabel("size")
