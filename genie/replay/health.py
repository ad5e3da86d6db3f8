"""How much a run disturbed itself: CPU, timer error, poll gaps; the rows of table `health`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from genie.replay.hostinfo import cpu_times
from genie.replay.nic_counters import counters
from genie.replay.sampler import Sampler

if TYPE_CHECKING:
    from genie.replay.carrier import Carrier


#: CPU times are read so long before the start barrier, ns: what is idle before does not dilute.
BEFORE_NS = 2_000_000


class Meter:
    """Reads CPU times and counters around a run, and counters during it; made before it.

    Args:
        carrier: The worker's transport.
        interval_s: Seconds between readings of the counters during the run; 0: none.
        start_ns: CLOCK_MONOTONIC of the start barrier.
        cores: Where the reading thread may run.
    """

    def __init__(
        self,
        carrier: Carrier | None,
        interval_s: float = 0.0,
        start_ns: int = 0,
        cores: set[int] | None = None,
    ) -> None:
        self._carrier = carrier
        self._devices = carrier.counted_devices() if carrier else ()
        self.sampler = Sampler(
            self._all, lambda: counters(self._devices), interval_s, start_ns, cores
        )
        self._cpu_before = cpu_times()
        self._cpu_after = self._cpu_before
        self.end_ns = time.monotonic_ns()

    def _all(self) -> dict[tuple[str, str], int]:
        """Return the kernel's counters and the transport's own."""
        return counters(self._devices) | (self._carrier.counters() if self._carrier else {})

    def wait(self, start_ns: int) -> None:
        """Sleep until just before the start barrier, then read the CPU times.

        Args:
            start_ns: The barrier, CLOCK_MONOTONIC.
        """
        time.sleep(max(0, start_ns - time.monotonic_ns() - BEFORE_NS) / 1e9)
        self._cpu_before = cpu_times()

    def stop(self) -> None:
        """Read again, just after the run."""
        self.end_ns = time.monotonic_ns()
        self._cpu_after = cpu_times()
        self.sampler.stop()

    def row(self, engine: dict[str, Any]) -> dict[str, float]:
        """Return the columns of table `health` that a worker itself knows.

        Args:
            engine: `Engine.health()`.
        """
        before, after = self._cpu_before, self._cpu_after
        total = after.host_total - before.host_total
        out: dict[str, float] = {
            "wall_ns": int(engine["wall_ns"]),
            "cpu_user_ns": int(engine["cpu_user_ns"]),
            "cpu_system_ns": int(engine["cpu_system_ns"]),
            "context_switches": int(engine["involuntary_switches"]),
        }
        if total > 0:
            out["host_cpu_busy"] = (after.host_busy - before.host_busy) / total
            out["host_cpu_steal"] = (after.host_steal - before.host_steal) / total
        if before.wait_ns >= 0 and after.wait_ns >= 0:
            out["cpu_wait_ns"] = after.wait_ns - before.wait_ns
        for name in ("timer_error", "poll_gap"):
            if engine[name]["count"]:
                for key in ("p50", "p99", "max"):
                    out[f"{name}_{key}_ns"] = float(engine[name][key])
        return out
