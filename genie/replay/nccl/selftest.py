"""`genie selftest`: hold every stage to the packaged numbers out of compiled NCCL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from genie.replay.nccl import golden
from genie.replay.nccl.selfcheck.tally import Tally

Check = Callable[[str], Tally]


def checks() -> list[tuple[str, str, Check]]:
    """Return (file, version, check) of every golden file there is."""
    from genie.replay.nccl.selfcheck import plans

    table: list[tuple[str, Check]] = [
        ("tuning", plans.check_tuning),
        ("chunking", plans.check_chunking),
        ("groups", plans.check_groups),
        ("env_variants", plans.check_env_variants),
        ("sub/subcomm", plans.check_subcomm_choices),
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
