"""The coordinator's side of the control connections: one thread, no peer can hold up another.

Whoever connects must finish the handshake within seconds; an unproven or malformed peer is dropped
and counted, and the run goes on. Every buffer is bounded.
"""

from __future__ import annotations

import contextlib
import errno
import selectors
import socket
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from genie.errors import GenieError, LaunchError, RendezvousTimeoutError
from genie.replay.auth import AuthenticationError, ServerHandshake
from genie.replay.blobs import BlobReader, pieces
from genie.replay.frames import FrameReader, FrameWriter
from genie.replay.protocol import (
    PROTOCOL,
    AnyMessage,
    Blob,
    Chunk,
    Failed,
    Hello,
    Refuse,
    decode,
    encode,
    error_of,
)

PURPOSE = b"rendezvous"
TO_WORKER, TO_COORDINATOR = b"to worker", b"to coordinator"
#: Unproven connections at a time; beyond it the oldest is dropped, and may call again.
MAX_PENDING = 256
HANDSHAKE_TIMEOUT = 10.0
#: Reasons for dropping peers that are told apart.
MAX_REASONS = 64
_READ = 1 << 18
_M = TypeVar("_M")


class WorkerLostError(LaunchError):
    """A worker's control connection ended before its work did: `worker`."""


class _Peer:
    """One connection and how far it has come."""

    def __init__(self, sock: socket.socket, address: str, secret: bytes, deadline: float) -> None:
        self.sock = sock
        self.address = address
        self.deadline = deadline
        self.shake: ServerHandshake | None = ServerHandshake(secret, PURPOSE)
        self.out = bytearray(self.shake.greeting() if self.shake else b"")
        self.queue: deque[Iterator[bytes]] = deque()
        self.reader: FrameReader | None = None
        self.writer: FrameWriter | None = None
        self.worker: int | None = None
        self.blob: BlobReader | None = None
        self.closing = False
        self.events = 0

    def fill(self) -> bool:
        """Frame the next payloads into `out`; whether anything waits to be sent."""
        while self.writer is not None and self.queue and len(self.out) < _READ:
            try:
                self.out += self.writer.frame(next(self.queue[0]))
            except StopIteration:
                self.queue.popleft()
        return bool(self.out)


class Coordinator:
    """Accepts the workers of one run and exchanges messages with them.

    Args:
        secret: The run's secret.
        names: What to call each worker in errors, by index; their number is the run's.
        host: Address to listen on, and nothing else.
        port: 0 lets the kernel choose.
        version: Version every worker must have.

    Attributes:
        rejected: Reason → number of peers that were dropped.
        lost: Worker → why its connection ended.
        hellos: Worker → its Hello.
        finished: Workers whose connection may end without an error.
        last_read: time.monotonic() of the last bytes from any worker.
    """

    def __init__(
        self,
        secret: bytes,
        names: Sequence[str],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        version: str = "",
        handshake_timeout: float = HANDSHAKE_TIMEOUT,
    ) -> None:
        self._secret = secret
        self.names = list(names)
        self._version = version
        self._timeout = handshake_timeout
        self.rejected: Counter[str] = Counter()
        self.lost: dict[int, str] = {}
        self.hellos: dict[int, Hello] = {}
        self.finished: set[int] = set()
        self._peers: dict[int, _Peer] = {}
        self._pending: dict[_Peer, None] = {}
        self._proven: dict[_Peer, None] = {}
        self._inbox: dict[int, deque[tuple[AnyMessage, int]]] = {
            i: deque() for i in range(len(self.names))
        }
        self._blobs: dict[tuple[int, str], bytes] = {}
        self._fresh: set[int] = set()
        self._failed: deque[int] = deque()
        self._blocked: set[_Peer] = set()
        self._version_error: LaunchError | None = None
        self.last_read = time.monotonic()
        self._selector = selectors.DefaultSelector()
        self._listener = _listen(host, port)
        self._selector.register(self._listener, selectors.EVENT_READ, None)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that workers call."""
        name = self._listener.getsockname()
        return str(name[0]), int(name[1])

    def close(self) -> None:
        """Close every connection and stop listening; a second call does nothing."""
        for peer in [*self._pending, *self._proven, *self._peers.values()]:
            peer.sock.close()
        self._pending.clear()
        self._proven.clear()
        self._peers.clear()
        self._listener.close()
        self._selector.close()

    # ---- sending

    def send(self, worker: int, message: AnyMessage) -> None:
        """Queue `message` for one worker; a lost worker gets nothing."""
        self._queue(worker, iter((encode(message),)))

    def broadcast(self, message: AnyMessage) -> None:
        """Queue `message` for every connected worker."""
        data = encode(message)
        for worker in list(self._peers):
            self._queue(worker, iter((data,)))

    def send_blob(self, worker: int, name: str, data: bytes, compress: bool = True) -> None:
        """Queue `data` for one worker."""
        self._queue(worker, pieces(name, data, compress))

    def _queue(self, worker: int, payloads: Iterator[bytes]) -> None:
        peer = self._peers.get(worker)
        if peer is not None:
            peer.queue.append(payloads)
            self._flush(peer)

    @property
    def unsent(self) -> int:
        """Workers for which something is still queued."""
        return sum(1 for peer in self._blocked if peer.worker is not None)

    # ---- receiving

    def take(self, worker: int, kind: type[_M]) -> tuple[_M, int] | None:
        """Return the oldest message of `kind` from `worker` and when it was read, or None."""
        inbox = self._inbox[worker]
        for i, (message, at) in enumerate(inbox):
            if isinstance(message, kind):
                del inbox[i]
                return message, at
        return None

    def take_blob(self, worker: int, name: str) -> bytes | None:
        """Return the blob `name` of `worker` if it has come whole."""
        return self._blobs.pop((worker, name), None)

    def gather(
        self,
        kind: type[_M],
        timeout: float,
        what: str,
        *,
        check: Callable[[], None] | None = None,
        workers: Iterable[int] | None = None,
    ) -> dict[int, _M]:
        """Return one message of `kind` from every worker.

        Args:
            kind: Class of the message.
            timeout: Seconds until the missing workers are named in an error.
            what: What the workers are doing, for that error.
            check: Called about every 50 ms; raises to give up (a child died, Ctrl-C).
            workers: Only these; None is all.

        Raises:
            RendezvousTimeoutError: Some did not answer; `missing` names them.
            WorkerLostError: A connection ended.
            GenieError: A worker reported an error.
        """
        wanted = list(range(len(self.names)) if workers is None else workers)
        missing_now = dict.fromkeys(wanted)
        got: dict[int, _M] = {}
        deadline = time.monotonic() + timeout
        look: Iterable[int] = wanted
        while True:
            for worker in look:
                if worker in missing_now:
                    found = self.take(worker, kind)
                    if found is not None:
                        got[worker] = found[0]
                        del missing_now[worker]
            if not missing_now:
                return got
            self.raise_trouble(missing_now)
            left = deadline - time.monotonic()
            if left <= 0:
                missing = [self.names[w] for w in missing_now]
                raise RendezvousTimeoutError(
                    f"after {timeout:g} s {len(missing)} of {len(wanted)} workers are missing "
                    f"({what}): {_some(missing)}{self._rejected_text()}",
                    missing=missing,
                )
            if check is not None:
                check()
            # Only those who said something since: the whole is linear in the workers.
            self._fresh.clear()
            self.pump(min(left, 0.05))
            look = list(self._fresh)

    def raise_trouble(self, waiting_for: Iterable[int]) -> None:
        """Raise what stands in the way: a version mismatch, a worker's error, a lost worker."""
        if self._version_error is not None:
            raise self._version_error
        while self._failed:
            worker = self._failed.popleft()
            found = self.take(worker, Failed)
            if found is not None:
                self.finished.add(worker)
                raise error_of(found[0], self.names[worker])
        for worker in waiting_for if self.lost else ():
            if worker in self.lost:
                raise WorkerLostError(f"{self.names[worker]}: {self.lost[worker]}", worker=worker)

    def _rejected_text(self) -> str:
        if not self.rejected:
            return ""
        texts = ", ".join(f"{count} x {reason}" for reason, count in self.rejected.most_common(5))
        return f" (dropped peers: {texts})"

    # ---- the loop

    def pump(self, timeout: float) -> None:
        """Serve whatever is ready; wait at most `timeout` seconds for it."""
        for key, events in self._selector.select(timeout):
            if key.data is None:
                self._accept()
                continue
            peer: _Peer = key.data
            if events & selectors.EVENT_READ:
                self._read(peer)
            if events & selectors.EVENT_WRITE and not peer.closing:
                self._flush(peer)
        now = time.monotonic()
        while self._pending:
            oldest = next(iter(self._pending))
            if oldest.deadline > now and len(self._pending) <= MAX_PENDING:
                break
            late = oldest.deadline <= now
            self._reject(oldest, "silent in the handshake" if late else "too many at a time")
        while self._proven and (oldest := next(iter(self._proven))).deadline <= now:
            self._reject(oldest, "silent after the handshake")

    def _accept(self) -> None:
        for _ in range(MAX_PENDING):
            try:
                sock, address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as exc:
                # EMFILE, ENFILE, ECONNABORTED: the run goes on with whom it has.
                self._count(f"not accepted: {exc.strerror}")
                return
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.adopt(sock, str(address[0]))

    def adopt(self, sock: socket.socket, address: str) -> None:
        """Treat a connected stream socket as one that was accepted."""
        sock.setblocking(False)
        peer = _Peer(sock, address, self._secret, time.monotonic() + self._timeout)
        self._pending[peer] = None
        self._watch(peer, selectors.EVENT_READ)
        self._flush(peer)

    def _watch(self, peer: _Peer, events: int) -> None:
        if events == peer.events:
            return
        if not peer.events:
            self._selector.register(peer.sock, events, peer)
        else:
            self._selector.modify(peer.sock, events, peer)
        peer.events = events

    def _flush(self, peer: _Peer) -> None:
        try:
            while peer.fill():
                sent = peer.sock.send(peer.out)
                del peer.out[:sent]
        except BlockingIOError:
            self._blocked.add(peer)
            self._watch(peer, selectors.EVENT_READ | selectors.EVENT_WRITE)
            return
        except OSError as exc:
            self._drop(peer, f"the connection broke: {exc.strerror}")
            return
        self._blocked.discard(peer)
        if peer.closing:
            self._forget(peer)
        else:
            self._watch(peer, selectors.EVENT_READ)

    def _read(self, peer: _Peer) -> None:
        most = peer.shake.need if peer.shake is not None else _READ
        try:
            data = peer.sock.recv(most)
        except BlockingIOError:
            return
        except OSError as exc:
            self._drop(peer, f"the connection broke: {exc.strerror}")
            return
        at = time.monotonic_ns()
        if peer.worker is not None:
            self.last_read = time.monotonic()
        if not data:
            self._drop(peer, "the connection was closed")
            return
        try:
            if peer.shake is not None:
                self._shake(peer, data)
                return
            assert peer.reader is not None
            for payload in peer.reader.feed(data):
                self._message(peer, decode(payload), at)
                if peer.closing or not peer.events:
                    return
        except AuthenticationError as exc:
            self._reject(peer, exc.message)
        except GenieError as exc:
            self._drop(peer, exc.message)

    def _shake(self, peer: _Peer, data: bytes) -> None:
        assert peer.shake is not None
        answer = peer.shake.feed(data)
        if not answer:
            return
        key = peer.shake.session_key
        assert key is not None
        peer.shake = None
        del self._pending[peer]
        self._proven[peer] = None
        peer.reader = FrameReader(key, TO_COORDINATOR)
        peer.out += answer
        # Frames follow only after the proof has left `out`, which fill() keeps in order.
        peer.writer = FrameWriter(key, TO_WORKER)
        self._flush(peer)

    def _message(self, peer: _Peer, message: AnyMessage, at: int) -> None:
        if peer.worker is None:
            self._hello(peer, message)
            return
        if isinstance(message, Blob):
            if peer.blob is not None:
                raise LaunchError("a blob began inside another")
            peer.blob = BlobReader(message)
        elif isinstance(message, Chunk):
            if peer.blob is None:
                raise LaunchError("a chunk of no blob")
            peer.blob.add(message)
        else:
            self._inbox[peer.worker].append((message, at))
            self._fresh.add(peer.worker)
            if isinstance(message, Failed):
                self._failed.append(peer.worker)
            return
        if peer.blob.complete:
            self._blobs[peer.worker, peer.blob.name] = peer.blob.data()
            peer.blob = None

    def _hello(self, peer: _Peer, message: AnyMessage) -> None:
        if not isinstance(message, Hello):
            self._reject(peer, "no Hello first")
            return
        worker = message.worker
        if not 0 <= worker < len(self.names):
            self._refuse(peer, f"no worker {worker} in this run of {len(self.names)}")
        elif message.protocol != PROTOCOL or message.genie_version != self._version:
            text = (
                f"{self.names[worker]} on host {message.host} runs genie "
                f"{message.genie_version} (protocol {message.protocol}), this process genie "
                f"{self._version} (protocol {PROTOCOL}): install the same genie on every host"
            )
            self._version_error = LaunchError(text, rank=worker, world_size=len(self.names))
            self._refuse(peer, text)
        elif worker in self._peers:
            self._refuse(peer, f"worker {worker} is here already")
        else:
            peer.worker = worker
            self._proven.pop(peer, None)
            self._peers[worker] = peer
            self.hellos[worker] = message
            self.lost.pop(worker, None)
            self._inbox[worker].append((message, time.monotonic_ns()))
            self._fresh.add(worker)

    def _count(self, reason: str) -> None:
        """Count a dropped peer; peers must not fill the memory with ever new reasons."""
        known = reason in self.rejected or len(self.rejected) < MAX_REASONS
        self.rejected[reason if known else "other reasons"] += 1

    def _refuse(self, peer: _Peer, reason: str) -> None:
        self._count(reason)
        self._proven.pop(peer, None)
        peer.queue.append(iter((encode(Refuse(reason)),)))
        peer.closing = True
        self._flush(peer)

    def _reject(self, peer: _Peer, reason: str) -> None:
        self._count(reason)
        self._forget(peer)

    def _drop(self, peer: _Peer, reason: str) -> None:
        if peer.worker is None:
            self._reject(peer, reason)
            return
        if self._peers.get(peer.worker) is peer:
            del self._peers[peer.worker]
            if peer.worker not in self.finished:
                self.lost[peer.worker] = reason
        self._forget(peer)

    def _forget(self, peer: _Peer) -> None:
        self._pending.pop(peer, None)
        self._proven.pop(peer, None)
        self._blocked.discard(peer)
        if peer.events:
            self._selector.unregister(peer.sock)
            peer.events = 0
        peer.sock.close()


#: What to do about a port that the user, or the launcher, chose.
_HINTS = {
    errno.EADDRINUSE: ". Another program listens there: end it, or name another port for process 0 "
    "of the job (GENIE_COORDINATOR=HOST:PORT, the same for all processes)",
    errno.EADDRNOTAVAIL: ". That is no address of this host: process 0 of the job, which is here, "
    "must be started there, or GENIE_COORDINATOR=HOST:PORT must name this host",
}


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        sock = socket.socket(family, socket.SOCK_STREAM)
    except OSError as exc:
        raise LaunchError(f"cannot listen on {host}: {exc.strerror}") from exc
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(where)
        sock.listen(1024)
    except OSError as exc:
        sock.close()
        hint = _HINTS.get(exc.errno or 0, "") if port else ""
        raise LaunchError(
            f"cannot listen on {host} port {port}: {exc.strerror}{hint}", host=host, port=port
        ) from exc
    sock.setblocking(False)
    return sock


def _some(names: Sequence[str], most: int = 8) -> str:
    shown = ", ".join(names[:most])
    return f"{shown}, ... and {len(names) - most} more" if len(names) > most else shown
