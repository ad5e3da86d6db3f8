"""Joining a run that a launcher has started: every process of the job makes the same call.

Process 0 is the coordinator (and starts worker 0 beside itself); every other process becomes the
worker of its number. Who is who, and where process 0 listens, comes from the launcher's variables:

    torchrun, Kubernetes PyTorchJob   RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT
    Slurm's srun                      SLURM_PROCID, SLURM_NTASKS, SLURM_STEP_ID, SLURM_STEP_NODELIST
    Open MPI's mpirun                 OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE (and _LOCAL_SIZE)
    PMIx                              PMIX_RANK, with the size from Slurm or Open MPI
    MPICH's Hydra                     PMI_RANK, PMI_SIZE

GENIE_COORDINATOR=HOST:PORT says where process 0 listens when the launcher does not, and
GENIE_SECRET must be the same random value in all processes (`genie.replay.auth`).
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from genie.errors import LaunchError

COORDINATOR_VAR = "GENIE_COORDINATOR"
LAUNCHER_VAR = "GENIE_LAUNCHER"
#: Ports made from a job's number lie here, below Linux's ephemeral ones (ip_local_port_range).
FIRST_PORT, PORTS = 21_000, 10_000


@dataclass(frozen=True)
class Role:
    """This process among those that a launcher started."""

    launcher: str
    rank: int
    size: int


def _numbers(env: Mapping[str, str], rank: str, size: str) -> tuple[int, int] | None:
    a, b = env.get(rank, ""), env.get(size, "")
    return (int(a), int(b)) if a.isdigit() and b.isdigit() else None


def role(environ: Mapping[str, str] | None = None) -> Role | None:
    """Return this process's role, None when it was started alone.

    A job of one process, a Slurm batch script and an allocation's shell are "alone": they start
    workers themselves. GENIE_LAUNCHER set to anything but "join" turns joining off.
    """
    env = os.environ if environ is None else environ
    if env.get(LAUNCHER_VAR, "join") not in ("join", "auto", ""):
        return None
    found: list[tuple[str, tuple[int, int] | None]] = [
        ("torchrun", _numbers(env, "RANK", "WORLD_SIZE") if "MASTER_ADDR" in env else None),
        ("mpirun", _numbers(env, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")),
        # Hydra inside a Slurm job sets both; its own numbers are the job's.
        ("hydra", _numbers(env, "PMI_RANK", "PMI_SIZE") if "HYDI_CONTROL_FD" in env else None),
        ("srun", _numbers(env, "SLURM_PROCID", "SLURM_NTASKS") if _in_step(env) else None),
        ("hydra", _numbers(env, "PMI_RANK", "PMI_SIZE")),
        ("PMIx", _numbers(env, "PMIX_RANK", "PMIX_SIZE")),
    ]
    for name, numbers in found:
        if numbers is not None and numbers[1] > 1:
            if not 0 <= numbers[0] < numbers[1]:
                raise LaunchError(f"{name} says this is process {numbers[0]} of {numbers[1]}")
            return Role(name, *numbers)
    return None


def _in_step(env: Mapping[str, str]) -> bool:
    """Whether this is a task of srun: the batch script's step has a number near 2**32."""
    step = env.get("SLURM_STEP_ID", env.get("SLURM_STEPID", ""))
    return step.isdigit() and int(step) < 0xFFFFFF00


def worker_index(environ: Mapping[str, str] | None = None) -> int:
    """Return the index of a worker that GENIE started through a launcher."""
    env = os.environ if environ is None else environ
    for name in ("OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "PMI_RANK", "PMIX_RANK"):
        if env.get(name, "").isdigit():
            return int(env[name])
    raise LaunchError("started as a worker without a number: no launcher's variable is set")


def coordinator_address(who: Role, environ: Mapping[str, str] | None = None) -> tuple[str, int]:
    """Return where process 0 listens.

    Raises:
        LaunchError: The launcher does not say; how to say it is in the text.
    """
    env = os.environ if environ is None else environ
    given = env.get(COORDINATOR_VAR)
    if given:
        host, colon, port = given.rpartition(":")
        if not colon or not port.isdigit() or not 0 < int(port) < 65536:
            raise LaunchError(f"{COORDINATOR_VAR}={given}: expected HOST:PORT")
        return host.strip("[]"), int(port)
    if "MASTER_ADDR" in env and env.get("MASTER_PORT", "").isdigit():
        # torchrun's agent listens on MASTER_PORT itself.
        taken = env.get("TORCHELASTIC_USE_AGENT_STORE", "").lower() == "true"
        return env["MASTER_ADDR"], int(env["MASTER_PORT"]) + taken
    if who.launcher == "srun" and "SLURM_STEP_NODELIST" in env:
        first = next(iter(expand_nodes(env["SLURM_STEP_NODELIST"])))
        job = f"{env.get('SLURM_JOB_ID', '')}.{env.get('SLURM_STEP_ID', '')}"
        return first, _port(job)
    if env.get("OMPI_COMM_WORLD_LOCAL_SIZE") == str(who.size):
        return "127.0.0.1", _port(env.get("PMIX_NAMESPACE", env.get("OMPI_MCA_ess_base_jobid", "")))
    raise LaunchError(
        f"{who.launcher} started {who.size} processes but does not say where process 0 is: set "
        f"{COORDINATOR_VAR}=HOST:PORT for all of them (HOST runs process 0, PORT is free there)"
    )


def _port(job: str) -> int:
    return FIRST_PORT + zlib.crc32(job.encode()) % PORTS


def expand_nodes(text: str) -> Sequence[str]:
    """Return the host names of Slurm's compressed list, such as "n[1-3,07],m2"."""
    out: list[str] = []
    for part in re.findall(r"[^,\[]+(?:\[[^\]]*\][^,\[]*)*", text):
        out += _expand(part)
    return out


def _expand(text: str) -> list[str]:
    match = re.search(r"\[([^\]]*)\]", text)
    if match is None:
        return [text]
    out = []
    for item in match[1].split(","):
        low, dash, high = item.partition("-")
        numbers = range(int(low), int(high) + 1) if dash else (int(low),)
        for number in numbers:
            name = f"{text[: match.start()]}{number:0{len(low)}d}"
            out += _expand(name + text[match.end() :])
    return out


class JoinedLauncher:
    """The launcher of process 0: it starts worker 0 only, the others come by themselves."""

    def __init__(self) -> None:
        from genie.replay.launchers.local import LocalLauncher

        self._own = LocalLauncher([0])

    def start(self, addresses: Sequence[tuple[str, int]], secret: bytes, timeout: float) -> None:
        """Start worker 0."""
        self._own.start(addresses, secret, timeout)

    def exited(self) -> Mapping[int, str]:
        """Return how worker 0 ended, if badly."""
        return self._own.exited()

    def stop(self, grace: float) -> None:
        """Have worker 0 gone; the others end when their connection does."""
        self._own.stop(grace)


def serve(who: Role, timeout: float) -> int:
    """Be the worker of this process; return its exit code."""
    from genie.replay.auth import take_secret
    from genie.replay.worker import CONNECT_TIMEOUT_VAR, Worker

    os.environ.setdefault(CONNECT_TIMEOUT_VAR, str(timeout))
    return Worker(who.rank, [coordinator_address(who)], take_secret()).run()
