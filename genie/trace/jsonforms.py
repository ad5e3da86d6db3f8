"""JSON forms of Chakra traces."""

from __future__ import annotations

from genie.errors import TraceError
from genie.trace.files import FileSet, Source
from genie.trace.model import Trace


def looks_like_json(head: bytes) -> bool:
    """Whether the first bytes of a file can be JSON; a protobuf file has control bytes there."""
    start = head.lstrip(b" \t\r\n\xef\xbb\xbf")
    return start[:1] in {b"{", b"["} and all(byte >= 32 or byte in {9, 10, 13} for byte in head)


def load(chosen: FileSet, sources: dict[int, Source]) -> Trace:
    """Return the trace in JSON files."""
    raise TraceError(f"{chosen.folder}: JSON traces are not read yet", path=str(chosen.folder))
