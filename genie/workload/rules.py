"""Which combinations make sense; every refusal names the rule that is broken."""

from __future__ import annotations

import msgspec

from genie.errors import InputError
from genie.trace.kinds import dtype_bytes
from genie.workload.spec import Model, Spec

FAMILIES = ("transformer", "dlrm", "convnet")
SCHEDULES = ("1f1b", "interleaved", "zero-bubble", "gpipe")


def validate(spec: Spec) -> None:
    """Refuse a spec that no framework would run.

    Raises:
        InputError: A rule is broken; the text names it with the numbers.
    """
    shape = spec.shape
    _positive(spec)
    _choices(spec)
    for name in ("compute", "activations", "parameters", "gradients"):
        dtype_bytes(getattr(spec.precision, name))
    if spec.precision.dispatch:
        dtype_bytes(spec.precision.dispatch)
    _batch(spec)
    if shape.family == "transformer":
        _shape(shape)
        _tensor(spec)
        _pipeline(spec)
        _context(spec)
        _data(spec)
        _experts(spec)
    else:
        _only_data_parallel(spec)


def _require(holds: bool, rule: str) -> None:
    if not holds:
        raise InputError(rule)


def _divides(what: str, value: int, by: str, parts: int) -> None:
    _require(value % parts == 0, f"{what} ({value}) must be a multiple of {by} ({parts})")


def _positive(spec: Spec) -> None:
    p = spec.parallelism
    for name in ("dp", "tp", "pp", "vpp", "cp", "ep"):
        _require(getattr(p, name) >= 1, f"{name} must be at least 1, not {getattr(p, name)}")
    sections = (spec.shape, p, spec.schedule, spec.batch)
    for section in sections:
        for name, value in msgspec.structs.asdict(section).items():
            if isinstance(value, int | float) and value < 0:
                raise InputError(f"{name} must not be negative, not {value}")
    _require(spec.micro >= 1, "micro must be at least 1 sequence")
    _require(spec.iterations >= 1, f"iterations must be at least 1, not {spec.iterations}")
    _require(spec.hardware.efficiency > 0, "efficiency must be above 0")
    _require(spec.routing.skew >= 0, "skew must not be negative")
    _require(spec.seed >= 0, "seed must not be negative")


def _choices(spec: Spec) -> None:
    given = {
        "family": (spec.shape.family, FAMILIES),
        "schedule": (spec.schedule.kind, SCHEDULES),
        "recompute": (spec.schedule.recompute, ("none", "full")),
        "attention": (spec.schedule.attention, ("flash", "unfused")),
        "zero": (spec.parallelism.zero, (0, 1, 2, 3)),
        "cp_comm": (spec.parallelism.cp_comm, ("p2p", "all_gather")),
        "scaling": (spec.precision.scaling, ("tensor", "block")),
        "group_names": (spec.group_names, ("megatron", "pytorch")),
    }
    for name, (value, known) in given.items():
        listed = ", ".join(str(item) for item in known)
        _require(value in known, f"{name} {value!r} is none of {listed}")


def _shape(shape: Model) -> None:
    for name in ("layers", "hidden", "heads", "vocab"):
        _require(getattr(shape, name) >= 1, f"a transformer needs {name}")
    _require(shape.dim >= 1, "a transformer needs head_dim, or hidden of at least heads")
    dense = not shape.experts or shape.dense_layers > 0
    _require(not dense or shape.ffn >= 1, "a transformer with dense layers needs ffn")
    _divides("heads", shape.heads, "kv_heads", shape.kv)
    if shape.experts:
        _require(shape.expert_ffn >= 1, "a model with experts needs expert_ffn")
        _require(
            1 <= shape.top_k <= shape.experts,
            f"top_k ({shape.top_k}) must be between 1 and experts ({shape.experts})",
        )
    if shape.kv_lora:
        _require(
            shape.v_head_dim >= 1 and shape.rope_dim >= 1,
            "latent attention (kv_lora) needs v_head_dim and rope_dim",
        )


def _tensor(spec: Spec) -> None:
    shape, p = spec.shape, spec.parallelism
    _divides("heads", shape.heads, "tp", p.tp)
    if not shape.kv_lora:
        _divides("kv_heads", shape.kv, "tp", p.tp)
    if shape.ffn:
        _divides("ffn", shape.ffn, "tp", p.tp)
    if shape.shared_experts:
        _divides("shared_experts x expert_ffn", shape.shared_experts * shape.expert_ffn, "tp", p.tp)
    _require(
        not (p.sp and p.tp == 1), "sequence parallel (sp) splits over the tp group: needs tp > 1"
    )
    if p.sequence_parallel:
        _divides("sequence / cp", spec.sequence // p.cp, "tp (sequence parallel)", p.tp)


def _pipeline(spec: Spec) -> None:
    shape, p, kind = spec.shape, spec.parallelism, spec.schedule.kind
    chunks = p.pp * p.vpp
    given = p.stage_layers
    _require(
        not given
        or (len(given) == chunks and sum(given) == shape.layers and min(given, default=0) >= 0),
        f"stage_layers must be {chunks} numbers (pp x vpp) that sum to {shape.layers} layers, not "
        f"{list(given)}",
    )
    _require(
        # The first may hold the embedding alone, the last the head alone (Llama 3 405B).
        bool(given) or shape.layers >= max(1, chunks - 2),
        f"{chunks} pipeline chunks (pp {p.pp} x vpp {p.vpp}) need {chunks - 2} layers at least, "
        f"not {shape.layers}",
    )
    _require(
        kind != "interleaved" or (p.pp > 1 and p.vpp > 1),
        f"the interleaved schedule needs pp > 1 and vpp > 1, not pp {p.pp} and vpp {p.vpp}",
    )
    _require(
        p.vpp == 1 or kind == "interleaved",
        f"vpp {p.vpp} needs the interleaved schedule, not {kind}",
    )
    if kind == "interleaved":
        _divides("micro-batches (interleaved schedule)", spec.micro_batches, "pp", p.pp)
        _require(
            spec.schedule.p2p_in_background,
            "the interleaved schedule needs overlap_p2p: a stage sends and receives at once",
        )
    _require(not (kind == "zero-bubble" and p.pp == 1), "the zero-bubble schedule needs pp > 1")
    _require(
        not (kind == "zero-bubble" and spec.schedule.recompute == "full"),
        "the zero-bubble schedule keeps activations until the weight pass: recompute must be none",
    )


def _context(spec: Spec) -> None:
    p = spec.parallelism
    if p.cp > 1:
        parts = 2 * p.cp if spec.shape.causal else p.cp
        by = "2 x cp (a causal ring is balanced by halves)" if spec.shape.causal else "cp"
        _divides("sequence", spec.sequence, by, parts)


def _data(spec: Spec) -> None:
    p = spec.parallelism
    _require(
        not (p.zero == 2 and p.pp > 1),
        f"zero 2 reduces gradients every micro-batch and is not run with a pipeline (pp {p.pp}); "
        "use zero 1",
    )
    _require(
        not (p.zero == 3 and p.pp > 1 and p.reshard),
        f"zero 3 with a pipeline (pp {p.pp}) gathers every layer twice a micro-batch; "
        "say reshard = false (gathered once a step, as Llama 3 does)",
    )
    _require(not p.shard or p.zero == 3, f"shard ({p.shard}) is for zero 3, not zero {p.zero}")
    if p.shard:
        _divides("dp x cp", p.dp * p.cp, "shard", p.shard)
    _require(
        not (p.zero == 3 and spec.shape.mtp),
        f"zero 3 with further-token modules (mtp {spec.shape.mtp}) is not generated",
    )
    _require(
        not (p.zero == 3 and spec.schedule.kind == "zero-bubble"),
        "zero 3 with the zero-bubble schedule is not defined: weights are needed twice backward",
    )


def _experts(spec: Spec) -> None:
    shape, p = spec.shape, spec.parallelism
    _require(bool(shape.experts) or p.ep == 1, f"ep ({p.ep}) needs a model with experts")
    _require(bool(shape.experts) or not p.etp, f"etp ({p.etp}) needs a model with experts")
    if not shape.experts:
        return
    _divides("experts", shape.experts, "ep", p.ep)
    _divides("dp x cp x tp", p.dp * p.cp * p.tp, "ep x etp", p.ep * p.expert_tp)
    _divides("expert_ffn", shape.expert_ffn, "etp", p.expert_tp)
    _require(
        p.tp == 1 or p.sequence_parallel,
        "experts with tp > 1 need sequence parallel (Megatron-LM refuses them without)",
    )
    _require(
        p.expert_tp == 1 or spec.routing.even,
        f"etp {p.expert_tp} gathers equal parts: needs even routing (routing.even), or etp = 1",
    )
    _require(
        not (p.zero == 3 and p.ep > 1),
        f"zero 3 shards every parameter over dp x cp and cannot be combined with ep {p.ep}",
    )


def _batch(spec: Spec) -> None:
    p, b, micro = spec.parallelism, spec.batch, spec.micro
    _require(
        not b.size or b.size % (p.dp * micro) == 0,
        f"the batch ({b.size}) must be a multiple of dp x micro ({p.dp} x {micro})",
    )
    _require(
        not (b.size and b.micro_batches) or b.size == p.dp * micro * b.micro_batches,
        f"batch {b.size} is not dp x micro x micro-batches ({p.dp} x {micro} x "
        f"{b.micro_batches}); say one of them",
    )


def _only_data_parallel(spec: Spec) -> None:
    p, family = spec.parallelism, spec.shape.family
    for name in ("tp", "pp", "cp", "ep", "vpp"):
        _require(getattr(p, name) == 1, f"a {family} is only split over dp: {name} must be 1")
    _require(p.zero == 0, f"a {family} is replicated: zero must be 0, not {p.zero}")
    if family == "dlrm":
        _require(
            bool(spec.shape.tables) and spec.shape.embedding_dim > 0,
            "a dlrm needs tables and embedding_dim",
        )
        _require(
            len(spec.shape.bottom_mlp) > 1 and len(spec.shape.top_mlp) > 1,
            "a dlrm needs bottom_mlp and top_mlp, two widths each at least",
        )
        _require(
            spec.shape.bottom_mlp[-1] == spec.shape.embedding_dim,
            f"the bottom MLP must end in embedding_dim ({spec.shape.embedding_dim}), not "
            f"{spec.shape.bottom_mlp[-1]}",
        )
    else:
        _require(len(spec.shape.blocks) >= 1, "a convnet needs blocks, one number a stage")
