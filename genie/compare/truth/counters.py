"""Texts that say something of a network but hold no operation: counters, failed completions."""

from __future__ import annotations

import re
from pathlib import Path

from genie.compare.truth.facts import _COUNTER
from genie.errors import CompareError

_LINE = re.compile(r"^\s*(?:\S*/)?([a-z][a-z0-9_]+)\s*[:=]?\s+(\d+)\s*$")
_COMPLETION = re.compile(r"(?:Got completion|wc\.)?.*\bstatus=?\s*(\d+).*\bvendor[ _]err")


def refuse(path: Path, text: str) -> None:
    """Raise for a text of RoCE counters or of failed work completions; return for others."""
    lines = [match for line in text.splitlines() if (match := _LINE.match(line))]
    known = [match for match in lines if _COUNTER.match(match[1])]
    if len(known) >= 3 and len(known) * 2 >= len(lines):
        raised = [f"{m[1]} {m[2]}" for m in known if int(m[2]) and m[1] != "lifespan"]
        raise CompareError(
            f"{path}: RoCE counters ({len(lines)}) are totals of a device: no operation to compare"
            + (f"; not zero: {', '.join(raised[:6])}" if raised else ""),
            path=str(path),
        )
    failed = [match[1] for line in text.splitlines() if (match := _COMPLETION.search(line))]
    if failed:
        raise CompareError(
            f"{path}: {len(failed)} failed work completions (first status {failed[0]}): opcode "
            "and length are not valid in a failed completion, so no message can be read",
            path=str(path),
        )
