"""Whether the machine itself, not the network, set the pace of a recorded run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from genie.units import format_time

if TYPE_CHECKING:
    from genie.replay.recording import Recording

#: Above this share of busy CPU time a host had none left for the run.
BUSY = 0.95
#: A worker that could run and had no CPU for more than this share of the run was held up by it.
WAIT = 0.10
#: Above this share of CPU time a hypervisor gave to other machines.
STEAL = 0.05
#: A compute node that ends so much later than it should, once in a hundred, is a late timer, ns.
LATE_NS = 1_000_000.0
#: A worker that looks at the network later than this, ns, and than this share of a collective's
#: median time, once in a hundred, holds up what it should pass on.
GAP_NS, GAP_SHARE = 1_000_000.0, 0.10


def cpu_limits(rec: Recording) -> list[str]:
    """Return why the CPU may have been the limit of a run; empty when it was not.

    The CPU, not the network, was the limit when for any worker

    * its thread was ready to run and had no CPU for more than 10 % of the run (`cpu_wait_ns`), or
    * a hypervisor kept more than 5 % of the host's CPU time (`host_cpu_steal`), or
    * the host's CPUs were busy for more than 95 % of the run while its workers do not spin, which
      is when they share cores (`host_cpu_busy`), or
    * the 99th percentile of its poll gaps (from one look at the network to the next, sleep not
      counted) is above 1 ms and above 10 % of the median time of a collective, or
    * compute nodes ended more than 1 ms late (99th percentile of `timer_error`).

    A value that was not measured limits nothing.
    """
    out = []
    collective = _collective_ns(rec)
    for row in rec.health:
        name = f"worker {row['worker']}"
        shared = row["workers_on_host"] > row["cores"]
        if row["wall_ns"] > 0 and row["cpu_wait_ns"] > WAIT * row["wall_ns"]:
            share = 100 * row["cpu_wait_ns"] / row["wall_ns"]
            out.append(f"{name}: was ready to run and had no CPU for {share:.0f} % of the run")
        if row["host_cpu_steal"] > STEAL:
            out.append(
                f"{name}: a hypervisor kept {100 * row['host_cpu_steal']:.0f} % of its host's CPUs"
            )
        if shared and row["host_cpu_busy"] > BUSY:
            out.append(
                f"{name}: its host's CPUs were {100 * row['host_cpu_busy']:.0f} % busy with "
                f"{row['workers_on_host']} workers on {row['cores']} cores"
            )
        gap = float(row["poll_gap_p99_ns"])
        if gap > GAP_NS and gap > GAP_SHARE * collective:
            out.append(
                f"{name}: looked at the network up to {format_time(gap)} late (99th percentile), "
                f"a collective takes {format_time(collective)}"
            )
        if row["timer_error_p99_ns"] > LATE_NS:
            late = format_time(float(row["timer_error_p99_ns"]))
            out.append(f"{name}: compute ended up to {late} late (99th percentile)")
    return out


def _collective_ns(rec: Recording) -> float:
    """Return the median time of a collective, ns; 0 where none was recorded."""
    times = rec.collectives()["time_ns"]
    times = times[times > 0]
    return float(np.median(times)) if len(times) else 0.0


def health_line(rec: Recording) -> str:
    """Return how well the run kept time, in one line; "" when nothing was measured."""
    table = rec.health
    parts = []
    for column, text in (
        ("timer_error_p99_ns", "compute ends late by p99"),
        ("poll_gap_p99_ns", "poll gap p99"),
        ("clock_bound_ns", "clocks agree within"),
    ):
        values = table[column][np.isfinite(table[column])]
        if len(values) and values.max() > 0:
            parts.append(f"{text} {format_time(float(values.max()))}")
    busy = table["host_cpu_busy"][np.isfinite(table["host_cpu_busy"])]
    if len(busy):
        parts.append(f"host CPU {100 * float(busy.max()):.0f} % busy")
    waited = table["cpu_wait_ns"] / np.maximum(table["wall_ns"], 1)
    waited = waited[(table["cpu_wait_ns"] >= 0) & (table["wall_ns"] > 0)]
    if len(waited):
        parts.append(f"workers waited for a CPU {100 * float(waited.max()):.1f} % of the run")
    return f"health: {', '.join(parts)}" if parts else ""
