"""Some whole replicas of a job, generated as if the others were there.

Optimizer shards, buckets and expert loads stay those of the whole job. What is left of a group has
collectives that put the same bytes on the wire as a rank of the whole group does in a ring: of n
ranks an all_gather of parts p moves p (n - 1), the others S (n - 1) / n (all_reduce twice that),
so that n' ranks get p (n - 1) / (n' - 1), or S (n - 1) / n x n' / (n' - 1). The latency of the
hops that are gone is not there. Collectives of groups of which one rank is left vanish.
"""

from __future__ import annotations

from genie.errors import InputError
from genie.trace import Coll
from genie.workload.layout import Group, Layout

_ROOTED = {Coll.BROADCAST, Coll.REDUCE}
_WHOLE = {Coll.ALL_REDUCE, Coll.REDUCE_SCATTER, Coll.ALL_TO_ALL}


def on_the_wire(coll: Coll, nbytes: int, ranks: int, left: int, element: int) -> int:
    """Return the size of a collective among `left` of `ranks` ranks that moves as much a rank.

    Args:
        coll: Which.
        nbytes: Its size among all ranks, as a trace has it.
        ranks: Ranks of the whole group.
        left: Ranks left, at least 2.
        element: Bytes of an element; the size is a multiple of it, of every rank's where shared.

    Raises:
        InputError: There is no such rule for the collective.
    """
    if coll in _ROOTED or left == ranks or nbytes == 0:
        return nbytes
    if coll == Coll.ALL_GATHER:
        return _rounded(nbytes * (ranks - 1), left - 1, element)
    if coll not in _WHOLE:
        raise InputError(f"{coll.name.lower()}: no rule for fewer ranks")
    unit = element if coll == Coll.ALL_REDUCE else element * left
    return _rounded(nbytes * (ranks - 1) * left, ranks * (left - 1), unit)


def _rounded(value: int, divisor: int, unit: int) -> int:
    # value / divisor to the nearest multiple of unit, one at least
    return max(1, (2 * value + divisor * unit) // (2 * divisor * unit)) * unit


class Part:
    """The ranks of the first replicas of a job, numbered anew in their order.

    Attributes:
        kept: Ranks of the whole job that are left.
        world: Ranks of the whole job.
    """

    def __init__(self, layout: Layout, replicas: int) -> None:
        """Keep the first `replicas` data-parallel replicas."""
        self.world = layout.world
        self.kept = [
            rank for rank in range(layout.world) if layout.coordinates(rank)["dp"] < replicas
        ]
        self._now = {old: new for new, old in enumerate(self.kept)}

    def number(self, rank: int) -> int:
        """Return the new number of a rank.

        Raises:
            InputError: It is not kept.
        """
        if rank not in self._now:
            raise InputError(f"rank {rank} sends to or receives from a kept rank: keep it too")
        return self._now[rank]

    def members(self, group: Group) -> tuple[int, ...]:
        """Return the new numbers of what is left of a group (of the world too)."""
        old = group.members or range(self.world)
        return tuple(self._now[rank] for rank in old if rank in self._now)

    def size(self, group: Group) -> int:
        """Return how many ranks the whole group has."""
        return group.size or self.world
