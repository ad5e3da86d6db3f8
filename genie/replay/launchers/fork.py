"""Workers as forks of this process: no Python is started, genie is imported once.

For machines where starting Python takes seconds, such as emulated guests. Chosen by name only
(GENIE_LAUNCHER=fork): what a fork shares with its parent, such as the threads of a library that
are not there in the child, is the caller's to know.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import IO

from genie.replay.launchers.base import TAIL, ending


class ForkLauncher:
    """Starts workers as forks.

    Args:
        workers: Indices of the workers to start.
    """

    def __init__(self, workers: Sequence[int]) -> None:
        self._workers = list(workers)
        self._pids: dict[int, int] = {}
        self._said: dict[int, IO[bytes]] = {}
        self._codes: dict[int, int] = {}

    def start(self, addresses: Sequence[tuple[str, int]], secret: bytes, timeout: float) -> None:
        """Fork every worker."""
        from genie.replay import worker as module
        from genie.replay.auth import secret_environment

        where = ",".join(f"[{h}]:{p}" if ":" in h else f"{h}:{p}" for h, p in addresses)
        parent = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        for worker in self._workers:
            said = self._said[worker] = tempfile.TemporaryFile()  # noqa: SIM115
            pid = os.fork()
            if pid:
                self._pids[worker] = pid
                continue
            code = 1
            try:
                os.dup2(said.fileno(), 1)
                os.dup2(said.fileno(), 2)
                os.environ.update(secret_environment(secret))
                os.environ[module.CONNECT_TIMEOUT_VAR] = str(timeout)
                os.environ[module.PARENT_VAR] = str(parent)
                for number in (signal.SIGTERM, signal.SIGHUP):
                    signal.signal(number, signal.SIG_DFL)
                code = module.main(["--connect", where, "--worker", str(worker)])
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)

    def pid(self, worker: int) -> int:
        """Return the process id of a worker."""
        return self._pids[worker]

    def _poll(self) -> None:
        for worker, pid in self._pids.items():
            if worker not in self._codes:
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    self._codes[worker] = os.waitstatus_to_exitcode(status)

    def exited(self) -> Mapping[int, str]:
        """Return worker → how it ended, of those that ended badly."""
        self._poll()
        return {w: ending(code) + self._tail(w) for w, code in self._codes.items() if code}

    def _tail(self, worker: int) -> str:
        """Return the end of what a worker said, as a clause."""
        file = self._said[worker]
        file.seek(0)
        text = file.read()[-TAIL:].decode(errors="replace").strip()
        return f"; its last words: {text}" if text else ""

    def stop(self, grace: float) -> None:
        """Have all workers gone."""
        deadline = time.monotonic() + grace
        self._poll()
        while len(self._codes) < len(self._pids) and time.monotonic() < deadline:
            time.sleep(0.01)
            self._poll()
        for worker, pid in self._pids.items():
            if worker not in self._codes:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                self._codes[worker] = -signal.SIGKILL
        for file in self._said.values():
            file.close()
