"""Traffic patterns: who sends to whom, and that they run to their end."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import genie
from genie.errors import InputError
from genie.trace import Coll, Kind, Trace
from genie.workload.generate import workload
from genie.workload.patterns import KINDS, Pattern, PatternJob


def flows(trace: Trace) -> Counter[tuple[int, int]]:
    found = Counter[tuple[int, int]]()
    for rank in trace.ranks:
        for i in np.flatnonzero(rank.kind == Kind.COMM_SEND).tolist():
            found[rank.rank, int(rank.peer[i])] += int(rank.nbytes[i])
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_runs(kind: str) -> None:
    trace = workload(kind, ranks=8, per_host=4, size=1 << 16, end=1 << 18, repeat=2, gap="5us")
    trace.check()
    recording = genie.simulate(trace, genie.Cluster.local(2, 4), log_messages=False)
    assert recording.complete
    assert int(recording.steps()[0]["time_ns"]) > 10_000


def test_incast() -> None:
    trace = workload("incast", ranks=4, size=1000, root=2)
    assert flows(trace) == {(0, 2): 1000, (1, 2): 1000, (3, 2): 1000}


def test_pairwise() -> None:
    assert flows(workload("pairwise", ranks=4, size=8)) == {
        (0, 2): 8, (1, 3): 8, (2, 0): 8, (3, 1): 8,
    }  # fmt: skip


@settings(max_examples=20, deadline=None)
@given(ranks=st.integers(2, 40), seed=st.integers(0, 99))
def test_permutation(ranks: int, seed: int) -> None:
    job = PatternJob(Pattern(kind="permutation", ranks=ranks, seed=seed))
    to = job._destinations
    assert sorted(to) == list(range(ranks))
    assert all(to[rank] != rank for rank in range(ranks))


def test_rails() -> None:
    along = workload("rail", ranks=8, per_host=4)
    assert along.groups["RAIL_1"] == (1, 5)
    across = flows(workload("cross-rail", ranks=8, per_host=4, size=8))
    assert all(a // 4 != b // 4 and a % 4 != b % 4 for a, b in across)
    assert Counter(b for _, b in across) == dict.fromkeys(range(8), 1)


def test_tenants_share_no_host() -> None:
    trace = workload("tenants", ranks=16, per_host=4, tenants=2)
    assert trace.groups["TENANT_0"] == (0, 1, 2, 3, 8, 9, 10, 11)
    assert trace.groups["TENANT_1"] == (4, 5, 6, 7, 12, 13, 14, 15)


def test_size_sweep() -> None:
    trace = workload("size-sweep", ranks=4, coll="all_gather", size=1024, end=8192, repeat=2)
    rank = trace.ranks[0]
    assert rank.coll.tolist() == [Coll.ALL_GATHER] * 8
    assert rank.nbytes.tolist() == [256, 256, 512, 512, 1024, 1024, 2048, 2048]


@pytest.mark.parametrize(
    ("kind", "given_", "rule"),
    [
        ("incast", {"ranks": 1}, "at least 2 ranks"),
        ("rail", {"ranks": 12}, "multiple of per_host .8."),
        ("rail", {"ranks": 8}, "two hosts"),
        ("pairwise", {"ranks": 5}, "even number"),
        ("incast", {"root": 16}, "no root 16"),
        ("tenants", {"tenants": 3}, "3 tenants need as many hosts, not 2"),
        ("incast", {"tp": 2}, "unknown setting tp"),
        ("size-sweep", {"factor": 1.0}, "factor above 1"),
    ],
)
def test_refusals(kind: str, given_: dict[str, Any], rule: str) -> None:
    with pytest.raises(InputError, match=rule):
        workload(kind, **given_)
