"""Who runs where: ranks to hosts, ranks to NICs by rail, threads to cores; shown before a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from genie.errors import InputError

if TYPE_CHECKING:
    from genie.replay.cluster import Cluster
    from genie.replay.endpoints import Endpoint
    from genie.replay.plan import Plan

#: Workers that are shown one by one, and ranks of each.
MOST_WORKERS, MOST_RANKS = 32, 16


def check_nics(cluster: Cluster, endpoints: Sequence[Endpoint]) -> list[str]:
    """Refuse NICs that cannot stand for the cluster's rails; return what is odd but possible.

    Raises:
        InputError: Endpoints name different numbers of NICs, so that NIC k of one would not be on
            the rail of NIC k of another; says both numbers.
    """
    counts = [len(end.nics) for end in endpoints]
    rails = cluster.nics_per_host
    if rails > 1 and len(set(counts)) > 1:
        other = next(i for i, n in enumerate(counts) if n != counts[0])
        raise InputError(
            f"endpoint 0 ({endpoints[0]}) names {counts[0]} NICs and endpoint {other} "
            f"({endpoints[other]}) {counts[other]}: NIC k of every endpoint is one rail, so the "
            "numbers must be equal",
            first=counts[0],
            other=counts[other],
        )
    many = next((i for i, n in enumerate(counts) if n > max(rails, 1)), None)
    if many is not None:
        idle = ", ".join(map(str, endpoints[many].nics[max(rails, 1) :]))
        return [
            f"endpoint {many} ({endpoints[many]}) names {counts[many]} NICs, a host of cluster "
            f"{cluster.name} has {rails}: {idle} carry nothing"
        ]
    return []


def nics_of_ranks(plan: Plan) -> dict[int, list[int]]:
    """Return rank → the cluster's NICs (rails) that its messages leave and arrive by, sorted."""
    table = plan.connections
    pairs = {
        *zip(table["src"].tolist(), table["nic_src"].tolist(), strict=True),
        *zip(table["dst"].tolist(), table["nic_dst"].tolist(), strict=True),
    }
    out: dict[int, list[int]] = {}
    for rank, nic in sorted(pairs):
        out.setdefault(rank, []).append(max(nic, 0))
    return out


def describe(
    plan: Plan,
    endpoints: Sequence[Endpoint],
    hosts: Sequence[str],
    devices: Sequence[Sequence[str]],
    pinned: Sequence[str],
) -> list[str]:
    """Return the mapping, a line a worker.

    Args:
        plan: What is run.
        endpoints: One a worker.
        hosts: What each worker's host calls itself.
        devices: NICs that each worker uses, in the order of the cluster's.
        pinned: Cores that each worker was kept on, "" where it was left alone.
    """
    nics = nics_of_ranks(plan)
    lines = []
    for worker, end in enumerate(endpoints[:MOST_WORKERS]):
        ranks = list(plan.ranks_of(worker))
        ways: dict[str, list[int]] = {}
        for rank in ranks:
            ways.setdefault(_ways(nics.get(rank, []), devices[worker]), []).append(rank)
        parts = [f"{_ranks(found)}{way}" for way, found in list(ways.items())[:MOST_RANKS]]
        if len(ways) > MOST_RANKS:
            parts.append("…")
        on = f" ({hosts[worker]})" if hosts[worker] and hosts[worker] != end.address else ""
        cores = f"; kept on cores {pinned[worker]}" if pinned[worker] else "; any core"
        lines.append(f"worker {worker} on {end}{on}: {', '.join(parts)}{cores}")
    if len(endpoints) > MOST_WORKERS:
        lines.append(f"… and {len(endpoints) - MOST_WORKERS} more workers")
    return lines


def _ways(nics: Sequence[int], devices: Sequence[str]) -> str:
    """Return " by NIC 0 (mlx5_0)", of what a rank's messages use."""
    if not nics:
        return " without network"
    named = [f"{nic} ({devices[nic % len(devices)]})" if devices else str(nic) for nic in nics]
    return f" by NIC {', '.join(named)}"


def _ranks(ranks: Sequence[int]) -> str:
    """Return "rank 3", "ranks 0-7" or "ranks 0, 2, 4"."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    steps = np.diff(ranks)
    if (steps == 1).all():
        return f"ranks {ranks[0]}-{ranks[-1]}"
    return f"ranks {', '.join(map(str, ranks))}"
