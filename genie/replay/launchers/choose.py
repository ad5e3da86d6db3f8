"""Which launcher starts the workers, and on which address the coordinator listens for them."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence

from genie.errors import InputError, LaunchError
from genie.replay.endpoints import Endpoint
from genie.replay.launchers.base import Launcher
from genie.replay.launchers.join import LAUNCHER_VAR
from genie.replay.launchers.local import LocalLauncher
from genie.replay.launchers.mpirun import MpirunLauncher, find_mpirun
from genie.replay.launchers.srun import SrunLauncher, in_allocation
from genie.replay.launchers.ssh import SshLauncher

#: Interface or address on which the coordinator listens for workers of other hosts.
ADDRESS_VAR = "GENIE_ADDRESS"
NAMES = ("auto", "local", "fork", "srun", "mpirun", "ssh")


class Together:
    """Several launchers as one."""

    def __init__(self, parts: Sequence[Launcher]) -> None:
        self._parts = list(parts)

    def start(self, addresses: Sequence[tuple[str, int]], secret: bytes, timeout: float) -> None:
        """Start every worker."""
        for part in self._parts:
            part.start(addresses, secret, timeout)

    def exited(self) -> Mapping[int, str]:
        """Return worker → how it ended, of those that did not end well."""
        found: dict[int, str] = {}
        for part in self._parts:
            found.update(part.exited())
        return found

    def stop(self, grace: float) -> None:
        """Have all workers gone."""
        for part in self._parts:
            part.stop(grace)


def choose(endpoints: Sequence[Endpoint], name: str | None = None) -> Launcher:
    """Return the launcher for these endpoints.

    Local endpoints are started directly. Others: srun inside a Slurm allocation, else Open MPI's
    mpirun, else ssh; GENIE_LAUNCHER or `name` takes one of them by name.

    Raises:
        InputError: No such launcher.
        LaunchError: Hosts that are not this one, and nothing to start workers there with.
    """
    name = name or os.environ.get(LAUNCHER_VAR) or "auto"
    if name not in NAMES:
        raise InputError(f"no launcher {name!r} (known: {', '.join(NAMES)})")
    remote = {w: end for w, end in enumerate(endpoints) if not end.is_local}
    inside = [end for end in endpoints if end.netns]
    if inside and name in ("srun", "mpirun"):
        raise InputError(f"launcher {name!r} cannot start a worker in {inside[0]}; 'local' can")
    if name == "fork":
        return _forks(endpoints, remote)
    if name == "srun":
        return SrunLauncher(endpoints)
    if name == "mpirun":
        return MpirunLauncher(endpoints)
    if name == "ssh":
        return _with_local(endpoints, remote)
    if not remote:
        return _local(endpoints, range(len(endpoints)))
    if name == "local":
        names = ", ".join(str(end) for end in list(remote.values())[:8])
        raise LaunchError(f"launcher 'local' starts workers on this host only, not on {names}")
    if in_allocation() and not inside:
        return SrunLauncher(endpoints)
    if not inside and find_mpirun() is not None and not any("@" in end.host for end in endpoints):
        return MpirunLauncher(endpoints)
    return _with_local(endpoints, remote)


def _with_local(endpoints: Sequence[Endpoint], remote: Mapping[int, Endpoint]) -> Launcher:
    here = [worker for worker in range(len(endpoints)) if worker not in remote]
    ssh = SshLauncher(remote)
    return Together([_local(endpoints, here), ssh]) if here else ssh


def _forks(endpoints: Sequence[Endpoint], remote: Mapping[int, Endpoint]) -> Launcher:
    from genie.replay.launchers.fork import ForkLauncher

    elsewhere = [end for end in endpoints if end.netns] + list(remote.values())
    if elsewhere:
        raise LaunchError(f"launcher 'fork' starts workers in this process's place only, not on "
                          f"{elsewhere[0]}")  # fmt: skip
    return ForkLauncher(range(len(endpoints)))


def _local(endpoints: Sequence[Endpoint], workers: Sequence[int]) -> LocalLauncher:
    namespaces = {w: endpoints[w].netns for w in workers if endpoints[w].netns}
    return LocalLauncher(workers, namespaces=namespaces)


def listen_address(endpoints: Sequence[Endpoint]) -> str:
    """Return the one address on which the coordinator listens.

    127.0.0.1 when every worker is here; GENIE_ADDRESS (an address or interface) when it is set;
    else this host's address on the route to the first host that is not this one.

    Raises:
        LaunchError: That host's name cannot be resolved or reached.
    """
    from genie.replay.transports.interfaces import address_of

    given = os.environ.get(ADDRESS_VAR)
    if given:
        return address_of(given)
    remote = [end for end in endpoints if not end.is_local]
    if not remote:
        return "127.0.0.1"
    host = remote[0].address
    try:
        family, _, _, _, where = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            # Connecting a datagram socket sends nothing; it only looks up the route.
            sock.connect(where)
            return str(sock.getsockname()[0])
    except OSError as exc:
        raise LaunchError(
            f"host {host} cannot be reached from here ({exc}); if workers there can reach this "
            f"host, say at which address or interface: {ADDRESS_VAR}=..."
        ) from exc
