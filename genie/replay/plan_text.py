"""A plan as text: what `genie plan` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from genie.replay import plan_results
from genie.units import format_size

if TYPE_CHECKING:
    from genie.replay.plan import Plan


def table(header: list[str], rows: list[list[str]], left: int = 1) -> str:
    """Return rows as aligned columns; the first `left` columns are left-aligned."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = []
    for row in [header, *rows]:
        cells = [
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def describe(plan: Plan, warnings: bool = True) -> str:
    """Return the whole plan: cluster, calls, traffic, totals, and its warnings if asked."""
    parts = [
        f"cluster {plan.cluster.name}: {plan.world_size} ranks on {plan.n_hosts} hosts, "
        f"NCCL {'.'.join(map(str, plan.nccl.version))}",
        calls(plan),
        traffic(plan),
        f"one iteration: {plan.messages} messages, {format_size(plan.nbytes)} between hosts, "
        f"{plan.connections.size} connections",
    ]
    if warnings:
        parts += [f"warning: {text}" for text in plan.warnings]
    return "\n\n".join(parts)


def calls(plan: Plan) -> str:
    """Return one line a distinct call: choice, how often it runs, its messages."""
    rows = [
        [
            str(row["kind"]),
            str(row["count"]),
            str(row["dtype"]),
            str(row["ranks"]),
            str(row["algorithm"]),
            str(row["protocol"]),
            str(row["channels"] or ""),
            str(row["times"]),
            str(row["messages"]),
            format_size(int(row["nbytes"])),
        ]
        for row in plan_results.calls(plan)
    ]
    header = ["call", "count", "dtype", "ranks", "algorithm", "protocol", "channels", "times"]
    return table([*header, "messages", "bytes"], rows)


def traffic(plan: Plan) -> str:
    """Return one line a pair of NICs that talk."""
    rows = [
        [
            f"host {row['src_host']} nic {row['src_nic']} -> "
            f"host {row['dst_host']} nic {row['dst_nic']}",
            str(row["connections"]),
            str(row["messages"]),
            format_size(int(row["nbytes"])),
        ]
        for row in plan.traffic()
    ]
    if not rows:
        return "no traffic between hosts"
    return table(["traffic", "connections", "messages", "bytes"], rows)


def parts(plan: Plan) -> str:
    """Return the parts of every distinct collective: channel, count, chunk."""
    named = plan_results.calls(plan)
    rows = []
    for part in plan_results.parts(plan):
        call = named[part["call"]]
        rows.append(
            [
                f"{call['kind']} {call['count']} {call['dtype']}",
                *(str(part[name]) for name in ("channel", "elements", "chunk_bytes")),
            ]
        )
    return table(["call", "channel", "elements", "chunk_bytes"], rows)
