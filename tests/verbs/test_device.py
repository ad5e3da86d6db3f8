"""The same runs on real RDMA devices (pytest --device mlx5_0 --device mlx5_1) and in the guest."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import genie

from .boot import ROOT
from .combinations import combinations, expected, nccl_of
from .guest_folder import PAIR, device_folder

# The guest boots once for this file and its neighbour; on a loaded machine that takes minutes.
pytestmark = [pytest.mark.rdma, pytest.mark.timeout(900)]


@pytest.fixture(scope="module", params=["guest", "device"])
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    named = request.config.getoption("--device")
    if request.param == "guest":
        folder = request.getfixturevalue("guest")
        return {"soft": True, **json.loads((folder / "device-results.json").read_text())}
    if len(named) < 2:
        pytest.skip("no real RDMA devices named (--device mlx5_0 --device mlx5_1)")
    folder = device_folder(tmp_path_factory.mktemp("device"))
    subprocess.run(
        [sys.executable, str(ROOT / "tests/verbs/device_runs.py"), str(folder), *named[:2]],
        env={**os.environ, "PYTHONPATH": str(Path(genie.__file__).parents[1])},
        check=True, timeout=600,
    )  # fmt: skip
    return {"soft": False, **json.loads((folder / "device-results.json").read_text())}


def test_check_measures_the_pair(results: Any) -> None:
    found = results["check"]
    rows = found["tables"]["pairs"]
    assert len(rows) == 2 and not any(row["error"] for row in rows), rows
    for row in rows:
        assert row["latency[usec]"] > 0 and row["#iterations"] >= 64
        assert row["BW peak[MB/sec]"] >= row["BW average[MB/sec]"] > 0.1
    assert {f["level"] for f in found["findings"] if f["area"] in ("reachable", "mtu")} == {"ok"}


def test_check_finds_the_cut_link(results: Any) -> None:
    if not results["soft"]:
        pytest.skip("links are cut in the guest only")
    found = results["cut"]
    rows = {row["us"].split()[0]: row for row in found["tables"]["reachable"]}
    names = {key.split()[0]: key for key in rows["0"] if key != "us"}
    assert float(rows["0"][names["1"]]) > 0
    assert rows["0"][names["2"]] == rows["1"][names["2"]] == "no"
    (line,) = [f for f in found["findings"] if f["area"] == "reachable"]
    assert line["level"] == "fail" and line["found"].startswith("1 of 3")


def test_every_combination_between_two_hosts(results: Any) -> None:
    """Per connection: the messages logged are the schedule's, in its order."""
    if "pair" not in results:
        pytest.skip("test_wire.py captures them in the guest (GENIE_RIG_LONG=1 runs them here too)")
    made = combinations(PAIR)
    cluster = genie.Cluster.local(2, 1)
    want = expected(made, cluster, nccl_of(made, 2))
    run = results["pair"]
    assert run["complete"] and run["unfinished"] == run["backwards"] == 0
    got = Counter(tuple(sizes) for sizes in run["sequences"])
    assert got == sum(want.values(), Counter())


@pytest.mark.parametrize("name", ["demo", "all_reduce-2p26"])
def test_traces_replay(results: Any, name: str) -> None:
    if name not in results:
        pytest.skip("emulated for long (GENIE_RIG_LONG=1), or no corpus here (GENIE_CORPUS)")
    run = results[name]
    assert run["complete"] and run["messages"] > 0
    assert run["unfinished"] == run["backwards"] == 0


def test_a_killed_peer_is_named(results: Any) -> None:
    """Who died; and what libibverbs said of it, where a QP noticed before the run was ended.

    The end of the worker reaches its coordinator and its peer's QP on two ways, which race.
    """
    run = results["killed"]
    assert not run["complete"] and run["seconds"] < 60
    assert "worker 1" in run["incomplete"] and "killed by SIGKILL" in run["incomplete"]
    assert any(row["worker"] == 1 for row in run["failures"]), run["failures"]
    assert run["readings"] > 4  # before and during
    failed = [row for row in run["failures"] if row["status"] == 12]
    for part in (
        "transport retry counter exceeded",
        "from rank 0 to rank 1",
        "worker 1",
        "message",
    ):
        assert all(part in row["message"] for row in failed[:1]), failed[0]
    if results["soft"] and failed:
        assert run["meanings"]["retransmit"] > 0
