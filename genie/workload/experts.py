"""Mixture-of-experts layers: routing drawn from a seed, dispatch and combine.

Tokens go to their experts in an all_to_all of the expert-parallel group and come back in another;
backward both run again the other way round (Lepikhin et al., arXiv 2006.16668; Megatron-LM's
`MoEAlltoAllTokenDispatcher`, which first exchanges the counts). A token sends one copy to each of
its experts, as that dispatcher does; DeepSeek-V3's limit of nodes a token is not modelled.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from genie.trace import Coll
from genie.trace.kinds import dtype_bytes
from genie.workload.emit import EXPERT, Emitter
from genie.workload.layout import Layout
from genie.workload.sizes import Sizes
from genie.workload.spec import Spec


class Router:
    """How many of a rank's tokens each expert gets, the same whoever asks.

    The popularity of a layer's experts follows Zipf's law with exponent `skew` in an order drawn
    for the layer; a rank's tokens choose their `top_k` experts by it. Counts of one source depend
    on (seed, layer, micro-batch, rank) alone.
    """

    def __init__(self, spec: Spec, tokens: int) -> None:
        """Route `tokens` tokens a rank and micro-batch."""
        self._spec = spec
        self._experts = spec.shape.experts
        self._top_k = spec.shape.top_k
        self._tokens = tokens
        self.counts = lru_cache(maxsize=4096)(self._counts)
        self._popularity = lru_cache(maxsize=256)(self._popularity_of)

    def _popularity_of(self, layer: int) -> npt.NDArray[np.float64]:
        popularity = np.arange(1, self._experts + 1, dtype=np.float64) ** -self._spec.routing.skew
        order = np.random.default_rng([self._spec.seed, layer]).permutation(self._experts)
        return popularity[order]

    def _counts(self, layer: int, micro_batch: int, rank: int) -> npt.NDArray[np.int64]:
        """Return int64[experts]: copies of the rank's tokens for each expert.

        They sum to tokens x top_k, and no expert gets a token twice.
        """
        total = self._tokens * self._top_k
        if self._spec.routing.even:
            share, rest = divmod(total, self._experts)
            return share + (np.arange(self._experts) < rest).astype(np.int64)
        popularity = self._popularity(layer)
        rng = np.random.default_rng([self._spec.seed, layer, micro_batch, rank, 1])
        counts = np.zeros(self._experts, np.int64)
        # A token cannot choose an expert twice: what exceeds the tokens is drawn again.
        while (left := total - int(counts.sum())) > 0:
            free = np.where(counts < self._tokens, popularity, 0.0)
            counts += rng.multinomial(left, free / free.sum())
            np.minimum(counts, self._tokens, out=counts)
        return counts


class Experts:
    """Emits the routed experts of one rank's layers."""

    def __init__(
        self, emitter: Emitter, sizes: Sizes, layout: Layout, rank: int, router: Router
    ) -> None:
        """Find the rank's expert-parallel groups."""
        self.emitter = emitter
        self.sizes = sizes
        self.router = router
        self.rank = rank
        self.group = layout.group("ep", rank)
        self.tensor = layout.group("etp", rank)
        spec = sizes.spec
        self.dtype = spec.precision.dispatch or spec.precision.activations
        self._combined = spec.precision.activations
        self.local = spec.shape.experts // spec.parallelism.ep
        self._members = self.group.members if self.group else (rank,)
        self._at = self._members.index(rank)
        # Asked for in every pass, and what the other members send is drawn for each.
        self.splits = lru_cache(maxsize=8192)(self._splits)

    def _splits(self, layer: int, micro_batch: int) -> tuple[list[int], list[int]]:
        """Return the token copies to each member of the group, and from each."""
        per_member = len(self._members)

        def by_member(rank: int) -> npt.NDArray[np.int64]:
            counts = self.router.counts(layer, micro_batch, rank)
            parts: npt.NDArray[np.int64] = counts.reshape(per_member, self.local).sum(axis=1)
            return parts

        sent = by_member(self.rank)
        received = [int(by_member(member)[self._at]) for member in self._members]
        return [int(count) for count in sent], received

    def rows(self, layer: int, micro_batch: int) -> int:
        """Return the token copies this rank's experts compute."""
        etp = self.sizes.spec.parallelism.expert_tp
        return sum(self.splits(layer, micro_batch)[1]) * etp

    def _exchange(self, name: str, sent: list[int], received: list[int], dtype: str) -> int | None:
        row = self.sizes.model.hidden * dtype_bytes(dtype)
        to, back = [n * row for n in sent], [n * row for n in received]
        # Even where every part is the same on every rank; then no splits are needed.
        even = self.sizes.spec.routing.even and len({*to, *back}) == 1
        return self.emitter.collective(
            Coll.ALL_TO_ALL, f"{name}.all_to_all", self.group, sum(to),
            stream=EXPERT, dtype=dtype, wait=False, splits=None if even else (to, back),
        )  # fmt: skip

    def dispatch(self, where: str, layer: int, micro_batch: int) -> int | None:
        """Send tokens to their experts forward (after the counts of each), unwaited."""
        sent, received = self.splits(layer, micro_batch)
        self.emitter.collective(
            Coll.ALL_GATHER, f"forward.moe.counts.{where}.all_gather", self.group,
            8 * self.sizes.model.experts, stream=EXPERT, dtype="int64",
        )  # fmt: skip
        return self._exchange(f"forward.moe.dispatch.{where}", sent, received, self.dtype)

    def combine(self, where: str, layer: int, micro_batch: int) -> int | None:
        """Bring the experts' results home forward, unwaited."""
        sent, received = self.splits(layer, micro_batch)
        return self._exchange(f"forward.moe.combine.{where}", received, sent, self._combined)

    def combine_backward(self, where: str, layer: int, micro_batch: int) -> int | None:
        """Send the gradients of the results to the experts, unwaited."""
        sent, received = self.splits(layer, micro_batch)
        return self._exchange(f"backward.moe.combine.{where}", sent, received, self._combined)

    def dispatch_backward(self, where: str, layer: int, micro_batch: int) -> int | None:
        """Bring the gradients of the inputs home, unwaited."""
        sent, received = self.splits(layer, micro_batch)
        return self._exchange(f"backward.moe.dispatch.{where}", received, sent, self._combined)

    def gather(self, name: str, rows: int) -> None:
        """Collect the tokens of a tensor-parallel expert's ranks (even routing only)."""
        nbytes = rows * self.sizes.model.hidden * self.sizes.element
        self._tensor(Coll.ALL_GATHER, f"{name}.all_gather", nbytes // self._tensor_size)

    def scatter(self, name: str, rows: int) -> None:
        """Sum the results of a tensor-parallel expert's ranks, each keeping its part."""
        nbytes = rows * self.sizes.model.hidden * self.sizes.element
        self._tensor(Coll.REDUCE_SCATTER, f"{name}.reduce_scatter", nbytes)

    @property
    def _tensor_size(self) -> int:
        return self.tensor.size if self.tensor else 1

    def _tensor(self, coll: Coll, name: str, nbytes: int) -> None:
        self.emitter.collective(
            coll, name, self.tensor, nbytes, stream=EXPERT, dtype=self._combined
        )
