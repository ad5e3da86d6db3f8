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
from genie.workload.cost import Work, Works, times
from genie.workload.emit import TENSOR, Emitter
from genie.workload.layout import Group
from genie.workload.sizes import Sizes

#: Emits what lies between the first and the last product of a region.
Middle = Callable[[], None]


@dataclass(frozen=True)
class Region:
    """A column-parallel product, something between, a row-parallel product.

    Attributes:
        name: "attention" or "mlp".
        where: Which layer and micro-batch.
        first: Work of the column-parallel product, forward.
        last: Work of the row-parallel product, forward.
        before: Other work at the start of the region (norm), forward.
        between: Other work between the products (activation), forward.
    """

    name: str
    where: str
    first: Work
    last: Work
    before: Work
    between: Works


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
            works = [region.before, region.first, *region.between, region.last]
            node = emit.compute(name, region.where, works)
        else:
            emit.compute(f"{name}.in", region.where, [region.before, region.first])
            middle()
            node = emit.compute(f"{name}.out", region.where, [region.last])
        self.reduce(f"{name}.{region.where}", wait)
        return node

    def backward(self, region: Region, middle: Middle | None = None, weights: bool = True) -> int:
        """Emit a region's backward pass and return its last computation.

        Args:
            region: What to emit.
            middle: Emits what lies between the products instead of twice `region.between`.
            weights: Whether weight gradients are computed now (not in zero-bubble schedules).
        """
        name = f"backward.{region.name}"
        emit, twice = self.emitter, 2.0 if weights else 1.0
        self.gather(f"{name}.{region.where}")
        out = [region.last.times(twice)]
        if middle is None and self.group is None:
            works = [*out, *times(region.between, 2), region.first.times(twice), region.before]
            return emit.compute(name, region.where, works)
        if middle is None:
            emit.compute(f"{name}.out", region.where, [*out, *times(region.between, 2)])
        else:
            emit.compute(f"{name}.out", region.where, out)
            middle()
        if self.group is None:
            return emit.compute(
                f"{name}.in", region.where, [region.first.times(twice), region.before]
            )
        inputs = self.gather(f"{name}.{region.where}.input", wait=False) if weights else None
        node = emit.compute(f"{name}.in", region.where, [region.first])
        emit.wait(inputs)
        sums = self.reduce(f"{name}.{region.where}", wait=False)
        if weights:
            node = emit.compute(f"{name}.weights", region.where, [region.first])
        emit.wait(sums)
        return node

    def weights(self, region: Region) -> int:
        """Emit the weight gradients that `backward(weights=False)` left out."""
        name = f"weights.{region.name}"
        inputs = self.gather(f"{name}.{region.where}.input", wait=False)
        if inputs is None:
            return self.emitter.compute(name, region.where, [region.last, region.first])
        self.emitter.compute(f"{name}.out", region.where, [region.last])
        self.emitter.wait(inputs)
        return self.emitter.compute(f"{name}.in", region.where, [region.first])
