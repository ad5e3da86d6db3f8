"""In the guest under `-icount`: link rates and a slow link, on the virtual clock.

    guest_virtual.py FOLDER LOOP

LOOP is benchmarks/verbs_loop.c compiled. Writes FOLDER/virtual.json. One nanosecond is one guest
instruction, so times do not depend on the host; devices.sh has made four devices, and queueing
disciplines go on the bridge's ports.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from genie._core import verbs
from verbs.driver import Flow, drive

SIZE, COUNT = 65536, 257


def shape(port: int, rate: str | None) -> None:
    """Give the way to device `port` a rate, or none."""
    device = f"b{port}"
    subprocess.run(["tc", "qdisc", "del", "dev", device, "root"], capture_output=True)
    if rate is not None:
        subprocess.run(
            ["tc", "qdisc", "replace", "dev", device, "root", "netem", "limit", "10000",
             "rate", rate],
            check=True,
        )  # fmt: skip


def shape_data(port: int, rate: str) -> None:
    """Give data on the way to device `port` a rate; ACKs and CTS (below 256 bytes) pass by.

    In one FIFO they would queue behind data of other connections, which the model network of
    `simulate` does not know.
    """
    device = f"b{port}"
    shape(port, None)
    commands = (
        f"qdisc replace dev {device} root handle 1: prio bands 2 priomap {'1 ' * 16}",
        f"qdisc replace dev {device} parent 1:2 handle 20: netem limit 10000 rate {rate}",
        f"filter add dev {device} parent 1: protocol ip u32 match u16 0 0xff00 at 2 flowid 1:1",
    )
    for command in commands:
        subprocess.run(["tc", *command.split()], check=True)


def gid_index(device: str) -> int:
    """The IPv4-mapped GID."""
    row = next(d for d in verbs.devices() if d["name"] == device)
    return next(i for i, raw, *_ in row["ports"][0]["gids"] if raw[10:12] == b"\xff\xff")


def pair(conns: int = 1) -> tuple[verbs.Verbs, verbs.Verbs]:
    """Two transports in this process, rxe0 sending to rxe1."""
    ends = [verbs.Verbs(conns, conns, [[(name, 1, gid_index(name))]]) for name in ("rxe0", "rxe1")]
    for conn in range(conns):
        ends[0].add(conn, True, 0, "rxe1")
        ends[1].add(conn, False, 0, "rxe0")
    for end in ends:
        end.allocate()
    for conn in range(conns):
        infos = [end.create(conn) for end in ends]
        ends[1].connect(conn, infos[0], ends[0].ports)
        ends[0].connect(conn, infos[1], ends[1].ports)
    return ends[0], ends[1]


def rates() -> list[dict[str, Any]]:
    """Back-to-back messages and single ones at several link rates."""
    found = []
    for rate in ("100mbit", "200mbit", "400mbit", "1gbit"):
        shape(1, rate)
        a, b = pair()
        send = Flow(0, True, [SIZE], count=COUNT)
        receive = Flow(0, False, [SIZE], count=COUNT)
        assert drive([(a, [send]), (b, [receive])], timeout=60, sleep=False) == 0
        singles: dict[int, list[int]] = {8: [], SIZE: []}
        for size, times in singles.items():
            for _ in range(5):
                one, other = Flow(0, True, [size]), Flow(0, False, [size])
                assert drive([(b, [other]), (a, [one])], timeout=60, sleep=False) == 0
                times.append(other.last_ns - one.first_ns)
                time.sleep(0.002)
        c = {}
        for size in singles:
            words = ("lone", "rxe0", "rxe1", str(size), "5", "1")
            done = subprocess.run([sys.argv[2], *words], capture_output=True, text=True, check=True)
            c[size] = [int(line) for line in done.stdout.split()]
        found.append({"rate": rate, "times": receive.times, "singles": singles, "c": c})
        a.close()
        b.close()
    shape(1, None)
    return found


def slow_link(folder: Path) -> dict[str, Any]:
    """A ring all_reduce on four hosts, with equal links and with one link four times slower."""
    import genie
    from verbs.fork_launcher import use_forks

    use_forks()
    nccl = genie.Nccl(env={"NCCL_ALGO": "allreduce:Ring", "NCCL_PROTO": "allreduce:Simple"})
    found: dict[str, Any] = {}
    # Slow links, so that the one processor that all four hosts share is no part of the result.
    for name, slow in (("equal", "20mbit"), ("slow", "5mbit")):
        for port in range(4):
            shape_data(port, slow if port == 2 else "20mbit")
        recording = genie.replay(
            genie.load(folder / "ring"),
            [f"localhost/rxe{i}" for i in range(4)],
            cluster=genie.Cluster.local(4, 1),
            nccl=nccl,
            transport="verbs",
            timeout=150.0,
            progress=False,
            gpu=genie.GpuModel.off(),
        )
        ops, messages = recording.ops, recording.messages
        links: dict[str, list[int]] = {}
        for row in messages:
            if row["direction"] == 0:
                links.setdefault(f"{row['rank']}>{row['peer']}", []).append(
                    int(row["completed_ns"] - row["posted_ns"])
                )
        found[name] = {
            "time_ns": int(ops["end_ns"].max() - ops["start_ns"].min()),
            "nbytes": int(messages["nbytes"][messages["direction"] == 0].sum()),
            "links": links,
        }
    return found


def main() -> None:
    folder = Path(sys.argv[1])
    (folder / "virtual.json").write_text(json.dumps({"rates": rates()}))
    if (folder / "ring").exists():
        result = json.loads((folder / "virtual.json").read_text())
        result["slow_link"] = slow_link(folder)
        (folder / "virtual.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
