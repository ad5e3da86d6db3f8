"""Runs on two RDMA devices of this machine: the guest's, or real ones (pytest --device).

    device_runs.py FOLDER DEVICE DEVICE [--soft]

FOLDER/device.json lists traces; results go to FOLDER/device-results.json. With --soft the devices
are Soft-RoCE on devices.sh's bridge, so that a link can be cut with tc.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import genie
from genie.replay.launchers.fork import ForkLauncher
from genie.replay.preflight import check_fabric
from verbs.fork_launcher import use_forks


def replay(run: dict[str, Any], folder: Path, ends: list[str]) -> dict[str, Any]:
    recording = genie.replay(
        genie.load(folder / run["path"]),
        ends,
        cluster=genie.Cluster.local(2, run["ranks"] // 2),
        nccl=genie.Nccl(choices=run["choices"]) if run.get("choices") else None,
        transport="verbs",
        timeout=150.0,
        progress=False,
        gpu=genie.GpuModel.off(),
        time_scale=0.0,
        counter_interval=0.2,
    )
    messages = recording.messages
    sequences: dict[str, list[int]] = {}
    for row in messages[messages["direction"] == 0]:
        if row["connection"] >= 0:
            key = f"{row['rank']} {row['peer']} {row['channel']} {row['connection']}"
            sequences.setdefault(key, []).append(int(row["nbytes"]))
    return {
        "complete": bool(recording.manifest["complete"]),
        "ops": len(recording.ops),
        "messages": len(messages),
        "unfinished": int((messages["completed_ns"] < 0).sum()),
        "backwards": int((messages["completed_ns"] < messages["posted_ns"]).sum()),
        "sequences": list(sequences.values()),
        "summary": recording.summary(),
    }


def failing(folder: Path, ends: list[str], strike: Any, env: dict[str, str]) -> dict[str, Any]:
    """A long run that something ends; what the Recording says of it."""
    began = time.monotonic()
    watch = threading.Thread(target=strike, daemon=True)
    watch.start()
    recording = genie.replay(
        genie.load(folder / "long"),
        ends,
        cluster=genie.Cluster.local(2, 1),
        nccl=genie.Nccl(env=env),
        transport="verbs",
        timeout=60.0,
        progress=False,
        on_error="record",
        counter_interval=0.1,
    )
    watch.join(60.0)
    meanings: dict[str, int] = {}
    labels = recording.labels["counters", "meaning"]
    for row in recording.counter_changes():
        name = labels[row["meaning"]]
        meanings[name] = meanings.get(name, 0) + int(row["delta"])
    times = recording.counters["time_ns"]
    return {
        "seconds": time.monotonic() - began,
        "complete": recording.complete,
        "incomplete": recording.manifest["incomplete"],
        "failures": recording.to_pandas("failures").astype({"error": str, "message": str})
        .to_dict("records"),
        "meanings": meanings,
        "readings": len(set(times.tolist())),
    }  # fmt: skip


def kill_worker() -> None:
    """End worker 1 once it works."""
    wait_for_traffic()
    with contextlib.suppress(ProcessLookupError):  # the run ended before
        os.kill(LAUNCHED[-1].pid(1), signal.SIGKILL)


def wait_for_traffic() -> None:
    """Until the first device has sent a good many messages more than at first."""
    path = Path(f"/sys/class/infiniband/{DEVICES[0]}/ports/1")
    names = [path / "hw_counters/sent_pkts", path / "counters/port_xmit_packets"]
    name = next((name for name in names if name.exists()), None)
    if name is None:
        time.sleep(2.0)
        return
    before = int(name.read_text())
    deadline = time.monotonic() + 45.0
    while int(name.read_text()) < before + 1000 and time.monotonic() < deadline:
        time.sleep(0.01)


LAUNCHED: list[ForkLauncher] = []
DEVICES: list[str] = []


def main() -> None:
    use_forks()
    start = ForkLauncher.start

    def remember(self: ForkLauncher, *arguments: Any) -> None:
        start(self, *arguments)
        LAUNCHED.append(self)

    ForkLauncher.start = remember  # type: ignore[method-assign]
    folder, soft = Path(sys.argv[1]), "--soft" in sys.argv
    DEVICES.extend(word for word in sys.argv[2:] if not word.startswith("--"))
    ends = [f"localhost/{device}" for device in DEVICES[:2]]
    results: dict[str, Any] = {}

    def keep(name: str, value: Any) -> None:
        results[name] = value
        (folder / "device-results.json").write_text(json.dumps(results, default=str))

    keep("check", check_fabric(ends, transport="verbs", seconds=0.2).to_json())
    for run in json.loads((folder / "device.json").read_text()):
        keep(run["name"], replay(run, folder, ends))
    if soft:
        # Packets to the third device are lost; its port stays active.
        cut = ["tc", "qdisc", "replace", "dev", "b2", "root", "netem", "loss", "100%"]
        subprocess.run(cut, check=True)
        three = [*ends, "localhost/rxe2"]
        keep("cut", check_fabric(three, transport="verbs", seconds=0).to_json())
        subprocess.run(["tc", "qdisc", "del", "dev", "b2", "root"], check=True)
    # 4.096 us x 2^14, 3 times: short enough for the QP to say that its peer is gone, and longer
    # than a busy machine keeps a guest's processor waiting.
    env = {"NCCL_IB_TIMEOUT": "14", "NCCL_IB_RETRY_CNT": "3"}
    keep("killed", failing(folder, ends, kill_worker, env))
    print(json.dumps({name: str(value)[:200] for name, value in results.items()}))


if __name__ == "__main__":
    main()
