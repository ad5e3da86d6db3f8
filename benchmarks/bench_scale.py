"""`genie simulate` against size: cost a message, growth with ranks, the flow level's error.

    python -m benchmarks.bench_scale            # tables
    python -m benchmarks.bench_scale docs/img   # and the figure simulate_scale.{png,svg}

Rates are per second of CPU time of the engine's thread. ASTRA-sim comes from no package registry:
its times are those of ../shared/perf.md section 2 (analytical backend, 1 MiB), marked "quoted".
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import genie
from genie.trace import Builder, Coll, Kind, write

_KEPT = tempfile.TemporaryDirectory()
"""Traces are read again while they are simulated."""

ASTRA_S = {32: (0.013, 0.05), 64: (0.07, 0.16), 128: (0.13, 0.21)}
"""Wall seconds of ASTRA-sim's bundled microbenchmarks by NPUs, least and most."""


def plan_of(kind, ranks, nbytes, gpus=8, repeats=1):
    """Plan of `repeats` collectives of one kind on hosts of 8 H100."""
    folder = tempfile.mkdtemp(dir=_KEPT.name)

    def rank():
        b = Builder()
        last = ()
        for i in range(repeats):
            coll = Coll[kind.upper()]
            node = b.node(Kind.COMM_COLL, f"c{i}", coll=coll, nbytes=nbytes, deps=last)
            last = (node,)
        return b

    write(folder, "t", (rank() for _ in range(ranks)))
    cluster = genie.Cluster.preset("h100x8", hosts=ranks // gpus)
    return genie.plan(genie.load(folder), cluster)


def cost(kind, ranks, nbytes, level="message"):
    """What one collective costs: a dict of seconds, messages and rates."""
    begin = time.process_time()
    plan = plan_of(kind, ranks, nbytes)
    planned = time.process_time()
    recording = genie.simulate(plan, level=level)
    done = time.process_time()
    engine = recording.manifest["simulation"]
    messages = sum(int((t.program.ops["kind"] == 0).sum()) for t in plan.templates)
    return {
        "kind": kind, "ranks": ranks, "nbytes": nbytes, "level": level,
        "messages": messages, "plan_s": planned - begin, "simulate_s": done - planned,
        "engine_s": engine["cpu_ns"] / 1e9, "step_ns": int(recording.steps()["time_ns"][0]),
    }  # fmt: skip


def errors(hosts=(2, 4, 8), sizes=(1 << 16, 1 << 20, 1 << 24)):
    """Rows (kind, hosts, bytes, message-level ns, flow-level ns) of pairs that share NICs.

    Two equal communicators, the even and the odd local ranks of all hosts, run the collective at
    once, the second 1/4 of its time later; an undisturbed one is exact and not worth a row.
    """
    rows = []
    for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        for n in hosts:
            for nbytes in sizes:
                plan = shared_plan(kind, n, nbytes)
                times = [
                    int(genie.simulate(plan, level=level).steps()["time_ns"][0])
                    for level in ("message", "flow")
                ]
                rows.append((kind, n, nbytes, *times))
    return rows


def shared_plan(kind, hosts, nbytes):
    """Plan of two communicators on the same NICs, three collectives each, one starting later."""
    cluster = genie.Cluster.preset("h100x8", hosts=hosts)
    ranks = 8 * hosts
    # Two communicators over all ranks: each NIC serves both.
    groups = {"a": tuple(range(ranks)), "b": tuple(range(ranks))}
    folder = tempfile.mkdtemp(dir=_KEPT.name)

    def rank():
        b = Builder()
        late = b.node(Kind.COMP, "late", duration_ns=20_000)
        for name, first in (("a", ()), ("b", (late,))):
            last = first
            for i in range(3):
                coll = Coll[kind.upper()]
                node = b.node(
                    Kind.COMM_COLL,
                    f"{name}{i}",
                    coll=coll,
                    nbytes=nbytes,
                    group=name,
                    deps=last,
                )
                last = (node,)
        return b

    write(folder, "t", (rank() for _ in range(ranks)), groups=groups)
    return genie.plan(genie.load(folder), cluster)


def row(area, peer, peer_value, ours, unit, ratio, goal, note=""):
    """One row of the table of results."""
    return {
        "area": area, "peer": peer, "peer_value": peer_value, "ours": ours, "unit": unit,
        "ratio": ratio, "goal": goal, "spread": None, "note": note,
    }  # fmt: skip


def run():
    """Rows of the table of results."""
    found = []
    for ranks in (64, 128):
        c = cost("all_reduce", ranks, 1 << 20)
        wall = c["simulate_s"] + c["plan_s"]
        peer = sum(ASTRA_S[ranks]) / 2
        found.append(
            row(
                f"simulate 1 MiB all_reduce on {ranks} ranks", "ASTRA-sim analytical (quoted)",
                peer, wall, "s", peer / wall, "", f"plan included, {c['messages']} messages",
            )
        )  # fmt: skip
    for ranks in (64, 128, 512):
        c = cost("all_to_all", ranks, ranks * 65536)
        rate = c["messages"] / c["engine_s"]
        found.append(
            row(
                f"simulated messages/s, all_to_all of 64 KiB a peer, {ranks} ranks", "goal", 1e6,
                rate, "messages/s", rate / 1e6, ">= 1e6/s", f"{c['messages']} messages",
            )
        )  # fmt: skip
    return found


def draw(folder):
    """Draw CPU time against ranks, with ASTRA-sim's wall time, and CPU time a message."""
    from matplotlib.figure import Figure

    series = [
        ("all_reduce 1 MiB", [cost("all_reduce", n, 1 << 20) for n in (16, 32, 64, 128, 256)]),
        ("all_to_all 64 KiB a peer", [
            cost("all_to_all", n, n * 65536) for n in (16, 32, 64, 128, 256)
        ]),
    ]  # fmt: skip
    figure = Figure(figsize=(7.0, 3.0), layout="constrained")
    left, right = figure.subplots(1, 2)
    for (name, costs), marker in zip(series, "os", strict=True):
        ranks = [c["ranks"] for c in costs]
        left.plot(ranks, [c["plan_s"] + c["simulate_s"] for c in costs], marker=marker, label=name)
        right.plot(
            [c["messages"] for c in costs],
            [c["simulate_s"] / c["messages"] * 1e6 for c in costs],
            marker=marker,
            label=name,
        )
    quoted = sorted(ASTRA_S)
    left.vlines(
        quoted, [ASTRA_S[n][0] for n in quoted], [ASTRA_S[n][1] for n in quoted],
        color="0.4", linewidth=4, alpha=0.6, label="ASTRA-sim, 1 MiB (quoted, whole run)",
    )  # fmt: skip
    left.set(xscale="log", yscale="log", xlabel="ranks", ylabel="plan and simulate, CPU (s)")
    right.set(xscale="log", yscale="log", xlabel="messages", ylabel="simulate, CPU a message (us)")
    left.set_xscale("log", base=2)
    left.set_xticks(sorted({c["ranks"] for c in series[0][1]}))
    left.xaxis.set_major_formatter("{x:.0f}")
    left.legend(frameon=False, fontsize=7, loc="upper left")
    for axis in (left, right):
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25)
    for ending in ("png", "svg"):
        figure.savefig(Path(folder) / f"simulate_scale.{ending}", dpi=150)
    for _, costs in series:
        for c in costs:
            print(c)


def main():
    """Print the tables; draw when a folder is given."""
    for line in run():
        print(f"{line['area']}: {line['ours']:.4g} {line['unit']}, ratio {line['ratio']:.3g}")
    found = errors()
    relative = []
    for kind, hosts, nbytes, exact, flow in found:
        relative.append(abs(flow / exact - 1))
        print(
            f"{kind:15s} {hosts:3d} hosts {nbytes:9d} B  {exact:10d} {flow:10d} "
            f"{flow / exact - 1:+.1%}"
        )
    print(f"median {np.median(relative):.1%}, largest {max(relative):.1%}")
    if len(sys.argv) > 1:
        draw(sys.argv[1])


if __name__ == "__main__":
    main()
