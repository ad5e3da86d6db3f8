"""Plans of several collectives in one NCCL group call (spec section 2.4, Groups).

From 2.22.3 collectives are sorted by traffic (bins of 25 %, largest first), gathered by
(function, operation, type), and neighbours within four times of the smallest share one choice
of algorithm. Until 2.21.5 they are sorted by function, type, operation and count, and all that
agree in the first three share one choice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from genie import checks
from genie.errors import InputError, UnsupportedCollectiveError
from genie.replay.nccl.choice import Choice, decide, model_bytes
from genie.replay.nccl.env import Nccl
from genie.replay.nccl.names import (
    ALL_GATHER,
    BROADCAST,
    DTYPE_CODE,
    OP_CODE,
    dtype_name,
    dtype_size,
    function_code,
    op_name,
)
from genie.replay.nccl.partition import (
    CELLS,
    Load,
    Parts,
    cdiv,
    plan_count,
    split,
    traffic_per_byte,
)
from genie.replay.nccl.versions import Switch

if TYPE_CHECKING:
    from genie.replay.cluster import Cluster

#: Whether broadcasts with different roots in one group are fused into one AllGatherV.
FUSES_BROADCASTS = Switch("AllGatherV fusion", {"2.20.5": False, "2.29.2": True})

#: Bytes of one collective's work descriptor, of a batch header, and of the arguments' header.
_WORK_BYTES = 96
_BATCH_BYTES = 16
_ARGS_HEADER = 32
_BATCH_LIMIT = 1024
_SORT_UNIT_LOG2 = 10
_SORT_MAX = 1 << 30


@dataclass(frozen=True)
class Task:
    """One collective of a group, as the caller gave it."""

    kind: str
    count: int
    dtype: str
    op: str = "sum"
    root: int = 0


@dataclass(frozen=True)
class Planned:
    """One collective in its plan.

    Attributes:
        index: its position in the group as given.
        task: what was given.
        count: elements of `choice.element_size` (bytes for all_gather and broadcast).
        choice: what it runs with, decided together with its neighbours.
        parts: rows of channel, count, chunk_bytes.
        plan: number of its kernel plan; plans run one after the other.
    """

    index: int
    task: Task
    count: int
    choice: Choice
    parts: Parts
    plan: int


@dataclass(frozen=True)
class _Item:
    index: int
    task: Task
    function: int
    dtype: str
    op: str
    count: int
    traffic: int
    nbytes: int

    @property
    def family(self) -> tuple[int, str, str]:
        return self.function, self.op, self.dtype


TaskLike = Task | Sequence[object]


def as_task(task: TaskLike) -> Task:
    """Return `task` as a `Task`: (kind, count, dtype[, op[, root]]) is taken too.

    Raises:
        InputError: neither of them.
    """
    if isinstance(task, Task):
        return task
    if not isinstance(task, tuple | list) or not 3 <= len(task) <= 5:
        raise InputError(
            "a collective of a group is (kind, count, dtype[, op[, root]]), not "
            f"{checks.short(task)}"
        )
    kind, count, dtype, *rest = task
    op = rest[0] if rest else "sum"
    root = rest[1] if len(rest) > 1 else 0
    return Task(
        checks.text("kind", kind),
        checks.whole("count", count, 0, 1 << 62),
        str(dtype),
        str(op),
        checks.whole("root", root, 0),
    )


def plan_group(tasks: Sequence[TaskLike], cluster: Cluster, nccl: Nccl) -> list[Planned]:
    """Return the collectives of one group in the order NCCL issues them.

    Args:
        tasks: `Task`s, or tuples (kind, count, dtype[, op[, root]]), in call order.
        cluster: with the environment applied.
        nccl: release, environment, choices.

    Returns:
        One entry a task that moves data, in plan order; tasks of count 0 are dropped, as NCCL
        drops them.

    Raises:
        UnsupportedCollectiveError: a function with no candidate left, or broadcasts with
            different roots, which NCCL 2.29.2 and later fuse into AllGatherV.
        InputError: a task that is none.
    """
    items = [
        _item(i, as_task(task), cluster) for i, task in enumerate(checks.listed("tasks", tasks))
    ]
    items = [item for item in items if item.count]
    _refuse_fusion(items, nccl)
    if CELLS.at(nccl.version) is None:
        ordered = _decide_by_sort(items, cluster, nccl)
    else:
        ordered = _decide_by_traffic(items, cluster, nccl)
    return [
        Planned(item.index, item.task, item.count, choice, parts, number)
        for number, plan in enumerate(_plans(ordered, cluster, nccl))
        for item, choice, parts in plan
    ]


def _item(index: int, task: Task, cluster: Cluster) -> _Item:
    function, dtype = function_code(task.kind), dtype_name(task.dtype)
    nbytes = model_bytes(function, task.count, dtype_size(dtype), cluster.n_ranks)
    count = plan_count(function, task.count, dtype)
    traffic = task.count * dtype_size(dtype) * traffic_per_byte(function, cluster.n_ranks)
    op = op_name(task.op)
    if function in (ALL_GATHER, BROADCAST):
        # Planned in bytes and reducing nothing, whatever the caller's type and operation.
        dtype, op = "int8", "sum"
    return _Item(index, task, function, dtype, op, count, traffic, nbytes)


def _refuse_fusion(items: Sequence[_Item], nccl: Nccl) -> None:
    roots = {item.task.root for item in items if item.function == BROADCAST}
    if (
        len(roots) > 1
        and FUSES_BROADCASTS.at(nccl.version)
        and nccl.get_int("NCCL_ALLGATHERV_ENABLE", 1)
    ):
        raise UnsupportedCollectiveError(
            f"{len(roots)} broadcasts with different roots in one group: NCCL "
            f"{nccl.version_text} fuses them into AllGatherV, whose schedule GENIE does not know "
            "(NCCL_ALLGATHERV_ENABLE=0 keeps them apart)",
            kind="broadcast",
            why="AllGatherV fusion",
        )


Decided = list[tuple[_Item, Choice]]


# --------------------------------------------------------------------------- 2.22.3 and later


def _bin(traffic: int) -> int:
    """Return the sort bin of `traffic`: four bins per power of two of KiB."""
    units = min(traffic, _SORT_MAX) >> _SORT_UNIT_LOG2
    log2 = max(units.bit_length() - 1, 0)
    if log2 < 2:
        return units
    return ((log2 - 1) << 2) | ((units >> (log2 - 2)) & 3)


def _decide_by_traffic(items: Sequence[_Item], cluster: Cluster, nccl: Nccl) -> Decided:
    # Largest bin first; inside a bin the last call comes first. Gathering by family then turns
    # each family round, so that it runs smallest first and in call order inside a bin.
    by_size = sorted(items, key=lambda item: (-_bin(item.traffic), -item.index))
    families: dict[tuple[int, str, str], list[_Item]] = {}
    for item in by_size:
        families.setdefault(item.family, []).insert(0, item)
    pipelined = cdiv(len(items), max(cluster.coll_channels, 1))
    decided: Decided = []
    for family in families.values():
        start = 0
        while start < len(family):
            end = start + 1
            while end < len(family) and family[end].traffic < 4 * family[start].traffic:
                end += 1
            decided += _together(family[start:end], cluster, nccl, pipelined)
            start = end
    return [pair for pair in decided if not _nvls(pair)] + [p for p in decided if _nvls(p)]


def _nvls(pair: tuple[_Item, Choice]) -> bool:
    return pair[1].algorithm in ("nvls", "nvls_tree")


def _together(items: Sequence[_Item], cluster: Cluster, nccl: Nccl, pipelined: int) -> Decided:
    """Decide `items` as one of their summed size."""
    first = items[0]
    choice = decide(
        first.function,
        sum(item.nbytes for item in items),
        first.dtype,
        first.op,
        cluster,
        nccl,
        pipelined,
    )
    return [(item, choice) for item in items]


def _decide_by_sort(items: Sequence[_Item], cluster: Cluster, nccl: Nccl) -> Decided:
    """Order by function, type, operation, count, highest first (2.20.3 to 2.21.5)."""
    ordered = sorted(
        items,
        key=lambda i: (-i.function, -DTYPE_CODE[i.dtype], -OP_CODE[i.op], -i.count),
    )
    decided: Decided = []
    start = 0
    while start < len(ordered):
        end = start
        while end < len(ordered) and ordered[end].family == ordered[start].family:
            end += 1
        # Operations that share a choice, by channel; golden data do not tell it from one.
        pipelined = cdiv(end - start, max(cluster.coll_channels, 1))
        decided += _together(ordered[start:end], cluster, nccl, pipelined)
        start = end
    return decided


# --------------------------------------------------------------------------- cutting into plans


def _plans(
    ordered: Decided, cluster: Cluster, nccl: Nccl
) -> Iterator[list[tuple[_Item, Choice, Parts]]]:
    """Split every collective, cutting the group where a plan is full.

    Source: spec section 2.4 for the two limits (4 KiB of kernel arguments, half the work FIFO);
    the sizes of descriptor, header and batch are those of NCCL 2.30 and not held to golden.
    Until 2.21.5 the FIFO holds 32 768 works a plan, which no group of a job reaches.
    """
    if CELLS.at(nccl.version) is None:
        if ordered:
            yield _split(ordered, cluster, nccl)
        return
    budget = _Budget(nccl)
    start = 0
    while start < len(ordered):
        # First an estimate, four collectives a batch: it sets the traffic that is shared out.
        end = start
        while end < len(ordered) and budget.fits(cdiv(end - start, 4), end - start + 1):
            end += 1
        plan = _split(ordered[start : max(end, start + 1)], cluster, nccl)
        kept = max(budget.prefix(plan), 1)
        yield plan[:kept]
        start += kept


def _split(pairs: Decided, cluster: Cluster, nccl: Nccl) -> list[tuple[_Item, Choice, Parts]]:
    loads = [Load(item.function, item.count, choice) for item, choice in pairs]
    rows = split(loads, cluster, nccl)
    return [(item, choice, parts) for (item, choice), parts in zip(pairs, rows, strict=True)]


class _Budget:
    """What one plan may hold."""

    def __init__(self, nccl: Nccl) -> None:
        self.arguments = min(nccl.get_int("NCCL_WORK_ARGS_BYTES", 4096), 4096) - _ARGS_HEADER
        self.fifo = nccl.get_int("NCCL_WORK_FIFO_BYTES", 1 << 20) // 2

    def fits(self, batches: int, works: int) -> bool:
        """Whether both fit the arguments, or the batches do and the works fit the FIFO."""
        headers, work = batches * _BATCH_BYTES, works * _WORK_BYTES
        return headers + work <= self.arguments or (headers <= self.arguments and work <= self.fifo)

    def prefix(self, plan: Sequence[tuple[_Item, Choice, Parts]]) -> int:
        """Return how many of `plan` fit: each needs room for a new batch on every channel."""
        batches = 0
        open_batches: dict[int, tuple[object, int, int]] = {}
        for position, (item, choice, parts) in enumerate(plan):
            if not self.fits(batches + len(parts), position + 1):
                return position
            kernel = (item.family, choice.algorithm, choice.protocol)
            for channel in parts["channel"].tolist():
                held = open_batches.get(channel)
                if (
                    held is None
                    or held[0] != kernel
                    or (held[1] + 1) * _WORK_BYTES > _BATCH_LIMIT
                    or position - held[2] > 63
                ):
                    batches += 1
                    held = (kernel, 0, position)
                open_batches[channel] = (kernel, held[1] + 1, held[2])
        return len(plan)
