"""Bytes of a step and rank against the closed formulas of the literature.

n is the size of a group, psi the parameters of a rank, b the tokens of a micro-batch, h the width,
m the micro-batches, l the layers of the rank's stage.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jobs import DENSE, GPT, MOE, counts, spec, totals

import genie
from genie.trace import RankTrace
from genie.workload.generate import workload
from genie.workload.shapes import (
    embedding_parameters,
    layer_parameters,
    model_flops,
    parameters,
)
from genie.workload.spec import Model

TP, CP = "TENSOR_MODEL_PARALLEL_GROUP", "CONTEXT_PARALLEL_GROUP"
DP, PP = "DATA_PARALLEL_GROUP", "PIPELINE_MODEL_PARALLEL_GROUP"
EP, EDP = "EXPERT_MODEL_PARALLEL_GROUP", "EXPERT_DATA_PARALLEL_GROUP"

slow = settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
shapes = st.fixed_dictionaries(
    {
        "layers": st.integers(1, 4),
        "heads": st.just(8),
        "kv_heads": st.sampled_from([4, 8]),
        "hidden": st.sampled_from([64, 128, 192]),
        "ffn": st.sampled_from([96, 256]),
        "vocab": st.sampled_from([512, 1000]),
        "sequence": st.sampled_from([32, 64]),
    }
)


@slow
@given(shape=shapes, tp=st.sampled_from([2, 4]), m=st.integers(1, 3), micro=st.integers(1, 2))
def test_tensor_parallel(shape: dict[str, Any], tp: int, m: int, micro: int) -> None:
    # Megatron-LM (arXiv 1909.08053, section 3): 2 all_reduces of b h a layer forward, 2 backward;
    # the embedding sums once forward, the head's input gradient once backward.
    trace = workload(spec(shape), tp=tp, sp=False, micro_batches=m, micro=micro)
    bh = micro * shape["sequence"] * shape["hidden"] * 2
    loss = 3 * 4 * micro * shape["sequence"]
    expected = m * ((4 * shape["layers"] + 2) * bh + loss)
    for rank in range(tp):
        assert totals(trace, rank) == {
            ("all_reduce", TP): expected, ("all_reduce", "MODEL_PARALLEL_GROUP"): 4,
        }  # fmt: skip


@slow
@given(shape=shapes, tp=st.sampled_from([2, 4]), m=st.integers(1, 3))
def test_sequence_parallel(shape: dict[str, Any], tp: int, m: int) -> None:
    # Korthikanti et al. (arXiv 2205.05198, section 4.2.2): an all_gather and a reduce_scatter take
    # the place of each all_reduce, and each layer's two inputs are gathered once more backward.
    trace = workload(spec(shape), tp=tp, micro_batches=m)
    bh, layers = shape["sequence"] * shape["hidden"] * 2, shape["layers"]
    for rank in (0, tp - 1):
        found = totals(trace, rank)
        # Forward 2 a layer and the head; backward 2 a layer and the embedding, 2 a layer and the
        # head again for the weights.
        assert found["all_gather", TP] == m * (6 * layers + 3) * bh // tp
        assert found["reduce_scatter", TP] == m * (4 * layers + 2) * bh


@slow
@given(shape=shapes, pp=st.sampled_from([2, 4]), tp=st.sampled_from([1, 2]), m=st.integers(1, 5))
def test_pipeline(shape: dict[str, Any], pp: int, tp: int, m: int) -> None:
    # Narayanan et al. (arXiv 2104.04473, section 3.2): b h between neighbours each way and
    # micro-batch, under sequence parallel divided by tp.
    shape = {**shape, "layers": pp + 1}
    trace = workload(spec(shape), pp=pp, tp=tp, micro_batches=m)
    bh = shape["sequence"] * shape["hidden"] * 2 // tp
    for rank in range(pp * tp):
        ends = (rank // tp in {0, pp - 1}) + 0
        for verb in ("send", "recv"):
            assert totals(trace, rank)[verb, PP] == m * bh * (2 - ends)


@pytest.mark.parametrize("pp", [2, 4])
def test_interleaved_pipeline(pp: int) -> None:
    # Section 4.1 there: communication grows by the number of chunks; a ring of all stages.
    vpp, m = 2, 2 * pp
    shape = {**DENSE, "layers": pp * vpp}
    trace = workload(spec(shape), pp=pp, vpp=vpp)
    bh = shape["sequence"] * shape["hidden"] * 2
    sent = [totals(trace, r)["send", PP] + totals(trace, r)["send", ""] for r in range(pp)]
    # Every boundary but the two ends of the model is crossed both ways.
    assert sum(sent) == 2 * m * (pp * vpp - 1) * bh


@slow
@given(shape=shapes, dp=st.sampled_from([2, 3, 4]), m=st.integers(1, 2))
def test_data_parallel(shape: dict[str, Any], dp: int, m: int) -> None:
    # psi float32 gradients all_reduced once a step (2 psi (n - 1) / n on the wire).
    trace = workload(spec(shape), dp=dp, micro_batches=m)
    psi = parameters(Model(**shape))
    assert totals(trace, dp - 1) == {("all_reduce", DP): 4 * psi}


@slow
@given(
    shape=shapes, dp=st.sampled_from([2, 3, 4]), m=st.integers(1, 2), zero=st.sampled_from([1, 2]),
    bucket=st.sampled_from([0, 5000]),
)  # fmt: skip
def test_zero_1_and_2(shape: dict[str, Any], dp: int, m: int, zero: int, bucket: int) -> None:
    # ZeRO (arXiv 1910.02054, section 7.1): psi reduce-scattered and psi gathered; stage 2 reduces
    # every micro-batch. Buckets are padded to lcm(n, 128) parameters.
    trace = workload(spec(shape), dp=dp, micro_batches=m, zero=zero, bucket_parameters=bucket)
    psi, found, number = parameters(Model(**shape)), totals(trace, 0), counts(trace, 0)
    times = m if zero == 2 else 1
    pad = np.lcm(dp, 128) * number["all_gather", DP]
    scattered, gathered = found["reduce_scatter", DP], found["all_gather", DP]
    assert 4 * psi * times <= scattered < 4 * (psi + pad) * times
    assert 2 * psi <= gathered * dp < 2 * (psi + pad)
    # Both are the same parameters: 4-byte gradients, 2-byte weights.
    assert scattered == 2 * times * gathered * dp
    assert number["all_gather", DP] == 1 if not bucket else number["all_gather", DP] >= 1


@slow
@given(shape=shapes, dp=st.sampled_from([2, 4]), m=st.integers(1, 2))
def test_zero_3(shape: dict[str, Any], dp: int, m: int) -> None:
    # ZeRO section 7.2.2: psi gathered forward, psi backward (the root, embeddings and head, once),
    # psi reduce-scattered; per micro-batch.
    trace = workload(spec(shape), dp=dp, micro_batches=m, zero=3)
    model = Model(**shape)
    layers = sum(layer_parameters(model, i).total for i in range(model.layers))
    root = 2 * embedding_parameters(model) + model.hidden
    found, number = totals(trace, 1), counts(trace, 1)
    units = model.layers + 1
    assert number["all_gather", DP] == m * (2 * model.layers + 1)
    assert number["reduce_scatter", DP] == m * units
    slack = dp * (2 * model.layers + 1)
    assert 0 <= found["all_gather", DP] * dp - m * 2 * (2 * layers + root) < m * 2 * slack
    assert 0 <= found["reduce_scatter", DP] - m * 4 * (layers + root) < m * 4 * slack


def test_hsdp() -> None:
    # Shards are reduce-scattered among neighbours, then all_reduced among the replicas.
    trace = workload(spec(DENSE), dp=4, zero=3, shard=2, micro_batches=1)
    assert trace.groups["SHARD_GROUP_0"] == (0, 1)
    assert trace.groups["REPLICATE_GROUP_0"] == (0, 2)
    found = totals(trace, 3)
    assert found["all_reduce", "REPLICATE_GROUP"] * 2 == found["reduce_scatter", "SHARD_GROUP"]


@slow
@given(shape=shapes, cp=st.sampled_from([2, 4]), m=st.integers(1, 2))
def test_ring_attention(shape: dict[str, Any], cp: int, m: int) -> None:
    # Keys and values pass cp - 1 times forward and again backward, their gradients cp times.
    trace = workload(spec(shape), cp=cp, micro_batches=m)
    kv = shape["sequence"] // cp * 2 * shape["kv_heads"] * (shape["hidden"] // 8) * 2
    for rank in range(cp):
        for verb in ("send", "recv"):
            expected = m * shape["layers"] * kv * (2 * (cp - 1) + cp)
            assert totals(trace, rank)[verb, CP] == expected
    gathered = workload(spec(shape), cp=cp, micro_batches=m, cp_comm="all_gather")
    assert totals(gathered, 0)["all_gather", CP] == m * shape["layers"] * kv
    assert totals(gathered, 0)["reduce_scatter", CP] == m * shape["layers"] * kv * cp


@pytest.mark.parametrize("skew", [0.0, 1.0])
def test_expert_parallel(skew: float) -> None:
    # Dispatch and combine forward, both again backward: over all ranks each moves b top_k h.
    m, dp = 2, 4
    trace = workload(spec(MOE), dp=dp, ep=4, skew=skew, micro_batches=m)
    moe_layers = MOE["layers"] - MOE["dense_layers"]
    bkh = MOE["sequence"] * MOE["top_k"] * MOE["hidden"] * 2
    sent = [totals(trace, rank)["all_to_all", EP] for rank in range(dp)]
    assert sum(sent) == 4 * m * moe_layers * bkh * dp
    assert all(counts(trace, r)["all_to_all", EP] == 4 * m * moe_layers for r in range(dp))
    spread = max(sent) / min(sent)
    assert spread > 1.2 if skew else spread < 1.2


def test_expert_gradients() -> None:
    trace = workload(spec(MOE), dp=4, ep=2)
    model = Model(**MOE)
    experts = sum(
        s.expert * s.experts for s in (layer_parameters(model, i) for i in range(model.layers))
    )
    found = totals(trace, 0)
    assert found["all_reduce", EDP] == 4 * experts // 2
    assert found["all_reduce", DP] == 4 * (parameters(model) - experts)


def test_tied_embedding() -> None:
    trace = workload(spec(GPT), pp=2, dp=2)
    for rank in range(4):
        assert totals(trace, rank)["all_reduce", "EMBEDDING_GROUP"] == 4 * 1024 * 256


@slow
@given(shape=shapes, tp=st.sampled_from([1, 2]), pp=st.sampled_from([1, 2]), m=st.integers(1, 2))
def test_arithmetic(shape: dict[str, Any], tp: int, pp: int, m: int) -> None:
    # 6 FLOP a parameter and token and attention (Narayanan et al., appendix A), but FlashAttention
    # computes 5 products backward instead of 4 and the vocabulary is padded.
    shape = {**shape, "layers": 2 * pp, "vocab": 512}
    trace = workload(spec(shape), tp=tp, pp=pp, micro_batches=m)
    model = Model(**shape)
    tokens = m * shape["sequence"]
    done = sum(int(r.num_ops[r.kind == 4].sum()) for r in trace.ranks)
    expected = model_flops(model, tokens, shape["sequence"])
    attention = model.layers * 2.0 * tokens * shape["sequence"] / 2 * 2 * model.hidden
    norms = 6.0 * tokens * (2 * model.layers + 1) * model.hidden
    assert done == pytest.approx(expected + 0.5 * attention - norms, rel=1e-6)


@pytest.mark.parametrize(
    ("kind", "vpp", "bubble"),
    [
        # Idle share of a step over its ideal time, of p stages and m micro-batches: (p - 1) / m,
        # divided by v chunks (Narayanan et al., sections 2.2.1 and 2.2.2).
        ("gpipe", 1, 3 / 8),
        ("1f1b", 1, 3 / 8),
        ("interleaved", 2, 3 / 16),
        # ZB-H1 (arXiv 2401.10241, table 2): (p - 1)(F + B - W) instead of (p - 1)(F + B + W).
        ("zero-bubble", 1, None),
    ],
)
def test_bubble(kind: str, vpp: int, bubble: float | None) -> None:
    shape = {**DENSE, "layers": 8, "vocab": 8, "sequence": 64, "causal": True}
    # Arithmetic so slow that no time is spent elsewhere.
    trace = workload(spec(shape), pp=4, vpp=vpp, schedule=kind, micro_batches=8, efficiency=1e-6)
    step = genie.simulate(trace, genie.Cluster.local(2, 2), log_messages=False).steps()
    if bubble is None:
        forward, backward, weights = (
            _spent(trace.ranks[1], k) for k in ("forward", "backward", "weights")
        )
        bubble = 3 / 8 * (forward + backward - weights) / (forward + backward + weights)
    update = max(int(r.duration_ns[_named(r, "optimizer")].sum()) for r in trace.ranks)
    busy = max(int(r.duration_ns[~_named(r, "optimizer")].clip(0).sum()) for r in trace.ranks)
    assert (int(step[0]["time_ns"]) - update) / busy - 1 == pytest.approx(bubble, abs=0.03)


def _named(rank: RankTrace, name: str) -> npt.NDArray[np.bool_]:
    return np.array([text.partition(".")[0] == name for text in rank.names()])


def _spent(rank: RankTrace, name: str) -> int:
    return int(rank.duration_ns[_named(rank, name) & (rank.kind == 4)].sum())
