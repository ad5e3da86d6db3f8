"""What a job is: model, parallelism, schedule, hardware, precision and batch, read from TOML."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from genie.errors import InputError


class _Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class Model(_Section, frozen=True):
    """Shape of a model; what a family does not use stays 0.

    Attributes:
        name: What it is called.
        family: "transformer", "dlrm" or "convnet".
        layers: Transformer layers.
        hidden: Width of the residual stream.
        heads: Attention heads.
        kv_heads: Heads of keys and values (grouped-query attention); 0 = heads.
        head_dim: Width of one head; 0 = hidden / heads.
        ffn: Width of the dense feed-forward layer.
        vocab: Tokens of the vocabulary.
        sequence: Training sequence length, tokens.
        gated: Three feed-forward matrices (SwiGLU) instead of two.
        tied: Input and output embedding are one matrix.
        bias: Linear layers have biases and norms are LayerNorm (GPT-3), not RMSNorm.
        positions: Rows of a learned position embedding.
        qk_norm: Queries and keys are normalised per head (Qwen3).
        causal: A token attends to those before it only: half the attention arithmetic.
        experts: Routed experts of a mixture-of-experts layer; 0 = dense.
        top_k: Experts a token goes to.
        expert_ffn: Width of one expert.
        shared_experts: Experts every token goes to, each `expert_ffn` wide.
        router_bias: The router has one bias an expert (DeepSeek-V3).
        dense_layers: First layers that are dense in a mixture-of-experts model.
        mtp: Modules that predict further tokens in training (DeepSeek-V3), each a projection of
            two widths to one, a layer and the head again; not counted among the parameters.
        q_lora, kv_lora, rope_dim, v_head_dim: Ranks and widths of multi-head latent attention
            (DeepSeek); `head_dim` is then the part of a head without rotary embedding.
        tables: Embedding tables, rows each (dlrm).
        embedding_dim: Width of an embedding row (dlrm).
        lookups: Rows pooled per table and sample (dlrm).
        bottom_mlp, top_mlp: Widths of the multilayer perceptrons, input first (dlrm).
        blocks: Bottleneck blocks of each stage of a residual network (convnet).
        image: Pixels along one edge (convnet).
        classes: Outputs of the classifier (convnet).
        samples: Samples of a micro-batch where the spec does not say.
    """

    name: str = "model"
    family: str = "transformer"
    layers: int = 0
    hidden: int = 0
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    ffn: int = 0
    vocab: int = 0
    sequence: int = 1
    gated: bool = True
    tied: bool = False
    bias: bool = False
    positions: int = 0
    qk_norm: bool = False
    causal: bool = True
    experts: int = 0
    top_k: int = 0
    expert_ffn: int = 0
    shared_experts: int = 0
    router_bias: bool = False
    dense_layers: int = 0
    mtp: int = 0
    q_lora: int = 0
    kv_lora: int = 0
    rope_dim: int = 0
    v_head_dim: int = 0
    tables: tuple[int, ...] = ()
    embedding_dim: int = 0
    lookups: int = 1
    bottom_mlp: tuple[int, ...] = ()
    top_mlp: tuple[int, ...] = ()
    blocks: tuple[int, ...] = ()
    image: int = 224
    classes: int = 1000
    samples: int = 1

    @property
    def kv(self) -> int:
        """Heads of keys and values."""
        return self.kv_heads or self.heads

    @property
    def dim(self) -> int:
        """Width of one head."""
        return self.head_dim or (self.hidden // self.heads if self.heads else 0)


class Parallelism(_Section, frozen=True):
    """How many ways each dimension is split.

    Attributes:
        dp: Data-parallel replicas.
        tp: Tensor parallel (Megatron-LM).
        sp: Sequence parallel inside the tensor-parallel group; None = when tp > 1.
        pp: Pipeline stages.
        vpp: Model chunks a stage (interleaved schedule).
        stage_layers: Layers of each chunk in model order; () = as even as they can be dealt.
        cp: Context parallel.
        cp_comm: "p2p" (ring attention) or "all_gather".
        ep: Expert parallel.
        etp: Tensor parallel of the experts; 0 = 1 (Megatron-LM's default is tp, its advice 1).
        zero: 0 replicated, 1 optimizer state sharded (Megatron's distributed optimizer), 2 also
            gradients, 3 also parameters (FSDP).
        shard: Ranks a ZeRO-3 shard group spans (HSDP); 0 = all of dp x cp.
        reshard: ZeRO-3 frees parameters after the forward pass.
    """

    dp: int = 1
    tp: int = 1
    sp: bool | None = None
    pp: int = 1
    vpp: int = 1
    stage_layers: tuple[int, ...] = ()
    cp: int = 1
    cp_comm: str = "p2p"
    ep: int = 1
    etp: int = 0
    zero: int = 0
    shard: int = 0
    reshard: bool = True

    @property
    def world(self) -> int:
        """Ranks of the job."""
        return self.dp * self.tp * self.pp * self.cp

    @property
    def sequence_parallel(self) -> bool:
        """Whether activations are split along the sequence between tensor-parallel regions."""
        return self.tp > 1 if self.sp is None else self.sp

    @property
    def expert_tp(self) -> int:
        """Tensor parallel of the experts."""
        return self.etp or 1

    @property
    def expert_dp(self) -> int:
        """Replicas of one expert."""
        return self.dp * self.cp * self.tp // (self.ep * self.expert_tp)


class Schedule(_Section, frozen=True):
    """In which order a rank does its work, and what overlaps.

    Attributes:
        kind: "1f1b", "interleaved", "zero-bubble" (ZB-H1) or "gpipe".
        overlap_grads: Gradient buckets are reduced behind the backward pass.
        overlap_params: Sharded parameters are gathered behind the forward pass.
        overlap_p2p: Sends between stages do not hold up the next computation; None = where the
            schedule needs it (interleaved, zero-bubble).
        bucket_parameters: Parameters of a gradient bucket; 0 = max(40e6, 1e6 x dp), Megatron-LM's.
        recompute: "none" or "full" (every layer's forward pass again before its backward pass).
        attention: "flash" (FlashAttention) or "unfused" (scores go through memory and, if causal,
            are computed whole; they are computed again backward, as Megatron-LM's selective
            recomputation does).
    """

    kind: str = "1f1b"
    overlap_grads: bool = True
    overlap_params: bool = True
    overlap_p2p: bool | None = None
    bucket_parameters: int = 0
    recompute: str = "none"
    attention: str = "flash"

    @property
    def p2p_in_background(self) -> bool:
        """Whether sends between stages do not hold up the next computation."""
        if self.overlap_p2p is None:
            return self.kind in {"interleaved", "zero-bubble"}
        return self.overlap_p2p


class Hardware(_Section, frozen=True):
    """The GPU of the roofline.

    Attributes:
        gpu: A name of `gpus.toml`.
        times: CSV file of measured times (columns name, time_us); they win over the roofline.
        efficiency: Factor on every efficiency of the table, to try assumptions.
        comm_sms: Multiprocessors kept for communication kernels throughout (DeepSeek-V3: 20).
    """

    gpu: str = "h100"
    times: str = ""
    efficiency: float = 1.0
    comm_sms: int = 0


class Precision(_Section, frozen=True):
    """Element types.

    Attributes:
        compute: Matrix products.
        activations: What tensor, pipeline and context parallelism exchange.
        parameters: What ZeRO gathers.
        gradients: What data parallelism reduces.
        dispatch: What an expert dispatch sends; "" = activations.
        scaling: 8-bit products with one scale a "tensor" (Transformer Engine) or a "block"
            (DeepSeek-V3).
    """

    compute: str = "bfloat16"
    activations: str = "bfloat16"
    parameters: str = "bfloat16"
    gradients: str = "float32"
    dispatch: str = ""
    scaling: str = "tensor"


class Batch(_Section, frozen=True):
    """How much one step trains on.

    Attributes:
        size: Sequences (samples) of a step over all ranks; 0 = dp x micro x micro_batches.
        micro: Sequences (samples) of a micro-batch; 0 = the model's `samples`.
        micro_batches: Micro-batches of a step per replica; 0 = from `size`, else 2 x pp.
        sequence: Tokens of a sequence; 0 = the model's.
    """

    size: int = 0
    micro: int = 0
    micro_batches: int = 0
    sequence: int = 0


class Routing(_Section, frozen=True):
    """How uneven a mixture-of-experts router is.

    Attributes:
        skew: Exponent of the Zipf law of expert popularity; 0 = balanced in the mean.
        even: Every expert gets the same number of tokens, so the all_to_all is even.
    """

    skew: float = 0.0
    even: bool = False


class Spec(_Section, frozen=True, kw_only=True):
    """A whole job.

    Attributes:
        name: What it is called; prefix of its files.
        model: Shape, or the name of a known model.
        iterations: Training steps in the trace.
        seed: Of everything drawn.
        group_names: "megatron" (TENSOR_MODEL_PARALLEL_GROUP_0) or "pytorch" (decimal, in order of
            creation, as process groups are called in Chakra traces of PyTorch).
    """

    name: str = ""
    model: Model | str
    parallelism: Parallelism = Parallelism()
    schedule: Schedule = Schedule()
    hardware: Hardware = Hardware()
    precision: Precision = Precision()
    batch: Batch = Batch()
    routing: Routing = Routing()
    iterations: int = 1
    seed: int = 0
    group_names: str = "megatron"

    @property
    def shape(self) -> Model:
        """The model; a name has been looked up by then."""
        assert isinstance(self.model, Model)
        return self.model

    @property
    def sequence(self) -> int:
        """Tokens of a sequence."""
        return self.batch.sequence or self.shape.sequence

    @property
    def micro(self) -> int:
        """Sequences (samples) of a micro-batch."""
        return self.batch.micro or self.shape.samples

    @property
    def micro_batches(self) -> int:
        """Micro-batches of a step per replica."""
        if self.batch.micro_batches:
            return self.batch.micro_batches
        if self.batch.size:
            return self.batch.size // (self.parallelism.dp * self.micro)
        # What is not a transformer runs without gradient accumulation.
        return 2 * self.parallelism.pp if self.shape.family == "transformer" else 1

    @property
    def samples(self) -> int:
        """Sequences (samples) of a step over all ranks."""
        return self.parallelism.dp * self.micro * self.micro_batches


def from_mapping(data: Mapping[str, Any], where: str) -> Spec:
    """Return the spec that a TOML document (or a plain mapping) describes.

    Raises:
        InputError: A key is unknown or a value has the wrong type; `where` says of what.
    """
    try:
        return msgspec.convert(dict(data), Spec)
    except msgspec.ValidationError as error:
        raise InputError(f"{where}: {error}") from error
