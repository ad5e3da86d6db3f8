"""Chunk size of a channel's part, its FIFO steps, and the last loop (spec section 2.5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from genie.replay.nccl.choice import Choice
from genie.replay.nccl.env import Nccl
from genie.replay.nccl.model import log2_floor
from genie.replay.nccl.names import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER
from genie.replay.nccl.versions import Switch

if TYPE_CHECKING:
    from genie.replay.cluster import Cluster

#: Slots of a connection's FIFO.
FIFO_STEPS = 8

#: Bytes that chunk sizes are multiples of, by protocol; None: no rounding.
GRAIN: Switch[dict[str, int] | None] = Switch(
    "chunk grain", {"2.20.5": None, "2.22.3": {"ll": 16, "ll128": 1920, "simple": 512}}
)
#: Whether the size rules look at one channel's part (before: at the whole collective).
BY_PART = Switch("chunk rules look at one channel's part", {"2.20.5": False, "2.22.3": True})

_NVLS_STEPS = ((32, 262144), (16, 131072), (4, 65536), (1, 32768))


def step_bytes(protocol: str, cluster: Cluster) -> int:
    """Return the bytes of data one FIFO slot carries."""
    slot = cluster.buffer_bytes[protocol] // FIFO_STEPS
    if protocol == "ll":
        return slot // 2
    return slot * 120 // 128 if protocol == "ll128" else slot


def chunk_steps(function: int, choice: Choice) -> tuple[int, int]:
    """Return (FIFO steps of a chunk, of a slice)."""
    if (
        choice.algorithm == "ring"
        and choice.protocol == "simple"
        and function in (ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER)
    ):
        return 4, 2
    return 1, 1


def part_bytes(function: int, choice: Choice, count: int, cluster: Cluster) -> int:
    """Return the bytes of a part over all ranks' blocks."""
    ranks = cluster.n_ranks if function in (ALL_GATHER, REDUCE_SCATTER) else 1
    return count * choice.element_size * ranks


def nvls_heads(cluster: Cluster) -> int:
    """Return how many local GPUs are heads of NVLS trees."""
    graph = cluster.graphs.get("nvls")
    return 0 if graph is None else graph.n_channels


def chunk_bytes(
    function: int,
    choice: Choice,
    count: int,
    cluster: Cluster,
    nccl: Nccl,
    whole: tuple[int, int, int] | None = None,
) -> int:
    """Return the chunk size of a part of `count` elements, in bytes.

    Args:
        function: NCCL's function code.
        choice: what the collective runs with.
        count: elements of the part (of the whole collective with `whole`).
        cluster: with the environment applied.
        nccl: release and environment.
        whole: until 2.21.5 the rules look at the group: bytes of the plan, bytes of this
            collective, channels usable.
    """
    size = choice.element_size
    nbytes = part_bytes(function, choice, count, cluster)
    channels = 1
    if whole is not None:
        plan, own, usable = whole
        nbytes, channels = choice.nbytes, max(-(-own * usable // max(plan, 1)), 1)
    chunk = step_bytes(choice.protocol, cluster) * chunk_steps(function, choice)[0]
    if choice.algorithm == "tree" and choice.protocol == "ll128":
        ppn = np.float32(cluster.n_ranks) / np.float32(cluster.n_hosts)
        steps = np.float32(1 + log2_floor(cluster.n_hosts) + 0.1 * float(ppn))
        for factor, least in ((64, 131072), (16, 32768)):
            limit = float(steps * np.float32(factor) / ppn)
            while nbytes // (channels * chunk) < limit and chunk > least:
                chunk //= 2
    elif choice.algorithm == "pat":
        concurrent = 32 if function == ALL_GATHER else 16
        while chunk * concurrent > nbytes and chunk > 65536:
            chunk //= 2
    elif choice.algorithm in ("nvls", "nvls_tree"):
        chunk = cluster.nvls_chunk_bytes
        if choice.algorithm == "nvls_tree":
            chunk = min(chunk, cluster.nvls_tree_max_chunk_bytes)
        heads = nvls_heads(cluster)
        for many, least in _NVLS_STEPS:
            if nbytes < many * channels * heads * chunk and chunk > least:
                chunk = least
    grain = GRAIN.at(nccl.version)
    if grain is None:
        return chunk // size * size
    return chunk // grain[choice.protocol] * grain[choice.protocol]


def last_loop_alignment(choice: Choice, nccl: Nccl) -> int:
    """Return the elements that chunks of a part's last loop are rounded up to."""
    size = choice.element_size
    if GRAIN.at(nccl.version) is not None:
        return 16 // size
    if choice.protocol == "simple":
        return 4096 // size
    if choice.protocol == "ll128":
        return 480 // size * choice.warps
    return 8 // size * choice.warps * 32


def blocks_per_loop(function: int, choice: Choice, cluster: Cluster) -> int:
    """Return how many chunks one loop over a part covers."""
    if choice.algorithm == "ring" and function in (ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER):
        return cluster.n_ranks
    return nvls_heads(cluster) if choice.algorithm in ("nvls", "nvls_tree") else 1


def last_chunk_bytes(
    function: int, choice: Choice, count: int, chunk: int, cluster: Cluster, nccl: Nccl
) -> int:
    """Return the chunk size of the last loop of a part, in bytes.

    Only ring all_reduce and NVLS trees shrink it, to what is left, rounded up; 0 where the
    loops come out even, so that there is no shorter one.
    """
    size = choice.element_size
    shrinks = (choice.algorithm == "ring" and function == ALL_REDUCE) or (
        choice.algorithm == "nvls_tree"
    )
    if not shrinks or count == 0:
        return chunk
    blocks = blocks_per_loop(function, choice, cluster)
    rest = count % (chunk // size * blocks)
    align = last_loop_alignment(choice, nccl)
    each = -(-rest // blocks)
    return -(-each // align) * align * size


def fifo_steps(function: int, choice: Choice, count: int, chunk: int, cluster: Cluster) -> int:
    """Return the FIFO steps a part takes on one connection, as sender and receiver post them."""
    ranks = cluster.n_ranks
    blocks = blocks_per_loop(function, choice, cluster)
    nbytes = part_bytes(function, choice, count, cluster)
    loops = -(-nbytes // (chunk * blocks))
    per_loop = 1
    if choice.algorithm == "ring" and function == ALL_REDUCE:
        per_loop = 2 * (ranks - 1)
    elif choice.algorithm == "ring" and function in (ALL_GATHER, REDUCE_SCATTER):
        per_loop = ranks - 1
    return per_loop * loops * chunk_steps(function, choice)[0]
