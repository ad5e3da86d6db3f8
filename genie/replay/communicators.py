"""The communicators of a trace on a cluster: who is in them and which search result they use."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from genie.errors import TraceError

if TYPE_CHECKING:
    from genie.replay.cluster import Cluster
    from genie.trace import Trace

WORLD = "world"


@dataclass(frozen=True)
class Communicator:
    """One communicator of the job.

    Attributes:
        index: Position in `Plan.communicators`.
        name: The trace's pg_name, or "world".
        ranks: Global ranks in communicator order.
        cluster: NCCL's view of these ranks; communicators of equal shape share one object.
        rank_of: Global rank → rank in this communicator.
    """

    index: int
    name: str
    ranks: npt.NDArray[np.int32]
    cluster: Cluster
    rank_of: dict[int, int] = field(repr=False)

    @property
    def n_ranks(self) -> int:
        """Number of ranks."""
        return int(self.ranks.size)


def _shape(cluster: Cluster, ranks: tuple[int, ...]) -> tuple[tuple[int, int, int], ...]:
    """Return what NCCL's search can see of a group: hosts by first appearance, local GPUs."""
    hosts: dict[int, int] = {}
    shape = []
    for rank in ranks:
        where = int(cluster.host_of[rank])
        host = hosts.setdefault(where, len(hosts))
        # Hosts read from different graph dumps are of different kinds.
        shape.append((host, int(cluster.gpu_of[rank]), cluster.layout.kind_of(where)))
    return tuple(shape)


class CommunicatorTable:
    """Builds the communicators a trace uses, each shape searched once.

    A preset's hosts are identical machines, so a group on hosts 4 and 5 has the search result of
    the same local GPUs on hosts 0 and 1 (spec nccl-subcommunicators §1: the result depends on the
    host's set of GPUs only).
    """

    def __init__(self, trace: Trace, cluster: Cluster) -> None:
        self._trace = trace
        self._cluster = cluster
        self._by_group: dict[int, Communicator] = {}
        self._by_shape: dict[tuple[tuple[int, int, int], ...], Cluster] = {}
        self.all: list[Communicator] = []

    def get(self, group: int) -> Communicator:
        """Return the communicator of group index `group` (-1 = world)."""
        found = self._by_group.get(group)
        if found is not None:
            return found
        name = WORLD if group < 0 else self._trace.group_names[group]
        ranks = self._trace.members(group)
        if ranks is None:
            raise TraceError(f"no group defines {name!r}")
        if ranks == tuple(range(self._cluster.n_ranks)):
            sub = self._cluster
        else:
            shape = _shape(self._cluster, ranks)
            cached = self._by_shape.get(shape)
            sub = self._cluster.sub(ranks) if cached is None else cached
            self._by_shape[shape] = sub
        made = Communicator(
            index=len(self.all),
            name=name,
            ranks=np.asarray(ranks, np.int32),
            cluster=sub,
            rank_of={rank: i for i, rank in enumerate(ranks)},
        )
        self.all.append(made)
        self._by_group[group] = made
        return made
