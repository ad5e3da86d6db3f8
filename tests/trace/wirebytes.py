"""Protobuf bytes by hand, for files of every wire version and for broken ones."""

from __future__ import annotations

import struct


def varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def text(field: int, value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return varint(field << 3 | 2) + varint(len(raw)) + raw


def fixed32(field: int, value: float) -> bytes:
    return varint(field << 3 | 5) + struct.pack("<f", value)


def framed(*records: bytes) -> bytes:
    return b"".join(varint(len(record)) + record for record in records)


# v0.0.1: flat fields.
def v1(id: int, name: str, kind: int, parents: tuple[int, ...] = (), **fields: int) -> bytes:
    numbers = {
        "tensor_loc": 5, "tensor_size": 6, "time": 7, "num_ops": 12, "comm_type": 13,
        "communicator": 15, "src": 16, "dst": 17, "size": 18, "tag": 19,
    }  # fmt: skip
    record = number(1, id) + text(2, name) + number(3, kind)
    record += b"".join(number(4, parent) for parent in parents)
    return record + b"".join(number(numbers[key], value) for key, value in fields.items())


# v0.0.2 and v0.0.3: attributes in field 11, a type number and the value's field.
def attr_old(name: str, kind: int, *values: bytes) -> bytes:
    return text(11, text(1, name) + number(2, kind) + b"".join(values))


def old(id: int, name: str, kind: int, *rest: bytes, parents: tuple[int, ...] = ()) -> bytes:
    record = number(1, id) + text(2, name) + number(3, kind)
    return record + b"".join(number(4, parent) for parent in parents) + b"".join(rest)


def int_v2(name: str, value: int) -> bytes:
    return attr_old(name, 1, number(5, value))


def int_v3a(name: str, value: int) -> bytes:
    return attr_old(name, 2, number(6, value))


def int_v3(name: str, value: int) -> bytes:
    return attr_old(name, 3, number(7, value))


def text_v2(name: str, value: str) -> bytes:
    return attr_old(name, 2, text(6, value))


def text_v3a(name: str, value: str) -> bytes:
    return attr_old(name, 3, text(7, value))


def text_v3(name: str, value: str) -> bytes:
    return attr_old(name, 4, text(8, value))


# v0.0.4.
def attr(name: str, value: bytes) -> bytes:
    return text(10, text(1, name) + value)


def int_v4(name: str, value: int) -> bytes:
    return attr(name, number(9, value))


HEAD_V4 = text(1, "0.0.4")


def v4(
    id: int,
    name: str,
    kind: int,
    *rest: bytes,
    data: tuple[int, ...] = (),
    ctrl: tuple[int, ...] = (),
) -> bytes:
    record = (number(1, id) if id else b"") + text(2, name) + number(3, kind)
    if ctrl:
        record += text(4, b"".join(varint(k) for k in ctrl))
    if data:
        record += text(5, b"".join(varint(k) for k in data))
    return record + b"".join(rest)


def coll_v4(id: int, size: int = 1024, coll: int = 0, **more: tuple[int, ...]) -> bytes:
    return v4(id, f"coll{id}", 7, int_v4("comm_type", coll), int_v4("comm_size", size), **more)
