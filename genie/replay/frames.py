"""Frames of the control connection: bounded, authenticated, in order.

A frame is a length (4 bytes, big endian), a tag (16 bytes) and the payload. The tag is HMAC-SHA256
of direction, frame number and payload under the session key of the handshake, cut to 128 bits: a
frame that was changed, repeated, dropped or sent back to its sender is refused.
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Iterator

from genie.errors import LaunchError

#: Largest payload of one frame; what is larger travels as a blob in many frames.
MAX_FRAME = 1 << 20
TAG = 16
_HEAD = struct.Struct(">I")
HEADER = _HEAD.size + TAG


class FrameError(LaunchError):
    """A frame that no genie of this run sent."""


class FrameWriter:
    """Makes the frames of one direction of a connection."""

    def __init__(self, session_key: bytes, direction: bytes) -> None:
        self._key = hmac.digest(session_key, direction, "sha256")
        self._count = 0

    def frame(self, payload: bytes) -> bytes:
        """Return `payload` as the next frame."""
        if len(payload) > MAX_FRAME:
            raise FrameError(f"a control message of {len(payload)} bytes, at most {MAX_FRAME}")
        tag = _tag(self._key, self._count, payload)
        self._count += 1
        return _HEAD.pack(len(payload)) + tag + payload


class FrameReader:
    """Takes bytes of one direction of a connection, gives whole frames' payloads."""

    def __init__(self, session_key: bytes, direction: bytes) -> None:
        self._key = hmac.digest(session_key, direction, "sha256")
        self._count = 0
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the payloads that `data` completes; at most one partial frame is kept.

        Raises:
            FrameError: Too long, changed, repeated or out of order. The connection is dead.
        """
        self._buffer += data
        while len(self._buffer) >= HEADER:
            (length,) = _HEAD.unpack_from(self._buffer)
            if length > MAX_FRAME:
                raise FrameError(f"a frame of {length} bytes, at most {MAX_FRAME}")
            if len(self._buffer) < HEADER + length:
                return
            tag = bytes(self._buffer[_HEAD.size : HEADER])
            payload = bytes(self._buffer[HEADER : HEADER + length])
            del self._buffer[: HEADER + length]
            if not hmac.compare_digest(tag, _tag(self._key, self._count, payload)):
                raise FrameError("a frame that was changed, repeated or is not of this run")
            self._count += 1
            yield payload


def _tag(key: bytes, count: int, payload: bytes) -> bytes:
    return hmac.digest(key, count.to_bytes(8, "big") + payload, "sha256")[:TAG]
