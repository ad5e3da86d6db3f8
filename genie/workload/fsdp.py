"""ZeRO-3 as PyTorch's FSDP runs it: parameters gathered layer by layer, gradients scattered.

Each layer is a unit, embeddings and head form the root (Zhao et al., arXiv 2304.11277). A unit is
gathered before its forward pass, freed after it, gathered again before its backward pass, and its
gradients are reduce-scattered after that: 3 psi (n - 1) / n a rank and micro-batch (Rajbhandari et
al., arXiv 1910.02054, section 7.2). The next unit is prefetched while one is computed; the root
stays gathered from its forward to its backward pass. With `reshard` off a unit is gathered once a
step and reduced once, after the last micro-batch, as Llama 3 does under pipeline parallelism
(arXiv 2407.21783, section 3.3.2). HSDP adds an all_reduce of the shards among the shard groups.
"""

from __future__ import annotations

from genie.trace import Coll
from genie.trace.kinds import dtype_bytes
from genie.workload.emit import DATA, EXPERT_DATA, Emitter
from genie.workload.layout import Group
from genie.workload.spec import Spec
from genie.workload.stages import Chunk, pieces

ROOT = "root"


def units_of(spec: Spec, chunks: list[Chunk]) -> dict[str, int]:
    """Return a rank's units in forward order, with the parameters of each, the root first."""
    units: dict[str, int] = {}
    root = 0
    for chunk in chunks:
        for piece in pieces(spec, chunk):
            name = piece.name.partition(".")[0]
            if name in {"embedding", "head"}:
                root += piece.parameters
            else:
                units[name] = units.get(name, 0) + piece.parameters
    return ({ROOT: root} if root else {}) | units


class FullyShard:
    """Emits one rank's gathers and reductions of ZeRO-3."""

    def __init__(
        self,
        emitter: Emitter,
        spec: Spec,
        shard: Group | None,
        replicate: Group | None,
        chunks: list[Chunk],
    ) -> None:
        """Plan the units; `shard` is None where nothing is sharded."""
        self.emitter = emitter
        self.units = units_of(spec, chunks)
        self.shard = shard
        self.replicate = replicate
        self.reshard = spec.parallelism.reshard
        self.prefetch = spec.schedule.overlap_params
        self.overlap_grads = spec.schedule.overlap_grads
        self._gradient = spec.precision.gradients
        self._parameter = spec.precision.parameters
        self._layers = [unit for unit in self.units if unit != ROOT]
        self._gathered: dict[str, int | None] = {}
        self._pending: list[int | None] = []

    def share(self, unit: str) -> int:
        """Return the parameters of one rank's shard of a unit."""
        ranks = self.shard.size if self.shard else 1
        return -(-self.units[unit] // ranks)

    def _gather(self, unit: str, where: str, deps: list[int] | None) -> None:
        self._gathered[unit] = self.emitter.collective(
            Coll.ALL_GATHER, f"parameters.{unit}.{where}.all_gather", self.shard,
            self.share(unit) * dtype_bytes(self._parameter), stream=DATA, dtype=self._parameter,
            wait=False, deps=deps,
        )  # fmt: skip

    def before(self, unit: str, where: str, backward: bool = False) -> None:
        """Have a unit's parameters before a pass over it, and prefetch the next unit's."""
        if unit not in self.units:
            return
        if unit not in self._gathered:
            self._gather(unit, where, None)
        self.emitter.wait(self._gathered[unit])
        self._gathered[unit] = None
        if unit == ROOT or not self.prefetch:
            return
        at = self._layers.index(unit) + (-1 if backward else 1)
        if 0 <= at < len(self._layers) and self._layers[at] not in self._gathered:
            # Behind this unit's computation: when the one before it is done.
            deps = [self.emitter.last] if self.emitter.last >= 0 else []
            self._gather(self._layers[at], where, deps)

    def after_forward(self, unit: str) -> None:
        """Free a unit's parameters."""
        if self.reshard and unit != ROOT:
            self._gathered.pop(unit, None)

    def after_backward(self, unit: str, where: str, last_micro_batch: bool) -> None:
        """Reduce a unit's gradients and free its parameters."""
        if unit not in self.units:
            return
        if self.reshard or last_micro_batch:
            self._gathered.pop(unit, None)
            self._reduce(unit, where)

    def _reduce(self, unit: str, where: str) -> None:
        element, ranks = dtype_bytes(self._gradient), self.shard.size if self.shard else 1
        nbytes = self.share(unit) * element
        deps = [self.emitter.last]
        wait = not self.overlap_grads
        node = self.emitter.collective(
            Coll.REDUCE_SCATTER, f"gradients.{unit}.{where}.reduce_scatter", self.shard,
            ranks * nbytes, stream=DATA, dtype=self._gradient, wait=wait, deps=deps,
        )  # fmt: skip
        deps = deps if node is None else [node]
        again = self.emitter.collective(
            Coll.ALL_REDUCE, f"gradients.{unit}.{where}.all_reduce", self.replicate, nbytes,
            stream=EXPERT_DATA, dtype=self._gradient, wait=wait, deps=deps,
        )  # fmt: skip
        self._pending += [node, again]

    def finish(self) -> None:
        """Wait for every reduction."""
        self.emitter.wait(*self._pending)
        self._pending = []
