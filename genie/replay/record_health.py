"""Whether the machine itself, not the network, set the pace of a recorded run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from genie.units import format_time

if TYPE_CHECKING:
    from genie.replay.recording import Recording

#: Above this share of busy CPU time a host had none left for the run.
BUSY = 0.95
#: A compute node that ends so much later than it should, once in a hundred, is a late timer, ns.
LATE_NS = 1_000_000.0


def cpu_limits(rec: Recording) -> list[str]:
    """Return why the CPU may have been the limit of a run; empty when it was not.

    Reasons: a host's CPUs were busy for more than 95 % of the run while its workers do not spin
    (they share cores), or compute nodes ended more than 1 ms late (99th percentile).
    """
    out = []
    for row in rec.health:
        name = f"worker {row['worker']}"
        shared = row["workers_on_host"] > row["cores"]
        if shared and row["host_cpu_busy"] > BUSY:
            out.append(
                f"{name}: its host's CPUs were {100 * row['host_cpu_busy']:.0f} % busy with "
                f"{row['workers_on_host']} workers on {row['cores']} cores"
            )
        if row["timer_error_p99_ns"] > LATE_NS:
            late = format_time(float(row["timer_error_p99_ns"]))
            out.append(f"{name}: compute ended up to {late} late (99th percentile)")
    return out


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
    return f"health: {', '.join(parts)}" if parts else ""
