"""More bytes of a step and rank against closed formulas: combinations, experts, DLRM, ResNet."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jobs import DENSE, MOE, counts, spec, totals

from genie.trace import Trace
from genie.workload.dlrm import layers_of
from genie.workload.generate import prepare, workload
from genie.workload.layout import Layout
from genie.workload.shapes import embedding_parameters, layer_parameters, parameters
from genie.workload.sizes import padded_vocabulary
from genie.workload.spec import Model
from genie.workload.stages import chunks_of, local_parameters

TP, PP = "TENSOR_MODEL_PARALLEL_GROUP", "PIPELINE_MODEL_PARALLEL_GROUP"
DP, DP_CP = "DATA_PARALLEL_GROUP", "DATA_PARALLEL_GROUP_WITH_CP"
EP, ETP = "EXPERT_MODEL_PARALLEL_GROUP", "EXPERT_TENSOR_PARALLEL_GROUP"

few = settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@few
@given(
    tp=st.sampled_from([1, 2]), pp=st.sampled_from([1, 2, 4]), dp=st.sampled_from([2, 3]),
    m=st.integers(1, 3), hidden=st.sampled_from([64, 128]),
)  # fmt: skip
def test_tensor_pipeline_and_data_together(tp: int, pp: int, dp: int, m: int, hidden: int) -> None:
    # Megatron-LM's PTD-P (arXiv 2104.04473, section 3): the traffic of each dimension is that of
    # its own on a stage's layers and a rank's share of the parameters.
    shape = {**DENSE, "hidden": hidden, "layers": 2 * pp}
    job = spec(shape)
    trace = workload(job, tp=tp, pp=pp, dp=dp, micro_batches=m)
    bh = shape["sequence"] * hidden * 2
    layout = Layout(prepare(job, tp=tp, pp=pp, dp=dp).spec)
    whole = prepare(job, tp=tp, pp=pp, dp=dp, micro_batches=m).spec
    for rank in range(trace.world_size):
        found, stage = totals(trace, rank), layout.coordinates(rank)["pp"]
        # Gradients of the rank's own parameters, float32, once a step.
        assert found["all_reduce", DP] == 4 * local_parameters(whole, stage)
        ends = (stage == 0) + (stage == pp - 1)
        assert found["send", PP] == found["recv", PP] == m * bh // tp * (2 - ends)
        if tp > 1:
            chunk = chunks_of(whole, stage)[0]
            scattered = 4 * len(chunk.layers) + chunk.first + chunk.last
            assert found["reduce_scatter", TP] == m * scattered * bh
            gathered = 6 * len(chunk.layers) + chunk.first + 2 * chunk.last
            assert found["all_gather", TP] == m * gathered * bh // tp


def sent_between_stages(trace: Trace) -> list[int]:
    return [totals(trace, rank)["send", PP] for rank in range(trace.world_size)]


@pytest.mark.parametrize("m", [4, 6])
def test_schedules_send_the_same(m: int) -> None:
    # Zero-bubble and GPipe change the order of passes, not what crosses a boundary.
    usual = sent_between_stages(workload(spec(DENSE), pp=4, micro_batches=m))
    for schedule in ("zero-bubble", "gpipe"):
        other = workload(spec(DENSE), pp=4, micro_batches=m, schedule=schedule)
        assert sent_between_stages(other) == usual


def test_zero_bubble_gathers_inputs_for_the_weights() -> None:
    # As often as 1F1B: the gather of a region's input moves to the pass of the weights.
    def totals_of(schedule: str) -> list[dict[tuple[str, str], int]]:
        trace = workload(spec(DENSE), pp=2, tp=2, micro_batches=4, schedule=schedule)
        return [dict(totals(trace, rank)) for rank in range(4)]

    assert totals_of("zero-bubble") == totals_of("1f1b")


@few
@given(dp=st.sampled_from([2, 4]), pp=st.sampled_from([1, 2]), m=st.integers(1, 3))
def test_zero_3_kept_after_forward(dp: int, pp: int, m: int) -> None:
    # Llama 3 (arXiv 2407.21783, section 3.3.2): psi gathered once and reduced once a step.
    trace = workload(spec(DENSE), dp=dp, pp=pp, zero=3, reshard=False, micro_batches=m)
    whole = prepare(spec(DENSE), dp=dp, pp=pp).spec
    for rank in range(trace.world_size):
        psi = local_parameters(whole, rank // dp)
        found, units = totals(trace, rank), counts(trace, rank)["all_gather", DP]
        assert 0 <= found["all_gather", DP] * dp - 2 * psi < 2 * dp * units
        assert 0 <= found["reduce_scatter", DP] - 4 * psi < 4 * dp * units


@few
@given(shards=st.sampled_from([2, 3]), replicas=st.sampled_from([2, 3]), m=st.integers(1, 2))
def test_hsdp_over_shapes(shards: int, replicas: int, m: int) -> None:
    # Zhao et al. (arXiv 2304.11277, section 3.2.2): reduce-scatter among shards, all_reduce of the
    # shards among replicas; 4 psi / shards a micro-batch there.
    trace = workload(
        spec(DENSE), dp=shards * replicas, zero=3, shard=shards, micro_batches=m
    )  # fmt: skip
    for rank in range(trace.world_size):
        found = totals(trace, rank)
        scattered = found["reduce_scatter", "SHARD_GROUP"]
        assert found["all_reduce", "REPLICATE_GROUP"] * shards == scattered
        units = counts(trace, rank)["reduce_scatter", "SHARD_GROUP"]
        psi = parameters(Model(**DENSE))
        assert 0 <= scattered - m * 4 * psi < 4 * shards * units


@few
@given(
    ep=st.sampled_from([1, 2, 4]), top_k=st.integers(1, 4), m=st.integers(1, 2),
    dispatch=st.sampled_from([("bfloat16", 2), ("float8_e4m3", 1)]), pp=st.sampled_from([1, 2]),
)  # fmt: skip
def test_expert_parallel_over_shapes(
    ep: int, top_k: int, m: int, dispatch: tuple[str, int], pp: int
) -> None:
    # DeepSeek-V3 (arXiv 2412.19437, section 3.3.3): dispatch in 8 bits forward, the rest in 16.
    shape = {**MOE, "top_k": top_k, "layers": 4}
    dp = 4
    trace = workload(
        spec(shape), dp=dp, ep=ep, pp=pp, micro_batches=m, dispatch_dtype=dispatch[0], skew=0.5
    )
    moe_layers = shape["layers"] - shape["dense_layers"]
    copies = shape["sequence"] * top_k * shape["hidden"] * dp
    sent = sum(totals(trace, rank)["all_to_all", EP] for rank in range(trace.world_size))
    assert sent == (m * moe_layers * copies * (3 * 2 + dispatch[1]) if ep > 1 else 0)


def test_tensor_parallel_experts() -> None:
    # Each of etp ranks gathers the others' tokens and scatters the sums, forward and backward.
    m, tp = 2, 2
    trace = workload(spec(MOE), dp=2, tp=tp, ep=2, etp=2, even=True, micro_batches=m)
    layers = MOE["layers"] - MOE["dense_layers"]
    # Tokens a rank dispatches, all experts' copies, over the ranks of its tensor-parallel group.
    rows = MOE["sequence"] // tp * MOE["top_k"] * MOE["hidden"] * 2
    for rank in range(4):
        found = totals(trace, rank)
        assert found["all_gather", ETP] == 2 * m * layers * rows
        assert found["reduce_scatter", ETP] == 2 * m * layers * rows * 2


def test_context_parallel_gradients() -> None:
    # Replicas of the parameters are all of dp x cp.
    trace = workload(spec(DENSE), dp=2, cp=2)
    assert totals(trace, 1)["all_reduce", DP_CP] == 4 * parameters(Model(**DENSE))


@few
@given(
    tables=st.lists(st.integers(10, 10_000), min_size=2, max_size=9), ranks=st.sampled_from([2, 4]),
    dim=st.sampled_from([16, 64]), samples=st.sampled_from([4, 32]), m=st.integers(1, 2),
)  # fmt: skip
def test_dlrm(tables: list[int], ranks: int, dim: int, samples: int, m: int) -> None:
    # Naumov et al. (arXiv 1906.00091, section 3): every rank gets the pooled rows of its samples
    # from every table, and returns their gradients; perceptrons are all_reduced.
    model = {
        "family": "dlrm", "tables": tables, "embedding_dim": dim, "bottom_mlp": [13, dim],
        "top_mlp": [64, 32, 1], "samples": samples,
    }  # fmt: skip
    trace = workload({"name": "job", "model": model}, dp=ranks, micro_batches=m)
    sent = [totals(trace, rank)["all_to_all", ""] for rank in range(ranks)]
    # Forward one row a table and sample of the whole batch, backward as much.
    assert sum(sent) == 2 * m * len(tables) * dim * 2 * samples * ranks
    dense = sum(layers_of((13, dim))) + sum(layers_of((64, 32, 1)))
    assert all(totals(trace, rank)["all_reduce", ""] == 4 * dense for rank in range(ranks))


def test_resnet_50() -> None:
    # 25 557 032 parameters (torchvision's model), float32 gradients in buckets.
    trace = workload("resnet-50", dp=4)
    assert totals(trace, 3) == {("all_reduce", ""): 4 * 25_557_032}


def test_further_tokens() -> None:
    # A module: a layer, a projection of two widths to one with two norms, and the head again.
    plain = {**MOE, "router_bias": True}
    layer = layer_parameters(Model(**plain), 3)
    h = MOE["hidden"]
    extra = layer.total - layer.expert * layer.experts + 2 * h * h + 2 * h
    gradients = {}
    for mtp in (0, 1):
        trace = workload(spec({**plain, "mtp": mtp}), dp=4, ep=4, micro_batches=1)
        found = totals(trace, 0)
        gradients[mtp] = found["all_reduce", DP]
        moe_layers = MOE["layers"] - MOE["dense_layers"] + mtp
        assert counts(trace, 0)["all_to_all", EP] == 4 * moe_layers
        names = trace.ranks[0].names()
        assert sum(name.startswith("forward.head.") for name in names) == 1 + mtp
    assert gradients[1] - gradients[0] == 4 * extra
    assert parameters(Model(**plain)) == parameters(Model(**{**plain, "mtp": 1}))


@pytest.mark.parametrize("schedule", ["1f1b", "zero-bubble"])
def test_further_tokens_do_all_their_arithmetic(schedule: str) -> None:
    # A layer, the projection and the head, forward and twice that backward, whoever does it when.
    shape: dict[str, Any] = {**DENSE, "vocab": 512, "layers": 6}
    done = []
    for mtp in (0, 1):
        trace = workload(
            spec({**shape, "mtp": mtp}), pp=2, schedule=schedule, micro_batches=1,
            attention="unfused",
        )  # fmt: skip
        done.append(sum(int(r.num_ops[r.kind == 4].sum()) for r in trace.ranks))
    model = Model(**shape)
    layer = layer_parameters(model, 0)
    matrices = layer.attention + layer.dense + 2 * model.hidden**2 + embedding_parameters(model)
    tokens = shape["sequence"]
    # Unfused attention: every key, three times as much backward as forward.
    scores = 4 * 2.0 * tokens * tokens * 2 * model.hidden
    assert done[1] - done[0] == pytest.approx(6 * matrices * tokens + scores, rel=1e-9)


def test_models_agree_with_their_own_totals() -> None:
    # Every parameter of a model is on exactly one pipeline stage, tensor and expert rank.
    for name, ways in (
        ("llama3-70b", {"tp": 8, "pp": 4}),
        ("qwen3-235b-a22b", {"pp": 2, "dp": 8, "ep": 8}),
    ):
        whole = prepare(name, **ways).spec
        split = whole.parallelism
        model = whole.shape
        replicated = sum(layer_parameters(model, i).replicated for i in range(model.layers))
        held = sum(
            local_parameters(whole, stage) * split.tp
            + local_parameters(whole, stage, expert=True) * split.ep
            for stage in range(split.pp)
        )
        last_norm = model.hidden
        padded = held - (split.tp - 1) * (replicated + last_norm)
        # The vocabulary is padded to a multiple of 128 x tp.
        rows = padded_vocabulary(model.vocab, split.tp) - model.vocab
        assert padded == parameters(model) + 2 * rows * model.hidden
