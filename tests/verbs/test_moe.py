"""A small mixture of experts, generated and replayed over Soft-RoCE between four hosts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import genie

from .boot import ROOT, in_guest

pytestmark = [pytest.mark.rdma, pytest.mark.slow]


def test_small_moe_over_soft_roce(tmp_path: Path) -> None:
    spec = ROOT / "workloads" / "small-moe.toml"
    trace = genie.workload(spec, output=tmp_path / "moe")
    run = {"name": "moe", "cluster": "local", "hosts": 4, "choices": None, "env": {}}
    (tmp_path / "runs.json").write_text(json.dumps([run]))
    in_guest("guest_wire.py", tmp_path, devices=4, shares=[str(tmp_path)], memory="2G", smp=2)
    result = json.loads((tmp_path / "moe.json").read_text())
    expected = genie.simulate(trace, genie.Cluster.local(4, 1))
    assert result["complete"]
    assert result["unfinished"] == result["unposted"] == 0
    assert result["messages"] == len(expected.messages)
    assert result["ops"] == len(expected.ops)
