"""NVLS trees: the same head of every host joined by the double tree (spec 1.6)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from genie.replay.clusters.channels import Down, Up, join_hosts
from genie.replay.clusters.graph import Graph
from genie.replay.clusters.layout import Layout

__all__ = ["NvlsTree", "build_nvls_trees", "join_heads"]

Ints = npt.NDArray[np.int32]


class NvlsTree:
    """The trees of all heads on channels of one parity.

    Attributes:
        heads: Ranks that are heads, one row a host, one column a head.
        head_of: Head number of each rank, -1 for ranks that are none.
        up: Parent of each rank, -1 none.
        down: Children of each rank.
    """

    def __init__(self, heads: Ints, head_of: Ints, up: Ints, down: Ints) -> None:
        self.heads = heads
        self.head_of = head_of
        self.up = Up(up)
        self.down = Down(down, up)

    @property
    def n_heads(self) -> int:
        """Heads of a host."""
        return int(self.heads.shape[1])


def build_nvls_trees(
    layout: Layout, graphs: Sequence[Graph], n_heads: int
) -> tuple[NvlsTree, NvlsTree]:
    """Return the trees of even and of odd channels.

    Args:
        layout: The members.
        graphs: NVLS graph of each distinct GPU set of the layout.
        n_heads: Heads of the communicator (the fewest of any host).
    """
    sets, set_of_host = layout.gpu_sets
    heads = np.empty((layout.n_hosts, n_heads), dtype=np.int32)
    for index, gpus in enumerate(sets):
        local = np.array([gpus.index(head[0]) for head in graphs[index].intra[:n_heads]])
        hosts = np.flatnonzero(set_of_host == index)
        heads[hosts] = layout.by_host[layout.offset[hosts][:, None] + local]
    return join_heads(layout, heads)


def join_heads(layout: Layout, heads: Ints) -> tuple[NvlsTree, NvlsTree]:
    """Return the trees of even and of odd channels for given heads.

    Args:
        layout: The members.
        heads: Ranks that are heads, one row a host, one column a head.
    """
    n_heads = heads.shape[1]
    head_of = np.full(layout.n_ranks, -1, dtype=np.int32)
    head_of[heads] = np.arange(n_heads, dtype=np.int32)
    trees = []
    for second in (False, True):
        up = np.full(layout.n_ranks, -1, dtype=np.int32)
        down = np.full((layout.n_ranks, 3), -1, dtype=np.int32)
        for head in range(n_heads):
            door = np.repeat(heads[:, head : head + 1], 3, axis=1)
            join_hosts(up, down, door, second)
        trees.append(NvlsTree(heads, head_of, up, down))
    return trees[0], trees[1]
