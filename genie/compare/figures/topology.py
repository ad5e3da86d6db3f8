"""Rings and trees of one channel, as NCCL connects ranks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from genie.replay.cluster import Cluster
    from genie.replay.recording import Recording


def _arrow(ax: Axes, a: tuple[float, float], b: tuple[float, float], colour: str) -> None:
    ax.annotate(
        "", xy=b, xytext=a,
        arrowprops={"arrowstyle": "-|>", "color": colour, "linewidth": 0.9, "shrinkA": 8,
                    "shrinkB": 8, "mutation_scale": 7},
    )  # fmt: skip


def _dots(ax: Axes, cluster: Cluster, places: dict[int, tuple[float, float]]) -> None:
    for rank, (x, y) in places.items():
        host = int(cluster.host_of[rank])
        ax.scatter([x], [y], s=120, color=f"C{host % 7}", alpha=0.35, linewidth=0, zorder=2)
        ax.text(x, y, str(rank), ha="center", va="center", fontsize=7, zorder=3)
    ax.set_aspect("equal")
    ax.axis("off")


def draw_ring(cluster: Cluster, ax: Axes, channel: int = 0) -> Axes:
    """Draw a channel's ring; one colour a host, arrows between hosts dark."""
    ring = cluster.channels[channel].ring
    n = len(ring)
    places = {
        int(rank): (math.sin(2 * math.pi * i / n), math.cos(2 * math.pi * i / n))
        for i, rank in enumerate(ring)
    }
    _dots(ax, cluster, places)
    for i, rank in enumerate(ring):
        after = int(ring[(i + 1) % n])
        away = cluster.host_of[rank] != cluster.host_of[after]
        _arrow(ax, places[int(rank)], places[after], "#000000" if away else "0.65")
    ax.set_title(f"ring, channel {channel}")
    return ax


def draw_tree(cluster: Cluster, ax: Axes, channel: int = 0) -> Axes:
    """Draw a channel's tree with its root on top; edges between hosts dark."""
    found = cluster.channels[channel]
    ranks = range(cluster.n_ranks)
    children = {rank: [int(c) for c in found.tree_down[rank]] for rank in ranks}
    root = next(rank for rank in ranks if found.tree_up[rank] < 0)
    places: dict[int, tuple[float, float]] = {}
    width: dict[int, float] = {}

    order = [root]
    for rank in order:
        order.extend(children[rank])
    for rank in reversed(order):
        width[rank] = max(1.0, sum(width[child] for child in children[rank]))
    places[root] = (width[root] / 2, 0.0)
    left = {root: 0.0}
    for rank in order:
        x = left[rank]
        for child in children[rank]:
            left[child] = x
            places[child] = (x + width[child] / 2, places[rank][1] - 1.0)
            x += width[child]
    _dots(ax, cluster, places)
    for rank in order:
        for child in children[rank]:
            away = cluster.host_of[rank] != cluster.host_of[child]
            _arrow(ax, places[child], places[rank], "#000000" if away else "0.65")
    ax.set_title(f"tree, channel {channel}")
    return ax


def draw_peers(cluster: Cluster, recording: Recording, ax: Axes, channel: int | None = 0) -> Axes:
    """Draw who sent to whom (on a channel, or on all), whatever the algorithm."""
    rows = recording.messages
    rows = rows[rows["direction"] == 0]
    if channel is not None:
        rows = rows[rows["channel"] == channel]
    n = cluster.n_ranks
    places = {
        rank: (math.sin(2 * math.pi * rank / n), math.cos(2 * math.pi * rank / n))
        for rank in range(n)
    }
    _dots(ax, cluster, places)
    for rank, peer in sorted(set(zip(rows["rank"].tolist(), rows["peer"].tolist(), strict=True))):
        _arrow(ax, places[rank], places[peer], "#000000")
    ax.set_title("peers" if channel is None else f"peers, channel {channel}")
    return ax
