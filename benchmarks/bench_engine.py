"""The engine without a network: graph nodes, simulated messages, log, timers.

Rates and costs are per second of CPU time of the engine's thread, so that neighbours on the
machine disturb them little; on an idle machine that is the wall clock.

Peers: ASTRA-sim and Chakra's feeder come from no package registry, so their numbers are
those measured in ../shared/perf.md (marked "quoted"); NumPy and `time.sleep` run here.
"""

from __future__ import annotations

import statistics
import time

import numpy as np

from genie._core.engine import CONN, OP, STREAM, Engine
from genie._core.links import nic_links

ASTRA_NODES = 66_000
"""Nodes/s of ASTRA-sim's analytical backend, 4 ranks (perf.md section 2)."""
FEEDER_NS = 2160
"""ns a node to walk with Chakra's C++ et_feeder (perf.md section 1)."""


def median_of(measure, repeats=5):
    """Median and spread of repeats."""
    found = [measure() for _ in range(repeats)]
    middle = statistics.median(found)
    return middle, (max(found) - min(found)) / middle


def spent(engine, cpu):
    """ns that a run took: of the wall clock, or of CPU time (which neighbours disturb less)."""
    health = engine.health()
    return health["cpu_user_ns"] + health["cpu_system_ns"] if cpu else health["wall_ns"]


def graph(n=1_000_000, ranks=4, *, log=True, clock="wall", cpu=False):
    """ns a node of a graph of instant nodes with two dependencies each, `n` in all."""
    e = Engine(clock=clock)
    m = n // ranks
    rng = np.random.default_rng(0)
    none = np.full(m, -1, np.int32)
    for r in range(ranks):
        parents = np.maximum(np.arange(m)[:, None] - 1 - rng.integers(0, 20, (m, 2)), 0)
        indptr = np.concatenate([[0, 0], np.arange(1, m) * 2])
        deps = parents[1:].ravel().astype(np.uint32)
        e.add_rank(r, np.zeros(m, np.uint8), np.zeros(m, np.int64), none, none, indptr, deps)
    assert e.run(ops_limit=None if log else 0) == "done"
    assert e.nodes_done == m * ranks
    return spent(e, cpu) / (m * ranks)


def ring(n, index, nbytes, loops, channels):
    """Program of one rank of a ring all_reduce (spec 3.3), one message a call."""
    calls = 2 * (n - 1)
    ops = np.zeros(2 * calls * loops, OP)
    ops["peer"][0::2], ops["peer"][1::2] = (index + 1) % n, (index - 1) % n
    ops["kind"][1::2] = 1
    ops["nbytes"], ops["steps"] = nbytes, 1
    ops["call"] = (np.arange(len(ops)) + 1) // 2
    streams = np.array([(c, 0, 0, 0, 0, len(ops)) for c in channels], STREAM)
    return streams, ops


def ring_messages(
    *, local, log=True, n=8, nbytes=65536, channels=2, loops=400, nodes=10, cpu=False
):
    """ns a message of ring all_reduces on n hosts (or inside one), and the engine."""
    e = Engine(clock="virtual")
    c = e.add_communicator(np.arange(n))
    used = range(channels)
    for r in range(n):
        p = e.add_program(*ring(n, r, nbytes, loops, used))
        indptr = np.concatenate([[0], np.arange(nodes)])
        e.add_rank(
            r, np.full(nodes, 2), np.zeros(nodes), np.full(nodes, p), np.full(nodes, c),
            indptr, np.arange(nodes - 1), host=0 if local else r,
        )  # fmt: skip
    if not local:
        rows = [(r, (r + 1) % n, c, ch, 0, 0, 0, -1) for ch in used for r in range(n)]
        table = np.array(rows, CONN)
        e.add_connections(table)
        e.set_network(**nic_links(table, range(n), 50.0, 1000))
    assert e.run(log_messages="all" if log else "none") == "done"
    sent = int(e.connections()["sent"].sum())
    assert sent == n * channels * loops * nodes * 2 * (n - 1)
    return spent(e, cpu) / sent


def log_ns():
    """ns that the log costs a graph node (one row of `ops`), from runs side by side."""
    pairs = [(graph(log=True, cpu=True), graph(log=False, cpu=True)) for _ in range(5)]
    return min(a for a, _ in pairs) - min(b for _, b in pairs)


def log_message_ns():
    """ns that the log costs a message event (posted, completed; both ends), side by side."""
    pairs = [
        (ring_messages(local=True, cpu=True), ring_messages(local=True, log=False, cpu=True))
        for _ in range(5)
    ]
    return (min(a for a, _ in pairs) - min(b for _, b in pairs)) / 4


def numpy_row_ns(n=20_000):
    """ns to assign one row of a NumPy structured array from Python."""
    table = np.zeros(n, dtype=[("rank", "i4"), ("node", "u4"), ("start", "i8"), ("end", "i8")])
    start = time.perf_counter_ns()
    for i in range(n):
        table[i] = (0, i, i, i)
    return (time.perf_counter_ns() - start) / n


def engine_waits(wait_ns=1_000_000, n=300):
    """Median lateness in us of delays of 1 ms in a chain."""
    e = Engine(clock="wall")
    none = np.full(n, -1, np.int32)
    indptr = np.concatenate([[0], np.arange(n)])
    e.add_rank(0, np.ones(n), np.full(n, wait_ns), none, none, indptr, np.arange(n - 1))
    assert e.run() == "done"
    return e.health()["timer_error"]["p50"] / 1e3


def python_waits(wait_ns=1_000_000, n=300):
    """Median lateness in us of `time.sleep`."""
    late = []
    for _ in range(n):
        start = time.perf_counter_ns()
        time.sleep(wait_ns / 1e9)
        late.append(time.perf_counter_ns() - start - wait_ns)
    return statistics.median(late) / 1e3


def row(area, peer, peer_value, ours, unit, ratio, goal, spread=None, note=""):
    """One row of the table."""
    return {
        "area": area, "peer": peer, "peer_value": peer_value, "ours": ours, "unit": unit,
        "ratio": ratio, "goal": goal, "spread": spread, "note": note,
    }  # fmt: skip


def run():
    """Rows of the table."""
    walk, walk_spread = median_of(lambda: graph(cpu=True))
    sim, sim_spread = median_of(lambda: ring_messages(local=False, cpu=True))
    local, local_spread = median_of(lambda: ring_messages(local=True, log=False, cpu=True))
    numpy_row = statistics.median(numpy_row_ns() for _ in range(5))
    logged, messages_logged = max(log_ns(), 0.01), max(log_message_ns(), 0.01)
    sleep, late = python_waits(), engine_waits()
    return [
        row(
            "graph nodes/s, no network, log on", "ASTRA-sim analytical (quoted)",
            float(ASTRA_NODES), 1e9 / walk, "nodes/s", 1e9 / walk / ASTRA_NODES,
            ">= 1e6 nodes/s", walk_spread, "wall clock, 4 ranks, 1e6 nodes, 2 dependencies each",
        ),
        row(
            "walk a graph node", "chakra C++ et_feeder (quoted)", float(FEEDER_NS), walk,
            "ns/node", FEEDER_NS / walk, "<= 200 ns", walk_spread, "log on",
        ),
        row(
            "simulated messages/s", "goal", 1e6, 1e9 / sim, "messages/s", 1e9 / sim / 1e6,
            ">= 1e6/s", sim_spread,
            "8 hosts, 2 channels on one NIC, ring all_reduce, 64 KiB, max-min sharing, log on",
        ),
        row(
            "engine's part of a message", "fakeverbs C loop (quoted)", 8.5, local, "ns/message",
            8.5 / local, "", local_spread, "both ends, program to completion, no log",
        ),
        row(
            "log of a graph node", "numpy structured row", numpy_row, logged, "ns/row",
            numpy_row / logged, "<= 5 ns an event", None, "ready, start and end: three events",
        ),
        row(
            "log of a message event", "numpy structured row", numpy_row, messages_logged,
            "ns/event", numpy_row / messages_logged, "<= 5 ns an event", None,
            "posted and completed, both ends",
        ),
        row(
            "lateness of a 1 ms wait, p50", "time.sleep", sleep, max(late, 0.001), "us",
            sleep / max(late, 0.001), "<= 1 us", None, "sleep to T-60 us, then spin",
        ),
    ]  # fmt: skip


if __name__ == "__main__":
    for line in run():
        print(f"{line['area']}: {line['ours']:.4g} {line['unit']}, ratio {line['ratio']:.3g}")
