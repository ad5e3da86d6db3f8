"""Starts workers on this host as direct children, watches them, and ends them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Protocol

from genie.errors import LaunchError
from genie.replay.auth import secret_environment
from genie.replay.worker import CONNECT_TIMEOUT_VAR, PARENT_VAR

#: What a worker says on stderr is kept up to this many bytes.
TAIL = 4096


class Launcher(Protocol):
    """Starts the workers of a run, knows how they fare, ends them."""

    def start(self, addresses: Sequence[tuple[str, int]], secret: bytes, timeout: float) -> None:
        """Start every worker; `addresses` is where they call the coordinator."""
        ...

    def exited(self) -> Mapping[int, str]:
        """Return worker → how it ended, of those that did not end well."""
        ...

    def stop(self, grace: float) -> None:
        """Have all workers gone: those still there after `grace` seconds are killed."""
        ...


def worker_command(
    python: str, addresses: Sequence[tuple[str, int]], worker: int | str
) -> list[str]:
    """Return the command line of a worker; the secret is not on it."""
    where = ",".join(f"[{h}]:{p}" if ":" in h else f"{h}:{p}" for h, p in addresses)
    return [python, "-m", "genie.replay.worker", "--connect", where, "--worker", str(worker)]


def python_environment() -> dict[str, str]:
    """Return what a child needs so that it imports this very genie, and nothing from its cwd."""
    root = str(Path(__file__).parents[2])
    path = os.environ.get("PYTHONPATH", "")
    return {
        "PYTHONPATH": os.pathsep.join([root, *([path] if path else [])]),
        "PYTHONSAFEPATH": "1",
        "PYTHONUNBUFFERED": "1",
    }


def ending(code: int) -> str:
    """Return how a process ended, from `Popen.returncode`."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    text = f"was killed by {name}"
    if -code == signal.SIGKILL:
        text += " (by someone, or by the kernel because memory ran out)"
    return text


class LocalLauncher:
    """Workers on this host, direct children of this process.

    Args:
        workers: Indices of the workers to start.
        environment: Added to each one's environment.
    """

    def __init__(
        self, workers: Sequence[int], environment: Mapping[str, str] | None = None
    ) -> None:
        self._workers = list(workers)
        self._environment = dict(environment or {})
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._said: dict[int, IO[bytes]] = {}

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
        try:
            for worker in self._workers:
                said = self._said[worker] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by stop()
                self._children[worker] = subprocess.Popen(
                    worker_command(sys.executable, addresses, worker),
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=said,
                    stderr=said,
                    cwd="/",
                )
        except OSError as exc:
            self.stop(0)
            raise LaunchError(
                f"worker {worker} of {len(self._workers)} could not be started: {exc.strerror}",
                worker=worker,
            ) from exc

    def pid(self, worker: int) -> int:
        """Return the process id of a worker."""
        return self._children[worker].pid

    def exited(self) -> dict[int, str]:
        """Return worker → how it ended, of those that ended badly."""
        found = {}
        for worker, child in self._children.items():
            code = child.poll()
            if code:
                found[worker] = ending(code) + self._tail(worker)
        return found

    def _tail(self, worker: int) -> str:
        file = self._said[worker]
        with contextlib.suppress(OSError, ValueError):
            end = file.seek(0, os.SEEK_END)
            file.seek(max(0, end - TAIL))
            text = file.read().decode(errors="replace").strip()
            if text:
                return f"; its last words: {text}"
        return ""

    def stop(self, grace: float) -> None:
        """Wait `grace` seconds for the children, then kill those that are left."""
        deadline = time.monotonic() + grace
        for child in self._children.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(max(0.0, deadline - time.monotonic()))
        for child in self._children.values():
            if child.poll() is None:
                child.kill()
        for child in self._children.values():
            child.wait()
        for file in self._said.values():
            file.close()
