"""A message diagram: ranks as rows, time to the right, one arrow a message."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from genie.compare.figures.axes import legend_below

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from genie.replay.recording import Recording

#: More arrows than this cannot be told apart on paper.
MAX_ARROWS = 2000


def draw_space_time(recording: Recording, ax: Axes, channel: int | None = None) -> Axes:
    """Draw every message from when it was posted to when it arrived.

    Args:
        recording: With a `messages` table.
        ax: Where to draw.
        channel: Only this channel's messages; None draws all.

    Raises:
        InputError: There is no message to draw, or there are too many.
    """
    from genie.errors import InputError

    rows = recording.messages
    sends = rows[rows["direction"] == 0]
    receives = rows[rows["direction"] == 1]
    if channel is not None:
        sends = sends[sends["channel"] == channel]
        receives = receives[receives["channel"] == channel]
    if not sends.size:
        raise InputError("the recording has no messages between hosts to draw")
    if sends.size > MAX_ARROWS:
        raise InputError(f"{sends.size} messages are too many to draw (at most {MAX_ARROWS})")
    channels = np.unique(sends["channel"])
    for i, number in enumerate(channels.tolist()):
        label = f"channel {number}" if len(channels) > 1 else None
        for row in sends[sends["channel"] == number]:
            end = _arrival(row, sends, receives)
            ax.annotate(
                "",
                xy=(end / 1e3, int(row["peer"])),
                xytext=(int(row["posted_ns"]) / 1e3, int(row["rank"])),
                arrowprops={"arrowstyle": "-|>", "color": f"C{i % 7}", "linewidth": 0.8,
                            "shrinkA": 0, "shrinkB": 0, "mutation_scale": 6},
            )  # fmt: skip
        if label:
            ax.plot([], [], color=f"C{i % 7}", label=label)
    ranks = np.unique(np.concatenate([sends["rank"], sends["peer"]]))
    last = max(int(sends["completed_ns"].max()), int(receives["completed_ns"].max(initial=0)))
    for rank in ranks.tolist():
        ax.axhline(rank, color="0.8", linewidth=0.6, zorder=0)
    ax.set_yticks(ranks)
    ax.set_ylim(ranks.max() + 0.5, ranks.min() - 0.5)
    ax.set_xlim(0, last / 1e3 * 1.02)
    ax.grid(visible=False)
    ax.set_xlabel("time [us]")
    ax.set_ylabel("rank")
    if len(channels) > 1 and len(channels) <= 7:
        legend_below(ax)
    return ax


def _arrival(row: np.void, sends: npt.NDArray[np.void], receives: npt.NDArray[np.void]) -> int:
    """Return when a send's message arrived: the receive of the same number on its connection."""
    same = sends[sends["connection"] == row["connection"]]
    number = int((same["posted_ns"] < row["posted_ns"]).sum())
    arrivals = np.sort(receives[receives["connection"] == row["connection"]]["completed_ns"])
    return int(arrivals[number]) if number < arrivals.size else int(row["completed_ns"])
