"""Data parallel: gradient buckets behind the backward pass, ZeRO-1 and ZeRO-2.

Gradients are reduced bucket by bucket, last layers first (Li et al., arXiv 2006.15704, section
3.2), a bucket closing when it holds enough parameters (Megatron-LM's
`DistributedDataParallelConfig`: max(40e6, 1e6 x data-parallel size)). ZeRO-1, Megatron-LM's
distributed optimizer, reduce-scatters them and gathers the updated parameters before the next
forward pass, each bucket behind the layers before it; the trace shows a step in the steady state,
so that the gather of the last step's result comes first. ZeRO-2 reduces every micro-batch
(Rajbhandari et al., arXiv 1910.02054, section 5). Volume: 2 psi (n - 1) / n a rank in both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from genie.trace import Coll
from genie.trace.kinds import dtype_bytes
from genie.workload.emit import DATA, EXPERT_DATA, Emitter
from genie.workload.layout import Group
from genie.workload.spec import Spec
from genie.workload.stages import Chunk, Piece, pieces


def bucket_limit(spec: Spec) -> int:
    """Return the parameters at which a bucket closes."""
    p = spec.parallelism
    return spec.schedule.bucket_parameters or max(40_000_000, 1_000_000 * p.dp * p.cp)


@dataclass
class Bucket:
    """Parameters whose gradients are reduced in one collective, in the order they become ready."""

    name: str
    expert: bool
    members: list[Piece] = field(default_factory=list)

    @property
    def parameters(self) -> int:
        """Parameters without padding."""
        return sum(piece.parameters for piece in self.members)


def buckets_of(spec: Spec, chunk: Chunk) -> list[Bucket]:
    """Return a chunk's buckets; experts' parameters have their own."""
    limit = bucket_limit(spec)
    made: list[Bucket] = []
    for expert in (False, True):
        current: Bucket | None = None
        for piece in reversed(pieces(spec, chunk)):
            if piece.expert != expert or piece.parameters == 0:
                continue
            if current is None:
                number = sum(bucket.expert == expert for bucket in made)
                kind = "expert_bucket" if expert else "bucket"
                current = Bucket(f"chunk{chunk.number}.{kind}{number}", expert)
                made.append(current)
            current.members.append(piece)
            if current.parameters >= limit:
                current = None
    return made


def padded(parameters: int, ranks: int) -> int:
    """Return a bucket's size as Megatron-LM pads it to be shared by `ranks`."""
    step = math.lcm(ranks, 128)
    return -(-parameters // step) * step


class DataParallel:
    """Emits one rank's gradient reductions and parameter gathers (ZeRO 0 to 2)."""

    def __init__(
        self, emitter: Emitter, spec: Spec, groups: dict[bool, Group | None], chunks: list[Chunk]
    ) -> None:
        """Plan the buckets.

        Args:
            emitter: Where to.
            spec: The job.
            groups: Replicas of the experts (True) and of everything else (False).
            chunks: The rank's chunks.
        """
        self.emitter = emitter
        self.groups = groups
        self.zero = spec.parallelism.zero
        self.overlap_grads = spec.schedule.overlap_grads
        self.overlap_params = spec.schedule.overlap_params
        self._gradient = spec.precision.gradients
        self._parameter = spec.precision.parameters
        self._forward = [piece for chunk in chunks for piece in pieces(spec, chunk)]
        self._buckets = [bucket for chunk in chunks for bucket in buckets_of(spec, chunk)]
        self._of = {piece.name: bucket for bucket in self._buckets for piece in bucket.members}
        self._ready: dict[str, int] = {}
        self._held: list[tuple[Bucket, str]] = []
        self._gathers: dict[str, int | None] = {}
        self._pending: list[int | None] = []

    def ready(self, piece: str, where: str, last_micro_batch: bool) -> None:
        """Say that a piece's gradients have been computed; its bucket goes when it is full."""
        bucket = self._of.get(piece)
        if bucket is None or not (last_micro_batch or self.zero == 2):
            return
        arrived = self._ready.get(bucket.name, 0) + 1
        self._ready[bucket.name] = arrived % len(bucket.members)
        if arrived < len(bucket.members):
            return
        if self.overlap_grads:
            self._reduce(bucket, where, [self.emitter.last])
        else:
            self._held.append((bucket, where))

    def _reduce(self, bucket: Bucket, where: str, deps: list[int] | None) -> None:
        group = self.groups[bucket.expert]
        if group is None:
            return
        coll = Coll.REDUCE_SCATTER if self.zero else Coll.ALL_REDUCE
        count = padded(bucket.parameters, group.size) if self.zero else bucket.parameters
        node = self.emitter.collective(
            coll, f"gradients.{bucket.name}.{where}.{coll.name.lower()}", group,
            count * dtype_bytes(self._gradient), wait=False, deps=deps, dtype=self._gradient,
            stream=EXPERT_DATA if bucket.expert else DATA,
        )  # fmt: skip
        self._pending.append(node)

    def finish(self) -> None:
        """Reduce what was held back and wait for every reduction."""
        for bucket, where in self._held:
            self._reduce(bucket, where, None)
        self._held = []
        self.emitter.wait(*self._pending)
        self._pending = []

    def gather(self, where: str) -> None:
        """Gather the parameters that the last step updated (ZeRO 1 and 2), first layers first."""
        if not self.zero:
            return
        self._gathers = {}
        for bucket in self._first_needed():
            group = self.groups[bucket.expert]
            if group is None:
                continue
            share = padded(bucket.parameters, group.size) // group.size
            self._gathers[bucket.name] = self.emitter.collective(
                Coll.ALL_GATHER, f"parameters.{bucket.name}.{where}.all_gather", group,
                share * dtype_bytes(self._parameter), wait=not self.overlap_params,
                dtype=self._parameter, stream=EXPERT_DATA if bucket.expert else DATA,
            )  # fmt: skip

    def _first_needed(self) -> list[Bucket]:
        # Chunks in model order, in each the buckets of the first layers first.
        order = {piece.name: i for i, piece in enumerate(self._forward)}
        return sorted(
            self._buckets, key=lambda bucket: min(order[piece.name] for piece in bucket.members)
        )

    def need(self, piece: str) -> None:
        """Wait for the gathered parameters of a piece before its first forward pass."""
        bucket = self._of.get(piece)
        if bucket is not None and self.overlap_params:
            self.emitter.wait(self._gathers.pop(bucket.name, None))
