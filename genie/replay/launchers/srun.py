"""Workers by Slurm's srun, inside an allocation: one task a worker, in the endpoints' order."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence

from genie.errors import LaunchError
from genie.replay.auth import secret_environment
from genie.replay.endpoints import Endpoint
from genie.replay.launchers.base import (
    PYTHON_VAR,
    Children,
    python_environment,
    worker_command,
)
from genie.replay.worker import CONNECT_TIMEOUT_VAR

#: Further options of srun, as a shell would split them, such as "--overlap --mem=0".
OPTIONS_VAR = "GENIE_SRUN_OPTIONS"


def in_allocation() -> bool:
    """Whether srun here starts tasks in an allocation that is ours."""
    return "SLURM_JOB_ID" in os.environ and shutil.which("srun") is not None


class SrunLauncher:
    """Starts all workers with one srun.

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
            LaunchError: There is no srun here.
        """
        srun = shutil.which("srun")
        if srun is None:
            raise LaunchError("no srun here to start workers with")
        fd, self._hosts = tempfile.mkstemp(prefix="genie-hosts-")
        with os.fdopen(fd, "w") as file:
            file.writelines(f"{endpoint.address}\n" for endpoint in self._endpoints)
        env = {
            **os.environ,
            **python_environment(),
            **secret_environment(secret),
            CONNECT_TIMEOUT_VAR: str(timeout),
            "SLURM_HOSTFILE": self._hosts,
        }
        # What the batch step was given would override the options below.
        for name in ("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE", "SLURM_DISTRIBUTION"):
            env.pop(name, None)
        command = [
            srun, f"--ntasks={len(self._endpoints)}", "--distribution=arbitrary",
            "--export=ALL", "--kill-on-bad-exit=0", "--input=none", "--unbuffered",
            *shlex.split(os.environ.get(OPTIONS_VAR, "--overlap")),
            *worker_command(os.environ.get(PYTHON_VAR, sys.executable), addresses, "env"),
        ]  # fmt: skip
        self._children.spawn(0, command, env, own_group=True)

    def exited(self) -> Mapping[int, str]:
        """Return {-1: how srun ended}, if badly: which worker it was, it does not say."""
        found = self._children.exited()
        return {-1: f"srun {found[0]}"} if found else {}

    def stop(self, grace: float) -> None:
        """Have all workers gone; srun ends those of its tasks that are left."""
        self._children.stop(grace, signal.SIGTERM)
        if self._hosts is not None:
            os.unlink(self._hosts)
            self._hosts = None
