"""A worker's side of the control connection.

One thread reads: it answers clock pings at once, acts on Abort, and hands everything else to the
main thread. When the connection ends, the worker has nobody to report to and ends too.
"""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from genie.errors import GenieError, LaunchError
from genie.replay.auth import AuthenticationError, authenticate_client
from genie.replay.blobs import BlobReader, pieces
from genie.replay.frames import FrameReader, FrameWriter
from genie.replay.protocol import (
    Abort,
    AnyMessage,
    Blob,
    Chunk,
    Ping,
    Pong,
    Refuse,
    decode,
    encode,
)
from genie.replay.rendezvous import PURPOSE, TO_COORDINATOR, TO_WORKER

#: Descriptor of the socket to call the coordinator with: one of another network namespace.
CONTROL_FD_VAR = "GENIE_CONTROL_FD"
#: Seconds the main thread has to end by itself after the connection ended.
LAST_WORDS = 2.0
_M = TypeVar("_M")
_N = TypeVar("_N")


class Member:
    """One worker's control connection.

    Args:
        sock: Connected and authenticated socket.
        session_key: From the handshake.
        on_abort: Called in the reading thread with the reason, once.
        hard_exit: End the whole process when the connection ends (off in tests).
    """

    def __init__(
        self,
        sock: socket.socket,
        session_key: bytes,
        on_abort: Callable[[str], None],
        hard_exit: bool = True,
    ) -> None:
        self._sock = sock
        self._writer = FrameWriter(session_key, TO_COORDINATOR)
        self._reader = FrameReader(session_key, TO_WORKER)
        self._lock = threading.Lock()
        self._inbox: queue.Queue[AnyMessage | tuple[str, bytes] | None] = queue.Queue()
        self._on_abort = on_abort
        self._hard_exit = hard_exit
        self.ended: str | None = None
        self.closing = False
        self._thread = threading.Thread(target=self._read, name="genie-control", daemon=True)
        self._thread.start()

    @classmethod
    def connect(
        cls,
        addresses: Sequence[tuple[str, int]],
        secret: bytes,
        timeout: float,
        on_abort: Callable[[str], None],
        hard_exit: bool = True,
    ) -> Member:
        """Call the coordinator at the first address that answers, until `timeout` seconds passed.

        Raises:
            LaunchError: Nobody answered; says where and why.
            AuthenticationError: Whoever answered is not of this run.
        """
        deadline = time.monotonic() + timeout
        pause = 0.02
        given = os.environ.pop(CONTROL_FD_VAR, None)
        while True:
            why: list[str] = []
            for host, port in addresses:
                left = max(deadline - time.monotonic(), 0.1)
                try:
                    if given is None:
                        sock = socket.create_connection((host, port), timeout=min(left, 5.0))
                    else:
                        sock = _call(int(given), (host, port), min(left, 5.0))
                except OSError as exc:
                    why.append(f"{host} port {port}: {exc.strerror or exc}")
                    continue
                try:
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    key = authenticate_client(sock, secret, min(left, 15.0), PURPOSE)
                except (AuthenticationError, OSError) as exc:
                    sock.close()
                    if isinstance(exc, AuthenticationError) and "does not know" in exc.message:
                        raise
                    why.append(f"{host} port {port}: {exc}")
                    continue
                sock.settimeout(None)
                return cls(sock, key, on_abort, hard_exit)
            if time.monotonic() + pause > deadline:
                raise LaunchError(
                    f"the coordinator did not answer within {timeout:g} s: {'; '.join(why)}"
                )
            time.sleep(pause)
            pause = min(pause * 2, 1.0)

    @property
    def local_address(self) -> str:
        """This host's address on the way to the coordinator."""
        return str(self._sock.getsockname()[0])

    def send(self, message: AnyMessage) -> None:
        """Send one message; may block while the coordinator is slow."""
        self._send((encode(message),))

    def send_blob(self, name: str, data: bytes | memoryview, compress: bool) -> None:
        """Send bytes of any length."""
        self._send(pieces(name, data, compress))

    def _send(self, payloads: Sequence[bytes] | Iterator[bytes]) -> None:
        for payload in payloads:
            with self._lock:
                try:
                    self._sock.sendall(self._writer.frame(payload))
                except OSError as exc:
                    raise LaunchError(
                        f"the connection to the coordinator broke: {exc.strerror or exc}"
                    ) from exc

    def receive(self, kind: type[_M], timeout: float | None = None) -> _M:
        """Return the next message, which must be of `kind`.

        Raises:
            LaunchError: Refused, another message, silence until `timeout`, or the end.
        """
        message = self._next(timeout, kind.__name__)
        if isinstance(message, kind):
            return message
        raise LaunchError(f"expected {kind.__name__}, the coordinator sent {message!r:.200}")

    def receive_either(
        self, one: type[_M], other: type[_N], timeout: float | None = None
    ) -> _M | _N:
        """Return the next message, which must be of `one` or of `other`.

        Raises:
            LaunchError: As `receive`.
        """
        message = self._next(timeout, f"{one.__name__} or {other.__name__}")
        if isinstance(message, (one, other)):
            return message
        raise LaunchError(f"expected another message, the coordinator sent {message!r:.200}")

    def receive_blob(self, name: str, timeout: float | None = None) -> bytes:
        """Return the bytes of blob `name`, which must come next."""
        message = self._next(timeout, name)
        if isinstance(message, tuple) and message[0] == name:
            return message[1]
        raise LaunchError(f"expected blob {name!r}, the coordinator sent {message!r:.200}")

    def _next(self, timeout: float | None, what: str) -> AnyMessage | tuple[str, bytes]:
        try:
            message = self._inbox.get(timeout=timeout)
        except queue.Empty:
            raise LaunchError(
                f"the coordinator was silent for {timeout:g} s ({what} expected)"
            ) from None
        if message is None:
            self._inbox.put(None)
            raise LaunchError(f"the connection to the coordinator ended: {self.ended}")
        if isinstance(message, Refuse):
            raise LaunchError(f"refused by the coordinator: {message.reason}")
        return message

    def close(self) -> None:
        """Close the connection on purpose."""
        self.closing = True
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    # ---- the reading thread

    def _read(self) -> None:
        blob: BlobReader | None = None
        try:
            while True:
                data = self._sock.recv(1 << 18)
                now = time.monotonic_ns()
                if not data:
                    self.ended = "closed by the other side"
                    break
                for payload in self._reader.feed(data):
                    message = decode(payload)
                    if isinstance(message, Ping):
                        self.send(Pong(message.number, now))
                    elif isinstance(message, Abort):
                        self._on_abort(message.reason)
                    elif isinstance(message, Blob):
                        blob = BlobReader(message)
                    elif isinstance(message, Chunk):
                        if blob is None:
                            raise LaunchError("a chunk of no blob")
                        blob.add(message)
                    else:
                        self._inbox.put(message)
                    if blob is not None and blob.complete:
                        self._inbox.put((blob.name, blob.data()))
                        blob = None
        except (OSError, GenieError) as exc:
            self.ended = str(exc)
        self._inbox.put(None)
        self._sock.close()
        if self.closing:
            return
        self._on_abort(f"the connection to the coordinator ended: {self.ended}")
        if self._hard_exit:
            time.sleep(LAST_WORDS)
            if not self.closing:
                os._exit(1)


def _call(fd: int, address: tuple[str, int], timeout: float) -> socket.socket:
    """Return a connection over a copy of socket `fd`, which is of another network namespace."""
    sock = socket.socket(fileno=os.dup(fd))
    try:
        sock.settimeout(timeout)
        sock.connect(address)
    except OSError:
        sock.close()
        raise
    return sock
