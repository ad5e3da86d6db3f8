"""The verbs transport of one worker: which devices, who meets whom, rounds of QPs, the end.

What travels between the hosts is written in `genie/_core/verbs.pyx`; here the two ends of each
connection tell each other about their QPs, over one authenticated TCP socket a pair of workers.
The extension is optional: without it, or without libibverbs or a device, `VerbsTransport` says
what is missing and how to get it.
"""

from __future__ import annotations

import errno
import hashlib
import importlib
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import msgspec
import numpy as np
import numpy.typing as npt

from genie.errors import InputError, TransportError
from genie.replay.transports.base import ConnectionFailure, Endpoint
from genie.replay.transports.exchange import Exchange
from genie.replay.transports.interfaces import address_of, allow_descriptors, family_of
from genie.replay.transports.meeting import Lane, Meeting
from genie.replay.transports.verbs_config import (
    STEPS,
    Port,
    VerbsConfig,
    choose_ports,
    merge,
)

if TYPE_CHECKING:
    from types import ModuleType

#: Connections of a pair of workers set up in one round.
ROUND = 64
PROTOCOL = 1
PURPOSE = b"verbs transport"
#: What a completion status most often means on a real fabric.
_HINTS = {
    4: "a local key or address is wrong, or the memory was unpinned",
    9: "the peer's QP was not able to take the request",
    10: "the peer's key or address is wrong",
    12: "the peer's NIC did not answer in time: a port down, a packet path that drops RoCE (VLAN, "
    "MTU, PFC, firewall on UDP 4791), a wrong GID, or a peer that ended",
    13: "the peer posted no receive in time",
}


class _Hello(msgspec.Struct, frozen=True):
    """What a worker tells each peer first."""

    protocol: int
    worker: int
    host: str
    nics: tuple[tuple[dict[str, Any], ...], ...]
    qps: int
    split: bool


class _Side(msgspec.Struct, frozen=True):
    """One end of a connection, as `Verbs.create` describes it."""

    id: int
    qps: tuple[int, ...]
    ece: tuple[tuple[int, int, int], ...]
    at: int
    length: int
    rkeys: tuple[int, ...]


def extension() -> ModuleType:
    """Return the compiled transport with libibverbs opened.

    Raises:
        TransportError: It was not built or libibverbs is missing; says how to get it.
    """
    try:
        module = importlib.import_module("genie._core.verbs")
    except ImportError as exc:
        raise TransportError(
            f"the verbs transport was not built into this installation ({exc}): there was no "
            "infiniband/verbs.h. Install the headers (Debian/Ubuntu: apt install libibverbs-dev; "
            "RHEL: dnf install rdma-core-devel) and install genie-replay again, or use "
            "--transport tcp"
        ) from exc
    module.load()
    return module


class VerbsTransport:
    """Connections of one worker over RDMA.

    Args:
        worker: This worker's number.
        connections: Rows of the plan's CONN table in which this worker is source or destination.
        ids: Their connection ids, the same in every worker.
        worker_of: Rank → worker, for every rank in `connections`.
        devices: RDMA devices ("mlx5_0", "mlx5_0:1"), by the NIC numbers of `connections` (modulo
            their number); none: all active ones that NCCL_IB_HCA allows.
        config: Behaviour; default NCCL's.
        bind: Address or interface of the TCP sockets over which QPs are exchanged; "" takes the
            address of the first device's GID.
        longest: Connection id → longest message in bytes, where known: slots are no larger.
        progress: Called with a line of text at each stage of the set-up.

    Raises:
        DeviceNotFoundError: A device is not there, or this kernel has no RDMA.
        TransportError: The extension or libibverbs is missing, or no GID fits.
        InputError: Arguments that do not fit together.
    """

    name = "verbs"

    def __init__(
        self,
        worker: int,
        connections: npt.NDArray[np.void],
        ids: Sequence[int] | npt.NDArray[np.integer],
        worker_of: Mapping[int, int] | Sequence[int] | npt.NDArray[np.integer],
        *,
        devices: Sequence[str] = (),
        config: VerbsConfig | None = None,
        bind: str = "",
        longest: Mapping[int, int] | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        if len(ids) != len(connections):
            raise InputError(f"{len(connections)} connections, {len(ids)} ids")
        self.worker = worker
        self.config = config or VerbsConfig()
        self.longest = dict(longest or {})
        self.notes: list[str] = []
        self.refused = 0
        self._progress = progress or _quiet
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
        module = extension()
        ports, notes = choose_ports(module.devices(), devices, self.config)
        self.notes += notes
        self.nics: list[list[Port]] = merge(ports, self.config.force_merge)
        self._bind = self._address(bind)
        self._listener: socket.socket | None = None
        self._exchange: Exchange | None = None
        self._hosts: dict[int, _Hello] = {}
        self._connected = False
        self._verbs = module.Verbs(
            max(self._ids, default=-1) + 1,
            len(self._ids),
            [
                [(p.device, p.number, p.gid.index if p.gid is not None else 0) for p in nic]
                for nic in self.nics
            ],
            **self.config.core_options(),
        )

    def _address(self, bind: str) -> str:
        if bind:
            return address_of(bind)
        gid = self.nics[0][0].gid
        if gid is not None and not gid.link_local:
            return str(gid.address)
        raise InputError(
            "the verbs transport exchanges QPs over TCP: name an address or interface for that "
            "(InfiniBand ports have none of their own)"
        )

    @property
    def devices(self) -> tuple[str, ...]:
        """The ports in use, as "device:port"."""
        return tuple(str(port) for nic in self.nics for port in nic)

    @property
    def bind(self) -> list[str]:
        """The address that TCP listens on."""
        return [self._bind]

    @property
    def capsule(self) -> object:
        """A PyCapsule "genie.transport" that keeps the QPs alive."""
        if not self._connected:
            raise TransportError("the verbs transport has no connections yet: call connect() first")
        return self._verbs.capsule

    def listen(self) -> tuple[Endpoint, ...]:
        """Listen for the other workers' set-up sockets; return ((address, port),).

        Raises:
            TransportError: The address cannot be bound to.
        """
        if self._listener is not None:
            raise TransportError("the verbs transport listens already")
        sock = socket.socket(family_of(self._bind), socket.SOCK_STREAM)
        try:
            sock.bind((self._bind, 0))
            sock.listen(4096)
        except OSError as exc:
            sock.close()
            raise TransportError(
                f"cannot listen on {self._bind}: {exc.strerror}", address=self._bind
            ) from exc
        sock.setblocking(False)
        self._listener = sock
        return (cast(Endpoint, sock.getsockname()[:2]),)

    def connect(
        self,
        addresses: Mapping[int, Endpoint | Sequence[Endpoint]],
        secret: bytes,
        *,
        timeout: float = 60.0,
    ) -> None:
        """Set every connection up: meet the peers, take memory, create and connect QPs in rounds.

        Args:
            addresses: Peer worker → what its `listen` returned.
            secret: The run's secret.
            timeout: Seconds for all of it.

        Raises:
            RendezvousTimeoutError: A peer is missing; the text and `missing` name it.
            VerbsError: A verbs call failed; names call, errno, device, port, GID, states, peer.
            TransportError: The ends do not fit together, or a peer ended.
        """
        if self._connected:
            raise TransportError("the verbs transport is connected already")
        deadline = time.monotonic() + timeout
        peers = sorted(set(self._peer.values()))
        sockets = self._meet(peers, addresses, secret, timeout)
        self._exchange = Exchange(self.worker, sockets)
        # On an error the sockets stay open until close(): the worker first says what happened, and
        # only then do its peers find it gone.
        self._greet(peers, deadline)
        for conn in self._ids:
            self._declare(conn)
        for row in self._verbs.memory():
            self._progress(
                f"worker {self.worker}: {row['device']} port {row['port']}: pins "
                f"{row['pinned_bytes'] / 1e6:.1f} MB for {row['qps']} QPs "
                f"({row['cq_entries']} completions)"
            )
        self._verbs.allocate()
        self._set_up(peers, deadline)
        # Nobody sends before everybody can receive.
        self._round(dict.fromkeys(peers, b""), deadline, "the last QP")
        self._connected = True

    def _meet(
        self,
        peers: Sequence[int],
        addresses: Mapping[int, Endpoint | Sequence[Endpoint]],
        secret: bytes,
        timeout: float,
    ) -> dict[int, socket.socket]:
        """One socket a peer; the lower worker opens it."""
        if self._listener is None:
            self.listen()
        assert self._listener is not None
        incoming: dict[Lane, int] = {}
        outgoing: dict[Lane, tuple[int, Endpoint]] = {}
        plans = {}
        for peer in peers:
            shared = [conn for conn in self._ids if self._peer[conn] == peer]
            lane = (min(shared), 0)
            plans[lane[0]] = self._plan_of(shared)
            if peer < self.worker:
                incoming[lane] = peer
                continue
            if peer not in addresses:
                raise InputError(f"no address of worker {peer}, which this worker connects to")
            listed = addresses[peer]
            where = listed if isinstance(listed[0], str) else listed[0]
            outgoing[lane] = (peer, cast(Endpoint, tuple(cast("Sequence[Any]", where))))
        allow_descriptors(len(peers) + 64)
        meeting = Meeting(
            self.worker, [self._listener], incoming, outgoing, self._open, plans, secret
        )
        try:
            met = meeting.run(timeout)
        finally:
            self.refused = meeting.refused
            self._hang_up()
        return {self._peer[lane[0]]: sock for lane, sock in met.items()}

    def _open(self, lane: Lane) -> socket.socket:
        sock = socket.socket(family_of(self._bind), socket.SOCK_STREAM)
        sock.setblocking(False)
        return sock

    def _plan_of(self, shared: Sequence[int]) -> bytes:
        digest = hashlib.sha256(b"verbs")
        for conn in sorted(shared):
            digest.update(f"{conn} {tuple(self._rows[self._row_of[conn]].tolist())}\n".encode())
        return digest.digest()[:8]

    def _hang_up(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def _round(self, messages: Mapping[int, bytes], deadline: float, what: str) -> dict[int, bytes]:
        assert self._exchange is not None
        return self._exchange.round(messages, max(deadline - time.monotonic(), 0.1), what)

    def _greet(self, peers: Sequence[int], deadline: float) -> None:
        rows = self._verbs.ports
        nics: list[tuple[dict[str, Any], ...]] = []
        first = 0
        for nic in self.nics:
            nics.append(tuple(rows[first : first + len(nic)]))
            first += len(nic)
        mine = _Hello(
            PROTOCOL,
            self.worker,
            socket.gethostname(),
            tuple(nics),
            self.config.qps_per_connection,
            self.config.split_data,
        )
        message = msgspec.msgpack.encode(mine)
        for peer, data in self._round(
            dict.fromkeys(peers, message), deadline, "its devices"
        ).items():
            hello = _decode(data, _Hello, peer)
            if (hello.protocol, hello.qps, hello.split) != (mine.protocol, mine.qps, mine.split):
                raise TransportError(
                    f"worker {peer} on {hello.host} has {hello.qps} QPs per connection, split "
                    f"{hello.split} (protocol {hello.protocol}); worker {self.worker} has "
                    f"{mine.qps}, split {mine.split} (protocol {mine.protocol})"
                )
            self._hosts[peer] = hello

    def _nic_of(self, conn: int, own: bool) -> int:
        """The NIC of a connection at this end or at the other."""
        row = self._rows[self._row_of[conn]]
        column = "nic_src" if self._sends[conn] == own else "nic_dst"
        count = len(self.nics) if own else len(self._hosts[self._peer[conn]].nics)
        return max(int(row[column]), 0) % count

    def _there(self, conn: int) -> tuple[dict[str, Any], ...]:
        """The peer's ports of a connection."""
        return self._hosts[self._peer[conn]].nics[self._nic_of(conn, own=False)]

    def _declare(self, conn: int) -> None:
        row = self._rows[self._row_of[conn]]
        peer = self._peer[conn]
        hello, there = self._hosts[peer], self._there(conn)
        rank = int(row["dst"] if self._sends[conn] else row["src"])
        mine = self.nics[self._nic_of(conn, own=True)][0]
        if there[0]["mtu"] != mine.mtu:
            self._note(
                f"path MTU {min(there[0]['mtu'], mine.mtu)}: {mine} of worker {self.worker} has "
                f"{mine.mtu}, {there[0]['device']} on {hello.host} has {there[0]['mtu']}"
            )
        self._verbs.add(
            conn,
            self._sends[conn],
            self._nic_of(conn, own=True),
            f"rank {rank} (worker {peer} on {hello.host}, "
            + "+".join(f"{p['device']}:{p['port']}" for p in there)
            + ")",
            remote_devs=len(there),
            message_bytes=self.longest.get(conn, -1),
            step_bytes=self.config.buffer_bytes // STEPS,
        )

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def _set_up(self, peers: Sequence[int], deadline: float) -> None:
        """Create and connect all QPs, `ROUND` connections of each pair of workers at a time.

        The sender's end is created first; the receiver creates and connects its end when it knows
        the sender's, and answers; then the sender connects (as NCCL's handshake does, so that ECE
        options of the receiver reach the sender).
        """
        shared = {
            peer: sorted(conn for conn in self._ids if self._peer[conn] == peer) for peer in peers
        }
        done = 0
        for begin in range(0, max(map(len, shared.values()), default=0), ROUND):
            part = {
                peer: conns[begin : begin + ROUND]
                for peer, conns in shared.items()
                if begin < len(conns)
            }
            first = {
                peer: _encode([self._create(c) for c in conns if self._sends[c]])
                for peer, conns in part.items()
            }
            answers = {}
            for peer, data in self._round(first, deadline, "its QPs").items():
                ends = {end.id: end for end in _decode(data, list[_Side], peer)}
                mine = []
                for conn in part[peer]:
                    if not self._sends[conn]:
                        side = self._create(conn)
                        eces = self._join(conn, ends, peer)
                        mine.append(msgspec.structs.replace(side, ece=eces))
                answers[peer] = _encode(mine)
            for peer, data in self._round(answers, deadline, "its QPs' answers").items():
                ends = {end.id: end for end in _decode(data, list[_Side], peer)}
                for conn in part[peer]:
                    if self._sends[conn]:
                        self._join(conn, ends, peer)
            done += sum(map(len, part.values()))
            self._progress(f"worker {self.worker}: {done} of {len(self._ids)} connections")

    def _create(self, conn: int) -> _Side:
        return msgspec.convert({"id": conn, **self._verbs.create(conn)}, _Side)

    def _join(
        self, conn: int, ends: Mapping[int, _Side], peer: int
    ) -> tuple[tuple[int, int, int], ...]:
        end = ends.get(conn)
        if end is None:
            raise TransportError(
                f"worker {peer} said nothing of connection {conn}, which it shares with worker "
                f"{self.worker}"
            )
        return tuple(
            self._verbs.connect(conn, msgspec.structs.asdict(end), list(self._there(conn)))
        )

    def stats(self) -> dict[str, object]:
        """Return counters of the data path, and "peers" and "ports".

        Returns:
            The counters of `Verbs.counters`; sent/received bytes and messages; "peers": worker →
            the same; "ports": "device:port" → payload bytes sent.
        """
        keys = ("sent_bytes", "sent_messages", "received_bytes", "received_messages")
        total = dict.fromkeys(keys, 0)
        peers: dict[int, dict[str, int]] = {}
        for row in self._verbs.connections():
            mine = peers.setdefault(self._peer[row["id"]], dict.fromkeys(keys, 0))
            way = "sent" if row["sender"] else "received"
            for one in (mine, total):
                one[f"{way}_bytes"] += row["nbytes"]
                one[f"{way}_messages"] += row["complete"]
        ports = {f"{device}:{port}": n for device, port, n in self._verbs.port_bytes()}
        flat = {f"sent_bytes {name}": n for name, n in ports.items()}
        return {**total, **self._verbs.counters(), **flat, "peers": peers, "ports": ports}

    def unused(self) -> list[str]:
        """Return the ports that no connection of this worker uses."""
        used = {self._nic_of(conn, own=True) for conn in self._ids} if self._hosts else set()
        return [str(p) for i, nic in enumerate(self.nics) if i not in used for p in nic]

    def failures(self) -> list[ConnectionFailure]:
        """Return the connections that failed, each with its first failure in words."""
        found = []
        for row in self._verbs.failures():
            conn = row["id"]
            line = self._rows[self._row_of[conn]]
            src, dst, peer = int(line["src"]), int(line["dst"]), self._peer[conn]
            status = row["status"]
            sizes = status == -errno.EBADMSG
            what = row["text"]
            if status > 0:
                hint = f"; {_HINTS[status]}" if status in _HINTS else ""
                what = (
                    f"{row['text']} (completion status {status}, vendor {row['vendor_err']:#x}, "
                    f"QP {row['qp_num']}){hint}"
                )
            more = []
            if row["flushed"]:
                more.append(f"{row['flushed']} work requests were flushed after it")
            if row["later"]:
                more.append(f"{row['later']} failed after it")
            found.append(
                ConnectionFailure(
                    conn,
                    src,
                    dst,
                    peer,
                    status,
                    f"connection {conn} from rank {src} to rank {dst}, message {row['message']}, "
                    f"worker {self.worker} device {row['device']} with {row['peer']}: {what}"
                    + "".join(f"; {text}" for text in more),
                    None,
                    row["found"] if sizes else None,
                )
            )
        return found

    def close(self, linger: float = 2.0) -> None:
        """Give everything back; a second call does nothing.

        Both ends first let their last messages complete and tell each other, so that no QP goes
        away while its peer still waits for an acknowledgement.

        Args:
            linger: Seconds for that; a failed or aborted run does not wait for long.
        """
        self._hang_up()
        if self._verbs.closed:
            return
        try:
            if self._connected and not self._verbs.failures():
                pending = self._verbs.drain(linger)
                if pending == 0 and self._exchange is not None:
                    bye = dict.fromkeys(self._exchange.sockets, b"bye")
                    self._exchange.round(bye, linger, "the end of its messages")
        except TransportError:
            pass  # A peer that ended early has nothing to wait for.
        except TimeoutError:
            pass
        finally:
            if self._exchange is not None:
                self._exchange.close()
            self._verbs.close()

    def __enter__(self) -> VerbsTransport:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _quiet(text: str) -> None:
    if os.environ.get("GENIE_VERBOSE"):
        print(f"genie: {text}", file=sys.stderr)


def _encode(sides: Sequence[_Side]) -> bytes:
    return msgspec.msgpack.encode(sides)


def _decode(data: bytes, kind: Any, peer: int) -> Any:
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except (msgspec.DecodeError, msgspec.ValidationError) as exc:
        raise TransportError(
            f"worker {peer} sent a set-up message that makes no sense: {exc}"
        ) from exc
