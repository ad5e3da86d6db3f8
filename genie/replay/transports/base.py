"""What every transport offers to a worker, whatever moves its bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

#: Where a worker listens on one NIC: (address, port).
Endpoint: TypeAlias = tuple[str, int]


@dataclass(frozen=True)
class ConnectionFailure:
    """A connection that failed, with what is known about it.

    Attributes:
        connection: Its id in the plan.
        src: Sending rank.
        dst: Receiving rank.
        peer: The worker at the other end.
        status: -errno, or a positive ibv_wc_status.
        reason: The failure in words, naming both ends.
        expected: Bytes the receiver announced, where sizes differ.
        found: Bytes the sender sent, where sizes differ.
    """

    connection: int
    src: int
    dst: int
    peer: int
    status: int
    reason: str
    expected: int | None = None
    found: int | None = None


class Transport(Protocol):
    """The connections of one worker: set up and torn down here, driven through `capsule`.

    The order of calls is `listen`, `connect`, use of `capsule`, `close`. Connections are set up
    on all workers at the same time; `connect` returns when this worker's are.
    """

    @property
    def name(self) -> str:
        """The name users choose it by, such as "tcp"."""
        ...

    @property
    def capsule(self) -> object:
        """A PyCapsule "genie.transport" around the C functions of transport.pxd."""
        ...

    def listen(self) -> tuple[Endpoint, ...]:
        """Start to accept peers; return where, one entry a NIC."""
        ...

    def connect(
        self,
        addresses: Mapping[int, Endpoint | Sequence[Endpoint]],
        secret: bytes,
        *,
        timeout: float = 60.0,
    ) -> None:
        """Open every connection of this worker; `addresses` maps workers to what they listen on."""
        ...

    def stats(self) -> dict[str, object]:
        """Return bytes, messages and system calls, in total and per peer."""
        ...

    def failures(self) -> list[ConnectionFailure]:
        """Return the connections that failed so far."""
        ...

    def close(self) -> None:
        """Give everything back; a second call does nothing."""
        ...
