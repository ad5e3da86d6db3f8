"""A batch of short replays in one process: `soak_batch.py RUNS`; a JSON line of what is left.

Memory, descriptors, threads and children are those after the first runs and after the last; every
run's bytes are checked against the plan.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import genie
from runtime.steps import steps


def state() -> dict[str, int]:
    """What this process holds."""
    gc.collect()
    status = Path("/proc/self/status").read_text().splitlines()
    rss = next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return {
        "rss_kib": rss,
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "children": len(children),
        "maps": len(Path("/proc/self/maps").read_text().splitlines()),
    }


def main(runs: int) -> None:
    """Replay, check, and say how it began and ended."""
    with tempfile.TemporaryDirectory(prefix="genie-soak-") as folder:
        trace = steps(Path(folder), ranks=4, steps=3, comp_ns=100_000, nbytes=100_000)
        plan = genie.plan(trace, genie.Cluster.local(2, 2))
        warm = max(2, runs // 10)
        before: dict[str, int] = {}
        nbytes = messages = 0
        for run in range(runs):
            rec = genie.replay(plan, "local:2", progress=False, quiet=True, timeout=600)
            sends = rec.messages[rec.messages["direction"] == 0]
            receives = rec.messages[rec.messages["direction"] == 1]
            assert rec.complete and (rec.messages["status"] == 0).all(), run
            assert len(sends) == len(receives) == plan.messages, run
            assert sends["nbytes"].sum() == receives["nbytes"].sum() == plan.nbytes, run
            nbytes += int(sends["nbytes"].sum())
            messages += len(sends)
            del rec, sends, receives
            if run + 1 == warm:
                before = state()
    found = {"runs": runs, "messages": messages, "nbytes": nbytes}
    print(json.dumps(found | {"before": before, "after": state()}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
