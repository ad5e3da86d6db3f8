"""What a trace set holds, as a document and as text."""

from __future__ import annotations

from typing import Any

from genie.trace.model import Trace


def inspect(trace: Trace) -> dict[str, Any]:
    """Return what the set holds, as a document that JSON can carry."""
    return {"path": trace.path, "version": trace.version, "kinds": trace.kinds()}
