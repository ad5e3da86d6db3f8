"""The model network of `genie.simulate`: NIC rates, a latency, and what happens to links when."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from genie import checks
from genie.errors import InputError

_LATEST_NS = 10**18
_MOST_GBPS = 1e9


@dataclass(frozen=True)
class LinkEvent:
    """A change of one NIC's links at a moment of the simulation.

    Attributes:
        at_ns: Virtual time, ns.
        host: Index of the host.
        nic: Index of the NIC on that host.
        gbps: New rate of both directions, GB/s; 0 fails the link.
    """

    at_ns: int
    host: int
    nic: int
    gbps: float

    def __post_init__(self) -> None:
        checks.whole("at_ns", self.at_ns, 0, _LATEST_NS)
        checks.whole("host", self.host, 0)
        checks.whole("nic", self.nic, 0)
        checks.real("gbps", self.gbps, 0, _MOST_GBPS)


@dataclass(frozen=True)
class Network:
    """Full-bisection network: every NIC is a pair of links, shared max-min fair.

    Attributes:
        nic_gbps: Rate of a NIC in GB/s each way; None takes the cluster's.
        latency_ns: One-way latency of a message, ns.
        cts_latency_ns: One-way latency of the receiver's announcement (CTS), ns.
        header_bytes: Bytes a packet costs on the wire beside its payload (0 = none modelled).
        mtu: Payload bytes of a packet, used with `header_bytes`.
        events: Changes of links over time.
    """

    nic_gbps: float | None = None
    latency_ns: int = 2000
    cts_latency_ns: int = 2000
    header_bytes: int = 0
    mtu: int = 4096
    events: tuple[LinkEvent, ...] = field(default=())

    def __post_init__(self) -> None:
        if self.nic_gbps is not None:
            checks.real("nic_gbps", self.nic_gbps, 1e-9, _MOST_GBPS)
        checks.whole("latency_ns", self.latency_ns, 0, _LATEST_NS)
        checks.whole("cts_latency_ns", self.cts_latency_ns, 0, _LATEST_NS)
        checks.whole("header_bytes", self.header_bytes, 0, 1 << 20)
        checks.whole("mtu", self.mtu, 1, 1 << 20)
        for event in checks.listed("events", self.events):
            if not isinstance(event, LinkEvent):
                raise InputError(f"events is a list of LinkEvent, not of {checks.short(event)}")

    def degrade(self, host: int, nic: int, gbps: float, at_ns: int = 0) -> Network:
        """Return this network with NIC `nic` of `host` at `gbps` from `at_ns` on (0 fails it)."""
        event = LinkEvent(at_ns, host, nic, gbps)
        return replace(self, events=(*self.events, event))
