"""Figures of what was sent: who to whom, and its shape in time; each draws into an `ax`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from genie.compare.figures.axes import log_if_wide, steps
from genie.compare.figures.style import COLOURS, LINES
from genie.compare.metrics.messages import first_iteration
from genie.compare.metrics.shape import BURST_GAP_NS, TrafficShape, nic_shapes, traffic_shape
from genie.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from genie.compare.truth.model import Truth

#: Bins of 100 us that still can be told apart; longer runs are drawn in bins of 1 ms.
MOST_BINS = 1500
#: NICs that still have a row of their own with a name.
MOST_NAMES = 16


def draw_matrix(side: Truth, ax: Axes, by: str = "rank") -> Axes:
    """Draw bytes that each rank sent to each other in the first measured iteration.

    Args:
        side: A run with messages.
        ax: Where to draw.
        by: "rank", "host", or "rail" (position of the rank on its host).
    """
    if side.messages is None:
        raise InputError(f"{side.source} has no messages to draw")
    rows = first_iteration(side)
    rows = rows[(rows["direction"] == 0) & (rows["peer"] >= 0)]
    src, dst = rows["rank"].astype(np.int64), rows["peer"].astype(np.int64)
    if by != "rank":
        if side.hosts <= 0 or side.world_size <= 0:
            raise InputError(f"{side.source} does not say which ranks share a host")
        local = side.world_size // side.hosts
        src, dst = (src // local, dst // local) if by == "host" else (src % local, dst % local)
    if not len(src):
        raise InputError(f"{side.source} has no messages between known ranks to draw")
    n = int(max(src.max(initial=0), dst.max(initial=0))) + 1
    total = np.zeros((n, n))
    np.add.at(total, (src, dst), rows["nbytes"] / 1e6)
    image = ax.imshow(np.where(total > 0, total, np.nan), cmap="cividis", origin="upper", vmin=0)
    ax.grid(visible=False)
    if n <= 16:
        ax.set_xticks(range(n))
        ax.set_yticks(range(n))
    ax.set_xlabel(f"to {by}")
    ax.set_ylabel(f"from {by}")
    ax.figure.colorbar(image, ax=ax, label="sent [MB]")
    return ax


def draw_rate(sides: dict[str, Truth], ax: Axes) -> Axes:
    """Draw the rate of all senders over the first measured iteration, a bin 1 ms or 100 us."""
    shapes = _first_iterations(sides)
    coarse = any(len(s.rate_100us) > MOST_BINS for s in shapes.values())
    for name, shape in shapes.items():
        rate, width = (shape.rate_1ms, 1.0) if coarse else (shape.rate_100us, 0.1)
        time = np.arange(len(rate) + 1) * width
        ax.step(time, np.append(rate, 0), where="post", label=name, color=COLOURS.get(name),
                linestyle=LINES.get(name, "-"), linewidth=0.9)  # fmt: skip
    ax.set_xlabel("time [ms]")
    ax.set_xlim(left=0)
    ax.set_ylim(bottom=0)
    ax.set_ylabel(f"all NICs, in {'1 ms' if coarse else '100 us'} [GB/s]")
    ax.legend()
    return ax


def _first_iterations(sides: dict[str, Truth]) -> dict[str, TrafficShape]:
    found = {
        name: traffic_shape(replace(side, messages=first_iteration(side)))
        for name, side in sides.items()
        if side.messages is not None
    }
    shapes = {name: shape for name, shape in found.items() if shape is not None}
    if not shapes:
        raise InputError("no run has timed messages to draw")
    return shapes


def draw_nics(side: Truth, ax: Axes) -> Axes:
    """Draw the rate of each NIC over the first measured iteration: a row a NIC, colour its rate."""
    if side.messages is None:
        raise InputError(f"{side.source} has no messages to draw")
    shapes = nic_shapes(replace(side, messages=first_iteration(side)))
    if not shapes:
        raise InputError(f"{side.source} has no timed messages to draw")
    coarse = len(next(iter(shapes.values())).rate_100us) > MOST_BINS
    rows = np.array([s.rate_1ms if coarse else s.rate_100us for s in shapes.values()])
    length = rows.shape[1] * (1.0 if coarse else 0.1)
    image = ax.imshow(
        np.where(rows > 0, rows, np.nan), cmap="cividis", aspect="auto", vmin=0,
        interpolation="nearest", extent=(0, length, len(rows) - 0.5, -0.5),
    )  # fmt: skip
    ax.grid(visible=False)
    if len(shapes) <= MOST_NAMES:
        names = [name.replace("host ", "").replace(" NIC ", ".") for name in shapes]
        ax.set_yticks(range(len(shapes)), names)
    by = "host.NIC" if "NIC" in next(iter(shapes)) else "sender"
    ax.set_ylabel(by)
    ax.set_xlabel("time [ms]")
    ax.figure.colorbar(image, ax=ax, label=f"in {'1 ms' if coarse else '100 us'} [GB/s]")
    return ax


def draw_concurrency(sides: dict[str, Truth], ax: Axes) -> Axes:
    """Draw how many flows of its NIC are under way when a message starts, as a distribution."""
    drawn = _distribution(sides, ax, lambda shape: shape.concurrency)
    ax.set_xlim(0, max(drawn) + 1)
    ax.set_xlabel("flows at once at a NIC")
    ax.set_ylabel("fraction of messages")
    return ax


def draw_bursts(sides: dict[str, Truth], ax: Axes) -> Axes:
    """Draw the sizes of a NIC's bursts, as a distribution."""
    drawn = _distribution(sides, ax, lambda shape: shape.burst_bytes / 1e6)
    log_if_wide(ax, min(drawn), max(drawn))
    ax.set_xlabel(f"burst [MB] (gaps above {BURST_GAP_NS // 1000} us end one)")
    ax.set_ylabel("fraction of bursts")
    return ax


def draw_gaps(sides: dict[str, Truth], ax: Axes) -> Axes:
    """Draw how long a NIC pauses between bursts, as a distribution."""
    drawn = _distribution(sides, ax, lambda shape: shape.gap_ns / 1e6)
    log_if_wide(ax, min(drawn), max(drawn))
    ax.set_xlabel("gap between a NIC's bursts [ms]")
    ax.set_ylabel("fraction of gaps")
    return ax


def _distribution(
    sides: dict[str, Truth], ax: Axes, values_of: Callable[[TrafficShape], npt.NDArray[Any]]
) -> list[float]:
    """Draw the distribution of each side's values; return the smallest and largest of each."""
    drawn: list[float] = []
    for name, side in sides.items():
        shape = traffic_shape(side)
        values = np.sort(values_of(shape)) if shape is not None else np.zeros(0)
        if len(values):
            steps(values, name, ax)
            drawn += [float(values[0]), float(values[-1])]
    if not drawn:
        raise InputError("no run has timed messages to draw")
    ax.set_ylim(0, 1.02)
    ax.legend()
    return drawn
