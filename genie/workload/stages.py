"""How layers are dealt to pipeline stages, and the parameters a rank holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from genie.workload.shapes import final_norm_parameters, layer_parameters
from genie.workload.sizes import padded_vocabulary
from genie.workload.spec import Model, Spec


def chunk_layers(layers: int, chunks: int, given: Sequence[int] = ()) -> list[range]:
    """Return the layers of each virtual stage, in model order: as many as given, or even.

    Where they do not divide evenly the last, first, second last, ... chunk has one fewer, as
    Llama 3 405B takes one layer from the last and the first of 16 stages (arXiv 2407.21783,
    section 3.3.2).
    """
    most = -(-layers // chunks)
    counts = [most] * chunks
    ends = [i // 2 if i % 2 else chunks - 1 - i // 2 for i in range(chunks)]
    for chunk in ends[: most * chunks - layers]:
        counts[chunk] -= 1
    if given:
        counts = list(given)
    starts = [sum(counts[:chunk]) for chunk in range(chunks)]
    return [range(start, start + count) for start, count in zip(starts, counts, strict=True)]


@dataclass(frozen=True)
class Piece:
    """Parameters of one rank whose gradients are ready together.

    Attributes:
        name: "embedding", "head", "layer3.attention", "layer3.mlp" or "layer3.experts".
        parameters: How many.
        expert: Whether they are reduced among the replicas of the experts.
    """

    name: str
    parameters: int
    expert: bool = False


@dataclass(frozen=True)
class Chunk:
    """One virtual stage on one rank.

    Attributes:
        number: Virtual stage, 0 the first of the model.
        layers: Its layers.
        first: Whether it holds the embedding.
        last: Whether it holds the head and the loss.
    """

    number: int
    layers: range
    first: bool
    last: bool


def chunks_of(spec: Spec, stage: int) -> list[Chunk]:
    """Return the chunks of a pipeline stage, in model order."""
    p = spec.parallelism
    total = p.pp * p.vpp
    dealt = chunk_layers(spec.shape.layers, total, p.stage_layers)
    numbers = range(stage, total, p.pp)
    return [Chunk(n, dealt[n], n == 0, n == total - 1) for n in numbers]


def held_layers(model: Model, chunk: Chunk) -> list[int]:
    """Return the layers of a chunk, those of further-token modules last (numbers from `layers`)."""
    further = range(model.layers, model.layers + model.mtp) if chunk.last else range(0)
    return [*chunk.layers, *further]


def pieces(spec: Spec, chunk: Chunk) -> list[Piece]:
    """Return a chunk's parameters on one rank, in forward order."""
    m, p = spec.shape, spec.parallelism
    vocabulary = padded_vocabulary(m.vocab, p.tp) * m.hidden // p.tp
    found = []
    if chunk.first:
        found.append(Piece("embedding", vocabulary + m.positions * m.hidden))
    for layer in held_layers(m, chunk):
        shape = layer_parameters(m, layer)
        # A further-token module projects two widths to one, behind two norms.
        extra = 2 * m.hidden * m.hidden + 2 * m.hidden if layer >= m.layers else 0
        attention = shape.attention // p.tp + shape.replicated + extra
        found.append(Piece(f"layer{layer}.attention", attention))
        if shape.dense:
            found.append(Piece(f"layer{layer}.mlp", shape.dense // p.tp))
        if shape.experts:
            local = shape.expert * shape.experts // (p.ep * p.expert_tp)
            found.append(Piece(f"layer{layer}.experts", local, expert=True))
    if chunk.last:
        # A tied head is the embedding itself on one stage, and a copy of it on another.
        tied = m.tied and chunk.first
        head = final_norm_parameters(m) + (0 if tied else vocabulary)
        found.append(Piece("head", head))
    return found


def local_parameters(spec: Spec, stage: int, expert: bool = False) -> int:
    """Return the parameters a rank of a stage holds before ZeRO: experts' or all others."""
    return sum(
        piece.parameters
        for chunk in chunks_of(spec, stage)
        for piece in pieces(spec, chunk)
        if piece.expert == expert
    )
