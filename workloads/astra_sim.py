"""ASTRA-sim's simulated times beside `genie simulate` of the same microbenchmarks.

Usage: python workloads/astra_sim.py [--doc] [--largest NPUS]

ASTRA-sim's numbers are quoted from `astra_sim/results.json` (it comes from no package registry).
Ours: one-GPU hosts, NCCL's ring with the Simple protocol, NICs with the links' rate and latency;
once without the GPU-time model, so that only NCCL's messages and the network are left, and once
with it and NCCL's own choice of algorithm, protocol and channels. `comm_size` of all_gather is a
rank's part in both. `--doc` writes docs/workloads.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import genie
from genie.trace import Builder, Coll, Kind, write

sys.path.insert(0, str(Path(__file__).parent))
from nccl_tests import replace_section

HERE = Path(__file__).parent
ROWS: list[tuple[str, str, int, int, float]] = json.loads(
    (HERE / "astra_sim" / "results.json").read_text()
)["rows"]
SIZE = 1 << 20
#: GB/s and ns of a link, and how many times its latency a step of ASTRA-sim pays: its four chunks
#: go one after the other over a link and each waits the latency out.
TOPOLOGIES = {"Ring": (50.0, 500.0), "Switch": (400.0, 936.25)}
CHUNKS = 4
#: ns ASTRA-sim adds to a message at its end point (`endpoint-delay` of its system files).
ENDPOINT_NS = {"Ring": 10.0, "Switch": 0.0}


def formula(topology: str, kind: str, n: int) -> float:
    """Return ns: steps x (chunks x latency) + bytes of a link / rate, fitted to nothing.

    all_reduce 2(n-1) steps of size/n, reduce_scatter n-1, all_gather n-1 of the whole size (on the
    ring in one chunk); all_to_all: the message to the rank d places on passes d links, so that
    n(n-1)/2 steps follow each other.
    """
    rate, latency = TOPOLOGIES[topology]
    steps = {"all_reduce": 2 * (n - 1), "all_to_all": n * (n - 1) // 2}.get(kind, n - 1)
    chunks = 1 if (topology, kind) == ("Ring", "all_gather") else CHUNKS
    part = SIZE if kind == "all_gather" else SIZE / n
    return steps * (chunks * (latency + ENDPOINT_NS[topology]) + part / rate)


def ours(topology: str, kind: str, n: int, full: bool) -> tuple[int, float]:
    """Return (simulated ns, CPU s of planning and simulating)."""
    rate, latency = TOPOLOGIES[topology]
    env = None if full else {"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple"}
    net = genie.Network(nic_gbps=rate, latency_ns=round(latency), cts_latency_ns=round(latency))
    made = Builder()
    made.node(Kind.COMM_COLL, kind, coll=Coll[kind.upper()], nbytes=SIZE, dtype="float32")
    cluster = genie.Cluster.preset("h100x1", hosts=n)
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), "one", [made] * n)
        trace = genie.load(Path(folder) / "one")
        began = time.process_time()
        recording = genie.simulate(
            trace,
            cluster,
            network=net,
            nccl=genie.Nccl(env=env),
            gpu=None if full else genie.GpuModel.off(),
            log_messages=False,
        )
        cpu = time.process_time() - began
    ops: Any = recording.ops
    return int(ops["end_ns"].max() - ops["start_ns"].min()), cpu


def table(largest: int) -> str:
    """Return the Markdown table of the cases up to `largest` NPUs."""
    lines = [
        "| topology, collective of 1 MiB | NPUs | ASTRA-sim us | its formula us "
        "| ours, messages only us | ratio | ours with NCCL's choice and GPU times us "
        "| ASTRA-sim wall s | ours CPU s |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for topology, kind, n, theirs, wall in ROWS:
        if n > largest:
            continue
        bare, bare_cpu = ours(topology, kind, n, False)
        whole, _ = ours(topology, kind, n, True)
        lines.append(
            f"| {topology}, {kind} | {n} | {theirs / 1e3:.1f} "
            f"| {formula(topology, kind, n) / 1e3:.1f} | {bare / 1e3:.1f} "
            f"| {bare / theirs:.2f} | {whole / 1e3:.1f} | {wall:.3f} | {bare_cpu:.3f} |"
        )
        print(lines[-1], file=sys.stderr)
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """Run the comparison from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--doc", action="store_true", help="write docs/workloads.md")
    parser.add_argument("--largest", type=int, default=128, help="most NPUs")
    args = parser.parse_args(arguments)
    text = table(args.largest)
    if args.doc:
        replace_section(HERE.parent / "docs" / "workloads.md", "astra-sim", text)
    else:
        print(text)


if __name__ == "__main__":
    main()
