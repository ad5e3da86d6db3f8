"""Traces: reading, checking, describing and writing sets of Chakra execution traces."""

from genie.trace.kinds import DTYPE_BYTES, DTYPES, Coll, Kind
from genie.trace.load import load
from genie.trace.model import RankTrace, Trace
from genie.trace.writer import Builder, write

__all__ = [
    "DTYPES",
    "DTYPE_BYTES",
    "Builder",
    "Coll",
    "Kind",
    "RankTrace",
    "Trace",
    "load",
    "write",
]
