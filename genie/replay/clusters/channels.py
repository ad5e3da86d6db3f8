"""Global rings and trees of one channel, from the hosts' search results.

Rings: spec nccl-wire-schedule 1.2; trees: 1.5; both with the host-by-host rules of
nccl-subcommunicators section 3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import overload

import numpy as np
import numpy.typing as npt

from genie.errors import ScheduleError
from genie.replay.clusters.graph import Graph
from genie.replay.clusters.layout import Layout
from genie.replay.nccl.trees import double_binary_tree

__all__ = [
    "Channel",
    "Down",
    "Ring",
    "Tree",
    "Up",
    "build_ring",
    "build_tree",
    "channel_plan",
    "swapping_codes",
]

Ints = npt.NDArray[np.int32]


UNKNOWN = -2
"""Stands in an array for the parent of a rank whose tree row a log does not show."""


class Up(Sequence[int]):
    """Parent of each rank, -1 none; compares equal to a list of ints.

    Asking for a rank that a log does not show raises `ScheduleError`.
    """

    def __init__(self, array: Ints) -> None:
        self.array = array

    def __len__(self) -> int:
        return len(self.array)

    @overload
    def __getitem__(self, rank: int) -> int: ...
    @overload
    def __getitem__(self, rank: slice) -> list[int]: ...
    def __getitem__(self, rank: int | slice) -> int | list[int]:
        value = self.array[rank]
        if isinstance(rank, slice):
            return [int(x) for x in value]
        if value == UNKNOWN:
            raise _not_shown(rank)
        return int(value)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Up):
            return bool(np.array_equal(self.array, other.array))
        return self.tolist() == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def tolist(self) -> list[int]:
        """Return a plain list."""
        out: list[int] = self.array.tolist()
        return out

    def __repr__(self) -> str:
        return repr(self.tolist())


class Down(Sequence[list[int]]):
    """Children of each rank in NCCL's order; compares equal to a list of lists."""

    def __init__(self, array: Ints, up: Ints) -> None:
        self.array = array
        self._up = up

    def __len__(self) -> int:
        return len(self.array)

    @overload
    def __getitem__(self, rank: int) -> list[int]: ...
    @overload
    def __getitem__(self, rank: slice) -> list[list[int]]: ...
    def __getitem__(self, rank: int | slice) -> list[int] | list[list[int]]:
        if isinstance(rank, slice):
            return [self._row(row) for row in self.array[rank]]
        if self._up[rank] == UNKNOWN:
            raise _not_shown(rank)
        return self._row(self.array[rank])

    @staticmethod
    def _row(row: Ints) -> list[int]:
        return [int(x) for x in row if x >= 0]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Down):
            return self.tolist() == other.tolist()
        return self.tolist() == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def tolist(self) -> list[list[int]]:
        """Return plain lists."""
        return self[:]

    def __repr__(self) -> str:
        return repr(self.tolist())


class Ring:
    """One ring, built when first asked for."""

    def __init__(self, build: Callable[[], Ints]) -> None:
        self._build = build

    @cached_property
    def order(self) -> Ints:
        """Ranks in ring order, starting at rank 0."""
        order = self._build()
        start = int(np.flatnonzero(order == 0)[0])
        return np.roll(order, -start)

    @cached_property
    def position(self) -> Ints:
        """Index of each rank in `order`."""
        position = np.empty_like(self.order)
        position[self.order] = np.arange(len(self.order), dtype=np.int32)
        return position

    @cached_property
    def as_list(self) -> list[int]:
        """`order` as a list, made once."""
        out: list[int] = self.order.tolist()
        return out


class Tree:
    """One tree, built when first asked for."""

    def __init__(self, build: Callable[[], tuple[Ints, Ints]]) -> None:
        self._build = build

    @cached_property
    def _both(self) -> tuple[Up, Down]:
        up, down = self._build()
        return Up(up), Down(down, up)

    @property
    def up(self) -> Up:
        """Parent of each rank."""
        return self._both[0]

    @property
    def down(self) -> Down:
        """Children of each rank."""
        return self._both[1]


class Channel:
    """One channel: its ring and its tree; copies of a channel share both.

    Attributes:
        index: Channel number.

    Args:
        index: Channel number.
        ring: The ring; None where a log shows only some of its links.
        tree: The tree.
        links: Previous and next rank where the log shows them, for a channel without ring.
    """

    def __init__(
        self,
        index: int,
        ring: Ring | None,
        tree: Tree,
        links: Mapping[int, tuple[int | None, int | None]] | None = None,
    ) -> None:
        self.index = index
        self._ring = ring
        self._tree = tree
        self._links = links or {}

    @property
    def ring(self) -> list[int]:
        """Ranks in ring order, starting at rank 0."""
        return self._have_ring().as_list

    @property
    def ring_array(self) -> Ints:
        """Ranks in ring order as an int32 array (do not write to it)."""
        return self._have_ring().order

    def ring_position(self, rank: int) -> int:
        """Return the index of `rank` in `ring`."""
        return int(self._have_ring().position[rank])

    def ring_next(self, rank: int) -> int:
        """Return the rank that `rank` sends to."""
        known = self._links.get(rank, (None, None))[1]
        if known is not None:
            return known
        ring = self._have_ring()
        return int(ring.order[(ring.position[rank] + 1) % len(ring.order)])

    def ring_prev(self, rank: int) -> int:
        """Return the rank that `rank` receives from."""
        known = self._links.get(rank, (None, None))[0]
        if known is not None:
            return known
        ring = self._have_ring()
        return int(ring.order[int(ring.position[rank]) - 1])

    @property
    def tree_up(self) -> Up:
        """Parent of each rank, -1 for the root."""
        return self._tree.up

    @property
    def tree_down(self) -> Down:
        """Children of each rank: the one on its own host first, then NCCL's child 0 and 1."""
        return self._tree.down

    @property
    def has_ring(self) -> bool:
        """Whether the ring is known (a log may show only trees)."""
        return self._ring is not None

    @property
    def has_tree(self) -> bool:
        """Whether every rank's place in the tree is known."""
        return not bool((self._tree.up.array == UNKNOWN).any())

    def _have_ring(self) -> Ring:
        if self._ring is None:
            raise ScheduleError(
                f"the ring of channel {self.index} is not known (see the cluster's notes)",
                channel=self.index,
            )
        return self._ring

    def __repr__(self) -> str:
        return f"<Channel {self.index}>"


def channel_plan(search: int, kept: int, total: int) -> list[tuple[int, bool]]:
    """Return, for each channel, its search channel and whether it has the second tree.

    Args:
        search: Search channels.
        kept: Channels after doubling and limits.
        total: Channels after raising by copying from channel 0 (spec 1.4).
    """
    doubled = [(c, second) for second in (False, True) for c in range(search)]
    return [doubled[i % kept % len(doubled)] for i in range(total)]


def _not_shown(rank: int) -> ScheduleError:
    return ScheduleError(
        f"the log does not show rank {rank}'s place in this tree (see the cluster's notes)",
        rank=rank,
    )


def local_orders(graph: Graph, gpus: tuple[int, ...]) -> npt.NDArray[np.int64]:
    """Return the graph's orders as local ranks instead of GPU numbers."""
    local = {gpu: index for index, gpu in enumerate(gpus)}
    return np.array([[local[g] for g in order] for order in graph.intra], dtype=np.int64)


def swapping_codes(version: tuple[int, ...], n_hosts: int) -> tuple[int, ...]:
    """Return the crossNic results under which odd hosts swap channels (versions section 2).

    Args:
        version: NCCL release.
        n_hosts: Hosts of the communicator.
    """
    if version < (2, 21, 5) and n_hosts % 2 == 1:
        return ()
    return (1, 2) if version < (2, 26, 2) else (2,)


def build_ring(
    layout: Layout,
    graphs: Sequence[Graph],
    channel: int,
    n_search: int,
    swapping: tuple[int, ...] = (2,),
) -> Ints:
    """Return the global ring of a search channel.

    Hosts follow each other in host order. On an odd host whose own result is a swapping
    one, channels 2k and 2k+1 change places so that traffic stays on one rail (`n_search`
    even).

    Args:
        layout: The members.
        graphs: Ring graph of each distinct GPU set of the layout.
        channel: Search channel, below `n_search`.
        n_search: Search channels of the communicator.
        swapping: crossNic results that swap, see `swapping_codes`.
    """
    sets, set_of_host = layout.gpu_sets
    out = np.empty(layout.n_ranks, dtype=np.int32)
    hosts = np.arange(layout.n_hosts)
    for index, gpus in enumerate(sets):
        graph = graphs[index]
        orders = local_orders(graph, gpus)
        mine = set_of_host == index
        swap = graph.cross_nic in swapping and n_search % 2 == 0
        for parity in (0, 1):
            chosen = hosts[mine & (hosts % 2 == parity)]
            if not len(chosen):
                continue
            order = orders[channel ^ 1 if swap and parity else channel]
            slots = layout.offset[chosen][:, None]
            out[slots + np.arange(len(order))] = layout.by_host[slots + order]
    return out


# Which entry of a host's chain talks to the parent, to child 0 and to child 1.
ATTACH = {1: (0, 1, 0), 2: (0, 1, 1), 3: (0, 0, 0)}


def build_tree(
    layout: Layout, graphs: Sequence[Graph], channel: int, second: bool
) -> tuple[Ints, Ints]:
    """Return parents and children (-1 padded) of a search channel's global tree.

    Args:
        layout: The members.
        graphs: Tree graph of each distinct GPU set of the layout.
        channel: Search channel.
        second: Whether the hosts are joined by the second tree of the double tree.
    """
    sets, set_of_host = layout.gpu_sets
    n = layout.n_ranks
    up = np.full(n, -1, dtype=np.int32)
    down = np.full((n, 3), -1, dtype=np.int32)
    # Per host: the rank for its parent, child 0 and child 1.
    door = np.empty((layout.n_hosts, 3), dtype=np.int32)
    for index, gpus in enumerate(sets):
        order = local_orders(graphs[index], gpus)[channel]
        hosts = np.flatnonzero(set_of_host == index)
        ranks = layout.by_host[layout.offset[hosts][:, None] + order]
        up[ranks[:, 1:]] = ranks[:, :-1]
        down[ranks[:, :-1], 0] = ranks[:, 1:]
        attach = ATTACH[graphs[index].pattern] if len(order) > 1 else ATTACH[3]
        door[hosts] = ranks[:, attach]
    join_hosts(up, down, door, second)
    return up, down


def join_hosts(up: Ints, down: Ints, door: Ints, second: bool) -> None:
    """Add the edges between hosts to `up` and `down`, in place.

    Args:
        up: Parent of each rank.
        down: Children of each rank, -1 padded.
        door: Rank of each host that talks to its parent, child 0 and child 1.
        second: Whether to use the second tree.
    """
    table = double_binary_tree(len(door))[:, 4:] if second else double_binary_tree(len(door))[:, :4]
    parent, child_kind = table[:, 0], table[:, 3]
    has_parent = parent >= 0
    up[door[has_parent, 0]] = door[parent[has_parent], 1 + child_kind[has_parent]]
    for kind in (0, 1):
        child = table[:, 1 + kind]
        hosts = np.flatnonzero(child >= 0)
        ranks = door[hosts, 1 + kind]
        free = (down[ranks] >= 0).sum(axis=1)
        down[ranks, free] = door[child[hosts], 0]
