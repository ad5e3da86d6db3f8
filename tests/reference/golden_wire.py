"""Reads golden wire entries: which rank sends what, and how to ask GENIE for the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from genie.replay.cluster import Cluster
from genie.replay.nccl.env import Nccl

KINDS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "alltoall": "all_to_all",
}
DTYPES = {1: "int8", 2: "float16", 4: "float32", 8: "float64"}

_clusters: dict[tuple[str, int], Cluster] = {}


def preset(machine: str, hosts: int) -> Cluster:
    """The preset, made once."""
    key = (machine, hosts)
    if key not in _clusters:
        _clusters[key] = Cluster.preset(machine, hosts=hosts)
    return _clusters[key]


def cluster_of(entry: dict[str, Any]) -> Cluster:
    """The communicator of a golden entry."""
    whole = preset(entry["machine"], entry["nNodes"])
    if "members" not in entry:
        return whole
    return whole.communicator([tuple(member) for member in entry["members"]])


def nccl_of(entry: dict[str, Any], version: str) -> Nccl:
    """The settings of a golden entry."""
    return Nccl(version=version, env=entry.get("env") or {})


def expand(runs: list[list[Any]]) -> list[int]:
    """A run-length list [[repeat, [bytes, ...]], ...] as plain sizes."""
    return [size for repeat, sizes in runs for _ in range(repeat) for size in sizes]


def parts(plan: dict[str, Any]) -> Iterator[tuple[int, int, int]]:
    """(channel, count, chunk bytes) of a golden plan."""
    for channel in range(plan["channelLo"], plan["channelHi"] + 1):
        if channel == plan["channelLo"] and plan["countLo"]:
            yield channel, plan["countLo"], plan["chunkBytesLo"]
        elif channel == plan["channelHi"] and plan["countHi"]:
            yield channel, plan["countHi"], plan["chunkBytesHi"]
        else:
            yield channel, plan["countMid"], plan["chunkBytesMid"]


Streams = dict[tuple[int, int, int], list[int]]


def golden_sends(entry: dict[str, Any], rank: int) -> Streams:
    """Sizes that a rank sends over the network, by (channel, group, peer)."""
    found: Streams = {}
    for channel, flows in entry["sends"].get(str(rank), {}).items():
        for name, runs in flows.items():
            group, peer = name[1:].split(">")
            found[int(channel), int(group), int(peer)] = expand(runs)
    return found


def our_streams(messages: np.ndarray, direction: int = 0) -> Streams:
    """Sizes by (channel, group, peer) out of `Schedule.messages`."""
    rows = messages[messages["direction"] == direction]
    key = (
        rows["channel"].astype(np.int64) << 48
        | rows["group"].astype(np.int64) << 32
        | rows["peer"].astype(np.int64)
    )
    order = np.argsort(key, kind="stable")
    unique, starts = np.unique(key[order], return_index=True)
    sizes = np.split(rows["nbytes"][order], starts[1:])
    return {
        (k >> 48, k >> 32 & 0xFFFF, k & 0xFFFFFFFF): size.tolist()
        for k, size in zip(unique.tolist(), sizes, strict=False)
    }
