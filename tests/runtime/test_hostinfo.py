from __future__ import annotations

import os
from pathlib import Path

import pytest

from genie.replay import hostinfo
from genie.replay.progress import make_progress


def test_cores_are_at_most_the_affinity():
    assert 1 <= hostinfo.usable_cores() <= len(os.sched_getaffinity(0))


def test_cpu_times_grow():
    before = hostinfo.cpu_times()
    total = 0
    while hostinfo.cpu_times().user_ns - before.user_ns < 30_000_000:
        total += sum(range(1000))
    after = hostinfo.cpu_times()
    assert after.host_busy > before.host_busy and after.host_total >= after.host_busy


@pytest.mark.parametrize(
    ("text", "cores"), [("0", {0}), ("0-3", {0, 1, 2, 3}), ("0-1,8,10-11", {0, 1, 8, 10, 11})]
)
def test_cpu_list(text, cores):
    assert hostinfo._cpu_list(text) == cores


def test_pinning_follows_the_device(tmp_path, monkeypatch):
    """A device on NUMA node 0 keeps the thread on that node's cores; others change nothing."""
    before = os.sched_getaffinity(0)
    monkeypatch.setattr(hostinfo, "_NET", tmp_path)
    (tmp_path / "ib0" / "device").mkdir(parents=True)
    (tmp_path / "ib0" / "device" / "numa_node").write_text("-1\n")
    try:
        assert hostinfo.pin_near(("ib0",)) == hostinfo.pin_near(("nope",)) == ""
        if Path("/sys/devices/system/node/node0/cpulist").exists():
            (tmp_path / "ib0" / "device" / "numa_node").write_text("0\n")
            text = hostinfo.pin_near(("ib0:1",))
            assert os.sched_getaffinity(0) == before & hostinfo._cpu_list(text)
    finally:
        os.sched_setaffinity(0, before)


def test_progress_is_off_without_a_terminal(capsys):
    assert make_progress(None, "x") is None
    assert make_progress(False, "x") is None
    mine = lambda done, total: None  # noqa: E731
    assert make_progress(mine, "x") is mine
    bar = make_progress(True, "x")
    bar(1, 10)
    bar(10, 10)
    assert capsys.readouterr().out == ""
