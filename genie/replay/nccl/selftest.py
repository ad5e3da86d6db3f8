"""`genie selftest`: hold every stage to the packaged numbers out of compiled NCCL."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from genie.replay.nccl import golden
from genie.replay.nccl.selfcheck.tally import Tally

Check = Callable[[str], Tally]

WIRE = ("wire_1gpu", "wire_1gpu_a100", "wire_multi", "wire_multi_small", "wire_pat")


def checks() -> list[tuple[str, str, Check]]:
    """Return (file, version, check) of every golden file there is."""
    from genie.replay.nccl.selfcheck import clusters, p2p, plans, wire

    table: list[tuple[str, Check]] = [
        ("presets", clusters.check_presets),
        ("dtree", clusters.check_dtree),
        ("rings", clusters.check_rings),
        ("tuning", plans.check_tuning),
        ("chunking", plans.check_chunking),
        ("groups", plans.check_groups),
        ("env_variants", plans.check_env_variants),
        *((name, partial(wire.check_wire, name)) for name in WIRE),
        ("p2p", p2p.check_p2p),
        ("ib", p2p.check_ib),
        ("sub/subcomm", clusters.check_subcomm),
        ("sub/subcomm", plans.check_subcomm_choices),
        ("sub/subset_graphs", clusters.check_subset_graphs),
        ("sub/sub_wire", partial(wire.check_wire, "sub/sub_wire")),
        ("sub/p2p_uneven", p2p.check_p2p_uneven),
    ]
    return [
        (name, version, check)
        for version in golden.FOLDERS
        for name, check in table
        if golden.exists(name, version)
    ]


def run(progress: Callable[[int, int], None] | None = None) -> list[dict[str, Any]]:
    """Compare every golden file of every release with what GENIE computes.

    Args:
        progress: called with (files done, files) after each file.

    Returns:
        One row a file and release: file, version, compared, equal, differences (the first few,
        as text).
    """
    wanted = checks()
    rows = []
    for done, (_, version, check) in enumerate(wanted, start=1):
        rows.append(check(version).row())
        if progress is not None:
            progress(done, len(wanted))
    return rows


def render(rows: list[dict[str, Any]]) -> str:
    """Return `rows` as a table, with the differences and a verdict below."""
    lines = [f"{'NCCL':<5} {'file':<24} {'compared':>9} {'equal':>9}"]
    for row in rows:
        mark = "" if row["compared"] == row["equal"] else "  differs"
        lines.append(
            f"{row['version']:<5} {row['file']:<24} {row['compared']:>9} {row['equal']:>9}{mark}"
        )
    compared = sum(row["compared"] for row in rows)
    equal = sum(row["equal"] for row in rows)
    for row in rows:
        lines += [f"  {row['version']} {row['file']}: {text}" for text in row["differences"]]
    verdict = "all equal" if compared == equal else f"{compared - equal} differ"
    lines.append(f"{equal} of {compared} comparisons equal: {verdict}")
    return "\n".join(lines)
