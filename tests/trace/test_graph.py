"""Issue order, longest path and shortest cycle against plain versions of themselves."""

from __future__ import annotations

import heapq

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from genie._core import graph


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[list[int]], list[int]]:
    n = draw(st.integers(1, 14))
    parents = [
        sorted(draw(st.sets(st.integers(0, n - 1), max_size=draw(st.integers(0, 3)))))
        for _ in range(n)
    ]
    ids = draw(st.lists(st.integers(0, 1000), min_size=n, max_size=n, unique=True))
    return parents, ids


def csr(parents: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    indptr = np.cumsum([0, *(len(p) for p in parents)]).astype(np.int64)
    return indptr, np.array([k for p in parents for k in p], np.uint32)


def plain_order(parents: list[list[int]], ids: list[int]) -> list[int]:
    waiting = [len(p) for p in parents]
    ready = [(ids[i], i) for i in range(len(ids)) if not waiting[i]]
    heapq.heapify(ready)
    order = []
    while ready:
        _, i = heapq.heappop(ready)
        order.append(i)
        for child, listed in enumerate(parents):
            if i in listed:
                waiting[child] -= 1
                if not waiting[child]:
                    heapq.heappush(ready, (ids[child], child))
    return order


def plain_shortest(parents: list[list[int]]) -> int:
    # Length of the shortest cycle by breadth-first search from every node, 0 without one.
    best = 0
    for start in range(len(parents)):
        seen, level, length = {start}, [start], 0
        while level:
            length += 1
            reached = {parent for node in level for parent in parents[node]}
            if start in reached:
                best = length if not best else min(best, length)
                break
            level = [node for node in reached if node not in seen]
            seen |= reached
    return best


@settings(max_examples=400, deadline=None)
@given(graphs())
def test_issue_order(drawn: tuple[list[list[int]], list[int]]) -> None:
    parents, ids = drawn
    order = graph.issue_order(*csr(parents), np.array(ids, np.uint64))
    assert order.tolist() == plain_order(parents, ids)


@settings(max_examples=400, deadline=None)
@given(graphs())
def test_shortest_cycle(drawn: tuple[list[list[int]], list[int]]) -> None:
    parents, _ = drawn
    cycle, proven, on_cycles = graph.shortest_cycle(*csr(parents))
    assert proven
    assert len(cycle) == plain_shortest(parents)
    for node, parent in zip(cycle, [*cycle[1:], *cycle[:1]], strict=True):
        assert parent in parents[node]
    assert (on_cycles > 0) == bool(cycle)


@settings(max_examples=200, deadline=None)
@given(graphs(), st.lists(st.integers(0, 50), min_size=14, max_size=14))
def test_longest_path(drawn: tuple[list[list[int]], list[int]], drawn_weights: list[int]) -> None:
    parents, ids = drawn
    order = plain_order(parents, ids)
    weights = np.array(drawn_weights[: len(ids)], np.int64)
    finish = [0] * len(ids)
    for i in order:
        finish[i] = max((finish[k] for k in parents[i]), default=0) + int(weights[i])
    indptr, deps = csr(parents)
    found = graph.finish_times(indptr, deps, np.array(order, np.int64), weights)
    assert found.tolist() == finish


def test_a_spent_budget_is_said() -> None:
    # Two rings of 3000 that share a node: the budget ends within the second search.
    n = 3000
    parents = [[(k + 1) % n] for k in range(n)]
    parents += [[k + 1] for k in range(n, 2 * n - 1)] + [[0]]
    parents[0].append(n)
    indptr, deps = csr(parents)
    cycle, proven, _ = graph.shortest_cycle(indptr, deps, 3005)
    assert not proven
    cycle, proven, on_cycles = graph.shortest_cycle(indptr, deps)
    assert proven and len(cycle) == n and on_cycles == 2 * n


def test_nothing() -> None:
    empty, none = np.zeros(1, np.int64), np.zeros(0, np.uint32)
    assert graph.issue_order(empty, none, np.zeros(0, np.uint64)).tolist() == []
    assert graph.shortest_cycle(empty, none) == ([], True, 0)
