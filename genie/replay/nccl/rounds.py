"""The order in which a rank meets its peers in sends and receives (spec section 3.9, versions 4).

A communicator fixes a list of rounds; in round r every rank sends to one peer and receives from
one peer, and the two sides agree. Which channel a round starts at is fixed with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from genie.replay.nccl.versions import Switch, Version

IntArray = npt.NDArray[np.int64]

ORDER: Switch[str] = Switch(
    "p2p order of peers", {"2.20.3": "stepped", "2.22.3": "quadratic", "2.28.7": "groups"}
)
BASE: Switch[str] = Switch(
    "p2p channel of a round", {"2.20.3": "delta", "2.22.3": "round", "2.28.3": "reversed"}
)


@dataclass(frozen=True, eq=False)
class Rounds:
    """One rank's rounds.

    Attributes:
        send: rank sent to in each round, -1 none.
        receive: rank received from in each round, -1 none.
        base: first channel of each round, to be taken modulo the p2p channels.
    """

    send: IntArray
    receive: IntArray
    base: IntArray


def hosts_in_order(host_of: npt.ArrayLike) -> list[IntArray]:
    """Ranks of each host, hosts numbered by first appearance and ranks ascending."""
    hosts = np.asarray(host_of)
    _, first, inverse = np.unique(hosts, return_index=True, return_inverse=True)
    number = np.empty(len(first), np.int64)
    number[np.argsort(first)] = np.arange(len(first))
    order = np.argsort(number[inverse], kind="stable")
    counts = np.bincount(number[inverse])
    return np.split(order, np.cumsum(counts)[:-1])


def bit_reverse(values: IntArray, size: int) -> IntArray:
    """Reverses the log2(size) low bits of each value; `size` is a power of two."""
    out = np.zeros_like(values)
    for bit in range(size.bit_length() - 1):
        out = (out << 1) | (values >> bit & 1)
    return out


@lru_cache(maxsize=64)
def quadratic(size: int) -> IntArray:
    """The offsets 0..size-1 in quadratic order: 0, 1, 3, 6, 10, ... modulo a power of two."""
    power = 1 << (size - 1).bit_length()
    number = np.arange(power)
    offsets: IntArray = number * (number + 1) // 2 % power
    return offsets[offsets < size]


def _stepped(size: int) -> Iterator[int]:
    """Host offsets of releases before 2.22.3: d, -d, half - d, d - half, each once."""
    seen: set[int] = set()
    for d in range(size // 4 + 1):
        for offset in (d, -d, size // 2 - d, d - size // 2):
            if offset % size not in seen:
                seen.add(offset % size)
                yield offset % size


def rounds(
    rank: int, hosts: list[IntArray], *, channels: int, group_size: int, version: Version
) -> Rounds:
    """One rank's rounds and their channels.

    Args:
        rank: this rank.
        hosts: `hosts_in_order` of the communicator.
        channels: p2p channels (a power of two).
        group_size: ranks of one schedule group (2.28.7 and later).
        version: NCCL release.
    """
    order = ORDER.at(version)
    many = len(hosts) > 1
    if order == "stepped":
        return _stepped_rounds(rank, hosts, channels)
    if order == "groups":
        size = group_size if many else len(hosts[0])
        table = np.concatenate(hosts).reshape(-1, size)
        inner = np.arange(size)
    else:
        size = len(hosts[0])
        if any(len(host) != size for host in hosts):
            # Hosts of unequal size: every rank counts as its own host. Read, not in golden data.
            table, size = np.concatenate(hosts).reshape(-1, 1), 1
            table = np.sort(table, axis=0)
        else:
            table = np.stack(hosts)
        inner = quadratic(size)
    (group,), (local,) = np.nonzero(table == rank)
    outer = quadratic(len(table))
    send = table[np.ix_((group + outer) % len(table), (local + inner) % size)].reshape(-1)
    receive = table[np.ix_((group - outer) % len(table), (local - inner) % size)].reshape(-1)
    number = np.arange(len(send))
    base = number // size * -(-size // 8) + number % size // 8 if many else number
    if BASE.at(version) == "reversed":
        base = bit_reverse(base % channels, channels)
    return Rounds(send, receive, base)


def _stepped_rounds(rank: int, hosts: list[IntArray], channels: int) -> Rounds:
    widest = max(len(host) for host in hosts)
    steps = 1 << (widest - 1).bit_length() if widest <= 8 else -(-widest // 8) * 8
    table = np.full((len(hosts), steps), -1, np.int64)
    for row, host in enumerate(hosts):
        table[row, : len(host)] = host
    (group,), (local,) = np.nonzero(table == rank)
    outer, inner = np.array(list(_stepped(len(hosts)))), np.arange(steps)
    send = table[np.ix_((group + outer) % len(hosts), (local + inner) % steps)].reshape(-1)
    receive = table[np.ix_((group - outer) % len(hosts), (local - inner) % steps)].reshape(-1)
    delta = np.repeat(outer, steps) + np.tile(inner // 8, len(outer))
    if len(hosts) == 1:
        delta = inner
    return Rounds(send, receive, bit_reverse(delta % channels, channels))
