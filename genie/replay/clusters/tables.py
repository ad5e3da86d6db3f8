"""A cluster as tables, on disk, and as a picture of its rings."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from genie import checks
from genie.errors import InputError
from genie.replay import result_io
from genie.replay.clusters.recipe import remake, steps_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from genie.replay.cluster import Cluster

RANKS = np.dtype([("rank", "i4"), ("host", "i4"), ("local", "i4"), ("gpu", "i4")])
CHANNELS = np.dtype(
    [
        ("channel", "u2"),
        ("rank", "i4"),
        ("ring_prev", "i4"),
        ("ring_next", "i4"),
        ("tree_up", "i4"),
    ]
)
_MOST_DRAWN = 4096


def table(cluster: Cluster, name: str) -> npt.NDArray[np.void]:
    """Return the rows of `RANKS` or `CHANNELS` (see `Cluster.to_pandas`)."""
    checks.one_of("table", name, ("ranks", "channels"))
    if name == "ranks":
        rows = np.zeros(cluster.n_ranks, RANKS)
        rows["rank"] = np.arange(cluster.n_ranks)
        rows["host"] = np.asarray(cluster.host_of)
        rows["local"] = np.asarray(cluster.local_of)
        rows["gpu"] = np.asarray(cluster.gpu_of)
        return rows
    return _channels(cluster)


def _channels(cluster: Cluster) -> npt.NDArray[np.void]:
    n = cluster.n_ranks
    rows = np.zeros(len(cluster.channels) * n, CHANNELS)
    for number, channel in enumerate(cluster.channels):
        part = rows[number * n : (number + 1) * n]
        part["channel"], part["rank"] = number, np.arange(n)
        part["ring_prev"] = part["ring_next"] = -1
        if channel.has_ring:
            order = np.asarray(channel.ring)
            part["ring_next"][order] = np.roll(order, -1)
            part["ring_prev"][order] = np.roll(order, 1)
        part["tree_up"] = channel.tree_up.array
    return rows


def _tables(cluster: Cluster) -> dict[str, npt.NDArray[np.void]]:
    return {name: table(cluster, name) for name in ("ranks", "channels")}


def save(cluster: Cluster, path: str | os.PathLike[str], force: bool) -> Path:
    """Write a cluster (see `Cluster.save`)."""
    facts = {"name": cluster.name, "steps": steps_of(cluster), "notes": cluster.notes}
    return result_io.save(path, "cluster", _tables(cluster), facts, force)


def load(path: str | os.PathLike[str]) -> Cluster:
    """Make a saved cluster anew (see `Cluster.load`)."""
    manifest = result_io.load(path, "cluster")
    made = remake(manifest.get("steps", []), str(path))
    result_io.check_same(path, manifest, _tables(made))
    return made


def plot(cluster: Cluster, ax: Axes | None) -> Axes:
    """Draw the rings (see `Cluster.plot`)."""
    if cluster.n_ranks > _MOST_DRAWN:
        raise InputError(
            f"{cluster.n_ranks} ranks are too many to draw (at most {_MOST_DRAWN}); draw a part: "
            "cluster.sub(ranks).plot()"
        )
    ax = result_io.new_axes() if ax is None else ax
    host_of = np.asarray(cluster.host_of)
    rings = [channel for channel in cluster.channels if channel.has_ring]
    hosts = np.array([host_of[np.asarray(channel.ring)] for channel in rings])
    if len(hosts):
        ax.imshow(hosts, aspect="auto", interpolation="nearest", cmap=_colours(cluster.n_hosts))
    if cluster.n_ranks <= 64 and len(hosts) <= 32:
        for y, channel in enumerate(rings):
            for x, rank in enumerate(channel.ring):
                ax.annotate(str(rank), (x, y), ha="center", va="center", fontsize="x-small")
    ax.set_xlabel("position in the ring")
    ax.set_ylabel("channel")
    ax.set_title(f"{cluster.name}: ranks in ring order, coloured by host")
    return ax


def _colours(hosts: int) -> Any:
    from matplotlib import colormaps

    return colormaps["tab20" if hosts <= 20 else "viridis"]
