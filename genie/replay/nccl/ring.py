"""Ring collectives: the calls of one rank on one channel (spec sections 3.3 to 3.5).

Every function returns the operations of one stream as an array of `OP`, built loop-wise with
NumPy: all full loops are equal, so one is laid out and repeated.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from genie.replay.nccl.program import OP, RECV, SEND, OpArray
from genie.replay.nccl.sizes import Format

IntArray = npt.NDArray[np.int64]


def ring_ops(
    kind: str,
    *,
    index: int,
    size: int,
    prev: int,
    following: int,
    root_index: int,
    count: int,
    chunk: int,
    last_align: int,
    wire: Format,
) -> OpArray:
    """Operations of one rank in one ring.

    Args:
        kind: all_reduce, all_gather, reduce_scatter, broadcast or reduce.
        index: position of the rank in the ring, counted from rank 0.
        size: ranks in the ring.
        prev: rank before this one.
        following: rank after this one.
        root_index: ring position of the root (broadcast, reduce).
        count: elements of this channel's part (per rank for all_gather, reduce_scatter).
        chunk: elements of a full chunk.
        last_align: all_reduce's last loop rounds its chunk up to this many elements.
        wire: the messages' format.
    """
    if size < 2 or count == 0:
        return np.zeros(0, OP)
    if kind == "all_reduce":
        return _all_reduce(index, size, prev, following, count, chunk, last_align, wire)
    if kind in ("all_gather", "reduce_scatter"):
        sizes = _chunks(count, chunk)
        return _calls(np.repeat(sizes[:, None], size, axis=1), prev, following, wire)
    if kind == "broadcast":
        receives, sends = index != root_index, (index + 1) % size != root_index
    else:
        receives, sends = index != (root_index + 1) % size, index != root_index
    return pipeline(
        [prev] if receives else [], [following] if sends else [], _chunks(count, chunk), wire
    )


def _chunks(count: int, chunk: int) -> IntArray:
    """Sizes of the chunks of `count` elements; only the last may be shorter."""
    sizes = np.full(-(-count // chunk), chunk, np.int64)
    sizes[-1] = count - (len(sizes) - 1) * chunk
    return sizes


def _all_reduce(
    index: int,
    size: int,
    prev: int,
    following: int,
    count: int,
    chunk: int,
    last_align: int,
    wire: Format,
) -> OpArray:
    # Chunks in the order they pass this rank: the reduce half walks back from index - 1 to
    # index, the gather half repeats it; the final receive completes chunk index + 1.
    walk = (index - np.arange(1, size)) % size
    order = np.concatenate([walk, [index], walk[: size - 2], [(index + 1) % size]])
    loops, rest = divmod(count, size * chunk)
    elements = np.full((loops + (rest > 0), len(order)), chunk, np.int64)
    if rest:
        last = -(-(-(-rest // size)) // last_align) * last_align
        elements[-1] = np.clip(rest - order * last, 0, last)
    return _calls(elements, prev, following, wire)


def _calls(elements: IntArray, prev: int, following: int, wire: Format) -> OpArray:
    """Loops of calls: the first only sends, the last only receives, the others do both.

    Args:
        elements: element counts, shape (loops, calls).
        prev: rank that is received from.
        following: rank that is sent to.
        wire: the messages' format.
    """
    loops, calls = elements.shape
    slices = wire.slices
    per_loop = 2 * slices * (calls - 1)
    ops = np.zeros((loops, per_loop), OP)
    call = np.concatenate(
        [
            np.zeros(slices, np.int64),
            np.repeat(np.arange(1, calls - 1), 2 * slices),
            np.full(slices, calls - 1),
        ]
    )
    kind = np.empty(per_loop, np.uint8)
    kind[:slices] = SEND
    kind[slices:-slices] = np.tile(np.array([RECV, SEND], np.uint8), slices * (calls - 2))
    kind[-slices:] = RECV
    sizes = wire.messages(elements)  # (loops, calls, slices)
    ops["nbytes"][:, :slices] = sizes[:, 0]
    ops["nbytes"][:, slices:-slices] = np.repeat(sizes[:, 1:-1].reshape(loops, -1), 2, axis=1)
    ops["nbytes"][:, -slices:] = sizes[:, -1]
    ops["call"] = call + calls * np.arange(loops)[:, None]
    ops["kind"] = kind
    ops["peer"] = np.where(kind == SEND, following, prev)
    ops["steps"] = wire.steps
    return ops.reshape(-1)


def pipeline(
    receives: list[int], sends: list[int], elements: IntArray, wire: Format, *, calls_from: int = 0
) -> OpArray:
    """One call per chunk: receive it from every peer of `receives`, send it to all of `sends`.

    Args:
        receives: ranks received from, in order.
        sends: ranks sent to, in order.
        elements: elements of each chunk.
        wire: the messages' format.
        calls_from: number of the first call.
    """
    width = len(receives) + len(sends)
    slices = wire.slices
    if width == 0 or len(elements) == 0:
        return np.zeros(0, OP)
    ops = np.zeros((len(elements), slices, width), OP)
    ops["nbytes"] = wire.messages(elements)[:, :, None]
    ops["call"] = (calls_from + np.arange(len(elements)))[:, None, None]
    ops["peer"] = np.array(receives + sends)
    ops["kind"] = [RECV] * len(receives) + [SEND] * len(sends)
    ops["steps"] = wire.steps
    return ops.reshape(-1)
