"""Which rank of a logged communicator lives on which host."""

from __future__ import annotations

import numpy as np

from genie.errors import InputError
from genie.replay.clusters.layout import Layout
from genie.replay.clusters.nccl_log import LogFacts

__all__ = ["log_layout"]


def log_layout(facts: LogFacts, hosts: int | None, where: str) -> Layout:
    """Return the layout; what had to be derived goes to `facts.notes`.

    Args:
        facts: What the log says.
        hosts: Number of hosts if the caller knows; ranks are then dealt in equal blocks.
        where: File name for messages.

    Raises:
        InputError: The log does not settle it, or contradicts `hosts`.
    """
    ranks = facts.n_ranks
    assert ranks is not None
    stated = facts.n_hosts
    if hosts is not None and stated is not None and hosts != stated:
        raise InputError(f"{where}: nNodes is {stated}, but hosts={hosts} is asked for")
    count = hosts if hosts is not None else stated
    names = facts.host_name
    if len(names) == ranks and (count is None or len(set(names.values())) == count):
        number = {name: i for i, name in enumerate(dict.fromkeys(names[r] for r in range(ranks)))}
        return _layout([number[names[r]] for r in range(ranks)])
    if count is None:
        count = ranks // _derive_block(facts, ranks, where)
        facts.notes.append(f"the log does not say how many hosts there are: {count} derived")
    if ranks % count:
        raise InputError(
            f"{where}: {ranks} ranks on {count} hosts, unequal, and not every rank's host is in "
            f"the log ({len(names)} are)",
            path=where,
        )
    each = ranks // count
    if facts.local_ranks not in (None, each):
        raise InputError(
            f"{where}: a host has {facts.local_ranks} ranks, but {ranks} on {count} hosts are "
            f"{each} each: unequal hosts need every rank's host in the log",
            path=where,
        )
    layout = _layout([r // each for r in range(ranks)])
    if count > 1 and len(names) < ranks:
        facts.notes.append(f"ranks are taken to be dealt to hosts in blocks of {each}")
    return layout


def _layout(host: list[int]) -> Layout:
    number = np.array(host)
    gpu = np.empty(len(host), dtype=np.int64)
    for h in set(host):
        mine = np.flatnonzero(number == h)
        gpu[mine] = np.arange(len(mine))
    return Layout.of(np.stack([number, gpu], axis=1))


def _derive_block(facts: LogFacts, ranks: int, where: str) -> int:
    """Return the ranks of a host, from what can only be true of one block size."""
    possible = [g for g in range(1, ranks + 1) if ranks % g == 0 and _fits(facts, g, ranks)]
    chained = _chain(facts)
    if chained is not None and chained in possible:
        return chained
    if len(possible) == 1:
        return possible[0]
    raise InputError(
        f"{where}: the log does not say how many hosts there are (no nNodes line), and "
        f"{', '.join(map(str, possible)) or 'no number of'} ranks a host would fit: give hosts=",
        path=where,
    )


def _fits(facts: LogFacts, g: int, ranks: int) -> bool:
    """Whether blocks of `g` ranks contradict nothing."""
    if any(a // g != b // g for a, b in facts.local_pairs):
        return False
    if any(a // g == b // g for a, b in facts.remote_pairs):
        return False
    for order in facts.rings.values():
        if len(order) < ranks:
            continue
        # A ring enters each host once.
        entries = sum(order[i - 1] // g != order[i] // g for i in range(ranks))
        if entries != (ranks // g if g < ranks else 0):
            return False
    return True


def _chain(facts: LogFacts) -> int | None:
    """Return the length of rank 0's host chain if channel 0 shows all of it."""
    rows = facts.trees.get(0, {})
    at, length = 0, 1
    while at in rows:
        below = [child for child in rows[at][1] if child == at + 1]
        if not below:
            return length if not rows[at][1] or length > 1 else None
        at, length = below[0], length + 1
    return None
