"""A worker's part of `check --endpoints`: its own host, then one step with one peer at a time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from genie.errors import GenieError, TransportError
from genie.replay.connections import CONN
from genie.replay.preflight.host import read
from genie.replay.protocol import Bye, ProbeAnswer, ProbeSetup, ProbeStep

if TYPE_CHECKING:
    from genie.replay.member import Member
    from genie.replay.transports.base import Transport

Where = tuple[tuple[str, int], ...]
#: Seconds of silence of a peer after which a probe gives up.
SILENCE = 3.0
_NET = "/sys/class/net"


class ProbeWorker:
    """Answers the coordinator's steps until Bye.

    Args:
        member: The control connection.
        index: This worker.
        secret: The run's secret.
        setup: What the coordinator said.
    """

    def __init__(self, member: Member, index: int, secret: bytes, setup: ProbeSetup) -> None:
        self._member = member
        self._index = index
        self._secret = secret
        self._setup = setup
        self._transport: Transport | None = None
        self._steps: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "open": self._open,
            "connect": self._connect,
            "ping": self._ping,
            "stream": self._stream,
            "close": self._close,
        }

    def run(self) -> None:
        """Say what this host is, then take steps; every one is bounded and answered."""
        self._answer("host", self._host)
        while True:
            message = self._member.receive_either(ProbeStep, Bye)
            if isinstance(message, Bye):
                return
            step = self._steps[message.what]
            self._answer(message.what, lambda step=step, m=message: step(m.values))  # type: ignore[misc]

    def _answer(self, what: str, step: Callable[[], dict[str, Any]]) -> None:
        try:
            answer = ProbeAnswer(what, "", step())
        except (GenieError, OSError) as exc:
            text = exc.message if isinstance(exc, GenieError) else str(exc)
            if isinstance(exc, OSError) and exc.errno and not isinstance(exc, GenieError):
                text = f"{exc.strerror}: {os.strerror(exc.errno)}"
            reasons = [f.reason for f in self._transport.failures()] if self._transport else []
            answer = ProbeAnswer(what, "; ".join([text, *reasons[:1]]), {})
        self._member.send(answer)

    def close(self) -> None:
        """Give up what is open."""
        if self._transport is not None:
            transport, self._transport = self._transport, None
            if self._setup.transport == "verbs":
                # A peer that is not reached cannot be waited for.
                transport.close(0.5)  # type: ignore[call-arg]
            else:
                transport.close()

    # ---- steps

    def _host(self) -> dict[str, Any]:
        from genie.replay.preflight.run import check

        report = check([name for name, _ in self._setup.nics])
        return {
            "nics": self._nics(),
            "findings": [asdict(finding) for finding in report.findings],
        }

    def _nics(self) -> list[dict[str, Any]]:
        """Return name and MTU of each NIC a run would use."""
        named = [name if port == 0 else f"{name}:{port}" for name, port in self._setup.nics]
        if self._setup.transport == "verbs":
            from genie.replay.transports.verbs import extension
            from genie.replay.transports.verbs_config import VerbsConfig, choose_ports

            config = VerbsConfig.from_options(dict(self._setup.options))
            ports, _ = choose_ports(extension().devices(), named, config)
            return [{"name": str(port), "mtu": port.mtu} for port in ports]
        from genie.replay.hostinfo import interface_of
        from genie.replay.transports.interfaces import address_of

        found = []
        for name in named or [self._setup.address]:
            interface = interface_of(address_of(name))
            mtu = read(f"{_NET}/{interface}/mtu")
            found.append({"name": name, "mtu": int(mtu) if mtu else 0})
        return found

    def _open(self, values: dict[str, Any]) -> dict[str, Any]:
        self.close()
        me, peer = self._index, int(values["peer"])
        first, second = min(me, peer), max(me, peer)
        rows = np.zeros(2, CONN)
        rows["src"], rows["dst"] = (first, second), (second, first)
        self._transport = self._make(rows, str(values["nic"]))
        return {"listen": msgspec.msgpack.encode(self._transport.listen())}

    def _make(self, rows: Any, nic: str) -> Transport:
        workers = {int(rank): int(rank) for rank in rows["src"]}
        if self._setup.transport == "verbs":
            from genie.replay.transports.verbs import VerbsTransport
            from genie.replay.transports.verbs_config import VerbsConfig

            config = VerbsConfig.from_options(
                {**self._setup.options, "spin": self._setup.spin, "force_merge": None}
            )
            return VerbsTransport(
                self._index, rows, [0, 1], workers,
                devices=(nic,), config=config, bind=self._setup.address,
            )  # fmt: skip
        from genie.replay.transports.tcp import TcpTransport

        return TcpTransport(
            self._index, rows, [0, 1], workers, bind=nic, spin=self._setup.spin,
        )  # fmt: skip

    def _connect(self, values: dict[str, Any]) -> dict[str, Any]:
        where = msgspec.msgpack.decode(values["listen"], type=Where)
        began = time.monotonic()
        self._open_transport().connect(
            {int(values["peer"]): where}, self._secret, timeout=float(values["timeout"])
        )
        return {"seconds": time.monotonic() - began}

    def _open_transport(self) -> Transport:
        if self._transport is None:
            raise TransportError("nothing is open to this peer")
        return self._transport

    def _drive(self) -> Any:
        from genie._core._drive import Drive

        return Drive(self._open_transport().capsule)

    def _ping(self, values: dict[str, Any]) -> dict[str, Any]:
        first = self._index < int(values["peer"])
        took = self._drive().ping(
            0 if first else 1, 1 if first else 0, int(values["nbytes"]), int(values["count"]),
            first, timeout_ns=int(SILENCE * 1e9),
        )  # fmt: skip
        return {"took": took}

    def _stream(self, values: dict[str, Any]) -> dict[str, Any]:
        sender = self._index == int(values["sender"])
        conn = 0 if int(values["sender"]) < int(values["receiver"]) else 1
        times = self._drive().stream(
            conn, sender, int(values["nbytes"]), int(values["count"]),
            timeout_ns=int(SILENCE * 1e9),
        )  # fmt: skip
        # Some marks tell what a figure needs; all of them could be a million.
        n = len(times) - 1
        marks = sorted({n * k // 16 for k in range(17)})
        return {"marks": marks, "times": [times[mark] for mark in marks]}

    def _close(self, values: dict[str, Any]) -> dict[str, Any]:
        self.close()
        return {}
