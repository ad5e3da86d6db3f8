"""Two runs made by hand whose pictures depend on nothing but the drawing code."""

from __future__ import annotations

from typing import Any

import genie
from compare.build import truth
from genie.compare.comparison import Comparison
from genie.compare.truth.model import Truth

RANKS, HOSTS = 4, 2
MS = 1_000_000
SIZES = (64 << 10, 1 << 20, 16 << 20)


def run(slow: float = 1.0, iterations: int = 6, odd: int | None = None) -> Truth:
    """Return a run of 4 ranks on 2 hosts: compute, three all_reduces, their messages.

    Args:
        slow: How many times as long the network takes.
        iterations: How many.
        odd: An iteration whose network takes four times as long on top.
    """
    ops: list[dict[str, Any]] = []
    compute: list[dict[str, Any]] = []
    messages: list[dict[str, Any]] = []
    at = 0
    for iteration in range(iterations):
        for i, nbytes in enumerate(SIZES):
            late = [at + MS // 4 * (rank + i) for rank in range(RANKS)]
            rate = 16.0 / slow / (4 if iteration == odd else 1)
            # Spread between iterations, so that bands and boxes have a height.
            took = int((20_000 + nbytes / rate) * (1 + 0.04 * (iteration % 3)))
            end = max(late) + took
            for rank in range(RANKS):
                compute.append({"rank": rank, "kind": "comp", "iteration": iteration,
                                "start_ns": at, "end_ns": late[rank]})  # fmt: skip
                ops.append({"rank": rank, "kind": "all_reduce", "communicator": "dp",
                            "group_size": RANKS, "iteration": iteration, "seq": i,
                            "nbytes": nbytes, "start_ns": late[rank], "end_ns": end})  # fmt: skip
                peer = (rank + 1) % RANKS
                across = rank // 2 != peer // 2
                parts = 8
                for part in range(parts):
                    begin = max(late) + took * part // parts
                    messages.append({
                        "op": len(ops) - 1, "rank": rank, "peer": peer, "channel": part % 2,
                        "nbytes": nbytes * 3 // 2 // parts, "start_ns": begin,
                        "end_ns": begin + took // parts, "nic": rank % 2 if across else -1,
                    })  # fmt: skip
            at = end + MS // 8
    return truth(ops, compute, messages, world_size=RANKS, hosts=HOSTS)


def compared() -> Comparison:
    """Return a comparison that has every figure."""
    return genie.compare(
        run(1.15, odd=4),
        run(),
        faults={
            "slow NIC": (run(4.2), run(4.0)),
            "loss": (run(2.6), run(2.0)),
            "far host": (run(1.5), run(1.6)),
        },
    )
