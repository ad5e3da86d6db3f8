"""Workers on this host, direct children of this process."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from genie.errors import LaunchError
from genie.replay.auth import secret_environment
from genie.replay.launchers.base import Children, python_environment, worker_command
from genie.replay.worker import CONNECT_TIMEOUT_VAR, PARENT_VAR


class LocalLauncher:
    """Starts workers as direct children.

    Args:
        workers: Indices of the workers to start.
        environment: Added to each one's environment.
    """

    def __init__(
        self, workers: Sequence[int], environment: Mapping[str, str] | None = None
    ) -> None:
        self._workers = list(workers)
        self._environment = dict(environment or {})
        self._children = Children()

    def start(self, addresses: Sequence[tuple[str, int]], secret: bytes, timeout: float) -> None:
        """Start every worker.

        Raises:
            LaunchError: One cannot be started; those that were are ended.
        """
        env = {
            **os.environ,
            **python_environment(),
            **self._environment,
            **secret_environment(secret),
            PARENT_VAR: str(os.getpid()),
            CONNECT_TIMEOUT_VAR: str(timeout),
        }
        for worker in self._workers:
            try:
                self._children.spawn(worker, worker_command(sys.executable, addresses, worker), env)
            except OSError as exc:
                self.stop(0)
                raise LaunchError(
                    f"worker {worker} of {len(self._workers)} could not be started: {exc.strerror}",
                    worker=worker,
                ) from exc

    def pid(self, worker: int) -> int:
        """Return the process id of a worker."""
        return self._children.pid(worker)

    def exited(self) -> Mapping[int, str]:
        """Return worker → how it ended, of those that ended badly."""
        return self._children.exited()

    def stop(self, grace: float) -> None:
        """Have all workers gone."""
        self._children.stop(grace)
