"""Tensor and sequence parallel regions of a transformer, as Megatron-LM runs them.

Without sequence parallel a region ends in an all_reduce forward and one backward (Shoeybi et al.,
arXiv 1909.08053, section 3); with it, it starts with an all_gather and ends with a reduce_scatter,
and backward gathers its input once more for the weight gradient (Korthikanti et al., arXiv
2205.05198, section 4.2.2). The backward all_gather runs behind the input gradient, the
reduce_scatter (or all_reduce) behind the weight gradient
(`LinearWithGradAccumulationAndAsyncCommunication`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from genie.trace import Coll
from genie.workload import products
from genie.workload.cost import Works
from genie.workload.emit import TENSOR, Emitter
from genie.workload.layout import Group
from genie.workload.products import Products
from genie.workload.sizes import Sizes

#: Emits what lies between the first and the last product of a region.
Middle = Callable[[], None]


@dataclass(frozen=True)
class Region:
    """A column-parallel product, something between, a row-parallel product.

    Attributes:
        name: "attention" or "mlp".
        where: Which layer and micro-batch.
        first: Column-parallel products.
        last: Row-parallel products.
        before: Other work at the start of the region (norm), forward, and as much backward.
        between: Other work between the products (attention core, activation), forward.
        between_backward: The same backward.
    """

    name: str
    where: str
    first: Products
    last: Products
    before: Works
    between: Works
    between_backward: Works


class Tensor:
    """Emits regions and their tensor-parallel collectives for one rank."""

    def __init__(self, emitter: Emitter, sizes: Sizes, group: Group | None) -> None:
        """Use `group` (None without tensor parallel)."""
        self.emitter = emitter
        self.sizes = sizes
        self.group = group
        self._dtype = sizes.spec.precision.activations

    def gather(self, name: str, wait: bool = True) -> int | None:
        """Collect the sequence from all ranks, under sequence parallel."""
        if not self.sizes.sp:
            return None
        return self._collective(
            Coll.ALL_GATHER, f"{name}.all_gather", self.sizes.local_activation_bytes, wait
        )

    def reduce(self, name: str, wait: bool = True) -> int | None:
        """Sum the activations over all ranks; scatter the sequence under sequence parallel."""
        coll = Coll.REDUCE_SCATTER if self.sizes.sp else Coll.ALL_REDUCE
        return self._collective(
            coll, f"{name}.{coll.name.lower()}", self.sizes.activation_bytes, wait
        )

    def _collective(self, coll: Coll, name: str, nbytes: int, wait: bool) -> int | None:
        return self.emitter.collective(
            coll, name, self.group, nbytes, stream=TENSOR, dtype=self._dtype, wait=wait
        )

    def forward(self, region: Region, middle: Middle | None = None, wait: bool = True) -> int:
        """Emit a region's forward pass and return its last computation.

        Args:
            region: What to emit.
            middle: Emits what lies between the products instead of `region.between`.
            wait: Whether the compute stream waits for the closing collective.
        """
        name = f"forward.{region.name}"
        emit = self.emitter
        self.gather(f"{name}.{region.where}")
        if middle is None:
            works = [*region.before, *products.forward(region.first), *region.between]
            node = emit.compute(name, region.where, [*works, *products.forward(region.last)])
        else:
            first = products.forward(region.first)
            emit.compute(f"{name}.in", region.where, [*region.before, *first])
            middle()
            node = emit.compute(f"{name}.out", region.where, list(products.forward(region.last)))
        self.reduce(f"{name}.{region.where}", wait)
        return node

    def backward(self, region: Region, middle: Middle | None = None, weights: bool = True) -> int:
        """Emit a region's backward pass and return its last computation.

        Args:
            region: What to emit.
            middle: Emits what lies between the products instead of `region.between_backward`.
            weights: Whether weight gradients are computed now (not in zero-bubble schedules).
        """
        name = f"backward.{region.name}"
        emit = self.emitter
        self.gather(f"{name}.{region.where}")
        out = products.backward(region.last, weights)
        if middle is None and self.group is None:
            into = products.backward(region.first, weights)
            works = [*out, *region.between_backward, *into, *region.before]
            return emit.compute(name, region.where, works)
        if middle is None:
            emit.compute(f"{name}.out", region.where, [*out, *region.between_backward])
        else:
            emit.compute(f"{name}.out", region.where, list(out))
            middle()
        if self.group is None:
            into = products.backward(region.first, weights)
            return emit.compute(f"{name}.in", region.where, [*into, *region.before])
        gathered = self.gather(f"{name}.{region.where}.input", wait=False) if weights else None
        emit.compute(f"{name}.in", region.where, list(products.inputs(region.first)))
        emit.wait(gathered)
        sums = self.reduce(f"{name}.{region.where}", wait=False)
        if weights:
            into = products.weights(region.first)
            emit.compute(f"{name}.weights", region.where, list(into))
        emit.wait(sums)
        # The norm's gradient needs the sum.
        return emit.compute(f"{name}.norm", region.where, list(region.before))

    def weights(self, region: Region) -> int:
        """Emit the weight gradients that `backward(weights=False)` left out."""
        name = f"weights.{region.name}"
        inputs = self.gather(f"{name}.{region.where}.input", wait=False)
        first, last = products.weights(region.first), products.weights(region.last)
        if inputs is None:
            return self.emitter.compute(name, region.where, [*last, *first])
        self.emitter.compute(f"{name}.out", region.where, list(last))
        self.emitter.wait(inputs)
        return self.emitter.compute(f"{name}.in", region.where, list(first))
