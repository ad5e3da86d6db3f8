"""Every combination that passes the rules is a trace set that checks, plans and simulates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jobs import DENSE, GPT, MOE, spec

import genie
from genie.errors import InputError
from genie.trace import Trace, load, write
from genie.trace.model import COLUMNS
from genie.workload.generate import prepare, workload

KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "one rank": (DENSE, {}),
    "dp": (DENSE, {"dp": 4}),
    "zero 1": (DENSE, {"dp": 4, "zero": 1}),
    "zero 2": (DENSE, {"dp": 4, "zero": 2}),
    "zero 3": (DENSE, {"dp": 4, "zero": 3}),
    "zero 3 kept": (DENSE, {"dp": 2, "pp": 2, "zero": 3, "reshard": False}),
    "hsdp": (DENSE, {"dp": 4, "zero": 3, "shard": 2}),
    "fsdp tp": (DENSE, {"dp": 2, "tp": 2, "zero": 3}),
    "tp": (DENSE, {"tp": 4, "sp": False}),
    "sp": (DENSE, {"tp": 4}),
    "1f1b": (DENSE, {"pp": 4}),
    "gpipe": (DENSE, {"pp": 4, "schedule": "gpipe"}),
    "1f1b in background": (DENSE, {"pp": 4, "overlap_p2p": True}),
    "interleaved": (DENSE, {"pp": 2, "vpp": 2}),
    "dealt": (DENSE, {"pp": 3, "dp": 2, "stage_layers": [1, 3, 0]}),
    "ends alone": (DENSE, {"pp": 3, "vpp": 2, "dp": 2, "zero": 3, "reshard": False}),
    "further tokens": ({**MOE, "mtp": 1}, {"dp": 2, "pp": 2, "ep": 2}),
    "further tokens zero bubble": (
        {**MOE, "mtp": 2},
        {"pp": 2, "tp": 2, "schedule": "zero-bubble", "zero": 1},
    ),
    "interleaved zero 1": (DENSE, {"pp": 2, "vpp": 2, "dp": 2, "zero": 1}),
    "zero bubble": (DENSE, {"pp": 4, "schedule": "zero-bubble"}),
    "zero bubble tp dp": (DENSE, {"pp": 2, "tp": 2, "dp": 2, "schedule": "zero-bubble", "zero": 1}),
    "ring": (DENSE, {"cp": 4}),
    "gathered": (DENSE, {"cp": 4, "cp_comm": "all_gather"}),
    "cp tp dp": (DENSE, {"cp": 2, "tp": 2, "dp": 2, "zero": 1}),
    "recompute": (DENSE, {"tp": 2, "pp": 2, "recompute": "full"}),
    "all dense": (DENSE, {"tp": 2, "pp": 2, "dp": 2, "zero": 1}),
    "gpt": (GPT, {"tp": 2, "pp": 2, "dp": 2}),
    "ep": (MOE, {"dp": 4, "ep": 4}),
    "ep skewed": (MOE, {"dp": 4, "ep": 4, "skew": 1.2}),
    "ep edp": (MOE, {"dp": 4, "ep": 2, "zero": 1}),
    "ep tp": (MOE, {"dp": 2, "tp": 2, "ep": 4}),
    "etp": (MOE, {"dp": 2, "tp": 2, "ep": 2, "etp": 2, "even": True}),
    "ep pp zero bubble": (MOE, {"dp": 2, "pp": 2, "ep": 2, "schedule": "zero-bubble"}),
    "moe fsdp": (MOE, {"dp": 4, "zero": 3}),
    "moe recompute": (MOE, {"dp": 2, "ep": 2, "recompute": "full"}),
    "two steps": (DENSE, {"dp": 2, "pp": 2, "zero": 1, "iterations": 2}),
}


def simulated(trace: Trace) -> genie.Recording:
    ranks = trace.world_size
    hosts = 2 if ranks % 2 == 0 else 1
    return genie.simulate(trace, genie.Cluster.local(hosts, ranks // hosts), log_messages=False)


@pytest.mark.parametrize("kind", KINDS)
def test_runs_to_its_end(kind: str) -> None:
    model, given_ = KINDS[kind]
    trace = workload(spec(model), **given_)
    trace.check()
    recording = simulated(trace)
    assert recording.complete
    # Compute nodes are one after the other: a step takes at least what a rank computes.
    busiest = max(int(rank.duration_ns[rank.kind == 4].sum()) for rank in trace.ranks)
    step = recording.steps()
    assert sum(int(row["time_ns"]) for row in step) >= busiest


@st.composite
def jobs(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any]]:
    """Draw a model and settings that mostly pass the rules."""
    pick = lambda *values: draw(st.sampled_from(values))  # noqa: E731
    model = {**pick(DENSE, GPT, MOE), "layers": 6}
    tp, cp, pp, dp = pick(1, 1, 2, 4), pick(1, 1, 2), pick(1, 2, 3), pick(1, 2, 3)
    if tp * cp * pp * dp > 18:
        dp = cp = 1
    schedule = pick("1f1b", "interleaved", "zero-bubble", "gpipe") if pp > 1 else "1f1b"
    drawn = {
        "tp": tp, "cp": cp, "pp": pp, "dp": dp, "schedule": schedule,
        "vpp": 2 if schedule == "interleaved" else 1,
        "micro_batches": draw(st.integers(1, 3)) * (pp if schedule == "interleaved" else 1),
        "micro": pick(1, 2), "zero": pick(0, 1, 2, 3) if pp == 1 else pick(0, 1, 3),
        "reshard": pp == 1 and draw(st.booleans()), "seed": draw(st.integers(0, 3)),
        "recompute": "none" if schedule == "zero-bubble" else pick("none", "full"),
        "attention": pick("flash", "unfused"), "cp_comm": pick("p2p", "all_gather"),
        "overlap_grads": draw(st.booleans()), "overlap_params": draw(st.booleans()),
        "bucket_parameters": pick(0, 1, 100_000), "group_names": pick("megatron", "pytorch"),
    }  # fmt: skip
    if "experts" in model:
        drawn["ep"] = pick(*(ways for ways in (1, 2, 4) if tp * cp * dp % ways == 0))
        drawn["skew"] = pick(0.0, 1.0)
    return model, drawn


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(job=jobs())
def test_whatever_the_rules_let_pass(job: tuple[dict[str, Any], dict[str, Any]]) -> None:
    model, drawn = job
    try:
        prepare(spec(model), **drawn)
    except InputError:
        return
    trace = workload(spec(model), **drawn)
    trace.check()
    assert simulated(trace).complete


def test_is_deterministic_and_a_rank_stands_alone() -> None:
    job = prepare(spec(MOE), dp=4, ep=4, skew=1.0, seed=7)
    again = prepare(spec(MOE), dp=4, ep=4, skew=1.0, seed=7)
    whole = [job.rank(rank).to_bytes() for rank in range(4)]
    assert again.rank(2).to_bytes() == whole[2]
    other = prepare(spec(MOE), dp=4, ep=4, skew=1.0, seed=8)
    assert other.rank(2).to_bytes() != whole[2]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_is_what_the_rank_does(kind: str, tmp_path: Path) -> None:
    # Ranks alike are encoded once (`template`); each alone must give the same trace.
    model, given_ = KINDS[kind]
    job = prepare(spec(model), **given_)
    together = load(job.write(tmp_path / "together"))
    alone = [job.rank(rank) for rank in range(job.world_size)]
    single = load(write(tmp_path / "alone", "job", alone, groups=job.groups()))
    for one, other in zip(together.ranks, single.ranks, strict=True):
        assert one.names() == other.names()
        for column in COLUMNS:
            if column == "group":
                continue
            assert (getattr(one, column) == getattr(other, column)).all(), column
        assert (one.deps == other.deps).all() and (one.dep_indptr == other.dep_indptr).all()
        names = [
            [t.group_names[g] if g >= 0 else "" for g in r.group]
            for t, r in ((together, one), (single, other))
        ]
        assert names[0] == names[1]
    # Whoever is asked for first.
    last = job.world_size - 1
    again = prepare(spec(model), **given_)
    assert again.content(last) == job.content(last)


def test_one_rank_of_a_large_job_costs_one_rank() -> None:
    few = prepare("llama3-405b", tp=8, pp=16, dp=1, zero=1)
    many = prepare("llama3-405b", tp=8, pp=16, dp=128, zero=1)
    assert many.world_size == 16384
    assert len(many.rank(5)) - len(few.rank(5)) < 40  # the gradient buckets alone


def test_the_trace_lives_as_long_as_it_is_used() -> None:
    trace = workload(spec(DENSE), dp=2)
    assert "forward.attention.layer0.mb0" in trace.ranks[1].names()


def test_decimal_group_names() -> None:
    trace = workload(spec(DENSE), dp=2, tp=2, pp=2, group_names="pytorch")
    trace.check()
    assert all(name.isdigit() for name in trace.groups)
    named = workload(spec(DENSE), dp=2, tp=2, pp=2)
    assert sorted(trace.groups.values()) == sorted(named.groups.values())
    assert len(set(trace.groups)) == len(named.groups)


def test_megatron_groups() -> None:
    # The example in the docstring of Megatron-LM's initialize_model_parallel: 16 GPUs, tp 2, pp 4.
    groups = prepare(spec(DENSE), dp=2, tp=2, pp=4).groups()

    def of(kind: str) -> set[tuple[int, ...]]:
        return {m for name, m in groups.items() if name.rpartition("_")[0] == kind}

    assert of("DATA_PARALLEL_GROUP") == {
        (0, 2), (1, 3), (4, 6), (5, 7), (8, 10), (9, 11), (12, 14), (13, 15),
    }  # fmt: skip
    assert of("TENSOR_MODEL_PARALLEL_GROUP") == {(i, i + 1) for i in range(0, 16, 2)}
    assert of("PIPELINE_MODEL_PARALLEL_GROUP") == {
        (0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("settings_", "rule"),
    [
        ({"tp": 3}, "heads .8. must be a multiple of tp .3."),
        ({"tp": 8}, "kv_heads .4. must be a multiple of tp .8."),
        ({"pp": 2, "stage_layers": [1, 2]}, "2 numbers .pp x vpp. that sum to 4 layers, not .1, 2"),
        ({"pp": 8}, "need 6 layers at least, not 4"),
        ({"pp": 2, "zero": 2}, "zero 2 .* pipeline"),
        ({"pp": 2, "zero": 3}, "reshard = false"),
        ({"sp": True}, "needs tp > 1"),
        ({"ep": 2}, "needs a model with experts"),
        ({"cp": 3}, "must be a multiple of 2 x cp"),
        ({"dp": 4, "batch": 6}, "multiple of dp x micro"),
        ({"dp": 2, "batch": 6, "micro_batches": 2}, "say one of them"),
        ({"pp": 2, "vpp": 2, "micro_batches": 3}, "multiple of pp"),
        ({"schedule": "interleaved"}, "needs pp > 1 and vpp > 1"),
        ({"schedule": "spiral"}, "none of 1f1b"),
        ({"gpu": "tpu"}, "no GPU 'tpu' .known: a100"),
        ({"dp": -1}, "dp must be at least 1"),
        ({"dp": "two"}, "Expected `int`"),
        ({"shard": 2}, "shard .2. is for zero 3"),
        ({"wings": 2}, "unknown setting wings"),
    ],
)
def test_refusals_name_the_rule(settings_: dict[str, Any], rule: str) -> None:
    with pytest.raises(InputError, match=rule):
        prepare(spec(DENSE), **settings_)


def test_routing_is_what_it_says() -> None:
    from genie.workload.experts import Router

    job = prepare(spec(MOE), dp=4, ep=4, skew=1.2)
    router = Router(job.spec, 128)
    for rank in range(4):
        counts = router.counts(1, 0, rank)
        assert counts.sum() == 128 * 2
        assert counts.max() <= 128
    balanced = Router(prepare(spec(MOE), dp=4, ep=4).spec, 100_000).counts(1, 0, 0)
    assert np.ptp(balanced) < 0.05 * balanced.mean()
