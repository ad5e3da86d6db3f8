"""Workers on other hosts by ssh, one connection a worker: the last resort.

The secret goes through ssh's standard input, so that it is on no command line and in no file.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence

from genie.errors import LaunchError
from genie.replay.auth import SECRET_VAR
from genie.replay.endpoints import Endpoint
from genie.replay.launchers.base import (
    PYTHON_VAR,
    Children,
    python_environment,
    worker_command,
)
from genie.replay.worker import CONNECT_TIMEOUT_VAR

#: Further options of ssh, as a shell would split them, such as "-p 2222 -i key".
OPTIONS_VAR = "GENIE_SSH_OPTIONS"


class SshLauncher:
    """Starts workers by ssh.

    Args:
        endpoints: Worker → where it runs.
    """

    def __init__(self, endpoints: Mapping[int, Endpoint]) -> None:
        self._endpoints = dict(endpoints)
        self._children = Children()

    def start(self, addresses: Sequence[tuple[str, int]], secret: bytes, timeout: float) -> None:
        """Start every worker.

        Raises:
            LaunchError: There is no ssh here.
        """
        ssh = shutil.which("ssh")
        if ssh is None:
            raise LaunchError("no ssh here to start workers on other hosts with")
        python = os.environ.get(PYTHON_VAR, sys.executable)
        extra = shlex.split(os.environ.get(OPTIONS_VAR, ""))
        env = {**python_environment(), CONNECT_TIMEOUT_VAR: str(timeout)}
        for worker, endpoint in self._endpoints.items():
            run = ["env", *(f"{k}={v}" for k, v in env.items())]
            run += worker_command(python, addresses, worker)
            script = (
                f"IFS= read -r {SECRET_VAR} && export {SECRET_VAR} && "
                f"exec {shlex.join(run)} </dev/null"
            )
            command = [
                ssh, "-o", "BatchMode=yes", "-o", f"ConnectTimeout={max(1, int(timeout))}",
                "-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3", "-T", *extra,
                "--", endpoint.host.replace("[", "").replace("]", ""),
                f"exec sh -c {shlex.quote(script)}",
            ]  # fmt: skip
            # A group of its own: Ctrl-C ends workers by the coordinator's word, not ssh under it.
            self._children.spawn(
                worker, command, os.environ, secret.hex().encode() + b"\n", own_group=True
            )

    def exited(self) -> Mapping[int, str]:
        """Return worker → how its ssh ended, of those that ended badly."""
        return {w: f"(by ssh) {how}" for w, how in self._children.exited().items()}

    def stop(self, grace: float) -> None:
        """Have all workers gone: one whose control connection closes ends by itself."""
        self._children.stop(grace, signal.SIGTERM)
