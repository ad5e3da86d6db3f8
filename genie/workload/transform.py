"""Trace sets made of trace sets: jobs side by side, fewer ranks, more steps, other sizes.

All work on any trace set that GENIE reads, not only generated ones. Names, sizes, groups, streams
and dependencies are kept; attributes that GENIE does not read are not.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np

from genie.errors import InputError
from genie.trace import DTYPE_BYTES, DTYPES, Builder, Coll, Kind, RankTrace, Trace, write

#: Collectives whose size is shared by the ranks of the group.
_SHARED = {Coll.REDUCE_SCATTER, Coll.ALL_TO_ALL, Coll.GATHER, Coll.SCATTER}


def merge(
    traces: Sequence[Trace],
    folder: str | os.PathLike[str],
    *,
    placement: Sequence[Sequence[int]] | None = None,
    name: str = "merged",
) -> Path:
    """Write several jobs as one set on one cluster, and return the folder.

    Groups are called `job0.NAME`; a job's world becomes its group `job0.world`.

    Args:
        traces: The jobs.
        folder: Where to.
        placement: For each job the ranks of the merged set its ranks become; one job after the
            other by default. Together they must be 0 to n - 1.
        name: Prefix of the files.

    Raises:
        InputError: The placement does not fit the jobs.
        TraceError: A job cannot be replayed by itself.
    """
    if not traces:
        raise InputError("nothing to merge")
    for trace in traces:
        trace.check()
    total = sum(trace.world_size for trace in traces)
    if placement is None:
        ends = np.cumsum([0, *(trace.world_size for trace in traces)]).tolist()
        placement = [range(a, b) for a, b in pairwise(ends)]
    if [len(ranks) for ranks in placement] != [trace.world_size for trace in traces]:
        raise InputError(
            f"placement has {[len(r) for r in placement]} ranks for jobs of "
            f"{[t.world_size for t in traces]}"
        )
    if sorted(rank for ranks in placement for rank in ranks) != list(range(total)):
        raise InputError(f"placement must use each of the ranks 0 to {total - 1} once")
    groups: dict[str, tuple[int, ...]] = {}
    where: dict[int, tuple[int, int]] = {}
    for job, (trace, ranks) in enumerate(zip(traces, placement, strict=True)):
        where |= {new: (job, old) for old, new in enumerate(ranks)}
        groups[f"job{job}.world"] = tuple(ranks)
        for group, members in trace.groups.items():
            groups[f"job{job}.{group}"] = tuple(ranks[member] for member in members)

    def builders() -> Iterator[Builder]:
        for new in range(total):
            job, old = where[new]
            made = Builder()
            ranks = placement[job]
            _copy(
                made, traces[job], old, [],
                group=partial(_job_group, job),
                peer=ranks.__getitem__,
            )  # fmt: skip
            yield made

    return write(folder, name, builders(), groups=groups)


def repeat(trace: Trace, folder: str | os.PathLike[str], steps: int, *, name: str = "job") -> Path:
    """Write a set that runs `steps` times, a rank's next step after its last; return the folder.

    Raises:
        InputError: `steps` is below 1.
        TraceError: The set cannot be replayed.
    """
    if steps < 1:
        raise InputError(f"steps must be at least 1, not {steps}")
    trace.check()

    def builders() -> Iterator[Builder]:
        for rank in range(trace.world_size):
            made, ends = Builder(), list[int]()
            for step in range(steps):
                ends = _copy(made, trace, rank, ends, prefix=f"it{step}." if steps > 1 else "")
            yield made

    return write(folder, name, builders(), groups=trace.groups)


def take(
    trace: Trace, folder: str | os.PathLike[str], ranks: Sequence[int], *, name: str = "job"
) -> Path:
    """Write only some ranks of a set, such as one of its data-parallel replicas; return the folder.

    Groups shrink to the ranks kept, in their order; collectives of groups of one vanish. The data
    of a collective stays whole: one rank's part of an all_gather grows by n / n', rounded up to
    elements, and the input of a reduce_scatter or all_to_all stays but for rounding to whole
    elements a rank.

    Raises:
        InputError: A rank is not there or given twice, or what is kept sends to what is not, or
            shares an uneven all_to_all or a root with it.
        TraceError: The set cannot be replayed.
    """
    trace.check()
    kept = [int(rank) for rank in ranks]
    if len(set(kept)) != len(kept) or not all(0 <= rank < trace.world_size for rank in kept):
        raise InputError(f"ranks must be different ones of 0 to {trace.world_size - 1}")
    if not kept:
        raise InputError("no ranks to take")
    now = {old: new for new, old in enumerate(kept)}
    groups = {
        group: tuple(now[member] for member in members if member in now)
        for group, members in trace.groups.items()
    }

    def builders() -> Iterator[Builder]:
        for old in kept:
            made = Builder()
            _copy(
                made, trace, old, [], size=lambda one, i: _shrunk(trace, one, i, now),
                peer=partial(_kept_peer, now, old),
            )  # fmt: skip
            yield made

    # Nothing is written before everything is known to fit.
    made = list(builders())
    return write(folder, name, made, groups={g: m for g, m in groups.items() if m})


def scale(
    trace: Trace,
    folder: str | os.PathLike[str],
    *,
    nbytes: float = 1.0,
    compute: float = 1.0,
    name: str = "job",
) -> Path:
    """Write a set with other message sizes or compute times; return the folder.

    Sizes are multiplied and rounded down to whole elements (of every rank, where the ranks share
    them), to one element at least where there was one; durations are rounded to ns.

    Raises:
        InputError: A factor is not above 0.
        TraceError: The set cannot be replayed.
    """
    if not (0 < nbytes < float("inf") and 0 < compute < float("inf")):
        raise InputError(f"factors must be above 0, not {nbytes} and {compute}")
    trace.check()

    def builders() -> Iterator[Builder]:
        for rank in range(trace.world_size):
            made = Builder()
            _copy(
                made, trace, rank, [], size=lambda one, i: _scaled(trace, one, i, nbytes),
                compute=compute, split=nbytes,
            )  # fmt: skip
            yield made

    return write(folder, name, builders(), groups=trace.groups)


def _job_group(job: int, name: str) -> str:
    return f"job{job}.{name or 'world'}"


def _element(one: RankTrace, i: int) -> int:
    # The element type's bytes; by the rule of a trace without one, float32 if that fits.
    if one.dtype[i] >= 0:
        return int(DTYPE_BYTES[one.dtype[i]])
    return 4 if one.nbytes[i] % 4 == 0 else 1


def _scaled(trace: Trace, one: RankTrace, i: int, factor: float) -> int | None:
    nbytes = int(one.nbytes[i])
    if nbytes <= 0:
        return nbytes
    unit = _element(one, i)
    if one.kind[i] == Kind.COMM_COLL and one.coll[i] in _SHARED:
        members = trace.members(int(one.group[i]))
        unit *= len(members) if members else 1
    return max(unit, int(nbytes * factor) // unit * unit)


def _shrunk(trace: Trace, one: RankTrace, i: int, now: Mapping[int, int]) -> int | None:
    # The size of a collective among the ranks kept; None if it vanishes.
    nbytes = int(one.nbytes[i])
    if one.kind[i] != Kind.COMM_COLL:
        return nbytes
    members = trace.members(int(one.group[i])) or ()
    left = sum(member in now for member in members)
    if left == 1:
        return None
    if left == len(members):
        return nbytes
    coll, element = Coll(int(one.coll[i])), _element(one, i)
    if one.splits[i] >= 0:
        raise InputError(f"rank {one.rank}: {one.describe(i)} is uneven: keep all of its ranks")
    if coll in {Coll.BROADCAST, Coll.REDUCE, Coll.GATHER, Coll.SCATTER}:
        raise InputError(f"rank {one.rank}: {one.describe(i)} has a root: keep all of its ranks")
    if coll == Coll.ALL_GATHER:
        return -(-nbytes * len(members) // (left * element)) * element
    if coll in _SHARED:
        return max(1, nbytes // (left * element)) * left * element if nbytes else 0
    return nbytes


def _kept_peer(now: Mapping[int, int], rank: int, peer: int) -> int:
    if peer not in now:
        raise InputError(f"rank {rank} talks to rank {peer}, which is not kept")
    return now[peer]


def _copy(
    made: Builder,
    trace: Trace,
    rank: int,
    after: list[int],
    *,
    prefix: str = "",
    group: Callable[[str], str] = lambda name: name,
    peer: Callable[[int], int] = lambda rank: rank,
    size: Callable[[RankTrace, int], int | None] | None = None,
    compute: float = 1.0,
    split: float = 1.0,
) -> list[int]:
    """Append a rank's nodes in issue order; return the ends. What has no parent waits for `after`.

    A node whose size becomes None is left out; its children wait for its parents.
    """
    one = trace.ranks[rank]
    new: dict[int, list[int]] = {}
    parents: set[int] = set()
    added: list[int] = []
    for i in trace.issue_order(rank).tolist():
        kind = Kind(int(one.kind[i]))
        above = one.deps[one.dep_indptr[i] : one.dep_indptr[i + 1]].tolist()
        deps = sorted({node for parent in above for node in new[parent]}) or list(after)
        nbytes = int(one.nbytes[i])
        talks = kind in {Kind.COMM_SEND, Kind.COMM_RECV, Kind.COMM_COLL}
        if talks and size is not None:
            changed = size(one, i)
            if changed is None:
                new[i] = deps
                continue
            nbytes = changed
        splits = None
        if one.splits[i] >= 0:
            unit = _element(one, i)
            splits = tuple(
                [int(n * split) // unit * unit for n in part.tolist()]
                if split != 1
                else part.tolist()
                for part in one.split_lists[int(one.splits[i])]
            )
            nbytes = sum(splits[0])
        duration = int(one.duration_ns[i])
        name = trace.group_names[one.group[i]] if one.group[i] >= 0 else ""
        node = made.node(
            kind,
            prefix + one.name(i),
            deps=deps,
            duration_ns=None if duration < 0 else round(duration * compute),
            coll=Coll(int(one.coll[i])) if kind == Kind.COMM_COLL else None,
            nbytes=nbytes if talks and nbytes >= 0 else None,
            group=(group(name) or None) if talks else None,
            peer=peer(int(one.peer[i])) if kind in {Kind.COMM_SEND, Kind.COMM_RECV} else None,
            tag=int(one.tag[i]) or None,
            root=int(one.root[i]) or None,
            stream=None if one.stream[i] < 0 else int(one.stream[i]),
            thread=None if one.thread[i] < 0 else int(one.thread[i]),
            dtype=None if one.dtype[i] < 0 or not talks else DTYPES[one.dtype[i]],
            splits=splits,  # type: ignore[arg-type]
            num_ops=None if one.num_ops[i] < 0 else int(one.num_ops[i]),
            tensor_size=None if one.tensor_size[i] < 0 else int(one.tensor_size[i]),
            is_cpu=True if one.is_cpu[i] else None,
        )
        new[i] = [node]
        added.append(node)
        parents.update(deps)
    return [node for node in added if node not in parents] or list(after)
