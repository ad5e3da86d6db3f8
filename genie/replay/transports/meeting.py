"""All sockets of a worker at once: accept, connect, prove, and say which connection each is.

Every socket runs the handshake of `genie.replay.auth` first. Then the connecting side says in
32 bytes which connection it is, under the session key, and the accepting side answers in one:

    client -> server   id u32 | lane u16 | worker u16 | plan 8 bytes | HMAC tag 16 bytes
    server -> client   1 byte: 0 taken, else why not

One thread waits for all of them, so no order of arrival, slow peer or full backlog can make two
workers wait for each other. A stranger that connects costs one pending socket until its timeout.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import os
import selectors
import socket
import struct
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping

from genie.errors import RendezvousTimeoutError, TransportError
from genie.replay.auth import AuthenticationError, ClientHandshake, ServerHandshake
from genie.replay.transports.base import Endpoint

HELLO = struct.Struct("!IHH8s")
TAG = 16
TAKEN, UNKNOWN, REPEATED, OTHER_PLAN = 0, 1, 2, 3
WHY = {
    UNKNOWN: "it does not expect this connection",
    REPEATED: "it has this connection already",
    OTHER_PLAN: "it runs another plan",
}
PURPOSE = b"tcp transport"
HANDSHAKE_TIMEOUT = 10.0  # seconds for one socket, so that a silent stranger goes away
MAX_OPENING = 256  # sockets opened at once, below any listener's backlog
MAX_STRANGERS = 4096  # accepted sockets that have not proven themselves
RETRY_AFTER = 0.05
RETRY = {
    errno.ECONNREFUSED,
    errno.ECONNRESET,
    errno.ECONNABORTED,
    errno.ETIMEDOUT,
    errno.EAGAIN,
    errno.EHOSTUNREACH,
    errno.ENETUNREACH,
    errno.EPIPE,
}

#: (connection id, lane)
Lane = tuple[int, int]


def _tag(key: bytes, hello: bytes) -> bytes:
    return hmac.digest(key, b"hello" + hello, "sha256")[:TAG]


class _Link:
    """One socket on its way: bytes to write, bytes wanted, and what comes next."""

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self.sock = sock
        self.deadline = deadline
        self.out = b""
        self.got = b""
        self.need = 0
        self.step: Callable[[bytes], None] | None = None
        self.lane: Lane | None = None
        self.done = False

    def wants(self) -> int:
        return selectors.EVENT_WRITE if self.out else selectors.EVENT_READ


class Meeting:
    """The set-up of one worker's sockets.

    Args:
        worker: This worker.
        listeners: Listening, non-blocking sockets.
        incoming: Lanes to accept → worker that opens them.
        outgoing: Lanes to open → (worker, where it listens).
        opener: Makes the unconnected, non-blocking socket of a lane.
        plans: Connection id → 8 bytes that both ends compute from its row of the plan.
        secret: The run's secret.
    """

    def __init__(
        self,
        worker: int,
        listeners: list[socket.socket],
        incoming: Mapping[Lane, int],
        outgoing: Mapping[Lane, tuple[int, Endpoint]],
        opener: Callable[[Lane], socket.socket],
        plans: Mapping[int, bytes],
        secret: bytes,
    ) -> None:
        self.worker = worker
        self.incoming = dict(incoming)
        self.outgoing = dict(outgoing)
        self.opener = opener
        self.plans = plans
        self.secret = secret
        self.listeners = listeners
        self.sockets: dict[Lane, socket.socket] = {}
        self.refused = 0
        self._waiting: deque[Lane] = deque(outgoing)
        self._later: deque[tuple[float, Lane]] = deque()
        self._links: set[_Link] = set()
        self._opening = 0
        self._last: dict[int, str] = {}
        self._selector = selectors.DefaultSelector()

    def run(self, timeout: float) -> dict[Lane, socket.socket]:
        """Return every lane's socket.

        Raises:
            RendezvousTimeoutError: Some did not come in `timeout` seconds; `missing` has their
                workers.
            TransportError: A peer refused a connection or belongs to another run.
        """
        deadline = time.monotonic() + timeout
        try:
            for listener in self.listeners:
                self._selector.register(listener, selectors.EVENT_READ)
            while len(self.sockets) < len(self.incoming) + len(self.outgoing):
                now = time.monotonic()
                if now >= deadline:
                    raise self._timeout(timeout)
                self._open(now, deadline)
                self._turn(min(deadline - now, 0.05 if self._later else 0.5))
                self._expire(time.monotonic())
        except BaseException:
            for sock in self.sockets.values():
                sock.close()
            raise
        finally:
            for link in list(self._links):
                self._drop(link)
            self._selector.close()
        return self.sockets

    def _turn(self, wait: float) -> None:
        for key, _ in self._selector.select(wait):
            if key.data is None:
                self._accept(key.fileobj)  # type: ignore[arg-type]
            else:
                self._move(key.data)

    # Opening and accepting

    def _open(self, now: float, deadline: float) -> None:
        while self._later and self._later[0][0] <= now:
            self._waiting.append(self._later.popleft()[1])
        while self._waiting and self._opening < MAX_OPENING:
            lane = self._waiting.popleft()
            _, where = self.outgoing[lane]
            link = _Link(self.opener(lane), min(now + HANDSHAKE_TIMEOUT, deadline))
            link.lane = lane
            self._opening += 1
            self._links.add(link)
            shake = ClientHandshake(self.secret, PURPOSE)
            link.need = shake.need
            link.step = lambda data, link=link, shake=shake: self._client(link, shake, data)
            code = link.sock.connect_ex(where)
            if code not in (0, errno.EINPROGRESS):
                self._again(link, code)
                continue
            self._selector.register(link.sock, selectors.EVENT_WRITE, link)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(MAX_OPENING):
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            if len(self._links) - self._opening >= MAX_STRANGERS:
                sock.close()
                continue
            sock.setblocking(False)
            link = _Link(sock, time.monotonic() + HANDSHAKE_TIMEOUT)
            shake = ServerHandshake(self.secret, PURPOSE)
            link.out = shake.greeting()
            link.need = shake.need
            link.step = lambda data, link=link, shake=shake: self._server(link, shake, data)
            self._links.add(link)
            self._selector.register(sock, selectors.EVENT_WRITE, link)

    # One link's turn

    def _move(self, link: _Link) -> None:
        try:
            if link.lane is not None and link.lane in self.outgoing and link.need and not link.got:
                code = link.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if code:
                    raise OSError(code, os.strerror(code))
            while True:
                if link.out:
                    link.out = link.out[link.sock.send(link.out) :]
                if link.out:
                    break
                if link.done:
                    self._finish(link)
                    return
                self._read(link)
        except BlockingIOError:
            pass
        except AuthenticationError as exc:
            self._refuse(link, exc)
            return
        except OSError as exc:
            self._again(link, exc.errno or errno.ECONNRESET)
            return
        if link in self._links:
            self._selector.modify(link.sock, link.wants(), link)

    def _read(self, link: _Link) -> None:
        """Read some of what the present step needs; take the step when all is there."""
        data = link.sock.recv(link.need - len(link.got))
        if not data:
            raise ConnectionResetError(errno.ECONNRESET, "closed in the handshake")
        link.got += data
        if len(link.got) == link.need and link.step is not None:
            got, link.got = link.got, b""
            link.step(got)

    def _client(self, link: _Link, shake: ClientHandshake, data: bytes) -> None:
        link.out = shake.feed(data)
        link.need = shake.need
        if shake.session_key is not None:
            assert link.lane is not None
            conn, number = link.lane
            hello = HELLO.pack(conn, number, self.worker, self.plans[conn])
            link.out = hello + _tag(shake.session_key, hello)
            link.need = 1
            link.step = lambda data: self._answer(link, data)

    def _answer(self, link: _Link, data: bytes) -> None:
        assert link.lane is not None
        worker, where = self.outgoing[link.lane]
        if data[0] != TAKEN:
            raise TransportError(
                f"worker {worker} at {where[0]}:{where[1]} refused connection {link.lane[0]} of "
                f"worker {self.worker}: {WHY.get(data[0], f'code {data[0]}')}",
                worker=worker,
                connection=link.lane[0],
            )
        link.done = True

    def _server(self, link: _Link, shake: ServerHandshake, data: bytes) -> None:
        link.out = shake.feed(data)
        link.need = shake.need
        if shake.session_key is not None:
            key = shake.session_key
            link.need = HELLO.size + TAG
            link.step = lambda data: self._hello(link, key, data)

    def _hello(self, link: _Link, key: bytes, data: bytes) -> None:
        hello, tag = data[: HELLO.size], data[HELLO.size :]
        if not hmac.compare_digest(tag, _tag(key, hello)):
            raise AuthenticationError("a peer's hello does not carry the session's tag")
        conn, number, worker, plan = HELLO.unpack(hello)
        lane = (conn, number)
        if self.incoming.get(lane) != worker:
            code = UNKNOWN
        elif lane in self.sockets:
            code = REPEATED
        elif plan != self.plans[conn]:
            code = OTHER_PLAN
        else:
            code = TAKEN
            link.lane = lane
        if code != TAKEN:
            with contextlib.suppress(OSError):
                link.sock.send(bytes([code]))
            raise TransportError(
                f"worker {worker} opened connection {conn} (socket {number}) to worker "
                f"{self.worker}: {WHY[code].replace('it ', 'this worker ', 1)}",
                worker=worker,
                connection=conn,
            )
        link.out = bytes([TAKEN])
        link.done = True

    # Endings

    def _finish(self, link: _Link) -> None:
        assert link.lane is not None
        self._selector.unregister(link.sock)
        self._links.discard(link)
        self._opening -= link.lane in self.outgoing
        self.sockets[link.lane] = link.sock

    def _drop(self, link: _Link) -> None:
        self._links.discard(link)
        if link.lane is not None and link.lane in self.outgoing:
            self._opening -= 1
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(link.sock)
        link.sock.close()

    def _again(self, link: _Link, code: int) -> None:
        """Drop a link; open it again later if that may help."""
        lane = link.lane
        self._drop(link)
        if lane is None or lane not in self.outgoing:
            return
        worker, where = self.outgoing[lane]
        self._last[worker] = os.strerror(code)
        if code not in RETRY:
            raise TransportError(
                f"worker {self.worker} cannot reach worker {worker} at {where[0]}:{where[1]}: "
                f"{os.strerror(code)}",
                worker=worker,
                errno=code,
            )
        self._later.append((time.monotonic() + RETRY_AFTER, lane))

    def _refuse(self, link: _Link, exc: AuthenticationError) -> None:
        """A peer that did not prove itself: a stranger if it came to us, an error if we called."""
        lane = link.lane
        self._drop(link)
        if lane is None or lane not in self.outgoing:
            self.refused += 1
            return
        worker, where = self.outgoing[lane]
        raise AuthenticationError(
            f"worker {worker} at {where[0]}:{where[1]}: {exc.message}", worker=worker
        ) from exc

    def _expire(self, now: float) -> None:
        for link in [link for link in self._links if link.deadline <= now]:
            self._again(link, errno.ETIMEDOUT)

    def _timeout(self, timeout: float) -> RendezvousTimeoutError:
        awaited = Counter(w for lane, w in self.incoming.items() if lane not in self.sockets)
        unreached = Counter(w for lane, (w, _) in self.outgoing.items() if lane not in self.sockets)
        parts = [f"worker {w} did not open {n} of its sockets" for w, n in sorted(awaited.items())]
        for worker, n in sorted(unreached.items()):
            where = next(e for w, e in self.outgoing.values() if w == worker)
            last = f" (last: {self._last[worker]})" if worker in self._last else ""
            parts.append(f"worker {worker} at {where[0]}:{where[1]} did not take {n}{last}")
        strangers = f"; {self.refused} strangers were refused" if self.refused else ""
        return RendezvousTimeoutError(
            f"worker {self.worker} waited {timeout:g} s for its TCP connections: "
            + "; ".join(parts)
            + strangers,
            missing=sorted(set(awaited) | set(unreached)),
        )
