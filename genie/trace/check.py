"""Reasons why a trace set cannot be replayed."""

from __future__ import annotations

from genie.errors import TraceError
from genie.trace.model import Trace


def find_problems(trace: Trace) -> list[TraceError]:
    """Return every reason, the most telling first."""
    found = list(trace.load_problems)
    for rank in trace.ranks:
        found += rank.problems
    return found
