"""Addresses to bind to and descriptors to bind with."""

from __future__ import annotations

import fcntl
import ipaddress
import resource
import socket
import struct
from pathlib import Path

from genie.errors import InputError, TransportError

SIOCGIFADDR = 0x8915  # linux/sockios.h: the IPv4 address of an interface


def address_of(text: str) -> str:
    """Return the IP address that `text` means: an address, an interface name, or a host name.

    Raises:
        InputError: It is none of them, or the interface has no address.
    """
    try:
        return str(ipaddress.ip_address(text.partition("%")[0])) + "".join(text.partition("%")[1:])
    except ValueError:
        pass
    names = [name for _, name in socket.if_nameindex()]
    if text in names:
        found = _ipv4_of(text) or _ipv6_of(text)
        if found is None:
            raise InputError(f"interface {text} has no IP address", name=text)
        return found
    try:
        return str(socket.getaddrinfo(text, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as exc:
        raise InputError(
            f"{text!r} is no address, interface or host name here ({exc}); "
            f"interfaces: {', '.join(names)}",
            name=text,
            found=names,
        ) from None


def _ipv4_of(name: str) -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request = struct.pack("256s", name.encode()[:15])
        try:
            answer = fcntl.ioctl(sock.fileno(), SIOCGIFADDR, request)
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])


def _ipv6_of(name: str) -> str | None:
    table = Path("/proc/net/if_inet6")
    local = None
    for line in table.read_text().splitlines() if table.exists() else ():
        digits, _, _, scope, _, interface = line.split()
        if interface == name:
            address = str(ipaddress.IPv6Address(bytes.fromhex(digits)))
            if scope == "00":
                return address
            local = f"{address}%{name}"
    return local


def family_of(address: str) -> socket.AddressFamily:
    """Return the address family of an IP address."""
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def allow_descriptors(more: int) -> None:
    """Raise this process's limit on open files so that `more` sockets fit.

    Raises:
        TransportError: The hard limit is lower and this user may not raise it.
    """
    in_use = len(list(Path("/proc/self/fd").iterdir())) if Path("/proc/self/fd").exists() else 64
    wanted = in_use + more + 64  # 64: files that the recording and libraries open meanwhile
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    try:
        top = hard if hard == resource.RLIM_INFINITY else max(hard, wanted)
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, top))
    except (ValueError, OSError):
        raise TransportError(
            f"{more} sockets are needed and {in_use} files are open, but this process may open "
            f"only {hard}: raise the limit (ulimit -n {wanted}) or use fewer ranks a worker",
            needed=wanted,
            limit=hard,
        ) from None
