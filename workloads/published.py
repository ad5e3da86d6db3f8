"""Published step times against `genie simulate` of the same job.

Usage: python workloads/published.py [NAME ...]      (default: all of published/published.toml)
       python workloads/published.py --alternatives [NAME ...]
       python workloads/published.py --sensitivity NAME ...

Each spec beside that file is generated and simulated on the preset its row names, with the same
table of efficiencies for all; nothing is fitted to a row. A rate in TFLOP/s becomes a time with the
arithmetic that model FLOP utilisation counts (Chowdhery et al., arXiv 2204.02311, appendix B: 6
FLOP a parameter and token, and attention over the whole sequence).
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import tomllib

import genie
from genie.commands.common import parse_cluster
from genie.replay.gpu import GpuModel, parameters
from genie.workload.generate import prepare
from genie.workload.job import Workload
from genie.workload.shapes import attention_flops, model_flops
from genie.workload.spec import Spec

FOLDER = Path(__file__).parent / "published"


def rows() -> dict[str, Any]:
    """Return the published rows by name."""
    return tomllib.loads((FOLDER / "published.toml").read_text())


def counted_flops(spec: Spec, causal: bool = False) -> float:
    """Return a step's FLOP as model FLOP utilisation counts them.

    Args:
        spec: The job.
        causal: Count half of the attention of a causal model, what is really computed.
    """
    tokens = spec.samples * spec.sequence
    half = spec.shape.layers * attention_flops(spec.shape, tokens, spec.sequence / 2)
    counted = model_flops(spec.shape, tokens, spec.sequence)
    return counted + (3 * half if spec.shape.causal and not causal else 0)


def published_s(row: dict[str, Any], job: Workload, causal: bool = False) -> float:
    """Return the published seconds a step, worked out from a rate where that is published."""
    tokens, ranks = job.spec.samples * job.spec.sequence, job.layout.world
    if "step_s" in row:
        return float(row["step_s"])
    if "tokens_per_gpu" in row:
        return float(tokens / (ranks * row["tokens_per_gpu"]))
    if "gpu_hours" in row:
        return float(row["gpu_hours"]) * 3600 * tokens / 1e12 / ranks
    return counted_flops(job.spec, causal) / (ranks * float(row["tflops"]) * 1e12)


def prepared(name: str, row: dict[str, Any], **settings: Any) -> Workload:
    """Return a row's job, with other settings if asked for."""
    job = prepare(FOLDER / f"{name}.toml", replicas=row.get("replicas"), **settings)
    assert isinstance(job, Workload)
    return job


#: GPU: key of its generation in genie/data/gpu.json.
GENERATIONS = {"a100": "80", "h100": "90", "h800": "90", "h200": "90", "b200": "100"}
Change = Callable[[genie.Network], genie.Network]


def simulated_s(
    job: Workload, row: dict[str, Any], *, network: Change | None = None, nvlink: float = 1.0
) -> float:
    """Simulate a job and return the seconds of its step.

    Args:
        job: What to generate.
        row: Its row of published.toml.
        network: Changes the network.
        nvlink: Factor on the bandwidth inside a host.
    """
    # As many hosts as the ranks that are generated fill.
    preset, _, _ = row["cluster"].partition(":")
    one = parse_cluster(f"{preset}:1")
    assert one is not None
    cluster = parse_cluster(f"{preset}:{-(-job.world_size // one.n_ranks)}")
    assert cluster is not None
    gpu = GpuModel()
    if nvlink != 1.0:
        row_ = parameters()["generations"][GENERATIONS[job.spec.hardware.gpu]]
        gpu = GpuModel(nvlink_gbps=nvlink * row_["nvlink_gbps"])
    usual = genie.Network(nic_gbps=cluster.nic_gbps)
    with tempfile.TemporaryDirectory() as folder:
        trace = genie.load(job.write(folder), names=False)
        recording = genie.simulate(
            trace, cluster, log_messages=False, network=network(usual) if network else usual,
            gpu=gpu,
        )  # fmt: skip
    if not recording.complete:
        raise SystemExit(f"{job.spec.name}: incomplete")
    return int(recording.steps()[0]["time_ns"]) / 1e9


def table(names: list[str]) -> Iterator[str]:
    """Yield the table of published and simulated step times, line by line."""
    heads = (
        "job", "ranks", "replicas simulated", "published s", "ours s", "error", "MFU published",
        "MFU ours",
    )  # fmt: skip
    yield f"| {' | '.join(heads)} |"
    yield "|---|---|---|---|---|---|---|---|"
    known = rows()
    for name in names or known:
        row = known[name]
        job = prepared(name, row)
        theirs = published_s(row, job)
        began = time.perf_counter()
        ours = simulated_s(job, row)
        print(f"{name}: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
        ranks, dp = job.layout.world, job.spec.parallelism.dp
        # Of the 16-bit peak, as the reports state it.
        full = counted_flops(job.spec) / (ranks * job.roofline.wide_tflops * 1e12)
        yield (
            f"| {name} | {ranks:,} | {row.get('replicas', dp)} of {dp} | {theirs:.2f} | {ours:.2f} "
            f"| {100 * (ours / theirs - 1):+.1f} % | {100 * full / theirs:.0f} % "
            f"| {100 * full / ours:.0f} % |".replace(",", " ")
        )


def alternatives(names: list[str]) -> Iterator[str]:
    """Yield a table of what else the published configuration could mean."""
    yield "| job | read as | published s | ours s | error |"
    yield "|---|---|---|---|---|"
    known = rows()
    for name in names or known:
        row = known[name]
        ours = None
        for other in row.get("alternatives", ()):
            job = prepared(name, row, **other.get("settings", {}))
            theirs = published_s(row, job, causal=other.get("causal", False))
            if other.get("settings") or ours is None:
                time_ = simulated_s(job, row)
                ours = ours if other.get("settings") else time_
            else:
                time_ = ours
            yield (
                f"| {name} | {other['name']} | {theirs:.2f} | {time_:.2f} "
                f"| {100 * (time_ / theirs - 1):+.1f} % |"
            )


#: Assumption: kinds of the efficiency table it stands for.
EFFICIENCIES = {
    "products": ("matmul", "matmul_16", "grouped_matmul"),
    "attention": ("attention", "attention_backward"),
    "memory": ("memory",),
}


def sensitivity(names: list[str]) -> Iterator[str]:
    """Yield a table: the step's change when one assumption is 10 % lower, and 10 % higher.

    Long jobs are looked at with two micro-batches a stage and one replica.
    """
    headers = [*EFFICIENCIES, "kernel time", "result writes", "NVLink", "NIC", "network latency"]
    yield "| job | " + " | ".join(headers) + " |"
    yield "|---|" + "---|" * len(headers)
    known = rows()
    for name in names:
        yield f"| {name} | " + " | ".join(_changes(name, dict(known[name]))) + " |"


def _changes(name: str, row: dict[str, Any]) -> Iterator[str]:
    spec = prepared(name, row).spec
    settings = {}
    if spec.parallelism.pp > 1:
        settings["micro_batches"] = 2 * spec.parallelism.pp
        row["replicas"] = 1

    def step(change: Callable[[Workload], None] | None = None, **more: Any) -> float:
        job = prepared(name, row, **settings)
        if change:
            change(job)
        return simulated_s(job, row, **more)

    usual = step()

    def both(run: Callable[[float], float]) -> str:
        return " / ".join(f"{100 * (run(factor) / usual - 1):+.1f}" for factor in (0.9, 1.1)) + " %"

    def scale(kinds: tuple[str, ...], factor: float) -> Callable[[Workload], None]:
        def change(job: Workload) -> None:
            for kind in kinds:
                job.roofline.efficiency[kind] *= factor

        return change

    def attribute(key: str, factor: float) -> Callable[[Workload], None]:
        return lambda job: setattr(job.roofline, key, getattr(job.roofline, key) * factor)

    for kinds in EFFICIENCIES.values():
        yield both(lambda f, kinds=kinds: step(scale(kinds, f)))  # type: ignore[misc]
    for key in ("kernel_ns", "write_gbps"):
        yield both(lambda f, key=key: step(attribute(key, f)))  # type: ignore[misc]
    yield both(lambda f: step(nvlink=f))
    yield both(lambda f: step(network=lambda n: replace(n, nic_gbps=(n.nic_gbps or 0) * f)))
    yield both(lambda f: step(network=lambda n: _latency(n, f)))


def _latency(network: genie.Network, factor: float) -> genie.Network:
    both = (round(ns * factor) for ns in (network.latency_ns, network.cts_latency_ns))
    return replace(network, **dict(zip(("latency_ns", "cts_latency_ns"), both, strict=True)))


def main() -> None:
    """Print one of the tables."""
    arguments = sys.argv[1:]
    kinds = {"--alternatives": alternatives, "--sensitivity": sensitivity}
    make = kinds.get(arguments[0], table) if arguments else table
    for line in make([name for name in arguments if name not in kinds]):
        print(line, flush=True)


if __name__ == "__main__":
    main()
