"""NCCL's collectives in plain, slow Python, written from the specification alone.

One rank's work is a list of `Call`s in program order. A call names whom it receives from and
sends to, how many elements of which piece of data move, and what happens to them; `bytes_of`
says how many bytes each of its messages has. `run` moves the data between all ranks: every value
is the set of ranks whose contribution it holds, so "the whole sum" is the set of all ranks.
Nothing here is shared with the package.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field


@dataclass
class Call:
    group: int
    receive: list[int]
    send: list[int]
    elements: int
    piece: tuple
    #: What is sent and kept: own input, what was received, or both reduced.
    own: bool = False
    keep: bool = False


def chunks(count: int, chunk: int) -> list[int]:
    sizes = []
    while count > 0:
        sizes.append(min(count, chunk))
        count -= sizes[-1]
    return sizes


def ring(kind, order, rank, count, chunk, last_align, root=0):
    """Calls of `rank` on one channel whose ring is `order` (starting at rank 0)."""
    n = len(order)
    ix = order.index(rank)
    before, after = order[(ix - 1) % n], order[(ix + 1) % n]
    calls = []
    if kind == "all_reduce":
        done = loop = 0
        while done < count:
            rest = count - done
            c = chunk
            if rest < n * chunk:
                c = math.ceil(math.ceil(rest / n) / last_align) * last_align

            def size(q, c=c, rest=rest):
                return max(0, min(rest - q * c, c))

            def call(receive, send, q, own, keep, loop=loop):
                q %= n
                calls.append(
                    Call(
                        0,
                        [before] if receive else [],
                        [after] if send else [],
                        size(q),
                        (loop, q),
                        own,
                        keep,
                    )
                )

            call(False, True, ix - 1, True, False)
            for j in range(2, n):
                call(True, True, ix - j, True, False)
            call(True, True, ix, True, True)
            for j in range(1, n - 1):
                call(True, True, ix - j, False, True)
            call(True, False, ix + 1, False, True)
            done += n * chunk
            loop += 1
        return calls
    for loop, size in enumerate(chunks(count, chunk)):
        if kind == "all_gather":
            calls.append(Call(0, [], [after], size, (loop, rank), True, True))
            for j in range(1, n - 1):
                calls.append(
                    Call(0, [before], [after], size, (loop, order[(ix - j) % n]), False, True)
                )
            calls.append(Call(0, [before], [], size, (loop, after), False, True))
        elif kind == "reduce_scatter":
            # The block that ends at ring position p starts at p + 1 and is reduced on its way.
            calls.append(Call(0, [], [after], size, (loop, before), True, False))
            for j in range(2, n):
                owner = order[(ix - j) % n]
                calls.append(Call(0, [before], [after], size, (loop, owner), True, False))
            calls.append(Call(0, [before], [], size, (loop, rank), True, True))
        elif kind == "broadcast":
            starts, ends = rank == root, after == root
            calls.append(
                Call(
                    0,
                    [] if starts else [before],
                    [] if ends else [after],
                    size,
                    (loop, root),
                    starts,
                    True,
                )
            )
        elif kind == "reduce":
            starts, ends = before == root, rank == root
            calls.append(
                Call(
                    0,
                    [] if starts else [before],
                    [] if ends else [after],
                    size,
                    (loop, root),
                    True,
                    ends,
                )
            )
    return calls


def tree(up, down, rank, count, chunk, protocol):
    """Calls of `rank` in a tree given as lists `up` and `down` by rank."""
    calls = []
    parent, children = up[rank], list(down[rank])
    down_group = 2 if protocol == "simple" else 1
    for loop, size in enumerate(chunks(count, chunk)):
        if parent < 0:
            calls.append(Call(0, children, children, size, (loop,), True, True))
        else:
            calls.append(Call(0, children, [parent], size, (loop,), True, False))
    if parent >= 0:
        for loop, size in enumerate(chunks(count, chunk)):
            calls.append(Call(down_group, [parent], children, size, (loop,), False, True))
    return calls


def nvls_tree(up, down, heads, rank, count, chunk, last_align):
    """Network calls of a head; `heads` are the heads of its host in order."""
    calls = []
    if rank not in heads:
        return calls
    h, width = heads.index(rank), len(heads)
    parent, children = up[rank], list(down[rank])
    sizes = []
    done = 0
    while done < count:
        rest, c = count - done, chunk
        if rest < width * chunk:
            c = math.ceil(math.ceil(rest / width) / last_align) * last_align
        sizes.append(max(0, min(rest - h * c, c)))
        done += width * chunk
    for loop, size in enumerate(sizes):
        if parent < 0:
            calls.append(Call(4, children, children, size, (loop, h), True, True))
        else:
            calls.append(Call(4, children, [parent], size, (loop, h), True, False))
    if parent >= 0:
        for loop, size in enumerate(sizes):
            calls.append(Call(6, [parent], children, size, (loop, h), False, True))
    return calls


def bytes_of(call, algorithm, protocol, kind, element_size, step_bytes=524288):
    """Wire bytes of each message of a call towards one peer."""
    n = call.elements
    if protocol == "ll":
        lines = math.ceil(n * element_size / 8) if element_size <= 8 else n
        return [16 * lines]
    if protocol == "ll128":
        return [2048 * math.ceil(n * element_size / 1920)]
    if algorithm == "ring" and kind in ("all_reduce", "all_gather", "reduce_scatter"):
        least = 2 * (step_bytes // element_size) // 32
        first = min(n, max(16 * math.ceil(n / 32), least))
        return [first * element_size, (n - first) * element_size]
    return [n * element_size]


def sends(calls, algorithm, protocol, kind, element_size, step_bytes=524288):
    """Sizes by (group, peer), in order."""
    found: dict[tuple[int, int], list[int]] = {}
    for call in calls:
        for peer in call.send:
            sizes = bytes_of(call, algorithm, protocol, kind, element_size, step_bytes)
            found.setdefault((call.group, peer), []).extend(sizes)
    return found


class Deadlock(AssertionError):
    pass


@dataclass
class World:
    """All ranks of one channel, moving data with bounded queues."""

    window: int = 8
    queues: dict = field(default_factory=dict)
    kept: dict = field(default_factory=dict)


def run(calls_by_rank, window=8):
    """Moves the data of all ranks; returns {rank: {piece: contributors}}.

    Every group of a rank is a thread of its own; a queue between two ranks holds `window`
    messages. A received piece must be the one its call expects.
    """
    world = World(window)
    threads = []
    for rank, calls in enumerate(calls_by_rank):
        world.kept[rank] = {}
        for group in sorted({call.group for call in calls}):
            threads.append([rank, deque(c for c in calls if c.group == group)])
    moved = True
    while moved:
        moved = False
        for rank, calls in threads:
            while calls and _step(world, rank, calls[0]):
                calls.popleft()
                moved = True
    stuck = [(rank, calls[0]) for rank, calls in threads if calls]
    if stuck:
        raise Deadlock(f"{len(stuck)} threads wait, the first: {stuck[0]}")
    left = {key: len(queue) for key, queue in world.queues.items() if queue}
    assert not left, f"messages that nobody received: {left}"
    return world.kept


def _step(world, rank, call):
    queues = world.queues
    incoming = [queues.setdefault((peer, rank), deque()) for peer in call.receive]
    outgoing = [queues.setdefault((rank, peer), deque()) for peer in call.send]
    if not all(incoming) or any(len(q) >= world.window for q in outgoing):
        return False
    value = {rank} if call.own else set()
    for queue in incoming:
        piece, elements, contributors = queue.popleft()
        assert (piece, elements) == (call.piece, call.elements), (rank, call, piece)
        value |= contributors
    for queue in outgoing:
        queue.append((call.piece, call.elements, frozenset(value)))
    if call.keep:
        world.kept[rank][call.piece] = frozenset(value)
    return True
