"""PAT all_gather and reduce_scatter: parallel aggregated trees, one rank per host (spec 3.8).

Rank r talks to ranks at distances 1, 2, 4, ... Seen from itself every rank does the same, and
chunks with the same aggregation do the same, so one `Walk` serves all of them: it names blocks
and dimensions (log2 of the distance) instead of ranks, and counts blocks instead of bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from genie.replay.nccl.program import OP, PEEK, RECV, SEND, OpArray

IntArray = npt.NDArray[np.int64]


TAKE_NOTHING, TAKE_LOOK, TAKE_MESSAGE = range(3)


@dataclass(frozen=True, eq=False)
class Walk:
    """The steps of one chunk, in order, as columns of equal length.

    Attributes:
        receive: dimension whose message the step uses, -1 none.
        release: whether that message ends here; else it is only read.
        send: dimension that the step's block goes to, -1 none.
        blocks: blocks in the message that the step posts, 0 if the block is only accumulated.
        take: the receive operation of the step in a program: `TAKE_NOTHING`, `TAKE_LOOK` (wait
            for the message, leave it) or `TAKE_MESSAGE`.
    """

    receive: IntArray
    release: npt.NDArray[np.bool_]
    send: IntArray
    blocks: IntArray
    take: npt.NDArray[np.int8]


@dataclass
class _Step:
    use: int  # block whose message is used, -1 none
    target: int  # block that is sent, -1 none
    post: int = 0  # blocks posted
    release: bool = False
    take: int = TAKE_NOTHING


def aggregation(size: int, part_bytes: int, chunk_bytes: int) -> tuple[int, int]:
    """How many blocks travel together: (A, F) of spec 3.8.

    A blocks are walked at once and a message is posted after F of them. Small parts fill a
    chunk together (F = A); the walk then widens up to 8 times more without longer messages.

    Args:
        size: ranks.
        part_bytes: bytes per rank in this channel.
        chunk_bytes: bytes of a chunk.
    """
    width = 1
    while chunk_bytes // (part_bytes * width) >= 2 and width < size // 2:
        width *= 2
    group = width
    for _ in range(3):
        if width < size // 2:
            width *= 2
    return width, group


@lru_cache(maxsize=64)
def walk(kind: str, size: int, width: int, group: int, padded: bool = True) -> Walk:
    """The steps of one chunk.

    Args:
        kind: all_gather or reduce_scatter.
        size: ranks.
        width: A of `aggregation`.
        group: F of `aggregation`.
        padded: reduce_scatter messages keep room for blocks of ranks that do not exist
            (2.26.2 and later).
    """
    if kind == "all_gather":
        steps, messages = _gather(size, width, group)
    else:
        steps, messages = _scatter(size, width, group, padded)
    last: dict[int, _Step] = {}
    for step in steps:
        if step.use >= 0:
            last[messages[step.use]] = step
    for step in last.values():
        step.release = True
    _takes(steps, messages)
    return Walk(
        np.array([_lowest(step.use) if step.use >= 0 else -1 for step in steps], np.int64),
        np.array([step.release for step in steps], np.bool_),
        np.array([_lowest(step.target) if step.target >= 0 else -1 for step in steps], np.int64),
        np.array([step.post for step in steps], np.int64),
        np.array([step.take for step in steps], np.int8),
    )


def _takes(steps: list[_Step], messages: dict[int, int]) -> None:
    """Chooses each step's receive operation.

    A program can look at the next message of a connection only. Where a walk wider than its
    messages goes back and forth between several, each is taken when it is first used.
    """
    by_dimension: dict[int, list[_Step]] = {}
    for step in steps:
        if step.use >= 0:
            by_dimension.setdefault(_lowest(step.use), []).append(step)
    for users in by_dimension.values():
        order = [messages[step.use] for step in users]
        in_turn = order == sorted(order)
        seen: set[int] = set()
        for step, message in zip(users, order, strict=True):
            if in_turn:
                step.take = TAKE_MESSAGE if step.release else TAKE_LOOK
            elif message not in seen:
                step.take = TAKE_MESSAGE
            seen.add(message)


def _lowest(value: int) -> int:
    """Index of the lowest set bit: the dimension on which block `value` travels."""
    return (value & -value).bit_length() - 1


def _draws(depth: int) -> Iterator[int]:
    """The offsets below 2**depth in the order all_gather forwards them."""
    wait = [depth - i for i in range(depth)]
    turns = [1] * depth
    value = 0
    while True:
        for i in range(depth):
            wait[i] -= 1
            if wait[i]:
                continue
            value ^= 1 << i
            wait[i] = 1 << i
            if not value >> i & 1:
                wait[i] += _lowest(turns[i]) - 1
                if wait[i] == 0:
                    value ^= 1 << i
                    wait[i] = 1 << i
                turns[i] += 1
        yield value


def _gather(size: int, width: int, group: int) -> tuple[list[_Step], dict[int, int]]:
    """all_gather's steps, and the message that each block travels in."""
    stride = (1 << (size - 1).bit_length()) // width
    steps: list[_Step] = []
    messages: dict[int, int] = {}
    posted = 0

    def forward(position: int, block: int, following: int) -> None:
        nonlocal posted
        source = block - (1 << _lowest(block))
        step = _Step(source or -1, block)
        messages[block] = posted
        if position % group == group - 1 or following >= size:
            step.post = position % group + 1
            posted += 1
        steps.append(step)

    scale = width // 2
    while scale:
        for a in range(width // (2 * scale)):
            block = (2 * a + 1) * scale * stride
            if block < size:
                forward(a, block, block + 2 * scale * stride)
        scale //= 2
    started = False
    for value in _draws(stride.bit_length() - 1):
        if started and value == stride // 2:
            break
        started = True
        for a in range(width):
            block = a * stride + value
            source = block - (1 << _lowest(block))
            if block < size:
                forward(a, block, block + stride)
            elif value & 1 and 0 < source < size:
                steps.append(_Step(source, -1))
        if value & 1:
            steps.extend(_Step(block, -1) for block in range(value, size, stride))
    return steps, messages


def _mirror(a: int, width: int) -> int:
    """Bit reversal of the complement of `a` in log2(width) bits."""
    bits = width.bit_length() - 1
    value = ~a & (width - 1)
    return int(format(value, f"0{bits}b")[::-1], 2) if bits else 0


def _scatter(size: int, width: int, group: int, padded: bool) -> tuple[list[_Step], dict[int, int]]:
    """reduce_scatter's steps, and the message that each block travels in."""
    stride = (1 << (size - 1).bit_length()) // width
    steps: list[_Step] = []
    messages: dict[int, int] = {}
    posted = 0

    def run(items: list[tuple[int, int]], *, post: bool) -> None:
        """Steps over (used block, target block); `post` closes a message after each group."""
        nonlocal posted
        held = 0
        for a, (use, target) in enumerate(items):
            if a % group == 0:
                held = 0
            has_use, has_target = 0 < use < size, 0 < target < size
            if has_use or has_target:
                step = _Step(use if has_use else -1, target if has_target else -1)
                steps.append(step)
            if not post:
                continue
            if has_target:
                held += 1
                messages[target] = posted
            if a % group == group - 1 or a == len(items) - 1:
                if has_target:
                    steps[-1].post = a % group + 1 if padded else held
                posted += 1

    for value in range(stride - 1, 0, -1):
        blocks = [_mirror(a, width) * stride + value for a in range(width)]
        odd = bool(value & 1)
        if odd:
            run([(0, block) for block in blocks], post=True)
        if value > 1:
            run([(block, block - (1 << _lowest(block))) for block in blocks], post=odd)
    scale = 1
    while scale < width:
        half = width // (2 * scale)
        blocks = [(2 * _mirror(a, half) + 1) * scale * stride for a in range(half)]
        run([(block + 1, block) for block in blocks], post=True)
        run([(block, block - (1 << _lowest(block))) for block in blocks], post=False)
        scale *= 2
    steps.append(_Step(1, -1))
    return steps, messages


def pat_ops(
    kind: str,
    *,
    rank: int,
    size: int,
    count: int,
    chunk: int,
    element_size: int,
    padded: bool = True,
) -> OpArray:
    """Operations of one rank in one channel.

    Args:
        kind: all_gather or reduce_scatter.
        rank: this rank.
        size: ranks.
        count: elements per rank in this channel's part.
        chunk: elements of a full chunk.
        element_size: bytes per element.
        padded: see `walk`.
    """
    if size < 2 or count == 0:
        return np.zeros(0, OP)
    width, group = aggregation(size, count * element_size, chunk * element_size)
    steps = walk(kind, size, width, group, padded)
    sign = 1 if kind == "all_gather" else -1
    # A step becomes a receive (if it uses a message) and a send (if it posts one).
    present = np.stack([steps.take != TAKE_NOTHING, steps.blocks > 0], axis=1)
    dimension = np.stack([steps.receive, steps.send], axis=1)[present]
    kinds = np.broadcast_to(np.array([RECV, SEND], np.uint8), present.shape)[present]
    looks = steps.take == TAKE_LOOK
    peek = np.stack([looks, np.zeros_like(looks)], axis=1)[present]
    blocks = np.broadcast_to(steps.blocks[:, None], present.shape)[present]
    distance = np.left_shift(1, dimension) * np.where(kinds == RECV, sign, -sign)
    lengths = _received(kinds, dimension, peek, blocks)
    call = np.nonzero(present)[0]

    chunks = np.full(-(-count // chunk), chunk, np.int64)
    chunks[-1] = count - (len(chunks) - 1) * chunk
    ops = np.zeros((len(chunks), len(kinds)), OP)
    ops["peer"] = (rank + distance) % size
    ops["nbytes"] = chunks[:, None] * element_size * lengths
    ops["call"] = call + len(present) * np.arange(len(chunks))[:, None]
    ops["kind"] = kinds
    ops["flags"] = np.where(peek, PEEK, 0)
    ops["steps"] = 1
    return ops.reshape(-1)


def _received(
    kinds: npt.NDArray[np.uint8],
    dimension: IntArray,
    peek: npt.NDArray[np.bool_],
    blocks: IntArray,
) -> IntArray:
    """Blocks of each operation's message: a receive's n-th message is the peer's n-th send."""
    lengths = blocks.copy()
    for d in np.unique(dimension):
        sent = blocks[(kinds == SEND) & (dimension == d)]
        received = (kinds == RECV) & (dimension == d)
        ends = ~peek[received]
        lengths[received] = sent[np.cumsum(ends) - ends]
    return lengths
