"""Decoding single records in Python: attributes, names and metadata, of every wire version.

The scanner reads whole files; this reads the one record somebody asks about, tolerantly: text
that is no UTF-8 comes with backslashes, and what does not fit is left out.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from genie._core.scanner import V1, V2, V3, V4

Field = tuple[int, int, Any]
VERSION_NAMES = {V1: "v0.0.1", V2: "v0.0.2", V3: "v0.0.3", V4: "v0.0.4"}

_V1_FIELDS = {
    5: "tensor_loc",
    6: "tensor_size",
    7: "simulated_run_time",
    8: "input_tensor_loc",
    9: "input_tensor_size",
    10: "output_tensor_loc",
    11: "output_tensor_size",
    12: "num_ops",
    13: "comm_type",
    14: "involved_dim",
    15: "communicator_id",
    16: "comm_src",
    17: "comm_dst",
    18: "comm_size",
    19: "comm_tag",
    20: "comm_priority",
}
_V3_TEXTS = {
    5: "inputs",
    6: "input_shapes",
    7: "input_types",
    8: "outputs",
    9: "output_shapes",
    10: "output_types",
}


def varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number at `at` and the offset behind it.

    Raises:
        ValueError: The number is cut short or longer than 10 bytes.
    """
    value = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & (1 << 64) - 1, at
        shift += 7
    raise ValueError("number cut short or too long")


def fields(data: bytes) -> Iterator[Field]:
    """Yield (field number, wire type, value) of a message; a length-delimited value is bytes.

    Raises:
        ValueError: The bytes are no protobuf message.
    """
    at = 0
    while at < len(data):
        tag, at = varint(data, at)
        number, wire = tag >> 3, tag & 7
        value: Any
        if wire == 0:
            value, at = varint(data, at)
        elif wire == 2:
            size, at = varint(data, at)
            if at + size > len(data):
                raise ValueError("length past the end")
            value = data[at : at + size]
            at += size
        elif wire in {1, 5}:
            size = 8 if wire == 1 else 4
            value = data[at : at + size]
            if len(value) < size:
                raise ValueError("number cut short")
            at += size
        else:
            raise ValueError(f"wire type {wire}")
        if number == 0:
            raise ValueError("field number 0")
        yield number, wire, value


def text(raw: bytes) -> str:
    """Return `raw` as text, bytes that are no UTF-8 as backslash escapes."""
    return raw.decode("utf-8", "backslashreplace")


def _signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> bits - 1 else value


def _zigzag(value: int) -> int:
    return (value >> 1) ^ -(value & 1)


# The v0.0.4 arms: wire type, and how its raw value becomes Python's.
_ARMS: tuple[tuple[int, Any], ...] = (
    (1, lambda raw: struct.unpack("<d", raw)[0]),
    (5, lambda raw: struct.unpack("<f", raw)[0]),
    (0, lambda raw: _signed(raw, 32)),
    (0, lambda raw: _signed(raw, 64)),
    (0, lambda raw: raw & 0xFFFFFFFF),
    (0, lambda raw: raw),
    (0, lambda raw: _zigzag(raw & 0xFFFFFFFF)),
    (0, _zigzag),
    (5, lambda raw: int.from_bytes(raw, "little")),
    (1, lambda raw: int.from_bytes(raw, "little")),
    (5, lambda raw: int.from_bytes(raw, "little", signed=True)),
    (1, lambda raw: int.from_bytes(raw, "little", signed=True)),
    (0, bool),
    (2, text),
    (2, bytes),
)


def _list(data: bytes, wire: int, convert: Any) -> list[Any]:
    found: list[Any] = []
    for number, here, value in fields(data):
        if number != 1:
            continue
        if here == wire:
            found.append(convert(value))
        elif here == 2 and wire == 0:
            at = 0
            while at < len(value):
                raw, at = varint(value, at)
                found.append(convert(raw))
        elif here == 2 and wire in {1, 5}:
            size = 8 if wire == 1 else 4
            found += [convert(value[k : k + size]) for k in range(0, len(value), size)]
    return found


def attribute_v4(data: bytes) -> tuple[str, Any]:
    """Return name and value of a v0.0.4 attribute; the value is None if none is set."""
    name, value = "", None
    for number, wire, raw in fields(data):
        if number == 1 and wire == 2:
            name = text(raw)
        elif 3 <= number <= 32:
            arm, convert = _ARMS[(number - 3) // 2]
            if number % 2 and wire == arm:
                value = convert(raw)
            elif number % 2 == 0 and wire == 2:
                value = _list(raw, arm, convert)
    return name, value


def attribute_v3(data: bytes, version: int) -> tuple[str, Any]:
    """Return name and value of a v0.0.2 or v0.0.3 attribute."""
    name, kind, single = "", -1, None
    found: list[Any] = []
    for number, wire, raw in fields(data):
        if number == 1 and wire == 2:
            name = text(raw)
        elif number == 2 and wire == 0:
            kind = raw
        elif number >= 4:
            if wire == 0:
                value: Any = _signed(raw, 64)
            elif wire == 5:
                value = struct.unpack("<f", raw)[0]
            elif wire == 2:
                value = text(raw)
            else:
                continue
            single = value
            found.append(value)
    # Types count singles first, then lists: 3 + 3 (v0.0.2), 4 + 4 or 5 + 5 (v0.0.3).
    if version == V2:
        return name, found if kind >= 3 else single
    is_list = kind >= 5 or (kind == 4 and not isinstance(single, str))
    return name, found if is_list else single


def attributes(record: bytes, version: int) -> dict[str, Any]:
    """Return every attribute of a node, and what the version keeps in fields of its own."""
    found: dict[str, Any] = {}
    try:
        for number, wire, raw in fields(record):
            if version == V4:
                if number == 10 and wire == 2:
                    name, value = attribute_v4(raw)
                    found[name] = value
                elif number in {8, 9} and wire == 2:
                    found["inputs" if number == 8 else "outputs"] = io_info(raw)
            elif version == V1:
                if number in _V1_FIELDS and wire == 0:
                    found[_V1_FIELDS[number]] = raw
            elif number == 11 and wire == 2:
                name, value = attribute_v3(raw, version)
                found[name] = value
            elif number in _V3_TEXTS and wire == 2:
                found[_V3_TEXTS[number]] = text(raw)
    except ValueError:
        pass
    return found


def io_info(data: bytes) -> dict[str, str]:
    """Return the texts of an IOInfo: values, shapes, types."""
    names = {1: "values", 2: "shapes", 3: "types"}
    return {
        names[number]: text(raw)
        for number, wire, raw in fields(data)
        if number in names and wire == 2
    }


def metadata(record: bytes, version: int) -> dict[str, Any]:
    """Return the attributes of a GlobalMetadata; its version stands under "version"."""
    found: dict[str, Any] = {}
    try:
        for number, wire, raw in fields(record):
            if wire != 2:
                continue
            if version == V4 and number == 1:
                found["version"] = text(raw)
            elif version == V4 and number == 2:
                name, value = attribute_v4(raw)
                found[name] = value
            elif version != V4 and number == 1:
                name, value = attribute_v3(raw, version)
                found[name] = value
    except ValueError:
        pass
    return found
