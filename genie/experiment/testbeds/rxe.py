"""Soft-RoCE devices on one bridge, in this network namespace.

Each device sits on a veth whose other end is a port of the bridge, so that every packet leaves
its host and crosses the bridge. All of it is in one namespace: kernels up to 6.1 have rxe's UDP
sockets only in the first. Meant for an emulated guest, or for a machine kept for tests: the
settings of the kernel that it needs (`_SETTINGS`) are put back at the end.
"""

from __future__ import annotations

import re
from pathlib import Path
from types import TracebackType

from genie.errors import InputError
from genie.experiment.links import Link, Port, States
from genie.experiment.testbeds.shaping import Shaper, has_netem
from genie.experiment.testbeds.shell import FabricError, Guard, need, need_root, run, tried

_RXE = re.compile(r"rxe:(\d+)")
DEFAULT_MTU = 4200
BRIDGE = "gbr0"
#: IPv4, UDP, BTH and ICRC of a packet, and RETH, which only the first packet of a message has.
_ROCE, _ETHERNET = 20 + 8 + 12 + 4, 14
_RETH = 16
#: RoCE payloads (IBTA): powers of two.
_PAYLOADS = (4096, 2048, 1024, 512, 256)
#: Packets to an address of this machine come in from a wire here; each device answers for itself.
_SETTINGS = {
    "net/ipv4/conf/all/rp_filter": "0",
    "net/ipv4/conf/default/rp_filter": "0",
    "net/ipv4/conf/all/accept_local": "1",
    "net/ipv4/conf/all/arp_ignore": "1",
    "net/ipv4/conf/all/arp_announce": "2",
    # veth delivers through this backlog; 1000 is fewer than one worker has in flight.
    "net/core/netdev_max_backlog": "100000",
}


class SoftRoce:
    """`n` Soft-RoCE devices.

    Args:
        network: "rxe:DEVICES".
        mtu: Of every interface.
    """

    def __init__(self, network: str, mtu: int = 0) -> None:
        match = _RXE.fullmatch(network.replace(" ", ""))
        if match is None or not 2 <= int(match[1]) <= 32:
            raise InputError(f"no network {network!r}: expected rxe:DEVICES, 2 to 32 of them")
        need_root(f"testbed {network}")
        need("ip", "tc", "rdma")
        self.transport = "verbs"
        self.congestion: str | None = None
        self._n = int(match[1])
        self._mtu = mtu or DEFAULT_MTU
        self.endpoints = [f"localhost/grxe{i}" for i in range(self._n)]
        self.links = tuple(
            Link(
                f"h{i}",
                "hosts",
                Port("", f"ga{i}", "", f"gb{i}"),
                Port("", f"gb{i}", "", f"ga{i}"),
            )
            for i in range(self._n)
        )
        self._guard: Guard | None = None
        self._shaper: Shaper | None = None
        self._netem = False

    def __enter__(self) -> SoftRoce:
        """Build it; nothing is left if that fails."""
        there = [f"ga{i}" for i in range(self._n) if Path(f"/sys/class/net/ga{i}").exists()]
        if there or Path(f"/sys/class/net/{BRIDGE}").exists():
            raise FabricError(f"interface {(there or [BRIDGE])[0]} is there already")
        for module in ("rdma_rxe", "veth", "bridge"):
            tried("modprobe", "-q", module)
        before = {name: Path("/proc/sys", name).read_text().strip() for name in _SETTINGS}
        self._guard = Guard(
            [
                *(f"rdma link del grxe{i}" for i in range(self._n)),
                *(f"ip link del ga{i}" for i in range(self._n)),
                f"ip link del {BRIDGE}",
                *(f"echo {value} > /proc/sys/{name}" for name, value in before.items()),
            ]
        )
        try:
            for name, value in _SETTINGS.items():
                Path("/proc/sys", name).write_text(value)
            run("ip", "-batch", "-", text="\n".join(self._lines()) + "\n")
            for i in range(self._n):
                run("rdma", "link", "add", f"grxe{i}", "type", "rxe", "netdev", f"ga{i}")
            self._netem = has_netem("", BRIDGE)
            self._shaper = Shaper(self.links, self._netem, always_netem=True)
        except BaseException:
            self._close()
            raise
        return self

    def _lines(self) -> list[str]:
        """Return what ip(8) is told, in one process: forks are dear when emulated."""
        lines = [f"link add {BRIDGE} mtu {self._mtu} type bridge", f"link set {BRIDGE} up"]
        for i in range(self._n):
            lines += [
                f"link add ga{i} mtu {self._mtu} txqueuelen 10000 address {_mac(i)} type veth "
                f"peer name gb{i} mtu {self._mtu}",
                f"link set gb{i} master {BRIDGE} txqueuelen 10000 up",
                f"link set ga{i} up",
                f"addr add {_address(i)}/24 dev ga{i}",
            ]
        for i in range(self._n):
            lines += [
                f"neigh replace {_address(j)} lladdr {_mac(j)} dev ga{i} nud permanent"
                for j in range(self._n)
                if j != i
            ]
        return lines

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        """Take the devices away."""
        self._close()

    def _close(self) -> None:
        if self._guard is None:
            return
        self._guard.clean()
        self._guard = None
        left = [f"ga{i}" for i in range(self._n) if Path(f"/sys/class/net/ga{i}").exists()]
        if left:
            raise FabricError(f"interfaces are left: {', '.join(left)}")

    def apply(self, states: States, mtu: int, hash_seed: int | None) -> None:
        """See `base.Testbed`."""
        if hash_seed is not None:
            raise InputError("hash_seed: one bridge has one way only; leaf-spine has several")
        if mtu not in (0, self._mtu):
            raise InputError(
                f"MTU {mtu}: Soft-RoCE takes its path MTU when a device is made; set testbed.mtu "
                f"(here {self._mtu})"
            )
        if self._shaper is None:
            raise FabricError("the testbed is not built yet")
        shaped = any(s.bits_per_s or s.delay_ns or s.loss for s in states.values())
        if shaped and not self._netem:
            raise FabricError("Soft-RoCE links are shaped by netem, which this kernel lacks")
        self._shaper.apply(states)

    def counters(self) -> dict[str, int]:
        """See `base.Testbed`."""
        return self._shaper.counters() if self._shaper else {}

    def wire(self, mtu: int) -> tuple[int, int]:
        """See `base.Testbed`: RoCE v2 packets of an RDMA write."""
        room = (mtu or self._mtu) - _ROCE - _RETH
        payload = next((size for size in _PAYLOADS if size <= room), _PAYLOADS[-1])
        return payload, _ROCE + _ETHERNET


def _mac(i: int) -> str:
    return f"02:98:18:00:00:{i + 1:02x}"


def _address(i: int) -> str:
    return f"198.18.0.{i + 1}"
