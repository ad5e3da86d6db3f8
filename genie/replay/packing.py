"""Named arrays as one block of bytes and back, without a copy or an import on the way in.

A block is the length of a JSON header (8 bytes, little endian), the header (name, dtype, shape and
offset of each array), and the arrays' bytes, each at a multiple of 64. Compression is left to
whoever sends it. `numpy.savez` does the same at a few milliseconds an array.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from genie.errors import LaunchError

ALIGN = 64
_LENGTH = 8


def pack(arrays: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """Return `arrays` as one block."""
    head: list[tuple[str, Any, tuple[int, ...], int]] = []
    parts: list[npt.NDArray[Any]] = []
    at = 0
    for name, array in arrays.items():
        data = np.ascontiguousarray(array)
        if data.dtype.hasobject:
            raise TypeError(f"{name}: arrays of Python objects do not travel")
        head.append((name, np.lib.format.dtype_to_descr(data.dtype), data.shape, at))
        parts.append(data)
        at += -(-data.nbytes // ALIGN) * ALIGN
    text = json.dumps(head).encode()
    begin = -(-(_LENGTH + len(text)) // ALIGN) * ALIGN
    out = bytearray(begin + at)
    out[:_LENGTH] = len(text).to_bytes(_LENGTH, "little")
    out[_LENGTH : _LENGTH + len(text)] = text
    for (_, _, _, offset), data in zip(head, parts, strict=True):
        if data.nbytes:
            place = begin + offset
            out[place : place + data.nbytes] = data.reshape(-1).view(np.uint8).data
    return bytes(out)


def unpack(block: bytes) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of a block, read-only views into it.

    Raises:
        LaunchError: Not a block that `pack` made.
    """
    try:
        length = int.from_bytes(block[:_LENGTH], "little")
        head = json.loads(block[_LENGTH : _LENGTH + length])
        begin = -(-(_LENGTH + length) // ALIGN) * ALIGN
        out: dict[str, npt.NDArray[Any]] = {}
        for name, descr, shape, offset in head:
            dtype = np.lib.format.descr_to_dtype(_tuples(descr))
            count = int(np.prod(shape, dtype=np.int64))
            out[name] = np.frombuffer(block, dtype, count, begin + offset).reshape(shape)
        return out
    except (ValueError, TypeError, KeyError) as exc:
        raise LaunchError(f"not a block of arrays: {exc}") from exc


def _tuples(descr: Any) -> Any:
    """Return a dtype's description with JSON's lists turned into the tuples NumPy wants."""
    if isinstance(descr, list):
        return [(field[0], _tuples(field[1]), *map(tuple, field[2:])) for field in descr]
    return descr
