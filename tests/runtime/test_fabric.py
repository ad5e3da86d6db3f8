"""`genie check --endpoints`: real workers that probe each other, over links that are cut."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time

import pytest

from genie.errors import InputError
from genie.replay.endpoints import parse_endpoints
from genie.replay.launchers import choose as choosing
from genie.replay.launchers.base import Children, python_environment, worker_command
from genie.replay.preflight import check_fabric
from genie.replay.preflight.pairs import bandwidth, rounds
from runtime.netns import Star, ip, needs_namespaces


@pytest.mark.parametrize("n", [2, 3, 4, 7, 16])
def test_every_pair_meets_once_and_nobody_is_in_two_pairs_of_a_round(n: int):
    workers = [3 * i + 1 for i in range(n)]
    found = list(rounds(workers))
    assert len(found) == (n - 1 if n % 2 == 0 else n)
    for pairs in found:
        busy = list(itertools.chain(*pairs))
        assert len(set(busy)) == len(busy)
    met = sorted(itertools.chain(*found))
    assert met == sorted(itertools.combinations(workers, 2))


def test_bandwidth_leaves_the_start_out():
    """A message of 1 MiB each 10 ms after a slow first one; one comes after 5 ms."""
    marks = list(range(17))
    times = [0, *(1_000_000_000 + 10_000_000 * k for k in range(16))]
    for k in range(9, 17):
        times[k] -= 5_000_000
    row = bandwidth(1 << 20, marks, times)
    assert row["iterations"] == 16 and row["bytes"] == 1 << 20
    assert row["average_mbs"] == pytest.approx(15 / 0.145)
    assert row["peak_mbs"] == pytest.approx(200)
    assert row["msg_rate_mpps"] == pytest.approx(15 / 0.145 / 1e6)
    assert bandwidth(8, [0, 1], [0, 1000])["average_mbs"] == pytest.approx(8e6 / (1 << 20))


def test_one_endpoint_is_no_fabric():
    with pytest.raises(InputError, match="two endpoints"):
        check_fabric("localhost")


def test_json_on_this_host():
    done = subprocess.run(
        [sys.executable, "-m", "genie.cli", "check", "--endpoints", "localhost/lo", "localhost/lo",
         "--seconds", "0.1", "--json"],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    document = json.loads(done.stdout)
    assert done.returncode == 0 and document["ok"], document
    rows = document["tables"]["pairs"]
    assert len(rows) == 2 and not any(row["error"] for row in rows)
    for row in rows:
        assert row["latency[usec]"] > 0 and row["#bytes"] == 65536
        assert row["BW peak[MB/sec]"] >= row["BW average[MB/sec]"] > 10
        rate = row["MsgRate[Mpps]"] * 1e6 * 65536 / (1 << 20)
        assert rate == pytest.approx(row["BW average[MB/sec]"], rel=0.01)
    assert {row["worker"] for row in document["tables"]["hosts"]} == {0, 1}


class NamespaceLauncher:
    """Starts worker i in namespace i."""

    def __init__(self, star: Star) -> None:
        self.star = star
        self.children = Children()

    def start(self, addresses, secret, timeout) -> None:  # type: ignore[no-untyped-def]
        from genie.replay.auth import secret_environment

        env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **python_environment()}
        env |= secret_environment(secret)
        for i, host in enumerate(self.star.hosts):
            command = worker_command(sys.executable, addresses, i)
            self.children.spawn(i, ["ip", "netns", "exec", host, *command], env)

    def exited(self):  # type: ignore[no-untyped-def]
        return self.children.exited()

    def stop(self, grace: float) -> None:
        self.children.stop(grace)


@pytest.fixture
def rails(monkeypatch: pytest.MonkeyPatch):
    """Three hosts with two NICs each, on two bridges that nothing joins."""
    needs_namespaces()
    with Star(3, net=71, root=True) as star:
        ip("-n", star.switch, "link", "add", "br1", "type", "bridge")
        ip("-n", star.switch, "link", "set", "br1", "up")
        for i, host in enumerate(star.hosts):
            ip("link", "add", "e1", "netns", host, "type", "veth", "peer", "name", f"q{i}",
               "netns", star.switch)  # fmt: skip
            ip("-n", host, "addr", "add", f"10.72.0.{i + 1}/24", "dev", "e1")
            ip("-n", host, "link", "set", "e1", "up")
            ip("-n", star.switch, "link", "set", f"q{i}", "master", "br1", "up")
            # A packet that comes in where its answer would not go out is dropped: no way from
            # one rail to the other through a host.
            subprocess.run(
                ["ip", "netns", "exec", host, "sysctl", "-qw", "net.ipv4.conf.all.rp_filter=1"],
                check=True,
            )
        monkeypatch.setenv("GENIE_ADDRESS", star.root_address)
        monkeypatch.setattr(choosing, "choose", lambda ends: NamespaceLauncher(star))
        yield star


@pytest.mark.netns
def test_a_cut_link_two_rails_and_an_mtu_are_found(rails: Star):
    # Host 1 does not reach host 2 on the first rail; host 2's port there is smaller, too.
    ip("-n", rails.hosts[1], "route", "add", "blackhole", "10.71.0.3/32")
    ip("-n", rails.hosts[2], "link", "set", "e0", "mtu", "1400")
    ends = parse_endpoints([f"{rails.address(i)}/e0,e1" for i in range(3)])
    began = time.monotonic()
    report = check_fabric(ends, seconds=0.1, connect=0.6)
    assert time.monotonic() - began < 60
    found = {finding.area: finding for finding in report.findings}
    assert not report.ok
    assert found["reachable"].level == "fail" and found["reachable"].found.startswith("5 of 6")
    (cut,) = [f for area, f in found.items() if area.startswith("pair ")]
    assert "1 10.71.0.2/e0 - 2 10.71.0.3/e0" in cut.area and "worker" in cut.found
    assert found["rails"].level == "warn" and "0 of 6" in found["rails"].found
    assert "rail-only" in found["rails"].found
    assert found["mtu"].level == "warn" and "1500 and 1400" in found["mtu"].found
    matrix = {row["us"]: row for row in report.tables["reachable"]}
    assert len(matrix) == 6
    assert matrix["1 10.71.0.2/e0"]["2 10.71.0.3/e0"] == "no"
    assert matrix["0 10.71.0.1/e0"]["1 10.71.0.2/e1"] == "no"
    assert float(matrix["0 10.71.0.1/e1"]["2 10.71.0.3/e1"]) > 0
    rows = [row for row in report.tables["pairs"] if row["#bytes"]]
    assert len(rows) == 10  # five links that work, both ways


@pytest.mark.netns
def test_a_host_that_goes_away_is_named_and_the_others_are_probed(rails: Star):
    rails.link(2, "down")
    ends = parse_endpoints([f"{rails.address(i)}/e0" for i in range(3)])
    report = check_fabric(ends, seconds=0, connect=0.6, timeout=8.0)
    found = {finding.area: finding for finding in report.findings}
    assert "8 s" in found["worker 2 10.71.0.3/e0"].found
    assert found["worker 0 10.71.0.1/e0"].level == "ok"
    (row, _) = report.tables["pairs"]
    assert row["latency[usec]"] > 0 and row["#bytes"] is None and not row["error"]
