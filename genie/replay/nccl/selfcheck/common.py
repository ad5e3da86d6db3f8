"""Reading golden entries: clusters, names, parts."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from genie.replay.cluster import Cluster

#: Golden's spelling -> the trace's.
KIND = {
    "broadcast": "broadcast",
    "reduce": "reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "allreduce": "all_reduce",
}
#: A data type of each element size; golden's entries name the size only.
DTYPE = {1: "int8", 2: "float16", 4: "float32", 8: "float64"}
#: Choices of golden's plans: NCCL's names -> ours.
FUNCTION_ORDER = tuple(KIND.values())


@lru_cache(maxsize=256)
def preset(machine: str, hosts: int) -> Cluster:
    """Return the preset a golden entry names, made once."""
    return Cluster.preset(machine, hosts=hosts)


@lru_cache(maxsize=2048)
def _members(machine: str, hosts: int, members: tuple[tuple[int, int], ...]) -> Cluster:
    return preset(machine, hosts).communicator(list(members))


def entry_cluster(entry: dict[str, Any]) -> Cluster:
    """Return the cluster of an entry: a machine and hosts, or a list of members on it."""
    if "members" not in entry:
        return preset(entry["machine"], entry["nNodes"])
    members = tuple((host, gpu) for host, gpu in entry["members"])
    base = {"h100x8use1": "h100x8", "h100x8use2": "h100x8", "h100x8use4": "h100x8"}
    machine = base.get(entry["machine"], entry["machine"])
    return _members(machine, max(entry["nNodes"], 2), members)


def entry_name(entry: dict[str, Any]) -> str:
    """Return a short name of an entry for a difference's text."""
    name = entry.get("case") or f"{entry['machine']}:{entry['nNodes']}"
    env = {k: v for k, v in (entry.get("env") or {}).items() if v is not None}
    return f"{name} {env}" if env else str(name)


def plan_channels(plan: dict[str, Any]) -> list[tuple[int, str]]:
    """Return (channel, "Lo" | "Mid" | "Hi") of every channel of a plan."""
    low, high = plan["channelLo"], plan["channelHi"]
    return [(c, "Lo" if c == low else "Hi" if c == high else "Mid") for c in range(low, high + 1)]


def plan_parts(plan: dict[str, Any]) -> list[tuple[int, int, int]]:
    """Return (channel, count, chunk bytes) of every channel of a plan."""
    return [
        (c, plan["count" + where], plan["chunkBytes" + where]) for c, where in plan_channels(plan)
    ]


def plan_choice(plan: dict[str, Any]) -> tuple[Any, ...]:
    """Return (algorithm, protocol, channels, warps, element size) of a plan."""
    return (
        plan["algo"].lower(),
        plan["proto"].lower(),
        plan["nMaxChannels"],
        plan["nWarps"],
        plan["eltSize"],
    )
