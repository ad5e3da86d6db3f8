"""Published nccl-tests tables against `genie simulate` of the same benchmark.

Usage: python workloads/nccl_tests.py [TABLE ...] [--doc] [--figure FILE] [--keep FILE] [--rows]

Every comparable table of `nccl_tests/tables.json` is simulated on the preset of its cluster, size
by size, and the error of the time is averaged by size band: as it is, and after one constant is
added that makes the table's smallest row right (launching, which nothing here models). Beside it:
the time that NCCL's own tuner predicts, and a flat ring at the rate of the NICs (of NVLink on one
host) with 2 us a step. `--doc` writes the result into docs/workloads.md, `--figure` draws it.
Tables of the corpus are read from GENIE_CORPUS, and left out where there is none.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import genie
from genie.commands.common import parse_cluster
from genie.replay.bandwidth import WHOLE_BUFFER_KINDS, bus_factor
from genie.replay.gpu import parameters
from genie.trace import Builder, Coll, Kind, write

HERE = Path(__file__).parent
TABLES: dict[str, dict[str, Any]] = json.loads((HERE / "nccl_tests" / "tables.json").read_text())[
    "tables"
]
CORPUS = Path(os.environ.get("GENIE_CORPUS", HERE.parent.parent / "shared" / "corpus"))
KIB, MIB = 1 << 10, 1 << 20
BANDS = ((0, 64 * KIB), (64 * KIB, MIB), (MIB, 64 * MIB), (64 * MIB, 1 << 62))
BAND_NAMES = ("< 64 KiB", "64 KiB to 1 MiB", "1 to 64 MiB", "from 64 MiB")
#: Bytes of a packet beside its payload: InfiniBand LRH, BTH, RETH, ICRC, VCRC; RoCE v2 Ethernet,
#: preamble and gap, IPv4, UDP, BTH, RETH, ICRC (InfiniBand specification, IEEE 802.3).
HEADERS = {"ib": 8 + 12 + 16 + 4 + 2, "roce": 38 + 20 + 8 + 12 + 16 + 4}
#: Rows of NVLS and NVLSTree above this are not simulated: 8 messages for one make them slow.
NVLS_LIMIT = 2 << 30


@dataclass
class Row:
    """One size of a table, times in us."""

    size: int
    measured: float
    simulated: float
    tuner: float
    ring: float
    algorithm: str
    protocol: str

    @property
    def nvls(self) -> bool:
        """Whether NCCL takes an algorithm of NVLink SHARP."""
        return self.algorithm.startswith("nvls")


def measured(table: dict[str, Any]) -> list[tuple[int, float]]:
    """Return (size in bytes, out-of-place time in us) of a table; [] without the corpus."""
    if "times_us" in table:
        return [(table["first"] << i, us) for i, us in enumerate(table["times_us"])]
    folder, index = table["corpus"]
    path = CORPUS / folder / "tables.json"
    if not path.exists():
        return []
    rows = json.loads(path.read_text())["tables"][index]["rows"]
    return [(row["size"], row["oop"]["time_us"]) for row in rows if row["size"] > 0]


def network(table: dict[str, Any], hosts: int) -> genie.Network:
    """Return the model network of a table's cluster."""
    rate = table.get("nic_gbps")
    header = HEADERS.get(table.get("fabric", ""), 0)
    made = genie.Network(nic_gbps=rate, header_bytes=header)
    for nic, slow in table.get("slow_nics", {}).items():
        for host in range(hosts):
            made = made.degrade(host, int(nic), slow)
    return made


def simulate(
    kind: str, size: int, dtype: str, cluster: Any, nccl: Any, net: genie.Network
) -> tuple[float, str, str]:
    """Return one collective's simulated time in us, averaged over ranks, and NCCL's choice."""
    n = cluster.n_ranks
    element = 1 if dtype == "uint8" else 4
    count = size // element // (n if kind in WHOLE_BUFFER_KINDS else 1)
    # comm_size is a rank's input: its part in all_gather, everything elsewhere.
    nbytes = count * element * (n if kind in ("reduce_scatter", "all_to_all") else 1)
    made = Builder()
    made.node(Kind.COMM_COLL, kind, coll=Coll[kind.upper()], nbytes=nbytes, dtype=dtype)
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), "one", [made] * n)
        plan = genie.plan(genie.load(Path(folder) / "one"), cluster, nccl=nccl)
        recording = genie.simulate(plan, network=net, log_messages=False)
    if not recording.complete:
        raise SystemExit(f"{kind} of {size} bytes: the simulation did not end")
    ops = recording.ops
    template = plan.templates[0]
    time_us = float(np.mean(ops["end_ns"] - ops["start_ns"])) / 1e3
    return time_us, template.algorithm, template.protocol


def flat_ring(kind: str, size: int, cluster: Any, table: dict[str, Any]) -> float:
    """Return a ring's time in us with neither channels nor chunks: 2 us a step, full rate."""
    n = cluster.n_ranks
    nic = table.get("nic_gbps") or cluster.nic_gbps
    links = parameters()["generations"][str(cluster.sm)]["nvlink_gbps"]
    rate = nic * cluster.nics_per_host if cluster.n_hosts > 1 else links
    steps = (2 if kind == "all_reduce" else 1) * (n - 1)
    return steps * 2.0 + size * bus_factor(kind, n) / (rate * 1e3)


def rows_of(table: dict[str, Any], largest: int = 8 << 30) -> list[Row]:
    """Simulate a table's rows up to `largest` bytes."""
    cluster = parse_cluster(table["cluster"])
    assert cluster is not None
    nccl = genie.Nccl(version=table.get("nccl", "2.30"), env=table.get("env"))
    net = network(table, cluster.n_hosts)
    kind, dtype = table["kind"], table.get("dtype", "float32")
    found = []
    for size, us in measured(table):
        if size > largest:
            continue
        tuner, algorithm = float("nan"), ""
        if kind != "all_to_all":
            count = size // 4 // (1 if kind == "all_reduce" else cluster.n_ranks)
            choice = genie.tune(kind, count=count, dtype=dtype, cluster=cluster, nccl=nccl).choice
            tuner, algorithm = choice.time_us, choice.algorithm
        if algorithm.startswith("nvls") and (size > NVLS_LIMIT or not table["nvls"]):
            continue
        time_us, algorithm, protocol = simulate(kind, size, dtype, cluster, nccl, net)
        ring = flat_ring(kind, size, cluster, table)
        found.append(Row(size, us, time_us, tuner, ring, algorithm, protocol))
    return found


def band_errors(rows: list[Row], which: str, constant: bool, nvls: bool = False) -> list[float]:
    """Return the mean error in percent of each band, NaN where it has no rows.

    Args:
        rows: Of one table.
        which: "simulated", "tuner" or "ring".
        constant: Add what makes the smallest row right; that row then does not count.
        nvls: Count only the rows with NVLS, instead of only those without.
    """
    if not rows:
        return [float("nan")] * len(BANDS)
    shift = rows[0].measured - getattr(rows[0], which) if constant else 0.0
    counted = [r for r in rows[1 if constant else 0 :] if r.nvls == nvls]
    out = []
    for low, high in BANDS:
        errors = [
            abs((getattr(r, which) + shift) / r.measured - 1)
            for r in counted
            if low <= r.size < high
        ]
        out.append(100 * float(np.mean(errors)) if errors else float("nan"))
    return out


def cells(errors: list[float]) -> str:
    """Return errors as one cell of a table."""
    return " / ".join("-" if np.isnan(x) else f"{x:.0f}" for x in errors)


def document(results: dict[str, list[Row]]) -> str:
    """Return the Markdown of docs/workloads.md."""
    lines = [
        "| table | ours, raw | ours | NCCL's model | flat ring |",
        "|---|---|---|---|---|",
    ]
    total: dict[str, list[list[float]]] = {"simulated": [], "tuner": [], "ring": []}
    for nvls in (False, True):
        for name, rows in results.items():
            if not any(row.nvls == nvls for row in rows):
                continue
            errors = {which: band_errors(rows, which, True, nvls) for which in total}
            use = TABLES[name]["use"]
            label = f"{name} (setting)" if use == "setting" else name
            if nvls:
                label += ", NVLS rows"
            raw = cells(band_errors(rows, "simulated", False, nvls))
            mine, tuner, ring = (cells(errors[which]) for which in total)
            lines.append(f"| {label} | {raw} | {mine} | {tuner} | {ring} |")
            if use == "check" and not nvls:
                for which, found in errors.items():
                    total[which].append(found)
    means = [cells(_means(total[which])) for which in total]
    n = len(total["simulated"])
    lines.append(f"| **mean of the {n} check tables without NVLS** | | " + " | ".join(means) + " |")
    lines += [
        "",
        _verdict(total["simulated"]),
        "",
        "| table | kind | cluster | what it was measured on, source |",
        "|---|---|---|---|",
    ]
    for name, table in TABLES.items():
        if name in results:
            env = " ".join(f"{k}={v}" for k, v in table.get("env", {}).items())
            setting = ", ".join(x for x in (env, f"NCCL {table.get('nccl', '2.30')}") if x)
            lines.append(
                f"| {name} | {table['kind']} | {table['cluster']}, {setting} | "
                f"{table['hardware']}; {table['source']}{_assumed(table)} |"
            )
    lines += ["", "Not comparable:", ""]
    for name, table in TABLES.items():
        if table["use"] == "apart":
            lines.append(f"* {name}: {table['why']} ({table['source']}).")
    return "\n".join(lines)


def _assumed(table: dict[str, Any]) -> str:
    """Return what was assumed of a table's run, as the end of a sentence."""
    return f"; assumed: {table['assumed']}" if "assumed" in table else ""


def _means(rows: list[list[float]]) -> list[float]:
    """Return the mean of each band over the tables that have it."""
    columns = [[x for x in column if not np.isnan(x)] for column in zip(*rows, strict=True)]
    return [float(np.mean(column)) if column else float("nan") for column in columns]


def _verdict(rows: list[list[float]]) -> str:
    """Return how many check tables meet the goals."""
    parts = []
    for band, goal in ((2, 10.0), (3, 5.0)):
        found = [row[band] for row in rows if not np.isnan(row[band])]
        met = sum(x <= goal for x in found)
        parts.append(f"{met} of {len(found)} within {goal:.0f} % {BAND_NAMES[band]}")
    return "Check tables that meet the goal: " + ", ".join(parts) + "."


def replace_section(path: Path, name: str, text: str) -> None:
    """Put `text` between the markers `<!-- name:begin -->` and `<!-- name:end -->` of a file."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    whole = path.read_text()
    if begin not in whole or end not in whole:
        raise SystemExit(f"{path}: no markers {begin} and {end}")
    head, rest = whole.split(begin, 1)
    path.write_text(f"{head}{begin}\n{text}\n{end}{rest.split(end, 1)[1]}")


def draw(results: dict[str, list[Row]], file: str) -> None:
    """Draw bus bandwidth over size, a panel a table."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 3, figsize=(13, 7), sharex=True, layout="constrained")
    series = (
        ("measured", "measured", "k", "o"),
        ("simulated", "genie simulate", "C0", ""),
        ("tuner", "NCCL's model", "C1", ""),
        ("ring", "flat ring", "0.6", ""),
    )
    for ax, (name, rows) in zip(axes.flat, results.items(), strict=False):
        cluster = parse_cluster(TABLES[name]["cluster"])
        assert cluster is not None
        factor = bus_factor(TABLES[name]["kind"], cluster.n_ranks)
        size = np.array([row.size for row in rows], dtype=float)
        for field, label, colour, marker in series:
            time = np.array([getattr(row, field) for row in rows])
            if field != "measured":
                time = time + rows[0].measured - time[0]
            ax.plot(
                size, size * factor / time / 1e3, color=colour, label=label, marker=marker,
                markersize=4, linestyle="none" if marker else "-",
            )  # fmt: skip
        apart = [row.size for row in rows if row.nvls]
        if apart:
            ax.axvspan(min(apart), max(apart), color="C2", alpha=0.08, label="NVLS")
        ax.set_xscale("log", base=2)
        ax.set_xticks([2.0**k for k in range(10, 34, 4)])
        ax.set_xticklabels(["1K", "16K", "256K", "4M", "64M", "1G"])
        ax.set_title(f"{name}: {TABLES[name]['kind']}", fontsize=10)
        ax.grid(alpha=0.3)
        ax.legend(fontsize=8)
    for ax in axes[:, 0]:
        ax.set_ylabel("bus bandwidth (GB/s)")
    for ax in axes[1]:
        ax.set_xlabel("size (bytes)")
    figure.savefig(file, dpi=110)


def main(arguments: list[str] | None = None) -> None:
    """Run the comparison from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("tables", nargs="*", help="tables by name; all comparable ones if none")
    parser.add_argument("--doc", action="store_true", help="write docs/workloads.md")
    parser.add_argument("--figure", metavar="FILE", help="draw the tables of the figure")
    parser.add_argument(
        "--keep", type=Path, metavar="FILE", help="keep simulated rows there, and use what is there"
    )
    parser.add_argument("--rows", action="store_true", help="print every row")
    args = parser.parse_args(arguments)
    names = args.tables or [name for name, table in TABLES.items() if table["use"] != "apart"]
    results = {}
    kept = json.loads(args.keep.read_text()) if args.keep and args.keep.exists() else {}
    for name in names:
        if name not in TABLES or TABLES[name]["use"] == "apart":
            raise SystemExit(f"no comparable table {name!r} in nccl_tests/tables.json")
        key = f"{name} {json.dumps([TABLES[name], parameters()], sort_keys=True)}"
        digest = hashlib.sha256(key.encode()).hexdigest()
        if digest in kept:  # noqa: SIM108
            rows = [Row(**row) for row in kept[digest]]
        else:
            rows = rows_of(TABLES[name])
        if not rows:
            print(f"{name}: not in {CORPUS}, left out", file=sys.stderr)
            continue
        results[name] = rows
        if args.keep:
            kept[digest] = [vars(row) for row in rows]
            args.keep.write_text(json.dumps(kept))
        print(f"{name}: ours {cells(band_errors(rows, 'simulated', True))} %", file=sys.stderr)
        for row in rows if args.rows else ():
            print(
                f"{name} {row.size} {row.measured:.1f} {row.simulated:.1f} {row.tuner:.1f} "
                f"{row.ring:.1f} {row.algorithm} {row.protocol}"
            )
    text = document(results)
    if args.doc:
        replace_section(HERE.parent / "docs" / "workloads.md", "nccl-tests", text)
    else:
        print(text)
    if args.figure:
        draw({name: results[name] for name in FIGURE if name in results}, args.figure)


#: Tables of the figure in docs/img.
FIGURE = (
    "a100-1x8",
    "a100-2x8-azure",
    "h100-2x8-ring24",
    "h100-4x8-vm",
    "b200-2x8-gke-gather",
    "h100-2x8-dell",
)

if __name__ == "__main__":
    main()
