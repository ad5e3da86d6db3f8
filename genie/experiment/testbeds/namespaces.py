"""Hosts as network namespaces: a star on one switch, or leaves and spines with ECMP.

Hosts run their workers in their namespace; the control connections are sockets of ours, so the
network carries the data alone. Addresses are of 198.18.0.0/15, which RFC 2544 keeps for tests.
"""

from __future__ import annotations

import itertools
import os
import re
from collections import defaultdict
from types import TracebackType

from genie.errors import InputError
from genie.experiment.links import Link, Port, States
from genie.experiment.testbeds.shaping import Shaper, has_netem, in_namespace, tool
from genie.experiment.testbeds.shell import FabricError, Guard, need, need_root, run, tried

_STAR = re.compile(r"star:(\d+)")
_LEAF_SPINE = re.compile(r"leaf-spine:(\d+)x(\d+)x(\d+)")
_numbers = itertools.count()
_SEED = "net.ipv4.fib_multipath_hash_seed"
DEFAULT_MTU = 1500
#: TCP over IPv4 with timestamps; Ethernet's header is what the kernel's disciplines count.
_TCP_IP, _ETHERNET = 52, 14


class Namespaces:
    """A star or a leaf-spine network.

    Args:
        network: "star:HOSTS" or "leaf-spine:LEAVES x SPINES x HOSTS a leaf".
        mtu: Of every interface.
    """

    def __init__(self, network: str, mtu: int = 0) -> None:
        need_root(f"testbed {network}")
        need("ip", "tc")
        self.transport = "tcp"
        self.congestion: str | None = "cubic"
        self._mtu = mtu or DEFAULT_MTU
        self._now_mtu = self._mtu
        self._seed: int | None = None
        self._prefix = f"genie{os.getpid()}x{next(_numbers)}"
        self._ip: dict[str, list[str]] = defaultdict(list)
        self._cables: list[str] = []
        self._routers: list[str] = []
        self._leaves: list[str] = []
        self._hosts: list[str] = []
        text = network.replace(" ", "")
        star, leaf_spine = _STAR.fullmatch(text), _LEAF_SPINE.fullmatch(text)
        if star:
            self.links = tuple(self._star(int(star[1])))
        elif leaf_spine:
            self.links = tuple(self._leaf_spine(*map(int, leaf_spine.groups())))
        else:
            raise InputError(
                f"no network {network!r}: expected star:HOSTS or leaf-spine:LEAVESxSPINESxHOSTS "
                "(hosts of a leaf)"
            )
        self.endpoints = [f"netns:{host}/e0" for host in self._hosts]
        self._guard: Guard | None = None
        self._shaper: Shaper | None = None

    @property
    def namespaces(self) -> list[str]:
        """All namespaces of this network."""
        return list(self._ip)

    # ---- what is built

    def _name(self, part: str) -> str:
        return f"{self._prefix}-{part}"

    def _cable(self, a: tuple[str, str], b: tuple[str, str]) -> tuple[Port, Port]:
        """Plan a veth pair; return the ports of its two directions, from `a` first."""
        self._cables.append(
            f"link add {a[1]} netns {a[0]} mtu {self._mtu} type veth "
            f"peer name {b[1]} netns {b[0]} mtu {self._mtu}"
        )
        for namespace, device in (a, b):
            self._ip[namespace].append(f"link set {device} up")
        return Port(*a, *b), Port(*b, *a)

    def _host(self, number: int, address: str, switch: str, port: str) -> Link:
        host = self._name(f"h{number}")
        self._hosts.append(host)
        self._ip[host] += ["link set lo up"]
        tx, rx = self._cable((host, "e0"), (switch, port))
        self._ip[host].append(f"addr add {address} dev e0")
        self._ip[switch].append(f"link set {port} master br0")
        return Link(f"h{number}", "hosts", tx, rx)

    def _star(self, hosts: int) -> list[Link]:
        if not 2 <= hosts <= 1000:
            raise InputError(f"star:{hosts}: expected 2 to 1000 hosts")
        switch = self._name("sw")
        self._ip[switch] += ["link add br0 type bridge", "link set br0 up"]
        return [
            self._host(i, f"198.18.{i // 250}.{i % 250 + 1}/16", switch, f"p{i}")
            for i in range(hosts)
        ]

    def _leaf_spine(self, leaves: int, spines: int, hosts: int) -> list[Link]:
        if not (2 <= leaves <= 60 and 1 <= spines <= 200 and 1 <= hosts <= 200):
            raise InputError(
                f"leaf-spine:{leaves}x{spines}x{hosts}: expected 2 to 60 leaves, 1 to 200 spines, "
                "1 to 200 hosts a leaf"
            )
        links, uplinks = [], []
        for leaf in range(leaves):
            here = self._name(f"l{leaf}")
            self._leaves.append(here)
            self._ip[here] += [
                "link add br0 type bridge",
                f"addr add 198.18.{leaf}.1/24 dev br0",
                "link set br0 up",
            ]
            ways = []
            for spine in range(spines):
                there = self._name(f"s{spine}")
                tx, rx = self._cable((here, f"u{spine}"), (there, f"d{leaf}"))
                near, far = (f"198.19.{spine}.{leaf * 4 + k}" for k in (1, 2))
                self._ip[here].append(f"addr add {near}/30 dev u{spine}")
                self._ip[there] += [
                    f"addr add {far}/30 dev d{leaf}",
                    f"route add 198.18.{leaf}.0/24 via {near}",
                ]
                ways.append(f"nexthop via {far}")
                uplinks.append(Link(f"l{leaf}s{spine}", "uplinks", tx, rx))
            self._ip[here].append(f"route add 198.18.0.0/16 {' '.join(ways)}")
            for i in range(hosts):
                number = leaf * hosts + i
                links.append(self._host(number, f"198.18.{leaf}.{10 + i}/24", here, f"p{i}"))
                self._ip[self._hosts[-1]].append(f"route add default via 198.18.{leaf}.1")
        self._routers = [*self._leaves, *(self._name(f"s{s}") for s in range(spines))]
        return links + uplinks

    def __enter__(self) -> Namespaces:
        """Build it; nothing is left if that fails."""
        self._guard = Guard([f"ip netns del {name}" for name in self._ip])
        try:
            for name in self._ip:
                run("ip", "netns", "add", name)
            run("ip", "-batch", "-", text="\n".join(self._cables) + "\n")
            for name, lines in self._ip.items():
                run("ip", "-n", name, "-batch", "-", text="\n".join(lines) + "\n")
            for name in self._routers:
                self._sysctl(name, "net.ipv4.ip_forward=1")
                self._sysctl(name, "net.ipv4.conf.all.rp_filter=0")
                self._sysctl(name, "net.ipv4.conf.default.rp_filter=0")
                # By addresses and ports, as switches hash RoCE and TCP.
                self._sysctl(name, "net.ipv4.fib_multipath_hash_policy=1")
            self._shaper = Shaper(self.links, has_netem(self._hosts[0], "lo"))
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        """Take every namespace away, and with them all that is in them."""
        self._close()

    def _close(self) -> None:
        if self._guard is None:
            return
        self._guard.clean()
        self._guard = None
        left = {line.split()[0] for line in run("ip", "netns", "list").splitlines() if line}
        mine = sorted(left & set(self._ip))
        if mine:
            raise FabricError(f"network namespaces are left: {', '.join(mine)}")

    def _sysctl(self, namespace: str, setting: str) -> None:
        run(*in_namespace(namespace, "sysctl", "-qw", setting))

    # ---- what runs ask for

    def apply(self, states: States, mtu: int, hash_seed: int | None) -> None:
        """See `base.Testbed`."""
        if self._shaper is None:
            raise FabricError("the testbed is not built yet")
        mtu = mtu or self._mtu
        if not 576 <= mtu <= 65_000:
            raise InputError(f"MTU {mtu}: expected 576 to 65000")
        if mtu != self._now_mtu:
            lines: dict[str, list[str]] = defaultdict(list)
            for link in self.links:
                for port in (link.tx, link.rx):
                    lines[port.namespace].append(f"link set dev {port.device} mtu {mtu}")
            for namespace, wanted in lines.items():
                run(*tool("ip", namespace), "-batch", "-", text="\n".join(wanted) + "\n")
            self._now_mtu = mtu
        self._hash(hash_seed)
        self._shaper.apply(states)

    def _hash(self, seed: int | None) -> None:
        """Set the seed of every leaf's ECMP hash; without one it is 1, the same in every run."""
        if not self._leaves:
            if seed is not None:
                raise InputError("hash_seed: a star has one way only; leaf-spine has several")
            return
        wanted = 1 if seed is None else seed
        # 0 is "random at boot" to the kernel.
        if not 1 <= wanted < 1 << 32:
            raise InputError(f"hash_seed {wanted}: expected 1 to {(1 << 32) - 1}")
        if wanted == self._seed:
            return
        for name in self._leaves:
            if not tried(*in_namespace(name, "sysctl", "-qw", f"{_SEED}={wanted}")):
                if seed is None:
                    return
                raise FabricError(f"hash_seed: this kernel has no {_SEED} (Linux 6.11)")
        self._seed = wanted

    def counters(self) -> dict[str, int]:
        """See `base.Testbed`."""
        return self._shaper.counters() if self._shaper else {}

    def wire(self, mtu: int) -> tuple[int, int]:
        """See `base.Testbed`: TCP segments."""
        return (mtu or self._mtu) - _TCP_IP, _TCP_IP + _ETHERNET
