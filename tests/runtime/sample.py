"""A small hand-made Recording whose every number is known."""

from __future__ import annotations

import numpy as np

from genie.replay.record_summary import fill_bandwidth
from genie.replay.recording import Recording
from genie.replay.tables import KINDS, empty

NAMES = ("fwd", "grads", "params", "hand over")
GROUPS = ("dp", "world")
DTYPES = ("float32", "bfloat16")


def recording(ranks: int = 4, iterations: int = 2, warmup: int = 1) -> Recording:
    """Per rank and iteration: comp 1 ms, all_reduce 1 MB on dp, all_gather 4 MB on world; a send.

    Rank r starts r microseconds late; every all_reduce ends 101 us after the last start.
    """
    rows = []
    for it in range(-warmup, iterations):
        base = (it + warmup) * 2_000_000
        for r in range(ranks):
            t = base + 1_000 * r
            late = base + 1_000 * (ranks - 1)
            a = 1_000_000
            rows += [
                (r, 1, 0, "comp", it, t, t, t + a, 0, -1, -1, -1, 7, -1),
                (r, 2, 1, "all_reduce", it, t + a, t + a, late + a + 101_000, 1_000_000, 0, 0, -1,
                 20, 0),
                (r, 3, 2, "all_gather", it, t + a, t + a + 500, late + a + 200_500, 4_000_000, 1, 0,
                 -1, 21, 1),
            ]  # fmt: skip
        rows.append((0, 4, 3, "send", it, base, base, base + 10_000, 50_000, 1, 1, 1, -1, 0))
        rows.append((1, 4, 3, "recv", it, base, base, base + 12_000, 50_000, 1, 1, 0, -1, 0))
    ops = empty("ops", len(rows))
    for row, values in zip(ops, rows, strict=True):
        (rank, node, name, kind, it, ready, start, end, nbytes, comm, seq, peer, stream, dt) = (
            values
        )
        for column, value in {
            "rank": rank, "node": node, "name": name, "kind": KINDS.index(kind), "iteration": it,
            "ready_ns": ready, "start_ns": start, "end_ns": end, "nbytes": nbytes,
            "communicator": comm, "seq": seq, "peer": peer, "stream": stream, "dtype": dt,
        }.items():  # fmt: skip
            row[column] = value
    fill_bandwidth(ops, np.where(ops["communicator"] >= 0, ranks, 0))
    messages = empty("messages", 2)
    messages["op"] = [1, 4]
    messages["rank"], messages["peer"] = [0, 1], [1, 0]
    messages["nbytes"] = 4096
    messages["posted_ns"], messages["completed_ns"] = [1_000_000, 1_000_100], [1_000_400, 1_000_900]
    health = empty("health", 2)
    health["worker"], health["ranks"], health["cores"] = [0, 1], ranks // 2, 2
    manifest = {
        "mode": "replay",
        "complete": True,
        "trace": {"path": "t", "digest": "0" * 64, "ranks": ranks},
        "communicators": [
            {"name": "dp", "ranks": list(range(ranks)), "exact": True},
            {"name": "world", "ranks": list(range(ranks)), "exact": True},
        ],
        "iterations": iterations,
        "warmup": warmup,
    }
    labels = {
        ("ops", "name"): NAMES,
        ("ops", "communicator"): GROUPS,
        ("ops", "dtype"): DTYPES,
    }
    return Recording({"ops": ops, "messages": messages, "health": health}, manifest, labels)
