"""The TCP transport of one worker: its sockets' set-up, options and end.

A connection of the plan has its own socket, as in NCCL's socket transport, opened by the sender
(over loopback the two directions between a pair of ranks share theirs);
`sockets` gives it more (NCCL_NSOCKS_PERTHREAD), over which messages of 1 MiB and more are striped.
What travels on them is written in `genie/_core/tcp.pyx`.
"""

from __future__ import annotations

import errno
import hashlib
import os
import socket
import time
from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from typing import cast

import numpy as np
import numpy.typing as npt

from genie._core.tcp import Tcp
from genie.errors import InputError, TransportError
from genie.replay.transports.base import ConnectionFailure, Endpoint
from genie.replay.transports.interfaces import address_of, allow_descriptors, family_of
from genie.replay.transports.meeting import Lane, Meeting

SO_BUSY_POLL = 46  # asm-generic/socket.h
BACKLOG = 4096


class TcpTransport:
    """Connections of one worker over TCP.

    Args:
        worker: This worker's number.
        connections: Rows of the plan's CONN table in which this worker is source or destination.
        ids: Their connection ids, the same in every worker.
        worker_of: Rank → worker, for every rank in `connections`.
        bind: Address or interface to listen on and to connect from; several for several NICs, by
            the NIC numbers of `connections` (modulo their number).
        sockets: Sockets per connection.
        spin: Poll while waiting instead of sleeping. None polls for ever on hosts that have a
            core for each local worker: see `local_workers`.
        local_workers: Workers on this machine, for spin=None.
        run_ahead: Messages a sender may be ahead of the receiver's announcements.
        buffer_bytes: SO_SNDBUF and SO_RCVBUF, 0 for the kernel's own tuning.
        congestion: TCP congestion control, None for the system's.
        busy_poll_us: SO_BUSY_POLL microseconds, 0 off.
        shared: Whether the two directions between a pair of ranks share their sockets. NCCL's do
            not, so on a network each keeps its own; None shares between workers that listen on
            loopback addresses only, where no network sees the flows.
        traffic_class: TOS byte of IPv4, traffic class of IPv6 (DSCP x 4 + ECN).
        tuning: Further keyword arguments of `genie._core.tcp.Tcp`.

    Attributes:
        refused: Strangers that came during set-up and did not know the run's secret.

    Raises:
        InputError: A connection is not this worker's, or an address is not this machine's.
    """

    name = "tcp"

    def __init__(
        self,
        worker: int,
        connections: npt.NDArray[np.void],
        ids: Sequence[int] | npt.NDArray[np.integer],
        worker_of: Mapping[int, int] | Sequence[int] | npt.NDArray[np.integer],
        *,
        bind: str | Sequence[str] = "127.0.0.1",
        sockets: int = 1,
        spin: bool | None = None,
        local_workers: int = 1,
        run_ahead: int = 64,
        buffer_bytes: int = 0,
        congestion: str | None = None,
        busy_poll_us: int = 0,
        shared: bool | None = None,
        traffic_class: int = 0,
        tuning: Mapping[str, int] | None = None,
    ) -> None:
        if len(ids) != len(connections):
            raise InputError(f"{len(connections)} connections, {len(ids)} ids")
        self.worker = worker
        self.sockets = sockets
        self.bind = [address_of(text) for text in ([bind] if isinstance(bind, str) else bind)]
        if not self.bind:
            raise InputError("no address or interface to bind to")
        self.buffer_bytes = buffer_bytes
        self.congestion = congestion
        self.busy_poll_us = busy_poll_us
        self.shared = shared
        if not 0 <= traffic_class <= 255:
            raise InputError(f"traffic class {traffic_class}: expected 0 to 255")
        self.traffic_class = traffic_class
        if spin is None:
            spin = local_workers <= len(os.sched_getaffinity(0))
        self.spin = spin
        self._rows = connections
        self._ids = [int(i) for i in ids]
        self._row_of = {conn: i for i, conn in enumerate(self._ids)}
        if len(self._row_of) != len(self._ids):
            raise InputError("a connection id appears twice")
        self._peer: dict[int, int] = {}
        self._sends: dict[int, bool] = {}
        for conn, row in zip(self._ids, connections, strict=True):
            src, dst = int(worker_of[int(row["src"])]), int(worker_of[int(row["dst"])])
            if (src == worker) == (dst == worker):
                raise InputError(
                    f"connection {conn} goes from worker {src} to {dst}: not one of worker "
                    f"{worker} to another"
                )
            self._sends[conn] = src == worker
            self._peer[conn] = dst if src == worker else src
        self._listeners: list[socket.socket] = []
        self._connected = False
        self.refused = 0
        self._tcp = Tcp(
            max(self._ids, default=-1) + 1,
            len(self._ids),
            sockets=sockets,
            spin_ns=-1 if spin else 0,
            run_ahead=run_ahead,
            **(tuning or {}),
        )

    @property
    def capsule(self) -> object:
        """A PyCapsule "genie.transport" that keeps the sockets alive."""
        if not self._connected:
            raise TransportError("the TCP transport has no connections yet: call connect() first")
        return self._tcp.capsule

    def _options(self, sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.buffer_bytes:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self.buffer_bytes)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.buffer_bytes)
        if self.congestion is not None:
            try:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, self.congestion.encode())
            except OSError as exc:
                raise InputError(
                    f"TCP congestion control {self.congestion!r}: {exc.strerror}"
                ) from None
        if self.traffic_class:
            if sock.family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, self.traffic_class)
            else:
                sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, self.traffic_class)
        if self.busy_poll_us:
            sock.setsockopt(socket.SOL_SOCKET, SO_BUSY_POLL, self.busy_poll_us)

    def listen(self) -> tuple[Endpoint, ...]:
        """Listen on one port of each chosen address, and on no other.

        Returns:
            (address, port) for each address of `bind`.

        Raises:
            TransportError: The address cannot be bound to.
        """
        if self._listeners:
            raise TransportError("the TCP transport listens already")
        allow_descriptors(len(self._ids) * self.sockets + len(self.bind))
        for address in self.bind:
            sock = socket.socket(family_of(address), socket.SOCK_STREAM)
            self._listeners.append(sock)
            try:
                self._options(sock)
                sock.bind((address, 0))
                sock.listen(BACKLOG)
            except OSError as exc:
                self._hang_up()
                raise TransportError(
                    f"cannot listen on {address}: {exc.strerror}", address=address
                ) from exc
            except InputError:
                self._hang_up()
                raise
            sock.setblocking(False)
        return tuple(cast(Endpoint, sock.getsockname()[:2]) for sock in self._listeners)

    def connect(
        self,
        addresses: Mapping[int, Endpoint | Sequence[Endpoint]],
        secret: bytes,
        *,
        timeout: float = 60.0,
    ) -> None:
        """Open all connections at once, each end proven by the run's secret.

        Args:
            addresses: Peer worker → what its `listen` returned (or one (address, port)).
            secret: The run's secret.
            timeout: Seconds for all of it.

        Raises:
            RendezvousTimeoutError: A peer is missing; the text and `missing` name it.
            TransportError: A peer belongs to another run, has another plan, or cannot be reached.
        """
        if self._connected:
            raise TransportError("the TCP transport is connected already")
        if not self._listeners:
            self.listen()
        incoming: dict[Lane, int] = {}
        outgoing: dict[Lane, tuple[int, Endpoint]] = {}
        opposite = self._opposite(addresses)
        for conn in self._ids:
            if opposite.get(conn, conn) < conn:
                continue  # the other direction brings the sockets
            for number in range(self.sockets):
                if self._sends[conn]:
                    where = self._where(addresses, conn)
                    outgoing[conn, number] = (self._peer[conn], where)
                else:
                    incoming[conn, number] = self._peer[conn]
        meeting = Meeting(
            self.worker,
            self._listeners,
            incoming,
            outgoing,
            self._opener,
            {conn: self._plan_of(conn, opposite.get(conn)) for conn in self._ids},
            secret,
        )
        try:
            met = meeting.run(timeout)
        finally:
            self.refused = meeting.refused
            self._hang_up()
        for conn in self._ids:
            other = opposite.get(conn)
            opened = conn if other is None else min(conn, other)
            lanes = [met[opened, number] for number in range(self.sockets)]
            for sock in lanes:
                # Reading a message must not cost an ACK packet of its own: ACKs ride on credits,
                # go out every second segment, or after the delayed-ACK time. Measured: a quarter
                # of the time of a 1 KB message over loopback.
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
            self._tcp.add(
                conn,
                self._sends[conn],
                [os.dup(sock.fileno()) if other is not None else sock.detach() for sock in lanes],
                shared=other is not None,
            )
        for sock in met.values():
            sock.close()
        self._connected = True

    def _opposite(self, addresses: Mapping[int, Endpoint | Sequence[Endpoint]]) -> dict[int, int]:
        """Connection → the one that goes the other way on the same sockets, as both ends see it."""
        if self.shared is False:
            return {}
        ends = {}
        for conn in self._ids:
            row = self._rows[self._row_of[conn]]
            kind = (int(row["communicator"]), int(row["channel"]), int(row["index"]))
            source, target = (
                (int(row["src"]), int(row["nic_src"])),
                (int(row["dst"]), int(row["nic_dst"])),
            )
            ends[kind, source, target] = conn
        found = {}
        for (kind, source, target), conn in ends.items():
            other = ends.get((kind, target, source))
            if other is not None and (self.shared or self._loops(addresses, conn)):
                found[conn] = other
        return found

    def _loops(self, addresses: Mapping[int, Endpoint | Sequence[Endpoint]], conn: int) -> bool:
        theirs = [address for address, _ in self._listed(addresses, conn)]
        return all(ip_address(text).is_loopback for text in [*self.bind, *theirs])

    def _listed(
        self, addresses: Mapping[int, Endpoint | Sequence[Endpoint]], conn: int
    ) -> list[Endpoint]:
        """Where the peer of a connection listens."""
        peer = self._peer[conn]
        if peer not in addresses:
            raise InputError(f"no address of worker {peer}, which connection {conn} goes to")
        listed = addresses[peer]
        if isinstance(listed[0], str):
            return [cast(Endpoint, tuple(listed))]
        return list(cast("Sequence[Endpoint]", listed))

    def _where(self, addresses: Mapping[int, Endpoint | Sequence[Endpoint]], conn: int) -> Endpoint:
        listed = self._listed(addresses, conn)
        nic = max(int(self._rows[self._row_of[conn]]["nic_dst"]), 0)
        address, port = listed[nic % len(listed)]
        return address, port

    def _opener(self, lane: Lane) -> socket.socket:
        nic = max(int(self._rows[self._row_of[lane[0]]]["nic_src"]), 0)
        address = self.bind[nic % len(self.bind)]
        sock = socket.socket(family_of(address), socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            self._options(sock)
            # The port is chosen at connect(), by the whole four-tuple: no port runs out early.
            sock.setsockopt(socket.IPPROTO_IP, 24, 1)  # IP_BIND_ADDRESS_NO_PORT
            sock.bind((address, 0))
        except InputError:
            sock.close()
            raise
        except OSError as exc:
            sock.close()
            raise TransportError(
                f"cannot connect from {address}: {exc.strerror}", address=address
            ) from exc
        return sock

    def _plan_of(self, conn: int, opposite: int | None) -> bytes:
        row = self._rows[self._row_of[conn]]
        text = f"{conn} {self.sockets} {opposite} {tuple(row.tolist())}"
        return hashlib.sha256(text.encode()).digest()[:8]

    def _hang_up(self) -> None:
        while self._listeners:
            self._listeners.pop().close()

    def stats(self) -> dict[str, object]:
        """Return counters of bytes, messages, system calls and credits.

        Returns:
            The counters of `genie._core.tcp.Tcp.counters`, and "peers": worker → sent_bytes,
            sent_messages, received_bytes, received_messages, credits, system_calls.
        """
        peers: dict[int, dict[str, int]] = {}
        for conn, sender, done, _, nbytes, credits, syscalls, *_ in self._tcp.connections():
            row = peers.setdefault(
                self._peer[conn],
                dict.fromkeys(
                    (
                        "sent_bytes",
                        "sent_messages",
                        "received_bytes",
                        "received_messages",
                        "credits",
                        "system_calls",
                    ),
                    0,
                ),
            )
            way = "sent" if sender else "received"
            row[f"{way}_bytes"] += nbytes
            row[f"{way}_messages"] += done
            row["credits"] += credits
            row["system_calls"] += syscalls
        return {**self._tcp.counters(), "peers": peers}

    def failures(self) -> list[ConnectionFailure]:
        """Return the connections that failed, with which peer and why."""
        failed = []
        for conn, status, expected, found in self._tcp.failures():
            row = self._rows[self._row_of[conn]]
            src, dst, peer = int(row["src"]), int(row["dst"]), self._peer[conn]
            sizes = -status == errno.EBADMSG
            if sizes and not self._sends[conn]:
                why = f"the sender sent {found} bytes where the receiver expects {expected}"
            elif sizes:
                why = f"worker {peer} sent credits that make no sense ({found})"
            elif -status in (errno.ECONNRESET, errno.EPIPE):
                why = f"worker {peer} closed the connection"
            else:
                why = os.strerror(-status)
            failed.append(
                ConnectionFailure(
                    conn,
                    src,
                    dst,
                    peer,
                    status,
                    f"connection {conn} from rank {src} to rank {dst} "
                    f"(worker {self.worker} with worker {peer}): {why}",
                    expected if sizes else None,
                    found if sizes else None,
                )
            )
        return failed

    def close(self, linger: float = 1.0) -> None:
        """Close all sockets; a second call does nothing.

        Args:
            linger: Seconds to wait until peers have what was sent, so that closing loses nothing.
        """
        self._hang_up()
        if self._tcp.closed:
            return
        deadline = time.monotonic() + linger
        if linger > 0:
            self._tcp.end()
        while self._tcp.unsent() and time.monotonic() < deadline:
            time.sleep(0.001)
        self._tcp.close()

    def __enter__(self) -> TcpTransport:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
