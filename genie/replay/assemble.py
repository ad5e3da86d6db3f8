"""From an engine's log to the `ops` and `messages` tables of a Recording."""

from __future__ import annotations

from collections.abc import Callable
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
    forget: Callable[[int], None] | None = None,
) -> tuple[Tables, Labels]:
    """Return the `ops` and `messages` tables of one engine's run, and their labels.

    Args:
        shard: What the engine ran.
        ops_log: `Engine.ops()`.
        messages_log: `Engine.messages()`.
        connections: `Engine.connections()`.
        forget: Called with the number of rows of `messages_log` that are no longer needed, so
            that log and table are not in memory together.
    """
    ops = tables.empty("ops", ops_log.size)
    names: dict[str, int] = {}
    codes_of: dict[int, npt.NDArray[np.int32]] = {}
    for name in ("rank", "iteration", "ready_ns", "start_ns", "end_ns"):
        ops[name] = ops_log[name]
    ops["name"], ops["communicator"], ops["dtype"] = -1, -1, -1
    by_rank = np.argsort(ops_log["rank"], kind="stable")
    numbers = np.array([rank.rank for rank in shard.ranks], np.int64)
    ordered = ops_log["rank"][by_rank]
    firsts = np.searchsorted(ordered, numbers, "left").tolist()
    ends = np.searchsorted(ordered, numbers, "right").tolist()
    for rank, first, end in zip(shard.ranks, firsts, ends, strict=True):
        rows = by_rank[first:end]
        node = ops_log["node"][rows]
        if id(rank.names) not in codes_of:  # ranks of one kind share the list
            codes_of[id(rank.names)] = np.fromiter(
                (names.setdefault(name, len(names)) for name in rank.names), np.int32, rank.n
            )
        codes = codes_of[id(rank.names)]
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

    messages = np.empty(messages_log.size, tables.dtype_of("messages"))
    nics = _nics(shard, connections["id"])
    for first in range(0, messages.size, _PIECE):
        log = messages_log[first : first + _PIECE]
        _messages(messages[first : first + _PIECE], log, connections, nics)
        if forget is not None:
            forget(first + log.size)
    return {"ops": ops, "messages": messages}, labels


#: Rows of the messages table that are made at a time.
_PIECE = 1 << 20


def _nics(shard: Shard, ids: npt.NDArray[np.int32]) -> npt.NDArray[np.int16]:
    """Return the (source, destination) NIC of each connection, -1 inside a worker."""
    out = np.full((2, ids.size), -1, np.int16)
    across = np.flatnonzero(ids >= 0)
    if across.size:
        order = np.argsort(shard.connection_ids)
        place = np.searchsorted(shard.connection_ids, ids[across], sorter=order)
        rows = shard.connections[order[place]]
        out[0, across], out[1, across] = rows["nic_src"], rows["nic_dst"]
    return out


def _messages(
    out: npt.NDArray[np.void],
    log: npt.NDArray[np.void],
    connections: npt.NDArray[np.void],
    nics: npt.NDArray[np.int16],
) -> None:
    """Fill rows of the messages table from the same rows of the engine's log."""
    used = log["connection"]
    src, dst = connections["src"][used], connections["dst"][used]
    sent = log["direction"] == 0
    out["op"] = log["op"]
    out["rank"] = np.where(sent, src, dst)
    out["peer"] = np.where(sent, dst, src)
    out["channel"] = connections["channel"][used]
    out["connection"] = connections["id"][used]
    out["nic"] = np.where(sent, nics[0][used], nics[1][used])
    for name in ("nbytes", "posted_ns", "completed_ns", "status", "direction"):
        out[name] = log[name]


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
