"""Which wire version a set of protobuf files has."""

from __future__ import annotations

from pathlib import Path

from genie._core.scanner import V1, V2, V3, V4, V4_EXTENDED, probe, scan
from genie.errors import TraceError
from genie.trace import wire
from genie.trace.files import Source

_VERSIONS = (V1, V2, V3, V4)
_FIRST = 256
# GlobalMetadata.version and the `schema` attribute as seen in the wild; what follows "-chakra."
# is the protobuf schema, what stands before it PyTorch's own.
_KNOWN = ("0.0.4", "1.0.")


def _names(mask: int) -> str:
    return " or ".join(wire.VERSION_NAMES[v] for v in _VERSIONS if mask & v)


def looks_like_text(head: bytes) -> bool:
    """Whether `head`, the first bytes of a file, are text; protobuf has control bytes early."""
    if not head:
        return False
    control = set(range(32)) - {9, 10, 12, 13}
    return not any(byte in control for byte in head)


def read_metadata(source: Source, version: int) -> dict[str, object]:
    """Return the GlobalMetadata of a file, {} if it has none."""
    with source.view() as data:
        head = bytes(data[: 1 << 20])
    try:
        length, at = wire.varint(head, 0)
    except ValueError:
        return {}
    if at + length > source.size:
        return {}
    first = source.read(0, at + length)
    found = scan(first, version)
    if not found.metadata:
        return {}
    return wire.metadata(first[at:], version)


def known_version(metadata: dict[str, object]) -> str | None:
    """Return the version that a v0.0.4 metadata names and GENIE does not know, else None."""
    version = metadata.get("version")
    if isinstance(version, str) and version and not version.startswith(_KNOWN):
        return version
    schema = metadata.get("schema")
    if isinstance(schema, str) and "-chakra." in schema:
        wanted = schema.partition("-chakra.")[2]
        if not wanted.startswith(_KNOWN):
            return schema
    return None


def detect(sources: list[Source]) -> int:
    """Return the one wire version in which every file of the set can be read.

    proto2-era files name no version, so it is found by fields, wire types and values that only
    one version can have, over all files of the set. Files that no version fits are left to the
    scan, as long as one file is readable.

    Raises:
        TraceError: No version fits, files differ, or two versions stay possible.
    """
    masks: list[int] = []
    places: list[int] = []
    for source in sources:
        mask, at = _mask(source, _FIRST)
        masks.append(mask)
        places.append(at)
    joint = _joint(sources, masks)
    if joint and len(_candidates(joint)) > 1:
        # The first records leave several versions: look at all of them.
        masks = [_mask(source, 1 << 62)[0] for source in sources]
        joint = _joint(sources, masks)
    if not joint:
        raise _unknown(sources[0], places[0])
    candidates = _candidates(joint)
    if not candidates:
        named = any(
            isinstance(read_metadata(source, V4).get(key), str)
            for source, mask in zip(sources, masks, strict=True)
            if mask & V4_EXTENDED
            for key in ("version", "schema")
        )
        if not named:
            raise _unknown(sources[0], 0, "fields or node types that no known version has")
        candidates = [V4]
    if len(candidates) > 1:
        raise TraceError(
            f"{sources[0].path}: ambiguous wire version: every record reads as "
            f"{_names(joint)}, with different meanings, and nothing in the set says which",
            path=str(sources[0].path),
        )
    return candidates[0]


def _candidates(joint: int) -> list[int]:
    return [v for v in _VERSIONS if joint & v]


def _mask(source: Source, most: int) -> tuple[int, int]:
    # Versions that fit; V4_EXTENDED only where none fits strictly.
    with source.view() as data:
        mask, seen, at = probe(data, most)
    if mask & (V1 | V2 | V3 | V4):
        mask &= ~V4_EXTENDED
    return (mask if seen or mask == 0 else 0), at


def _joint(sources: list[Source], masks: list[int]) -> int:
    strict, extended, last = 0, False, Path()
    for source, mask in zip(sources, masks, strict=True):
        if not mask:
            continue
        if mask == V4_EXTENDED:
            # With other files that are v0.0.4, a file with more fields is v0.0.4 too.
            extended = True
        fits = V4 if mask == V4_EXTENDED else mask
        if strict and not strict & fits:
            raise TraceError(
                f"files of one set differ in their wire version: {last} is {_names(strict)}, "
                f"{source.path} is {_names(fits)}",
                path=str(source.path),
            )
        strict = fits if not strict else strict & fits
        last = source.path
    if extended and not any(mask & V4 for mask in masks):
        return V4_EXTENDED
    return strict


def _unknown(source: Source, at: int, why: str = "") -> TraceError:
    head = source.read(0, 512)
    if source.size == 0:
        text = "empty file"
    elif looks_like_text(head):
        text = f"not a Chakra trace but text, starting {head[:40].decode('utf-8', 'replace')!r}"
    else:
        reason = why or f"the record at byte {max(at, 0)} fits none"
        text = f"not a Chakra trace of a known wire version (v0.0.1 to v0.0.4): {reason}"
    return TraceError(f"{source.path}: {text}", path=str(source.path))
