"""Trees of a logged communicator: rows that were printed, and those that follow from them.

A rank prints its own row only. Hosts of one job are equal, so the chain inside a host can be
put together from the rows of any host; between hosts the double tree is known (spec 1.5).
Rows so derived are kept only if every printed row comes out as printed.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from genie.replay.clusters.channels import ATTACH, UNKNOWN, join_hosts
from genie.replay.clusters.layout import Layout
from genie.replay.clusters.log_rings import span
from genie.replay.clusters.nccl_log import LogFacts

__all__ = ["complete_trees"]

Ints = npt.NDArray[np.int32]


Guess = dict[int, tuple[Ints, Ints]]


def complete_trees(
    facts: LogFacts, layout: Layout, pattern: int | None = None
) -> dict[int, tuple[Ints, Ints]]:
    """Return parents and children by channel; `UNKNOWN` where the log does not settle a rank.

    Args:
        facts: What the log says; what was derived or is missing goes to its notes.
        layout: Ranks by host.
        pattern: Tree pattern (1 balanced, 2 split, 3 chain) where something tells it.
    """
    total = facts.total or 0
    guesses = _guesses(facts, layout, total, (pattern,) if pattern else (3, 1, 2))
    out: dict[int, tuple[Ints, Ints]] = {}
    derived: set[int] = set()
    lost: dict[int, int] = {}
    for channel in range(total):
        rows = facts.trees.get(channel, {})
        up, down = _agreed([g[channel] for g in guesses if channel in g], layout.n_ranks)
        for rank, (parent, children) in rows.items():
            up[rank] = parent
            down[rank] = -1
            down[rank, : len(children)] = children
        known = set(np.flatnonzero(up != UNKNOWN).tolist())
        derived |= known - set(rows)
        if len(known) < layout.n_ranks:
            lost[channel] = layout.n_ranks - len(known)
        out[channel] = (up, down)
    if derived:
        facts.notes.append(f"tree rows of ranks {span(sorted(derived))} are derived (equal hosts)")
    if lost:
        facts.notes.append(
            f"trees of channels {span(sorted(lost))} lack rows of up to {max(lost.values())} "
            "ranks: neither in the log nor settled by it"
        )
    return out


def _agreed(trees: list[tuple[Ints, Ints]], n_ranks: int) -> tuple[Ints, Ints]:
    """Return the rows on which all possible trees agree."""
    if not trees:
        return (
            np.full(n_ranks, UNKNOWN, dtype=np.int32),
            np.full((n_ranks, 3), -1, dtype=np.int32),
        )
    up, down = trees[0][0].copy(), trees[0][1].copy()
    for other_up, other_down in trees[1:]:
        differs = (other_up != trees[0][0]) | (other_down != trees[0][1]).any(axis=1)
        up[differs] = UNKNOWN
        down[differs] = -1
    return up, down


def _guesses(facts: LogFacts, layout: Layout, total: int, patterns: tuple[int, ...]) -> list[Guess]:
    """Return every way the trees may have come about that gives all printed rows."""
    counts = layout.counts
    if not (counts == counts[0]).all() or not total:
        return []
    # Channels are doubled, Hopper's perhaps twice; a limit may leave any number of them.
    usual = [total // 2] if total % 2 == 0 else []
    usual += [total // 4] if total % 4 == 0 else []
    limited = "NCCL_MAX_NCHANNELS" in facts.env or "NCCL_MIN_NCHANNELS" in facts.env
    found: list[Guess] = []
    for searches in ([*usual, total], []) if limited or not usual else (usual, [total]):
        for search in dict.fromkeys(searches):
            chains = {q: _chain(facts, layout, q, search) for q in range(search)}
            for pattern in patterns:
                trees = _generate(layout, chains, pattern, search, total)
                if trees and all(_agrees(trees[c], facts.trees.get(c, {})) for c in trees):
                    found.append(trees)
        if found:
            break
    return found


def _chain(facts: LogFacts, layout: Layout, q: int, search: int) -> list[int] | None:
    """Return the local ranks of a search channel's chain from its top, if all are known."""
    size = int(layout.counts[0])
    if size == 1:
        return [0]
    below: dict[int, int] = {}
    for channel, rows in facts.trees.items():
        if channel % search != q:
            continue
        for rank, (up, down) in rows.items():
            edges = [(rank, child) for child in down]
            edges += [(up, rank)] if up >= 0 else []
            for parent, child in edges:
                if layout.host[parent] != layout.host[child]:
                    continue
                a, b = int(layout.local[parent]), int(layout.local[child])
                if below.setdefault(a, b) != b:
                    return None
    tops = set(range(size)) - set(below.values())
    if len(below) != size - 1 or len(tops) != 1:
        return None
    order = [tops.pop()]
    while order[-1] in below and len(order) < size:
        order.append(below[order[-1]])
    return order if len(order) == size else None


def _generate(
    layout: Layout, chains: dict[int, list[int] | None], pattern: int, search: int, total: int
) -> Guess:
    out: Guess = {}
    made: dict[tuple[int, bool], tuple[Ints, Ints]] = {}
    hosts = np.arange(layout.n_hosts)
    for channel in range(total):
        order = chains[channel % search]
        if order is None:
            continue
        key = (channel % search, (channel // search) % 2 == 1)
        if key not in made:
            up = np.full(layout.n_ranks, -1, dtype=np.int32)
            down = np.full((layout.n_ranks, 3), -1, dtype=np.int32)
            ranks = layout.by_host[layout.offset[hosts][:, None] + np.array(order)]
            up[ranks[:, 1:]] = ranks[:, :-1]
            down[ranks[:, :-1], 0] = ranks[:, 1:]
            join_hosts(up, down, ranks[:, ATTACH[pattern] if len(order) > 1 else ATTACH[3]], key[1])
            made[key] = (up, down)
        out[channel] = made[key]
    return out


def _agrees(tree: tuple[Ints, Ints], rows: dict[int, tuple[int, tuple[int, ...]]]) -> bool:
    up, down = tree
    return all(
        int(up[rank]) == parent and tuple(int(x) for x in down[rank] if x >= 0) == children
        for rank, (parent, children) in rows.items()
    )
