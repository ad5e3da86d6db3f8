"""Traffic patterns for network people: incast, permutation, rails, size sweeps, tenants.

A pattern repeats rounds; a round starts when the rank's own part of the one before it is done,
and after a pause on the GPU if one is asked for.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np

from genie.errors import InputError
from genie.trace import Builder, Coll, Kind
from genie.trace.kinds import code, dtype_bytes
from genie.workload.emit import COMPUTE
from genie.workload.files import write_set

#: Collectives whose `comm_size` is one rank's part of what the user calls the size.
_PARTS = {Coll.ALL_GATHER}


class Pattern(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a pattern is.

    Attributes:
        kind: One of `KINDS`.
        ranks: How many.
        per_host: Ranks a host; ranks on a host are neighbours.
        nbytes: Bytes of a transfer or collective (of an all_gather: what is gathered in all).
        end: Last size of a sweep.
        factor: From one size of a sweep to the next.
        repeat: Rounds (of each size).
        gap_ns: Pause on the GPU before each round, ns.
        coll: Collective of rail, size-sweep, tenants.
        dtype: Element type.
        root: Where an incast ends, or the root of a collective.
        tenants: Jobs side by side, their hosts dealt in turn.
        seed: Of the permutation.
    """

    kind: str
    ranks: int = 16
    per_host: int = 8
    nbytes: int = 1 << 20
    end: int = 0
    factor: float = 2.0
    repeat: int = 1
    gap_ns: int = 0
    coll: str = "all_reduce"
    dtype: str = "float32"
    root: int = 0
    tenants: int = 2
    seed: int = 0


class PatternJob:
    """A pattern that has been checked; ranks are generated one at a time.

    Attributes:
        pattern: What it is.
        name: Prefix of its files.
    """

    def __init__(self, pattern: Pattern) -> None:
        """Check the pattern.

        Raises:
            InputError: It cannot be made.
        """
        self.pattern = p = pattern
        self.name = p.kind
        if p.kind not in KINDS:
            raise InputError(f"no pattern {p.kind!r} (known: {', '.join(KINDS)})")
        if p.ranks < 2:
            raise InputError(f"a pattern needs at least 2 ranks, not {p.ranks}")
        if p.per_host < 1 or (p.kind in _HOSTED and p.ranks % p.per_host):
            raise InputError(f"ranks ({p.ranks}) must be a multiple of per_host ({p.per_host})")
        if min(p.nbytes, p.gap_ns, p.end, p.seed) < 0 or p.repeat < 1:
            raise InputError("sizes, gap and seed must not be negative, repeat at least 1")
        if not 0 <= p.root < p.ranks:
            raise InputError(f"no root {p.root} among {p.ranks} ranks")
        self.hosts = -(-p.ranks // p.per_host)
        self.coll = code(Coll, p.coll)
        self._element = dtype_bytes(p.dtype)
        if p.kind == "pairwise" and p.ranks % 2:
            raise InputError(f"pairwise needs an even number of ranks, not {p.ranks}")
        if p.kind in {"rail", "cross-rail"} and self.hosts < 2:
            raise InputError(f"{p.kind} needs two hosts at least: {p.ranks} ranks are on one")
        if p.kind == "cross-rail" and p.per_host < 2:
            raise InputError("cross-rail needs two ranks a host at least")
        if p.kind == "tenants" and not 1 <= p.tenants <= self.hosts:
            raise InputError(f"{p.tenants} tenants need as many hosts, not {self.hosts}")
        if p.kind == "size-sweep" and (p.factor <= 1 or p.nbytes < 1):
            raise InputError("a size sweep needs a factor above 1 and a size above 0")
        self._destinations = self._permutation() if p.kind == "permutation" else []

    @property
    def world_size(self) -> int:
        """Ranks of the pattern."""
        return self.pattern.ranks

    def _permutation(self) -> list[int]:
        # A random cycle through all ranks: nobody sends to itself.
        order = np.random.default_rng(self.pattern.seed).permutation(self.pattern.ranks)
        after = np.empty_like(order)
        after[order] = np.roll(order, -1)
        return [int(rank) for rank in after]

    def groups(self) -> dict[str, tuple[int, ...]]:
        """Return the groups: rails or tenants."""
        p = self.pattern
        if p.kind == "rail":
            return {f"RAIL_{i}": tuple(range(i, p.ranks, p.per_host)) for i in range(p.per_host)}
        if p.kind == "tenants":
            return {
                f"TENANT_{i}": tuple(
                    rank for rank in range(p.ranks) if rank // p.per_host % p.tenants == i
                )
                for i in range(p.tenants)
            }
        return {}

    def rank(self, rank: int) -> Builder:
        """Return the nodes of one rank."""
        made = Builder()
        last: list[int] = []
        for number, nbytes in enumerate(self._sizes()):
            if self.pattern.gap_ns:
                last = [
                    made.node(
                        Kind.COMP, f"gap.{number}", deps=last, duration_ns=self.pattern.gap_ns,
                        stream=COMPUTE,
                    )
                ]  # fmt: skip
            last = KINDS[self.pattern.kind](self, made, rank, nbytes, last, f"round{number}")
        return made

    def _sizes(self) -> Iterator[int]:
        p = self.pattern
        size = p.nbytes
        while True:
            for _ in range(p.repeat):
                yield size
            if p.kind != "size-sweep":
                return
            size = max(size + 1, int(size * p.factor))
            if size > max(p.end, p.nbytes):
                return

    # The kinds: each emits one round and returns the nodes that end it.

    def _p2p(
        self, made: Builder, where: str, last: list[int], sends: list[int], receives: list[int],
        nbytes: int,
    ) -> list[int]:  # fmt: skip
        ends = [
            made.node(
                Kind.COMM_SEND, f"{where}.send", deps=last, peer=to, nbytes=nbytes,
                dtype=self.pattern.dtype,
            )
            for to in sends
        ]  # fmt: skip
        ends += [
            made.node(
                Kind.COMM_RECV, f"{where}.recv", deps=last, peer=source, nbytes=nbytes,
                dtype=self.pattern.dtype,
            )
            for source in receives
        ]  # fmt: skip
        return ends

    def _incast(
        self, made: Builder, rank: int, nbytes: int, last: list[int], where: str
    ) -> list[int]:
        root = self.pattern.root
        if rank != root:
            return self._p2p(made, where, last, [root], [], nbytes)
        others = [other for other in range(self.pattern.ranks) if other != root]
        return self._p2p(made, where, last, [], others, nbytes)

    def _pairwise(
        self, made: Builder, rank: int, nbytes: int, last: list[int], where: str
    ) -> list[int]:
        other = (rank + self.pattern.ranks // 2) % self.pattern.ranks
        return self._p2p(made, where, last, [other], [other], nbytes)

    def _permuted(
        self, made: Builder, rank: int, nbytes: int, last: list[int], where: str
    ) -> list[int]:
        source = self._destinations.index(rank)
        return self._p2p(made, where, last, [self._destinations[rank]], [source], nbytes)

    def _cross_rail(
        self, made: Builder, rank: int, nbytes: int, last: list[int], where: str
    ) -> list[int]:
        per, hosts = self.pattern.per_host, self.hosts
        host, local = divmod(rank, per)
        to = (host + 1) % hosts * per + (local + 1) % per
        source = (host - 1) % hosts * per + (local - 1) % per
        return self._p2p(made, where, last, [to], [source], nbytes)

    def _collective(
        self, made: Builder, coll: Coll, nbytes: int, last: list[int], where: str,
        group: str | None = None, ranks: int = 0,
    ) -> list[int]:  # fmt: skip
        ranks = ranks or self.pattern.ranks
        if coll in _PARTS:
            nbytes //= ranks
        if coll in {Coll.REDUCE_SCATTER, Coll.ALL_TO_ALL, Coll.GATHER, Coll.SCATTER}:
            # Whole elements for every rank.
            nbytes -= nbytes % (ranks * self._element)
        else:
            nbytes -= nbytes % self._element
        rooted = coll in {Coll.BROADCAST, Coll.REDUCE, Coll.GATHER, Coll.SCATTER}
        return [
            made.node(
                Kind.COMM_COLL, f"{where}.{coll.name.lower()}", deps=last, coll=coll, nbytes=nbytes,
                group=group, root=self.pattern.root if rooted else None, dtype=self.pattern.dtype,
            )
        ]  # fmt: skip

    def _all_to_all(
        self, made: Builder, rank: int, nbytes: int, last: list[int], where: str
    ) -> list[int]:
        return self._collective(made, Coll.ALL_TO_ALL, nbytes, last, where)

    def _sweep(
        self, made: Builder, rank: int, nbytes: int, last: list[int], where: str
    ) -> list[int]:
        return self._collective(made, self.coll, nbytes, last, where)

    def _chained(
        self, made: Builder, rank: int, nbytes: int, last: list[int], where: str
    ) -> list[int]:
        for coll in (Coll.ALL_GATHER, Coll.REDUCE_SCATTER, Coll.ALL_REDUCE, Coll.ALL_TO_ALL):
            last = self._collective(made, coll, nbytes, last, where)
        return last

    def _grouped(
        self, made: Builder, rank: int, nbytes: int, last: list[int], where: str
    ) -> list[int]:
        for name, members in self.groups().items():
            if rank in members:
                if len(members) == 1:
                    return last
                return self._collective(made, self.coll, nbytes, last, where, name, len(members))
        return last

    def write(
        self,
        folder: str | os.PathLike[str],
        *,
        progress: Callable[[int, int], None] | None = None,
    ) -> Path:
        """Write the trace set and return the folder."""
        return write_set(self, folder, progress)


_Round = Callable[[PatternJob, Builder, int, int, list[int], str], list[int]]
#: Name of a pattern: how a rank's round is emitted.
KINDS: dict[str, _Round] = {
    "incast": PatternJob._incast,
    "pairwise": PatternJob._pairwise,
    "permutation": PatternJob._permuted,
    "all-to-all": PatternJob._all_to_all,
    "rail": PatternJob._grouped,
    "cross-rail": PatternJob._cross_rail,
    "size-sweep": PatternJob._sweep,
    "chained": PatternJob._chained,
    "tenants": PatternJob._grouped,
}
_HOSTED = {"rail", "cross-rail", "tenants"}
