"""Where workers run: `local:N`, a list, or a file of `host[/nic[:port][,nic[:port]...]]`.

One endpoint is one worker; the ranks of a trace are dealt out to endpoints in blocks. Several
endpoints may name the same host, each is its own worker. For TCP a nic is a network interface.
`netns:NAME/nic` is a network namespace of this machine that `ip netns` knows.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from genie import checks
from genie.errors import InputError

#: "local" alone: two workers, the fewest between which anything is sent.
DEFAULT_LOCAL = 2
MAX_ENDPOINTS = 65536

_HOST = re.compile(r"(?:[A-Za-z0-9_.-]+@)?(?:[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+(?:%[\w.-]+)?\])")
_NETNS = "netns:"
_NETNS_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}")
_NIC = re.compile(r"([A-Za-z0-9_.@-]+)(?::([0-9]+))?")
_SLOTS = re.compile(r"(\S+)\s+slots=([0-9]{1,6})(?:\s+max_slots=[0-9]+)?")
_LOCAL = re.compile(r"local(?::(.*))?", re.DOTALL)
_FORM = "host, host/nic, host/nic:port,nic:port, or local:N"


@dataclass(frozen=True)
class Nic:
    """A network device of an endpoint, by name; `port` counts from 1, None = the first active."""

    name: str
    port: int | None = None

    def __str__(self) -> str:
        return self.name if self.port is None else f"{self.name}:{self.port}"


@dataclass(frozen=True)
class Endpoint:
    """A host that runs one worker, and the devices the worker uses (none named: its choice)."""

    host: str
    nics: tuple[Nic, ...] = ()

    def __str__(self) -> str:
        return f"{self.host}/{','.join(map(str, self.nics))}" if self.nics else self.host

    @property
    def address(self) -> str:
        """The host without `user@` and brackets, as a resolver takes it."""
        if self.netns:
            return "localhost"
        return self.host.rpartition("@")[2].strip("[]")

    @property
    def netns(self) -> str:
        """The network namespace of this machine that the worker runs in, "" for none."""
        return self.host.removeprefix(_NETNS) if self.host.startswith(_NETNS) else ""

    @property
    def is_local(self) -> bool:
        """Whether this very host is meant, so that its worker is started directly."""
        return self.address.lower() in _own_names()


def _own_names() -> frozenset[str]:
    name = socket.gethostname().lower()
    return frozenset({"localhost", "127.0.0.1", "::1", name, name.partition(".")[0]})


def parse_endpoints(
    spec: str | os.PathLike[str] | Endpoint | Sequence[str | Endpoint],
) -> tuple[Endpoint, ...]:
    """Return the endpoints that `spec` names, in order; their position is the worker's index.

    Args:
        spec: "local:N", "local" (two workers), one endpoint, a list of endpoints, or a file of
            one endpoint a line ("#" starts a comment; "host slots=2", as in Open MPI's host files,
            is two endpoints). A string that names an existing file is that file.

    Raises:
        InputError: Not an endpoint (says which one and what is expected), none, or too many.
    """
    if isinstance(spec, Endpoint):
        return (spec,)
    if isinstance(spec, (str, os.PathLike)):
        return _parse_one(checks.path("endpoints", spec, _FORM))
    items = checks.listed("endpoints", spec)
    if len(items) == 1 and isinstance(items[0], str):
        return _parse_one(items[0])
    out = []
    for number, item in enumerate(items):
        if isinstance(item, str) and _LOCAL.fullmatch(item.strip()):
            raise InputError(
                f"endpoint {number} is {item!r}: local:N stands alone, in a list write localhost"
            )
        out.append(item if isinstance(item, Endpoint) else _endpoint(item, f"endpoint {number}"))
    return _checked(out, "the list of endpoints")


def _parse_one(text: str) -> tuple[Endpoint, ...]:
    local = _LOCAL.fullmatch(text.strip())
    if local:
        return _local(text, local[1])
    path = Path(text)
    if path.is_file():
        return _from_file(path)
    if os.sep in text and (text.startswith((os.sep, "." + os.sep, "~")) or text.count("/") > 1):
        raise InputError(f"no such file of endpoints: {text}")
    if text.strip() and "," in text and "/" not in text:
        return parse_endpoints(text.split(","))
    return (_endpoint(text, "endpoint"),)


def _local(text: str, count: str | None) -> tuple[Endpoint, ...]:
    if count is None:
        n = DEFAULT_LOCAL
    elif re.fullmatch(r"[0-9]{1,9}", count) and int(count) > 0:
        n = int(count)
    else:
        raise InputError(f"endpoints {text!r}: after local: comes a number of workers, 1 or more")
    return _checked([Endpoint("localhost")] * n, f"endpoints {text!r}")


def _from_file(path: Path) -> tuple[Endpoint, ...]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as exc:
        raise InputError(f"{path}: not readable as a file of endpoints: {exc}") from exc
    out = []
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        slots = _SLOTS.fullmatch(text)
        if slots:
            # A line of Open MPI's hostfile: so many workers on that host.
            out += [_endpoint(slots[1], f"{path}:{number}")] * int(slots[2])
        elif text:
            out.append(_endpoint(text, f"{path}:{number}"))
    return _checked(out, str(path))


def _checked(found: list[Endpoint], where: str) -> tuple[Endpoint, ...]:
    if not found:
        raise InputError(f"{where}: no endpoint; expected {_FORM}")
    if len(found) > MAX_ENDPOINTS:
        raise InputError(f"{where}: {len(found)} endpoints, at most {MAX_ENDPOINTS}")
    return tuple(found)


def _endpoint(text: object, where: str) -> Endpoint:
    if not isinstance(text, str):
        raise InputError(f"{where} is {text!r}; expected text: {_FORM}")
    host, slash, rest = text.strip().partition("/")
    if host.startswith(_NETNS):
        if not _NETNS_NAME.fullmatch(host[len(_NETNS) :]):
            raise InputError(f"{where} is {text!r}: expected netns:NAME/nic")
        if not rest:
            raise InputError(
                f"{where} is {text!r}: a namespace has no address that leads here; name the "
                "interface to use: netns:NAME/nic"
            )
    elif not _HOST.fullmatch(host) or host.startswith("-"):
        raise InputError(f"{where} is {text!r}: {host!r} is not a host; expected {_FORM}")
    if not slash:
        return Endpoint(host)
    nics = []
    for part in rest.split(","):
        match = _NIC.fullmatch(part.strip())
        if match is None:
            raise InputError(f"{where} is {text!r}: {part!r} is not nic or nic:port")
        port = int(match[2]) if match[2] else None
        if port is not None and not 1 <= port <= 255:
            raise InputError(f"{where} is {text!r}: port {port} of {match[1]} is not 1 to 255")
        nics.append(Nic(match[1], port))
    if len(set(nics)) < len(nics):
        raise InputError(f"{where} is {text!r}: a nic is named twice")
    return Endpoint(host, tuple(nics))


def deal_ranks(n_ranks: int, endpoints: Sequence[Endpoint]) -> list[range]:
    """Return the ranks of each endpoint: equal blocks in rank order.

    Raises:
        InputError: The ranks cannot be dealt out evenly; says both numbers.
    """
    n = len(endpoints)
    if n_ranks % n:
        raise InputError(
            f"{n_ranks} ranks cannot be dealt out evenly to {n} endpoints: "
            "the number of ranks must be a multiple of the number of endpoints",
            ranks=n_ranks,
            endpoints=n,
        )
    block = n_ranks // n
    return [range(i * block, (i + 1) * block) for i in range(n)]
