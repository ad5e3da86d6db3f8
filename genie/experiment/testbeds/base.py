"""What every testbed does."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Protocol

from genie.experiment.links import Link, States


class Testbed(Protocol):
    """A network to run on; a context manager that builds it and takes it down.

    Attributes:
        endpoints: One a host, as `genie.replay` takes them.
        transport: "tcp", "verbs" or "auto".
        links: What can be shaped.
        congestion: TCP congestion control of its runs, None for the system's.
    """

    endpoints: list[str]
    transport: str
    links: tuple[Link, ...]
    congestion: str | None

    def __enter__(self) -> Testbed:
        """Build it."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        """Take it down."""
        ...

    def apply(self, states: States, mtu: int, hash_seed: int | None) -> None:
        """Make the network what a run wants; what is so already is left alone.

        Args:
            states: What each direction of each link does.
            mtu: Of every interface, bytes; 0 is the testbed's.
            hash_seed: Of the ECMP hash; None is a seed of 0 where there is one.

        Raises:
            FabricError: It cannot be had here; says why.
        """
        ...

    def counters(self) -> Mapping[str, int]:
        """Return "link.direction bytes", "... packets" and "... drops" so far."""
        ...

    def wire(self, mtu: int) -> tuple[int, int]:
        """Return payload bytes of a full packet, and bytes that it takes on a link beside them."""
        ...
