"""Schedules made of sends and receives: all_to_all, gather, scatter, send, recv, any group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from genie import checks
from genie.errors import InputError
from genie.replay.nccl import p2p
from genie.replay.nccl.env import Nccl
from genie.replay.nccl.names import DTYPE_SIZE
from genie.replay.nccl.p2p_messages import p2p_messages, p2p_program
from genie.replay.nccl.p2p_wire import p2p_work_requests, shared
from genie.replay.nccl.partition import PART as COLLECTIVE_PART
from genie.replay.nccl.program import Program
from genie.replay.nccl.rounds import Rounds, hosts_in_order, rounds
from genie.replay.nccl.schedule import CALL, Schedule
from genie.replay.nccl.wire import Connection

if TYPE_CHECKING:
    from genie.replay.cluster import Cluster

IntArray = npt.NDArray[np.int64]
Table = npt.NDArray[np.void]
CallsOf = Callable[[int], tuple[IntArray, IntArray]]
"""Rank -> (peer, bytes) rows of its sends and of its receives."""

_hosts: WeakKeyDictionary[Cluster, list[IntArray]] = WeakKeyDictionary()


class P2PSchedule(Schedule):
    """A group of sends and receives; `choice` is None and `parts` empty.

    Attributes:
        rules: what the communicator fixes for sends and receives.
        only_rank: the rank whose calls are known; None if every rank's are.
        regular: whether every rank sends as much to every rank, so that batches mirror.
    """

    def __init__(
        self,
        kind: str,
        count: int,
        dtype: str,
        root: int,
        cluster: Cluster,
        nccl: Nccl,
        calls_of: CallsOf,
        *,
        only_rank: int | None = None,
        regular: bool = False,
    ) -> None:
        super().__init__(
            kind, count, dtype, "sum", root, cluster, nccl, None, np.zeros(0, COLLECTIVE_PART)
        )
        self._calls_of = calls_of
        self.regular = regular
        self.only_rank = only_rank
        self.rules = p2p_rules(cluster, nccl)

    @property
    def knows_all_ranks(self) -> bool:
        """Whether every rank's calls are known, not one rank's only."""
        return self.only_rank is None

    def asked_of(self, rank: int) -> tuple[IntArray, IntArray]:
        """(peer, bytes) rows of what `rank` sends and of what it receives."""
        self._check_rank(rank)
        return self._calls_of(rank)

    def p2p_parts(self, rank: int) -> Table:
        """Parts of `rank`'s sends and receives to other ranks.

        Returns:
            Array of `genie.replay.nccl.p2p.PART`, by channel, batch and work.
        """
        self._check_rank(rank)
        host = np.asarray(self.cluster.host_of, np.int64)
        table = p2p.parts(rank, self.works(rank), self.rules, host, self._proxies(rank))
        others: Table = table[table["peer"] != rank]
        return others

    def works(self, rank: int) -> p2p.Works:
        """What `rank` does in each round; `p2p_parts` numbers these works."""
        sends, receives = self._calls_of(rank)
        return p2p.works(sends, receives, self._rounds(rank), self.cluster.n_ranks)

    def _rounds(self, rank: int) -> Rounds:
        hosts = _hosts.get(self.cluster)
        if hosts is None:
            hosts = _hosts[self.cluster] = hosts_in_order(self.cluster.host_of)
        return rounds(
            rank,
            hosts,
            channels=self.rules.channels,
            group_size=self.cluster.p2p_group_size,
            version=self.nccl.version,
        )

    def _make_program(self, rank: int) -> Program:
        return p2p_program(self.p2p_parts(rank))

    def messages(self, rank: int, intra: bool = False) -> Table:
        """Messages of `rank`, by channel, batch and round; see `Schedule.messages`."""
        checks.truth("intra", intra)
        parts = self.p2p_parts(rank)
        table = p2p_messages(parts, lambda rows: self._nics(rank, rows), intra=intra)
        if self.knows_all_ranks and not self.regular:
            self._mirror_groups(rank, table, intra)
        return table

    def _mirror_groups(self, rank: int, table: Table, intra: bool) -> None:
        """Give each receive the batch in which its sender sends it.

        Batches count what a rank has to do on a channel, so in an irregular exchange the two
        ends may number them differently.
        """
        received = table["direction"] == 1
        for peer in np.unique(table["peer"][received]).tolist():
            parts = self.p2p_parts(peer)
            parts = parts[(parts["peer"] == rank) & (parts["direction"] == 0)]
            sent = p2p_messages(
                parts, lambda rows: (rows["peer"] * 0, rows["peer"] * 0), intra=intra
            )
            mine = np.flatnonzero(received & (table["peer"] == peer))
            # Both ends list a channel's messages in the order of the connection.
            mine = mine[np.argsort(table["channel"][mine], kind="stable")]
            theirs = np.argsort(sent["channel"], kind="stable")
            table["group"][mine] = sent["group"][theirs]

    def calls(self, rank: int) -> Table:
        """Parts of `rank` as calls: one row a part, `elements` in the call's data type."""
        table = self.p2p_parts(rank)
        out = np.zeros(len(table), CALL)
        out["channel"], out["group"] = table["channel"], table["batch"]
        out["call"], out["peer"] = table["slot"], table["peer"]
        out["direction"], out["nbytes"] = table["direction"], table["nbytes"]
        out["elements"] = out["nbytes"] // DTYPE_SIZE[self.dtype]
        return out

    def work_requests(self, rank: int, devices: int = 1, link_layer: str = "ethernet") -> Table:
        """Work requests of `rank`'s messages; see `Schedule.work_requests`.

        Ranks of one host that share a connection are announced together and send chains.
        """
        if not shared(self):
            return super().work_requests(rank, devices, link_layer)
        self._check_rank(rank)
        return p2p_work_requests(self, rank, Connection.of(self.nccl, devices, link_layer))

    def _nics(self, rank: int, rows: Table) -> tuple[IntArray, IntArray]:
        # The NIC depends on the peer only through its GPU number (spec 1.8), so one question
        # for each GPU number, channel and direction answers all rows.
        gpu = np.asarray(self.cluster.gpu_of, np.int64)[rows["peer"]]
        key = (gpu * self.rules.channels + rows["channel"]) * 2 + rows["direction"]
        example = np.full(int(key.max(initial=0)) + 1, -1, np.int64)
        example[key] = np.arange(len(key))
        answers = np.zeros((len(example), 2), np.int64)
        for asked in np.flatnonzero(example >= 0).tolist():
            row = rows[int(example[asked])]
            answers[asked] = self.cluster.nic(
                rank, int(row["peer"]), int(row["channel"]), "p2p", int(row["direction"])
            )
        found = answers[key]
        return found[:, 0], found[:, 1]

    def _proxies(self, rank: int) -> IntArray:
        """Local rank of the proxy of a send to each rank; a rank on the same host needs none."""
        cluster = self.cluster
        host, gpu = np.asarray(cluster.host_of), np.asarray(cluster.gpu_of)
        proxies = np.zeros(cluster.n_ranks, np.int64)
        away = np.flatnonzero(host != host[rank])
        example = np.full(int(gpu.max()) + 1, -1, np.int64)
        example[gpu[away]] = away
        local = np.zeros(len(example), np.int64)
        for number in np.flatnonzero(example >= 0).tolist():
            proxy = cluster.nic(rank, int(example[number]), 0, "p2p", 0)[1]
            local[number] = cluster.local_of[proxy]
        proxies[away] = local[gpu[away]]
        return proxies

    @property
    def _method(self) -> str:
        return "sends and receives"


def _no_nics(rows: Table) -> tuple[IntArray, IntArray]:
    none = np.full(len(rows), -1, np.int64)
    return none, none


def p2p_rules(cluster: Cluster, nccl: Nccl) -> p2p.P2P:
    """The communicator's numbers for sends and receives."""
    return p2p.P2P(
        channels=cluster.p2p_channels,
        per_peer=cluster.p2p_channels_per_peer,
        chunk_bytes=cluster.p2p_chunk_bytes,
        n_ranks=cluster.n_ranks,
        n_hosts=cluster.n_hosts,
        version=nccl.version,
        ll_threshold=nccl.get_int("NCCL_P2P_LL_THRESHOLD", p2p.LL_THRESHOLD),
        net_ll=nccl.get_int("NCCL_ALLOC_P2P_NET_LL_BUFFERS", 0) != 0,
        chunk_override=nccl.get_int("NCCL_CHUNK_SIZE", 0),
        epochs=nccl.get_int("NCCL_P2P_EPOCH_ENABLE", 1) != 0,
        ll_step_bytes=cluster.buffer_bytes["ll"] // 8,
    )


def p2p_schedule(
    kind: str,
    count: int,
    dtype: str,
    cluster: Cluster,
    nccl: Nccl,
    root: int,
    peer: int | None,
    splits: IntArray | None,
    drop_zeros: bool,
) -> P2PSchedule:
    """The schedule of a collective that NCCL runs as sends and receives.

    Args:
        kind: all_to_all, gather, scatter, send or recv.
        count: elements per peer (ignored with `splits`).
        dtype: element type.
        cluster: the communicator, with the environment applied.
        nccl: release and environment.
        root: root of gather and scatter, sender of send and recv.
        peer: receiver of send and recv.
        splits: `split_matrix` of all_to_all, else None.
        drop_zeros: leave out calls of no data.
    """
    n = cluster.n_ranks
    nbytes = count * DTYPE_SIZE[dtype]
    everyone = np.stack([np.arange(n), np.full(n, nbytes)], axis=1)
    nobody = everyone[:0]
    calls_of: CallsOf
    if kind == "all_to_all" and splits is not None:
        matrix = splits * DTYPE_SIZE[dtype]
        count = int(matrix.sum()) // DTYPE_SIZE[dtype]

        def calls_of(rank: int) -> tuple[IntArray, IntArray]:
            out = np.stack([np.arange(n), matrix[rank]], axis=1)
            into = np.stack([np.arange(n), matrix[:, rank]], axis=1)
            if drop_zeros:
                return out[out[:, 1] > 0], into[into[:, 1] > 0]
            return out, into

    elif kind == "all_to_all":

        def calls_of(rank: int) -> tuple[IntArray, IntArray]:
            return everyone, everyone

    elif kind in ("gather", "scatter"):
        mine = np.array([[root, nbytes]])

        def calls_of(rank: int) -> tuple[IntArray, IntArray]:
            at_root = everyone if rank == root else nobody
            return (mine, at_root) if kind == "gather" else (at_root, mine)

    else:
        if isinstance(peer, bool) or not isinstance(peer, int | np.integer) or not 0 <= peer < n:
            raise InputError(
                f"{kind}: peer {checks.short(peer)} is not one of {n} ranks (give peer=)"
            )

        def calls_of(rank: int) -> tuple[IntArray, IntArray]:
            out = np.array([[peer, nbytes]]) if rank == root else nobody
            into = np.array([[root, nbytes]]) if rank == peer else nobody
            return out, into

    even = kind == "all_to_all" and splits is None
    regular = even and cluster.min_ranks_per_host == cluster.max_ranks_per_host
    return P2PSchedule(kind, count, dtype, root, cluster, nccl, calls_of, regular=regular)


def group_schedule(
    sends: Sequence[tuple[int, int]],
    recvs: Sequence[tuple[int, int]],
    cluster: Cluster,
    nccl: Nccl,
    rank: int,
) -> P2PSchedule:
    """One rank's group of sends and receives; see `genie.replay.nccl.schedule.p2p_group`."""
    out, into = _pairs("sends", sends), _pairs("recvs", recvs)
    checks.whole("rank", rank, 0, cluster.n_ranks - 1)
    for table in (out, into):
        bad = (table[:, 0] < 0) | (table[:, 0] >= cluster.n_ranks) | (table[:, 1] < 0)
        if bad.any():
            peer, nbytes = table[bad][0].tolist()
            raise InputError(
                f"rank {rank}: {nbytes} bytes with peer {peer}: not one of "
                f"{cluster.n_ranks} ranks, or negative bytes",
                rank=rank,
            )

    def calls_of(asked: int) -> tuple[IntArray, IntArray]:
        if asked != rank:
            raise InputError(f"this group holds the calls of rank {rank}, not {asked}")
        return out, into

    kind = "send" if len(out) and not len(into) else "recv" if not len(out) else "group"
    total = int(out[:, 1].sum() + into[:, 1].sum())
    return P2PSchedule(kind, total, "int8", rank, cluster, nccl, calls_of, only_rank=int(rank))


def _pairs(name: str, given: object) -> IntArray:
    rows = [checks.wholes(f"{name}[{i}]", row) for i, row in enumerate(checks.listed(name, given))]
    if any(row.shape != (2,) for row in rows):
        raise InputError(f"{name} is a list of (peer, bytes) pairs, not {checks.short(given)}")
    return np.array(rows, np.int64).reshape(-1, 2)


def split_matrix(splits: npt.ArrayLike, n: int) -> IntArray:
    """Checks the splits of an all_to_all.

    Args:
        splits: elements from each rank (row) to each rank (column).
        n: ranks.

    Raises:
        InputError: not n x n whole numbers, or a negative one.
    """
    try:
        matrix = np.asarray(splits)
    except ValueError as error:
        raise InputError(f"splits: expected {n} x {n} whole numbers: {error}") from error
    if matrix.shape != (n, n) or matrix.dtype.kind not in "iu":
        raise InputError(
            f"splits: expected {n} x {n} whole numbers (row: from, column: to), got "
            f"{'x'.join(map(str, matrix.shape))} of {matrix.dtype}"
        )
    if (matrix < 0).any():
        source, destination = (int(x) for x in np.argwhere(matrix < 0)[0])
        raise InputError(f"splits: rank {source} to rank {destination} is negative")
    if int(matrix.max(initial=0)) > (1 << 58) // max(n * n, 1):
        raise InputError(f"splits: {int(matrix.max())} elements to one rank is no real size")
    return matrix.astype(np.int64)
