"""What a rank has to keep in GPU memory, as an estimate.

Weights, gradients and Adam's state as in Rajbhandari et al. (arXiv 1910.02054, section 3.1), with
float32 master weights and moments; activations as in Korthikanti et al. (arXiv 2205.05198, table
2) without what FlashAttention does not keep: 34 bytes a token and unit of width and layer for a
two-matrix feed-forward layer of 4 times the width, here with the layer's own widths. Workspace,
fragmentation and NCCL's buffers are not in it.
"""

from __future__ import annotations

from dataclasses import dataclass

from genie.trace.kinds import dtype_bytes
from genie.workload.cost import Roofline
from genie.workload.layout import Layout
from genie.workload.pipeline import passes
from genie.workload.shapes import is_moe
from genie.workload.sizes import Sizes
from genie.workload.spec import Spec
from genie.workload.stages import chunks_of, held_layers, local_parameters

#: Float32 master weight and two moments.
_STATE_BYTES = 12


@dataclass(frozen=True)
class Memory:
    """Bytes on the fullest rank of a stage."""

    stage: int
    weights: int
    gradients: int
    optimizer: int
    activations: int
    capacity: int

    @property
    def total(self) -> int:
        """Sum of the parts."""
        return self.weights + self.gradients + self.optimizer + self.activations

    @property
    def fits(self) -> bool:
        """Whether it is within the GPU's memory."""
        return self.total <= self.capacity


def _layer_activations(spec: Spec, sizes: Sizes, layer: int) -> float:
    # What a layer keeps for its backward pass: inputs of norms and products, q, k, v, outputs.
    m, tp = spec.shape, sizes.tp
    if spec.schedule.recompute == "full":
        return float(sizes.local_activation_bytes)
    kept = 4.0 * sizes.local_activation_bytes
    heads = m.heads * (m.dim + m.rope_dim + 2 * (m.v_head_dim or m.dim))
    if not m.kv_lora:
        heads = (2 * m.heads + 2 * m.kv) * m.dim
    kept += sizes.tokens * heads / tp * sizes.element
    matrices = 3 if m.gated else 2
    if is_moe(m, layer):
        rows = sizes.local_tokens * m.top_k
        kept += rows * (m.hidden + matrices * m.expert_ffn) * sizes.element
        kept += sizes.tokens * matrices * m.shared_experts * m.expert_ffn / tp * sizes.element
    else:
        kept += sizes.tokens * matrices * m.ffn / tp * sizes.element
    return kept


def _in_flight(spec: Spec, stage: int) -> list[int]:
    # Most micro-batches each chunk holds at once: forward done, backward (and weights) not.
    ends = "W" if spec.schedule.kind == "zero-bubble" else "B"
    held = [0] * spec.parallelism.vpp
    most = [0] * spec.parallelism.vpp
    for one in passes(spec, stage):
        if one.kind == "F":
            held[one.chunk] += 1
            most[one.chunk] = max(most[one.chunk], held[one.chunk])
        elif one.kind == ends:
            held[one.chunk] -= 1
    return most


def estimate(spec: Spec, layout: Layout, roofline: Roofline, stage: int) -> Memory:
    """Return the estimate for the ranks of one pipeline stage of a transformer."""
    p, sizes = spec.parallelism, Sizes(spec)
    weight, gradient = (
        dtype_bytes(spec.precision.compute), dtype_bytes(spec.precision.gradients),
    )  # fmt: skip
    weights = gradients = optimizer = 0.0
    for expert in (False, True):
        count = local_parameters(spec, stage, expert)
        ranks = layout.size("edp" if expert and p.zero < 3 else "dp_cp")
        if p.zero == 3:
            ranks = layout.size("shard")
        weights += weight * count / (ranks if p.zero == 3 and p.reshard else 1)
        gradients += gradient * count / (ranks if p.zero >= 2 else 1)
        optimizer += _STATE_BYTES * count / (ranks if p.zero >= 1 else 1)
    activations = 0.0
    for chunk, held in zip(chunks_of(spec, stage), _in_flight(spec, stage), strict=True):
        layers = held_layers(spec.shape, chunk)
        activations += held * sum(_layer_activations(spec, sizes, i) for i in layers)
        if chunk.last:
            # Logits and their gradient, in float32, of the micro-batch being worked on.
            activations += 2 * 4.0 * sizes.tokens * sizes.vocabulary / sizes.tp
    return Memory(
        stage, round(weights), round(gradients), round(optimizer), round(activations),
        roofline.memory_bytes,
    )  # fmt: skip


def _dlrm(spec: Spec, roofline: Roofline) -> Memory:
    # The rank with most rows: tables in float32, updated in place by plain SGD; the perceptrons are
    # small beside them, the rows looked up for a micro-batch are its activations.
    from genie.workload.dlrm import deal_tables, layers_of

    m, ranks = spec.shape, spec.parallelism.world
    row = 4 * m.embedding_dim
    held = max(sum(m.tables[t] for t in dealt) for dealt in deal_tables(m.tables, ranks))
    dense = sum(layers_of(m.bottom_mlp)) + sum(layers_of(m.top_mlp))
    looked_up = 2 * spec.micro * len(m.tables) * row
    return Memory(0, held * row + 4 * dense, 4 * dense, 0, looked_up, roofline.memory_bytes)


def _convnet(spec: Spec, roofline: Roofline) -> Memory:
    # Outputs of convolutions are kept twice: before and after batch normalisation.
    from genie.workload.convnet import blocks_of

    blocks = blocks_of(spec.shape)
    count = sum(block.parameters for block in blocks)
    outputs = sum(block.outputs for block in blocks)
    kept = 2 * spec.micro * outputs * dtype_bytes(spec.precision.compute)
    return Memory(0, 4 * count, 4 * count, 4 * count, kept, roofline.memory_bytes)


def fullest(spec: Spec, layout: Layout, roofline: Roofline) -> Memory:
    """Return the estimate of the rank that needs most."""
    if spec.shape.family == "dlrm":
        return _dlrm(spec, roofline)
    if spec.shape.family == "convnet":
        return _convnet(spec, roofline)
    stages = range(spec.parallelism.pp)
    return max((estimate(spec, layout, roofline, s) for s in stages), key=lambda m: m.total)
