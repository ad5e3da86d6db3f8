"""One rank's nodes as the engine takes them: class, delay, program, dependencies."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from genie.errors import GenieError, TraceError
from genie.replay import tables
from genie.replay.bandwidth import size_bytes
from genie.replay.order import merge_dependencies, ordering_edges
from genie.trace.kinds import DTYPES, Coll, Kind, dtype_bytes

if TYPE_CHECKING:
    from genie.replay.communicators import Communicator, CommunicatorTable
    from genie.replay.compute import ComputeModel
    from genie.replay.templates import TemplateTable
    from genie.trace import RankTrace, Trace

#: Node classes of the engine.
INSTANT, DELAY, COMMUNICATION = 0, 1, 2

_KIND_CODE = {name: code for code, name in enumerate(tables.KINDS)}
_NODE_KIND = {
    int(Kind.COMM_SEND): "send",
    int(Kind.COMM_RECV): "recv",
    int(Kind.COMP): "comp",
    int(Kind.MEM_LOAD): "mem_load",
    int(Kind.MEM_STORE): "mem_store",
}
_COLL_NAME = {int(coll): coll.name.lower() for coll in Coll}


@dataclass(frozen=True, eq=False)
class RankPlan:
    """One rank, ready for the engine; arrays have one row a node in file order.

    Attributes:
        rank: Global rank.
        node_id: Trace ids.
        cls: INSTANT, DELAY or COMMUNICATION.
        delay_ns: Compute time before `time_scale`, ns.
        template: Index into `Plan.templates`, -1 none.
        communicator: Index into `Plan.communicators`, -1 none.
        dep_indptr: Row starts of the dependency CSR.
        deps: Parents by position, the implied ordering edges included.
        kind: Codes of `genie.replay.tables.KINDS`.
        nbytes: Size as nccl-tests prints it, bytes (0 for other nodes).
        seq: Position in the communicator's issue order, -1 none.
        peer: Global rank at the other end of a send or receive, -1 none.
        stream: GPU stream, -1 none.
        dtype: Index into `genie.trace.DTYPES`, -1 none.
        names: Node names.
    """

    rank: int
    node_id: npt.NDArray[np.uint64]
    cls: npt.NDArray[np.uint8]
    delay_ns: npt.NDArray[np.int64]
    template: npt.NDArray[np.int32]
    communicator: npt.NDArray[np.int32]
    dep_indptr: npt.NDArray[np.int64]
    deps: npt.NDArray[np.uint32]
    kind: npt.NDArray[np.uint8]
    nbytes: npt.NDArray[np.int64]
    seq: npt.NDArray[np.int32]
    peer: npt.NDArray[np.int32]
    stream: npt.NDArray[np.int32]
    dtype: npt.NDArray[np.int8]
    names: list[str] = field(repr=False)

    @property
    def n(self) -> int:
        """Number of nodes."""
        return int(self.cls.size)


class RankPlanner:
    """Turns the nodes of one rank after the other into `RankPlan`s."""

    def __init__(
        self,
        trace: Trace,
        communicators: CommunicatorTable,
        templates: TemplateTable,
        compute: ComputeModel,
    ) -> None:
        self._trace = trace
        self._communicators = communicators
        self._templates = templates
        self._compute = compute
        self._splits: dict[tuple[int, int], npt.NDArray[np.int64]] = {}
        self._shared = _Shared()

    def plan(self, rank: int) -> RankPlan:
        """Return the plan of one rank.

        Raises:
            GenieError: A communication that NCCL would not run, with rank and node id.
        """
        source = self._trace.ranks[rank]
        n = source.n
        order = self._trace.issue_order(rank)
        indptr, deps = merge_dependencies(
            n, source.dep_indptr, source.deps, ordering_edges(source, order)
        )
        kind = source.kind
        cls = np.full(n, INSTANT, np.uint8)
        busy = (kind == Kind.COMP) | (kind == Kind.MEM_LOAD) | (kind == Kind.MEM_STORE)
        cls[busy] = DELAY
        recorded = source.duration_ns >= 0
        delay = np.where(
            recorded,
            source.duration_ns,
            self._compute.duration_ns(source.num_ops, source.tensor_size),
        ).astype(np.int64)
        delay[~busy] = 0
        made = RankPlan(
            rank=rank,
            node_id=source.id,
            cls=cls,
            delay_ns=delay,
            template=np.full(n, -1, np.int32),
            communicator=np.full(n, -1, np.int32),
            dep_indptr=indptr,
            deps=deps,
            kind=_kind_codes(source),
            nbytes=np.zeros(n, np.int64),
            seq=np.full(n, -1, np.int32),
            peer=source.peer.copy(),
            stream=source.stream.copy(),
            dtype=source.dtype.copy(),
            names=source.names(),
        )
        communication = np.isin(kind, (Kind.COMM_COLL, Kind.COMM_SEND, Kind.COMM_RECV))
        self._communications(source, made, order[communication[order]])
        return self._shared.rank(made)

    def _communications(
        self, source: RankTrace, made: RankPlan, nodes: npt.NDArray[np.int64]
    ) -> None:
        """Fill the rows of collectives, sends and receives; equal calls are worked out once.

        Args:
            source: The rank's nodes.
            made: Its plan.
            nodes: Positions of its communications in issue order.
        """
        if not nodes.size:
            return
        made.cls[nodes] = COMMUNICATION
        coll = source.kind[nodes] == Kind.COMM_COLL
        made.seq[nodes[coll]] = _positions(source.group[nodes[coll]])
        # An uneven all_to_all depends on the other ranks' splits, so it stands for itself.
        own = np.where(source.splits[nodes] >= 0, nodes, -1)
        columns = ("kind", "group", "coll", "nbytes", "dtype", "root", "peer")
        keys = np.stack([getattr(source, name)[nodes].astype(np.int64) for name in columns] + [own])
        _, first, inverse = np.unique(keys, axis=1, return_index=True, return_inverse=True)
        found = np.zeros((first.size, 3), np.int64)
        # In order of first use, so that templates and communicators are numbered by the trace.
        for i in np.argsort(first, kind="stable").tolist():
            node = int(nodes[first[i]])
            try:
                found[i] = self._call(source, node, int(made.seq[node]))
            except GenieError as error:
                raise type(error)(
                    f"rank {source.rank}, node {int(source.id[node])} ({source.name(node)!r}): "
                    f"{error}",
                    **{"rank": source.rank, "node": int(source.id[node])},
                ) from error
        rows = found[inverse.reshape(-1)]
        made.communicator[nodes], made.template[nodes], made.nbytes[nodes] = rows.T

    def _call(self, source: RankTrace, node: int, seq: int) -> tuple[int, int, int]:
        """Return (communicator, template, nccl-tests size) of one communication."""
        communicator = self._communicators.get(int(source.group[node]))
        me = communicator.rank_of.get(source.rank)
        if me is None:
            raise TraceError(
                f"this rank is not in the node's communicator {communicator.name!r} "
                f"(ranks {communicator.ranks.tolist()[:16]})"
            )
        nbytes = int(source.nbytes[node])
        if source.kind[node] == Kind.COMM_COLL:
            kind = _COLL_NAME[int(source.coll[node])]
            code = int(source.dtype[node])
            key = self._templates.collective(
                kind,
                max(nbytes, 0),
                DTYPES[code] if code >= 0 else None,
                int(source.root[node]),
                communicator,
                self._split_matrix(communicator, seq, source, node),
            )
            if kind == "barrier":
                nbytes = 0
            elif not key.splits:
                size = key.count * dtype_bytes(key.dtype)
                nbytes = size_bytes(kind, size, communicator.n_ranks)
        else:
            kind = _NODE_KIND[int(source.kind[node])]
            peer = communicator.rank_of.get(int(source.peer[node]))
            if peer is None:
                raise TraceError(
                    f"{kind} to or from rank {int(source.peer[node])}, which is not in "
                    f"communicator {communicator.name!r}"
                )
            key = self._templates.point_to_point(kind, nbytes, me, peer, communicator)
        return communicator.index, self._templates.template(key, me).index, nbytes

    def _split_matrix(
        self, communicator: Communicator, seq: int, source: RankTrace, node: int
    ) -> npt.NDArray[np.int64] | None:
        """Return bytes from every rank to every rank of an uneven all_to_all, None if even."""
        if source.splits[node] < 0:
            return None
        key = (communicator.index, seq)
        if key not in self._splits:
            rows = []
            for rank in communicator.ranks.tolist():
                other = self._trace.ranks[rank]
                order = self._trace.issue_order(rank)
                group = other.group[order] == source.group[node]
                nodes = order[group & (other.kind[order] == Kind.COMM_COLL)]
                index = int(other.splits[nodes[seq]])
                if index < 0:
                    raise TraceError(f"rank {rank} gives no splits for the same all_to_all")
                rows.append(np.asarray(other.split_lists[index][0], np.int64))
            self._splits[key] = np.stack(rows)
        return self._splits[key]


class _Shared:
    """Columns that ranks have in common, as those of one pipeline stage, in memory once."""

    def __init__(self) -> None:
        self._arrays: dict[tuple[str, int, int], npt.NDArray[Any]] = {}
        self._names: dict[int, list[str]] = {}

    def rank(self, made: RankPlan) -> RankPlan:
        """Return the plan with each column replaced by an equal one that is known already."""
        columns = {
            f.name: self._array(getattr(made, f.name))
            for f in fields(RankPlan)
            if f.name not in ("rank", "names")
        }
        names = self._names.setdefault(hash("\0".join(made.names)), made.names)
        if names != made.names:
            names = made.names
        return RankPlan(rank=made.rank, names=names, **columns)

    def _array(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        key = (array.dtype.str, array.size, hash(array.tobytes()))
        known = self._arrays.setdefault(key, array)
        return known if np.array_equal(known, array) else array


def _positions(groups: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    """Return how often each entry's value came before it."""
    by = np.argsort(groups, kind="stable")
    ordered = groups[by]
    new = np.ones(ordered.size, bool)
    new[1:] = ordered[1:] != ordered[:-1]
    start = np.maximum.accumulate(np.where(new, np.arange(ordered.size), 0))
    out = np.empty(ordered.size, np.int64)
    out[by] = np.arange(ordered.size) - start
    return out


def _kind_codes(source: RankTrace) -> npt.NDArray[np.uint8]:
    """Return the codes of `tables.KINDS` of every node."""
    codes = np.full(source.n, _KIND_CODE["metadata"], np.uint8)
    for kind, name in _NODE_KIND.items():
        codes[source.kind == kind] = _KIND_CODE[name]
    coll = source.kind == Kind.COMM_COLL
    codes[coll] = np.maximum(source.coll[coll], 0).astype(np.uint8)
    return codes
