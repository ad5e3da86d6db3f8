"""Workers as forks of the command (GENIE_LAUNCHER=fork)."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

import genie
from genie.errors import LaunchError
from genie.replay.endpoints import parse_endpoints
from genie.replay.launchers.choose import choose
from genie.replay.launchers.fork import ForkLauncher
from runtime.steps import steps


def test_forks_replay_as_any_worker_and_leave_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("GENIE_LAUNCHER", "fork")
    trace = steps(tmp_path, ranks=4, steps=3)
    plan = genie.plan(trace, genie.Cluster.local(2, 2))
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(2):
        rec = genie.replay(plan, "local:2", progress=False, quiet=True, timeout=120)
        sends = rec.messages[rec.messages["direction"] == 0]
        assert rec.complete and sends["nbytes"].sum() == plan.nbytes
        pids = [worker["pid"] for worker in rec.manifest["workers"]]
        assert os.getpid() not in pids and not any(Path(f"/proc/{p}").exists() for p in pids)
    assert len(os.listdir("/proc/self/fd")) <= before + 1


def test_a_fork_that_is_killed_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("GENIE_LAUNCHER", "fork")
    trace = steps(tmp_path, ranks=4, steps=200, comp_ns=100_000_000)
    made: list[ForkLauncher] = []
    start = ForkLauncher.start
    monkeypatch.setattr(
        ForkLauncher, "start", lambda self, *more: (made.append(self), start(self, *more))[1]
    )

    def strike() -> None:
        while not made or len(os.listdir(f"/proc/{made[0].pid(1)}/fd")) < 9:
            time.sleep(0.1)
        time.sleep(1)
        os.kill(made[0].pid(1), signal.SIGKILL)

    thread = threading.Thread(target=strike)
    thread.start()
    rec = genie.replay(trace, "local:2", progress=False, quiet=True, timeout=120, on_error="record")
    thread.join()
    assert not rec.complete and "was killed by SIGKILL" in rec.manifest["incomplete"]


def test_forks_stay_in_this_place():
    for hosts in (["n1", "n2"], ["netns:a/e0", "netns:b/e0"]):
        with pytest.raises(LaunchError, match="in this process's place only"):
            choose(parse_endpoints(hosts), "fork")
