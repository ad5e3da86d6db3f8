"""The user's own hosts and switches: GENIE runs the commands given, and the replays."""

from __future__ import annotations

from types import TracebackType

from genie.errors import InputError
from genie.experiment.links import Link, States
from genie.experiment.spec import Testbed as TestbedSpec
from genie.experiment.testbeds.shell import run
from genie.replay.endpoints import parse_endpoints


class Commands:
    """Hosts that are there, with commands before the first run and after the last.

    Args:
        spec: `endpoints`, `transport`, `setup` and `teardown`.
    """

    def __init__(self, spec: TestbedSpec) -> None:
        if not spec.endpoints:
            raise InputError('testbed "commands" needs endpoints: HOST/NIC, …, or local:N')
        self.endpoints = [str(end) for end in parse_endpoints(list(spec.endpoints))]
        self.transport = spec.transport
        self.links: tuple[Link, ...] = ()
        self.congestion: str | None = None
        self._spec = spec

    def __enter__(self) -> Commands:
        """Run the set-up."""
        try:
            for line in self._spec.setup:
                run("sh", "-c", line)
        except BaseException:
            self._teardown()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        """Run the teardown."""
        self._teardown()

    def _teardown(self) -> None:
        failed: Exception | None = None
        for line in self._spec.teardown:
            try:
                run("sh", "-c", line)
            except Exception as exc:
                # The others are still to be run.
                failed = failed or exc
        if failed is not None:
            raise failed

    def apply(self, states: States, mtu: int, hash_seed: int | None) -> None:
        """Do nothing: a run's own commands change this network."""

    def counters(self) -> dict[str, int]:
        """Return nothing: the workers' counters are in the recordings."""
        return {}

    def wire(self, mtu: int) -> tuple[int, int]:
        """See `base.Testbed`: no headers are taken off the rate that the user states."""
        return 1, 0
