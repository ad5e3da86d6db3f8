"""The engine on the wall clock: timers, transports, watchdog, abort, signals."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections import defaultdict

import numpy as np
import pytest

from genie._core.engine import CONN, Engine
from genie._core.loopback import Loopback
from genie.errors import InputError, ScheduleError
from tests.engine.build import RECV, SEND, Case, add_graph, chain, program, ring_all_reduce


def run_all(engines, **options):
    """Runs engines in one thread each; their statuses."""
    found = [None] * len(engines)

    def go(i):
        found[i] = engines[i].run(**options)

    threads = [threading.Thread(target=go, args=(i,)) for i in range(len(engines))]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
        assert not t.is_alive()
    return found


def ring_workers(n, nbytes, *, loops=1, nodes=1, window=8, channels=(0,), steps=1, per_worker=1):
    """A ring of n ranks over workers that share a Loopback."""
    worker = [r // per_worker for r in range(n)]
    n_workers = worker[-1] + 1
    rows = [
        (r, (r + 1) % n, 0, ch, 0, 0, 0, -1)
        for ch in channels
        for r in range(n)
        if worker[r] != worker[(r + 1) % n]
    ]
    table = np.array(rows, dtype=CONN)
    net = Loopback([worker[t["src"]] for t in table], [worker[t["dst"]] for t in table])
    engines = []
    for w in range(n_workers):
        e = Engine(clock="wall")
        c = e.add_communicator(np.arange(n))
        for r in range(n):
            if worker[r] != w:
                continue
            streams, ops = ring_all_reduce(n, r, nbytes, loops, channels, steps)
            p = e.add_program(streams, ops, window)
            add_graph(e, r, [(2, 0, p, c, d) for d in chain(nodes)], host=w)
        ids = [i for i, t in enumerate(table) if worker[t["src"]] == w or worker[t["dst"]] == w]
        e.add_connections(table[ids], ids)
        e.set_transport(net.capsule(w))
        engines.append(e)
    return engines, net, table


def test_two_control_dependent_delays_take_their_sum():
    e = Engine()
    add_graph(e, 0, [(1, 10_000_000, -1, -1, []), (1, 10_000_000, -1, -1, [0])])
    t = time.monotonic_ns()
    assert e.run() == "done"
    took = time.monotonic_ns() - t
    ops = e.ops()
    assert 20_000_000 <= ops["end_ns"].max() <= took
    assert (ops["end_ns"] - ops["start_ns"] >= 10_000_000).all()
    health = e.health()
    assert health["timer_error"]["count"] == 2
    assert health["wall_ns"] >= 20_000_000


def test_the_start_barrier_is_waited_for():
    e = Engine()
    add_graph(e, 0, [(0, 0, -1, -1, [])])
    at = time.monotonic_ns() + 30_000_000
    assert e.run(start_ns=at) == "done"
    assert e.start_ns == at
    assert time.monotonic_ns() >= at
    assert e.ops()["start_ns"][0] >= 0


def test_time_scale_stretches_delays():
    e = Engine()
    add_graph(e, 0, [(1, 1_000_000, -1, -1, [])])
    assert e.run(time_scale=5.0) == "done"
    assert 5_000_000 <= e.ops()["end_ns"][0] < 500_000_000


def test_deep_chain_without_recursion():
    n = 200_000
    e = Engine()
    add_graph(e, 0, [(0, 0, -1, -1, d) for d in chain(n)])
    assert e.run() == "done"
    assert len(e.ops()) == n
    assert (e.ops()["node"] == np.arange(n)).all()


@pytest.mark.parametrize("window", [1, 2, 8])
@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize(("n", "per_worker"), [(2, 1), (4, 1), (8, 4)])
def test_bytes_order_and_steps_seen_by_the_transport(n, per_worker, window, steps):
    loops, nodes = 5, 3
    engines, net, table = ring_workers(
        n,
        4096,
        loops=loops,
        nodes=nodes,
        window=window,
        steps=steps,
        channels=(0, 3),
        per_worker=per_worker,
    )
    assert set(run_all(engines, watchdog_s=20)) == {"done"}
    posts = net.posts()
    messages = nodes * loops * 2 * (n - 1)
    for kind in (0, 1):
        for conn in range(len(table)):
            mine = posts[(posts["kind"] == kind) & (posts["connection"] == conn)]
            assert len(mine) == messages
            assert (mine["nbytes"] == 4096).all()
            step = np.arange(messages) * steps
            if steps == 2:  # each all_reduce starts at a multiple of its 4 steps a chunk
                per = loops * 2 * (n - 1)
                start = (per * steps + 3) // 4 * 4
                step = step % (per * steps) + step // (per * steps) * start
            assert (mine["step"] == step).all()
    in_flight = np.zeros(len(table), int)
    for p in posts:  # never more sends than announcements
        in_flight[p["connection"]] += 1 if p["kind"] else -1
        assert in_flight[p["connection"]] >= 0
        assert in_flight[p["connection"]] * steps <= max(window, steps)
    sent = sum(e.connections()["sent"][e.connections()["kind"] == 1].sum() for e in engines)
    assert sent == messages * len(table)
    rows = np.concatenate([e.messages() for e in engines])
    assert len(rows) == 2 * messages * len(table)
    assert (rows["completed_ns"] >= rows["posted_ns"]).all()


def test_random_cases_over_a_transport_move_the_same_messages_as_the_simulation():
    for seed in range(12):
        case = Case(seed)
        sim = case.engine()
        assert sim.run() == "done"
        expected = sim.connections()
        hosts = sorted(set(case.hosts))
        net = Loopback(
            [hosts.index(case.hosts[t["src"]]) for t in case.table],
            [hosts.index(case.hosts[t["dst"]]) for t in case.table],
        )
        engines = []
        for w, host in enumerate(hosts):
            e = Engine()
            for members in case.communicators:
                e.add_communicator(members)
            for streams, ops, window, windows in case.programs:
                e.add_program(streams, ops, window, windows=windows)
            for rank, nodes in case.graphs.items():
                if case.hosts[rank] == host:
                    add_graph(e, rank, nodes, host=host)
            ids = [
                i
                for i, t in enumerate(case.table)
                if host in (case.hosts[t["src"]], case.hosts[t["dst"]])
            ]
            e.add_connections(case.table[ids], ids)
            e.set_transport(net.capsule(w))
            engines.append(e)
        assert set(run_all(engines, watchdog_s=20)) == {"done"}
        posts = net.posts()
        for i in range(len(case.table)):
            assert ((posts["connection"] == i) & (posts["kind"] == 0)).sum() == expected["sent"][i]
        by_conn = defaultdict(list)
        for m in sim.messages():
            if m["direction"] == 0:
                by_conn[int(expected["id"][m["connection"]])].append(int(m["nbytes"]))
        for i, sizes in by_conn.items():
            mine = posts[(posts["connection"] == i) & (posts["kind"] == 0)]
            assert mine["nbytes"].tolist() == sizes


def test_a_full_queue_is_tried_again():
    engines, net, _ = ring_workers(2, 64, loops=20)
    net.refuse(0, 7)
    assert run_all(engines, watchdog_s=20) == ["done", "done"]


def test_the_watchdog_names_who_waits_for_whom():
    engines, net, _ = ring_workers(2, 64, loops=3)
    net.lose(0, 2)  # rank 0 to rank 1: its third message vanishes
    assert run_all(engines, watchdog_s=0.3) == ["stalled", "stalled"]
    text = engines[1].explain(lambda rank, node: f"all_reduce {node} of rank {rank}")
    assert "rank 1 waits for message 2 (64 bytes) from rank 0: all_reduce 0 of rank 1" in text
    assert "channel 0" in text
    assert "last completion: rank" in text
    assert "rank 0 (another worker)" in text
    blocked = engines[1].blocked()
    assert len(blocked) == 1
    assert (blocked["rank"][0], blocked["peer"][0], blocked["message"][0]) == (1, 0, 2)
    assert len(engines[0].messages()) > 0


def test_a_peer_that_never_starts_is_named():
    engines, _, _ = ring_workers(2, 64)
    assert engines[0].run(watchdog_s=0.2) == "stalled"
    text = engines[0].explain()
    assert "rank 0 waits for" in text
    assert "no message has completed" in text


def test_a_failed_connection_is_recorded_and_ends_the_run():
    engines, net, _ = ring_workers(2, 64, loops=5)
    net.fail(0, 3, -errno.ECONNRESET)
    found = run_all(engines, watchdog_s=2)
    assert "failed" in found
    f = engines[0].failures()
    assert len(f) == 1
    assert f["status"][0] == -errno.ECONNRESET
    assert (f["rank"][0], f["peer"][0], f["node"][0], f["message"][0]) == (0, 1, 0, 3)
    assert "ECONNRESET" in engines[0].explain()
    rows = engines[0].messages()
    assert (rows["status"] == -errno.ECONNRESET).any()


def test_work_completion_statuses_are_kept():
    engines, net, _ = ring_workers(2, 64, loops=5)
    net.fail(1, 0, 12)
    run_all(engines, watchdog_s=2)
    assert 12 in {*engines[0].failures()["status"], *engines[1].failures()["status"]}


def test_abort_from_another_thread():
    engines, _, _ = ring_workers(2, 64)
    threading.Timer(0.1, engines[0].abort).start()
    t = time.monotonic()
    assert engines[0].run(watchdog_s=30) == "aborted"
    assert time.monotonic() - t < 2


def test_abort_while_only_computing():
    e = Engine()
    add_graph(e, 0, [(1, 30_000_000_000, -1, -1, [])])
    threading.Timer(0.1, e.abort).start()
    t = time.monotonic()
    assert e.run() == "aborted"
    assert time.monotonic() - t < 2
    assert e.ops()["end_ns"][0] == -1


def test_progress_is_called_and_its_errors_end_the_run():
    seen = []
    e = Engine()
    add_graph(e, 0, [(1, 50_000_000, -1, -1, d) for d in chain(8)])
    assert e.run(progress=lambda done, total: seen.append((done, total))) == "done"
    assert 2 <= len(seen) <= 8
    assert all(total == 8 for _, total in seen)

    def bad(done, total):
        raise RuntimeError("no more")

    e = Engine()
    add_graph(e, 0, [(1, 10_000_000_000, -1, -1, [])])
    with pytest.raises(RuntimeError, match="no more"):
        e.run(progress=bad)
    assert len(e.ops()) == 1


@pytest.mark.parametrize("with_network", [False, True])
def test_ctrl_c_in_a_process(with_network):
    code = f"""
        import sys, numpy as np
        from tests.engine.test_wall import ring_workers
        from tests.engine.build import add_graph
        from genie._core.engine import Engine
        if {with_network}:
            engines, net, table = ring_workers(2, 64)
            e = engines[0]
        else:
            e = Engine()
            add_graph(e, 0, [(1, 60_000_000_000, -1, -1, [])])
        print("running", flush=True)
        try:
            e.run(watchdog_s=60)
        except KeyboardInterrupt:
            print("interrupted", len(e.ops()), flush=True)
            sys.exit(1)
    """
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], cwd=root, stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout.readline() == "running\n"
        time.sleep(0.2)
        child.send_signal(signal.SIGINT)
        t = time.monotonic()
        out, _ = child.communicate(timeout=10)
    finally:
        child.kill()
    assert time.monotonic() - t < 3
    assert child.returncode == 1
    assert out == "interrupted 1\n"


def test_local_messages_take_the_modelled_time():
    e = Engine()
    e.set_local(latency_ns=3_000_000, bytes_per_ns=0.001)
    c = e.add_communicator([4, 7])
    p = e.add_program(*program([(0, 0, 0, [(SEND, 1, 2000)])]))
    q = e.add_program(*program([(0, 0, 0, [(RECV, 0, 2000)])]))
    add_graph(e, 4, [(2, 0, p, c, [])])
    add_graph(e, 7, [(2, 0, q, c, [])])
    assert e.run(log_messages="all") == "done"
    m = e.messages()
    m = m[m["direction"] == 0][0]
    assert 5_000_000 <= m["completed_ns"] - m["posted_ns"] < 100_000_000
    assert m["flags"] == 1


def test_iterations_and_warmup_are_numbered():
    engines, _, _ = ring_workers(2, 64, nodes=2)
    assert run_all(engines, iterations=3, warmup=2, watchdog_s=20) == ["done", "done"]
    ops = engines[0].ops()
    assert ops["iteration"].tolist() == [i for i in (-2, -1, 0, 1, 2) for _ in range(2)]
    assert (ops["end_ns"] >= ops["start_ns"]).all()


def test_cpu_time_when_waiting_is_small():
    e = Engine()
    add_graph(e, 0, [(1, 300_000_000, -1, -1, [])])
    assert e.run(spin_ns=0) == "done"
    health = e.health()
    assert health["cpu_user_ns"] + health["cpu_system_ns"] < 150_000_000


def test_an_engine_runs_once():
    e = Engine()
    add_graph(e, 0, [(0, 0, -1, -1, [])])
    e.run()
    with pytest.raises(InputError, match="already run"):
        e.run()
    with pytest.raises(InputError, match="already run"):
        add_graph(e, 1, [(0, 0, -1, -1, [])])


def test_a_missing_connection_is_refused_before_anything_runs():
    e = Engine()
    c = e.add_communicator([0, 1])
    p = e.add_program(*program([(2, 0, 0, [(SEND, 1, 10)])]))
    add_graph(e, 0, [(2, 0, p, c, [])])
    with pytest.raises(ScheduleError, match="no connection from rank 0 to rank 1 on channel 2"):
        e.run()


def test_two_nodes_without_an_order_edge_are_reported():
    engines, _, _ = ring_workers(2, 64)
    e = Engine()
    c = e.add_communicator([0, 1])
    p = e.add_program(*program([(0, 0, 0, [(RECV, 1, 10)])]))
    add_graph(e, 0, [(2, 0, p, c, []), (2, 0, p, c, [])])
    add_graph(e, 1, [(1, 1_000_000, -1, -1, [])])
    assert e.run() == "failed"
    assert e.failures()["status"][0] == -errno.EBUSY
    del engines
