"""Parameters and arithmetic of a transformer, from its shape.

Counts follow the models' own definitions (see `genie/data/workload/models.toml`); arithmetic is
2 FLOP a multiply-add, the backward pass twice the forward pass (Narayanan et al., arXiv
2104.04473, appendix A).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from genie.workload.spec import Model


def is_moe(model: Model, layer: int) -> bool:
    """Return whether a layer has routed experts."""
    return bool(model.experts) and layer >= model.dense_layers


@dataclass(frozen=True)
class LayerParameters:
    """Parameters of one layer, by how parallelism treats them.

    Attributes:
        attention: Matrices of attention that tensor parallelism splits.
        dense: Matrices of a dense feed-forward layer (or shared experts), split likewise.
        replicated: Norms, router and low-rank projections that every tensor-parallel rank holds.
        expert: One routed expert.
        experts: How many of those.
    """

    attention: int
    dense: int
    replicated: int
    expert: int = 0
    experts: int = 0

    @property
    def total(self) -> int:
        """All parameters of the layer."""
        return self.attention + self.dense + self.replicated + self.expert * self.experts


def _attention(model: Model) -> tuple[int, int]:
    # (split over tensor-parallel ranks, replicated)
    h, a, d = model.hidden, model.heads, model.dim
    if model.kv_lora:
        v, rope = model.v_head_dim, model.rope_dim
        q_in = model.q_lora or h
        down = h * (model.kv_lora + rope) + model.kv_lora
        if model.q_lora:
            down += h * model.q_lora + model.q_lora
        up = q_in * a * (d + rope) + model.kv_lora * a * (d + v) + a * v * h
        return up, down
    split = h * (a + 2 * model.kv) * d + a * d * h
    replicated = 2 * d if model.qk_norm else 0
    if model.bias:
        split += (a + 2 * model.kv) * d
        replicated += h
    return split, replicated


@lru_cache(maxsize=4096)
def layer_parameters(model: Model, layer: int) -> LayerParameters:
    """Return the parameters of a layer of a transformer."""
    h = model.hidden
    attention, replicated = _attention(model)
    replicated += 4 * h if model.bias else 2 * h
    matrices = 3 if model.gated else 2
    if is_moe(model, layer):
        expert = matrices * h * model.expert_ffn
        replicated += h * model.experts + (model.experts if model.router_bias else 0)
        return LayerParameters(
            attention, model.shared_experts * expert, replicated, expert, model.experts
        )
    dense = matrices * h * model.ffn
    if model.bias:
        dense += (matrices - 1) * model.ffn
        replicated += h
    return LayerParameters(attention, dense, replicated)


def embedding_parameters(model: Model) -> int:
    """Return the parameters of the token embedding, which tensor parallelism splits."""
    return model.vocab * model.hidden


def final_norm_parameters(model: Model) -> int:
    """Return the parameters of the last norm."""
    return (2 if model.bias else 1) * model.hidden


def parameters(model: Model) -> int:
    """Return all parameters of a transformer."""
    total = sum(layer_parameters(model, layer).total for layer in range(model.layers))
    embeddings = embedding_parameters(model) * (1 if model.tied else 2)
    return total + embeddings + model.positions * model.hidden + final_norm_parameters(model)


def active_parameters(model: Model) -> int:
    """Return the parameters that one token meets."""
    total = parameters(model)
    for layer in range(model.layers):
        if is_moe(model, layer):
            total -= layer_parameters(model, layer).expert * (model.experts - model.top_k)
    return total


def attention_flops(model: Model, tokens: int, keys: float) -> float:
    """Return the FLOP of scores and weighted values of `tokens` queries, forward.

    Args:
        model: The shape.
        tokens: Queries.
        keys: Keys that a query meets (on average half the sequence if causal).
    """
    score = model.dim + model.rope_dim
    value = model.v_head_dim or model.dim
    return 2.0 * tokens * keys * model.heads * (score + value)


def model_flops(model: Model, tokens: int, sequence: int) -> float:
    """Return the FLOP of a whole training step (forward and twice that backward).

    Matrix products of every parameter a token meets but the input embedding's lookup, attention
    as arithmetic really done (half if causal).
    """
    matrices = active_parameters(model) - model.positions * model.hidden
    if not model.tied:
        matrices -= embedding_parameters(model)
    keys = sequence / 2 if model.causal else sequence
    return 3 * (2.0 * matrices * tokens + model.layers * attention_flops(model, tokens, keys))
