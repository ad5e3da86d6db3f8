"""Every collective with every algorithm and protocol as one trace, and what it must send."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import genie
from genie.trace import Builder, Coll, Kind, write

PROTOCOLS = ("LL", "LL128", "Simple")
RING_KINDS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")
P2P_KINDS = ("all_to_all", "gather", "scatter", "send")
#: One way to run them, NCCL's own choice.
CHOSEN_KINDS = ("reduce_scatter_block", "barrier")


@dataclass(frozen=True)
class Combination:
    """One collective of the trace: `count` float32 in the sense of the NCCL call."""

    kind: str
    count: int
    algorithm: str | None = None
    protocol: str | None = None

    def trace_bytes(self, ranks: int) -> int:
        """What the trace says: the whole input of what spreads it, else as the call."""
        whole = self.kind in ("reduce_scatter", "reduce_scatter_block", "all_to_all", "scatter")
        return 4 * self.count * (ranks if whole else 1)

    def cost_bytes(self, ranks: int) -> int:
        """The size by which a choice is looked up."""
        return 4 * self.count * (ranks if self.kind in ("all_gather", "reduce_scatter") else 1)


def combinations(algorithms: dict[str, tuple[str, ...]]) -> list[Combination]:
    """All combinations; counts differ so that each is told apart by its size.

    Args:
        algorithms: kind → algorithms to run it with.
    """
    found = []
    for kind, names in algorithms.items():
        for algorithm in names:
            only_simple = algorithm in ("PAT", "NVLSTree")
            for protocol in PROTOCOLS[2:] if only_simple else PROTOCOLS:
                found.append(Combination(kind, 6000 + 64 * len(found), algorithm, protocol))
    for kind in (*P2P_KINDS, *CHOSEN_KINDS):
        found.append(Combination(kind, 2000 + 64 * len(found)))
    return found


def nccl_of(runs: Sequence[Combination], ranks: int) -> genie.Nccl:
    """NCCL with a choice a combination."""
    return genie.Nccl(choices=choices_of(runs, ranks))


def choices_of(runs: Sequence[Combination], ranks: int) -> list[dict[str, Any]]:
    """The rows of `Nccl(choices=...)`."""
    return [
        {
            "kind": run.kind,
            "min_bytes": run.cost_bytes(ranks),
            "max_bytes": run.cost_bytes(ranks),
            "algorithm": run.algorithm,
            "protocol": run.protocol,
        }
        for run in runs
        if run.algorithm is not None
    ]


def write_trace(folder: Path, runs: Sequence[Combination], ranks: int) -> None:
    """Write the trace: the collectives one after the other on every rank."""
    made = []
    for number in range(ranks):
        rank = Builder()
        last: list[int] = []
        for run in runs:
            if run.kind == "send":
                # From the first rank to the last, which are on different hosts.
                if number in (0, ranks - 1):
                    node = rank.node(
                        Kind.COMM_RECV if number else Kind.COMM_SEND,
                        "recv" if number else "send",
                        deps=last,
                        nbytes=4 * run.count,
                        peer=0 if number else ranks - 1,
                        dtype="float32",
                    )
                    last = [node]
                continue
            node = rank.node(
                Kind.COMM_COLL,
                f"{run.kind} {run.algorithm} {run.protocol}",
                deps=last,
                coll=Coll[run.kind.upper()],
                nbytes=None if run.kind == "barrier" else run.trace_bytes(ranks),
                dtype="float32",
                root=0,
            )
            last = [node]
        made.append(rank)
    write(folder, "t", made)


def expected(
    runs: Sequence[Combination], cluster: genie.Cluster, nccl: genie.Nccl
) -> dict[tuple[int, int], Counter[tuple[int, ...]]]:
    """(source host, destination host) → how often each sequence of message sizes occurs.

    A sequence is what one connection (channel, source, destination, collective or p2p) carries.
    """
    sequences: dict[tuple[int, int, int, bool], list[int]] = defaultdict(list)
    for run in runs:
        schedule = genie.schedule(
            run.kind,
            count=None if run.kind == "barrier" else run.count,
            dtype="float32",
            op="sum",
            cluster=cluster,
            nccl=nccl,
            root=0,
            peer=cluster.n_ranks - 1 if run.kind == "send" else None,
        )
        if run.algorithm is not None:
            chosen = (schedule.choice.algorithm, schedule.choice.protocol)
            wanted = (run.algorithm.lower().replace("nvlstree", "nvls_tree"), run.protocol.lower())  # type: ignore[union-attr]
            assert chosen == wanted, (run, chosen)
        for rank in range(cluster.n_ranks):
            for row in schedule.messages(rank):
                if row["direction"] == 0:
                    p2p = run.kind in P2P_KINDS
                    key = (int(row["channel"]), rank, int(row["peer"]), p2p)
                    sequences[key].append(int(row["nbytes"]))
    found: dict[tuple[int, int], Counter[tuple[int, ...]]] = defaultdict(Counter)
    for (_, src, dst, _), sizes in sequences.items():
        found[cluster.host_of[src], cluster.host_of[dst]][tuple(sizes)] += 1
    return dict(found)
