"""Rounds in which every worker tells each of its peers something and hears from each.

Runs over sockets that are authenticated already (meeting.py). One message a peer and round, its
length in front, bounded; sending and receiving go on at once, so no order of peers can block.
"""

from __future__ import annotations

import selectors
import socket
import struct
import time
from collections.abc import Mapping

from genie.errors import RendezvousTimeoutError, TransportError

LENGTH = struct.Struct("!I")
MAX_BYTES = 64 << 20


class Exchange:
    """The sockets to the peers of one worker.

    Args:
        worker: This worker.
        sockets: Peer worker → connected socket; `close` closes them.
    """

    def __init__(self, worker: int, sockets: Mapping[int, socket.socket]) -> None:
        self.worker = worker
        self.sockets = dict(sockets)
        self._early: dict[int, bytes] = {}
        for sock in self.sockets.values():
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def round(self, messages: Mapping[int, bytes], timeout: float, what: str) -> dict[int, bytes]:
        """Send each peer its message; return what those peers sent in the same round.

        Args:
            messages: Peer → message; only these peers take part, and they must likewise.
            timeout: Seconds.
            what: What the round is for, for errors.

        Raises:
            RendezvousTimeoutError: A peer was silent; `missing` names it.
            TransportError: A peer closed the connection or sent too much.
        """
        deadline = time.monotonic() + timeout
        out = {peer: memoryview(LENGTH.pack(len(m)) + m) for peer, m in messages.items()}
        got: dict[int, bytearray] = {
            peer: bytearray(self._early.pop(peer, b"")) for peer in messages
        }
        done: dict[int, bytes] = {}
        with selectors.DefaultSelector() as selector:
            for peer in messages:
                both = selectors.EVENT_READ | selectors.EVENT_WRITE
                selector.register(self.sockets[peer], both, peer)
                self._take(peer, got[peer], done)
            while len(done) < len(messages) or any(out.values()):
                left = deadline - time.monotonic()
                if left <= 0:
                    missing = sorted(set(messages) - set(done))
                    raise RendezvousTimeoutError(
                        f"worker {self.worker} waited {timeout:g} s for {what} from "
                        f"worker{'s' * (len(missing) != 1)} {', '.join(map(str, missing))}",
                        missing=missing,
                    )
                for key, events in selector.select(min(left, 0.5)):
                    peer, sock = key.data, self.sockets[key.data]
                    try:
                        if events & selectors.EVENT_WRITE and out[peer]:
                            out[peer] = out[peer][sock.send(out[peer]) :]
                        if events & selectors.EVENT_READ and peer not in done:
                            data = sock.recv(1 << 18)
                            if not data:
                                raise ConnectionResetError("closed by the other side")
                            got[peer] += data
                            self._take(peer, got[peer], done)
                    except BlockingIOError:
                        continue
                    except OSError as exc:
                        raise TransportError(
                            f"worker {self.worker} lost worker {peer} while it waited for "
                            f"{what}: {exc.strerror or exc}",
                            peer=peer,
                        ) from exc
                    wants = selectors.EVENT_WRITE if out[peer] else 0
                    wants |= 0 if peer in done else selectors.EVENT_READ
                    if wants:
                        selector.modify(sock, wants, peer)
                    else:
                        selector.unregister(sock)
        return done

    def _take(self, peer: int, got: bytearray, done: dict[int, bytes]) -> None:
        if len(got) < LENGTH.size:
            return
        (size,) = LENGTH.unpack_from(got)
        if size > MAX_BYTES:
            raise TransportError(f"worker {peer} announced a message of {size} bytes")
        end = LENGTH.size + size
        if len(got) >= end:
            done[peer] = bytes(got[LENGTH.size : end])
            # A fast peer may be a round ahead.
            self._early[peer] = bytes(got[end:])

    def close(self) -> None:
        """Close the sockets."""
        for sock in self.sockets.values():
            sock.close()
        self.sockets.clear()
