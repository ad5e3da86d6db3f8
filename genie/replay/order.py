"""Edges that a trace implies without listing them: streams, threads and communicators run in order.

A GPU stream and a CPU thread run one thing at a time; collectives of one communicator start in
issue order, sends and receives between one pair with one tag likewise. All these edges follow
one deterministic topological order (`Trace.issue_order`), so they can never close a cycle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from genie.trace.kinds import Kind

if TYPE_CHECKING:
    from genie.trace import RankTrace


def _chain(
    keys: list[npt.NDArray[np.int64]], nodes: npt.NDArray[np.int64], position: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Return (child, parent) rows that make equal-keyed `nodes` run in order of `position`."""
    if nodes.size < 2:
        return np.empty((0, 2), np.int64)
    columns = [key[nodes] for key in keys]
    # lexsort: the last key is the primary one.
    by = np.lexsort([position[nodes], *reversed(columns)])
    ordered = nodes[by]
    same = np.ones(ordered.size - 1, bool)
    for column in columns:
        sorted_column = column[by]
        same &= sorted_column[1:] == sorted_column[:-1]
    return np.stack([ordered[1:][same], ordered[:-1][same]], axis=1)


def ordering_edges(rank: RankTrace, order: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the implied edges of one rank as (child, parent) rows of node positions.

    Args:
        rank: The rank's nodes.
        order: Node positions in issue order, as `Trace.issue_order` gives them.
    """
    position = np.empty(rank.n, np.int64)
    position[order] = np.arange(rank.n)
    index = np.arange(rank.n)
    stream = rank.stream.astype(np.int64)
    thread = rank.thread.astype(np.int64)
    group = rank.group.astype(np.int64)
    kind = rank.kind.astype(np.int64)
    peer = rank.peer.astype(np.int64)
    tag = rank.tag.astype(np.int64)
    cpu = rank.is_cpu != 0
    coll = kind == Kind.COMM_COLL
    p2p = (kind == Kind.COMM_SEND) | (kind == Kind.COMM_RECV)
    edges = [
        _chain([stream], index[(stream >= 0) & ~cpu], position),
        _chain([thread], index[(thread >= 0) & cpu & ~coll & ~p2p], position),
        _chain([group], index[coll], position),
        _chain([group, kind, peer, tag], index[p2p], position),
    ]
    return np.concatenate(edges)


def merge_dependencies(
    n: int,
    indptr: npt.NDArray[np.int64],
    deps: npt.NDArray[np.uint32],
    edges: npt.NDArray[np.int64],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint32]]:
    """Return the dependency CSR of `n` nodes with `edges` added, each parent once.

    Args:
        n: Number of nodes.
        indptr: Row starts of the existing CSR, n + 1 of them.
        deps: Parents of every node, by position.
        edges: (child, parent) rows to add.
    """
    if edges.size == 0:
        return indptr.astype(np.int64, copy=False), deps.astype(np.uint32, copy=False)
    child = np.repeat(np.arange(n, dtype=np.int64), np.diff(indptr))
    pairs = np.concatenate([child * n + deps.astype(np.int64), edges[:, 0] * n + edges[:, 1]])
    pairs = np.unique(pairs)
    counts = np.bincount(pairs // n, minlength=n)
    merged = np.zeros(n + 1, np.int64)
    np.cumsum(counts, out=merged[1:])
    return merged, (pairs % n).astype(np.uint32)
