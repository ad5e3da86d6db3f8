"""Chakra v0.0.4 messages for the `protobuf` package, built at import from the table below.

Generated modules are bound to the protobuf release that made them; a descriptor built at run
time works with every release from 4.25 on. `chakra.proto` beside this file says the same in
protobuf's own language. The descriptors live in a pool of their own, so that another library's
Chakra schema in the same process never collides with this one.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE = "genie.chakra"

# (name, field type) of the oneof's members in wire order: member k has number 3 + 2 * k,
# its list twin 4 + 2 * k.
ARMS = (
    "double",
    "float",
    "int32",
    "int64",
    "uint32",
    "uint64",
    "sint32",
    "sint64",
    "fixed32",
    "fixed64",
    "sfixed32",
    "sfixed64",
    "bool",
    "string",
    "bytes",
)
NODE_TYPES = (
    "INVALID_NODE",
    "METADATA_NODE",
    "MEM_LOAD_NODE",
    "MEM_STORE_NODE",
    "COMP_NODE",
    "COMM_SEND_NODE",
    "COMM_RECV_NODE",
    "COMM_COLL_NODE",
)
_FIELD = descriptor_pb2.FieldDescriptorProto


def _scalar(kind: str) -> int:
    return int(_FIELD.Type.Value(f"TYPE_{kind.upper()}"))


def _field(message: Any, name: str, number: int, kind: str, repeated: bool = False) -> Any:
    field = message.field.add(name=name, number=number)
    field.label = _FIELD.LABEL_REPEATED if repeated else _FIELD.LABEL_OPTIONAL
    if kind.startswith("."):
        is_enum = kind.endswith(".NodeType")
        field.type = _FIELD.TYPE_ENUM if is_enum else _FIELD.TYPE_MESSAGE
        field.type_name = kind
    else:
        field.type = _scalar(kind)
    return field


def file_descriptor() -> descriptor_pb2.FileDescriptorProto:
    """Return the description of the whole schema, as protoc would give it for chakra.proto."""
    file = descriptor_pb2.FileDescriptorProto(name="chakra.proto", package=PACKAGE, syntax="proto3")
    for arm in ARMS:
        values = file.message_type.add(name=f"{arm.capitalize()}List")
        _field(values, "values", 1, arm, repeated=True)
    attribute = file.message_type.add(name="AttributeProto")
    _field(attribute, "name", 1, "string")
    _field(attribute, "doc_string", 2, "string")
    attribute.oneof_decl.add(name="value")
    for k, arm in enumerate(ARMS):
        twin = f".{PACKAGE}.{arm.capitalize()}List"
        _field(attribute, f"{arm}_val", 3 + 2 * k, arm).oneof_index = 0
        _field(attribute, f"{arm}_list", 4 + 2 * k, twin).oneof_index = 0
    node_type = file.enum_type.add(name="NodeType")
    for number, name in enumerate(NODE_TYPES):
        node_type.value.add(name=name, number=number)
    metadata = file.message_type.add(name="GlobalMetadata")
    _field(metadata, "version", 1, "string")
    _field(metadata, "attr", 2, f".{PACKAGE}.AttributeProto", repeated=True)
    io_info = file.message_type.add(name="IOInfo")
    for number, name in enumerate(("values", "shapes", "types"), start=1):
        _field(io_info, name, number, "string")
    node = file.message_type.add(name="Node")
    _field(node, "id", 1, "uint64")
    _field(node, "name", 2, "string")
    _field(node, "type", 3, f".{PACKAGE}.NodeType")
    _field(node, "ctrl_deps", 4, "uint64", repeated=True)
    _field(node, "data_deps", 5, "uint64", repeated=True)
    _field(node, "start_time_micros", 6, "uint64")
    _field(node, "duration_micros", 7, "uint64")
    _field(node, "inputs", 8, f".{PACKAGE}.IOInfo")
    _field(node, "outputs", 9, f".{PACKAGE}.IOInfo")
    _field(node, "attr", 10, f".{PACKAGE}.AttributeProto", repeated=True)
    return file


def _messages() -> dict[str, Any]:
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file_descriptor())  # type: ignore[no-untyped-call, unused-ignore]
    names = ("AttributeProto", "GlobalMetadata", "IOInfo", "Node")
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))
        for name in names
    }


_CLASSES = _messages()
AttributeProto: Any = _CLASSES["AttributeProto"]
GlobalMetadata: Any = _CLASSES["GlobalMetadata"]
IOInfo: Any = _CLASSES["IOInfo"]
Node: Any = _CLASSES["Node"]
