"""What the ranks of a set must agree on: collectives of a group, sends and receives."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from genie.errors import TraceError
from genie.trace.kinds import DTYPES, Coll, Kind
from genie.trace.model import Order, RankTrace, Trace

Found = list[tuple[Order, TraceError]]
_MOST = 20
_FLOAT32, _INT8 = DTYPES.index("float32"), DTYPES.index("int8")


def group_text(trace: Trace, group: int) -> str:
    """Return how a message names a group."""
    return "the world" if group < 0 else f"group {trace.group_names[group]!r}"


def collective_text(rank: RankTrace, i: int) -> str:
    """Return "all_reduce of 1024 bytes (node 3, NAME)" of the node at position `i`."""
    coll, nbytes = int(rank.coll[i]), int(rank.nbytes[i])
    kind = Coll(coll).name.lower() if coll >= 0 else "collective without comm_type"
    size = f" of {nbytes} bytes" if nbytes >= 0 else ""
    root = f" with root {int(rank.root[i])}" if rank.root[i] else ""
    return f"{kind}{size}{root} (node {int(rank.id[i])}, {rank.name(i)})"


def whole_order(rank: RankTrace) -> npt.NDArray[np.int64]:
    """Return the issue order, followed by the nodes that a cycle keeps from starting.

    So a rank with a cycle is still compared with the others.
    """
    order = rank.order
    if len(order) == rank.n:
        return order
    held = np.ones(rank.n, np.bool_)
    held[order] = False
    left = np.flatnonzero(held)
    return np.concatenate([order, left[np.argsort(rank.id[left], kind="stable")]])


def sequences(trace: Trace) -> dict[int, dict[int, npt.NDArray[np.int64]]]:
    """Return for each group and rank the positions of its collectives in issue order."""
    found: dict[int, dict[int, npt.NDArray[np.int64]]] = {}
    for rank in trace.ranks:
        order = whole_order(rank)
        nodes = order[rank.kind[order] == Kind.COMM_COLL]
        if not len(nodes):
            continue
        groups = rank.group[nodes]
        by_group = np.argsort(groups, kind="stable")
        nodes, groups = nodes[by_group], groups[by_group]
        starts = np.flatnonzero(np.diff(groups, prepend=np.int32(-2)))
        for start, end in zip(starts, [*starts[1:], len(nodes)], strict=True):
            found.setdefault(int(groups[start]), {})[rank.rank] = nodes[start:end]
    return found


def _keys(rank: RankTrace, nodes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    # What must be equal: kind, size (not of an uneven all_to_all), root, element type.
    nbytes = np.where(rank.splits[nodes] >= 0, -2, rank.nbytes[nodes])
    dtype = rank.dtype[nodes].astype(np.int64)
    dtype = np.where(dtype < 0, np.where(nbytes % 4 == 0, _FLOAT32, _INT8), dtype)
    dtype = np.where(nbytes < 0, -1, dtype)
    return np.stack([rank.coll[nodes].astype(np.int64), nbytes, rank.root[nodes], dtype], axis=1)


def collectives(trace: Trace) -> Found:
    """Return the first difference between the collectives of each group's ranks."""
    found: Found = []
    nothing = np.zeros(0, np.int64)
    for group, by_rank in sorted(sequences(trace).items()):
        members = trace.members(group)
        if members is None:
            continue
        present = [r for r in members if r < trace.world_size and not trace.ranks[r].missing]
        if len(present) < 2:
            continue
        first = trace.ranks[present[0]]
        nodes = by_rank.get(first.rank, nothing)
        keys = _keys(first, nodes)
        differing: list[tuple[int, RankTrace, npt.NDArray[np.int64]]] = []
        for number in present[1:]:
            rank = trace.ranks[number]
            others = by_rank.get(number, nothing)
            at = _first_difference(keys, _keys(rank, others))
            if at >= 0:
                differing.append((at, rank, others))
            elif (error := _splits_differ(trace, group, first, nodes, rank, others)) is not None:
                found.append((Order.MATCH, error))
        if differing:
            at, rank, others = min(differing, key=lambda entry: entry[0])
            found.append(
                (
                    Order.MATCH,
                    _difference(trace, group, at, (first, nodes), (rank, others), len(differing)),
                )
            )
        else:
            found += _pairs(trace, group, members, by_rank)
    return found


def _first_difference(a: npt.NDArray[np.int64], b: npt.NDArray[np.int64]) -> int:
    shared = min(len(a), len(b))
    differs = np.flatnonzero((a[:shared] != b[:shared]).any(axis=1))
    if len(differs):
        return int(differs[0])
    return -1 if len(a) == len(b) else shared


def _difference(
    trace: Trace,
    group: int,
    at: int,
    one: tuple[RankTrace, npt.NDArray[np.int64]],
    other: tuple[RankTrace, npt.NDArray[np.int64]],
    differing: int,
) -> TraceError:
    told, nodes = [], []
    for rank, positions in (one, other):
        if at < len(positions):
            i = int(positions[at])
            told.append(f"rank {rank.rank} has {collective_text(rank, i)}")
            nodes.append(int(rank.id[i]))
        else:
            told.append(f"rank {rank.rank} has only {len(positions)} collectives")
    counts = f"{len(one[1])} and {len(other[1])} in all"
    more = f"; {differing - 1} more ranks differ" if differing > 1 else ""
    text = (
        f"{trace.path}: collective {at + 1} of {group_text(trace, group)} differs: "
        f"{told[0]}, {told[1]} ({counts}){more}"
    )
    return TraceError(
        text,
        path=trace.path,
        rank=other[0].rank,
        node=nodes[-1],
        ranks=[one[0].rank, other[0].rank],
    )


def _splits_differ(
    trace: Trace,
    group: int,
    first: RankTrace,
    nodes: npt.NDArray[np.int64],
    rank: RankTrace,
    others: npt.NDArray[np.int64],
) -> TraceError | None:
    # Keys of uneven all_to_alls are equal whatever their sizes, but not those of even ones.
    one, other = first.splits[nodes] >= 0, rank.splits[others] >= 0
    differs = np.flatnonzero(one != other)
    if not len(differs):
        return None
    return _difference(trace, group, int(differs[0]), (first, nodes), (rank, others), 1)


def _pairs(
    trace: Trace,
    group: int,
    members: tuple[int, ...],
    by_rank: dict[int, npt.NDArray[np.int64]],
) -> Found:
    # In every uneven all_to_all, what i sends j is what j expects of i.
    lead = trace.ranks[members[0]]
    if any(r >= trace.world_size or trace.ranks[r].missing for r in members):
        return []
    found: Found = []
    for k in np.flatnonzero(lead.splits[by_rank[lead.rank]] >= 0).tolist():
        nodes = [int(by_rank[r][k]) for r in members]
        pairs = [
            trace.ranks[r].split_lists[trace.ranks[r].splits[i]]
            for r, i in zip(members, nodes, strict=True)
        ]
        if any(len(s) != len(members) or len(r) != len(members) for s, r in pairs):
            continue
        sent = np.stack([s for s, _ in pairs])
        expected = np.stack([r for _, r in pairs]).T
        wrong = np.argwhere(sent != expected)
        if len(wrong):
            i, j = wrong[0].tolist()
            a, b = members[i], members[j]
            text = (
                f"{trace.path}: all_to_all {k + 1} of {group_text(trace, group)}: rank {a} sends "
                f"{int(sent[i, j])} bytes to rank {b} (node {int(trace.ranks[a].id[nodes[i]])}), "
                f"which expects {int(expected[i, j])} (node "
                f"{int(trace.ranks[b].id[nodes[j]])}); {len(wrong)} pairs differ"
            )
            node = int(trace.ranks[a].id[nodes[i]])
            error = TraceError(text, path=trace.path, rank=a, node=node, ranks=[a, b])
            found.append((Order.MATCH, error))
    return found


_ENDS = np.dtype(
    [
        ("group", "i8"),
        ("src", "i8"),
        ("dst", "i8"),
        ("tag", "i8"),
        ("nbytes", "i8"),
        ("rank", "i8"),
        ("node", "i8"),
    ]
)


def _ends(trace: Trace, kind: Kind) -> npt.NDArray[np.void]:
    # Sends or receives of all ranks, by (group, src, dst, tag), each rank's in issue order.
    parts = []
    for rank in trace.ranks:
        order = whole_order(rank)
        nodes = order[(rank.kind[order] == kind) & (rank.peer[order] >= 0)]
        part = np.empty(len(nodes), _ENDS)
        mine, peer = ("src", "dst") if kind == Kind.COMM_SEND else ("dst", "src")
        part[mine] = rank.rank
        part[peer] = rank.peer[nodes]
        part["group"] = rank.group[nodes]
        part["tag"] = rank.tag[nodes]
        part["nbytes"] = rank.nbytes[nodes]
        part["rank"] = rank.rank
        part["node"] = nodes
        parts.append(part)
    ends = np.concatenate(parts)
    by_key = np.lexsort((ends["tag"], ends["dst"], ends["src"], ends["group"]))
    return ends[by_key]


def _count(ends: npt.NDArray[np.void]) -> npt.NDArray[np.int64]:
    # How many of the same key stand before each entry.
    if not len(ends):
        return np.zeros(0, np.int64)
    new = np.ones(len(ends), np.bool_)
    new[1:] = False
    for field in ("group", "src", "dst", "tag"):
        new[1:] |= ends[field][1:] != ends[field][:-1]
    starts = np.flatnonzero(new)
    return np.arange(len(ends)) - np.repeat(starts, np.diff(np.append(starts, len(ends))))


Matched = tuple[
    npt.NDArray[np.void], npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]
]


def _matched(trace: Trace) -> Matched:
    # Both ends of all transfers by key and number; which end, its number, and where the first
    # end of every pair stands (its second follows).
    sends, receives = _ends(trace, Kind.COMM_SEND), _ends(trace, Kind.COMM_RECV)
    both = np.concatenate([sends, receives])
    which = np.repeat([0, 1], [len(sends), len(receives)])
    nth = np.concatenate([_count(sends), _count(receives)])
    order = np.lexsort((which, nth, both["tag"], both["dst"], both["src"], both["group"]))
    both, which, nth = both[order], which[order], nth[order]
    same = (nth[1:] == nth[:-1]) & (which[1:] == 1) & (which[:-1] == 0)
    for field in ("group", "src", "dst", "tag"):
        same &= both[field][1:] == both[field][:-1]
    return both, which, nth, np.flatnonzero(same)


def pairs(
    trace: Trace, starts: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the send and the receive of every pair, numbered over all ranks by `starts`."""
    both, _, _, first = _matched(trace)
    numbers = starts[both["rank"]] + both["node"]
    return numbers[first], numbers[first + 1]


def transfers(trace: Trace) -> Found:
    """Return sends nobody receives, receives nobody sends, and pairs that differ in size.

    The k-th send of a (group, source, destination, tag) belongs to the k-th such receive.
    """
    both, which, nth, first = _matched(trace)
    if not len(both):
        return []
    paired = np.zeros(len(both), np.bool_)
    paired[first] = paired[first + 1] = True
    found: Found = []
    alone = np.flatnonzero(~paired)
    for k in alone[:_MOST].tolist():
        found.append((Order.MATCH, _alone(trace, both[k], int(which[k]), int(nth[k]))))
    if len(alone) > _MOST:
        text = f"{trace.path}: {len(alone) - _MOST} more sends or receives without a partner"
        found.append((Order.MATCH, TraceError(text, path=trace.path)))
    sizes = both["nbytes"]
    known = (sizes[first] >= 0) & (sizes[first + 1] >= 0)
    for k in first[known & (sizes[first] != sizes[first + 1])][:_MOST].tolist():
        found.append((Order.MATCH, _sizes(trace, both[k], both[k + 1])))
    return found


def _told(trace: Trace, end: np.void) -> str:
    rank = trace.ranks[int(end["rank"])]
    return f"rank {rank.rank} {rank.describe(int(end['node']))}"


def _alone(trace: Trace, end: np.void, which: int, nth: int) -> TraceError:
    rank = trace.ranks[int(end["rank"])]
    where = f"{group_text(trace, int(end['group']))}, tag {int(end['tag'])}"
    if which == 0:
        text = f"{_told(trace, end)} sends to rank {int(end['dst'])}, which never receives it"
    else:
        text = f"{_told(trace, end)} receives from rank {int(end['src'])}, which never sends it"
    text = f"{trace.path}: {text} ({where}, number {nth + 1})"
    return TraceError(text, path=rank.path, rank=rank.rank, node=int(rank.id[int(end["node"])]))


def _sizes(trace: Trace, send: np.void, receive: np.void) -> TraceError:
    text = (
        f"{trace.path}: {_told(trace, send)} sends {int(send['nbytes'])} bytes, "
        f"{_told(trace, receive)} expects {int(receive['nbytes'])}"
    )
    rank = trace.ranks[int(send["rank"])]
    return TraceError(text, path=rank.path, rank=rank.rank, node=int(rank.id[int(send["node"])]))
