"""Who sits where: ranks by host and local rank, as arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from genie.errors import InputError

__all__ = ["Layout"]

Ints = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Layout:
    """The members of a communicator.

    Hosts are numbered by first appearance in rank order and local ranks by rank, as NCCL
    does (spec nccl-wire-schedule 1.1).

    Attributes:
        host: Host number of each rank.
        gpu: GPU number, in the machine, of each rank.
        label: Number that the caller gave each host, by host number.
        kind: Host type of each host, by host number: hosts of one type and one GPU list
            share a search result.
    """

    host: Ints
    gpu: Ints
    label: tuple[int, ...]
    kind: tuple[int, ...] = ()

    @classmethod
    def of(
        cls,
        members: Sequence[tuple[int, int]] | npt.NDArray[np.int64],
        kinds: Mapping[int, int] | None = None,
    ) -> Layout:
        """Return the layout of (host, GPU) pairs in rank order.

        Args:
            members: The pairs.
            kinds: Host type by the caller's host number; 0 where absent.

        Raises:
            InputError: If there are no members, or one GPU is named twice.
        """
        table = np.asarray(members, dtype=np.int64)
        if table.ndim != 2 or table.shape[1] != 2 or not len(table):
            raise InputError("members must be a non-empty list of (host, local GPU) pairs")
        if (table < 0).any():
            rank = int(np.flatnonzero((table < 0).any(axis=1))[0])
            raise InputError(f"member {rank}: negative host or GPU number", rank=rank)
        keys = table[:, 0] * (int(table[:, 1].max()) + 1) + table[:, 1]
        unique, first = np.unique(keys, return_index=True)
        if len(unique) != len(keys):
            seen = np.zeros(len(keys), dtype=bool)
            seen[first] = True
            rank = int(np.flatnonzero(~seen)[0])
            host, gpu = (int(x) for x in table[rank])
            raise InputError(f"rank {rank}: GPU {gpu} of host {host} is named twice", rank=rank)
        labels, first, inverse = np.unique(table[:, 0], return_index=True, return_inverse=True)
        by_appearance = np.argsort(first, kind="stable")
        number = np.empty(len(labels), dtype=np.int32)
        number[by_appearance] = np.arange(len(labels), dtype=np.int32)
        return cls(
            host=number[inverse.reshape(-1)],
            gpu=table[:, 1].astype(np.int32),
            label=tuple(int(x) for x in labels[by_appearance]),
            kind=tuple(kinds.get(int(x), 0) for x in labels[by_appearance]) if kinds else (),
        )

    @property
    def n_ranks(self) -> int:
        """Ranks of the communicator."""
        return len(self.host)

    @property
    def n_hosts(self) -> int:
        """Hosts with at least one rank."""
        return len(self.label)

    @cached_property
    def labels(self) -> npt.NDArray[np.int64]:
        """`label` as an array."""
        return np.asarray(self.label, dtype=np.int64)

    @cached_property
    def counts(self) -> Ints:
        """Ranks on each host."""
        return np.bincount(self.host, minlength=self.n_hosts).astype(np.int32)

    @property
    def max_local(self) -> int:
        """Most ranks on a host."""
        return int(self.counts.max())

    @cached_property
    def offset(self) -> npt.NDArray[np.int64]:
        """Where each host's ranks begin in `by_host`; one more entry than hosts."""
        return np.concatenate([[0], np.cumsum(self.counts, dtype=np.int64)])

    @cached_property
    def by_host(self) -> Ints:
        """Ranks sorted by host, then rank."""
        return np.argsort(self.host, kind="stable").astype(np.int32)

    @cached_property
    def local(self) -> Ints:
        """Local rank of each rank on its host."""
        local = np.empty(self.n_ranks, dtype=np.int32)
        local[self.by_host] = np.arange(self.n_ranks) - self.offset[self.host[self.by_host]]
        return local

    def ranks_of(self, host: int) -> list[int]:
        """Return the ranks of a host in local order."""
        start, stop = self.offset[host], self.offset[host + 1]
        return [int(r) for r in self.by_host[start:stop]]

    def kind_of(self, host: int) -> int:
        """Return the host type of a host."""
        return self.kind[host] if self.kind else 0

    @cached_property
    def gpu_sets(self) -> tuple[list[tuple[int, ...]], Ints]:
        """The distinct GPU lists (by local rank) of hosts, and each host's index in them."""
        gpus = self.gpu[self.by_host]
        sets: dict[tuple[int, bytes], int] = {}
        lists: list[tuple[int, ...]] = []
        index = np.empty(self.n_hosts, dtype=np.int32)
        for host in range(self.n_hosts):
            part = gpus[self.offset[host] : self.offset[host + 1]]
            key = (self.kind_of(host), part.tobytes())
            if key not in sets:
                sets[key] = len(lists)
                lists.append(tuple(int(g) for g in part))
            index[host] = sets[key]
        return lists, index
