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


@pytest.fixture
def affinity():
    """The cores of this thread, given back afterwards."""
    before = os.sched_getaffinity(0)
    yield sorted(before)
    os.sched_setaffinity(0, before)


@pytest.mark.parametrize("sharing", [2, 3, 5])
def test_workers_of_a_host_get_cores_of_their_own(affinity, monkeypatch, sharing):
    """Disjoint, together all of them, none empty; told as the kernel lists them."""
    cores = list(range(11))
    asked: list[set[int]] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(cores))
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, own: asked.append(set(own)))
    texts = [hostinfo.pin((), place, sharing) for place in range(sharing)]
    assert sorted(core for own in asked for core in own) == cores
    assert all(asked) and max(map(len, asked)) - min(map(len, asked)) <= 1
    assert texts == [",".join(map(str, sorted(own))) for own in asked]


def test_pinning_really_moves_the_thread(affinity):
    if len(affinity) < 2:
        pytest.skip("one core")
    text = hostinfo.pin((), 1, 2)
    assert os.sched_getaffinity(0) == set(affinity[len(affinity) // 2 :])
    assert text == ",".join(map(str, affinity[len(affinity) // 2 :]))


def test_pinning_leaves_a_lone_worker_and_a_crowd_alone(affinity):
    assert hostinfo.pin((), 0, 1) == ""
    assert hostinfo.pin((), 0, len(affinity) + 1) == ""
    assert sorted(os.sched_getaffinity(0)) == affinity


def test_a_refused_affinity_is_no_error(monkeypatch):
    def refuse(pid, cores):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    assert hostinfo.pin((), 0, 2) == ""


def test_pinning_near_a_device_shares_out_its_node(tmp_path, monkeypatch, affinity):
    """The node's cores first, then this worker's part of them."""
    if not Path("/sys/devices/system/node/node0/cpulist").exists():
        pytest.skip("no NUMA nodes in sysfs")
    monkeypatch.setattr(hostinfo, "_RDMA", tmp_path)
    (tmp_path / "mlx5_0" / "device").mkdir(parents=True)
    (tmp_path / "mlx5_0" / "device" / "numa_node").write_text("0\n")
    node = hostinfo._cpu_list(Path("/sys/devices/system/node/node0/cpulist").read_text())
    near = sorted(node & set(affinity))
    if len(near) < 2:
        pytest.skip("one core on node 0")
    hostinfo.pin(("mlx5_0:1",), 0, 2)
    assert sorted(os.sched_getaffinity(0)) == near[: len(near) // 2]


def test_progress_is_off_without_a_terminal(capsys):
    assert make_progress(None, "x") is None
    assert make_progress(False, "x") is None
    mine = lambda done, total: None  # noqa: E731
    assert make_progress(mine, "x") is mine
    bar = make_progress(True, "x")
    bar(1, 10)
    bar(10, 10)
    assert capsys.readouterr().out == ""
