"""One rank's program of one collective: parts and neighbours in, streams of operations out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from genie.errors import UnsupportedCollectiveError
from genie.replay.nccl.pat import pat_ops
from genie.replay.nccl.program import INTRA, Block
from genie.replay.nccl.ring import pipeline, ring_ops
from genie.replay.nccl.sizes import BUFFER_BYTES, Format, wire_format
from genie.replay.nccl.tree import (
    NVLS_DOWN,
    NVLS_UP,
    nvls_shares,
    nvls_tree_blocks,
    tree_blocks,
    tree_down_group,
)
from genie.replay.nccl.versions import Switch, Version

if TYPE_CHECKING:
    from genie.replay.cluster import Cluster

PAT_PADDED: Switch[bool] = Switch(
    "PAT reduce_scatter messages keep room for absent ranks", {"2.23.4": False, "2.26.2": True}
)

#: The collective that NCCL runs for a kind of the trace.
CALLED_AS = {"reduce_scatter_block": "reduce_scatter", "barrier": "all_reduce"}


@dataclass(frozen=True)
class Shape:
    """What all ranks of a collective share, besides its parts.

    Attributes:
        kind: the collective NCCL runs (`CALLED_AS` applied).
        algorithm: "ring", "tree", "nvls", "nvls_tree" or "pat".
        root: root rank of broadcast and reduce.
        wire: format of the messages.
        last_align: elements to which the last loop rounds its chunk up.
        padded: see `pat.walk`.
    """

    kind: str
    algorithm: str
    root: int
    wire: Format
    last_align: int
    padded: bool = True

    @property
    def element_size(self) -> int:
        """Bytes per element of the plan."""
        return self.wire.element_size

    def as_data(self) -> Shape:
        """The same collective with one message a call that counts data, not wire bytes."""
        plain = Format("simple", self.element_size, 1, self.wire.step_bytes)
        return Shape(self.kind, self.algorithm, self.root, plain, self.last_align, self.padded)


def make_shape(
    kind: str,
    algorithm: str,
    protocol: str,
    element_size: int,
    last_align: int,
    root: int,
    version: Version,
    buffer_bytes: dict[str, int] | None = None,
) -> Shape:
    """The shape of a collective.

    Args:
        kind: the collective, as the trace spells it.
        algorithm: chosen algorithm.
        protocol: chosen protocol.
        element_size: bytes per element of the plan.
        last_align: elements to which the last loop rounds its chunk up
            (`chunk.last_loop_alignment`).
        root: root rank of broadcast and reduce.
        version: NCCL release.
        buffer_bytes: connection buffers by protocol; NCCL's defaults if not given.
    """
    kind = CALLED_AS.get(kind, kind)
    buffers = BUFFER_BYTES if buffer_bytes is None else buffer_bytes
    wire = wire_format(algorithm, protocol, kind, element_size, buffers[protocol])
    return Shape(kind, algorithm, root, wire, last_align, PAT_PADDED.at(version))


def rank_blocks(
    shape: Shape,
    parts: npt.NDArray[np.void],
    rank: int,
    cluster: Cluster,
) -> Iterator[Block]:
    """The streams of one rank, one part (channel) after the other.

    Args:
        shape: the collective.
        parts: rows channel, count, chunk_bytes.
        rank: the rank.
        cluster: rings, trees and hosts, with the environment applied.
    """
    host = np.asarray(cluster.host_of)
    for channel, count, chunk_bytes in parts.tolist():
        chunk = chunk_bytes // shape.element_size
        made = _channel(shape, channel, count, chunk, rank, cluster, host)
        for block in made:
            if len(block.ops):
                local = host[block.ops["peer"]] == host[rank]
                block.ops["flags"] |= (INTRA * local).astype(np.uint8)
                yield block


def _channel(
    shape: Shape,
    channel: int,
    count: int,
    chunk: int,
    rank: int,
    cluster: Cluster,
    host: npt.NDArray[np.integer],
) -> list[Block]:
    size = cluster.n_ranks
    if shape.algorithm == "ring":
        at = cluster.channels[channel]
        prev, following = at.ring_prev(rank), at.ring_next(rank)
        ops = ring_ops(
            shape.kind,
            index=at.ring_position(rank),
            size=size,
            prev=prev,
            following=following,
            root_index=at.ring_position(shape.root),
            count=count,
            chunk=chunk,
            last_align=shape.last_align,
            wire=shape.wire,
        )
        return [Block(channel, 0, ops)]
    if shape.algorithm == "tree":
        at = cluster.channels[channel]
        up, down = at.tree_up[rank], at.tree_down[rank]
        return tree_blocks(channel, up, down, count, chunk, shape.wire)
    if shape.algorithm == "pat":
        ops = pat_ops(
            shape.kind,
            rank=rank,
            size=size,
            count=count,
            chunk=chunk,
            element_size=shape.element_size,
            padded=shape.padded,
        )
        return [Block(channel, 0, ops)]
    if shape.algorithm == "nvls_tree" or (shape.algorithm == "nvls" and shape.kind == "all_reduce"):
        return _nvls(shape, channel, count, chunk, rank, cluster, host)
    if shape.algorithm == "nvls" and cluster.n_hosts == 1:
        # Through the NVSwitch every rank reaches all others at once; nothing leaves the host.
        peers = [peer for peer in range(size) if peer != rank]
        sizes = np.full(-(-count // chunk), chunk, np.int64)
        sizes[-1:] = count - (len(sizes) - 1) * chunk
        return [
            Block(channel, 0, pipeline([], peers, sizes, shape.wire)),
            Block(channel, 1, pipeline(peers, [], sizes, shape.wire)),
        ]
    raise UnsupportedCollectiveError(
        f"{shape.kind} with algorithm {shape.algorithm} cannot be laid out as messages "
        "(known: ring, tree, nvls_tree, pat; nvls on one host)",
        kind=shape.kind,
        why=f"algorithm {shape.algorithm}",
    )


def _nvls(
    shape: Shape,
    channel: int,
    count: int,
    chunk: int,
    rank: int,
    cluster: Cluster,
    host: npt.NDArray[np.integer],
) -> list[Block]:
    local = np.flatnonzero(host == host[rank]).tolist()
    heads, up, down = local, -1, []
    trees = cluster.nvls_trees
    if trees is not None:
        tree = trees[channel % 2]
        heads = tree.heads[int(host[rank])].tolist()
        if rank in heads and shape.algorithm == "nvls_tree":
            up, down = tree.up[rank], tree.down[rank]
    shares = nvls_shares(count, chunk, len(heads), shape.last_align)
    return nvls_tree_blocks(
        channel,
        rank,
        heads,
        local,
        up,
        down,
        shares,
        shape.wire,
    )


def sender_group(shape: Shape, cluster: Cluster, group: int, channel: int, peer: int) -> int:
    """Thread group in which `peer` sends what this rank receives in `group`.

    A parent that is its tree's root sends down from the group it reduces in.
    """
    if shape.algorithm == "tree" and group == tree_down_group(shape.wire.protocol):
        return 0 if cluster.channels[channel].tree_up[peer] < 0 else group
    trees = cluster.nvls_trees if shape.algorithm == "nvls_tree" else None
    if trees is not None and group == NVLS_DOWN:
        return NVLS_UP if trees[channel % 2].up[peer] < 0 else group
    return group
