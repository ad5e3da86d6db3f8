"""Collectives inside a host that are timed once: the same nanoseconds as running every message."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genie._core.engine import CONN, Engine
from genie._core.links import nic_links
from genie.errors import ScheduleError
from tests.engine.build import RECV, SEND, add_graph, program, ring_all_reduce
from tests.engine.test_exact import times_of
from tests.reference.engine import Reference


def plan_of(seed, *, short=False):
    """Random graphs: hosts of a few ranks, one communicator a host and one over all."""
    r = random.Random(seed)
    per, hosts = r.randint(2, 4), r.randint(1, 2)
    programs = []
    for n in (per, per, per * hosts):
        nbytes, loops = r.choice([1, 4096, 30_000]), 1 if short else r.randint(1, 3)
        programs.append([ring_all_reduce(n, i, nbytes, loops, (0, 1)) for i in range(n)])
    steps = r.randint(2, 4 if short else 9)
    script = [r.choice([0, 0, 0, 1, 1, 2]) for _ in range(steps)]
    # Equal delays on all ranks most of the time, so that patterns of starts come back.
    even = [r.choice([0, 5, 2000]) for _ in script]
    jitter = r.choice([0.0, 0.2, 1.0])
    graphs = []
    for rank in range(per * hosts):
        nodes = []
        for step, which in enumerate(script):
            delay = r.randint(0, 3000) if r.random() < jitter else even[step]
            parents = [len(nodes) - 1] if nodes else []
            if delay:
                nodes.append((1, delay, -1, -1, parents))
                parents = [len(nodes) - 1]
            host = rank // per
            where = hosts if which == 2 else host
            ident = (which, rank if which == 2 else rank % per)
            nodes.append((2, 0, ident, where, parents))
        graphs.append(nodes)
    return {
        "per": per, "hosts": hosts, "programs": programs, "graphs": graphs,
        "gpu": r.choice([(0, 0, 0), (7, 3.0, 2.5)]),
        "times": r.choice([{}, {"start_ns": 40}, {"move_ns": 9, "early": True}, {"send_ns": 70}]),
        "local": r.choice([(0, 0), (50, 0), (300, 8.0), (0, 2.0)]),
        "iterations": r.randint(1, 3),
    }  # fmt: skip


def fill(target, plan, **joint):
    """Gives the plan to an Engine or the reference."""
    per, hosts = plan["per"], plan["hosts"]
    for host in range(hosts):
        target.add_communicator(range(host * per, host * per + per), **joint)
    target.add_communicator(range(per * hosts), **joint)
    call, copy, reduce = plan["gpu"]
    target.set_gpu(
        call_ns=call, copy_bytes_per_ns=copy, reduce_bytes_per_ns=reduce, **plan["times"]
    )
    target.set_local(latency_ns=plan["local"][0], bytes_per_ns=plan["local"][1])
    number = {}
    for which, rows in enumerate(plan["programs"]):
        for i, (streams, ops) in enumerate(rows):
            number[which, i] = target.add_program(streams, ops)
    for rank, nodes in enumerate(plan["graphs"]):
        rows = [(k, d, number[p] if k == 2 else -1, c, deps) for k, d, p, c, deps in nodes]
        add_graph(target, rank, rows, host=rank // per)


def network(plan):
    per, hosts = plan["per"], plan["hosts"]
    n = per * hosts
    rows = [
        (r, (r + 1) % n, hosts, ch, 0, 0, 0, -1)
        for ch in (0, 1)
        for r in range(n)
        if r // per != (r + 1) % n // per
    ]
    table = np.array(rows, dtype=CONN)
    return table, nic_links(table, np.arange(n) // per, 3.0, 500)


def run(plan, *, joint):
    e = Engine(clock="virtual")
    fill(e, plan, joint=joint)
    table, net = network(plan)
    if len(table):
        e.add_connections(table)
        e.set_network(**net)
    assert e.run(iterations=plan["iterations"]) == "done", e.explain()
    return e


@settings(max_examples=120, deadline=None)
@given(st.integers(0, 2**48))
def test_joint_collectives_take_the_times_of_their_messages(seed):
    plan = plan_of(seed)
    plain, joint = run(plan, joint=False), run(plan, joint=True)
    assert plain.health()["joint_runs"] == 0
    assert times_of(joint) == times_of(plain)
    assert joint.now_ns == plain.now_ns
    np.testing.assert_array_equal(joint.connections(), plain.connections())


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 2**48))
def test_joint_collectives_equal_the_reference(seed):
    plan = plan_of(seed, short=True)
    ref = Reference()
    fill(ref, plan)
    table, net = network(plan)
    ref.set_network(table, **net)
    assert ref.run(plan["iterations"]) == "done"
    assert times_of(run(plan, joint=True))[0] == dict(ref.ops)


def alone(n, starts, *, repeats=1, joint=True, gap=1000):
    """A ring all_reduce of n ranks of one host, whose ranks start at `starts`."""
    e = Engine(clock="virtual")
    e.set_local(latency_ns=100, bytes_per_ns=4.0)
    c = e.add_communicator(range(n), joint=joint)
    for r in range(n):
        p = e.add_program(*ring_all_reduce(n, r, 4096, 2))
        nodes = [(1, starts[r], -1, -1, [])]
        for i in range(repeats):
            nodes += [(2, 0, p, c, [2 * i]), (1, gap, -1, -1, [2 * i + 1])]
        add_graph(e, r, nodes)
    return e


def test_equal_starts_are_run_once():
    e = alone(4, [7, 7, 7, 7], repeats=50)
    assert e.run() == "done"
    assert (e.health()["joint_runs"], e.health()["joint_hits"]) == (1, 49)
    plain = alone(4, [7, 7, 7, 7], repeats=50, joint=False)
    plain.run()
    assert e.now_ns == plain.now_ns
    assert e.health()["events"] < plain.health()["events"] / 5


def test_a_rank_that_never_starts_is_named():
    e = Engine(clock="virtual")
    e.set_local(latency_ns=100)
    c = e.add_communicator(range(3), joint=True)
    for r in range(3):
        p = e.add_program(*ring_all_reduce(3, r, 64))
        nodes = [(2, 0, p, c, [])]
        if r == 1:  # waits for itself
            nodes = [(0, 0, -1, -1, [1]), (0, 0, -1, -1, [0]), (2, 0, p, c, [0])]
        add_graph(e, r, nodes)
    assert e.run() == "stalled"
    text = e.explain()
    assert "rank 2 waits for message 0 (64 bytes) from rank 1" in text
    assert "itself waiting for nobody here: rank 1" in text


def test_two_collectives_at_once_fail_as_they_do_without():
    for joint in (True, False):
        e = Engine(clock="virtual")
        e.set_local(latency_ns=100)
        c = e.add_communicator(range(2), joint=joint)
        for r in range(2):
            p = e.add_program(*ring_all_reduce(2, r, 64))
            add_graph(e, r, [(2, 0, p, c, []), (2, 0, p, c, [])])
        assert e.run() == "failed"
        assert "two collectives use the connection at the same time" in e.explain()


def test_a_false_promise_is_found():
    # The root of this broadcast is done before the other rank starts.
    e = Engine(clock="virtual")
    c = e.add_communicator([0, 1], joint=True)
    send = e.add_program(*program([(0, 0, 0, [(SEND, 1, 8)])]))
    receive = e.add_program(*program([(0, 0, 0, [(RECV, 0, 8)])]))
    add_graph(e, 0, [(2, 0, send, c, [])])
    add_graph(e, 1, [(1, 500, -1, -1, []), (2, 0, receive, c, [0])])
    with pytest.raises(ScheduleError, match="before all ranks started it"):
        e.run()
