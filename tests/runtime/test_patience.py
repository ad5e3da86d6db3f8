from __future__ import annotations

from types import SimpleNamespace

import numpy as np

import genie
from genie.replay.patience import longest_compute_ns
from genie.trace import Builder, load, write
from genie.trace.kinds import Coll, Kind


def rank(cls, delay):
    return SimpleNamespace(cls=np.array(cls, np.uint8), delay_ns=np.array(delay, np.int64))


def test_longest_stretch_of_compute():
    assert longest_compute_ns([rank([1, 2, 1, 1, 2, 1], [5, 0, 7, 8, 0, 1])]) == 15
    assert longest_compute_ns([rank([1, 2, 1], [50, 0, 7])]) == 57  # over the end of an iteration
    assert longest_compute_ns([rank([1, 1], [50, 9]), rank([2, 0], [0, 0]), rank([], [])]) == 0


def test_a_worker_waits_for_one_that_computes_long(tmp_path):
    """One rank computes for three times the timeout while the other waits for it."""
    ranks = []
    for comp_ns in (0, 3_000_000_000):
        builder = Builder()
        comp = builder.node(Kind.COMP, "long", duration_ns=comp_ns)
        builder.node(
            Kind.COMM_COLL, "grads", deps=[comp], coll=Coll.ALL_REDUCE, nbytes=4096, dtype="float32"
        )
        ranks.append(builder)
    write(tmp_path, "long", ranks)
    rec = genie.replay(load(tmp_path / "long"), "local:2", timeout=30.0, progress=False)
    assert rec.complete  # the workers need the thirty seconds only to start
    plan = genie.plan(load(tmp_path / "long"), genie.Cluster.local(2, 1))
    from genie.replay.control import Control, Settings
    from genie.replay.endpoints import parse_endpoints
    from genie.replay.launchers.local import LocalLauncher

    control = Control(
        plan, parse_endpoints("local:2"), LocalLauncher([0, 1]), Settings(timeout=30.0)
    )
    control.settings.timeout = 30.0
    control.watchdog -= 29.0  # one second beyond the compute, as with timeout=1
    outcome = control.run()
    assert outcome.error is None
