"""Rings and trees of a communicator, spelled out one rank at a time.

The slow reference of `genie.replay.clusters.channels`: no arrays, no sharing, straight from
spec nccl-wire-schedule 1.2 and 1.5 and nccl-subcommunicators 3.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any


def nodes(members: list[tuple[int, int]]) -> list[list[int]]:
    """Ranks by host, hosts by first appearance."""
    hosts: dict[int, list[int]] = {}
    for rank, (host, _) in enumerate(members):
        hosts.setdefault(host, []).append(rank)
    return list(hosts.values())


def ring(members: list[tuple[int, int]], graphs: list[Any], channel: int, search: int) -> list[int]:
    """The global ring; `graphs[host]` is each host's own ring graph."""
    out = []
    for number, ranks in enumerate(nodes(members)):
        graph = graphs[number]
        mine = channel
        if graph.cross_nic == 2 and number % 2 == 1 and search % 2 == 0:
            mine = channel + 1 if channel % 2 == 0 else channel - 1
        by_gpu = {members[rank][1]: rank for rank in ranks}
        out += [by_gpu[gpu] for gpu in graph.intra[mine]]
    start = out.index(0)
    return out[start:] + out[:start]


def btree(n: int, r: int) -> tuple[int, int, int, int]:
    """Parent, children and child kind of vertex r in the single binary tree."""
    if r == 0:
        child = 1
        while child < n:
            child *= 2
        return -1, -1, child // 2 if n > 1 else -1, -1
    bit = 1
    while not r & bit:
        bit *= 2
    up = (r ^ bit) | (2 * bit)
    if up >= n:
        up = r ^ bit
    low = bit // 2
    down0 = r - low if low else -1
    while low and r + low >= n:
        low //= 2
    return up, down0, r + low if low else -1, 0 if r < up else 1


def dtree(n: int, r: int, second: bool) -> tuple[int, int, int, int]:
    """The same for either tree of the double tree."""
    if not second:
        return btree(n, r)
    if n % 2 == 0:
        row = btree(n, n - 1 - r)
        edges = [n - 1 - x if x >= 0 else -1 for x in row[:3]]
    else:
        row = btree(n, (r - 1) % n)
        edges = [(x + 1) % n if x >= 0 else -1 for x in row[:3]]
    return edges[0], edges[1], edges[2], row[3]


def tree(
    members: list[tuple[int, int]], graphs: list[Any], channel: int, second: bool
) -> tuple[list[int], list[list[int]]]:
    """Parents and children of every rank; `graphs[host]` is each host's own tree graph."""
    hosts = nodes(members)
    up = [-1] * len(members)
    down: list[list[int]] = [[] for _ in members]
    doors = []
    for number, ranks in enumerate(hosts):
        graph = graphs[number]
        by_gpu = {members[rank][1]: rank for rank in ranks}
        chain = [by_gpu[gpu] for gpu in graph.intra[channel]]
        for a, b in pairwise(chain):
            up[b] = a
            down[a].append(b)
        other = chain[1] if len(chain) > 1 else chain[0]
        doors.append(
            {
                3: (chain[0], chain[0], chain[0]),
                2: (chain[0], other, other),
                1: (chain[0], other, chain[0]),
            }[graph.pattern]
        )
    n = len(hosts)
    for number in range(n):
        parent, child0, child1, kind = dtree(n, number, second)
        if parent >= 0:
            up[doors[number][0]] = doors[parent][1 + kind]
        if child0 >= 0:
            down[doors[number][1]].append(doors[child0][0])
        if child1 >= 0:
            down[doors[number][2]].append(doors[child1][0])
    return up, down
