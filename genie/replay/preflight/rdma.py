"""Checks of RDMA devices through sysfs: ports, rate, MTU, GIDs, flow control, NUMA."""

from __future__ import annotations

import ctypes.util
import ipaddress
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from genie.replay.preflight.host import read
from genie.replay.preflight.report import Report

SYS = Path("/sys/class/infiniband")
_MTU = {"256": 1, "512": 2, "1024": 3, "2048": 4, "4096": 5}
#: RoCE adds 52 bytes of headers (RoCE v2: IP 20/40 + UDP 8 + BTH 12 + RETH 16, ICRC 4).
_ROCE_HEADERS = 64
_ZERO_GID = "0000:0000:0000:0000:0000:0000:0000:0000"


def check_rdma(report: Report, only: tuple[str, ...] = ()) -> None:
    """Add the findings about RDMA devices.

    Args:
        report: Where they go.
        only: Device names ("mlx5_0", "mlx5_0:1"); empty means all.
    """
    _library(report)
    devices = sorted(path.name for path in SYS.iterdir()) if SYS.is_dir() else []
    if not devices:
        what = "no RDMA in this kernel" if not SYS.is_dir() else "no RDMA device"
        level = "fail" if only else "warn"
        fix = (
            "TCP works without; for RDMA install the NIC's driver, or for a trial "
            "Soft-RoCE: modprobe rdma_rxe && rdma link add rxe0 type rxe netdev eth0"
        )
        report.add("rdma devices", level, what, fix)  # type: ignore[arg-type]
        return
    report.add("rdma devices", "ok", ", ".join(devices))
    wanted = {name.partition(":")[0] for name in only}
    for missing in sorted(wanted - set(devices)):
        report.add(missing, "fail", f"no such device; there are {', '.join(devices)}",
                   "name one of these")  # fmt: skip
    gids: list[dict[str, Any]] = []
    for device in devices:
        if wanted and device not in wanted:
            continue
        _device(report, device)
        for port in sorted((SYS / device / "ports").iterdir(), key=lambda p: int(p.name)):
            if only and device not in only and f"{device}:{port.name}" not in only:
                continue
            _port(report, device, port, gids)
    report.tables["gids"] = gids


def _library(report: Report) -> None:
    from genie.replay.preflight.extensions import verbs_state

    name = ctypes.util.find_library("ibverbs")
    if name is None:
        report.add("libibverbs", "warn", "not installed",
                   "apt install libibverbs1 ibverbs-providers (TCP works without)")  # fmt: skip
    else:
        report.add("libibverbs", "ok", f"{name}{_package_version()}")
    built, reason = verbs_state()
    if built:
        report.add("verbs transport", "ok", "built")
    else:
        report.add("verbs transport", "warn", reason,
                   "apt install libibverbs-dev, then install genie-replay again")  # fmt: skip


def _package_version() -> str:
    if shutil.which("dpkg-query") is None:
        return ""
    done = subprocess.run(
        ["dpkg-query", "-W", "-f", "${Version}", "libibverbs1"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return f" (rdma-core {done.stdout})" if done.returncode == 0 and done.stdout else ""


def _device(report: Report, device: str) -> None:
    base = SYS / device
    firmware = read(base / "fw_ver") or "none named"
    numa = read(base / "device" / "numa_node")
    text = f"firmware {firmware}, board {read(base / 'board_id') or '-'}"
    if numa and numa != "-1":
        cpus = read(f"/sys/devices/system/node/node{numa}/cpulist")
        text += f", NUMA node {numa} (CPUs {cpus})"
    report.add(device, "ok", text)


def _port(report: Report, device: str, port: Path, gids: list[dict[str, Any]]) -> None:
    name = f"{device}:{port.name}"
    state = read(port / "state")
    layer = read(port / "link_layer")
    text = f"{state}, {layer}, {read(port / 'rate')}, {read(port / 'phys_state')}"
    if "ACTIVE" in state:
        report.add(name, "ok", text)
    else:
        report.add(name, "fail", text, "bring the link up (ip link set DEV up; cable, switch port)")
    if layer != "Ethernet":
        lid = read(port / "lid")
        level = "ok" if lid not in ("", "0x0", "0") else "fail"
        fix = "" if level == "ok" else "no subnet manager answers: start opensm"
        report.add(f"{name} lid", level, lid or "none", fix)  # type: ignore[arg-type]
        return
    rows = list(gid_table(port))
    gids.extend({"port": name, **row} for row in rows)
    usable = [row for row in rows if row["type"] == "RoCE v2" and not row["link_local"]]
    prefer = [row for row in usable if row["ipv4"]] or usable
    if prefer:
        row = prefer[0]
        report.add(f"{name} gid", "ok", f"index {row['index']}: {row['gid']} ({row['netdev']})")
    else:
        report.add(f"{name} gid", "fail", f"none of {len(rows)} GIDs is RoCE v2 and not link-local",
                   "give the interface an IP address")  # fmt: skip
    for netdev in sorted({row["netdev"] for row in rows if row["netdev"]}):
        _netdev(report, name, netdev)


def gid_table(port: Path) -> Iterator[dict[str, Any]]:
    """Yield the GIDs of one port that are set: index, gid, type, netdev, what they are."""
    folder = port / "gids"
    indices = sorted((int(p.name) for p in folder.iterdir()) if folder.is_dir() else ())
    for index in indices:
        gid = read(folder / str(index))
        if not gid or gid == _ZERO_GID:
            continue
        address = ipaddress.IPv6Address(gid)
        yield {
            "index": index,
            "gid": str(address.ipv4_mapped or address),
            "type": read(port / "gid_attrs" / "types" / str(index)) or "IB/RoCE v1",
            "netdev": read(port / "gid_attrs" / "ndevs" / str(index)),
            "ipv4": address.ipv4_mapped is not None,
            "link_local": address.is_link_local,
        }


def _netdev(report: Report, name: str, netdev: str) -> None:
    """Hold the RoCE MTU against the interface's, and say what flow control is set."""
    mtu = int(read(f"/sys/class/net/{netdev}/mtu") or 0)
    largest = max((size for size in map(int, _MTU) if size + _ROCE_HEADERS <= mtu), default=0)
    text = f"{netdev} MTU {mtu} carries RoCE MTU {largest}"
    if largest >= 4096:
        report.add(f"{name} mtu", "ok", text)
    else:
        report.add(f"{name} mtu", "warn", text,
                   f"ip link set {netdev} mtu 4200 on hosts and switches")  # fmt: skip
    pfc = _dcb(netdev)
    if pfc is None:
        report.add(f"{name} pfc", "ok", f"{netdev}: not readable (no dcb command or no DCB)")
    elif "on" in pfc:
        report.add(f"{name} pfc", "ok", f"{netdev}: {pfc}")
    else:
        report.add(f"{name} pfc", "warn", f"{netdev}: {pfc}",
                   "RoCE without PFC or ECN loses packets under incast")  # fmt: skip
    for side in ("rp", "np"):
        folder = Path(f"/sys/class/net/{netdev}/ecn/roce_{side}/enable")
        if folder.is_dir():
            on = [p.name for p in sorted(folder.iterdir()) if read(p) == "1"]
            level = "ok" if on else "warn"
            text = f"{netdev}: priorities {', '.join(on) or 'none'}"
            fix = "" if on else f"echo 1 > {folder}/PRIORITY"
            report.add(f"{name} ecn {side}", level, text, fix)  # type: ignore[arg-type]


def _dcb(netdev: str) -> str | None:
    """Return what `dcb pfc` says of an interface, None if it cannot say."""
    if shutil.which("dcb") is None:
        return None
    done = subprocess.run(
        ["dcb", "pfc", "show", "dev", netdev, "prio-pfc"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return " ".join(done.stdout.split()) if done.returncode == 0 and done.stdout else None
