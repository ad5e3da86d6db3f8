"""What a process finds out about the machine it runs on: cores, CPU time, interfaces."""

from __future__ import annotations

import math
import os
import resource
import socket
from dataclasses import dataclass
from pathlib import Path

from genie.errors import GenieError

_NET = Path("/sys/class/net")
_RDMA = Path("/sys/class/infiniband")


def usable_cores() -> int:
    """Return the CPU cores this process may use: its affinity, cut by its cgroup's quota."""
    cores = len(os.sched_getaffinity(0))
    quota = _cgroup_quota()
    return max(1, cores if quota is None else min(cores, math.ceil(quota)))


def _cgroup_quota() -> float | None:
    """Return the cores that cgroup v2's cpu.max allows, the least of all levels, or None."""
    try:
        line = next(
            text for text in Path("/proc/self/cgroup").read_text().splitlines()
            if text.startswith("0::")
        )  # fmt: skip
    except (OSError, StopIteration):
        return None
    root = Path("/sys/fs/cgroup")
    group = root / line[3:].lstrip("/")
    least: float | None = None
    for folder in (group, *group.parents):
        try:
            limit, period = (folder / "cpu.max").read_text().split()
            if limit != "max":
                cores = int(limit) / int(period)
                least = cores if least is None else min(least, cores)
        except (OSError, ValueError):
            pass
        if folder == root:
            break
    return least


def pin_near(devices: tuple[str, ...]) -> str:
    """Keep this thread on the cores of the NUMA node that the devices are attached to.

    Args:
        devices: Interfaces or RDMA devices ("mlx5_0:1").

    Returns:
        The cores, as the kernel lists them; "" when nothing was changed: no device says where it
        is, they differ, or none of those cores may be used.
    """
    nodes = set()
    for device in devices:
        name = device.partition(":")[0]
        for folder in (_NET / name, _RDMA / name):
            try:
                nodes.add(int((folder / "device" / "numa_node").read_text()))
            except (OSError, ValueError):
                continue
    if len(nodes) != 1 or min(nodes) < 0:
        return ""
    try:
        text = Path(f"/sys/devices/system/node/node{nodes.pop()}/cpulist").read_text().strip()
        near = _cpu_list(text) & os.sched_getaffinity(0)
        if not near:
            return ""
        os.sched_setaffinity(0, near)
    except (OSError, ValueError):
        return ""
    return text


def pin(devices: tuple[str, ...], place: int, sharing: int) -> str:
    """Keep this thread near its devices, and off the cores of the host's other workers.

    A worker that polls is moved about by the scheduler as soon as something else runs; two that
    meet on one core wait for each other's time slices.

    Args:
        devices: Interfaces or RDMA devices of this worker.
        place: This worker's number among the workers of its host.
        sharing: How many workers the host has.

    Returns:
        The cores, as the kernel lists them; "" when nothing was changed.
    """
    near = pin_near(devices)
    cores = sorted(os.sched_getaffinity(0))
    if sharing < 2 or len(cores) < sharing:
        return near
    own = cores[place * len(cores) // sharing : (place + 1) * len(cores) // sharing]
    try:
        os.sched_setaffinity(0, own)
    except OSError:
        return near
    return ",".join(map(str, own))


def _cpu_list(text: str) -> set[int]:
    """Return the cores of a list such as "0-3,8"."""
    out: set[int] = set()
    for part in text.split(","):
        low, _, high = part.partition("-")
        out.update(range(int(low), int(high or low) + 1))
    return out


@dataclass(frozen=True)
class CpuTimes:
    """CPU time of this process and of the host, ns and clock ticks, at one instant."""

    user_ns: int
    system_ns: int
    involuntary: int
    host_busy: int
    host_total: int
    host_steal: int
    wait_ns: int
    """This thread could run and had no CPU, ns; -1: the kernel does not say."""


def cpu_times() -> CpuTimes:
    """Return the CPU times now."""
    mine = resource.getrusage(resource.RUSAGE_SELF)
    try:
        with open("/proc/stat") as file:
            # user nice system idle iowait irq softirq steal (proc(5))
            ticks = [int(text) for text in file.readline().split()[1:9]]
    except (OSError, ValueError):
        ticks = [0] * 8
    idle = ticks[3] + ticks[4]
    return CpuTimes(
        round(mine.ru_utime * 1e9), round(mine.ru_stime * 1e9), mine.ru_nivcsw,
        sum(ticks) - idle, sum(ticks), ticks[7], _run_delay_ns(),
    )  # fmt: skip


def _run_delay_ns() -> int:
    """Return the second number of schedstat: time on a run queue (sched-stats of the kernel)."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return -1


def interface_of(address: str) -> str:
    """Return the interface that has IP address `address`, "" if none has."""
    from genie.replay.transports.interfaces import address_of

    if address.startswith("127."):
        return "lo"
    for _, name in socket.if_nameindex():
        try:
            if address_of(name) == address:
                return name
        except GenieError:
            continue
    return ""
