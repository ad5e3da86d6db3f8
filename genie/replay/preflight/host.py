"""Checks of the host itself: CPU, clock, timers, limits, kernel, launchers."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import platform
import resource
import shutil
import time
from pathlib import Path

from genie.replay.hostinfo import cpu_times, usable_cores
from genie.replay.preflight.report import Report
from genie.units import format_size, format_time

#: Timer lateness at which compute waits become part of the result, ns (perf.md §3: a free core
#: wakes within 25 us).
TIMER_WARN_NS = 100_000
_PR_SET_TIMERSLACK = 29


def read(path: str | Path) -> str:
    """Return a sysfs or proc file's text without its newline, "" if it cannot be read."""
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def check_host(report: Report) -> None:
    """Add the findings about this host."""
    report.add("kernel", "ok", f"{platform.system()} {platform.release()} {platform.machine()}")
    _cores(report)
    _clock(report)
    _timer(report)
    _memlock(report)
    _files(report)
    _launchers(report)


def _cores(report: Report) -> None:
    cores = usable_cores()
    before = cpu_times()
    time.sleep(0.2)
    after = cpu_times()
    total = after.host_total - before.host_total
    busy = (after.host_busy - before.host_busy) / total if total else 0.0
    free = cores * (1 - busy)
    found = f"{cores} usable, {busy:.0%} busy now, {free:.1f} free"
    if free < 1:
        report.add("cores", "warn", found, "stop other work: a worker needs a free core")
    else:
        report.add("cores", "ok", found)


def _clock(report: Report) -> None:
    source = read("/sys/devices/system/clocksource/clocksource0/current_clocksource") or "unknown"
    # A clock that needs a system call costs hundreds of ns at every message.
    begin = time.perf_counter_ns()
    for _ in range(2000):
        time.monotonic_ns()
    cost = (time.perf_counter_ns() - begin) / 2000
    found = f"{source}, {cost:.0f} ns a reading from Python"
    if cost > 500:
        report.add("clock source", "warn", found, "use the tsc clock source (kernel: tsc=reliable)")
    else:
        report.add("clock source", "ok", found)


def _timer(report: Report) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    old = libc.prctl(30, 0, 0, 0, 0)  # PR_GET_TIMERSLACK
    libc.prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    late = []
    for _ in range(50):
        target = time.monotonic_ns() + 200_000
        time.sleep(200e-6)
        late.append(time.monotonic_ns() - target)
    libc.prctl(_PR_SET_TIMERSLACK, max(old, 1), 0, 0, 0)
    late.sort()
    p50, p99 = late[len(late) // 2], late[-1]
    found = f"a 200 us sleep ends {format_time(p50)} late (median), {format_time(p99)} at worst"
    if p50 > TIMER_WARN_NS:
        report.add("timer", "warn", found, "free a core, or allow high-resolution timers")
    else:
        report.add("timer", "ok", found)


def _memlock(report: Report) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft == resource.RLIM_INFINITY:
        report.add("memlock", "ok", "unlimited")
        return
    found = f"{format_size(soft)} (hard limit " + (
        "unlimited)" if hard == resource.RLIM_INFINITY else f"{format_size(hard)})"
    )
    level = "warn" if soft < 64 << 20 else "ok"
    fix = "for RDMA: ulimit -l unlimited, or LimitMEMLOCK=infinity in the launcher's unit"
    report.add("memlock", level, found, fix if level == "warn" else "")  # type: ignore[arg-type]


def _files(report: Report) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    level = "warn" if hard < 4096 else "ok"
    fix = "ulimit -n 65536: a connection takes a file descriptor over TCP"
    report.add("open files", level, f"{soft} (hard {hard})", fix if level == "warn" else "")  # type: ignore[arg-type]


def _launchers(report: Report) -> None:
    found = [name for name in ("srun", "mpirun", "ssh") if shutil.which(name)]
    inside = [
        name
        for name in ("SLURM_JOB_ID", "OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "TORCHELASTIC_RUN_ID")
        if name in os.environ
    ]
    text = ", ".join(found) or "none"
    if inside:
        text += f"; inside an allocation ({', '.join(inside)})"
    if found:
        report.add("launchers", "ok", text)
    else:
        fix = "only workers on this machine can be started; install openssh-client or an MPI"
        report.add("launchers", "warn", text, fix)
