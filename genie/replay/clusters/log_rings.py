"""Rings of a logged communicator: printed whole, or put together from links."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from genie.errors import InputError
from genie.replay.clusters.layout import Layout
from genie.replay.clusters.nccl_log import LogFacts

__all__ = ["Links", "complete_rings", "span"]

Ints = npt.NDArray[np.int32]
Links = dict[int, tuple[int | None, int | None]]


def complete_rings(
    facts: LogFacts, layout: Layout, where: str
) -> tuple[dict[int, Ints], dict[int, Links]]:
    """Return whole rings by channel, and the known neighbours in the others.

    The second half of the channels repeats the first (spec 1.4); a ring printed in part is
    continued when it shows a whole even and a whole odd host.

    Args:
        facts: What the log says.
        layout: Ranks by host.
        where: File name for messages.

    Raises:
        InputError: A ring that misses ranks it should have, or visits a host twice.
    """
    total = facts.total or 0
    period = total // 2 if total % 2 == 0 else total
    pairs: dict[int, set[tuple[int, int]]] = {c: set() for c in range(total)}
    whole: dict[int, Ints] = {}
    for channel, order in facts.rings.items():
        steps = list(pairwise(order))
        if len(order) == layout.n_ranks:
            whole[channel] = np.array(order, dtype=np.int32)
            steps.append((order[-1], order[0]))
        pairs[channel].update(steps)
    for channel, links in facts.links.items():
        for rank, (before, after) in links.items():
            pairs[channel].update({(before, rank), (rank, after)})
    derived = []
    for channel in range(total):
        if channel not in whole:
            found = _walk(pairs[channel], layout) or _copy(whole, channel, period)
            if found is None:
                both = pairs[channel] | pairs.get((channel + period) % total, set())
                found = _from_hosts(both, layout)
            if found is not None and not _agrees(found, pairs[channel]):
                found = None
            if found is not None:
                whole[channel] = np.array(found, dtype=np.int32)
                derived.append(channel)
    for channel, order_ in whole.items():
        _check(order_, layout, f"{where}: channel {channel}")
    if derived:
        facts.notes.append(f"rings of channels {span(derived)} are derived")
    missing = [c for c in range(total) if c not in whole]
    if missing:
        facts.notes.append(f"rings of channels {span(missing)} are not in the log")
    return whole, {c: _neighbours(pairs[c]) for c in missing}


def _walk(pairs: set[tuple[int, int]], layout: Layout) -> list[int] | None:
    """Return the ring if every rank's successor is known."""
    after = dict(pairs)
    if len(after) < layout.n_ranks:
        return None
    order, at = [], 0
    for _ in range(layout.n_ranks):
        order.append(at)
        at = after[at]
    return order if at == 0 and len(set(order)) == layout.n_ranks else None


def _copy(whole: dict[int, Ints], channel: int, period: int) -> list[int] | None:
    for other, order in whole.items():
        if (other - channel) % period == 0:
            out: list[int] = order.tolist()
            return out
    return None


def _from_hosts(pairs: set[tuple[int, int]], layout: Layout) -> list[int] | None:
    """Return the ring if one even and one odd host are known whole, and hosts are equal."""
    counts = layout.counts
    if not (counts == counts[0]).all():
        return None
    size = int(counts[0])
    orders = []
    for parity in (0, 1) if layout.n_hosts > 1 else (0,):
        after = {
            int(layout.local[a]): int(layout.local[b])
            for a, b in pairs
            if layout.host[a] == layout.host[b] and layout.host[a] % 2 == parity
        }
        first = set(range(size)) - set(after.values())
        if len(after) != size - 1 or len(first) != 1:
            return None
        at = first.pop()
        order = [at]
        while at in after and len(order) < size:
            at = after[at]
            order.append(at)
        if len(order) != size:
            return None
        orders.append(order)
    ring = []
    for host in range(layout.n_hosts):
        ranks = layout.ranks_of(host)
        ring += [ranks[i] for i in orders[host % len(orders)]]
    return ring


def _agrees(order: list[int], pairs: set[tuple[int, int]]) -> bool:
    after = dict(zip(order, order[1:] + order[:1], strict=True))
    return all(after[a] == b for a, b in pairs)


def _check(order: Ints, layout: Layout, where: str) -> None:
    if sorted(order.tolist()) != list(range(layout.n_ranks)):
        raise InputError(f"{where}: a ring of {layout.n_ranks} ranks must name each once")
    hosts = layout.host[order]
    entries = int((hosts != np.roll(hosts, 1)).sum())
    if entries != (layout.n_hosts if layout.n_hosts > 1 else 0):
        raise InputError(
            f"{where}: the ring changes host {entries} times, expected {layout.n_hosts}: the "
            "ranks lie on the hosts otherwise (give hosts=)"
        )


def _neighbours(pairs: set[tuple[int, int]]) -> Links:
    out: Links = {}
    for a, b in pairs:
        out[a] = (out.get(a, (None, None))[0], b)
        out[b] = (a, out.get(b, (None, None))[1])
    return out


def span(numbers: list[int]) -> str:
    """Return "0-3, 7" for [0, 1, 2, 3, 7]."""
    parts: list[str] = []
    start = previous = numbers[0]
    for n in [*numbers[1:], None]:
        if n is not None and n == previous + 1:
            previous = n
            continue
        parts.append(str(start) if start == previous else f"{start}-{previous}")
        if n is not None:
            start = previous = n
    return ", ".join(parts)
