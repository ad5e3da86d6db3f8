"""Which algorithm, protocol, channels and warps NCCL takes (spec section 2.2 and 2.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from genie.errors import InputError, ScheduleError, UnsupportedCollectiveError
from genie.replay.nccl.context import Context, context, type_reason
from genie.replay.nccl.env import Nccl
from genie.replay.nccl.given import Given
from genie.replay.nccl.model import Model
from genie.replay.nccl.names import (
    ALGORITHMS,
    ALL_GATHER,
    BROADCAST,
    FUNCTIONS,
    NVLS,
    NVLS_TREE,
    PAT,
    PROTOCOLS,
    REDUCE_SCATTER,
    RING,
    SIMPLE,
    TREE,
    dtype_name,
    dtype_size,
    function_code,
    op_name,
)
from genie.replay.nccl.versions import Switch

if TYPE_CHECKING:
    from genie.replay.cluster import Cluster

#: Threads after the choice: tree and PAT always take the most a kernel has.
TREE_THREADS = Switch("tree takes 640 threads", {"2.20.5": False, "2.22.3": True})
#: Whether the float8 types exist (and cost a ring much, over 8 ranks).
HAS_FLOAT8 = Switch("float8 types", {"2.20.5": False, "2.24.3": True})

_WARP = 32
_MAX_THREADS = 640


@dataclass(frozen=True)
class Choice:
    """What NCCL runs a collective with.

    Attributes:
        algorithm: "ring", "tree", "nvls", "nvls_tree" or "pat".
        protocol: "ll", "ll128" or "simple".
        channels: most channels it may use (a small one uses fewer: see its parts).
        warps: threads of a channel / 32.
        time_us: predicted time.
        element_size: bytes of the plan's elements: all_gather and broadcast count in bytes.
        nbytes: size in the cost model, bytes: whole buffer (times ranks for all_gather,
            reduce_scatter); of all collectives decided together in a group.
        source: "model", or the row of the user's choices that decided.
    """

    algorithm: str
    protocol: str
    channels: int
    warps: int
    time_us: float
    element_size: int
    nbytes: int = 0
    source: str = "model"

    @property
    def algorithm_code(self) -> int:
        """NCCL's number of the algorithm."""
        return ALGORITHMS.index(self.algorithm)

    @property
    def protocol_code(self) -> int:
        """NCCL's number of the protocol."""
        return PROTOCOLS.index(self.protocol)


def choose(
    kind: str,
    count: int,
    dtype: str,
    op: str,
    cluster: Cluster,
    nccl: Nccl,
) -> Choice:
    """Return the choice for one collective alone in its group.

    Args:
        kind: as the trace spells it: all_reduce, all_gather, reduce_scatter, broadcast, reduce,
            reduce_scatter_block, barrier (PyTorch's: an all_reduce of one element).
        count: as NCCL's call counts: per rank for all_gather and reduce_scatter.
        dtype: element type, such as "float32".
        op: reduction, such as "sum"; ignored where nothing is reduced.
        cluster: with the environment applied (`cluster.with_nccl(nccl)`).
        nccl: release, environment, choices.

    Raises:
        UnsupportedCollectiveError: the restrictions leave no choice, or the release has no
            such reduction.
        ScheduleError: a row of the user's choices asks for something that cannot run.
        InputError: unknown dtype or op, negative count.
    """
    found = context(cluster, nccl)
    key = (kind, count, dtype, op)
    choice = found.choices.get(key)
    if choice is None:
        function = function_code(kind)
        name = dtype_name(dtype)
        nbytes = model_bytes(function, count, dtype_size(name), cluster.n_ranks)
        choice = decide(function, nbytes, name, op_name(op), cluster, nccl)
        found.choices[key] = choice
    return choice


def model_bytes(function: int, count: int, size: int, ranks: int) -> int:
    """Return the bytes the cost model sees: count * size, times ranks where each has a part.

    Raises:
        InputError: negative count.
    """
    if count < 0:
        raise InputError(f"count is negative: {count}")
    # A NumPy integer would carry its own overflow and lacks bit_length.
    return int(count) * size * (ranks if function in (ALL_GATHER, REDUCE_SCATTER) else 1)


def element_size(function: int, dtype: str) -> int:
    """Return the bytes of the plan's elements: 1 where NCCL counts in bytes."""
    return 1 if function in (ALL_GATHER, BROADCAST) else dtype_size(dtype)


def decide(
    function: int,
    nbytes: int,
    dtype: str,
    op: str,
    cluster: Cluster,
    nccl: Nccl,
    pipelined: int = 1,
) -> Choice:
    """Return the choice for `nbytes` of the cost model and `pipelined` operations per channel."""
    size = element_size(function, dtype)
    if cluster.n_ranks == 1:
        # NCCL copies inside the GPU and starts no kernel with channels.
        return Choice("ring", "simple", 0, 0, 0.0, size, nbytes)
    found = context(cluster, nccl)
    check_types(function, dtype, op, cluster, nccl)
    prices = found.prices(function, cluster, nccl)
    times = prices.times_us(nbytes, dtype, cluster.n_ranks, pipelined)
    row = _given(function, nbytes, cluster, nccl, pipelined)
    if row is not None:
        algorithm, protocol = row.algorithm, row.protocol
        reason = found.model.reasons[function][algorithm][protocol] or type_reason(
            function, algorithm, dtype, op
        )
        if reason:
            raise ScheduleError(
                f"{row.where} asks for {ALGORITHMS[algorithm]} {PROTOCOLS[protocol]} for "
                f"{FUNCTIONS[function]}, which cannot run: {reason}"
            )
        time = float(times[prices.position[algorithm, protocol]])
    else:
        usable = found.usable(function, dtype, op, prices)
        if not usable:
            raise nothing_left(function, found, nccl, dtype, op)
        # The first of equals, as NCCL takes it.
        best = min(usable, key=times.__getitem__)
        time, (algorithm, protocol) = float(times[best]), prices.codes[best]
    channels, threads = shrink(found.model, algorithm, protocol, nbytes, cluster, nccl)
    if row is not None and row.channels > 0:
        channels = row.channels
    return Choice(
        ALGORITHMS[algorithm],
        PROTOCOLS[protocol],
        channels,
        threads // _WARP,
        time,
        size,
        nbytes,
        "model" if row is None else row.where,
    )


def nothing_left(
    function: int, found: Context, nccl: Nccl, dtype: str, op: str
) -> UnsupportedCollectiveError:
    """Return the error of a function that the restrictions leave without a choice."""
    name = FUNCTIONS[function]
    reasons = []
    for a, algorithm in enumerate(ALGORITHMS):
        for p, protocol in enumerate(PROTOCOLS):
            if found.model.entries[function][a][p] is not None:
                why = found.model.reasons[function][a][p] or type_reason(function, a, dtype, op)
                reasons.append(f"{algorithm} {protocol}: {why}")
    hint = ""
    if nccl.get("NCCL_ALGO") and ":" not in str(nccl.get("NCCL_ALGO")):
        hint = (
            "; releases before 2.24.3 kept ring for everything but all_reduce: write "
            f"NCCL_ALGO='allreduce:{nccl.get('NCCL_ALGO')}' for that"
        )
    return UnsupportedCollectiveError(
        f"NCCL {nccl.version_text} has no algorithm left for {name} ({'; '.join(reasons)}){hint}",
        kind=name,
        why="no candidate left",
    )


def check_types(function: int, dtype: str, op: str, cluster: Cluster, nccl: Nccl) -> None:
    """Refuse reductions NCCL itself refuses.

    Raises:
        UnsupportedCollectiveError: float8 on a release or GPU without it.
    """
    if dtype.startswith("float8") and function not in (ALL_GATHER, BROADCAST):
        why = ""
        if not HAS_FLOAT8.at(nccl.version):
            why = f"NCCL {nccl.version_text} has no float8 types (2.24.3 and later have)"
        elif cluster.sm < 90:
            why = f"float8 reductions need compute capability 90, not {cluster.sm}"
        if why:
            kind = FUNCTIONS[function]
            raise UnsupportedCollectiveError(f"{kind} of {dtype}: {why}", kind=kind, why=why)


def shrink(
    model: Model, algorithm: int, protocol: int, nbytes: int, cluster: Cluster, nccl: Nccl
) -> tuple[int, int]:
    """Return channels and threads after small sizes are given fewer (section 2.3)."""
    if algorithm in (NVLS, NVLS_TREE):
        return cluster.nvls_channels, _MAX_THREADS
    channels, threads = cluster.coll_channels, model.max_threads[algorithm][protocol]
    limit = model.thresholds[algorithm][protocol]
    if threads * limit > 0:
        # As stepping down one channel at a time, while the bytes do not fill them.
        channels = min(channels, max(nbytes // (threads * limit), 1))
    while nbytes < channels * threads * limit and threads % 128 == 0:
        threads //= 2
    if protocol == SIMPLE and algorithm == RING:
        threads += _WARP
    if protocol == SIMPLE and algorithm == TREE:
        threads += 4 * _WARP
    threads = max(threads, 3 * _WARP)
    if algorithm == PAT or (algorithm == TREE and TREE_THREADS.at(nccl.version)):
        threads = _MAX_THREADS
    return channels, threads


def _given(
    function: int, nbytes: int, cluster: Cluster, nccl: Nccl, pipelined: int
) -> Given | None:
    for row in nccl.choices:
        if row.fits(function, nbytes, cluster.n_hosts, cluster.n_ranks, pipelined):
            return row
    return None
