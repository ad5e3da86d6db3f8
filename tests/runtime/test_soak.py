"""Many short replays in a row: nothing leaks and no byte is wrong. `make soak` runs 2000."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

import genie
from runtime.steps import steps

RUNS = int(os.environ.get("GENIE_SOAK_RUNS", "2000"))


def rss_kib() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1])
    return 0


@pytest.mark.slow
@pytest.mark.timeout(8 * 3600)
def test_short_replays_leak_nothing(tmp_path):
    trace = steps(tmp_path, ranks=4, steps=3, comp_ns=100_000, nbytes=100_000)
    cluster = genie.Cluster.local(2, 2)
    plan = genie.plan(trace, cluster)
    warm = max(3, RUNS // 20)
    files = threads = memory = 0
    for run in range(RUNS):
        rec = genie.replay(plan, "local:2", progress=False)
        sends = rec.messages[rec.messages["direction"] == 0]
        receives = rec.messages[rec.messages["direction"] == 1]
        assert rec.complete and len(sends) == len(receives) == plan.messages, run
        assert sends["nbytes"].sum() == receives["nbytes"].sum() == plan.nbytes, run
        del rec, sends, receives
        if run == warm:
            files = len(os.listdir("/proc/self/fd"))
            threads = threading.active_count()
            memory = rss_kib()
    assert len(os.listdir("/proc/self/fd")) <= files
    assert threading.active_count() == threads
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    assert children == []
    # An allocator may keep a few pages; a leak of 1 KiB a run would show in 2000 runs.
    assert rss_kib() - memory < 2048 + RUNS // 2
