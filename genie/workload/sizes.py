"""What one rank computes and exchanges for a micro-batch: tokens, bytes, work of operators."""

from __future__ import annotations

from functools import cached_property

from genie.trace.kinds import dtype_bytes
from genie.workload.cost import Work, Works
from genie.workload.products import Product, Products
from genie.workload.shapes import attention_flops, is_moe
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
        self._gradient = dtype_bytes(spec.precision.gradients)

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

    def product(
        self, inner: float, columns: float, *, rows: float = 0.0, wide: bool = False,
        fused_cast: bool = True,
    ) -> Product:  # fmt: skip
        """Return the product of `rows` tokens (all of a micro-batch by default) with a matrix.

        `wide` products run in 16 bits where the others run in 8.
        """
        narrow = not wide or self._weight >= 2
        return Product(
            "matmul" if narrow else "matmul_16", rows or self.tokens, inner, columns,
            operand=self._weight if narrow else 2, result=self.element, gradient=self._gradient,
            fused_cast=fused_cast,
        )  # fmt: skip

    def streaming(self, elements: float) -> Work:
        """Return the work of reading or writing `elements` activations."""
        return Work("memory", 0.0, elements * self.element)

    @cached_property
    def norm(self) -> Work:
        """Norm and residual addition: 5 reads and writes of what the rank holds."""
        return self.streaming(5.0 * self.local_tokens * self.model.hidden)

    @cached_property
    def _scores(self) -> tuple[float, float, float]:
        # FLOP, bytes of q, k, v and the output, elements of the scores; of a micro-batch, forward
        m, sequence = self.model, self.spec.sequence
        flash = self.spec.schedule.attention == "flash"
        keys = sequence / 2 if m.causal and flash else sequence
        flops = attention_flops(m, self.tokens, keys) / self.tp
        width: float = m.heads * (m.dim + m.rope_dim + (m.v_head_dim or m.dim))
        width += self.kv_bytes / (self.tokens / self.tp * self.element) if self.tokens else 0
        return flops, self.tokens * width / self.tp * self.element, self.tokens * keys * m.heads

    @cached_property
    def core(self) -> Works:
        """Scores and weighted values of a micro-batch, forward, all keys."""
        flops, nbytes, scores = self._scores
        if self.spec.schedule.attention == "flash":
            return (Work("attention", flops, nbytes),)
        return (
            Work("matmul_16", flops, nbytes),
            self.streaming(_SCORE_PASSES * scores / self.tp),
        )

    @cached_property
    def core_backward(self) -> Works:
        """The same backward."""
        flops, nbytes, scores = self._scores
        if self.spec.schedule.attention == "flash":
            return (Work("attention_backward", _FLASH_BACKWARD * flops, 2 * nbytes),)
        # A layer computed again as a whole has its scores already.
        factor = _UNFUSED_BACKWARD - (1 if self.spec.schedule.recompute == "full" else 0)
        return (
            Work("matmul_16", factor * flops, factor * nbytes),
            self.streaming(factor * _SCORE_PASSES * scores / self.tp),
        )

    @cached_property
    def rotary(self) -> Works:
        """Rotary embedding of queries and keys: one read and one write."""
        m = self.model
        if m.positions:
            return ()
        width = (m.heads + (m.heads if m.kv_lora else m.kv)) * (m.rope_dim or m.dim)
        return (self.streaming(2.0 * self.tokens * width / self.tp),)

    def projections(self, layer: int) -> tuple[Products, Products]:
        """Return the products before and after the attention core."""
        m, tp = self.model, self.tp
        value = m.v_head_dim or m.dim
        out = self.product(m.heads * value / tp, m.hidden, fused_cast=False)
        if not m.kv_lora:
            return (self.product(m.hidden, (m.heads + 2 * m.kv) * m.dim / tp),), (out,)
        query = m.heads * (m.dim + m.rope_dim) / tp
        first = (
            (self.product(m.hidden, m.q_lora), self.product(m.q_lora, query))
            if m.q_lora
            else (self.product(m.hidden, query),)
        )
        return (
            *first,
            self.product(m.hidden, m.kv_lora + m.rope_dim),
            self.product(m.kv_lora, m.heads * (m.dim + value) / tp),
        ), (out,)

    def feed_forward(self, layer: int) -> tuple[Products, Products, Works, Works]:
        """Return the products into and out of a dense layer (or shared experts), and between."""
        m = self.model
        width = m.shared_experts * m.expert_ffn if is_moe(m, layer) else m.ffn
        if not width:
            return (), (), (), ()
        matrices = 3 if m.gated else 2
        local = width / self.tp
        first = self.product(m.hidden, (matrices - 1) * local)
        last = self.product(local, m.hidden, fused_cast=False)
        between = self.streaming(matrices * self.tokens * local)
        # Backward the inputs and the gradient are read, and as many gradients written.
        back = self.streaming((2.0 * matrices - 1) * self.tokens * local)
        return (first,), (last,), (between,), (back,)

    def expert(self, rows: int, experts: int) -> tuple[Products, Products, Works, Works]:
        """Return the same for `rows` tokens over `experts` routed experts on this rank."""
        m, etp = self.model, self.spec.parallelism.expert_tp
        matrices = 3 if m.gated else 2
        width = m.expert_ffn / etp

        def grouped(inner: float, columns: float, fused: bool) -> Product:
            return Product(
                "grouped_matmul", rows / experts, inner, columns, operand=self._weight,
                result=self.element, gradient=self._gradient, many=experts, fused_cast=fused,
            )  # fmt: skip

        # Tokens are put in the order of their experts and back again.
        order = 2.0 * rows * m.hidden
        return (
            (grouped(m.hidden, (matrices - 1) * width, True),),
            (grouped(width, m.hidden, False),),
            (self.streaming(matrices * rows * width + order),),
            (self.streaming((2.0 * matrices - 1) * rows * width + order),),
        )

    @cached_property
    def head(self) -> Products:
        """Logits of a micro-batch, in 16 bits (Transformer Engine and DeepSeek-V3 keep it so)."""
        return (self.product(self.model.hidden, self.vocabulary / self.tp, wide=True),)

    @cached_property
    def router(self) -> Products:
        """Which expert a token goes to, in 16 bits."""
        m = self.model
        return (self.product(m.hidden, m.experts, rows=self.local_tokens, wide=True),)

    @cached_property
    def loss(self) -> Work:
        """Cross entropy over this rank's part of the vocabulary, in float32."""
        return Work("memory", 0.0, 4.0 * 3 * self.tokens * self.vocabulary / self.tp)

    @cached_property
    def lookup(self) -> Work:
        """Embedding rows of a micro-batch."""
        return self.streaming(2.0 * self.tokens * self.model.hidden)
