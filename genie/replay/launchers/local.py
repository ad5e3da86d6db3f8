"""Workers on this host, direct children of this process.

A worker in a network namespace is started by `ip netns exec`. It calls the coordinator with a
socket made here: a socket belongs to the namespace that it was made in, so the control connection
needs no route out of the worker's, and a test network carries nothing but the data.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence

from genie.errors import LaunchError
from genie.replay.auth import secret_environment
from genie.replay.launchers.base import Children, python_environment, worker_command
from genie.replay.member import CONTROL_FD_VAR
from genie.replay.worker import CONNECT_TIMEOUT_VAR, PARENT_VAR


class LocalLauncher:
    """Starts workers as direct children.

    Args:
        workers: Indices of the workers to start.
        environment: Added to each one's environment.
        namespaces: Worker → network namespace, of those that run in one.
    """

    def __init__(
        self,
        workers: Sequence[int],
        environment: Mapping[str, str] | None = None,
        namespaces: Mapping[int, str] | None = None,
    ) -> None:
        self._workers = list(workers)
        self._environment = dict(environment or {})
        self._namespaces = dict(namespaces or {})
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
            command = worker_command(sys.executable, addresses, worker)
            try:
                if worker in self._namespaces:
                    self._spawn_in(self._namespaces[worker], worker, command, env)
                else:
                    self._children.spawn(worker, command, env)
            except OSError as exc:
                self.stop(0)
                raise LaunchError(
                    f"worker {worker} of {len(self._workers)} could not be started: {exc.strerror}",
                    worker=worker,
                ) from exc

    def _spawn_in(
        self, namespace: str, worker: int, command: Sequence[str], env: Mapping[str, str]
    ) -> None:
        """Start a worker in a network namespace, with a socket of this one for its control."""
        ip = shutil.which("ip", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
        if ip is None:
            raise LaunchError("workers in network namespaces need iproute2 (ip netns)")
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as control:
            self._children.spawn(
                worker,
                [ip, "netns", "exec", namespace, *command],
                {**env, CONTROL_FD_VAR: str(control.fileno())},
                pass_fds=(control.fileno(),),
            )

    def pid(self, worker: int) -> int:
        """Return the process id of a worker."""
        return self._children.pid(worker)

    def exited(self) -> Mapping[int, str]:
        """Return worker → how it ended, of those that ended badly."""
        return self._children.exited()

    def stop(self, grace: float) -> None:
        """Have all workers gone."""
        self._children.stop(grace)
