"""From an engine's log to the `ops` and `messages` tables of a Recording."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from genie.replay import record_summary, tables
from genie.trace.kinds import DTYPES

if TYPE_CHECKING:
    from genie.replay.shard import Shard

Labels = dict[tuple[str, str], tuple[str, ...]]
Tables = dict[str, npt.NDArray[np.void]]


def assemble(
    shard: Shard,
    ops_log: npt.NDArray[np.void],
    messages_log: npt.NDArray[np.void],
    connections: npt.NDArray[np.void],
) -> tuple[Tables, Labels]:
    """Return the `ops` and `messages` tables of one engine's run, and their labels.

    Args:
        shard: What the engine ran.
        ops_log: `Engine.ops()`.
        messages_log: `Engine.messages()`.
        connections: `Engine.connections()`.
    """
    ops = tables.empty("ops", ops_log.size)
    names: dict[str, int] = {}
    for name in ("rank", "iteration", "ready_ns", "start_ns", "end_ns"):
        ops[name] = ops_log[name]
    row_of_rank = {rank.rank: rank for rank in shard.ranks}
    ops["name"], ops["communicator"], ops["dtype"] = -1, -1, -1
    for number, rank in row_of_rank.items():
        rows = np.flatnonzero(ops_log["rank"] == number)
        node = ops_log["node"][rows]
        codes = np.fromiter(
            (names.setdefault(name, len(names)) for name in rank.names), np.int32, rank.n
        )
        ops["name"][rows] = codes[node]
        ops["node"][rows] = rank.node_id[node]
        for name in ("kind", "nbytes", "communicator", "seq", "peer", "stream", "dtype"):
            ops[name][rows] = getattr(rank, name)[node]
    labels: Labels = {
        ("ops", "name"): tuple(names),
        ("ops", "kind"): tables.KINDS,
        ("ops", "communicator"): tuple(name for name, _, _ in shard.communicators),
        ("ops", "dtype"): DTYPES,
    }
    # The last entry serves communicator -1: no group.
    sizes = np.array([ranks.size for _, ranks, _ in shard.communicators] + [0], np.int64)
    record_summary.fill_bandwidth(ops, sizes[ops["communicator"]])

    messages = tables.empty("messages", messages_log.size)
    used = connections[messages_log["connection"]]
    sent = messages_log["direction"] == 0
    messages["op"] = messages_log["op"]
    messages["rank"] = np.where(sent, used["src"], used["dst"])
    messages["peer"] = np.where(sent, used["dst"], used["src"])
    messages["channel"] = used["channel"]
    messages["connection"] = used["id"]
    messages["nic"] = _nics(shard, used["id"], sent)
    for name in ("nbytes", "posted_ns", "completed_ns", "status", "direction"):
        messages[name] = messages_log[name]
    return {"ops": ops, "messages": messages}, labels


def _nics(
    shard: Shard, ids: npt.NDArray[np.int32], sent: npt.NDArray[np.bool_]
) -> npt.NDArray[np.int16]:
    """Return the NIC at this rank's end of each message's connection, -1 inside a worker."""
    out = np.full(ids.size, -1, np.int16)
    across = np.flatnonzero(ids >= 0)
    if across.size:
        order = np.argsort(shard.connection_ids)
        place = np.searchsorted(shard.connection_ids, ids[across], sorter=order)
        rows = shard.connections[order[place]]
        out[across] = np.where(sent[across], rows["nic_src"], rows["nic_dst"])
    return out


def merge(parts: list[tuple[Tables, Labels]]) -> tuple[Tables, Labels]:
    """Return the tables of several workers as one set, rows of `ops` renumbered.

    Args:
        parts: What `assemble` gave for each worker; communicators are numbered alike in all.
    """
    names: dict[str, int] = {}
    ops: list[npt.NDArray[np.void]] = []
    messages: list[npt.NDArray[np.void]] = []
    first = 0
    labels: Labels = {}
    for part_tables, part_labels in parts:
        table = part_tables["ops"].copy()
        codes = np.fromiter(
            (names.setdefault(n, len(names)) for n in part_labels["ops", "name"]), np.int32
        )
        known = table["name"] >= 0
        table["name"][known] = codes[table["name"][known]]
        ops.append(table)
        rows = part_tables["messages"].copy()
        rows["op"][rows["op"] >= 0] += first
        messages.append(rows)
        first += table.size
        labels = dict(part_labels)
    merged: Tables = {
        "ops": np.concatenate(ops) if ops else tables.empty("ops"),
        "messages": np.concatenate(messages) if messages else tables.empty("messages"),
    }
    labels["ops", "name"] = tuple(names)
    return merged, labels


def plan_manifest(shard: Shard) -> dict[str, Any]:
    """Return the manifest entries that a shard alone determines."""
    return {
        "communicators": [
            {"name": name, "ranks": ranks.tolist(), "exact": exact}
            for name, ranks, exact in shard.communicators
        ]
    }
