"""The order of a pipeline stage's passes: GPipe, 1F1B, interleaved 1F1B, zero-bubble ZB-H1."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from genie.workload.spec import Spec


@dataclass(frozen=True)
class Pass:
    """One pass of one micro-batch over one chunk: kind "F", "B" or "W" (weight gradients)."""

    kind: str
    micro_batch: int
    chunk: int = 0


def passes(spec: Spec, stage: int) -> list[Pass]:
    """Return what a stage does in one step, in order."""
    p, m = spec.parallelism, spec.micro_batches
    kind = spec.schedule.kind
    if kind == "interleaved":
        return list(_interleaved(stage, p.pp, p.vpp, m))
    if kind == "gpipe":
        # Huang et al., arXiv 1811.06965: all forward, then all backward.
        forward = [Pass("F", i) for i in range(m)]
        return forward + [Pass("B", i) for i in range(m)]
    return list(one_forward_one_backward(stage, p.pp, m, kind == "zero-bubble"))


def one_forward_one_backward(stage: int, pp: int, m: int, split: bool = False) -> Iterator[Pass]:
    """Yield the passes of `m` micro-batches in the order of 1F1B, or of ZB-H1 if `split`.

    1F1B: Narayanan et al., arXiv 2104.04473, figure 4, top. ZB-H1 (Qi et al., arXiv 2401.10241,
    figure 3): the same passes, but weight gradients are put off by as many micro-batches as there
    are stages before this one and fill the bubble at the end.
    """
    warmup = min(pp - stage - 1, m)
    late, weights = stage if split else 0, 0
    for i in range(warmup):
        yield Pass("F", i)
    for i in range(m):
        if i + warmup < m:
            yield Pass("F", i + warmup)
        yield Pass("B", i)
        if split and i + 1 - weights > late:
            yield Pass("W", weights)
            weights += 1
    if split:
        for i in range(weights, m):
            yield Pass("W", i)


def _interleaved(stage: int, pp: int, vpp: int, m: int) -> Iterator[Pass]:
    # Narayanan et al., arXiv 2104.04473, figure 4, bottom; Megatron-LM's
    # forward_backward_pipelining_with_interleaving.
    total = m * vpp
    warmup = min((pp - stage - 1) * 2 + (vpp - 1) * pp, total)

    def at(k: int, forward: bool) -> Pass:
        group, within = divmod(k, pp * vpp)
        chunk = within // pp
        return Pass(
            "F" if forward else "B",
            group * pp + within % pp,
            chunk if forward else vpp - 1 - chunk,
        )

    for k in range(warmup):
        yield at(k, True)
    for k in range(total - warmup):
        yield at(k + warmup, True)
        yield at(k, False)
    for k in range(total - warmup, total):
        yield at(k, False)
