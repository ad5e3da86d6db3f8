"""Published step times against `genie simulate` of the same job, as a table.

Usage: python workloads/published.py [NAME ...]      (default: all of published/published.toml)
       python workloads/published.py --sensitivity NAME ...

Each spec beside that file is generated and simulated on the preset its row names, with the same
efficiencies for all; nothing is fitted. Of jobs too large to simulate whole only some of the
data-parallel replicas are (`replicas`); a rate in TFLOP/s becomes a time with the arithmetic that
model FLOP utilisation counts (Chowdhery et al., arXiv 2204.02311, appendix B: 6 FLOP a parameter
and token, and attention over the whole sequence).
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import tomllib

import genie
from genie.commands.common import parse_cluster
from genie.workload.generate import prepare, workload
from genie.workload.shapes import attention_flops, model_flops
from genie.workload.spec import Spec

FOLDER = Path(__file__).parent / "published"


def counted_flops(spec: Spec) -> float:
    """Return a step's FLOP as model FLOP utilisation counts them."""
    tokens = spec.samples * spec.sequence
    half = spec.shape.layers * attention_flops(spec.shape, tokens, spec.sequence / 2)
    return model_flops(spec.shape, tokens, spec.sequence) + (3 * half if spec.shape.causal else 0)


def row(name: str, published: dict[str, Any]) -> str:
    """Simulate one job and return its line of the table."""
    job = prepare(FOLDER / f"{name}.toml")
    ranks = job.world_size
    flops = counted_flops(job.spec)
    peak = ranks * job.roofline.peak_tflops * 1e12
    if "step_s" in published:
        theirs = float(published["step_s"])
    elif "tokens_per_gpu" in published:
        theirs = job.spec.samples * job.spec.sequence / (ranks * published["tokens_per_gpu"])
    else:
        theirs = flops / (ranks * float(published["tflops"]) * 1e12)
    replicas = int(published.get("replicas", job.spec.parallelism.dp))
    micro_batches = job.spec.micro_batches
    began = time.perf_counter()
    trace = workload(FOLDER / f"{name}.toml", dp=replicas, micro_batches=micro_batches)
    recording = genie.simulate(trace, parse_cluster(published["cluster"]), log_messages=False)
    took = time.perf_counter() - began
    if not recording.complete:
        raise SystemExit(f"{name}: incomplete")
    ours = int(recording.steps()[0]["time_ns"]) / 1e9
    return (
        f"| {name} | {ranks} | {replicas} of {job.spec.parallelism.dp} | {theirs:.2f} | {ours:.2f} "
        f"| {100 * (ours / theirs - 1):+.0f} % | {100 * flops / peak / theirs:.0f} % "
        f"| {100 * flops / peak / ours:.0f} % | {took:.0f} |"
    )


def sensitivity(name: str, published: dict[str, Any]) -> str:
    """Return a line: how much longer a step gets when one assumption is worse."""
    cluster = parse_cluster(published["cluster"])
    assert cluster is not None
    replicas = int(published.get("replicas", 0)) or None

    def step(kind: str = "", factor: float = 1.0, network: genie.Network | None = None) -> float:
        whole = prepare(FOLDER / f"{name}.toml")
        job = prepare(FOLDER / f"{name}.toml", dp=replicas, micro_batches=whole.spec.micro_batches)
        if kind:
            job.roofline.efficiency[kind] *= factor
        with tempfile.TemporaryDirectory() as folder:
            trace = genie.load(job.write(folder))
            recording = genie.simulate(trace, cluster, network=network, log_messages=False)
        return float(recording.steps()[0]["time_ns"])

    usual = step()
    changed = [step(kind, 0.9) for kind in ("matmul", "attention", "memory")]
    half = genie.Network(nic_gbps=cluster.nic_gbps / 2)
    slow = genie.Network(latency_ns=10_000, cts_latency_ns=10_000)
    changed += [step(network=half), step(network=slow)]
    cells = " | ".join(f"{100 * (time_ / usual - 1):+.1f} %" for time_ in changed)
    return f"| {name} | {cells} |"


def main() -> None:
    """Print the table."""
    if sys.argv[1:2] == ["--sensitivity"]:
        rows = tomllib.loads((FOLDER / "published.toml").read_text())
        print("| job | matmul x 0.9 | attention x 0.9 | memory x 0.9 | NIC x 0.5 | latency 10 us |")
        print("|---|---|---|---|---|---|")
        for name in sys.argv[2:]:
            print(sensitivity(name, rows[name]), flush=True)
        return
    rows = tomllib.loads((FOLDER / "published.toml").read_text())
    print("| job | ranks | replicas simulated | published s | ours s | error | MFU published "
          "| MFU ours | run s |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|---|")
    for name in sys.argv[1:] or rows:
        print(row(name, rows[name]), flush=True)


if __name__ == "__main__":
    main()
