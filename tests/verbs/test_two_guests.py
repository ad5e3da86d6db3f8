"""The demo trace between two kernels: two guests on one bridge, joined as torchrun starts them."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

import genie

from .boot import ROOT, rig

pytestmark = [
    pytest.mark.rdma,
    pytest.mark.netns,
    pytest.mark.skipif(os.geteuid() != 0, reason="taps and bridges need root"),
]


def test_demo_across_two_guests(tmp_path: Path) -> None:
    package = Path(genie.__file__).parents[1]
    command = (
        f"{sys.executable} -m genie.cli replay {ROOT}/workloads/demo "
        "--endpoints guest0/rxe0 guest1/rxe0 --transport verbs --timeout 150s --no-gpu-model "
        f"-o {tmp_path}/run$RANK; status=$?; "
        "cat /sys/class/infiniband/rxe0/ports/1/hw_counters/rdma_recvs; exit $status"
    )
    results = rig().cluster(
        command,
        2,
        shares=[str(tmp_path)],
        env={
            "PYTHONPATH": str(package),
            "WORLD_SIZE": "2",
            "MASTER_ADDR": "10.99.0.1",
            "MASTER_PORT": "29500",
            "GENIE_SECRET": os.urandom(32).hex(),
        },
        cwd=str(ROOT),
        timeout=float(os.environ.get("GENIE_RIG_TIMEOUT", "600")),
    )
    assert [result.status for result in results] == [0, 0], "\n".join(r.output for r in results)
    recording = genie.Recording.load(tmp_path / "run0")
    assert recording.manifest["complete"]
    # Four data-parallel pairs, both ways: every message crossed the wire between the kernels.
    sent = recording.messages[recording.messages["direction"] == 0]
    assert len(sent) and (sent["completed_ns"] > sent["posted_ns"]).all()
    receives = [int(result.output.split()[-1]) for result in results]
    assert sum(receives) == len(sent)
    assert json.dumps(recording.manifest["devices"]).count("rxe0") == 2
