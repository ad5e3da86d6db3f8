"""Two workers in processes of their own: both modes, a killed peer, namespaces."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
import uuid

import pytest
from tcp_pair import ERROR, Workers, exchange_job, join, table, transport

from genie._core._drive import Drive

BOTH = [(0, 1), (1, 0)]
SIZES = [0, 1, 1024, 8 << 20, 65536, 3]


def run_pair(options: list[dict], sizes=SIZES, rounds=5, dependent=True, pairs=BOTH):
    with Workers() as workers:
        for worker in (0, 1):
            workers.start(exchange_job, worker, pairs, sizes, rounds, dependent, options[worker])
        where = [workers.hear(i) for i in (0, 1)]
        for i in (0, 1):
            workers.pipes[i].send({1 - i: where[1 - i]})
        return [workers.result(i) for i in (0, 1)]


@pytest.mark.parametrize("dependent", [True, False], ids=["ring", "window"])
@pytest.mark.parametrize("spin", [True, False], ids=["spin", "blocking"])
def test_two_processes(spin, dependent):
    stats = run_pair([{"spin": spin}] * 2, dependent=dependent)
    for one in stats:
        assert one["sent_bytes"] == one["received_bytes"] == 5 * sum(SIZES)
        assert one["sent_messages"] == one["received_messages"] == 5 * len(SIZES)
        assert one["bytes_dropped"] >= 5 * (8 << 20)


def test_spin_at_one_end_only():
    run_pair([{"spin": True}, {"spin": False}])


def test_several_sockets_a_connection():
    stats = run_pair([{"sockets": 4}] * 2, sizes=[8 << 20, 5, 1 << 20, 0], dependent=False)
    assert stats[0]["received_bytes"] == 5 * ((8 << 20) + 5 + (1 << 20))


def killed_job(pipe, worker: int, spin: bool, act: str):
    rows = table(BOTH)
    t = transport(worker, rows, [0, 1], spin=spin)
    join(pipe, t)
    drive = Drive(t.capsule)
    if worker == 1:
        pipe.send(os.getpid())
        time.sleep(60)
    start = time.monotonic()
    if act == "receive":
        assert drive.post_recv(1, 100) == 0
    else:
        assert drive.post_send(0, 16 << 20) == 0  # more than the kernel takes from us
    drive.flush()
    pipe.send("posted")
    events = []
    while not any(kind == ERROR for kind, *_ in events):
        assert time.monotonic() - start < 30
        drive.wait(100_000_000)
        events += drive.poll()
    reasons = [f.reason for f in t.failures()]
    t.close()
    return events[-1][1], events[-1][2], reasons


@pytest.mark.parametrize("act", ["receive", "send"])
@pytest.mark.parametrize("spin", [True, False], ids=["spin", "blocking"])
def test_a_killed_peer_is_an_error_not_a_hang(spin, act):
    with Workers() as workers:
        for worker in (0, 1):
            workers.start(killed_job, worker, spin, act)
        where = [workers.hear(i) for i in (0, 1)]
        for i in (0, 1):
            workers.pipes[i].send({1 - i: where[1 - i]})
        pid = workers.hear(1)
        assert workers.hear(0) == "posted"
        os.kill(pid, signal.SIGKILL)
        start = time.monotonic()
        conn, status, reasons = workers.result(0)
        assert time.monotonic() - start < 5
        assert conn == (1 if act == "receive" else 0)
        assert status in (-104, -32)
        assert "worker 1 closed the connection" in reasons[0]


@pytest.fixture
def namespaces():
    """Two network namespaces joined by a veth pair."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("needs root and the ip command")
    tag = uuid.uuid4().hex[:6]
    names = [f"genie-{tag}-{i}" for i in (0, 1)]
    commands = [
        *[["ip", "netns", "add", name] for name in names],
        ["ip", "link", "add", "v0", "netns", names[0], "type", "veth", "peer", "name", "v1",
         "netns", names[1]],
        *[c for i, n in enumerate(names) for c in (
            ["ip", "-n", n, "addr", "add", f"10.77.0.{i + 1}/24", "dev", f"v{i}"],
            ["ip", "-n", n, "link", "set", f"v{i}", "up"],
        )],
    ]  # fmt: skip
    try:
        for command in commands:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.skip(f"{' '.join(command)}: {done.stderr.strip()}")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def in_namespace(pipe, name: str, worker: int, *args):
    import ctypes

    fd = os.open(f"/var/run/netns/{name}", os.O_RDONLY)
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.setns(fd, 0x40000000) == 0, os.strerror(ctypes.get_errno())
    os.close(fd)
    return exchange_job(pipe, worker, *args)


@pytest.mark.netns
@pytest.mark.parametrize("spin", [True, False], ids=["spin", "blocking"])
def test_two_namespaces(namespaces, spin):
    with Workers() as workers:
        for i, name in enumerate(namespaces):
            # Bound by the name of the interface, and to it alone.
            workers.start(
                in_namespace, name, i, BOTH, SIZES, 3, True,
                {"spin": spin, "bind": f"v{i}", "congestion": "cubic"},
            )  # fmt: skip
        where = [workers.hear(i) for i in (0, 1)]
        assert [a[0][0] for a in where] == ["10.77.0.1", "10.77.0.2"]
        for i in (0, 1):
            workers.pipes[i].send({1 - i: where[1 - i]})
        for i in (0, 1):
            assert workers.result(i)["received_bytes"] == 3 * sum(SIZES)


def test_waiting_without_spin_uses_no_cpu():
    """A blocked worker leaves the core to others: no busy waiting when oversubscribed."""
    from tcp_pair import pair

    with pair(spin=False) as (_, _, _, right):
        assert right.post_recv(0, 8) == 0
        assert right.poll() == []
        before = time.process_time()
        right.wait(300_000_000)
        assert time.process_time() - before < 0.05
