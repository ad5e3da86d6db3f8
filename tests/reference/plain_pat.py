"""PAT in plain Python, told as what happens to blocks instead of a walk over masks.

all_gather: block s of a rank is the data of the rank s places further on. It arrives from the
peer 2**dim(s) places on, and is passed on as every block s + 2**e with e below dim(s).
reduce_scatter is the mirror image. `events` gives, in NCCL's order, what each step uses and
sends; the messages follow from when groups of blocks are posted.
"""

from __future__ import annotations

from collections import deque


def dim(block: int) -> int:
    place = 0
    while block % 2 == 0:
        block //= 2
        place += 1
    return place


def widths(ranks: int, part_bytes: int, chunk_bytes: int) -> tuple[int, int]:
    a = 1
    while chunk_bytes // (part_bytes * a) >= 2 and a < ranks // 2:
        a *= 2
    f = a
    tries = 3
    while tries and a < ranks // 2:
        a *= 2
        tries -= 1
    return a, f


def power(ranks: int) -> int:
    p = 1
    while p < ranks:
        p *= 2
    return p


def offsets(d: int) -> list[int]:
    """all_gather's order of the offsets below d (d = 2**depth)."""
    depth = d.bit_length() - 1
    bits = [0] * depth
    wait = [depth - i for i in range(depth)]
    turns = [1] * depth
    order = []
    while True:
        for i in range(depth):
            wait[i] -= 1
            if wait[i] > 0:
                continue
            bits[i] = 1 - bits[i]
            wait[i] = 2**i
            if bits[i] == 0:
                wait[i] = 2**i + dim(turns[i]) - 1
                if wait[i] == 0:
                    bits[i], wait[i] = 1, 2**i
                turns[i] += 1
        value = sum(bit << i for i, bit in enumerate(bits))
        if order and value == d // 2:
            return order
        order.append(value)


def gather_events(ranks: int, a_width: int, group: int):
    """(block used or None, block sent or None, blocks posted or 0)."""
    d = power(ranks) // a_width
    events = []

    def pass_on(a, block, next_block):
        used = block - 2 ** dim(block)
        full = a % group == group - 1 or next_block >= ranks
        events.append((used or None, block, a % group + 1 if full else 0))

    scale = a_width // 2
    while scale >= 1:
        for a in range(a_width // (2 * scale)):
            block = (2 * a + 1) * scale * d
            if block < ranks:
                pass_on(a, block, block + 2 * scale * d)
        scale //= 2
    for v in offsets(d):
        for a in range(a_width):
            block = a * d + v
            if block < ranks:
                pass_on(a, block, block + d)
            elif v % 2 and 0 < block - 1 < ranks:
                events.append((block - 1, None, 0))
        if v % 2:
            events += [(a * d + v, None, 0) for a in range(a_width) if a * d + v < ranks]
    return events


def mirrored(a: int, m: int) -> int:
    value, out = m - 1 - a, 0
    while m > 1:
        out = out * 2 + value % 2
        value //= 2
        m //= 2
    return out


def scatter_events(ranks: int, a_width: int, group: int):
    """As `gather_events`; a block that does not exist is None."""
    d = power(ranks) // a_width
    events = []

    def there(block):
        return block if 0 < block < ranks else None

    def steps(pairs, posts):
        for a, (used, sent) in enumerate(pairs):
            if there(used) is None and there(sent) is None:
                continue
            full = posts and there(sent) and (a % group == group - 1 or a == len(pairs) - 1)
            events.append((there(used), there(sent), a % group + 1 if full else 0))

    for v in range(d - 1, 0, -1):
        blocks = [mirrored(a, a_width) * d + v for a in range(a_width)]
        if v % 2:
            steps([(0, s) for s in blocks], True)
        if v > 1:
            steps([(s, s - 2 ** dim(s)) for s in blocks], v % 2 == 1)
    scale = 1
    while scale < a_width:
        m = a_width // (2 * scale)
        blocks = [(2 * mirrored(a, m) + 1) * scale * d for a in range(m)]
        steps([(s + 1, s) for s in blocks], True)
        steps([(s, s - 2 ** dim(s)) for s in blocks], False)
        scale *= 2
    events.append((1, None, 0))
    return events


def events(kind, ranks, part_bytes, chunk_bytes):
    width, group = widths(ranks, part_bytes, chunk_bytes)
    make = gather_events if kind == "all_gather" else scatter_events
    return make(ranks, width, group)


def sends(kind, rank, ranks, count, chunk, element_size):
    """Sizes by peer, in order."""
    found: dict[int, list[int]] = {}
    sign = -1 if kind == "all_gather" else 1
    steps = events(kind, ranks, count * element_size, chunk * element_size)
    done = 0
    while done < count:
        n = min(chunk, count - done)
        for _, sent, posted in steps:
            if posted:
                peer = (rank + sign * 2 ** dim(sent)) % ranks
                found.setdefault(peer, []).append(posted * n * element_size)
        done += n
    return found


def run(kind, ranks, part_bytes, chunk_bytes, window=8):
    """Moves one chunk's blocks between all ranks; returns what each rank ends up with.

    all_gather: {rank: {block: source}}; reduce_scatter: {rank: contributors}. A message is the
    blocks of one post; a rank takes it when it first needs one of them.
    """
    width, group = widths(ranks, part_bytes, chunk_bytes)
    steps = events(kind, ranks, part_bytes, chunk_bytes)
    leaves = message_of(kind, ranks, width, group)
    sign = -1 if kind == "all_gather" else 1
    queues = {}
    got = [{} for _ in range(ranks)]  # received block -> value
    filling = [{} for _ in range(ranks)]  # block to send -> value
    done = [{0: r} if kind == "all_gather" else {r} for r in range(ranks)]
    at = [0] * ranks

    def needs(r, block):
        """Takes the message with `block` if it is there."""
        if block in got[r]:
            return True
        queue = queues.get(((r - sign * 2 ** dim(block)) % ranks, r))
        if not queue:
            return False
        assert block in queue[0], f"rank {r} needs block {block}, next is {sorted(queue[0])}"
        got[r].update(queue.popleft())
        return True

    def step(r):
        used, sent, posted = steps[at[r]]
        if used is not None and not needs(r, used):
            return False
        peer = (r + sign * 2 ** dim(sent)) % ranks if sent is not None else None
        queue = queues.setdefault((r, peer), deque())
        if posted and len(queue) >= window:
            return False
        value = got[r][used] if used is not None else None
        if kind == "all_gather":
            if used is not None:
                assert value == (r + used) % ranks
                done[r][used] = value
            if sent is not None:
                filling[r][sent] = r if value is None else value
        else:
            value = value or frozenset()
            if used is not None:
                del got[r][used]  # a contribution counts once
            if sent is None:
                assert not done[r] - {r} & value
                done[r] |= value
            else:
                before = filling[r].get(sent, frozenset({r}))
                assert not (before - {r}) & value
                filling[r][sent] = before | value
        if posted:
            mine = leaves[sent]
            queue.append({b: filling[r].pop(b) for b in list(filling[r]) if leaves[b] == mine})
        at[r] += 1
        return True

    moved = True
    while moved:
        moved = False
        for r in range(ranks):
            while at[r] < len(steps) and step(r):
                moved = True
    assert all(a == len(steps) for a in at), "deadlock"
    assert not any(queues.values()), "messages left over"
    assert not any(filling), "blocks never sent"
    return done


def message_of(kind, ranks, width, group):
    """Which message each block leaves in."""
    if kind == "reduce_scatter":
        return posting_groups(ranks, width, group)
    found, number = {}, 0
    for _, sent, posted in gather_events(ranks, width, group):
        if sent is not None:
            found[sent] = number
            number += posted > 0
    return found


def posting_groups(ranks, a_width, group):
    """reduce_scatter: number of the message in which each block leaves."""
    d = power(ranks) // a_width
    found = {}
    number = 0

    def posts(blocks):
        nonlocal number
        for a, block in enumerate(blocks):
            if a % group == 0:
                number += 1
            if 0 < block < ranks:
                found[block] = number

    for v in range(d - 1, 0, -1):
        blocks = [mirrored(a, a_width) * d + v for a in range(a_width)]
        if v % 2:
            posts(blocks)
            if v > 1:
                posts([s - 1 for s in blocks])
    scale = 1
    while scale < a_width:
        m = a_width // (2 * scale)
        posts([(2 * mirrored(a, m) + 1) * scale * d for a in range(m)])
        scale *= 2
    return found
