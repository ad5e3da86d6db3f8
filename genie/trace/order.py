"""The order in which a rank's nodes are issued."""

from __future__ import annotations

import heapq

import numpy as np
import numpy.typing as npt

from genie.errors import DependencyCycleError
from genie.trace.model import RankTrace


def issue_order(rank: RankTrace) -> npt.NDArray[np.int64]:
    """Return positions in topological order, of the ready nodes the lowest id first."""
    indptr, deps = rank.dep_indptr, rank.deps
    waiting = np.diff(indptr).tolist()
    children: list[list[int]] = [[] for _ in range(rank.n)]
    for i in range(rank.n):
        for parent in deps[indptr[i] : indptr[i + 1]].tolist():
            children[parent].append(i)
    ids = rank.id.tolist()
    ready = [(ids[i], i) for i in range(rank.n) if waiting[i] == 0]
    heapq.heapify(ready)
    order = []
    while ready:
        _, i = heapq.heappop(ready)
        order.append(i)
        for child in children[i]:
            waiting[child] -= 1
            if waiting[child] == 0:
                heapq.heappush(ready, (ids[child], child))
    if len(order) < rank.n:
        raise DependencyCycleError("cycle", path=rank.path, rank=rank.rank)
    return np.array(order, np.int64)
