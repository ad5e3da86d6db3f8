"""Workers as forks of this process, for emulated guests where starting Python takes seconds."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import IO


class ForkLauncher:
    """As `LocalLauncher`, but a worker is a fork: genie is imported once."""

    def __init__(self, workers: Sequence[int]) -> None:
        self._workers = list(workers)
        self._pids: dict[int, int] = {}
        self._said: dict[int, IO[bytes]] = {}
        self._codes: dict[int, int] = {}

    def start(self, addresses: Sequence[tuple[str, int]], secret: bytes, timeout: float) -> None:
        """Fork every worker."""
        from genie.replay import worker as module
        from genie.replay.auth import secret_environment

        where = ",".join(f"{host}:{port}" for host, port in addresses)
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
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                code = module.main(["--connect", where, "--worker", str(worker)])
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)

    def _poll(self) -> None:
        for worker, pid in self._pids.items():
            if worker not in self._codes:
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    self._codes[worker] = os.waitstatus_to_exitcode(status)

    def exited(self) -> Mapping[int, str]:
        """Return worker → how it ended, of those that ended badly."""
        self._poll()
        return {
            worker: f"ended with {code}; its last words: {self._words(worker)}"
            for worker, code in self._codes.items()
            if code
        }

    def _words(self, worker: int) -> str:
        self._said[worker].seek(0)
        return self._said[worker].read()[-4096:].decode(errors="replace")

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


def use_forks() -> None:
    """Have `genie.replay` fork its local workers."""
    from genie.replay.launchers import choose

    choose.choose = lambda endpoints, name=None: ForkLauncher(range(len(endpoints)))
