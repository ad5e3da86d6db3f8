"""Some replicas of a job: the same work, and the same bytes a rank on the wire."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jobs import DENSE, MOE, counts, spec, totals

import genie
from genie.errors import InputError
from genie.trace import Coll
from genie.workload.generate import prepare, workload
from genie.workload.part import on_the_wire


def ring_bytes(coll: Coll, nbytes: int, n: int) -> float:
    """Return what a rank of a ring sends (nccl-tests, doc/PERFORMANCE.md)."""
    if coll == Coll.ALL_GATHER:
        return nbytes * (n - 1)
    return nbytes * (n - 1) / n * (2 if coll == Coll.ALL_REDUCE else 1)


@given(
    coll=st.sampled_from([Coll.ALL_GATHER, Coll.ALL_REDUCE, Coll.REDUCE_SCATTER, Coll.ALL_TO_ALL]),
    size=st.integers(1, 1 << 30), n=st.integers(2, 512), data=st.data(),
    element=st.sampled_from([1, 2, 4]),
)  # fmt: skip
def test_rule(coll: Coll, size: int, n: int, data: st.DataObject, element: int) -> None:
    left = data.draw(st.integers(2, n))
    nbytes = size * element * n
    now = on_the_wire(coll, nbytes, n, left, element)
    shared = coll in {Coll.REDUCE_SCATTER, Coll.ALL_TO_ALL}
    assert now % (element * left if shared else element) == 0
    # To half a unit of rounding, which travels once around.
    slack = element * left * 2
    assert abs(ring_bytes(coll, now, left) - ring_bytes(coll, nbytes, n)) <= slack
    assert left < n or now == nbytes


@pytest.mark.parametrize(
    ("model", "given_"),
    [
        (DENSE, {"dp": 4, "tp": 2, "pp": 2, "zero": 1}),
        (DENSE, {"dp": 8, "zero": 3}),
        (DENSE, {"dp": 4, "cp": 2}),
        (MOE, {"dp": 4, "ep": 4, "even": True}),
    ],
)
def test_same_work_and_bytes(model: dict[str, Any], given_: dict[str, Any]) -> None:
    whole = workload(spec(model), **given_)
    part = workload(spec(model), **given_, replicas=2)
    part.check()
    assert part.world_size == whole.world_size // given_["dp"] * 2
    kept = prepare(spec(model), **given_, replicas=2).part
    assert kept is not None
    for new, old in enumerate(kept.kept):
        mine, theirs = part.ranks[new], whole.ranks[old]
        assert mine.names() == theirs.names()
        assert (mine.duration_ns == theirs.duration_ns).all()
        assert (mine.deps == theirs.deps).all()
        assert counts(part, new) == counts(whole, old)
        for i in np.flatnonzero(mine.kind == 7).tolist():
            coll = Coll(int(mine.coll[i]))
            sizes = [
                (int(r.nbytes[i]), len(t.members(int(r.group[i])) or ()))
                for t, r in ((part, mine), (whole, theirs))
            ]
            small, large = (ring_bytes(coll, *size) for size in sizes)
            assert small == pytest.approx(large, rel=1e-3, abs=16)
    assert genie.simulate(part, genie.Cluster.local(2, part.world_size // 2)).complete


def test_one_replica_has_no_traffic_with_others() -> None:
    one = workload(spec(MOE), dp=4, ep=4, pp=2, skew=1.0, replicas=1)
    one.check()
    assert one.world_size == 2
    assert {kind for _, kind in totals(one, 0)} <= {
        "PIPELINE_MODEL_PARALLEL_GROUP", "MODEL_PARALLEL_GROUP",
    }  # fmt: skip


def test_what_is_written_is_what_the_rank_does() -> None:
    # Ranks of a stage are encoded once; one of them alone gives the same nodes.
    settings = {"dp": 4, "tp": 2, "pp": 2, "zero": 1, "replicas": 2}
    job, again = prepare(spec(DENSE), **settings), prepare(spec(DENSE), **settings)
    for rank in range(job.world_size):
        content = job.content(rank)
        assert prepare(spec(DENSE), **settings).content(rank) == content
    trace, last = workload(spec(DENSE), **settings), again.world_size - 1
    peers = {int(p) for p in trace.ranks[last].peer if p >= 0}
    assert peers == {last - 4}


def test_all_replicas_are_the_job() -> None:
    job, same = prepare(spec(DENSE), dp=2), prepare(spec(DENSE), dp=2, replicas=2)
    assert same.part is None and same.content(1) == job.content(1)


@pytest.mark.parametrize(
    ("model", "given_", "rule"),
    [
        (DENSE, {"dp": 4, "replicas": 5}, "1 to dp .4.: 5"),
        (MOE, {"dp": 4, "ep": 4, "skew": 1.0, "replicas": 2}, "2 of 4 ranks are kept"),
    ],
)
def test_refusals(model: dict[str, Any], given_: dict[str, Any], rule: str) -> None:
    with pytest.raises(InputError, match=rule):
        workload(spec(model), **given_)
    with pytest.raises(InputError, match="generated as a whole"):
        prepare("dlrm", dp=4, replicas=1)
