"""What DLRM and ResNet share: gradients in the buckets of PyTorch's DistributedDataParallel."""

from __future__ import annotations

from genie.trace import Coll
from genie.trace.kinds import dtype_bytes
from genie.workload.emit import DATA, Emitter
from genie.workload.layout import WORLD
from genie.workload.spec import Spec

#: Li et al., arXiv 2006.15704, section 4.1; torch.distributed: the first bucket is small so that
#: communication starts early.
FIRST_BUCKET_BYTES = 1 << 20
BUCKET_BYTES = 25 << 20


def bucket_sizes(gradients: list[int], element: int) -> list[list[int]]:
    """Return the indices of gradients in each bucket.

    Args:
        gradients: Elements of each, in the order they become ready.
        element: Bytes of an element.
    """
    made: list[list[int]] = []
    held, limit = 0, FIRST_BUCKET_BYTES
    current: list[int] = []
    for i, count in enumerate(gradients):
        current.append(i)
        held += count * element
        if held >= limit:
            made.append(current)
            current, held, limit = [], 0, BUCKET_BYTES
    return [*made, current] if current else made


class Replicas:
    """Emits the all_reduces of one replica's gradients behind its backward pass."""

    def __init__(self, emitter: Emitter, spec: Spec, gradients: list[int]) -> None:
        """Plan the buckets of `gradients` (elements, in the order they become ready)."""
        self.emitter = emitter
        self.alone = spec.parallelism.world == 1
        self.overlap = spec.schedule.overlap_grads
        self.dtype = spec.precision.gradients
        element = dtype_bytes(self.dtype)
        self._last: dict[int, tuple[int, int]] = {}
        for number, members in enumerate(bucket_sizes(gradients, element)):
            nbytes = sum(gradients[i] for i in members) * element
            self._last[members[-1]] = (number, nbytes)
        self._nodes: list[int | None] = []
        self._held: list[tuple[int, int]] = []

    def ready(self, index: int, where: str) -> None:
        """Say that a gradient has been computed; its bucket goes if it is the last of it."""
        if index not in self._last or self.alone:
            return
        if self.overlap:
            self._reduce(*self._last[index], where, [self.emitter.last])
        else:
            self._held.append(self._last[index])

    def _reduce(self, number: int, nbytes: int, where: str, deps: list[int] | None) -> None:
        self._nodes.append(
            self.emitter.collective(
                Coll.ALL_REDUCE, f"{where}gradients.bucket{number}.all_reduce", WORLD, nbytes,
                stream=DATA, dtype=self.dtype, wait=False, deps=deps,
            )
        )  # fmt: skip

    def finish(self, where: str) -> None:
        """Reduce what was held back and wait for all."""
        for number, nbytes in self._held:
            self._reduce(number, nbytes, where, None)
        self.emitter.wait(*self._nodes)
        self._held, self._nodes = [], []
