"""Codes of the trace columns: node kinds, collectives and element types."""

from __future__ import annotations

from enum import IntEnum
from typing import TypeVar

from genie.errors import InputError

_Code = TypeVar("_Code", bound=IntEnum)


class Kind(IntEnum):
    """What a node is; the numbers are those of Chakra v0.0.4's `NodeType`."""

    INVALID = 0
    METADATA = 1
    MEM_LOAD = 2
    MEM_STORE = 3
    COMP = 4
    COMM_SEND = 5
    COMM_RECV = 6
    COMM_COLL = 7


class Coll(IntEnum):
    """Which collective; the numbers are those of Chakra v0.0.4's `CollectiveCommType`."""

    ALL_REDUCE = 0
    REDUCE = 1
    ALL_GATHER = 2
    GATHER = 3
    SCATTER = 4
    BROADCAST = 5
    ALL_TO_ALL = 6
    REDUCE_SCATTER = 7
    REDUCE_SCATTER_BLOCK = 8
    BARRIER = 9


DTYPES = (
    "int8",
    "uint8",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "float32",
    "float64",
    "bfloat16",
    "float8_e4m3",
    "float8_e5m2",
)
"""Element types in the order of NCCL's `ncclDataType_t`; the `dtype` column indexes this."""

DTYPE_BYTES = (1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1)
"""Bytes of one element, index for index with `DTYPES`."""

# How PyTorch (c10::toString, Kineto's "dtype" argument) and users spell the same types.
_ALIASES = {
    "char": "int8",
    "bool": "uint8",
    "byte": "uint8",
    "int": "int32",
    "uint": "uint32",
    "long": "int64",
    "half": "float16",
    "fp16": "float16",
    "float": "float32",
    "fp32": "float32",
    "double": "float64",
    "fp64": "float64",
    "bf16": "bfloat16",
    "fp8_e4m3": "float8_e4m3",
    "float8_e4m3fn": "float8_e4m3",
    "fp8_e5m2": "float8_e5m2",
}


def dtype_index(text: str) -> int:
    """Return the index into `DTYPES` of an element type, or -1 if `text` names none."""
    name = text.strip().lower()
    name = name.removeprefix("torch.").removeprefix("nccl")
    name = _ALIASES.get(name, name)
    return DTYPES.index(name) if name in DTYPES else -1


def dtype_bytes(name: str) -> int:
    """Return the bytes of one element of type `name`, refusing names that are not known.

    Raises:
        InputError: `name` is not an element type.
    """
    index = dtype_index(name) if isinstance(name, str) else -1
    if index < 0:
        raise InputError(f"not an element type: {name!r} (known: {', '.join(DTYPES)})")
    return DTYPE_BYTES[index]


def code(enum: type[_Code], value: _Code | int | str) -> _Code:
    """Return the member of `enum` that `value` names (a member, its number or its name).

    Raises:
        InputError: `value` is none of them.
    """
    try:
        if isinstance(value, str):
            return enum[value.strip().upper()]
        return enum(value)
    except (KeyError, ValueError):
        names = ", ".join(member.name.lower() for member in enum)
        raise InputError(f"not a {enum.__name__}: {value!r} (known: {names})") from None
