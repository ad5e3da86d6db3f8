"""Waits that close a loop across ranks, although no rank's own dependencies do.

A collective ends only when every rank of its group has started it, and a receive when its send
has; so rank 0 may wait for rank 1 in one communicator while rank 1 waits for rank 0 in another.
The ranks' graphs are joined into one: the nodes of a matched collective become one vertex,
collectives of a communicator follow each other, a receive follows its send. A loop there means
that no run can end. What only a network decides (whether a send has to wait for its receive) is
left out, so that every loop found is certain.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from genie._core import graph
from genie.errors import DependencyCycleError
from genie.trace import match
from genie.trace.kinds import Kind
from genie.trace.model import Order, Trace

_MOST_SHOWN = 8
Edges = list[npt.NDArray[np.int64]]


def waits(trace: Trace) -> list[tuple[Order, DependencyCycleError]]:
    """Return the shortest loop of waits across ranks, if there is one.

    Only meaningful for a set whose collectives and transfers match.
    """
    if trace.world_size < 2 or not any((rank.kind >= Kind.COMM_SEND).any() for rank in trace.ranks):
        return []
    starts = np.cumsum([0, *(rank.n for rank in trace.ranks)])
    vertex = np.arange(starts[-1])
    children: Edges = []
    parents: Edges = []
    for group, by_rank in match.sequences(trace).items():
        members = trace.members(group)
        if members is None or any(member not in by_rank for member in members):
            continue
        shared = starts[members[0]] + by_rank[members[0]]
        for member in members[1:]:
            vertex[starts[member] + by_rank[member]] = shared
        children.append(shared[1:])
        parents.append(shared[:-1])
    for rank in trace.ranks:
        counts = np.diff(rank.dep_indptr)
        children.append(starts[rank.rank] + np.repeat(np.arange(rank.n), counts))
        parents.append(starts[rank.rank] + rank.deps.astype(np.int64))
    sends, receives = match.pairs(trace, starts)
    children.append(receives)
    parents.append(sends)
    child = vertex[np.concatenate(children)]
    parent = vertex[np.concatenate(parents)]
    by_child = np.argsort(child, kind="stable")
    indptr = np.zeros(len(vertex) + 1, np.int64)
    np.cumsum(np.bincount(child, minlength=len(vertex)), out=indptr[1:])
    deps = parent[by_child].astype(np.uint32)
    order = graph.issue_order(indptr, deps, np.arange(len(vertex), dtype=np.uint64))
    if len(order) == len(vertex):
        return []
    cycle, _, _ = graph.shortest_cycle(indptr, deps)
    return [(Order.MATCH, _error(trace, cycle, starts))]


def _error(trace: Trace, cycle: list[int], starts: npt.NDArray[np.int64]) -> DependencyCycleError:
    told, nodes = [], []
    for at in cycle:
        number = int(np.searchsorted(starts, at, side="right")) - 1
        rank = trace.ranks[number]
        i = at - int(starts[number])
        nodes.append((number, int(rank.id[i])))
        text = f"rank {number} {rank.describe(i)}"
        if rank.kind[i] == Kind.COMM_COLL:
            text += f" of {match.group_text(trace, int(rank.group[i]))} on all its ranks"
        told.append(text)
    shown = told if len(told) <= _MOST_SHOWN else [*told[:_MOST_SHOWN], "..."]
    text = f"{trace.path}: ranks wait for each other for ever: " + " waits for ".join(
        [*shown, told[0]]
    )
    rank_number, node = nodes[0]
    return DependencyCycleError(text, path=trace.path, rank=rank_number, node=node, nodes=nodes)
