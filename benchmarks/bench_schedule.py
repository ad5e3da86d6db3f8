"""What a schedule costs: time and memory per message, one rank of 16 384, planning a step.

The peer is the goal where there is none; for time per message also the plain-Python reference
that the tests hold the fast path to (tests/reference), in the same run.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path
from typing import Any

from genie.replay.cluster import Cluster
from genie.replay.nccl.env import Nccl
from genie.replay.nccl.schedule import Schedule, schedule

ROOT = Path(__file__).parents[1]
REPEATS = 7

RING = {"NCCL_ALGO": "allreduce:Ring"}
TREE = {"NCCL_ALGO": "allreduce:Tree"}
PAT = {"NCCL_ALGO": "allgather:PAT"}
LL = {"NCCL_PROTO": "LL"}
SIMPLE = {"NCCL_PROTO": "Simple"}

#: (what, preset, hosts, rank, kind, count, settings); counts shrink by one a repeat, so that no
#: answer is reused.
CASES: list[tuple[str, str, int, int, str, int, dict[str, str]]] = [
    ("ring all_reduce 1 GiB Simple", "h100x8", 8, 0, "all_reduce", 1 << 28, RING | SIMPLE),
    ("ring all_reduce 1 GiB LL", "h100x8", 8, 0, "all_reduce", 1 << 28, RING | LL),
    ("tree all_reduce 1 GiB LL", "h100x8", 8, 0, "all_reduce", 1 << 28, TREE | LL),
    ("NVLS tree all_reduce 512 MiB", "h100x8", 8, 8, "all_reduce", 1 << 27, {}),
    ("PAT all_gather 4 MiB a rank", "a100x1", 1024, 8, "all_gather", 1 << 20, PAT),
    ("all_to_all 64 MiB a peer", "h100x8", 8, 0, "all_to_all", 1 << 24, {}),
    ("all_to_all 4 KiB, 16 384 ranks", "h100x8", 2048, 0, "all_to_all", 1 << 10, {}),
]

BIG = """
import json, time
from pathlib import Path
from genie.replay.cluster import Cluster
from genie.replay.nccl.env import Nccl
from genie.replay.nccl.schedule import schedule
schedule("all_reduce", count=1, cluster=Cluster.preset("h100x8", hosts=2)).messages(0)

def peak():
    # The highest resident size of this process; getrusage would give the parent's.
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024

before = peak()
start = time.perf_counter()
cluster = Cluster.preset("h100x8", hosts=2048)
ring = Nccl(env={"NCCL_ALGO": "allreduce:Ring", "NCCL_PROTO": "Simple"})
table = schedule("all_reduce", count=1 << 28, cluster=cluster, nccl=ring).messages(0)
seconds = time.perf_counter() - start
print(json.dumps([seconds, (peak() - before) / 1e6, len(table)]))
"""


def timed(call: Any) -> tuple[float, float]:
    """Median seconds and spread of some runs."""
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    middle = statistics.median(seconds)
    return middle, (max(seconds) - min(seconds)) / middle


def run() -> list[dict[str, Any]]:
    """Rows of the table in RESULTS.md."""
    rows: list[dict[str, Any]] = []
    for what, preset, hosts, rank, kind, count, env in CASES:
        cluster, nccl = Cluster.preset(preset, hosts=hosts), Nccl(env=env)
        schedule(kind, count=3, cluster=cluster, nccl=nccl).messages(rank)
        left = count

        def one() -> int:
            nonlocal left
            left -= 1
            return len(schedule(kind, count=left, cluster=cluster, nccl=nccl).messages(rank))  # noqa: B023

        number = one()
        seconds, spread = timed(one)
        rows.append(
            row(
                what,
                1.0,
                seconds / number * 1e6,
                "us/message",
                "at most 1",
                spread,
                f"{number} messages",
            )
        )
        tracemalloc.start()
        one()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        rows.append(
            row(what, 100.0, peak / number, "B/message", "at most 100", None, "peak while made")
        )
    rows.append(against_reference())
    seconds, megabytes, number = json.loads(
        subprocess.run(
            [sys.executable, "-c", BIG], capture_output=True, text=True, check=True, cwd=ROOT
        ).stdout
    )
    note = f"{number} messages, cluster included"
    what = "one rank of 16 384, ring all_reduce 1 GiB"
    rows.append(row(what, 1.0, seconds, "s", "under 1 s", None, note))
    rows.append(row(what, 200.0, megabytes, "MB", "under 200 MB", None, note))
    rows.extend(planning())
    return rows


def row(
    area: str, goal: float, ours: float, unit: str, bound: str, spread: float | None, note: str
) -> dict[str, Any]:
    """One row against a goal."""
    return {
        "area": area,
        "peer": "goal",
        "peer_value": goal,
        "ours": ours,
        "unit": unit,
        "ratio": goal / ours,
        "goal": bound,
        "spread": spread,
        "note": note,
    }


def against_reference() -> dict[str, Any]:
    """Messages a second beside the plain-Python reference of the tests."""
    sys.path.insert(0, str(ROOT / "tests"))
    from reference import plain

    cluster = Cluster.preset("h100x8", hosts=8)
    nccl = Nccl(env={"NCCL_PROTO": "Simple", "NCCL_ALGO": "allreduce:Ring"})
    made = schedule("all_reduce", count=1 << 28, cluster=cluster, nccl=nccl)
    ours, spread = timed(lambda: made.messages(0, intra=True))

    def slow() -> int:
        return sum(
            len(sizes)
            for channel, count, chunk in made.parts.tolist()
            for sizes in plain.sends(
                plain.ring("all_reduce", cluster.channels[channel].ring, 0, count, chunk // 4, 4),
                "ring",
                "simple",
                "all_reduce",
                4,
            ).values()
        )

    theirs, _ = timed(slow)
    return {
        "area": "ring all_reduce 1 GiB, all messages of a rank",
        "peer": "plain Python reference",
        "peer_value": theirs * 1e3,
        "ours": ours * 1e3,
        "unit": "ms",
        "ratio": theirs / ours,
        "goal": "above 1",
        "spread": spread,
        "note": "64 ranks, 8 064 messages",
    }


def planning() -> list[dict[str, Any]]:
    """10 000 collectives of a training step on 8 hosts: 40 shapes over five communicators."""
    cluster = Cluster.preset("h100x8", hosts=8)
    groups = [cluster, *(cluster.sub(range(g, 64, 16)) for g in range(4))]
    kinds = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")

    def step() -> list[Schedule]:
        made = []
        for i in range(10_000):
            where = groups[i % 5]
            one = schedule(kinds[i % 4], count=1 + (i % 40) * 50_000, cluster=where)
            one.program(0)
            made.append(one)
        return made

    start = time.perf_counter()
    made = step()
    seconds = time.perf_counter() - start
    shapes = len({id(one) for one in made})
    note = f"{shapes} distinct schedules, programs of one rank included"
    again, spread = timed(step)
    return [
        row("plan 10 000 collectives, first time", 1.0, seconds, "s", "under 1 s", None, note),
        row("plan 10 000 collectives, again", 1.0, again, "s", "under 1 s", spread, note),
    ]


if __name__ == "__main__":
    for line in run():
        ours = f"{line['ours']:10.4g} {line['unit']:11} {line['ratio']:8.3g}x"
        print(f"{line['area']:45} {ours} {line['goal']}")
