"""Names and attributes of nodes, read again from the file when somebody asks."""

from __future__ import annotations

from typing import Any

from genie._core.scanner import Scan
from genie.trace import wire
from genie.trace.files import Source


class WireRecords:
    """Records of a protobuf file, by the offsets that the scanner found."""

    def __init__(self, source: Source, scan: Scan, version: int) -> None:
        self._source = source
        self._version = version
        self._offset = scan.offset
        self._length = scan.length
        self._name_at = scan.name_at
        self._name_length = scan.name_length

    def _record(self, i: int) -> bytes:
        return self._source.read(int(self._offset[i]), int(self._length[i]))

    def name(self, i: int) -> str:
        """Return the name of the node at position `i`."""
        if len(self._name_at):
            at = int(self._offset[i]) + int(self._name_at[i])
            return wire.text(self._source.read(at, int(self._name_length[i])))
        name = ""
        try:
            for number, kind, raw in wire.fields(self._record(i)):
                if number == 2 and kind == 2:
                    name = wire.text(raw)
        except ValueError:
            pass
        return name

    def names(self) -> list[str]:
        """Return every name in file order; equal names are one object."""
        if not len(self._name_at):
            return [self.name(i) for i in range(len(self._offset))]
        start = self._offset + self._name_at
        known: dict[bytes, str] = {}
        found: list[str] = []
        with self._source.view() as data:
            for at, length in zip(start.tolist(), self._name_length.tolist(), strict=True):
                raw = bytes(data[at : at + length])
                name = known.get(raw)
                if name is None:
                    name = known[raw] = wire.text(raw)
                found.append(name)
        return found

    def attrs(self, i: int) -> dict[str, Any]:
        """Return every attribute of the node at position `i`, as the file has it."""
        return wire.attributes(self._record(i), self._version)


class ListRecords:
    """Records of a JSON file, kept as Python objects."""

    def __init__(self, names: list[str], attrs: list[dict[str, Any]]) -> None:
        self._names = names
        self._attrs = attrs

    def name(self, i: int) -> str:
        """Return the name of the node at position `i`."""
        return self._names[i]

    def names(self) -> list[str]:
        """Return every name in file order."""
        return list(self._names)

    def attrs(self, i: int) -> dict[str, Any]:
        """Return every attribute of the node at position `i`, as the file has it."""
        return dict(self._attrs[i])
