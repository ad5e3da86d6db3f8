"""Traffic matrix and step timeline of each parallelism and pattern, as small pictures for the docs.

Usage: python workloads/gallery.py [NAME ...]       (default: all; writes docs/img/workloads)

Every job runs on eight hosts with one H100 and one 50 GB/s NIC each (preset h100x1), so that all
of its traffic is on the network and in the matrix. Models are small; the pictures show who talks to
whom and when, not what a real job would measure.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.patches import Patch

import genie
from genie.compare.figures.style import new_figure, style
from genie.replay.tables import KINDS
from genie.units import format_size

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "img" / "workloads"
DENSE: dict[str, Any] = {
    "layers": 4, "hidden": 2048, "heads": 16, "kv_heads": 8, "ffn": 8192, "vocab": 8192,
    "sequence": 2048,
}  # fmt: skip
DEEP = {**DENSE, "layers": 16, "vocab": 2048}
MOE = {**DENSE, "experts": 16, "top_k": 4, "expert_ffn": 2048, "shared_experts": 1}
DLRM = {
    "family": "dlrm", "tables": [200_000] * 12 + [400_000] * 8, "embedding_dim": 128,
    "bottom_mlp": [13, 512, 256, 128], "top_mlp": [479, 1024, 1024, 512, 256, 1], "samples": 8192,
}  # fmt: skip
#: Name: (title, model or pattern, settings).
JOBS: dict[str, tuple[str, dict[str, Any] | str, dict[str, Any]]] = {
    "dp": ("data parallel 8", DENSE, {"dp": 8, "bucket_parameters": 40_000_000}),
    "zero1": ("ZeRO-1, data parallel 8", DENSE, {"dp": 8, "zero": 1}),
    "zero2": ("ZeRO-2, data parallel 8", DENSE, {"dp": 8, "zero": 2, "micro_batches": 2}),
    "fsdp": ("ZeRO-3 (FSDP) over 8", DENSE, {"dp": 8, "zero": 3, "micro_batches": 1}),
    "hsdp": ("HSDP, shards over 4, 2 replicas", DENSE,
             {"dp": 8, "zero": 3, "shard": 4, "micro_batches": 1}),
    "tp": ("tensor parallel 8", DENSE, {"tp": 8, "sp": False, "micro_batches": 1}),
    "tp-sp": ("tensor and sequence parallel 8", DENSE, {"tp": 8, "micro_batches": 1}),
    "pp-1f1b": ("pipeline of 8, 1F1B", DEEP, {"pp": 8, "micro_batches": 8}),
    "pp-interleaved": ("pipeline of 8, 2 chunks a stage, interleaved", DEEP,
                       {"pp": 8, "vpp": 2, "micro_batches": 8}),
    "pp-zero-bubble": ("pipeline of 8, zero-bubble ZB-H1", DEEP,
                       {"pp": 8, "schedule": "zero-bubble", "micro_batches": 8}),
    "cp-ring": ("context parallel 8, ring of keys and values", DENSE, {"cp": 8, "seq": 8192}),
    "cp-gather": ("context parallel 8, gathered keys and values", DENSE,
                  {"cp": 8, "cp_comm": "all_gather", "seq": 8192}),
    "ep": ("expert parallel 8, skewed routing", MOE, {"dp": 8, "ep": 8, "skew": 0.8}),
    "ep-replicas": ("expert parallel 4, 2 replicas of each expert, ZeRO-1", MOE,
                    {"dp": 8, "ep": 4, "zero": 1}),
    "dlrm": ("DLRM, 20 embedding tables over 8 ranks", DLRM, {"dp": 8}),
    "3d": ("tensor 2 x pipeline 2 x data parallel 2", DENSE, {"tp": 2, "pp": 2, "dp": 2}),
    "pattern-incast": ("incast to rank 0", "incast", {"size": "4M", "repeat": 2}),
    "pattern-pairwise": ("pairwise", "pairwise", {"size": "4M", "repeat": 2}),
    "pattern-permutation": ("permutation", "permutation", {"size": "4M", "repeat": 2}),
    "pattern-all-to-all": ("all-to-all", "all-to-all", {"size": "4M", "repeat": 2}),
    "pattern-rail": ("rails, 4 of 2 ranks", "rail", {"size": "4M", "per_host": 4, "repeat": 2}),
    "pattern-cross-rail": ("cross-rail", "cross-rail", {"size": "4M", "per_host": 4, "repeat": 2}),
    "pattern-tenants": ("two tenants, hosts dealt in turn", "tenants",
                        {"size": "4M", "per_host": 1, "repeat": 2, "gap": "50us"}),
}  # fmt: skip

#: Colours after Okabe and Ito; the first that starts a node's name.
COMPUTE = {
    "forward": "#56B4E9", "backward": "#0072B2", "weights": "#CC79A7", "optimizer": "#444444",
    "gap": "#BBBBBB",
}  # fmt: skip
NETWORK = {
    "all_reduce": "#D55E00", "all_gather": "#009E73", "reduce_scatter": "#E69F00",
    "all_to_all": "#B22222", "send": "#8C564B", "recv": "#C49C94",
}  # fmt: skip


def matrix(ax: Axes, recording: genie.Recording, ranks: int) -> None:
    """Draw the bytes that each rank sends each other one."""
    messages = recording.messages
    sent = messages[messages["direction"] == 0]
    total = np.zeros((ranks, ranks))
    np.add.at(total, (sent["rank"], sent["peer"]), sent["nbytes"])
    most = total.max()
    shown = np.ma.masked_equal(total, 0)
    # Dark is the most; three decades at most, one at least.
    least = min(max(total[total > 0].min(), most / 1e3), most / 10) if most else 0
    norm = LogNorm(least, most) if most else None
    ax.imshow(shown, cmap="viridis_r", norm=norm)
    ax.set(xlabel="to rank", ylabel="from rank", xticks=range(ranks), yticks=range(ranks))
    ax.set_title(f"at most {format_size(int(most))} a pair")
    ax.grid(visible=False)


def timeline(ax: Axes, recording: genie.Recording, ranks: int) -> list[Patch]:
    """Draw what every rank computes (upper half of its row) and communicates (lower half)."""
    ops = recording.ops
    names = recording.labels["ops", "name"]
    legend: dict[str, str] = {}
    for row in ops[ops["start_ns"] >= 0]:
        kind = KINDS[row["kind"]]
        name = names[row["name"]] if row["name"] >= 0 else ""
        first = name.partition(".")[0]
        computed = kind in {"comp", "mem_load", "mem_store"}
        what = first if computed else kind
        colour = (COMPUTE if computed else NETWORK).get(what)
        if colour is None or row["end_ns"] <= row["start_ns"]:
            continue
        legend[what] = colour
        ax.broken_barh(
            [(row["start_ns"] / 1e6, (row["end_ns"] - row["start_ns"]) / 1e6)],
            (row["rank"] - (0.42 if computed else 0.0), 0.42), facecolors=colour, linewidth=0,
        )  # fmt: skip
    ax.set(ylim=(ranks - 0.4, -0.6), yticks=range(ranks), ylabel="rank", xlabel="time (ms)")
    ax.set_xlim(left=0)
    ax.grid(visible=False)
    order = [*COMPUTE, *NETWORK]
    return [Patch(color=legend[name], label=name) for name in order if name in legend]


def draw(name: str) -> Path:
    """Simulate one job, write its picture and return the path."""
    title, model, settings = JOBS[name]
    if isinstance(model, str):
        trace = genie.workload(model, ranks=8, **{"per_host": 4, **settings})
    else:
        trace = genie.workload({"name": name, "model": model}, **settings)
    cluster = genie.Cluster.preset("h100x1", hosts=trace.world_size)
    recording = genie.simulate(trace, cluster)
    with style():
        figure = new_figure("double", 0.36)
        left, right = figure.subplots(1, 2, width_ratios=[1, 2.4])
        matrix(left, recording, trace.world_size)
        legend = timeline(right, recording, trace.world_size)
        right.set_title(title)
        figure.legend(
            handles=legend, loc="outside lower center", ncols=len(legend), frameon=False,
            columnspacing=1.2, handlelength=1.2, handletextpad=0.4, fontsize="small",
        )  # fmt: skip
        target = FOLDER / f"{name}.png"
        target.parent.mkdir(parents=True, exist_ok=True)
        # Small files: half of what a paper gets.
        figure.savefig(target, dpi=130, metadata={"Description": f"workloads/gallery.py {name}"})
    return target


def main() -> None:
    """Draw the pictures asked for."""
    for name in sys.argv[1:] or JOBS:
        path = draw(name)
        print(f"{path.relative_to(FOLDER.parent.parent.parent)}  {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
