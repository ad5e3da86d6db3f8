"""ResNet: data parallel, its gradients all_reduced in buckets (for old comparisons)."""

from __future__ import annotations

from dataclasses import dataclass

from genie.trace import Builder
from genie.trace.kinds import dtype_bytes
from genie.workload.cost import Roofline, Work
from genie.workload.emit import Emitter
from genie.workload.replicas import Replicas
from genie.workload.spec import Model, Spec


@dataclass(frozen=True)
class Block:
    """Consecutive layers: parameters, multiply-adds a sample, elements a sample it writes."""

    name: str
    parameters: int
    macs: int
    outputs: int


def blocks_of(model: Model) -> list[Block]:
    """Return a bottleneck residual network, forward order.

    He et al., arXiv 1512.03385, table 1 and figure 5, with the stride of a stage in its first
    3 x 3 convolution (v1.5); batch normalisation has two parameters a channel.
    """
    made: list[Block] = []

    def convolution(inputs: int, outputs: int, kernel: int, size: int) -> tuple[int, int, int]:
        weights = inputs * outputs * kernel * kernel
        return weights + 2 * outputs, weights * size * size, outputs * size * size

    size = model.image // 2
    made.append(Block("stem", *convolution(3, 64, 7, size)))
    size, inputs = size // 2, 64
    for stage, count in enumerate(model.blocks):
        width = 64 << stage
        for block in range(count):
            stride = 2 if stage and not block else 1
            parts = [convolution(inputs, width, 1, size)]
            size //= stride
            parts += [convolution(width, width, 3, size), convolution(width, 4 * width, 1, size)]
            if not block:
                parts.append(convolution(inputs, 4 * width, 1, size))
            sums = [sum(column) for column in zip(*parts, strict=True)]
            made.append(Block(f"stage{stage}.block{block}", *sums))
            inputs = 4 * width
    head = inputs * model.classes
    made.append(Block("classifier", head + model.classes, head, model.classes))
    return made


class ConvnetRank:
    """Emits the nodes of one rank."""

    def __init__(self, spec: Spec, roofline: Roofline) -> None:
        """Work the blocks out."""
        self.spec = spec
        self.builder = Builder()
        self.emit = Emitter(self.builder, roofline)
        self.blocks = blocks_of(spec.shape)
        self.replicas = Replicas(self.emit, spec, [b.parameters for b in reversed(self.blocks)])

    def _works(self, block: Block, factor: float) -> list[Work]:
        size = dtype_bytes(self.spec.precision.compute)
        samples = self.spec.micro * factor
        # A convolution's output is written, normalised (read twice, written) and rectified.
        return [
            Work("matmul", 2.0 * block.macs * samples, block.parameters * size),
            Work("memory", 0.0, 4.0 * block.outputs * samples * size),
        ]

    def run(self) -> Builder:
        """Emit every iteration and return the rank's nodes."""
        for iteration in range(self.spec.iterations):
            prefix = f"it{iteration}." if self.spec.iterations > 1 else ""
            for micro_batch in range(self.spec.micro_batches):
                where = f"{prefix}mb{micro_batch}"
                for block in self.blocks:
                    self.emit.compute("forward", f"{block.name}.{where}", self._works(block, 1))
                for index, block in enumerate(reversed(self.blocks)):
                    self.emit.compute("backward", f"{block.name}.{where}", self._works(block, 2))
                    if micro_batch == self.spec.micro_batches - 1:
                        self.replicas.ready(index, f"{where}.")
            self.replicas.finish(prefix)
            weights = sum(block.parameters for block in self.blocks)
            # Momentum: weight, gradient and velocity read, two of them written, float32.
            self.emit.compute("optimizer", prefix.rstrip("."), [Work("memory", 0, 20.0 * weights)])
        return self.builder
