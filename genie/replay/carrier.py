"""Opens the transport that a worker was told to use, and says how it went."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from genie.errors import InputError
from genie.replay.hostinfo import interface_of
from genie.replay.protocol import MessageError, Setup

if TYPE_CHECKING:
    from genie.replay.shard import Shard
    from genie.replay.transports.base import Transport

Where = tuple[tuple[str, int], ...]


class Carrier:
    """The transport of one worker.

    Args:
        setup: What the coordinator said.
        shard: The worker's part of the plan.
        worker: This worker.
    """

    def __init__(self, setup: Setup, shard: Shard, worker: int) -> None:
        named = _named(setup)
        self.transport: Transport = _make(setup, shard, worker, named)
        #: What is used, which the user need not have named.
        self.devices: tuple[str, ...] = getattr(self.transport, "devices", named)

    @property
    def rejected(self) -> int:
        """Strangers that were refused."""
        return int(getattr(self.transport, "refused", 0))

    def listen(self) -> bytes:
        """Start to listen; return where, for the other workers."""
        return msgspec.msgpack.encode(self.transport.listen())

    def connect(self, listen: dict[int, bytes], secret: bytes, timeout: float) -> None:
        """Open every connection to the other workers."""
        try:
            addresses = {w: msgspec.msgpack.decode(d, type=Where) for w, d in listen.items()}
        except msgspec.DecodeError as exc:
            raise MessageError(f"not addresses of a transport: {exc}") from exc
        self.transport.connect(addresses, secret, timeout=timeout)

    def counted_devices(self) -> tuple[str, ...]:
        """Return the devices whose kernel counters belong to this run."""
        if self.devices:
            return self.devices
        return tuple(interface_of(address) for address in getattr(self.transport, "bind", ()))

    def counters(self) -> dict[tuple[str, str], int]:
        """Return the transport's own counters as (transport, counter) → value."""
        stats = self.transport.stats()
        return {
            (self.transport.name + " transport", name): value
            for name, value in stats.items()
            if isinstance(value, int)
        }

    def reasons(self) -> dict[int, str]:
        """Return connection id → why it failed, in words."""
        return {f.connection: f.reason for f in self.transport.failures()}

    def close(self) -> None:
        """Close every connection."""
        self.transport.close()


def check_devices(setup: Setup) -> None:
    """Refuse network devices that this host does not have.

    Raises:
        GenieError: Which one; names those that there are.
    """
    if setup.transport == "tcp":
        from genie.replay.transports.interfaces import address_of

        for name, _ in setup.nics:
            address_of(name)
    elif setup.transport == "verbs":
        from genie._core.verbs import devices
        from genie.replay.transports.verbs_config import VerbsConfig, choose_ports

        options = VerbsConfig.from_options({"spin": setup.spin, **setup.options})
        choose_ports(devices(), _named(setup), options)


def _named(setup: Setup) -> tuple[str, ...]:
    return tuple(name if port == 0 else f"{name}:{port}" for name, port in setup.nics)


def _make(setup: Setup, shard: Shard, worker: int, devices: tuple[str, ...]) -> Transport:
    if setup.transport == "tcp":
        from genie.replay.transports.tcp import TcpTransport

        options: dict[str, Any] = dict(setup.options)
        return TcpTransport(
            worker,
            shard.connections,
            shard.connection_ids,
            shard.host_of,
            bind=[name for name, _ in setup.nics] or [setup.address],
            spin=setup.spin,
            **options,
        )
    if setup.transport == "verbs":
        from genie.replay.transports.verbs import VerbsTransport
        from genie.replay.transports.verbs_config import VerbsConfig

        return VerbsTransport(
            worker,
            shard.connections,
            shard.connection_ids,
            shard.host_of,
            devices=devices,
            config=VerbsConfig.from_options({"spin": setup.spin, **setup.options}),
            bind=setup.address,
        )
    raise InputError(f"no transport {setup.transport!r} here (known: tcp, verbs)")
