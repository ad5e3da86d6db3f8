"""Large byte strings over a control connection: chunked, compressed, checked."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator

from genie.replay.protocol import CHUNK, Blob, Chunk, MessageError, encode

#: Most bytes that one blob may have, compressed or not.
MAX_BLOB = 1 << 36
#: Deflate makes at most 1032 bytes of one (zlib's "Maximum Compression Factor").
MAX_RATIO = 1033


def pieces(name: str, data: bytes | memoryview, compress: bool) -> Iterator[bytes]:
    """Yield the messages that carry `data`: one Blob, then Chunks."""
    raw_size = len(data)
    digest = hashlib.sha256(data).digest()
    if compress:
        squeezed = zlib.compress(data, 1)
        if len(squeezed) < raw_size:
            data = squeezed
    yield encode(Blob(name, len(data), raw_size, digest))
    view = memoryview(data)
    for at in range(0, len(view), CHUNK):
        yield encode(Chunk(bytes(view[at : at + CHUNK])))


class BlobReader:
    """Puts one blob together again."""

    def __init__(self, head: Blob) -> None:
        most = min(MAX_BLOB, head.size * MAX_RATIO)
        if not 0 <= head.size <= MAX_BLOB or not head.size <= head.raw_size <= most:
            raise MessageError(f"a blob of {head.size} bytes cannot hold {head.raw_size}")
        self.name = head.name
        self._head = head
        self._got = bytearray()

    @property
    def complete(self) -> bool:
        """Whether every byte has come."""
        return len(self._got) == self._head.size

    def add(self, chunk: Chunk) -> None:
        """Take the next chunk."""
        if not chunk.data or len(self._got) + len(chunk.data) > self._head.size:
            raise MessageError(f"blob {self.name!r}: more bytes than announced")
        self._got += chunk.data

    def data(self) -> bytes:
        """Return the checked bytes.

        Raises:
            MessageError: Not what was sent.
        """
        head = self._head
        data = bytes(self._got)
        if head.raw_size != head.size:
            inflate = zlib.decompressobj()
            try:
                data = inflate.decompress(data, head.raw_size)
            except zlib.error as exc:
                raise MessageError(f"blob {self.name!r} does not decompress: {exc}") from exc
            if inflate.unconsumed_tail or not inflate.eof:
                raise MessageError(f"blob {self.name!r} decompresses to a wrong size")
        if len(data) != head.raw_size or hashlib.sha256(data).digest() != head.sha256:
            raise MessageError(f"blob {self.name!r}: its SHA-256 is not what was announced")
        return data
