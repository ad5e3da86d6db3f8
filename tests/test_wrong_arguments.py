"""Any value for any argument of a public function: it works, or a `GenieError` says why not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import genie
from genie.errors import GenieError
from genie.replay import run
from genie.replay.bench import bench
from genie.replay.nccl.schedule import p2p_group
from genie.replay.network import LinkEvent
from genie.trace import Builder, write

VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 3, 1 << 70, 0.5, -1.5, float("nan"), float("inf"), "", "x", "-1", "1",
    b"x", [], ["x"], [1, 2], [(1,)], [None], (), {}, {"x": 1}, {1: 2}, object(), int, len,
    np.zeros(3), np.array(["x"]), np.float64(2.0), np.int64(2), Path("/no/such/file"), [[]],
)  # fmt: skip

CLUSTER = genie.Cluster.preset("h100x8", hosts=2)
SMALL = genie.Cluster.local(2)
ONE = genie.schedule("all_reduce", count=1000, cluster=CLUSTER)
EXCHANGE = genie.schedule("all_to_all", count=8, cluster=SMALL)


class ReachedError(Exception):
    """All arguments were taken: what comes next would start workers."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    ranks = []
    for _ in range(2):
        ranks.append(Builder())
        ranks[-1].node("COMM_COLL", "ar", coll="all_reduce", nbytes=64)
    return write(tmp_path_factory.mktemp("set"), "t", ranks)


def calls(folder: Path) -> dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]]:
    """Function, what it is given by position, and by name; all of it right."""
    trace = genie.load(folder)
    plan = genie.plan(trace, SMALL)
    recording = genie.simulate(plan)
    tuning = genie.tune("all_reduce", count=1000, cluster=CLUSTER)
    network = genie.Network()
    made: dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = {
        "load": (genie.load, (folder,), {
            "groups": None, "elements": None, "undefined_group": None, "names": True}),
        "Trace.to_pandas": (trace.to_pandas, (), {"rank": None}),
        "Trace.plot": (trace.plot, (), {}),
        "Trace.issue_order": (trace.issue_order, (0,), {}),
        "Nccl": (genie.Nccl, (), {"version": "2.30", "env": None, "choices": None}),
        "Nccl.get": (genie.Nccl().get, ("NCCL_ALGO",), {}),
        "Nccl.get_int": (genie.Nccl().get_int, ("NCCL_NTHREADS", 1), {}),
        "Cluster.preset": (genie.Cluster.preset, ("h100x8",), {"hosts": 2, "gpu_order": None}),
        "Cluster.local": (genie.Cluster.local, (2,), {"gpus": 1}),
        "Cluster.from_nccl_graph": (genie.Cluster.from_nccl_graph, (CLUSTER.to_nccl_graph(),), {
            "hosts": 2, "like": None, "sm": None, "cpu_vendor": None, "nic_gbps": None,
            "nccl_version": None}),
        "Cluster.from_nccl_log": (genie.Cluster.from_nccl_log, ("NCCL INFO nothing",), {
            "hosts": 2, "like": None, "sm": None, "cpu_vendor": None, "nic_gbps": None,
            "nccl_version": None}),
        "Cluster.communicator": (CLUSTER.communicator, ([(0, 0), (1, 0)],), {}),
        "Cluster.sub": (CLUSTER.sub, ([0, 8],), {}),
        "Cluster.with_nccl": (CLUSTER.with_nccl, (genie.Nccl(),), {}),
        "Cluster.to_nccl_graph": (CLUSTER.to_nccl_graph, (0,), {}),
        "Cluster.to_pandas": (CLUSTER.to_pandas, ("ranks",), {}),
        "Cluster.load": (genie.Cluster.load, (folder,), {}),
        "schedule": (genie.schedule, ("all_reduce",), {
            "count": 1000, "dtype": "float32", "op": "sum", "cluster": CLUSTER, "nccl": None,
            "root": 0}),
        "schedule of splits": (genie.schedule, ("all_to_all",), {
            "splits": [[1, 2], [3, 4]], "cluster": SMALL, "drop_zeros": True}),
        "schedule of a send": (genie.schedule, ("send",), {
            "count": 1, "cluster": SMALL, "root": 0, "peer": 1}),
        "schedule_group": (genie.schedule_group, ([("all_reduce", 10, "float32")],), {
            "cluster": CLUSTER, "nccl": None}),
        "p2p_group": (p2p_group, ([(1, 8)], [(1, 8)], SMALL), {"nccl": None, "rank": 0}),
        "Schedule.messages": (ONE.messages, (0,), {"intra": True}),
        "Schedule.calls": (ONE.calls, (0,), {}),
        "Schedule.program": (ONE.program, (0,), {}),
        "Schedule.work_requests": (ONE.work_requests, (0,), {
            "devices": 1, "link_layer": "ethernet"}),
        "work_requests of an exchange": (EXCHANGE.work_requests, (0,), {
            "devices": 1, "link_layer": "ethernet"}),
        "Schedule.to_pandas": (ONE.to_pandas, ("messages",), {"rank": 0, "intra": False}),
        "Schedule.plot": (ONE.plot, (), {"rank": 0}),
        "Schedule.load": (genie.Schedule.load, (folder,), {}),
        "tune": (genie.tune, ("all_reduce",), {
            "count": 1000, "dtype": "float32", "op": "sum", "cluster": CLUSTER, "nccl": None}),
        "Tuning.load": (type(tuning).load, (folder,), {}),
        "plan": (genie.plan, (trace, SMALL), {"nccl": None, "compute": None, "gpu": None}),
        "Plan.to_pandas": (plan.to_pandas, ("traffic",), {}),
        "Plan.load": (genie.Plan.load, (folder,), {}),
        "Network": (genie.Network, (), {
            "nic_gbps": None, "latency_ns": 2000, "cts_latency_ns": 2000, "header_bytes": 0,
            "mtu": 4096, "events": ()}),
        "Network.degrade": (network.degrade, (0, 0, 1.0), {"at_ns": 0}),
        "LinkEvent": (LinkEvent, (0, 0, 0, 1.0), {}),
        "GpuModel": (genie.GpuModel, (), {
            "enabled": True, "copy_gbps": 30.0, "hop_scale": 1.0, "network_ns": 2000,
            "nvlink_gbps": 30.0}),
        "ComputeModel": (genie.ComputeModel, (1.0, 1.0), {"efficiency": 1.0}),
        "simulate": (genie.simulate, (trace, SMALL), {
            "network": None, "nccl": None, "iterations": 1, "warmup": 0, "time_scale": 1.0,
            "compute": None, "gpu": None, "progress": None, "log_messages": True}),
        "replay": (genie.replay, (trace, "local:2"), {
            "cluster": None, "nccl": None, "transport": "auto", "iterations": 1, "warmup": 0,
            "time_scale": 1.0, "compute": None, "gpu": None, "progress": None, "timeout": 60.0,
            "log_messages": True, "on_error": "raise", "options": None}),
        "bench": (bench, ("all_reduce", "local:2"), {
            "begin": 8, "end": 16, "factor": 2.0, "iterations": 1, "warmup": 0,
            "dtype": "float32", "root": 0, "gpus": 1, "cluster": None, "nccl": None,
            "transport": "auto", "timeout": 60.0, "progress": None}),
        "Recording.to_pandas": (recording.to_pandas, ("ops",), {}),
        "Recording.plot": (recording.plot, (), {"what": "auto"}),
        "Recording.column": (recording.column, ("ops", "rank"), {}),
        "Recording.communicator_ranks": (recording.communicator_ranks, ("world",), {}),
        "Recording.load": (genie.Recording.load, (folder,), {}),
        "load_truth": (genie.load_truth, (folder,), {}),
        "compare": (genie.compare, (recording, recording), {}),
    }  # fmt: skip
    return made


NAMES = (
    "load", "Trace.to_pandas", "Trace.issue_order", "Nccl", "Nccl.get", "Nccl.get_int",
    "Cluster.preset", "Cluster.local", "Cluster.from_nccl_graph", "Cluster.from_nccl_log",
    "Cluster.communicator", "Cluster.sub", "Cluster.with_nccl", "Cluster.to_nccl_graph",
    "Cluster.to_pandas", "Cluster.load", "schedule", "schedule of splits", "schedule of a send",
    "schedule_group", "p2p_group", "Schedule.messages", "Schedule.calls", "Schedule.program",
    "Schedule.work_requests", "work_requests of an exchange", "Schedule.to_pandas",
    "Schedule.plot", "Schedule.load", "tune", "Tuning.load", "plan", "Plan.to_pandas",
    "Plan.load", "Network", "Network.degrade", "LinkEvent", "GpuModel", "ComputeModel",
    "simulate", "replay", "bench", "Recording.to_pandas", "Recording.plot", "Recording.column",
    "Recording.communicator_ranks", "Recording.load", "load_truth", "compare",
)  # fmt: skip


def changed(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[str, Any, Any, Any]]:
    for i in range(len(args)):
        for value in VALUES:
            yield f"argument {i}", value, (*args[:i], value, *args[i + 1 :]), kwargs
    for name in kwargs:
        for value in VALUES:
            yield name, value, args, {**kwargs, name: value}


@pytest.mark.parametrize("name", NAMES)
def test_only_genie_errors_come_out(
    name: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    function, args, kwargs = calls(folder)[name]

    def reached(*_: Any) -> None:
        raise ReachedError

    monkeypatch.setattr(run, "_control", reached)
    monkeypatch.chdir(tmp_path)
    wrong = []
    for what, value, given, named in changed(args, kwargs):
        try:
            function(*given, **named)
        except (GenieError, ReachedError):
            pass
        except BaseException as error:
            wrong.append(f"{what}={value!r}: {type(error).__name__}: {error}")
    assert not wrong, "\n".join(wrong)
