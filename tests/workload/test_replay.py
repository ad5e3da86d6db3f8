"""A small mixture of experts, generated and replayed: over TCP, and what it must have sent."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np

import genie

ROOT = Path(__file__).resolve().parent.parent.parent


def sent(recording: genie.Recording) -> Counter[tuple[int, int]]:
    """Return the bytes of each (source, destination)."""
    messages, found = recording.messages, Counter[tuple[int, int]]()
    for row in messages[messages["direction"] == 0]:
        found[int(row["rank"]), int(row["peer"])] += int(row["nbytes"])
    return found


def test_small_moe_over_tcp() -> None:
    trace = genie.workload(ROOT / "workloads" / "small-moe.toml")
    assert trace.world_size == 4
    recording = genie.replay(trace, "local:4", transport="tcp", progress=False, timeout=60)
    assert recording.complete
    expected = genie.simulate(trace, genie.Cluster.local(4, 1))
    # What went over the sockets is what the schedules say, pair by pair, uneven routing and all.
    assert sent(recording) == sent(expected)
    assert len(recording.messages) == len(expected.messages)
    assert (recording.messages["completed_ns"] >= 0).all()
    uneven = [
        one.split_lists[int(i)] for one in trace.ranks for i in one.splits[one.splits >= 0]
    ]  # fmt: skip
    assert any(len(np.unique(parts[0])) > 1 for parts in uneven)
