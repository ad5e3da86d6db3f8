"""Units as GENIE uses them: int64 nanoseconds, int64 bytes, GB/s = 1e9 bytes/s."""

from __future__ import annotations

import re

from genie.errors import InputError

_SUFFIX = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)
_TIME_NS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9, "min": 60e9, "h": 3600e9}
_TIME = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(ns|us|ms|s|min|h|)")


def parse_size(text: str) -> int:
    """Return the bytes that nccl-tests would read from `text` ("64M" is 64 * 2**20)."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise InputError(f"not a size: {text!r} (examples: 8, 64K, 1.5M, 1G)")
    return int(float(match[1]) * _SUFFIX[match[2].upper()])


def parse_time(text: str, plain: str | None = None) -> int:
    """Return the nanoseconds in `text`, such as "500us" or "2s".

    Args:
        text: A number with its unit: ns, us, ms, s, min or h.
        plain: The unit of a number without one; None refuses such a number.

    Raises:
        InputError: It is no time.
    """
    match = _TIME.fullmatch(text.strip())
    if match is None or not (match[2] or plain):
        also = f"; a plain number is in {plain}" if plain else ""
        raise InputError(f"not a time: {text!r} (examples: 500ns, 20us, 5ms, 1s, 2min{also})")
    return round(float(match[1]) * _TIME_NS[match[2] or str(plain)])


def format_size(nbytes: int) -> str:
    """Return `nbytes` with a binary suffix, exact ("1.5 MiB", "1000 B")."""
    for suffix, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if abs(nbytes) >= 1 << power:
            return f"{nbytes / (1 << power):.4g} {suffix}"
    return f"{nbytes} B"


def format_time(ns: float) -> str:
    """Return `ns` in the largest unit that leaves a number of at least one."""
    for suffix, scale in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if abs(ns) >= scale:
            return f"{ns / scale:.4g} {suffix}"
    return f"{ns:.4g} ns"
