"""Ranks that do the same with other partners: encoded once, then only groups and peers change.

All ranks of a pipeline stage of a dense job have the same nodes; what differs is which group of a
kind they are in and which member of it they send to. A template keeps each node's bytes without
these attributes; protobuf takes fields in any order, so that a rank's own are appended.
"""

from __future__ import annotations

from genie.trace import Builder
from genie.workload.layout import Layout
from genie.workload.part import Part
from genie.workload.spec import Spec


def shares_nodes(spec: Spec) -> bool:
    """Return whether all ranks of a pipeline stage have the same nodes."""
    shape = spec.shape
    if shape.family == "convnet":
        return True
    return shape.family == "transformer" and (not shape.experts or spec.routing.even)


class Template:
    """The nodes of every rank of one stage."""

    def __init__(
        self, builder: Builder, layout: Layout, rank: int, part: Part | None = None
    ) -> None:
        """Take the nodes of one rank of the stage; peers are numbered as in `part`."""
        from genie.trace.schema import Node

        self._layout = layout
        self._part = part
        kinds: dict[str, str] = {}
        for kind in layout.kinds():
            group = layout.group(kind, rank)
            if group is not None:
                kinds.setdefault(group.name, kind)
        content = builder.to_bytes()
        self._head, at = b"", 0
        # A node without group and peer, kind of group, attribute of the peer, steps to it.
        self._nodes: list[tuple[bytes, str, str, int]] = []
        while at < len(content):
            length, start = _varint(content, at)
            record = content[at : start + length]
            at = start + length
            if not self._head:
                self._head = record
                continue
            node = Node.FromString(content[start:at])
            kept, kind, peer, place = [], "", "", 0
            for attribute in node.attr:
                if attribute.name == "pg_name":
                    kind = kinds[attribute.string_val]
                elif attribute.name in {"comm_src", "comm_dst"}:
                    peer, place = attribute.name, attribute.int32_val
                else:
                    kept.append(attribute)
            if peer:
                # What the world's communicator carries goes between pipeline stages.
                group = layout.group(kind or "pp", rank)
                assert group is not None
                old = place if part is None else part.kept[place]
                place = group.members.index(old) - group.members.index(rank)
            plain = Node()
            plain.CopyFrom(node)
            del plain.attr[:]
            plain.attr.extend(kept)
            self._nodes.append((plain.SerializeToString(), kind, peer, place))

    def to_bytes(self, rank: int) -> bytes:
        """Return the content of a rank's `.et` file."""
        cache: dict[tuple[str, str, int], bytes] = {}
        out = [self._head]
        for plain, kind, peer, place in self._nodes:
            key = (kind, peer, place)
            own = cache.get(key)
            if own is None:
                own = cache[key] = self._own(rank, kind, peer, place)
            out.append(_encoded(len(plain) + len(own)))
            out.append(plain)
            out.append(own)
        return b"".join(out)

    def _own(self, rank: int, kind: str, peer: str, place: int) -> bytes:
        # The encoded attributes of a rank's group and peer.
        from genie.trace.schema import Node

        node = Node()
        if kind:
            group = self._layout.group(kind, rank)
            assert group is not None
            node.attr.add(name="pg_name").string_val = group.name
        if peer:
            group = self._layout.group(kind or "pp", rank)
            assert group is not None
            at = (group.members.index(rank) + place) % group.size
            to = group.members[at]
            node.attr.add(name=peer).int32_val = self._part.number(to) if self._part else to
        return bytes(node.SerializeToString())


def _varint(data: bytes, at: int) -> tuple[int, int]:
    # The number at a position and where what follows it starts.
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at


def _encoded(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
