"""NCCL's double binary tree over hosts (spec nccl-wire-schedule section 1.5).

Two trees over the same n vertices, built so that a vertex that has children in one is
(nearly always) a leaf in the other; each carries half of a tree all_reduce.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from genie.errors import InputError

__all__ = ["double_binary_tree"]

COLUMNS = ("t0_up", "t0_down0", "t0_down1", "t0_child", "t1_up", "t1_down0", "t1_down1", "t1_child")


def double_binary_tree(n: int) -> npt.NDArray[np.int32]:
    """Return both trees over vertices 0..n-1, one row a vertex.

    Args:
        n: Number of vertices (hosts), at least 1.

    Returns:
        A read-only int32 array of shape (n, 8): for tree 0 and then tree 1 the parent, the
        first and the second child (-1 none) and which child of its parent the vertex is
        (0 or 1, -1 for the root).

    Raises:
        InputError: If `n` is less than 1.
    """
    if n < 1:
        raise InputError(f"a tree needs at least one vertex, got {n}", n=n)
    return _cached(int(n))


@lru_cache(maxsize=256)
def _cached(n: int) -> npt.NDArray[np.int32]:
    rank = np.arange(n, dtype=np.int64)
    first = _binary_tree(n)
    if n % 2 == 0:
        # Tree 1 is tree 0 seen in a mirror.
        second = _renumber(first[n - 1 - rank], lambda x: n - 1 - x)
    else:
        # Tree 1 is tree 0 shifted by one vertex.
        second = _renumber(first[(rank - 1) % n], lambda x: (x + 1) % n)
    table = np.concatenate([first, second], axis=1).astype(np.int32)
    table.flags.writeable = False
    return table


def _renumber(
    rows: npt.NDArray[np.int64],
    change: Callable[[npt.NDArray[np.int64]], npt.NDArray[np.int64]],
) -> npt.NDArray[np.int64]:
    out = rows.copy()
    edges = out[:, :3]
    edges[:] = np.where(edges >= 0, change(edges), -1)
    return out


def _binary_tree(n: int) -> npt.NDArray[np.int64]:
    """Return columns up, down0, down1, child of the single binary tree."""
    table = np.full((n, 4), -1, dtype=np.int64)
    if n > 1:
        # The root has one child, the largest vertex of the complete tree's middle: child 1.
        table[0, 2] = (1 << (n - 1).bit_length()) // 2
    rank = np.arange(1, n, dtype=np.int64)
    bit = rank & -rank
    up = (rank ^ bit) | (bit << 1)
    up = np.where(up >= n, rank ^ bit, up)
    table[1:, 0] = up
    table[1:, 3] = np.where(rank < up, 0, 1)
    low = bit >> 1
    table[1:, 1] = np.where(low == 0, -1, rank - low)
    # The second child may lie beyond n: NCCL then halves its distance until it fits.
    while True:
        too_far = (low > 0) & (rank + low >= n)
        if not too_far.any():
            break
        low = np.where(too_far, low >> 1, low)
    table[1:, 2] = np.where(low == 0, -1, rank + low)
    return table
