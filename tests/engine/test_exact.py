"""The engine on the virtual clock against the plain reference, to the nanosecond."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.build import Case
from tests.reference.engine import Reference


def times_of(engine):
    ops = {
        (int(o["rank"]), int(o["node"]), int(o["iteration"])): [
            int(o["ready_ns"]),
            int(o["start_ns"]),
            int(o["end_ns"]),
        ]
        for o in engine.ops()
    }
    connections = engine.connections()
    messages = defaultdict(list)
    for m in engine.messages():
        c = connections[m["connection"]]
        key = tuple(int(c[f]) for f in ("communicator", "channel", "src", "dst", "index"))
        messages[key, int(m["direction"])].append(
            (int(m["nbytes"]), int(m["posted_ns"]), int(m["completed_ns"]))
        )
    return ops, dict(messages)


def times_of_reference(ref):
    messages = {}
    for key, w in ref.wires.items():
        sent = [(m[0], m[2], -1 if m[3] is None else m[3]) for m in w.queue[: w.posted]]
        done = [m[3] for m in w.queue if m[3] is not None]
        received = [
            (a[0], a[2], done[i] if i < len(done) else -1) for i, a in enumerate(w.announced)
        ]
        if sent:
            messages[key, 0] = sent
        if received:
            messages[key, 1] = received
    return dict(ref.ops), messages


def both(case):
    ref = Reference()
    case.fill(ref)
    ref.set_network(case.table, **case.net)
    expected = ref.run(case.iterations, case.warmup, case.time_scale)
    e = case.engine()
    found = e.run(
        iterations=case.iterations,
        warmup=case.warmup,
        time_scale=case.time_scale,
        log_messages="all",
    )
    assert found == expected, e.explain()
    ops, messages = times_of(e)
    want_ops, want_messages = times_of_reference(ref)
    assert ops == want_ops
    assert messages == want_messages
    return e, found


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**48))
def test_random_cases_equal_the_reference(seed):
    case = Case(seed)
    _, status = both(case)
    assert status == "done"


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**48))
def test_failed_links_equal_the_reference(seed):
    both(Case(seed, failures=True))


@pytest.mark.parametrize("seed", range(10))
def test_two_runs_are_identical(seed):
    tables = []
    for _ in range(2):
        e = Case(seed).engine()
        e.run()
        tables.append((e.ops().tobytes(), e.messages().tobytes(), e.now_ns))
    assert tables[0] == tables[1]


def test_logs_are_read_only_and_outlive_the_engine():
    e = Case(1).engine()
    e.run()
    ops = e.ops()
    copy = np.array(ops)
    del e
    assert not ops.flags.writeable
    assert (ops == copy).all()
