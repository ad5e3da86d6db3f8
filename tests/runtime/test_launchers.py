"""Workers on other hosts (network namespaces): mpirun, ssh, joining; what fails and how."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import genie
from genie.errors import GenieError, InputError, LaunchError
from genie.replay.auth import new_secret
from genie.replay.endpoints import parse_endpoints
from genie.replay.launchers.choose import choose, listen_address
from genie.replay.launchers.join import (
    Role,
    coordinator_address,
    expand_nodes,
    role,
    worker_index,
)
from genie.replay.launchers.local import LocalLauncher
from genie.replay.launchers.mpirun import MpirunLauncher, find_mpirun
from genie.replay.launchers.srun import SrunLauncher
from genie.replay.launchers.ssh import SshLauncher
from runtime.netns import Star, needs_namespaces
from runtime.steps import steps, write_steps

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def star():
    needs_namespaces()
    with Star(3, root=True) as made:
        yield made


@pytest.fixture
def mpi(star, tmp_path, monkeypatch):
    """Open MPI whose launch agent enters the namespace that has the host's address."""
    if find_mpirun() is None:
        pytest.skip("no Open MPI here")
    agent = tmp_path / "agent.sh"
    agent.write_text(
        "#!/bin/sh\nhost=$1; shift\ni=$((${host##*.}-1))\n"
        f'exec ip netns exec {star.name}-h$i sh -c "$*"\n'
    )
    agent.chmod(0o755)
    monkeypatch.setenv("OMPI_MCA_plm_rsh_agent", str(agent))
    monkeypatch.setenv("OMPI_MCA_oob_tcp_if_include", f"10.{star.net}.0.0/24")
    monkeypatch.setenv("GENIE_LAUNCHER", "mpirun")
    return star


@pytest.fixture
def ssh(star, tmp_path, monkeypatch):
    """An sshd in every namespace, and a key that opens it."""
    sshd = shutil.which("sshd", path=f"/usr/sbin:{os.environ['PATH']}")
    if sshd is None or shutil.which("ssh") is None:
        pytest.skip("no ssh and sshd here")
    os.makedirs("/run/sshd", exist_ok=True)
    for name in ("host", "user"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name)], check=True
        )
    config = tmp_path / "sshd_config"
    config.write_text(
        f"HostKey {tmp_path}/host\nAuthorizedKeysFile {tmp_path}/user.pub\nStrictModes no\n"
        "UsePAM no\nPermitRootLogin prohibit-password\nPidFile none\nMaxStartups 64\n"
    )
    daemons = [star.run(i, [sshd, "-D", "-f", str(config)]) for i in range(star.n)]
    monkeypatch.setenv(
        "GENIE_SSH_OPTIONS",
        f"-i {tmp_path}/user -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null "
        "-o LogLevel=ERROR",
    )
    monkeypatch.setenv("GENIE_LAUNCHER", "ssh")
    time.sleep(0.5)
    yield star
    for daemon in daemons:
        daemon.terminate()
        daemon.communicate()


def endpoints(star: Star) -> list[str]:
    return [f"{star.address(i)}/e0" for i in range(star.n)]


def bytes_on_wire(star: Star, i: int) -> int:
    done = subprocess.run(
        ["ip", "netns", "exec", star.hosts[i], "cat", "/sys/class/net/e0/statistics/tx_bytes"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return int(done.stdout)


def check_real_run(star: Star, tmp_path: Path) -> None:
    trace = steps(tmp_path / "trace", ranks=6, steps=20, nbytes=1 << 20)
    plan = genie.plan(trace, genie.Cluster.local(3, 2))
    before = [bytes_on_wire(star, i) for i in range(3)]
    rec = genie.replay(trace, endpoints(star), timeout=30, progress=False)
    sent = [bytes_on_wire(star, i) - b for i, b in enumerate(before)]
    assert rec.complete and (rec.messages["status"] == 0).all()
    host = np.asarray(plan.cluster.host_of)[plan.connections["src"]]
    for i in range(3):
        want = plan.connection_traffic["nbytes"][host == i].sum()
        # Headers, acknowledgements, control: some per cent.
        assert want < sent[i] < 1.25 * want + 300_000
    assert rec.manifest["devices"] == [["e0"]] * 3
    assert [w["status"] for w in rec.manifest["workers"]] == ["done"] * 3
    found = rec.counter_changes()
    tx = found[found["name"] == rec.labels["counters", "name"].index("tx_bytes")]
    assert len(tx) == 3 and (tx["delta"] > want).all()
    assert star_workers(star) == []


def star_workers(star: Star) -> list[int]:
    """Workers that are left in the namespaces."""
    out = []
    for pid in star.pids():
        try:
            if b"genie.replay.worker" in Path(f"/proc/{pid}/cmdline").read_bytes():
                out.append(pid)
        except OSError:
            continue
    return out


def test_mpirun_over_namespaces(mpi, tmp_path):
    check_real_run(mpi, tmp_path)


def test_ssh_over_namespaces(ssh, tmp_path):
    check_real_run(ssh, tmp_path)


@pytest.mark.parametrize("how", ["mpi", "ssh"])
def test_secret_is_on_no_command_line_anywhere(how, request, tmp_path, monkeypatch):
    star = request.getfixturevalue(how)
    secret = new_secret()
    import genie.replay.control

    monkeypatch.setattr(sys.modules["genie.replay.control"], "new_secret", lambda: secret)
    seen: list[str] = []
    stop = threading.Event()

    def watch():
        while not stop.is_set():
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    text = path.read_bytes()
                except OSError:
                    continue
                if secret.hex().encode() in text:
                    seen.append(text.decode())
            time.sleep(0.01)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        trace = steps(tmp_path / "trace", ranks=3, steps=5)
        rec = genie.replay(trace, endpoints(star), timeout=30, progress=False)
    finally:
        stop.set()
        thread.join()
    assert rec.complete and seen == []


@pytest.mark.parametrize("how", ["mpi", "ssh"])
def test_killed_worker_on_another_host(how, request, tmp_path):
    star = request.getfixturevalue(how)
    trace = steps(tmp_path / "trace", ranks=6, steps=100, comp_ns=100_000_000)
    at: list[float] = []

    def strike():
        deadline = time.monotonic() + 40
        while time.monotonic() < deadline:
            found = star_workers(star)
            python = [p for p in found if len(os.listdir(f"/proc/{p}/fd")) >= 9]
            if len(python) == 3:
                time.sleep(2.5)  # let the run begin, also on a busy machine
                victim = subprocess.run(
                    ["ip", "netns", "pids", star.hosts[1]], capture_output=True, text=True
                ).stdout.split()
                at.append(time.monotonic())
                os.kill(next(p for p in python if str(p) in victim), signal.SIGKILL)
                return
            time.sleep(0.1)

    thread = threading.Thread(target=strike)
    thread.start()
    rec = genie.replay(trace, endpoints(star), timeout=30, progress=False, on_error="record")
    seconds = time.monotonic() - at[0]
    thread.join()
    assert not rec.complete and seconds < 5
    assert "worker 1" in rec.manifest["incomplete"] and "ranks 2-3" in rec.manifest["incomplete"]
    assert set(np.unique(rec.ops["rank"])) == {0, 1, 4, 5}
    assert star_workers(star) == []


@pytest.mark.parametrize("how", ["mpi", "ssh"])
def test_workers_on_other_hosts_end_when_the_command_is_killed(how, request, tmp_path):
    star = request.getfixturevalue(how)
    prefix = write_steps(tmp_path / "trace", ranks=6, steps=100, comp_ns=100_000_000)
    command = subprocess.Popen(
        [sys.executable, "-m", "genie.cli", "replay", str(prefix), "--endpoints", *endpoints(star)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        python = [p for p in star_workers(star) if len(os.listdir(f"/proc/{p}/fd")) >= 9]
        if len(python) >= 3:
            break
        time.sleep(0.1)
    time.sleep(1)
    begin = time.monotonic()
    command.kill()
    command.wait()
    while star_workers(star) and time.monotonic() < begin + 20:
        time.sleep(0.05)
    assert time.monotonic() - begin < 5


def test_host_cut_off(ssh, tmp_path):
    """The link of one host goes down in the middle of a run."""
    trace = steps(tmp_path / "trace", ranks=3, steps=200, comp_ns=50_000_000)
    at: list[float] = []

    def cut():
        deadline = time.monotonic() + 40
        while time.monotonic() < deadline:
            python = [p for p in star_workers(ssh) if len(os.listdir(f"/proc/{p}/fd")) >= 9]
            if len(python) >= 3:
                time.sleep(1)
                ssh.link(2, "down")
                at.append(time.monotonic())
                return
            time.sleep(0.1)

    thread = threading.Thread(target=cut)
    thread.start()
    try:
        rec = genie.replay(trace, endpoints(ssh), timeout=4, progress=False, on_error="record")
        seconds = time.monotonic() - at[0]
    finally:
        thread.join()
        ssh.link(2, "up")
    assert not rec.complete and seconds < 4 + 5
    assert "nothing moved for 4.05 s" in rec.manifest["incomplete"]
    assert re.search(
        r"rank 2 of worker 2 \(.*\), which does not answer any more, is waited for by rank",
        rec.manifest["incomplete"],
    )
    assert "nothing came from worker 2" in rec.manifest["incomplete"]
    assert {0, 1} <= set(np.unique(rec.ops["rank"]))
    deadline = time.monotonic() + 10
    while star_workers(ssh) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert star_workers(ssh) == []


def test_unreachable_host_is_named(star, tmp_path, monkeypatch):
    monkeypatch.setenv("GENIE_LAUNCHER", "ssh")
    trace = steps(tmp_path / "trace", ranks=2, steps=1)
    begin = time.monotonic()
    with pytest.raises(LaunchError) as caught:
        genie.replay(trace, [f"10.{star.net}.0.199", f"10.{star.net}.0.198"], timeout=3)
    assert f"10.{star.net}.0.19" in str(caught.value) and time.monotonic() - begin < 15
    with pytest.raises(LaunchError, match=r"no-such-host\.invalid.*GENIE_ADDRESS"):
        genie.replay(trace, ["no-such-host.invalid", "localhost"], timeout=3)


def test_coordinator_listens_on_the_route_to_the_workers(star):
    ends = parse_endpoints(endpoints(star))
    assert listen_address(ends) == star.root_address
    assert listen_address(parse_endpoints("local:2")) == "127.0.0.1"


def test_choice_of_launcher(monkeypatch, tmp_path):
    for name in list(os.environ):
        if name.startswith(("SLURM_", "OMPI_", "GENIE_LAUNCHER")):
            monkeypatch.delenv(name)
    local, remote = parse_endpoints("local:2"), parse_endpoints(["n1", "n2"])
    assert isinstance(choose(local), LocalLauncher)
    for name in ("srun", "mpirun", "ssh"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert isinstance(choose(remote), MpirunLauncher)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert isinstance(choose(remote), SrunLauncher)
    assert isinstance(choose(local), LocalLauncher)
    monkeypatch.delenv("SLURM_JOB_ID")
    (tmp_path / "mpirun").unlink()
    assert isinstance(choose(remote), SshLauncher)
    assert isinstance(choose(parse_endpoints(["me@n1", "me@n2"])), SshLauncher)
    with pytest.raises(LaunchError, match="not on n1"):
        choose(remote, "local")
    with pytest.raises(InputError, match="pigeon"):
        choose(remote, "pigeon")


def test_roles():
    torch = {"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "n0", "MASTER_PORT": "29500"}
    assert role(torch) == Role("torchrun", 3, 4)
    assert coordinator_address(role(torch), torch) == ("n0", 29500)
    agent = torch | {"TORCHELASTIC_USE_AGENT_STORE": "True"}
    assert coordinator_address(role(agent), agent) == ("n0", 29501)
    slurm = {
        "SLURM_JOB_ID": "12", "SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_NTASKS": "3",
        "SLURM_STEP_NODELIST": "n[09-11]",
    }  # fmt: skip
    assert role(slurm) == Role("srun", 1, 3)
    host, port = coordinator_address(role(slurm), slurm)
    assert host == "n09" and 21_000 <= port < 31_000
    assert role(slurm | {"SLURM_STEP_ID": "4294967291"}) is None  # the batch script
    ompi = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}
    assert role(ompi) == Role("mpirun", 0, 2)
    with pytest.raises(LaunchError, match="GENIE_COORDINATOR=HOST:PORT"):
        coordinator_address(role(ompi), ompi)
    one_host = ompi | {"OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_NAMESPACE": "x"}
    assert coordinator_address(role(one_host), one_host)[0] == "127.0.0.1"
    told = ompi | {"GENIE_COORDINATOR": "[fe80::1]:5000"}
    assert coordinator_address(role(told), told) == ("fe80::1", 5000)
    with pytest.raises(LaunchError, match="expected HOST:PORT"):
        coordinator_address(role(ompi), ompi | {"GENIE_COORDINATOR": "n1"})
    assert role({"PMI_RANK": "1", "PMI_SIZE": "2"}) == Role("hydra", 1, 2)
    assert role({"PMI_RANK": "0", "PMI_SIZE": "1"}) is None
    assert role({}) is None and role(torch | {"GENIE_LAUNCHER": "local"}) is None
    assert worker_index({"SLURM_PROCID": "5"}) == 5
    with pytest.raises(LaunchError):
        worker_index({})


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ["n1"]),
        ("n1,m2", ["n1", "m2"]),
        ("n[1-3,7]", ["n1", "n2", "n3", "n7"]),
        ("a[08-10]-b,c", ["a08-b", "a09-b", "a10-b", "c"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
    ],
)
def test_slurm_node_lists(text, names):
    assert list(expand_nodes(text)) == names


def test_joining_with_torchrun_variables(star, tmp_path):
    """Three processes on three hosts make the same call; the first one has the Recording."""
    prefix = write_steps(tmp_path / "trace", ranks=6, steps=10)
    env = {
        **os.environ, "WORLD_SIZE": "3", "MASTER_ADDR": star.address(0), "MASTER_PORT": "29511",
        "GENIE_SECRET": new_secret().hex(), "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    command = [sys.executable, "-m", "genie.cli", "replay", str(prefix), "--timeout", "30s"]
    command += ["-o", str(tmp_path / "run"), "--endpoints", *endpoints(star)]
    jobs = [star.run(i, command, env={**env, "RANK": str(i)}, cwd=ROOT) for i in (2, 1, 0)]
    said = [job.communicate(timeout=60) for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0, 0], said
    assert "all_reduce" in said[2][0] and said[0][0] == said[1][0] == ""
    rec = genie.Recording.load(tmp_path / "run")
    assert rec.complete and len(np.unique(rec.ops["rank"])) == 6
    assert rec.manifest["endpoints"] == endpoints(star)


def test_joining_under_mpirun_on_one_host(tmp_path):
    if find_mpirun() is None:
        pytest.skip("no Open MPI here")
    prefix = write_steps(tmp_path / "trace", ranks=4, steps=5)
    done = subprocess.run(
        [find_mpirun(), "--allow-run-as-root", "--oversubscribe", "-np", "2", "-x", "GENIE_SECRET",
         sys.executable, "-m", "genie.cli", "replay", str(prefix), "--endpoints", "local:2",
         "-o", str(tmp_path / "run")],
        capture_output=True, text=True, cwd=ROOT, timeout=90,
        env={**os.environ, "GENIE_SECRET": new_secret().hex()},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("all_reduce") == 1
    assert genie.Recording.load(tmp_path / "run").complete


def test_joining_needs_a_secret_and_equal_numbers(tmp_path, monkeypatch):
    trace = steps(tmp_path / "trace", ranks=6, steps=1)
    for name, value in {
        "RANK": "0", "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29512"
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("GENIE_SECRET", raising=False)
    with pytest.raises(InputError, match=r"3 processes.*2 endpoints"):
        genie.replay(trace, "local:2")
    with pytest.raises(GenieError, match="GENIE_SECRET"):
        genie.replay(trace, "local:3")


def test_port_that_is_taken_is_named(tmp_path, monkeypatch):
    """Process 0 of a joined job cannot listen where the others will call."""
    trace = steps(tmp_path / "trace", ranks=2, steps=1)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for name, value in {
            "RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
            "GENIE_SECRET": new_secret().hex(),
        }.items():  # fmt: skip
            monkeypatch.setenv(name, value)
        with pytest.raises(LaunchError, match=f"127.0.0.1 port {port}: Address already in use"):
            genie.replay(trace, "local:2")


def test_half_open_strangers_do_not_stop_a_run(star, tmp_path, monkeypatch):
    """Connections that say nothing, to the coordinator and to workers' data ports."""
    monkeypatch.setenv("GENIE_LAUNCHER", "local")
    crowd: list[socket.socket] = []
    stop = threading.Event()

    def crowd_in():
        while not stop.is_set() and len(crowd) < 300:
            for port in listening():
                with contextlib.suppress(OSError):
                    sock = socket.create_connection(("127.0.0.1", port), timeout=0.2)
                    crowd.append(sock)
                    if len(crowd) % 2:
                        sock.sendall(bytes(64))
            time.sleep(0.02)

    def listening() -> list[int]:
        mine = {os.getpid(), *map(int, children())}
        done = subprocess.run(["ss", "-Hltnp"], capture_output=True, text=True)
        found = []
        for line in done.stdout.splitlines():
            pids = {int(pid) for pid in re.findall(r"pid=(\d+)", line)}
            if pids & mine:
                found.append(int(line.split()[3].rpartition(":")[2]))
        return found

    def children() -> list[str]:
        return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()

    thread = threading.Thread(target=crowd_in)
    thread.start()
    try:
        trace = steps(tmp_path / "trace", ranks=4, steps=5)
        rec = genie.replay(trace, "local:2", timeout=30, progress=False)
    finally:
        stop.set()
        thread.join()
        for sock in crowd:
            sock.close()
    assert rec.complete and len(crowd) > 10
    strangers = sum(w["strangers_refused"] for w in rec.manifest["workers"])
    assert sum(rec.manifest["rejected_peers"].values()) + strangers > 0


def test_slow_link_is_measured_not_fatal(ssh, tmp_path):
    """One host's link at 1 % of the others' rate: the run ends, and its ring is that slow."""
    trace = steps(tmp_path / "trace", ranks=3, steps=4, comp_ns=1_000_000, nbytes=1 << 20)
    for i in range(3):
        ssh.shape(i, "1000mbit")
    fast = genie.replay(trace, endpoints(ssh), timeout=30, progress=False)
    ssh.shape(1, "10mbit")
    try:
        slow = genie.replay(trace, endpoints(ssh), timeout=30, progress=False)
    finally:
        ssh.shape(1, "1000mbit")
    assert fast.complete and slow.complete
    # A ring of 3 sends 4/3 of the size over each link; at 10 Mbit/s that is 1.1 s a step.
    ideal = 4 * (4 / 3) * (1 << 20) * 8 / 10e6 * 1e9
    assert 0.9 * ideal < slow.steps()["time_ns"][0] < 1.6 * ideal
    assert slow.steps()["time_ns"][0] > 10 * fast.steps()["time_ns"][0]


def test_five_per_cent_loss_is_measured_not_fatal(ssh, tmp_path):
    """Every twentieth packet to one host is dropped, by nftables: TCP gets there, and it shows."""
    if shutil.which("nft") is None:
        pytest.skip("no nft here to drop packets with")
    rules = (
        "table ip genie {\n chain in {\n  type filter hook input priority 0;\n"
        "  tcp dport != 22 numgen random mod 100 < 5 drop\n }\n}\n"
    )
    done = subprocess.run(
        ["ip", "netns", "exec", ssh.hosts[1], "nft", "-f", "-"],
        input=rules, capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        pytest.skip(f"this kernel's nftables drops no random packets: {done.stderr[:200]}")
    trace = steps(tmp_path / "trace", ranks=3, steps=10, comp_ns=1_000_000, nbytes=1 << 20)
    try:
        rec = genie.replay(trace, endpoints(ssh), timeout=60, progress=False)
    finally:
        subprocess.run(
            ["ip", "netns", "exec", ssh.hosts[1], "nft", "delete", "table", "ip", "genie"],
            check=True,
        )
    assert rec.complete
    resent = rec.counters[rec.column("counters", "name") == "RetransSegs"]
    assert resent["delta"].sum() > 10
