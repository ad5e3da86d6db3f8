"""Writing traces: real Chakra v0.0.4 files, through the protobuf package.

What the format has no field for goes into attributes: those that PyTorch's converter and STG use
where there is one, and `comm_root`, `comm_dtype`, `comm_in_splits`, `comm_out_splits` (bytes to
and from each rank) and `duration_ns` (only when a duration is no whole number of microseconds)
where there is none. GENIE's reader knows them; other readers pass over attributes by name.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from genie.errors import InputError
from genie.trace.kinds import DTYPES, Coll, Kind, code, dtype_index

VERSION = "0.0.4"
AttrValue = bool | int | float | str | bytes | Sequence[int] | Sequence[float] | Sequence[str]


class Builder:
    """The nodes of one rank, in the order in which they will stand in the file."""

    def __init__(self, metadata: Mapping[str, AttrValue] | None = None) -> None:
        """Start an empty rank; `metadata` becomes attributes of the file's `GlobalMetadata`."""
        self.metadata = dict(metadata or {})
        self._nodes: list[dict[str, Any]] = []
        self._ids: set[int] = set()
        self._next = 0

    def __len__(self) -> int:
        return len(self._nodes)

    def node(
        self,
        kind: Kind | str,
        name: str,
        *,
        id: int | None = None,
        deps: Iterable[int] = (),
        ctrl_deps: Iterable[int] = (),
        duration_ns: int | None = None,
        start_ns: int | None = None,
        coll: Coll | str | None = None,
        nbytes: int | None = None,
        group: str | None = None,
        peer: int | None = None,
        tag: int | None = None,
        root: int | None = None,
        stream: int | None = None,
        thread: int | None = None,
        dtype: str | None = None,
        splits: tuple[Sequence[int], Sequence[int]] | None = None,
        num_ops: int | None = None,
        tensor_size: int | None = None,
        is_cpu: bool | None = None,
        attrs: Mapping[str, AttrValue] | None = None,
    ) -> int:
        """Add a node and return its id.

        Args:
            kind: A `Kind` or its name ("COMP").
            name: Any text.
            id: Node id; the next free one by default.
            deps: Ids of parents (data dependencies); they may be added later.
            ctrl_deps: Ids of parents (control dependencies).
            duration_ns: Duration in ns.
            start_ns: Start in ns; kept in whole microseconds.
            coll: Which collective, for a COMM_COLL node.
            nbytes: Size in bytes: of all_gather one rank's part, of the others the whole input.
            group: Name of the group; the world by default.
            peer: Global rank a send goes to or a receive comes from.
            tag: Tag of a send or receive.
            root: Root, as a rank in the group.
            stream: GPU stream.
            thread: CPU thread.
            dtype: Element type, one of `DTYPES`.
            splits: Bytes to each rank and from each rank of an uneven all_to_all.
            num_ops: Operations (FLOP).
            tensor_size: Bytes of the node's tensors.
            is_cpu: Whether the operation runs on the CPU; by default not said.
            attrs: Further attributes; int becomes int64, float double, sequences lists.

        Raises:
            InputError: An argument does not fit the kind of node, or the id is taken.
        """
        kind = code(Kind, kind)
        number = self._next if id is None else id
        if not 0 <= number < 1 << 64:
            raise InputError(f"node id {number} is not a 64-bit unsigned number")
        if number in self._ids:
            raise InputError(f"node id {number} is used twice")
        collective = None if coll is None else code(Coll, coll)
        if (kind == Kind.COMM_COLL) != (collective is not None):
            raise InputError(f"node {number} ({name}): coll goes with COMM_COLL nodes, and must")
        if peer is not None and kind not in {Kind.COMM_SEND, Kind.COMM_RECV}:
            raise InputError(f"node {number} ({name}): peer goes with sends and receives")
        if dtype is not None and dtype_index(dtype) < 0:
            raise InputError(f"node {number} ({name}): dtype {dtype!r} is none of {DTYPES}")
        for what, value in (("duration_ns", duration_ns), ("nbytes", nbytes)):
            if value is not None and value < 0:
                raise InputError(f"node {number} ({name}): {what} {value} is negative")
        extra: list[tuple[str, str, AttrValue]] = []

        def add(attr: str, arm: str, value: Any) -> None:
            if value is not None:
                extra.append((attr, arm, value))

        add("is_cpu_op", "bool_val", is_cpu)
        add("comm_type", "int64_val", None if collective is None else int(collective))
        add("comm_size", "int64_val", nbytes)
        add("pg_name", "string_val", group)
        if kind == Kind.COMM_SEND:
            add("comm_dst", "int32_val", peer)
        elif kind == Kind.COMM_RECV:
            add("comm_src", "int32_val", peer)
        add("comm_tag", "int32_val", tag)
        add("comm_root", "int32_val", root)
        add("comm_dtype", "string_val", None if dtype is None else DTYPES[dtype_index(dtype)])
        if splits is not None:
            add("comm_in_splits", "int64_list", list(splits[0]))
            add("comm_out_splits", "int64_list", list(splits[1]))
        add("num_ops", "int64_val", num_ops)
        add("tensor_size", "uint64_val", tensor_size)
        add("tid", "int64_val", thread)
        add("stream", "int64_val", stream)
        if duration_ns is not None and duration_ns % 1000:
            add("duration_ns", "int64_val", duration_ns)
        taken = {attr for attr, _, _ in extra}
        for attr, given in (attrs or {}).items():
            if attr in taken:
                raise InputError(
                    f"node {number} ({name}): attrs gives {attr}, which is an argument of its own"
                )
            add(attr, _arm(attr, given), given)
        self._nodes.append(
            {
                "id": number,
                "name": name,
                "type": int(kind),
                "data_deps": list(deps),
                "ctrl_deps": list(ctrl_deps),
                "duration_micros": 0 if duration_ns is None else duration_ns // 1000,
                "start_time_micros": 0 if start_ns is None else start_ns // 1000,
                "attr": extra,
            }
        )
        self._ids.add(number)
        self._next = max(self._next, number + 1)
        return number

    def to_bytes(self) -> bytes:
        """Return the content of the rank's `.et` file."""
        from genie.trace.schema import GlobalMetadata, Node

        head = GlobalMetadata(version=VERSION)
        for name, value in self.metadata.items():
            _set(head.attr.add(name=name), _arm(name, value), value)
        out = bytearray(_framed(head.SerializeToString()))
        for fields in self._nodes:
            plain = {key: value for key, value in fields.items() if key != "attr"}
            node = Node(**plain)
            for name, arm, value in fields["attr"]:
                _set(node.attr.add(name=name), arm, value)
            out += _framed(node.SerializeToString())
        return bytes(out)


def write(
    folder: str | os.PathLike[str],
    prefix: str,
    ranks: Iterable[Builder],
    groups: Mapping[str, Sequence[int]] | None = None,
) -> Path:
    """Write a trace set and return the folder.

    Args:
        folder: Where; made if it is not there.
        prefix: Files are `<prefix>.<rank>.et`, and `<prefix>.groups.json` if there are groups.
        ranks: One builder a rank, rank 0 first.
        groups: Group name to global ranks, in communicator order.

    Raises:
        InputError: There are no ranks.
    """
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    count = 0
    for rank, builder in enumerate(ranks):
        (target / f"{prefix}.{rank}.et").write_bytes(builder.to_bytes())
        count += 1
    if count == 0:
        raise InputError("a trace set needs at least one rank")
    if groups:
        listed = {name: [int(rank) for rank in members] for name, members in groups.items()}
        (target / f"{prefix}.groups.json").write_text(json.dumps(listed, indent=1) + "\n")
    return target


def _arm(name: str, value: AttrValue) -> str:
    if isinstance(value, bool):
        return "bool_val"
    if isinstance(value, int):
        return "int64_val" if value < 1 << 63 else "uint64_val"
    if isinstance(value, float):
        return "double_val"
    if isinstance(value, str):
        return "string_val"
    if isinstance(value, bytes):
        return "bytes_val"
    kinds = {type(item) for item in value}
    for kind, arm in ((bool, "bool_list"), (int, "int64_list"), (str, "string_list")):
        if kinds <= {kind}:
            return arm
    if kinds <= {float, int}:
        return "double_list"
    raise InputError(f"attribute {name}: a list must hold one kind of value, got {value!r}")


def _set(attribute: Any, arm: str, value: AttrValue) -> None:
    if arm.endswith("_list"):
        twin = getattr(attribute, arm)
        twin.SetInParent()
        twin.values.extend(value)
    else:
        setattr(attribute, arm, value)


def _framed(message: bytes) -> bytes:
    length, head = len(message), bytearray()
    while length > 127:
        head.append(length & 127 | 128)
        length >>= 7
    head.append(length)
    return bytes(head) + message
