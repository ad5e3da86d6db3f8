"""Unpacking gzip into memory, piece by piece and only up to a limit.

A file of a few kilobytes may unpack to more than there is memory: deflate makes up to 1032 bytes
of one (zlib's "Maximum Compression Factor").
"""

from __future__ import annotations

import gzip
import os
import zlib
from pathlib import Path
from typing import BinaryIO

MAGIC = b"\x1f\x8b"
_PIECE = 1 << 16
_OUT = 1 << 20


class TooLargeError(ValueError):
    """Content beyond the limit; the text completes "FILE: ..."."""


def most_unpacked() -> int:
    """Return the bytes that gzip files read together may unpack to: half of this machine's memory.

    What is unpacked stays in memory; a file that is not packed is read from disk.
    """
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def read_head(path: Path, size: int) -> bytes:
    """Return the first bytes of a file, unpacked if it is gzip; none if they cannot be read."""
    try:
        with open(path, "rb") as file:
            head = file.read(size)
        if head[:2] == MAGIC:
            with gzip.open(path) as unpacked:
                head = unpacked.read(size)
    except (OSError, EOFError, zlib.error):
        return b""
    return head


def gunzip(file: BinaryIO, room: int) -> tuple[bytearray, str]:
    """Return what a gzip file holds, and what is wrong with it ("" if nothing).

    Args:
        file: At its start; several gzip members may follow each other.
        room: Most bytes that it may unpack to.

    Raises:
        TooLargeError: It unpacks to more.
    """
    found = bytearray()
    unzip = zlib.decompressobj(wbits=31)
    packed = file.read(_PIECE)
    while True:
        try:
            found += unzip.decompress(packed, _OUT)
        except (zlib.error, MemoryError) as error:
            return found, f"not readable as gzip: {error}"
        if len(found) > room:
            raise TooLargeError(
                f"unpacks to more than {room} bytes, which is what gzip files may take of the "
                "memory here; a file that is not packed is read from disk (gunzip it)"
            )
        if not unzip.eof:
            packed = unzip.unconsumed_tail or file.read(_PIECE)
            if packed:
                continue
            # All of the input is in; what is left inside comes out without more of it.
            found += unzip.flush()
            if not unzip.eof:
                return found, "gzip data cut short"
        packed = unzip.unused_data
        if len(packed) < len(MAGIC):
            packed += file.read(_PIECE)
        if not packed:
            return found, ""
        if not packed.startswith(MAGIC):
            left = packed + file.read(_OUT)
            if left.strip(b"\0"):
                return found, f"{len(left)} bytes or more after the end of the gzip data"
            return found, ""
        unzip = zlib.decompressobj(wbits=31)
