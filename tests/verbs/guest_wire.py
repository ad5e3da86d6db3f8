"""In the guest: replay each trace of a folder over verbs, with every packet captured.

    guest_wire.py FOLDER

FOLDER/runs.json lists the runs: name, cluster ("local" or a preset), hosts, choices, env. Each
leaves NAME.pcap and NAME.json there.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import genie
from verbs.fork_launcher import use_forks


def capture(path: Path) -> subprocess.Popen[bytes]:
    """Start tcpdump on the bridge; it writes to the guest's memory."""
    log = path.with_suffix(".log")
    command = ["tcpdump", "-U", "-i", "br0", "-s", "96", "-B", "65536", "-w", str(path)]
    with log.open("wb") as out:
        process = subprocess.Popen([*command, "udp port 4791"], stderr=out)
    while "listening" not in log.read_text():
        time.sleep(0.02)
    return process


def stop(tcpdump: subprocess.Popen[bytes], path: Path) -> None:
    """End the capture once nothing more comes."""
    size = -1
    while path.stat().st_size != size:
        size = path.stat().st_size
        time.sleep(0.5)
    tcpdump.send_signal(signal.SIGINT)
    tcpdump.wait()


def replay(run: dict[str, Any], folder: Path) -> dict[str, Any]:
    hosts = run["hosts"]
    cluster = (
        genie.Cluster.local(hosts, 1)
        if run["cluster"] == "local"
        else genie.Cluster.preset(run["cluster"], hosts=hosts)
    )
    nccl = genie.Nccl(choices=run["choices"], env=run["env"])
    began = time.monotonic()
    recording = genie.replay(
        genie.load(folder / run["name"]),
        [f"localhost/rxe{i}" for i in range(hosts)],
        cluster=cluster,
        nccl=nccl,
        transport="verbs",
        timeout=150.0,
        progress=False,
    )
    return {
        "seconds": time.monotonic() - began,
        "complete": bool(recording.manifest["complete"]),
        "ops": len(recording.ops),
        "messages": len(recording.messages),
        "unfinished": int((recording.messages["completed_ns"] < 0).sum()),
        "unposted": int((recording.messages["posted_ns"] < 0).sum()),
        "devices": recording.manifest["devices"],
    }


def main() -> None:
    use_forks()
    folder = Path(sys.argv[1])
    for run in json.loads((folder / "runs.json").read_text()):
        packets = Path("/tmp") / f"{run['name']}.pcap"
        tcpdump = capture(packets)
        try:
            result = replay(run, folder)
        finally:
            stop(tcpdump, packets)
        result["capture"] = packets.with_suffix(".log").read_text()
        shutil.copy(packets, folder / packets.name)
        (folder / f"{run['name']}.json").write_text(json.dumps(result, default=str))
        print(run["name"], f"{result['seconds']:.1f} s", flush=True)


if __name__ == "__main__":
    main()
