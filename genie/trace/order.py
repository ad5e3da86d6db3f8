"""The order in which a rank's nodes are issued, cycles, and the longest path without network."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from genie._core import graph
from genie.errors import DependencyCycleError
from genie.trace.kinds import Kind
from genie.trace.model import RankTrace

_MOST_SHOWN = 12


def issue_order(rank: RankTrace) -> npt.NDArray[np.int64]:
    """Return positions in topological order, of several ready nodes the lowest id first.

    Raises:
        DependencyCycleError: The dependencies close a loop.
    """
    order = rank.order
    if len(order) < rank.n:
        raise cycle_error(rank)
    return order


def cycle_error(rank: RankTrace) -> DependencyCycleError:
    """Return the error that names the shortest cycle of a rank that has one."""
    cycle, proven, on_cycles = graph.shortest_cycle(rank.dep_indptr, rank.deps)
    shown = cycle if len(cycle) <= _MOST_SHOWN else cycle[: _MOST_SHOWN - 1]
    names = [rank.describe(i) for i in shown]
    if len(shown) < len(cycle):
        names.append(f"... {len(cycle) - len(shown)} more")
    path = " <- ".join([*names, rank.describe(cycle[0])])
    kind = "the shortest cycle" if proven else "a cycle"
    length = f"{len(cycle)} nodes" if len(cycle) > 1 else "1 node, a self-dependency"
    text = (
        f"rank {rank.rank} ({rank.path}): dependencies close a loop; {kind} has {length}: {path}; "
        f"{on_cycles} nodes are on or between cycles and {rank.n - len(rank.order)} can never "
        "start"
    )
    ids = [int(rank.id[i]) for i in cycle]
    return DependencyCycleError(text, path=rank.path, rank=rank.rank, node=ids[0], nodes=ids)


def compute_ns(rank: RankTrace) -> npt.NDArray[np.int64]:
    """Return what each node takes by itself, in ns: nothing for communication and unknowns."""
    counted = (rank.kind <= Kind.COMP) & (rank.duration_ns > 0)
    return np.where(counted, rank.duration_ns, 0)


def critical_path_ns(rank: RankTrace) -> int:
    """Return the longest path in ns with a network that takes no time.

    Nodes on or behind a cycle, which never run, are left out.
    """
    finish = graph.finish_times(rank.dep_indptr, rank.deps, rank.order, compute_ns(rank))
    return int(finish.max(initial=0))


def reachable(rank: RankTrace) -> npt.NDArray[np.bool_]:
    """Return which nodes can run: neither behind a cycle nor behind a missing parent."""
    blocked = np.zeros(rank.n, np.int64)
    blocked[rank.dangling] = 1
    behind = graph.finish_times(rank.dep_indptr, rank.deps, rank.order, blocked)
    runs = np.zeros(rank.n, np.bool_)
    runs[rank.order] = True
    runs &= behind == 0
    return runs
