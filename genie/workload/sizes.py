"""What one rank computes and exchanges for a micro-batch: tokens, bytes, work of operators."""

from __future__ import annotations

from functools import cached_property

from genie.trace.kinds import dtype_bytes
from genie.workload.cost import Work, Works
from genie.workload.shapes import attention_flops, layer_parameters
from genie.workload.spec import Spec

#: FlashAttention recomputes the scores backward: 5 products instead of 2 (Dao et al., arXiv
#: 2205.14135, section 3.1 and appendix B).
_FLASH_BACKWARD = 2.5
#: Twice the forward work, and once more to recompute it (Korthikanti et al., arXiv 2205.05198,
#: section 5).
_UNFUSED_BACKWARD = 3.0
#: Times scores go through memory unfused: written, softmax read and written, dropout read and
#: written with a mask of half the size, read.
_SCORE_PASSES = 6.5


def padded_vocabulary(vocab: int, tp: int) -> int:
    """Return the vocabulary padded to a multiple of 128 x tp, as Megatron-LM does for tp > 1."""
    if tp == 1:
        return vocab
    return -(-vocab // (128 * tp)) * 128 * tp


class Sizes:
    """Sizes of a transformer on one rank; all ranks of a job share them."""

    def __init__(self, spec: Spec) -> None:
        """Take a spec that has passed `rules.validate`."""
        self.spec = spec
        self.model = spec.shape
        p = spec.parallelism
        self.tp, self.cp = p.tp, p.cp
        self.sp = p.sequence_parallel
        self.element = dtype_bytes(spec.precision.activations)
        #: Tokens of a micro-batch on a rank, outside sequence-parallel regions.
        self.tokens = spec.micro * spec.sequence // p.cp
        #: Tokens a rank holds between tensor-parallel regions.
        self.local_tokens = self.tokens // p.tp if self.sp else self.tokens
        self.vocabulary = padded_vocabulary(self.model.vocab, p.tp)
        self._weight = dtype_bytes(spec.precision.compute)

    @property
    def activation_bytes(self) -> int:
        """Bytes of a micro-batch's activations of full width."""
        return self.tokens * self.model.hidden * self.element

    @property
    def local_activation_bytes(self) -> int:
        """Bytes of what a rank holds of them between tensor-parallel regions."""
        return self.local_tokens * self.model.hidden * self.element

    @property
    def kv_bytes(self) -> int:
        """Bytes of keys and values of a micro-batch on one rank (context parallel passes them)."""
        m = self.model
        latent = m.heads * (m.dim + m.rope_dim + m.v_head_dim)
        width = latent if m.kv_lora else 2 * m.kv * m.dim
        return self.tokens * width // self.tp * self.element

    def matmul(self, parameters: float, tokens: float, kind: str = "matmul") -> Work:
        """Return the work of `tokens` rows times a matrix of `parameters` elements."""
        return Work(kind, 2.0 * parameters * tokens, parameters * self._weight)

    def streaming(self, elements: float) -> Work:
        """Return the work of reading or writing `elements` activations."""
        return Work("memory", 0.0, elements * self.element)

    @cached_property
    def norm(self) -> Work:
        """Norm and residual addition: 5 reads and writes of what the rank holds."""
        return self.streaming(5.0 * self.local_tokens * self.model.hidden)

    @cached_property
    def core(self) -> Works:
        """Scores and weighted values of a micro-batch, forward, all keys."""
        sequence, flash = self.spec.sequence, self.spec.schedule.attention == "flash"
        keys = sequence / 2 if self.model.causal and flash else sequence
        flops = attention_flops(self.model, self.tokens, keys) / self.tp
        m = self.model
        width = (m.heads * (m.dim + m.rope_dim) * 2 + m.heads * (m.v_head_dim or m.dim)) / self.tp
        products = Work(
            "attention" if flash else "matmul", flops, self.tokens * width * self.element
        )
        if flash:
            return (products,)
        return products, self.streaming(_SCORE_PASSES * self.tokens * keys * m.heads / self.tp)

    @property
    def core_backward(self) -> float:
        """How many times its forward work the attention core does backward."""
        if self.spec.schedule.attention == "flash":
            return _FLASH_BACKWARD
        # A layer computed again as a whole has its scores already.
        return _UNFUSED_BACKWARD - (1 if self.spec.schedule.recompute == "full" else 0)

    def projections(self, layer: int) -> tuple[Work, Work]:
        """Return the products before and after the attention core, forward."""
        m = self.model
        total = layer_parameters(m, layer).attention / self.tp
        out = m.heads * (m.v_head_dim or m.dim) * m.hidden / self.tp
        return self.matmul(total - out, self.tokens), self.matmul(out, self.tokens)

    def feed_forward(self, layer: int) -> tuple[Work, Work, Works]:
        """Return the products into and out of a dense layer (or shared experts), and between."""
        m = self.model
        total = layer_parameters(m, layer).dense / self.tp
        width = (m.ffn if not layer_parameters(m, layer).experts else 0) or (
            m.shared_experts * m.expert_ffn
        )
        matrices = 3 if m.gated else 2
        out = total / matrices
        between = self.streaming((matrices + 0.0) * self.tokens * width / self.tp)
        return self.matmul(total - out, self.tokens), self.matmul(out, self.tokens), (between,)

    def expert(self, rows: int, experts: int) -> tuple[Work, Work, Work]:
        """Return the same for `rows` tokens over `experts` routed experts on this rank."""
        m, etp = self.model, self.spec.parallelism.expert_tp
        matrices = 3 if m.gated else 2
        one = m.hidden * m.expert_ffn / etp
        weights = experts * one * self._weight

        def grouped(many: int) -> Work:
            return Work("grouped_matmul", 2.0 * many * one * rows, many * weights)

        between = self.streaming(matrices * rows * m.expert_ffn / etp + 2.0 * rows * m.hidden)
        return grouped(matrices - 1), grouped(1), between

    @cached_property
    def head(self) -> Work:
        """Logits of a micro-batch, forward."""
        return self.matmul(self.vocabulary * self.model.hidden / self.tp, self.tokens)

    @cached_property
    def loss(self) -> Work:
        """Cross entropy over this rank's part of the vocabulary, in float32."""
        return Work("memory", 0.0, 4.0 * 3 * self.tokens * self.vocabulary / self.tp)

    @cached_property
    def lookup(self) -> Work:
        """Embedding rows of a micro-batch."""
        return self.streaming(2.0 * self.tokens * self.model.hidden)
