"""Two-worker all_reduce over loopback TCP, beside Open MPI and Gloo in the same run.

GENIE moves the bytes of NCCL's ring through its engine and does no arithmetic; the peers also
add. Times are medians of rank 0's calls, back to back; all programs take turns `REPEATS` times.

`floor_tcp.c` shows what the kernel allows at 1 KB: the same exchanges of the same bytes by two
processes that do nothing else, on one socket or on one for each direction. NCCL's ring exchanges
twice, one after the other, and its LL protocol doubles the bytes; Open MPI exchanges once.

Needs for the peers: `apt install openmpi-bin libopenmpi-dev`; a Python with torch==2.13.0 (CPU),
named by GENIE_PEERS_PYTHON (default .venv-peers/bin/python). A peer that is not there is left
out and said so.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
REPEATS = 3
#: bytes → iterations
CASES = {
    1 << 10: 2000,
    4 << 10: 2000,
    16 << 10: 1000,
    64 << 10: 500,
    256 << 10: 200,
    1 << 20: 100,
    4 << 20: 40,
    16 << 20: 10,
    64 << 20: 5,
}
#: goals of issue 2: bytes → how many times better
MPI_GOAL = {1 << 10: 1.0, 1 << 20: 1.3, 4 << 20: 1.3, 16 << 20: 1.3, 64 << 20: 1.3}
#: the smallest size, at which a floor is measured
FLOOR_BYTES, FLOOR_ITERATIONS = 1 << 10, 10_000
HEADER = 4  # bytes of a message's size on the wire
FLOOR = "C floor, {} of {} B, {}"
NOTES = (
    "GENIE sends the messages of NCCL's schedule: two exchanges, each after the other, and up to "
    "64 KiB in the LL protocol, which doubles the bytes; Open MPI exchanges once at these sizes, "
    "and adds. `C floor` is benchmarks/floor_tcp.c: two polling processes that do nothing but the "
    "exchanges. Over loopback GENIE's two directions share a socket, so that acknowledgements ride "
    "on data; on a network each has its own, as NCCL's."
)
GLOO_GOAL = {nbytes: 10.0 if nbytes <= 64 << 10 else 1.5 for nbytes in CASES}

Times = dict[int, float]


def genie_times(cases: dict[int, int]) -> Times:
    """Median time of one all_reduce by size, us, through replay() and its engine."""
    from genie.replay.bench import bench

    found: Times = {}
    by_iterations: dict[int, list[int]] = {}
    for nbytes, n in cases.items():
        by_iterations.setdefault(n, []).append(nbytes)
    for n, sizes in by_iterations.items():
        result = bench(
            "all_reduce", "local:2", begin=min(sizes), end=max(sizes), factor=4,
            iterations=n, warmup=n // 10 + 2, transport="tcp",
        )  # fmt: skip
        ops = result.recording.ops
        ops = ops[ops["rank"] == 0]
        took = (ops["end_ns"] - ops["start_ns"]) / 1e3
        for nbytes in sizes:
            found[nbytes] = float(np.median(took[ops["nbytes"] == nbytes][-n:]))
    return found


def _json_lines(command: list[str]) -> Times:
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise RuntimeError(f"{command[0]}: {done.stderr.strip()[-500:]}")
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {line["bytes"]: line["us_p50"] for line in lines}


def mpi_times(program: str, cases: dict[int, int]) -> Times:
    """The same of Open MPI over its TCP transport alone, which polls without sleeping."""
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return _json_lines(
        ["mpirun", *root, "-np", "2", "--bind-to", "core", "--mca", "pml", "ob1", "--mca", "btl",
         "tcp,self", program, *(f"{b}:{n}" for b, n in cases.items())]
    )  # fmt: skip


def gloo_times(python: str, cases: dict[int, int]) -> Times:
    """The same of torch.distributed's gloo."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    few = {nbytes: max(n // 10, 5) for nbytes, n in cases.items()}
    script = str(HERE / "peers" / "allreduce_gloo.py")
    return _json_lines([python, script, str(port), *(f"{b}:{n}" for b, n in few.items())])


def floor_times(program: str) -> dict[str, float]:
    """Median of a call of nothing but the exchanges, us, by what is exchanged and how."""
    from genie import Cluster, schedule

    one = schedule(
        "all_reduce", count=FLOOR_BYTES // 4, dtype="float32", cluster=Cluster.local(2, 1)
    )
    sends = [int(m["nbytes"]) for m in one.messages(0) if m["direction"] == 0]
    found = {}
    for count in (len(sends), 1):
        size = sends[0] + HEADER if count > 1 else FLOOR_BYTES
        for how in ([], ["one"]):
            command = [program, str(size), str(count), str(FLOOR_ITERATIONS), *how]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
            name = FLOOR.format(
                f"{count} exchange{'s' * (count > 1)}", size,
                "one socket" if how else "a socket a direction",
            )  # fmt: skip
            found[name] = json.loads(done.stdout)["us_p50"]
    return found


def run(cases: dict[int, int] | None = None, repeats: int = REPEATS) -> list[dict]:
    """Measure everything in turns and return the rows."""
    cases = CASES if cases is None else cases
    found: dict[str, list[Times]] = {}
    with tempfile.TemporaryDirectory() as folder:
        jobs = {"genie": lambda: genie_times(cases)}
        program = str(Path(folder) / "allreduce_mpi")
        if shutil.which("mpicc") and shutil.which("mpirun"):
            source = str(HERE / "peers" / "allreduce_mpi.c")
            subprocess.run(["mpicc", "-O2", "-o", program, source], check=True)
            jobs["Open MPI tcp"] = lambda: mpi_times(program, cases)
        python = os.environ.get("GENIE_PEERS_PYTHON", str(HERE.parent / ".venv-peers/bin/python"))
        if Path(python).exists():
            jobs["gloo (torch)"] = lambda: gloo_times(python, cases)
        compiler = shutil.which(os.environ.get("CC", "cc"))
        floors: list[dict[str, float]] = []
        if compiler is not None:
            floor = str(Path(folder) / "floor_tcp")
            subprocess.run([compiler, "-O2", "-o", floor, str(HERE / "floor_tcp.c")], check=True)
        fifo = os.environ.get("GENIE_BENCH_FIFO", "") not in ("", "0")
        if fifo:
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
        try:
            for _ in range(repeats):
                for name in random.sample(sorted(jobs), len(jobs)):
                    found.setdefault(name, []).append(jobs[name]())
                if compiler is not None and FLOOR_BYTES in cases:
                    floors.append(floor_times(floor))
        finally:
            if fifo:
                os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    how = "; all with SCHED_FIFO" if fifo else ""
    return _floor_rows(found["genie"], floors, how) + _rows(found, cases, how)


def _floor_rows(ours: list[Times], floors: list[dict[str, float]], how: str) -> list[dict]:
    rows = []
    for name in floors[0] if floors else []:
        mine = [times[FLOOR_BYTES] for times in ours]
        theirs = statistics.median(found[name] for found in floors)
        rows.append(
            {
                "area": f"all_reduce {FLOOR_BYTES} B, 2 workers, loopback TCP",
                "ours": statistics.median(mine),
                "unit": "us a call",
                "peer": name,
                "peer_value": theirs,
                "ratio": theirs / statistics.median(mine),
                "goal": "",
                "spread": (max(mine) - min(mine)) / statistics.median(mine),
                "note": "what the kernel's TCP allows" + how,
            }
        )
    return rows


def _doubled(cases: dict[int, int]) -> set[int]:
    """The sizes that NCCL sends in LL, which puts as many flag bytes beside the data."""
    from genie import Cluster, schedule

    cluster = Cluster.local(2, 1)
    return {
        nbytes
        for nbytes in cases
        for one in [schedule("all_reduce", count=nbytes // 4, dtype="float32", cluster=cluster)]
        if one.choice is not None and one.choice.protocol == "ll"
    }


def _rows(found: dict[str, list[Times]], cases: dict[int, int], how: str) -> list[dict]:
    rows = []
    doubled = _doubled(cases)
    goals = {"Open MPI tcp": MPI_GOAL, "gloo (torch)": GLOO_GOAL}
    for nbytes in cases:
        ours = [times[nbytes] for times in found["genie"]]
        mine = statistics.median(ours)
        for peer, goal in goals.items():
            text = f">= {goal[nbytes]}" if nbytes in goal else ""
            row = {
                "area": f"all_reduce {nbytes} B, 2 workers, loopback TCP",
                "ours": mine,
                "unit": "us a call",
                "peer": peer,
                "goal": text,
                "spread": (max(ours) - min(ours)) / mine,
            }
            if peer in found:
                theirs = statistics.median(times[nbytes] for times in found[peer])
                row |= {"peer_value": theirs, "ratio": theirs / mine}
                sent = "twice its bytes (LL)" if nbytes in doubled else "same bytes"
                row["note"] = f"{sent}; the peer also adds{how}"
            else:
                row["note"] = "peer not installed here"
            rows.append(row)
    return rows


if __name__ == "__main__":
    for row in run(repeats=int(sys.argv[1]) if len(sys.argv) > 1 else REPEATS):
        print(json.dumps(row))
