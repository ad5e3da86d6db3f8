"""Hosts as network namespaces on one bridge, for tests that need more than one host.

Needs root. `Star(n)` makes namespaces <name>-h0 ... on 10.<net>.0.0/24, joined by a bridge in a
namespace of their own; the root namespace takes part with an address too when asked.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest


def needs_namespaces() -> None:
    """Skip the test where namespaces cannot be made."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2")
    name = f"genie-probe-{os.getpid()}"
    if subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode:
        pytest.skip("this kernel or container makes no network namespaces")
    subprocess.run(["ip", "netns", "del", name], check=True)


def ip(*args: str) -> None:
    subprocess.run(["ip", *args], check=True, capture_output=True)


class Star:
    """`n` hosts on one switch; a context manager."""

    def __init__(self, n: int, net: int = 77, root: bool = False) -> None:
        self.name = f"g{os.getpid() % 100000}"
        self.n = n
        self.net = net
        self.root = root
        self.hosts = [f"{self.name}-h{i}" for i in range(n)]
        self.switch = f"{self.name}-sw"

    def address(self, i: int) -> str:
        return f"10.{self.net}.0.{i + 1}"

    @property
    def root_address(self) -> str:
        return f"10.{self.net}.0.250"

    def __enter__(self) -> Star:
        try:
            ip("netns", "add", self.switch)
            ip("-n", self.switch, "link", "add", "br0", "type", "bridge")
            ip("-n", self.switch, "link", "set", "br0", "up")
            for i, host in enumerate(self.hosts):
                ip("netns", "add", host)
                ip("link", "add", "e0", "netns", host, "type", "veth", "peer", "name", f"p{i}",
                   "netns", self.switch)  # fmt: skip
                ip("-n", host, "addr", "add", f"{self.address(i)}/24", "dev", "e0")
                ip("-n", host, "link", "set", "lo", "up")
                ip("-n", host, "link", "set", "e0", "up")
                ip("-n", self.switch, "link", "set", f"p{i}", "master", "br0")
                ip("-n", self.switch, "link", "set", f"p{i}", "up")
            if self.root:
                device = f"{self.name[:10]}r"
                ip("link", "add", device, "type", "veth", "peer", "name", "proot",
                   "netns", self.switch)  # fmt: skip
                ip("addr", "add", f"{self.root_address}/24", "dev", device)
                ip("link", "set", device, "up")
                ip("-n", self.switch, "link", "set", "proot", "master", "br0")
                ip("-n", self.switch, "link", "set", "proot", "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def link(self, i: int, state: str) -> None:
        """Set the switch's port of host i "up" or "down"."""
        ip("-n", self.switch, "link", "set", f"p{i}", state)

    def shape(self, i: int, rate: str) -> None:
        """Shape both directions of host i's link."""
        for namespace, device in ((self.hosts[i], "e0"), (self.switch, f"p{i}")):
            subprocess.run(
                ["tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", "tbf", "rate",
                 rate, "burst", "128kb", "limit", "1mb"],
                check=True,
            )  # fmt: skip

    def run(self, i: int, command: Sequence[str], **options) -> subprocess.Popen[str]:
        """Start a command in host i."""
        return subprocess.Popen(
            ["ip", "netns", "exec", self.hosts[i], *command],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options,
        )  # fmt: skip

    def pids(self) -> list[int]:
        """Processes that are left in the hosts."""
        out: list[int] = []
        for host in self.hosts:
            done = subprocess.run(["ip", "netns", "pids", host], capture_output=True, text=True)
            out += [int(pid) for pid in done.stdout.split()]
        return out

    def __exit__(self, *exc: object) -> None:
        for pid in self.pids():
            try:
                if b"genie" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, 9)
            except OSError:
                pass
        for namespace in (*self.hosts, self.switch):
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True)
