"""Experiments that run: in namespaces, on the user's own hosts; and what is left when they end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import genie
from genie.cli import main
from genie.errors import InputError
from genie.experiment.links import LinkState
from genie.experiment.run import ExperimentError
from genie.experiment.testbeds.namespaces import Namespaces
from genie.experiment.testbeds.shaping import in_namespace
from genie.experiment.testbeds.shell import FabricError
from genie.replay.record_health import cpu_limits
from genie.replay.recording import Recording
from runtime.netns import needs_namespaces

ROOT = Path(__file__).parents[2]


def namespaces_of(pid: int) -> list[str]:
    done = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    return [line.split()[0] for line in done.stdout.splitlines() if f"genie{pid}x" in line]


def local(tmp_path: Path, **more):
    """An experiment on this machine's loopback, with commands that leave a trail."""
    log = tmp_path / "log"
    spec = {
        "name": "trail",
        "repetitions": 2,
        "on_cpu_limit": "keep",
        "testbed": {
            "network": "commands",
            "endpoints": ["localhost/lo", "localhost/lo"],
            "rate": "10gbit",
            "setup": [f"echo up >> {log}"],
            "teardown": [f"echo down >> {log}"],
        },
        "workload": {"collective": "all_reduce", "sizes": ["64K"], "iterations": 2},
        "conditions": [
            {
                "name": "a",
                "before": [f'echo "+ $GENIE_RUN $GENIE_RATE $GENIE_PHASE" >> {log}'],
                "after": [f"echo - >> {log}"],
                "changes": [{"from_run": 2, "rate": "1gbit"}],
            }
        ],
    }
    return spec | more, log


def test_own_hosts_and_commands(tmp_path):
    spec, log = local(tmp_path)
    result = genie.experiment(spec, output=tmp_path / "out")
    assert log.read_text().splitlines() == [
        "up", "+ 1  ", "-", "+ 2 1gbit from run 2", "-", "down",
    ]  # fmt: skip
    assert result.complete and [run.repetition for run in result.runs] == [1, 2]
    document = json.loads((tmp_path / "out/summary.json").read_text())
    assert document["complete"] and len(document["summary"]) == 2
    # The simulation is told the rate that the specification states, and no change.
    assert document["network"]["a"]["nic_gbps"] == 1.25
    model = {row["phase"]: row["simulated"] for row in document["summary"]}
    assert model[""] == model["from run 2"] > 0
    for run in document["runs"]:
        rec = Recording.load(tmp_path / "out" / run["folder"])
        assert rec.complete and rec.manifest["experiment"]["run"] == run["number"]
        assert len(rec.counters) > 0
        busbw = rec.collectives()["busbw"][rec.collectives()["iteration"] >= 0]
        assert run["values"] == {"all_reduce 64 KiB": pytest.approx(busbw.tolist())}
    page = (tmp_path / "out/report.html").read_text()
    assert "data:image/png;base64," in page and "from run 2" in page
    assert {p.suffix for p in (tmp_path / "out/figures").iterdir()} == {".pdf", ".svg", ".png"}
    with pytest.raises(genie.GenieError, match="an experiment is there already"):
        genie.experiment(spec, output=tmp_path / "out")


def test_commands_that_fail_stop_it_and_the_teardown_runs(tmp_path):
    spec, log = local(tmp_path)
    spec["conditions"][0]["before"] = [f"echo + >> {log}", "echo no switch here >&2; exit 7"]
    with pytest.raises(FabricError, match=r"exit 7.*failed \(7\): no switch here") as caught:
        genie.experiment(spec, output=tmp_path / "out")
    assert log.read_text().splitlines() == ["up", "+", "-", "down"]
    assert caught.value.result.runs[0].status == "failed"
    document = json.loads((tmp_path / "out/summary.json").read_text())
    assert not document["complete"] and "no switch here" in document["stopped"]


def test_what_cannot_be_is_refused_before_anything_is_built(tmp_path):
    def fails(message: str, **changes) -> None:
        spec, log = local(tmp_path)
        for section, fields in changes.items():
            spec[section] = spec[section] | fields if isinstance(fields, dict) else fields
        with pytest.raises(InputError, match=message):
            genie.experiment(spec, output=tmp_path / "out")
        assert not log.exists() and not (tmp_path / "out").exists()

    fails("has 3 hosts, the testbed has 2", testbed={"cluster": "local:3"})
    fails("a collective or a trace", workload={"trace": "x"})
    fails("fly", workload={"collective": "fly"})
    fails("changed by commands", conditions=[{"name": "a", "links": {"h0": {"rate": "1mbit"}}}])
    fails("confidence 2", confidence=2.0)
    fails("repetitions 0", repetitions=0, conditions=[{"name": "a"}])
    fails(
        "expected star:HOSTS",
        testbed={"network": "cloud:4", "endpoints": [], "setup": [], "teardown": []},
    )
    fails("makes its own hosts", testbed={"network": "star:4"})


def test_cpu_limited_runs_are_refused(tmp_path, monkeypatch, capsys):
    """The first such run is marked and ends the experiment, unless they are to be kept."""
    module = sys.modules[cpu_limits.__module__]
    monkeypatch.setattr(module, "WAIT", -1.0)  # any wait is too long
    spec, log = local(tmp_path, on_cpu_limit="stop")
    with pytest.raises(ExperimentError, match=r"run 1 \(a\) measured the CPU, not the network"):
        genie.experiment(spec, output=tmp_path / "out")
    document = json.loads((tmp_path / "out/summary.json").read_text())
    (run,) = document["runs"]
    assert run["status"] == "cpu-limited" and "had no CPU" in run["limits"][0]
    assert document["summary"] == [] and not document["complete"]
    assert log.read_text().splitlines()[-1] == "down"
    file = tmp_path / "spec.json.toml"
    file.write_text(
        'repetitions = 2\n[testbed]\nnetwork = "commands"\n'
        'endpoints = ["localhost/lo", "localhost/lo"]\n'
        '[workload]\ncollective = "all_reduce"\nsizes = ["64K"]\n'
    )
    assert main(["experiment", str(file), "--json"]) == 1
    said = capsys.readouterr()
    assert len(json.loads(said.out)["runs"]) == 1 and "--allow-cpu-limited" in said.err
    assert main(["experiment", str(file), "--json", "--allow-cpu-limited"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [r["status"] for r in document["runs"]] == ["cpu-limited"] * 2 and document["complete"]


@pytest.mark.netns
def test_star_degraded_half_way(tmp_path, capsys):
    """Figure 1 in small: the real runs drop, the simulation does not; nothing is left."""
    needs_namespaces()
    out = tmp_path / "out"
    code = main(
        ["experiment", "figure1", "-o", str(out), "--repetitions", "2", "--allow-cpu-limited",
         "--set", "testbed.network=star:3", "--set", "workload.iterations=1",
         "--set", 'workload.sizes=["1M"]', "--set", "workload.warmup=0",
         "--set",
         'conditions=[{name="nic", changes=[{from_run=2, links={h2={rate="25mbit"}}}]}]'],
    )  # fmt: skip
    assert code == 0, capsys.readouterr().err
    document = json.loads((out / "summary.json").read_text())
    healthy, slow = document["summary"]
    assert (healthy["phase"], slow["phase"]) == ("", "from run 2")
    assert healthy["simulated"] == slow["simulated"]
    # Shaped to 100 and 25 Mbit/s: loose bounds, because other work shares this machine.
    assert 0.6 < healthy["mean"] / healthy["simulated"] < 1.15
    assert slow["mean"] < 0.45 * healthy["simulated"]
    first, second = document["runs"]
    for run in (first, second):
        carried = sum(v for k, v in run["counters"].items() if k.endswith("tx bytes"))
        # A ring of 3: every host sends 4/3 of the size, and headers.
        assert 1.02 < carried / (3 * (4 / 3) * (1 << 20)) < 1.3
    assert namespaces_of(os.getpid()) == []
    assert (out / "figures/runs-all_reduce-1-mib.png").stat().st_size > 5000


@pytest.mark.netns
def test_leaf_spine_spreads_flows_by_the_seed():
    """ECMP: the hash seed decides which spine a flow takes, and the same seed decides the same."""
    needs_namespaces()
    send = (
        "import socket, sys\n"
        "for port in range(40):\n"
        "    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        "    s.bind(('0.0.0.0', 20000 + port)); s.sendto(bytes(1000), (sys.argv[1], 9))\n"
    )
    with Namespaces("leaf-spine:2x2x1") as net:
        states = {(link.name, w): LinkState(1e9) for link in net.links for w in ("tx", "rx")}
        host = net.endpoints[0].removeprefix("netns:").partition("/")[0]
        shares = []
        for seed in (1, 2, 3, 1):
            try:
                net.apply(states, 0, seed)
            except FabricError as exc:
                pytest.skip(str(exc))
            before = net.counters()
            subprocess.run(
                in_namespace(host, sys.executable, "-c", send, "198.18.1.10"), check=True
            )
            after = net.counters()
            shares.append(
                [after[f"l0s{s}.tx packets"] - before[f"l0s{s}.tx packets"] for s in (0, 1)]
            )
        # Neighbour discovery adds a packet or two at first.
        assert all(40 <= sum(row) <= 46 and min(row) > 4 for row in shares)
        assert np.ptp([row[0] for row in shares[:3]]) > 0
        assert abs(shares[0][0] - shares[3][0]) <= 3
        with pytest.raises(InputError, match="hash_seed 0"):
            net.apply(states, 0, 0)
    assert namespaces_of(os.getpid()) == []


@pytest.mark.netns
def test_links_lose_and_are_slow_as_told():
    """Loss is of single packets and of the share asked for; MTU changes; delay says it cannot."""
    needs_namespaces()
    send = (
        "import socket, sys\n"
        "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        "[s.sendto(bytes(100), ('198.18.0.2', 9)) for _ in range(4000)]\n"
    )
    with Namespaces("star:2") as net:
        states = {(link.name, w): LinkState() for link in net.links for w in ("tx", "rx")}
        lossy = states | {("h1", "rx"): LinkState(loss=0.25)}
        net.apply(lossy, 9000, None)
        a, b = (end.removeprefix("netns:").partition("/")[0] for end in net.endpoints)
        received = in_namespace(b, "cat", "/proc/net/snmp")
        before = subprocess.run(received, capture_output=True, text=True).stdout
        subprocess.run(in_namespace(a, sys.executable, "-c", send), check=True)
        after = subprocess.run(received, capture_output=True, text=True).stdout
        # Nobody listens, so each datagram that arrives counts as NoPorts.
        arrived = noports(after) - noports(before)
        # Binomial(4000, 0.75): 6 standard deviations.
        assert abs(arrived - 3000) < 165
        mtu = subprocess.run(
            in_namespace(a, "cat", "/sys/class/net/e0/mtu"), capture_output=True, text=True
        )
        assert mtu.stdout.strip() == "9000"
        net.apply(states, 0, None)
        before = subprocess.run(received, capture_output=True, text=True).stdout
        subprocess.run(in_namespace(a, sys.executable, "-c", send), check=True)
        after = subprocess.run(received, capture_output=True, text=True).stdout
        assert noports(after) - noports(before) == 4000
        with pytest.raises(InputError, match="a star has one way only"):
            net.apply(states, 0, 7)


def noports(snmp: str) -> int:
    names, values = (line.split() for line in snmp.splitlines() if line.startswith("Udp:"))
    return int(values[names.index("NoPorts")])


@pytest.mark.netns
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_however_it_ends(tmp_path, how):
    needs_namespaces()
    process = subprocess.Popen(
        [sys.executable, "-m", "genie.cli", "experiment", "figure1", "-o", str(tmp_path / "out"),
         "--testbed", "star:3", "--allow-cpu-limited", "--set", "testbed.rate=5mbit"],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 60
        hosts: list[str] = []
        while time.monotonic() < deadline and process.poll() is None:
            hosts = [n for n in namespaces_of(process.pid) if "-h" in n]
            if len(hosts) == 3 and all(inside(host) for host in hosts):
                break
            time.sleep(0.05)
        assert len(hosts) == 3, process.communicate()
        time.sleep(0.5)
        process.send_signal(how)
        _, err = process.communicate(timeout=30)
    finally:
        process.kill()
    deadline = time.monotonic() + 10
    while namespaces_of(process.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert namespaces_of(process.pid) == []
    if how != signal.SIGKILL:
        assert process.returncode == 1 and "interrupted" in err and "Traceback" not in err
        document = json.loads((tmp_path / "out/summary.json").read_text())
        assert not document["complete"] and document["runs"][-1]["status"] == "failed"


def inside(namespace: str) -> list[str]:
    done = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True)
    return done.stdout.split()
