"""Many short replays in a row: nothing leaks and no byte is wrong. `make soak` runs 2000.

In batches, each a process of its own, as users run them; GENIE_SOAK_RUNS and GENIE_SOAK_BATCH say
how many runs and how many of them a process does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

RUNS = int(os.environ.get("GENIE_SOAK_RUNS", "2000"))
BATCH = int(os.environ.get("GENIE_SOAK_BATCH", "250"))
#: An allocator may keep a few pages; a leak of a few KiB a run would pass this in a batch of 250.
SLACK_KIB = 1024


def namespaces() -> int:
    """Network namespaces that `ip netns` knows."""
    folder = Path("/run/netns")
    return len(list(folder.iterdir())) if folder.is_dir() else 0


def workers() -> int:
    """Worker processes of the whole machine that nobody owns any more."""
    found = 0
    for path in Path("/proc").glob("[0-9]*"):
        try:
            command = (path / "cmdline").read_bytes()
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
        found += b"genie.replay.worker" in command and parent == 1
    return found


def batch(runs: int) -> dict[str, dict[str, int]]:
    """What one process of `runs` replays says."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("soak_batch.py")), str(runs)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def check(found: dict[str, dict[str, int]]) -> None:
    before, after = found["before"], found["after"]
    assert before["children"] == after["children"] == 0
    for name in ("descriptors", "threads"):
        assert before[name] == after[name], (name, found)
    assert after["rss_kib"] - before["rss_kib"] < SLACK_KIB, found


def test_a_few_replays_leak_nothing():
    check(batch(5))


@pytest.mark.slow
@pytest.mark.timeout(8 * 3600)
def test_short_replays_leak_nothing(capsys):
    start = (namespaces(), workers())
    left = RUNS
    while left > 0:
        runs = min(left, BATCH)
        found = batch(runs)
        left -= runs
        with capsys.disabled():
            print(f"\nsoak: {RUNS - left} of {RUNS} runs: {json.dumps(found)}", flush=True)
        check(found)
    assert (namespaces(), workers()) == start
