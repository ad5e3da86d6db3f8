"""Reasons why a trace set cannot be replayed: everything is looked at before anything runs."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from genie.errors import TraceError
from genie.trace import deadlock, match
from genie.trace.kinds import Coll, Kind
from genie.trace.model import Order, RankTrace, Trace
from genie.trace.notes import where_is
from genie.trace.order import cycle_error

Found = list[tuple[Order, TraceError]]
MOST_BYTES = 1 << 50
"""A larger size of one node (1 PiB) is taken for a mistake."""
_MOST_NAMED = 6
_ROOTED = (Coll.REDUCE, Coll.GATHER, Coll.SCATTER, Coll.BROADCAST)


def find_problems(trace: Trace) -> Found:
    """Return every reason and how telling it is, the most telling first."""
    found: Found = [(Order.FILE, problem) for problem in trace.load_problems]
    found += _gaps(trace)
    found += _nothing(trace)
    for rank in trace.ranks:
        found += rank.problems
        if len(rank.order) < rank.n:
            found.append((Order.CYCLE, cycle_error(rank)))
        found += _missing(rank)
        found += _values(trace, rank)
    found += _groups(trace)
    found += match.collectives(trace)
    found += match.transfers(trace)
    if not found:
        found += deadlock.waits(trace)
    if trace.sizes_in_elements:
        text = (
            f"{trace.path}: sizes are in elements (made by the symbolic tensor graph); say of "
            "what type with --elements (elements=...): float32, bfloat16, ..."
        )
        found.append((Order.UNITS, TraceError(text, path=trace.path)))
    found.sort(key=lambda pair: pair[0])
    return found


def _gaps(trace: Trace) -> Found:
    missing = [rank.rank for rank in trace.ranks if rank.missing]
    if not missing:
        return []
    present = len(trace.ranks) - len(missing)
    named = ", ".join(str(rank) for rank in missing[:_MOST_NAMED])
    more = f" and {len(missing) - _MOST_NAMED} more" if len(missing) > _MOST_NAMED else ""
    text = (
        f"{trace.path}: {present} files for ranks 0 to {len(trace.ranks) - 1}; "
        f"missing: rank {named}{more}"
    )
    return [(Order.RANKS, TraceError(text, path=trace.path, rank=missing[0], missing=missing))]


def _nothing(trace: Trace) -> Found:
    # What is left of a file cut off right behind its metadata.
    if any(rank.n or rank.problems for rank in trace.ranks) or trace.load_problems:
        return []
    text = f"{trace.path}: no rank has a node: there is nothing to replay"
    return [(Order.FILE, TraceError(text, path=trace.path))]


def _listed(
    rank: RankTrace, nodes: npt.NDArray[np.int64], what: str, order: Order = Order.VALUES
) -> Found:
    # One problem for all nodes of a rank that share it.
    if rank.noted:
        nodes = nodes[~np.isin(nodes, np.fromiter(rank.noted, np.int64))]
    if not len(nodes):
        return []
    named = ", ".join(rank.describe(i) for i in nodes[:_MOST_NAMED].tolist())
    more = f" and {len(nodes) - _MOST_NAMED} more" if len(nodes) > _MOST_NAMED else ""
    text = f"{where_is(rank)}: {what}: {named}{more}"
    ids = rank.id[nodes].tolist()
    error = TraceError(text, path=rank.path, rank=rank.rank, node=ids[0], nodes=ids)
    return [(order, error)]


def _missing(rank: RankTrace) -> Found:
    kind = rank.kind
    collective = kind == Kind.COMM_COLL
    sends, receives = kind == Kind.COMM_SEND, kind == Kind.COMM_RECV
    no_type = collective & (rank.coll < 0)
    no_size = collective & (rank.nbytes < 0) & (rank.coll != Coll.BARRIER)
    either = np.flatnonzero
    found = _listed(rank, either(kind == Kind.INVALID), "nodes without a node type")
    found += _listed(rank, either(no_type & no_size), "collectives without comm_type and comm_size")
    found += _listed(rank, either(no_type & ~no_size), "collectives without comm_type")
    found += _listed(rank, either(~no_type & no_size), "collectives without comm_size")
    found += _listed(rank, either(sends & (rank.peer < 0)), "sends without comm_dst")
    found += _listed(rank, either(receives & (rank.peer < 0)), "receives without comm_src")
    found += _listed(rank, either(sends & (rank.nbytes < 0)), "sends without comm_size")
    found += _listed(rank, either(receives & (rank.nbytes < 0)), "receives without comm_size")
    return found


def _values(trace: Trace, rank: RankTrace) -> Found:
    found = _listed(
        rank,
        np.flatnonzero(rank.nbytes > MOST_BYTES),
        f"sizes above {MOST_BYTES} bytes, which no GPU holds",
    )
    transfers = (rank.kind == Kind.COMM_SEND) | (rank.kind == Kind.COMM_RECV)
    for i in np.flatnonzero(transfers & (rank.peer >= trace.world_size)).tolist()[:_MOST_NAMED]:
        text = (
            f"{where_is(rank)}: {rank.describe(i)} has the peer {int(rank.peer[i])}, but there are "
            f"{trace.world_size} ranks"
        )
        found.append((Order.VALUES, _error(rank, i, text)))
    return found + _roots(trace, rank) + _splits(trace, rank)


def _roots(trace: Trace, rank: RankTrace) -> Found:
    found: Found = []
    rooted = np.isin(rank.coll, [int(coll) for coll in _ROOTED]) & (rank.root > 0)
    for i in np.flatnonzero(rooted).tolist():
        members = trace.members(int(rank.group[i]))
        root = int(rank.root[i])
        if members is not None and root >= len(members):
            text = (
                f"{where_is(rank)}: {rank.describe(i)} has the root {root}, but its group has "
                f"{len(members)} ranks"
            )
            found.append((Order.VALUES, _error(rank, i, text)))
    return found


def _splits(trace: Trace, rank: RankTrace) -> Found:
    found: Found = []
    for i in np.flatnonzero(rank.splits >= 0).tolist():
        members = trace.members(int(rank.group[i]))
        sent, received = rank.split_lists[int(rank.splits[i])]
        where = f"{where_is(rank)}: {rank.describe(i)}"
        if rank.coll[i] != Coll.ALL_TO_ALL:
            text = f"{where} has splits, which only an all_to_all can have"
        elif members is not None and not len(sent) == len(received) == len(members):
            text = (
                f"{where} has splits for {len(sent)} and {len(received)} ranks, but its group "
                f"has {len(members)}"
            )
        elif rank.nbytes[i] >= 0 and int(sent.sum()) != rank.nbytes[i]:
            text = (
                f"{where} has splits that sum to {int(sent.sum())} bytes, but a comm_size of "
                f"{int(rank.nbytes[i])}"
            )
        else:
            continue
        found.append((Order.VALUES, _error(rank, i, text)))
    return found


def _error(rank: RankTrace, i: int, text: str) -> TraceError:
    return TraceError(text, path=rank.path, rank=rank.rank, node=int(rank.id[i]))


def _groups(trace: Trace) -> Found:
    found: Found = []
    for name, members in trace.groups.items():
        beyond = [rank for rank in members if rank >= trace.world_size]
        if beyond:
            text = (
                f"{trace.path}: group {name!r} lists rank {beyond[0]}, but there are "
                f"{trace.world_size} ranks (0 to {trace.world_size - 1})"
            )
            found.append((Order.GROUPS, TraceError(text, path=trace.path, rank=beyond[0])))
    undefined: dict[str, int] = {}
    for rank in trace.ranks:
        communicates = rank.kind >= Kind.COMM_SEND
        for group in np.unique(rank.group[communicates & (rank.group >= 0)]).tolist():
            members_or_none = trace.members(group)
            nodes = np.flatnonzero(communicates & (rank.group == group))
            if members_or_none is None:
                name = trace.group_names[group]
                undefined[name] = undefined.get(name, 0) + len(nodes)
            elif rank.rank not in members_or_none:
                what = f"nodes of group {trace.group_names[group]!r}, which does not have the rank"
                found += _listed(rank, nodes, what, Order.GROUPS)
    if undefined:
        listed = ", ".join(f"{name!r} ({count} nodes)" for name, count in undefined.items())
        source = f"defined are {sorted(trace.groups)}" if trace.groups else "none is defined"
        for path, why in trace.unread_groups.items():
            source += f"; {path} might, but is {why}"
        text = (
            f"{trace.path}: groups that nothing defines: {listed}; {source}. Give a group file, "
            'or undefined_group="world" if they mean all ranks'
        )
        found.append((Order.GROUPS, TraceError(text, path=trace.path, groups=list(undefined))))
    return found
