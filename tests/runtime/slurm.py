"""A Slurm cluster of network namespaces on one machine: munged, slurmctld, a slurmd a host."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest

from runtime.netns import Star

CONF = """
ClusterName=genie
SlurmctldHost={host}({root})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/ctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/ctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmctldPort=26817
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
"""


class Slurm:
    """The cluster; node n<i> is host i of `star`."""

    def __init__(self, star: Star, folder: Path) -> None:
        self.star = star
        self.folder = folder
        self.nodes = [f"n{i}" for i in range(star.n)]
        self.env = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        self._daemons: list[subprocess.Popen[bytes]] = []

    def _start(self, *command: str) -> None:
        with (self.folder / "daemons.out").open("ab") as out:
            self._daemons.append(
                subprocess.Popen(command, env=self.env, stdout=out, stderr=out, cwd="/")
            )

    def __enter__(self) -> Slurm:
        for name in ("munged", "slurmctld", "slurmd", "srun", "salloc"):
            if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") is None:
                pytest.skip(f"no {name} here (Debian: slurm-wlm, munge)")
        folder = self.folder
        (folder / "state").mkdir()
        text = CONF.format(
            host=socket.gethostname().partition(".")[0], root=self.star.root_address, folder=folder
        )
        hosts = "127.0.0.1 localhost\n"
        for i, node in enumerate(self.nodes):
            address = self.star.address(i)
            text += (
                f"NodeName={node} NodeHostname={node} NodeAddr={address} Port={26900 + i} CPUs=4\n"
            )
            hosts += f"{address} {node}\n"
        (folder / "slurm.conf").write_text(text)
        (folder / "munge.key").write_bytes(os.urandom(1024))
        (folder / "munge.key").chmod(0o600)
        for host in self.star.hosts:
            # ip-netns(8): `ip netns exec` mounts these files over /etc/hosts.
            Path(f"/etc/netns/{host}").mkdir(parents=True, exist_ok=True)
            Path(f"/etc/netns/{host}/hosts").write_text(hosts)
        self._start(
            "munged", "--force", "--foreground", f"--key-file={folder}/munge.key",
            f"--socket={folder}/munge.sock", f"--pid-file={folder}/munged.pid",
            f"--log-file={folder}/munged.log", f"--seed-file={folder}/munge.seed",
        )  # fmt: skip
        deadline = time.monotonic() + 10
        while not (folder / "munge.sock").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        self._start("slurmctld", "-D")
        for host, node in zip(self.star.hosts, self.nodes, strict=True):
            # `ip netns exec` brings a /sys of its own, without the cgroups that slurmd looks for.
            mount = (
                "cd /sys/fs/cgroup && mount -t tmpfs none . && cd /sys/fs/cgroup && "
                "for c in cpu cpuacct cpuset memory devices freezer; do "
                "mkdir $c; mount -t cgroup -o $c none $c; done; "
                "mkdir systemd; mount -t cgroup -o none,name=systemd none systemd"
            )
            self._start(
                "ip", "netns", "exec", host, "sh", "-c", f"{mount}; exec slurmd -D -N {node}"
            )
        deadline = time.monotonic() + 40
        while time.monotonic() < deadline:
            done = subprocess.run(
                ["sinfo", "-h", "-t", "idle", "-o", "%D"], env=self.env, capture_output=True,
                text=True,
            )  # fmt: skip
            if done.stdout.strip() == str(self.star.n):
                return self
            time.sleep(0.3)
        log = (folder / "daemons.out").read_text()[-2000:]
        self.__exit__()
        pytest.skip(f"Slurm did not come up: {log}")

    def __exit__(self, *exc: object) -> None:
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in self._daemons:
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        for host in self.star.hosts:
            shutil.rmtree(f"/etc/netns/{host}", ignore_errors=True)
