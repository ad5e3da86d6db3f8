#!/usr/bin/env python3
"""Boot emulated guests with Soft-RoCE and run a command in them; the exit status is the command's.

    guest.py run [options] -- COMMAND          one guest
    guest.py cluster -n 2 [options] -- COMMAND  several, joined by taps on a bridge; $RANK, $WORLD

The guest's root is the host's `/`, read-only over 9p; its /tmp, /run, /var/tmp and /mnt are its
own. A folder given with `--share` (the working directory always is) is writable there too, at the
same path. `124` means the host's timeout ended the guest, `125` that it died by itself.

`--icount` (`shift=0,sleep=on`) gives the guest a virtual clock of one nanosecond an instruction:
times then repeat to about 0.05 %, whatever else the host does. It needs one vCPU.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
OWN_IN_GUEST = ("/tmp", "/run", "/var/tmp", "/mnt")  # tmpfs there, so the host's is hidden
TIMED_OUT, DIED = 124, 125

START = """#!/bin/sh
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp LANG=C.UTF-8
export PYTHONDONTWRITEBYTECODE=1 RIG_GUEST=1 RIG_CONTROL=/run/rig
. /run/rig/env
hostname "$RIG_NAME"
if [ -e /sys/class/net/eth0 ]; then
  ip link set eth0 mtu "$RIG_MTU" up
  ip addr add "10.99.0.$((RANK + 1))/24" dev eth0
  i=0
  while [ $i -lt "$WORLD" ]; do
    [ $i = "$RANK" ] || ip neigh replace "10.99.0.$((i + 1))" dev eth0 nud permanent \\
      lladdr "$(printf '02:00:00:00:00:%02x' $((i + 1)))"
    i=$((i + 1))
  done
  rdma link add rxe0 type rxe netdev eth0
fi
read up _ < /proc/uptime
echo "$up" > /run/rig/up
cd "$RIG_CWD" && bash /run/rig/command > /run/rig/out 2>&1 < /dev/null
status=$?
read up _ < /proc/uptime
echo "$up" > /run/rig/end
echo $status > /run/rig/status
sync
# Writing to the isa-debug-exit port ends qemu at once.
printf '\\001' | dd of=/dev/port bs=1 seek=1281 status=none
echo o > /proc/sysrq-trigger
sleep 5
"""


def cache_dir() -> Path:
    """Where setup.sh left the image."""
    if os.environ.get("GENIE_RIG_CACHE"):
        return Path(os.environ["GENIE_RIG_CACHE"])
    if os.environ.get("XDG_CACHE_HOME"):
        return Path(os.environ["XDG_CACHE_HOME"]) / "rig"
    return HERE.parents[1] / ".cache/rig"


def missing() -> str | None:
    """Why no guest can be booted here, or None."""
    if shutil.which("qemu-system-x86_64") is None:
        return "qemu-system-x86_64 is not installed (sh tests/rig/setup.sh)"
    if not (cache_dir() / "vmlinux").exists() or not (cache_dir() / "initramfs").exists():
        return f"no guest image in {cache_dir()} (sh tests/rig/setup.sh)"
    return None


@dataclass
class Result:
    """What one guest did."""

    status: int
    output: str
    wall_s: float
    up_s: float | None = None
    end_s: float | None = None


@dataclass
class Guest:
    """One qemu process; `start()` it, then `wait(deadline)`."""

    command: str
    shares: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    rank: int = 0
    world: int = 1
    icount: str = ""
    smp: int = 1
    memory: str = "1G"
    cpu: str = "max"
    mtu: int = 4200
    tap: str = ""
    netns: str = ""
    cwd: str = field(default_factory=os.getcwd)

    def start(self) -> None:
        """Boot it."""
        self.control = Path(tempfile.mkdtemp(prefix=f"rig{self.rank}-"))
        shares = self._shares()
        env = {
            **self.env,
            "RANK": str(self.rank),
            "WORLD": str(self.world),
            "RIG_NAME": f"guest{self.rank}",
            "RIG_CWD": self.cwd,
            "RIG_MTU": str(self.mtu),
        }
        lines = "".join(f"export {key}={shlex.quote(value)}\n" for key, value in env.items())
        (self.control / "env").write_text(lines)
        (self.control / "start").write_text(START)
        (self.control / "command").write_text(self.command + "\n")
        (self.control / "shares").write_text(
            "".join(f"share{i} {mode} {cache} {path}\n" for i, (path, mode, cache) in shares)
        )
        folders = [("root", "/", "ro"), ("control", str(self.control), "rw")]
        folders += [(f"share{i}", path, mode) for i, (path, mode, _) in shares]
        self.log = (self.control / "qemu.log").open("wb")
        self.began = time.monotonic()
        self.process = subprocess.Popen(
            self._argv(folders),
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def wait(self, deadline: float) -> Result:
        """Its result, at the latest when `time.monotonic()` reaches `deadline`."""
        try:
            self.process.wait(max(0.1, deadline - time.monotonic()))
            status = int(self._read("status") or DIED)
        except subprocess.TimeoutExpired:
            status = TIMED_OUT
            self.stop()
        wall = time.monotonic() - self.began
        output = self._read("out")
        if status in (TIMED_OUT, DIED):
            output += f"\n-- console --\n{self._read('console')}\n{self._read('qemu.log')}"
        up, end = (float(text) if (text := self._read(n)) else None for n in ("up", "end"))
        return Result(status, output, wall, up, end)

    def stop(self) -> None:
        """End qemu, if it still runs."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def clean(self) -> None:
        """Drop its control folder."""
        self.stop()
        self.log.close()
        shutil.rmtree(self.control, ignore_errors=True)

    def _read(self, name: str) -> str:
        try:
            return (self.control / name).read_text(errors="replace").rstrip("\n")
        except OSError:
            return ""

    def _shares(self) -> list[tuple[int, tuple[str, str, str]]]:
        found = {os.path.realpath(path): ("rw", "mmap") for path in self.shares}
        for path in (sys.prefix, sys.base_prefix, str(HERE.parents[1])):
            path = os.path.realpath(path)
            hidden = any(path.startswith(own + "/") for own in OWN_IN_GUEST)
            if hidden and not any((path + "/").startswith(known + "/") for known in found):
                found[path] = ("ro", "loose")
        rows = [(path, mode, cache) for path, (mode, cache) in found.items()]
        return list(enumerate(rows))

    def _argv(self, folders: list[tuple[str, str, str]]) -> list[str]:
        image = cache_dir()
        threads = ",thread=multi" if self.smp > 1 and not self.icount else ""
        argv = ["ip", "netns", "exec", self.netns] if self.netns else []
        argv += ["qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none"]
        argv += ["-no-reboot", "-M", "q35,usb=off,smbus=off,sata=off", "-nic", "none"]
        argv += ["-accel", f"tcg{threads},tb-size=256", "-cpu", self.cpu]
        argv += ["-smp", str(self.smp), "-m", self.memory]
        argv += ["-kernel", str(image / "vmlinux"), "-initrd", str(image / "initramfs")]
        argv += ["-serial", f"file:{self.control}/console"]
        argv += ["-device", "isa-debug-exit,iobase=0x501,iosize=1"]
        if self.icount:
            argv += ["-icount", self.icount]
        for tag, path, mode in folders:
            only = ",readonly=on" if mode == "ro" else ""
            argv += [
                "-fsdev",
                f"local,id={tag},path={path},security_model=none,multidevs=remap{only}",
            ]
            argv += ["-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"]
        if self.tap:
            argv += ["-netdev", f"tap,id=net0,ifname={self.tap},script=no,downscript=no,vhost=off"]
            mac = f"02:00:00:00:00:{self.rank + 1:02x}"
            big = f",host_mtu={self.mtu}" if self.mtu > 1500 else ""
            argv += ["-device", f"virtio-net-pci,netdev=net0,mac={mac},romfile={big}"]
        # No CPU mitigations, no clock checks, no security modules: boot time, not safety.
        argv += [
            "-append",
            "console=ttyS0 quiet loglevel=3 panic=-1 mitigations=off nokaslr tsc=reliable "
            "no_timer_check apparmor=0 selinux=0 audit=0 random.trust_cpu=on "
            "rcupdate.rcu_expedited=1 cryptomgr.notests init_on_alloc=0",
        ]
        return argv


class Bridge:
    """A bridge with one tap a guest in a network namespace of its own, each port shapeable."""

    def __init__(self, ports: int, mtu: int, tc: str) -> None:
        self.name = f"rig{os.getpid()}"
        self._run("ip", "netns", "add", self.name)
        try:
            self._ip("link", "add", "br0", "type", "bridge")
            self._ip("link", "set", "br0", "mtu", str(mtu), "up")
            for port in range(ports):
                self._ip("tuntap", "add", f"tap{port}", "mode", "tap")
                self._ip("link", "set", f"tap{port}", "mtu", str(mtu), "txqueuelen", "10000")
                self._ip("link", "set", f"tap{port}", "master", "br0", "up")
                if tc:
                    self._run(
                        "tc", "-n", self.name, "qdisc", "replace", "dev", f"tap{port}", "root",
                        *tc.split(),
                    )  # fmt: skip
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Remove the namespace and all in it."""
        subprocess.run(["ip", "netns", "del", self.name], check=False)

    def _ip(self, *words: str) -> None:
        self._run("ip", "-n", self.name, *words)

    def _run(self, *words: str) -> None:
        subprocess.run(words, check=True)


def run(command: str, *, timeout: float = 120.0, **options: object) -> Result:
    """Run `command` in one guest; `options` are fields of `Guest`."""
    guest = Guest(command, **options)  # type: ignore[arg-type]
    guest.start()
    try:
        return guest.wait(time.monotonic() + timeout)
    finally:
        guest.clean()


def cluster(
    command: str,
    n: int,
    *,
    timeout: float = 120.0,
    tc: str = "",
    mtu: int = 4200,
    **options: object,
) -> list[Result]:
    """Run `command` in `n` guests on one bridge, each with rxe0 at 10.99.0.(rank + 1)."""
    bridge = Bridge(n, mtu, tc)
    guests = [
        Guest(command, rank=i, world=n, tap=f"tap{i}", netns=bridge.name, mtu=mtu, **options)  # type: ignore[arg-type]
        for i in range(n)
    ]
    started: list[Guest] = []
    try:
        for guest in guests:
            guest.start()
            started.append(guest)
        deadline = time.monotonic() + timeout
        return [guest.wait(deadline) for guest in guests]
    finally:
        for guest in started:
            guest.clean()
        bridge.close()


def main() -> int:
    """Parse the command line, boot, print what the guests printed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("verb", choices=["run", "cluster"])
    parser.add_argument("-n", type=int, default=2, help="guests of a cluster")
    parser.add_argument("--icount", nargs="?", const="shift=0,sleep=on", default="")
    parser.add_argument("--smp", type=int, default=1)
    parser.add_argument("--memory", default="1G")
    parser.add_argument("--mtu", type=int, default=4200)
    parser.add_argument("--tc", default="", help="root qdisc of every port of a cluster")
    parser.add_argument("--share", action="append", default=[], metavar="DIR")
    parser.add_argument("--env", action="append", default=[], metavar="K=V")
    parser.add_argument("--timeout", type=float, default=120.0)
    parser.add_argument("command", nargs="+")
    args = parser.parse_args()
    why = missing()
    if why:
        print(f"rig: {why}", file=sys.stderr)
        return 77
    command = args.command[0] if len(args.command) == 1 else shlex.join(args.command)
    options = {
        "shares": [os.getcwd(), *args.share],
        "env": dict(item.split("=", 1) for item in args.env),
        "icount": args.icount,
        "smp": args.smp,
        "memory": args.memory,
        "timeout": args.timeout,
    }
    if args.verb == "run":
        results = [run(command, **options)]
    else:
        results = cluster(command, args.n, tc=args.tc, mtu=args.mtu, **options)
    for rank, result in enumerate(results):
        tag = f"[{rank}] " if len(results) > 1 else ""
        for line in result.output.splitlines():
            print(tag + line)
        print(
            f"{tag}rig: status {result.status}, {result.wall_s:.1f} s; "
            f"guest clock {result.up_s} .. {result.end_s} s",
            file=sys.stderr,
        )
    return max(result.status for result in results)


if __name__ == "__main__":
    sys.exit(main())
