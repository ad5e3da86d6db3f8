"""Messages between hosts of streams that repeat the same few peers, without their operations.

On hosts with several GPUs a rank meets the network in few streams, and each of those repeats one
pattern: receive from these, send to those. Such a stream is sizes times peers; nothing of what
happens inside the host is built. The result equals that of the full program.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from genie.replay.nccl.messages import MESSAGE, NicOf
from genie.replay.nccl.program import RECV, SEND
from genie.replay.nccl.ring import last_loop
from genie.replay.nccl.tree import NVLS_DOWN, NVLS_UP, TREE_UP, nvls_shares, tree_down_group

if TYPE_CHECKING:
    from genie.replay.cluster import Cluster
    from genie.replay.nccl.collective import Shape

IntArray = npt.NDArray[np.int64]
Mirror = Callable[[int, int, int], int]


class Stream(NamedTuple):
    """A thread group's messages: `nbytes` each to or from every peer of `ends`, in turn."""

    channel: int
    group: int
    ends: list[tuple[int, int]]
    nbytes: IntArray


def network_messages(
    shape: Shape,
    parts: npt.NDArray[np.void],
    rank: int,
    cluster: Cluster,
    nic_of: NicOf,
    mirror: Mirror,
) -> npt.NDArray[np.void] | None:
    """Messages of a rank to and from other hosts, or None where streams are not of this form.

    Args:
        shape: the collective.
        parts: rows channel, count, chunk_bytes.
        rank: the rank.
        cluster: rings, trees and hosts, with the environment applied.
        nic_of: NIC and proxy of a message to or from a peer.
        mirror: (group, channel, peer) -> the group in which the peer sends what is received.
    """
    if shape.algorithm == "ring":
        streams = _ring(shape, parts, rank, cluster)
    elif shape.algorithm == "tree":
        streams = _tree(shape, parts, rank, cluster)
    elif shape.algorithm == "nvls_tree":
        streams = _nvls(shape, parts, rank, cluster)
    else:
        return None
    if streams is None:
        return None
    out = np.empty(sum(len(s.nbytes) * len(s.ends) for s in streams), MESSAGE)
    begin = 0
    steps = shape.wire.steps
    for channel, group, ends, nbytes in streams:
        stop = begin + len(nbytes) * len(ends)
        rows = out[begin:stop].reshape(len(nbytes), len(ends))
        begin = stop
        pattern = np.empty(len(ends), MESSAGE)
        for column, (peer, direction) in enumerate(ends):
            nic, proxy = nic_of(peer, channel, direction)
            shown = mirror(group, channel, peer) if direction else group
            pattern[column] = (channel, shown, peer, direction, 0, 0, nic, proxy)
        rows[:] = pattern
        rows["nbytes"] = nbytes[:, None]
        rows["step"] = np.arange(0, steps * len(nbytes), steps)[:, None]
    return out


def _ring(
    shape: Shape, parts: npt.NDArray[np.void], rank: int, cluster: Cluster
) -> list[Stream] | None:
    host, size = cluster.host_of, cluster.n_ranks
    here = host[rank]
    streams = []
    for channel, count, chunk_bytes in parts.tolist():
        ring = cluster.channels[channel]
        prev, following = ring.ring_prev(rank), ring.ring_next(rank)
        receives, sends = host[prev] != here, host[following] != here
        if receives and sends:
            return None  # both ends alternate from call to call
        if not receives and not sends:
            continue
        index, root = ring.ring_position(rank), ring.ring_position(shape.root)
        end = (following, SEND) if sends else (prev, RECV)
        calls = _ring_calls(shape, index, root, size, bool(sends), count, chunk_bytes)
        if calls is not None:
            streams.append(Stream(channel, 0, [end], calls))
    return streams


def _ring_calls(
    shape: Shape, index: int, root: int, size: int, sends: bool, count: int, chunk_bytes: int
) -> IntArray | None:
    """Wire bytes of the messages of one end; None if the end is silent."""
    chunk = chunk_bytes // shape.element_size
    if shape.kind in ("broadcast", "reduce"):
        silent = {
            ("broadcast", True): (index + 1) % size == root,
            ("broadcast", False): index == root,
            ("reduce", True): index == root,
            ("reduce", False): index == (root + 1) % size,
        }[shape.kind, sends]
        return None if silent else _chunk_bytes(shape, count, chunk)
    # The first call only sends, the last only receives.
    kept = slice(0, -1) if sends else slice(1, None)
    if shape.kind == "all_reduce":
        loops = -(count // -(size * chunk))
        rest = count - (loops - 1) * size * chunk
        last = last_loop(index, size, rest, chunk, shape.last_align)[kept]
    else:
        loops = -(count // -chunk)
        last = np.full(size - 1, count - (loops - 1) * chunk, np.int64)
    sizes = shape.wire.messages(last).reshape(-1)
    if loops > 1:
        full = np.tile(shape.wire.messages(np.array(chunk)), (loops - 1) * len(last))
        sizes = np.concatenate([full, sizes])
    return sizes


def _chunk_bytes(shape: Shape, count: int, chunk: int) -> IntArray:
    sizes = np.full(-(count // -chunk), chunk, np.int64)
    sizes[-1] = count - (len(sizes) - 1) * chunk
    return shape.wire.messages(sizes).reshape(-1)


def _tree(shape: Shape, parts: npt.NDArray[np.void], rank: int, cluster: Cluster) -> list[Stream]:
    host = cluster.host_of
    here = host[rank]
    sizes: dict[tuple[int, int], IntArray] = {}
    streams = []
    down_group = tree_down_group(shape.wire.protocol)
    for channel, count, chunk_bytes in parts.tolist():
        at = cluster.channels[channel]
        up = at.tree_up[rank]
        children = [child for child in at.tree_down[rank] if host[child] != here]
        above = [up] if up >= 0 and host[up] != here else []
        if not children and not above:
            continue
        if (count, chunk_bytes) not in sizes:
            chunk = chunk_bytes // shape.element_size
            sizes[count, chunk_bytes] = _chunk_bytes(shape, count, chunk)
        nbytes = sizes[count, chunk_bytes]
        streams += _up_and_down(channel, TREE_UP, down_group, up, above, children, nbytes)
    return streams


def _nvls(shape: Shape, parts: npt.NDArray[np.void], rank: int, cluster: Cluster) -> list[Stream]:
    trees = cluster.nvls_trees
    if trees is None or trees[0].head_of[rank] < 0:
        return []
    head, width = int(trees[0].head_of[rank]), trees[0].n_heads
    sizes: dict[tuple[int, int], IntArray] = {}
    streams = []
    for channel, count, chunk_bytes in parts.tolist():
        tree = trees[channel % 2]
        if (count, chunk_bytes) not in sizes:
            chunk = chunk_bytes // shape.element_size
            mine = nvls_shares(count, chunk, width, shape.last_align)[:, head]
            sizes[count, chunk_bytes] = shape.wire.messages(mine).reshape(-1)
        nbytes = sizes[count, chunk_bytes]
        up, children = tree.up[rank], tree.down[rank]
        above = [up] if up >= 0 else []
        streams += _up_and_down(channel, NVLS_UP, NVLS_DOWN, up, above, children, nbytes)
    return streams


def _up_and_down(
    channel: int,
    up_group: int,
    down_group: int,
    up: int,
    above: list[int],
    children: list[int],
    nbytes: IntArray,
) -> list[Stream]:
    """The streams of a tree: the root answers in the call in which it receives."""
    arriving = [(child, RECV) for child in children]
    leaving = [(child, SEND) for child in children]
    if up < 0:
        return [Stream(channel, up_group, arriving + leaving, nbytes)] if children else []
    return [
        Stream(channel, up_group, arriving + [(peer, SEND) for peer in above], nbytes),
        Stream(channel, down_group, [(peer, RECV) for peer in above] + leaving, nbytes),
    ]
