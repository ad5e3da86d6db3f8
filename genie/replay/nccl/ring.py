"""Ring collectives: the calls of one rank on one channel (spec sections 3.3 to 3.5).

Every function returns the operations of one stream as an array of `OP`, built loop-wise with
NumPy: all full loops are equal, so one is laid out and repeated.
"""

from __future__ import annotations

from functools import lru_cache

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
        loops = -(count // -(size * chunk))
        last = last_loop(index, size, count - (loops - 1) * size * chunk, chunk, last_align)
        return _calls(loops, chunk, last, prev, following, wire)
    if kind in ("all_gather", "reduce_scatter"):
        loops = -(count // -chunk)
        last = np.full(size, count - (loops - 1) * chunk, np.int64)
        return _calls(loops, chunk, last, prev, following, wire)
    if kind == "broadcast":
        receives, sends = index != root_index, (index + 1) % size != root_index
    else:
        receives, sends = index != (root_index + 1) % size, index != root_index
    return pipeline(
        [prev] if receives else [],
        [following] if sends else [],
        _chunks(count, chunk),
        wire,
    )


def _chunks(count: int, chunk: int) -> IntArray:
    """Sizes of the chunks of `count` elements; only the last may be shorter."""
    sizes = np.full(-(-count // chunk), chunk, np.int64)
    sizes[-1] = count - (len(sizes) - 1) * chunk
    return sizes


def last_loop(index: int, size: int, rest: int, chunk: int, last_align: int) -> IntArray:
    """Elements of every call of all_reduce's last loop, over `rest` elements."""
    # Chunks in the order they pass this rank: the reduce half walks back from index - 1 to
    # index, the gather half repeats it; the final receive completes chunk index + 1.
    order = (index - 1 - np.arange(2 * size - 1)) % size
    order[size:] = order[: size - 1]
    order[-1] = (index + 1) % size
    if rest < size * chunk:
        chunk = -(rest // -size)
        chunk = -(chunk // -last_align) * last_align
    return np.minimum(np.maximum(rest - order * chunk, 0), chunk)


def _calls(
    loops: int,
    chunk: int,
    last: IntArray,
    prev: int,
    following: int,
    wire: Format,
) -> OpArray:
    """Loops of calls: the first only sends, the last only receives, the others do both.

    Args:
        loops: number of loops.
        chunk: elements of every call but those of the last loop.
        last: elements of each call of the last loop.
        prev: rank that is received from.
        following: rank that is sent to.
        wire: the messages' format.
    """
    flat, call, kind = _loop(len(last), wire.slices)
    ops = np.zeros((loops, len(flat)), OP)
    if loops > 1:
        ops["nbytes"][:-1] = wire.messages(np.array(chunk))[flat % wire.slices]
    ops["nbytes"][-1] = wire.messages(last).reshape(-1)[flat]
    ops["call"] = call + len(last) * np.arange(loops)[:, None]
    ops["kind"] = kind
    ops["peer"] = np.array([following, prev])[kind]
    ops["steps"] = wire.steps
    return ops.reshape(-1)


@lru_cache(maxsize=16)
def _loop(calls: int, slices: int) -> tuple[IntArray, IntArray, npt.NDArray[np.uint8]]:
    """(index of the message, call, kind) of each operation of one loop."""
    # Operation 2k is the receive of message k, 2k + 1 its send; the first call has no receive,
    # the last no send.
    listed = np.ones((calls, slices, 2), np.bool_)
    listed[0, :, 0] = False
    listed[-1, :, 1] = False
    place = np.flatnonzero(listed)
    kind = np.array([RECV, SEND], np.uint8)[place % 2]
    flat = place // 2
    return flat, flat // slices, kind


def pipeline(receives: list[int], sends: list[int], elements: IntArray, wire: Format) -> OpArray:
    """One call per chunk: receive it from every peer of `receives`, send it to all of `sends`.

    Args:
        receives: ranks received from, in order.
        sends: ranks sent to, in order.
        elements: elements of each chunk.
        wire: the messages' format.
    """
    width = len(receives) + len(sends)
    if width == 0 or len(elements) == 0:
        return np.zeros(0, OP)
    ops = np.empty((len(elements), wire.slices, width), OP)
    ops[:] = _one_call(tuple(receives), tuple(sends), wire.steps)
    ops["nbytes"] = wire.messages(elements)[:, :, None]
    ops["call"] = np.arange(len(elements))[:, None, None]
    return ops.reshape(-1)


@lru_cache(maxsize=256)
def _one_call(receives: tuple[int, ...], sends: tuple[int, ...], steps: int) -> OpArray:
    """Operations of one call, sizes left out."""
    ops = np.zeros(len(receives) + len(sends), OP)
    ops["peer"] = receives + sends
    ops["kind"] = [RECV] * len(receives) + [SEND] * len(sends)
    ops["steps"] = steps
    return ops
