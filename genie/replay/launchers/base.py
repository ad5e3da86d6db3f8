"""What every launcher does, and what they share."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Protocol

#: What a process says is kept in an error up to this many bytes.
TAIL = 4096
#: The Python of other hosts, when it is not at this one's path.
PYTHON_VAR = "GENIE_PYTHON"


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
    """Return the command line of a worker; the secret is not on it.

    Args:
        python: Interpreter.
        addresses: Where the coordinator listens.
        worker: Its index, or "env": the launcher tells it in its environment.
    """
    where = ",".join(f"[{h}]:{p}" if ":" in h else f"{h}:{p}" for h, p in addresses)
    return [python, "-m", "genie.replay.worker", "--connect", where, "--worker", str(worker)]


def python_environment() -> dict[str, str]:
    """Return what a child needs so that it imports this very genie, and nothing from its cwd."""
    root = str(Path(__file__).parents[3])
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


class Children:
    """Child processes by number, with what they said."""

    def __init__(self) -> None:
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._said: dict[int, IO[bytes]] = {}

    def spawn(
        self,
        number: int,
        command: Sequence[str],
        environment: Mapping[str, str],
        stdin: bytes | None = None,
        own_group: bool = False,
        pass_fds: Sequence[int] = (),
    ) -> None:
        """Start a process; its output is kept for errors.

        Args:
            number: What it is called here.
            command: Its command line.
            environment: All of its environment.
            stdin: Written to its standard input, which is then closed.
            own_group: A process group of its own, which Ctrl-C in a terminal does not reach.
            pass_fds: Descriptors that stay open in it.
        """
        # Memory, not a file: a full or read-only disk must not stop a run.
        said = self._said[number] = os.fdopen(os.memfd_create("genie-worker"), "w+b")
        child = subprocess.Popen(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
            stdout=said,
            stderr=said,
            cwd="/",
            start_new_session=own_group,
            pass_fds=tuple(pass_fds),
        )
        self._children[number] = child
        if stdin is not None and child.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                child.stdin.write(stdin)
            with contextlib.suppress(BrokenPipeError):
                child.stdin.close()

    def pid(self, number: int) -> int:
        """Return a process id."""
        return self._children[number].pid

    def exited(self) -> dict[int, str]:
        """Return number → how it ended, of those that ended badly."""
        found = {}
        for number, child in self._children.items():
            code = child.poll()
            if code:
                found[number] = ending(code) + self.tail(number)
        return found

    def tail(self, number: int) -> str:
        """Return the end of what a process said, as a clause."""
        file = self._said[number]
        with contextlib.suppress(OSError, ValueError):
            end = file.seek(0, os.SEEK_END)
            file.seek(max(0, end - TAIL))
            text = file.read().decode(errors="replace").strip()
            if text:
                return f"; its last words: {text}"
        return ""

    def stop(self, grace: float, ask: int | None = None) -> None:
        """Wait `grace` seconds for the children, then kill those that are left.

        Args:
            grace: Seconds to wait.
            ask: Signal that is sent first to those still there, with as many seconds again.
        """
        self._await(grace)
        if ask is not None and self._left():
            for child in self._left():
                child.send_signal(ask)
            self._await(max(grace, 1.0))
        for child in self._left():
            child.kill()
        for child in self._children.values():
            child.wait()
        for file in self._said.values():
            file.close()

    def _left(self) -> list[subprocess.Popen[bytes]]:
        return [child for child in self._children.values() if child.poll() is None]

    def _await(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        for child in self._children.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(max(0.0, deadline - time.monotonic()))
