"""Whether a log's rings and trees are those of a preset."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from genie.errors import InputError
from genie.replay.clusters.channels import (
    UNKNOWN,
    build_ring,
    build_tree,
    channel_plan,
    swapping_codes,
)
from genie.replay.clusters.graph import HostGraphs
from genie.replay.clusters.layout import Layout
from genie.replay.clusters.nccl_log import LogFacts
from genie.replay.clusters.sources import PresetSource

__all__ = ["Known", "preset_if_same"]

Ints = npt.NDArray[np.int32]


class Known(NamedTuple):
    """What a log settled: its facts, whole rings by channel, trees by channel."""

    facts: LogFacts
    rings: dict[int, Ints]
    trees: dict[int, tuple[Ints, Ints]]


def preset_if_same(
    name: str, layout: Layout, known: Known, version: tuple[int, ...]
) -> HostGraphs | None:
    """Return a preset's search results if every known ring and tree row is the preset's.

    Args:
        name: Preset id.
        layout: Ranks by host; hosts must be equal and as large as the preset's.
        known: What the log settled.
        version: NCCL release.
    """
    source = PresetSource.named(name)
    size = source.machine.gpus_per_host
    sets, _ = layout.gpu_sets
    if sets != [tuple(range(size))] or not (known.rings or known.trees):
        return None
    try:
        graphs = source.find(sets[0], 0, layout.n_hosts == 1, version).graphs
    except InputError:
        return None  # a machine that the release does not know
    if bool(known.facts.heads) != (graphs.nvls.n_channels > 0 and layout.n_hosts > 1):
        return None
    search = min(graphs.ring.n_channels, graphs.tree.n_channels)
    total = known.facts.total or 0
    if total not in (2 * search, 4 * search):
        return None
    swapping = swapping_codes(version, layout.n_hosts)
    for channel, (q, second) in enumerate(channel_plan(search, total, total)):
        ring = known.rings.get(channel)
        if ring is not None:
            ours = build_ring(layout, [graphs.ring], q, search, swapping)
            if not np.array_equal(np.roll(ours, -int(np.flatnonzero(ours == 0)[0])), ring):
                return None
        up, down = known.trees[channel]
        shown = up != UNKNOWN
        ours_up, ours_down = build_tree(layout, [graphs.tree], q, second)
        if not (
            np.array_equal(ours_up[shown], up[shown])
            and np.array_equal(ours_down[shown], down[shown])
        ):
            return None
    return graphs
