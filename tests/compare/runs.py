"""Recordings of the bundled demo trace, made once for the tests of figures and reports."""

from __future__ import annotations

from functools import cache

import genie
from corpus_data import ROOT


@cache
def simulated(rate: float | None = None) -> genie.Recording:
    """Return the demo on two hosts, host 0's NIC at `rate` GB/s."""
    network = genie.Network() if rate is None else genie.Network().degrade(0, 0, rate)
    trace = genie.load(ROOT / "workloads" / "demo")
    return genie.simulate(trace, genie.Cluster.local(2, 4), network=network, iterations=2)
