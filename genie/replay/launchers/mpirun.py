"""Workers on other hosts by Open MPI's mpirun: one rank a worker, in the order of the endpoints.

Nothing of MPI is used but its way to start processes: a worker finds its index in
OMPI_COMM_WORLD_RANK. The secret is in mpirun's environment, and only its name on a command line.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence

from genie.errors import LaunchError
from genie.replay.auth import SECRET_VAR, secret_environment
from genie.replay.endpoints import Endpoint
from genie.replay.launchers.base import (
    PYTHON_VAR,
    Children,
    python_environment,
    worker_command,
)
from genie.replay.worker import CONNECT_TIMEOUT_VAR


def find_mpirun() -> str | None:
    """Return Open MPI's mpirun, None if there is none."""
    return shutil.which("mpirun.openmpi") or shutil.which("mpirun")


class MpirunLauncher:
    """Starts all workers with one mpirun.

    Args:
        endpoints: In the order of the workers.
    """

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        self._endpoints = list(endpoints)
        self._children = Children()
        self._hosts: str | None = None

    def start(self, addresses: Sequence[tuple[str, int]], secret: bytes, timeout: float) -> None:
        """Start every worker.

        Raises:
            LaunchError: There is no mpirun here.
        """
        mpirun = find_mpirun()
        if mpirun is None:
            raise LaunchError("no mpirun here to start workers on other hosts with")
        env = {
            **os.environ,
            **python_environment(),
            **secret_environment(secret),
            CONNECT_TIMEOUT_VAR: str(timeout),
        }
        fd, self._hosts = tempfile.mkstemp(prefix="genie-hosts-")
        with os.fdopen(fd, "w") as file:
            # "seq" maps rank i to line i, whatever repeats.
            file.writelines(f"{endpoint.address}\n" for endpoint in self._endpoints)
        command = [mpirun, "--map-by", "seq", "--hostfile", self._hosts, "--bind-to", "none"]
        # With recovery, the others live on to hand over what they recorded when one dies.
        command += ["-np", str(len(self._endpoints)), "--enable-recovery"]
        if os.getuid() == 0:
            command.append("--allow-run-as-root")
        for name in ("PYTHONPATH", "PYTHONSAFEPATH", SECRET_VAR, CONNECT_TIMEOUT_VAR):
            command += ["-x", name]
        command += worker_command(os.environ.get(PYTHON_VAR, sys.executable), addresses, "env")
        self._children.spawn(0, command, env, own_group=True)

    def exited(self) -> Mapping[int, str]:
        """Return {-1: how mpirun ended}, if badly: which worker it was, it does not say."""
        found = self._children.exited()
        return {-1: f"mpirun {found[0]}"} if found else {}

    def stop(self, grace: float) -> None:
        """Have all workers gone; mpirun ends those of its ranks that are left."""
        self._children.stop(grace, signal.SIGTERM)
        if self._hosts is not None:
            os.unlink(self._hosts)
            self._hosts = None
