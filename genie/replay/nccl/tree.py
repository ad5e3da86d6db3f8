"""Tree and NVLS-tree all_reduce: the calls of one rank on one channel (spec 3.6 and 3.7)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from genie.replay.nccl.program import CONN_NVSWITCH, INTRA, OP, RECV, SEND, Block
from genie.replay.nccl.ring import pipeline
from genie.replay.nccl.sizes import Format

IntArray = npt.NDArray[np.int64]

TREE_UP = 0
NVLS_SCATTER, NVLS_GATHER, NVLS_UP, NVLS_DOWN = 0, 1, 4, 6


def tree_down_group(protocol: str) -> int:
    """Thread group of the broadcast half: 2 in Simple, where warps are split, else 1."""
    return 2 if protocol == "simple" else 1


def tree_blocks(
    channel: int,
    up: int,
    down: Sequence[int],
    count: int,
    chunk: int,
    wire: Format,
) -> list[Block]:
    """Streams of one rank in one tree.

    The root reduces and broadcasts in one call; everybody else runs the two halves side by side.

    Args:
        channel: the channel.
        up: parent rank, -1 at the root.
        down: child ranks, in NCCL's order.
        count: elements of this channel's part.
        chunk: elements of a full chunk.
        wire: the messages' format.
    """
    if count == 0:
        return []
    children = list(down)
    sizes = np.full(-(-count // chunk), chunk, np.int64)
    sizes[-1] = count - (len(sizes) - 1) * chunk
    if up < 0:
        both = pipeline(children, children, sizes, wire)
        return [Block(channel, TREE_UP, both, 2 * len(children))]
    width = len(children) + 1
    down_group = tree_down_group(wire.protocol)
    return [
        Block(channel, TREE_UP, pipeline(children, [up], sizes, wire), width),
        Block(channel, down_group, pipeline([up], children, sizes, wire), width),
    ]


@lru_cache(maxsize=64)
def nvls_shares(count: int, chunk: int, heads: int, last_align: int) -> IntArray:
    """Elements that each head handles in each loop, shape (loops, heads)."""
    loops, rest = divmod(count, heads * chunk)
    shares = np.full((loops + (rest > 0), heads), chunk, np.int64)
    if rest:
        last = -(rest // -heads)
        last = -(last // -last_align) * last_align
        shares[-1] = np.clip(rest - np.arange(heads) * last, 0, last)
    shares.setflags(write=False)
    return shares


def nvls_tree_blocks(
    channel: int,
    rank: int,
    heads: Sequence[int],
    local: Sequence[int],
    up: int,
    down: Sequence[int],
    shares: IntArray,
    wire: Format,
) -> list[Block]:
    """Streams of one rank of an NVLS-tree all_reduce.

    Only a head talks to the network. What the NVSwitch does inside a host (reduce the ranks'
    shares into the head, hand the result to all) appears as messages between ranks of one host,
    so that a head waits for its host and a rank is done only when every head has answered.

    Args:
        channel: the channel.
        rank: this rank.
        heads: head ranks of this host, in head order.
        local: all ranks of this host.
        up: the head's parent on another host, -1 at the root (ignored unless a head).
        down: the head's children on other hosts.
        shares: `nvls_shares`.
        wire: the messages' format.
    """
    if len(shares) == 0:
        return []
    others = [head for head in heads if head != rank]
    blocks = [
        Block(channel, NVLS_SCATTER, _switch(others, shares, heads, SEND, 0, wire), len(others)),
    ]
    if rank in heads:
        mine = shares[:, list(heads).index(rank)]
        peers = [peer for peer in local if peer != rank]
        children = list(down)
        if up < 0:
            ops = pipeline(peers + children, children + peers, mine, wire)
            back = len(peers) + 2 * len(children)
            width = 2 * (len(peers) + len(children))
            _mark(ops, len(peers), back, width)
            blocks.append(Block(channel, NVLS_UP, ops, width))
        else:
            ops = pipeline(peers + children, [up], mine, wire)
            width = len(peers) + len(children) + 1
            _mark(ops, len(peers), width, width)
            blocks.append(Block(channel, NVLS_UP, ops, width))
            ops = pipeline([up], children + peers, mine, wire)
            _mark(ops, 0, 1 + len(children), width)
            blocks.append(Block(channel, NVLS_DOWN, ops, width))
    back_ops = _switch(others, shares, heads, RECV, CONN_NVSWITCH, wire)
    blocks.append(Block(channel, NVLS_GATHER, back_ops, len(others)))
    return blocks


def _mark(ops: npt.NDArray[np.void], before: int, after: int, width: int) -> None:
    """Marks the leading receives and trailing sends of each call as passing the NVSwitch."""
    if before == 0 and after == width:
        return
    rows = ops.reshape(-1, width)
    rows["flags"][:, :before] = INTRA
    rows["flags"][:, after:] = INTRA
    rows["conn"][:, after:] = CONN_NVSWITCH


def _switch(
    peers: list[int],
    shares: IntArray,
    heads: Sequence[int],
    kind: int,
    conn: int,
    wire: Format,
) -> npt.NDArray[np.void]:
    ops = np.zeros((len(shares), len(peers)), OP)
    if not peers:
        return ops.reshape(-1)
    columns = [list(heads).index(peer) for peer in peers]
    ops["nbytes"] = wire.messages(shares[:, columns])[..., 0]
    ops["call"] = np.arange(len(shares))[:, None]
    ops["peer"] = peers
    ops["kind"] = kind
    ops["flags"] = INTRA
    ops["steps"] = wire.steps
    ops["conn"] = conn
    return ops.reshape(-1)
