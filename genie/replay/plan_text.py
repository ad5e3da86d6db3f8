"""A plan as text: what `genie plan` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

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
    uses = np.zeros(len(plan.templates), np.int64)
    for rank in plan.ranks:
        used = rank.template[rank.template >= 0]
        uses += np.bincount(used, minlength=len(plan.templates))
    per_call: dict[object, list[int]] = {}
    for template in plan.templates:
        total = per_call.setdefault(template.key, [0, 0, 0])
        total[0] = max(total[0], int(uses[template.index]))
        count = int(uses[template.index])
        total[1] += count * int(template.sends[:, 4].sum())
        total[2] += count * int(template.sends[:, 3].sum())
    rows = []
    for key, communicator, schedule in plan.schedules:
        choice = getattr(schedule, "choice", None)
        n, messages, nbytes = per_call.get(key, [0, 0, 0])
        rows.append(
            [
                key.kind,
                str(key.count),
                key.dtype,
                str(communicator.n_ranks),
                choice.algorithm if choice else "p2p",
                choice.protocol if choice else "simple",
                str(choice.channels) if choice else "",
                str(n),
                str(messages),
                format_size(nbytes),
            ]
        )
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
    rows = []
    for key, _, schedule in plan.schedules:
        found = getattr(schedule, "parts", None)
        if found is None:
            continue
        for part in found:
            rows.append(
                [
                    f"{key.kind} {key.count} {key.dtype}",
                    str(part["channel"]),
                    str(part["count"]),
                    str(part["chunk_bytes"]),
                ]
            )
    return table(["call", "channel", "elements", "chunk_bytes"], rows)
