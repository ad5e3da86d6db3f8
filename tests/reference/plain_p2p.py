"""Sends and receives in plain Python, from the specification alone, for three releases.

`plan` takes one rank's calls and returns its parts in order:
(channel, batch, work, direction, peer, bytes, message bytes, LL), the self copies left out.
"""

from __future__ import annotations

import math


def reverse(value, size):
    out = 0
    while size > 1:
        out = out * 2 + value % 2
        value //= 2
        size //= 2
    return out


def power(n):
    p = 1
    while p < n:
        p *= 2
    return p


def quadratic(n):
    deltas, delta = [], 0
    for i in range(power(n)):
        if delta < n:
            deltas.append(delta)
        delta = (delta + i + 1) % power(n)
    return deltas


def hosts(host_of):
    found = {}
    for rank, host in enumerate(host_of):
        found.setdefault(host, []).append(rank)
    return list(found.values())


def rounds(rank, host_of, channels, version):
    """[(send peer or None, receive peer or None, base channel)]."""
    table = hosts(host_of)
    many = len(table) > 1
    if version == "2.21":
        return rounds_221(rank, table, channels)
    if version == "2.30":
        size = 8
        if many:
            for ranks in table:
                size = math.gcd(size, len(ranks))
        else:
            size = len(table[0])
        groups = [ranks[i : i + size] for ranks in table for i in range(0, len(ranks), size)]
        inner = list(range(size))
    else:
        groups, size = table, len(table[0])
        inner = quadratic(size)
    g = next(i for i, group in enumerate(groups) if rank in group)
    place = groups[g].index(rank)
    found = []
    for d in quadratic(len(groups)):
        for x in inner:
            r = len(found)
            base = r // size * math.ceil(size / 8) + r % size // 8 if many else r
            if version == "2.30":
                base = reverse(base % channels, channels)
            found.append(
                (
                    groups[(g + d) % len(groups)][(place + x) % size],
                    groups[(g - d) % len(groups)][(place - x) % size],
                    base % channels,
                )
            )
    return found


def rounds_221(rank, table, channels):
    n = len(table)
    width = max(len(ranks) for ranks in table)
    steps = power(width) if width <= 8 else math.ceil(width / 8) * 8
    offsets = []
    for d in range(n // 4 + 1):
        for offset in (d, -d, n // 2 - d, -(n // 2 - d)):
            if offset % n not in offsets:
                offsets.append(offset % n)
    g = next(i for i, ranks in enumerate(table) if rank in ranks)
    place = table[g].index(rank)

    def at(host, local):
        ranks = table[host % n]
        return ranks[local % steps] if local % steps < len(ranks) else None

    found = []
    for offset in offsets:
        for s in range(steps):
            delta = s if n == 1 else offset + s // 8
            found.append(
                (
                    at(g + offset, place + s),
                    at(g - offset, place - s),
                    reverse(delta % channels, channels),
                )
            )
    return found


def cut(total, network, own, facts, version):
    """[(begin, bytes, message bytes, LL)] of one direction of one work."""
    per_peer, channels, step, ranks, many, threshold, override = facts
    least = per_peer
    while least * ranks > channels and least > 1:
        least //= 2
    small_ll = not network and not own
    if version == "2.21":
        small_ll = not network
        low, high = (step // 2, step) if many else (step // 8, 32 * step)
        n, size = least, max(low, math.ceil(total / least))
        while size > high and n <= per_peer // 2:
            n *= 2
            size = math.ceil(total / n)
        size = math.ceil(size / low) * low
        found = []
        for begin in range(0, max(total, 1), size):
            nbytes = min(size, total - begin)
            ll = small_ll and nbytes <= threshold
            found.append((begin, nbytes, message(nbytes, network, ll, step, override, version), ll))
        return found
    counted = step
    ll = False
    if version == "2.27":
        ll = small_ll and total <= per_peer * threshold
        counted = 65536 if ll else step
    low, high = (counted // 2, counted) if many else (counted // 8, 32 * counted)
    n = min(least, math.ceil(total / low))
    part = max(low, math.ceil(total / max(n, 1)))
    while part > high and n <= per_peer // 2:
        n *= 2
        part = math.ceil(total / n)
    n = max(n, 1)
    q = math.ceil(math.ceil(total / n) / 4096) * 4096
    if version == "2.30":
        ll = small_ll and total <= n * threshold
    size = message(total, network, ll, step, override, version)
    return [
        (min(i * q, total), min((i + 1) * q, total) - min(i * q, total), size, ll) for i in range(n)
    ]


def message(nbytes, network, ll, step, override, version):
    """Data bytes of a full message."""
    size = step
    if network and nbytes < 8 * step:
        size = step // 4 if nbytes < step else step // 2
    if network and override:
        size = override
    if ll:
        size = 32768
    if version == "2.21":
        return size
    # From 2.22.3 the number travels as a float of 4 significant bits.
    unit = 1
    while size // unit > 15:
        unit *= 2
    return size // unit * unit


def plan(rank, sends, receives, host_of, facts, version):
    per_peer, channels, *_ = facts
    schedule = rounds(rank, host_of, channels, version)
    left_out, left_in = list(sends), list(receives)
    rows, works, turn = [], 0, 0
    batches = {}  # channel -> [current batch, rounds in it, turn, block]
    while left_out or left_in:
        for r, (to, source, base) in enumerate(schedule):
            out = next((c for c in left_out if c[0] == to), None)
            into = next((c for c in left_in if c[0] == source), None)
            if out is None and into is None:
                continue
            parts = []
            for direction, call, left in ((1, into, left_in), (0, out, left_out)):
                if call is None:
                    continue
                left.remove(call)
                peer, nbytes = call
                network = host_of[peer] != host_of[rank]
                pieces = cut(nbytes, network, peer == rank, facts, version)
                for i, (_, size, chunk, ll) in enumerate(pieces):
                    if version == "2.30":
                        channel = base + i
                    elif version == "2.27":
                        channel = base + reverse(i, channels)
                    else:
                        channel = base + i % per_peer
                    parts.append((channel % channels, direction, peer, size, chunk, ll))
            for channel in {part[0] for part in parts}:
                state = batches.get(channel)
                lead = channel == base
                if state is None:
                    batches[channel] = [0, {r}, turn, r // 8]
                    continue
                fresh = r in state[1] or len(state[1]) == 8
                if version == "2.30":
                    fresh = fresh or turn != state[2] or r // 8 != state[3]
                if version == "2.21":
                    fresh = fresh or (lead and r % 8 == 0)
                if fresh:
                    state[0] += 1
                    state[1] = set()
                state[1].add(r)
                state[2:] = [turn, r // 8]
            for channel, direction, peer, size, chunk, ll in parts:
                if peer != rank:
                    batch = batches[channel][0]
                    rows.append((channel, batch, works, direction, peer, size, chunk, ll))
            works += 1
        turn += 1
    return sorted(rows, key=lambda row: (row[0], row[2], -row[3]))


def messages(rows):
    """(channel, batch, peer, direction, wire bytes) of every message, in order."""
    found = []
    for channel, batch, _, direction, peer, size, chunk, ll in rows:
        sizes = []
        while size > chunk:
            sizes.append(chunk)
            size -= chunk
        sizes.append(size)
        for s in sizes:
            wire = 16 * math.ceil(s / 8) if ll else s
            found.append((channel, batch, peer, direction, wire))
    return found
