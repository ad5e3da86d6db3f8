"""Which NICs are probed with which, in what order, and what the numbers say."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

#: perftest counts megabytes of 2**20 bytes.
MIB = 1 << 20


@dataclass
class Link:
    """One NIC of one worker with one of another, and what was found out about them.

    Attributes:
        a: Lower worker.
        b: Higher worker.
        nic_a: Index of a's NIC.
        nic_b: Index of b's NIC.
        error: Why they do not reach each other; "" when they do.
        ping_ns: Round trips of a small message.
        ways: (sender, receiver) → row of the bandwidth probe.
        slow: Why bandwidth is missing; "" when it is there or was not asked for.
    """

    a: int
    b: int
    nic_a: int
    nic_b: int
    error: str = ""
    ping_ns: list[int] = field(default_factory=list)
    ways: dict[tuple[int, int], dict[str, Any]] = field(default_factory=dict)
    slow: str = ""

    @property
    def same_rail(self) -> bool:
        """Whether both are the same NIC of their host: such pairs carry a ring's traffic."""
        return self.nic_a == self.nic_b

    @property
    def latency_us(self) -> float:
        """Half the median round trip."""
        return statistics.median(self.ping_ns) / 2000 if self.ping_ns else float("nan")


def rounds(workers: Sequence[int]) -> Iterator[list[tuple[int, int]]]:
    """Yield rounds in which every worker is in at most one pair, until all pairs were in one.

    The circle method of round-robin tournaments: n - 1 rounds for n workers, n if n is odd.
    """
    ring: list[int | None] = list(workers)
    if len(ring) % 2:
        ring.append(None)
    n = len(ring)
    for _ in range(n - 1):
        pairs = []
        for i in range(n // 2):
            x, y = ring[i], ring[n - 1 - i]
            if x is not None and y is not None:
                pairs.append((min(x, y), max(x, y)))
        yield pairs
        ring.insert(1, ring.pop())


def bandwidth(nbytes: int, marks: Sequence[int], times: Sequence[int]) -> dict[str, Any]:
    """Return perftest's columns of a stream that the receiver timed.

    Args:
        nbytes: Size of a message.
        marks: Numbers of messages complete.
        times: When they were, ns.

    Returns:
        bytes, iterations, peak_mbs (the fastest part between two marks), average_mbs (without the
        part before the first mark, in which it gathers speed), both in 2**20 bytes/s as perftest,
        and msg_rate_mpps.
    """
    steps = [
        ((m1 - m0), (t1 - t0))
        for m0, m1, t0, t1 in zip(marks[1:], marks[2:], times[1:], times[2:], strict=False)
        if t1 > t0
    ]
    if not steps:
        # Too few to leave any out.
        steps = [(marks[-1] - marks[0], max(times[-1] - times[0], 1))]
    messages, took = sum(m for m, _ in steps), sum(t for _, t in steps)
    return {
        "bytes": nbytes,
        "iterations": marks[-1],
        "peak_mbs": max(m / t for m, t in steps) * 1e9 * nbytes / MIB,
        "average_mbs": messages / took * 1e9 * nbytes / MIB,
        "msg_rate_mpps": messages / took * 1e3,
    }
