"""How much a run disturbed itself: CPU, timer error, poll gaps; the rows of table `health`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from genie.replay.hostinfo import counters, cpu_times

if TYPE_CHECKING:
    from genie.replay.carrier import Carrier


class Meter:
    """Reads CPU times and counters around a run; made just before it."""

    def __init__(self, carrier: Carrier | None) -> None:
        self._carrier = carrier
        self._devices = carrier.counted_devices() if carrier else ()
        self._before = self._read()
        self._after = self._before
        self._cpu_before = cpu_times()
        self._cpu_after = self._cpu_before
        self.end_ns = time.monotonic_ns()

    def _read(self) -> dict[tuple[str, str], int]:
        found = counters(self._devices)
        if self._carrier is not None:
            found |= self._carrier.counters()
        return found

    def stop(self) -> None:
        """Read again, just after the run."""
        self.end_ns = time.monotonic_ns()
        self._cpu_after = cpu_times()
        self._after = self._read()

    def counters(self) -> tuple[tuple[str, str, int, int], ...]:
        """Return (device, counter, before, after) of what was there both times."""
        return tuple(
            (device, name, self._before[device, name], value)
            for (device, name), value in sorted(self._after.items())
            if (device, name) in self._before
        )

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
        for name in ("timer_error", "poll_gap"):
            if engine[name]["count"]:
                for key in ("p50", "p99", "max"):
                    out[f"{name}_{key}_ns"] = float(engine[name][key])
        return out
