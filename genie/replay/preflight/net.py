"""Checks of network interfaces for TCP."""

from __future__ import annotations

from pathlib import Path

from genie.replay.preflight.host import read
from genie.replay.preflight.report import Report

_NET = Path("/sys/class/net")


def check_net(report: Report, only: tuple[str, ...] = ()) -> None:
    """Add one finding an interface that is up, with speed, MTU, NUMA node; and TCP's settings."""
    names = sorted(path.name for path in _NET.iterdir()) if _NET.is_dir() else []
    for missing in sorted(set(only) - set(names)):
        report.add(missing, "fail", f"no such interface; there are {', '.join(names)}",
                   "name one of these")  # fmt: skip
    for name in names:
        if (only and name not in only) or (name == "lo" and not only):
            continue
        state = read(_NET / name / "operstate")
        if state == "down" and not only:
            continue
        speed = read(_NET / name / "speed")
        text = f"{state}, MTU {read(_NET / name / 'mtu')}"
        if speed and speed != "-1":
            text += f", {int(speed) / 1000:g} Gbit/s"
        numa = read(_NET / name / "device" / "numa_node")
        if numa and numa != "-1":
            text += f", NUMA node {numa}"
        level = "fail" if state == "down" else "ok"
        fix = f"ip link set {name} up" if level == "fail" else ""
        report.add(f"interface {name}", level, text, fix)  # type: ignore[arg-type]
    congestion = read("/proc/sys/net/ipv4/tcp_congestion_control")
    limit = int((read("/proc/sys/net/ipv4/tcp_wmem").split() or ["0"])[-1])
    text = f"congestion control {congestion}, send buffer up to {limit >> 10} KiB"
    if limit and limit < 4 << 20:
        report.add("tcp", "warn", text,
                   "sysctl net.ipv4.tcp_wmem='4096 65536 16777216' for fast links")  # fmt: skip
    else:
        report.add("tcp", "ok", text)
