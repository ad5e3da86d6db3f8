"""Write workloads/demo: one training step of a small transformer, TP 4 x DP 2, as Chakra traces.

Usage: python workloads/make_demo.py [FOLDER]

Eight ranks on two hosts of four GPUs. A tensor-parallel group is a host, so its all_reduces stay
inside the host; the data-parallel pairs cross it. Sizes follow Megatron-LM's layer (Shoeybi et
al., arXiv 1909.08053): two all_reduces of the activations per layer and pass; gradients are
reduced in one bucket per layer behind the backward pass, on a stream of their own, as PyTorch's
DistributedDataParallel does. Compute times are those of the arithmetic at 30 TFLOP/s.
"""

from __future__ import annotations

import sys
from pathlib import Path

from genie.trace import Builder, Coll, Kind, write

LAYERS = 4
HIDDEN = 1024
SEQUENCE = 512
BATCH = 16
TP = 4
DP = 2
ELEMENT = 2  # bfloat16
FLOPS = 30e12

COMPUTE_STREAM = 7
GRADIENT_STREAM = 20

ACTIVATIONS = BATCH * SEQUENCE * HIDDEN * ELEMENT
#: 12 h^2 weights a layer (attention 4 h^2, MLP 8 h^2), split over the TP group.
GRADIENTS = 12 * HIDDEN * HIDDEN * ELEMENT // TP


def matmul_ns(weights: int) -> int:
    """Return the time of one pass of `weights` parameters over the micro-batch, ns."""
    return round(2 * weights * BATCH * SEQUENCE / TP / FLOPS * 1e9)


def rank_trace(rank: int) -> Builder:
    """Build one rank's step."""
    tp, dp = f"tp{rank // TP}", f"dp{rank % TP}"
    attention, mlp = 4 * HIDDEN * HIDDEN, 8 * HIDDEN * HIDDEN
    made = Builder()
    node = made.node

    def comp(name: str, ns: int, after: list[int]) -> int:
        return node(
            Kind.COMP, name, deps=after, duration_ns=ns, stream=COMPUTE_STREAM, num_ops=ns * 30_000
        )

    def reduce(name: str, group: str, nbytes: int, stream: int, after: list[int]) -> int:
        return node(
            Kind.COMM_COLL, name, deps=after, coll=Coll.ALL_REDUCE, nbytes=nbytes, group=group,
            stream=stream, dtype="bfloat16",
        )  # fmt: skip

    last: list[int] = []
    for layer in range(LAYERS):
        for part, weights in (("attention", attention), ("mlp", mlp)):
            done = comp(f"forward.{layer}.{part}", matmul_ns(weights), last)
            name = f"forward.{layer}.{part}.all_reduce"
            last = [reduce(name, tp, ACTIVATIONS, COMPUTE_STREAM, [done])]
    buckets = []
    for layer in reversed(range(LAYERS)):
        for part, weights in (("mlp", mlp), ("attention", attention)):
            done = comp(f"backward.{layer}.{part}", 2 * matmul_ns(weights), last)
            name = f"backward.{layer}.{part}.all_reduce"
            last = [reduce(name, tp, ACTIVATIONS, COMPUTE_STREAM, [done])]
        name = f"gradients.{layer}.all_reduce"
        buckets.append(reduce(name, dp, GRADIENTS, GRADIENT_STREAM, last))
    comp("optimizer", 200_000, last + buckets)
    return made


def main() -> None:
    """Write the traces."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent / "demo")
    groups = {f"tp{i}": tuple(range(i * TP, (i + 1) * TP)) for i in range(DP)}
    groups |= {f"dp{i}": tuple(range(i, TP * DP, TP)) for i in range(TP)}
    write(folder, "step", [rank_trace(rank) for rank in range(TP * DP)], groups=groups)
    print(f"{TP * DP} ranks in {folder}")


if __name__ == "__main__":
    main()
