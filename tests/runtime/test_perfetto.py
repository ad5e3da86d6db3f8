from __future__ import annotations

import gzip
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import genie
from genie.errors import RecordError
from genie.replay.perfetto import export
from genie.replay.tables import KINDS
from runtime.sample import recording
from runtime.steps import steps

ROOT = Path(__file__).parents[2]


def load(path):
    with gzip.open(path, "rt") as file:
        return json.load(file)


def test_kernels_carry_the_profilers_names(tmp_path):
    paths = export(recording(ranks=4, iterations=2, warmup=0), tmp_path)
    assert [p.name for p in paths] == [f"rank{r}.pt.trace.json.gz" for r in range(4)]
    document = load(paths[1])
    assert document["distributedInfo"]["rank"] == 1
    assert document["distributedInfo"]["world_size"] == 4
    assert document["distributedInfo"]["pg_config"][0]["ranks"] == [0, 1, 2, 3]
    kernels = [e for e in document["traceEvents"] if e.get("cat") == "kernel"]
    assert len(kernels) == 2 * 4
    reduce = next(e for e in kernels if "AllReduce" in e["name"])
    assert reduce["name"].startswith("ncclDevKernel_AllReduce_Sum_f32")
    args = reduce["args"]
    assert args["Collective name"] == "allreduce" and args["dtype"] == "Float"
    assert args["In msg nelems"] == args["Out msg nelems"] == 250_000
    assert args["Group size"] == 4 and args["Process Group Ranks"] == "[0, 1, 2, 3]"
    assert args["Process Group Name"] == "dp" and args["stream"] == reduce["tid"] == 20
    assert reduce["ts"] == 1001.0 and reduce["dur"] == 103.0  # us
    gather = next(e for e in kernels if "AllGather" in e["name"])["args"]
    assert (gather["In msg nelems"], gather["Out msg nelems"]) == (500_000, 2_000_000)
    assert gather["dtype"] == "BFloat16" and gather["Collective name"] == "_allgather_base"
    recv = next(e for e in kernels if e["args"].get("Collective name") == "recv")
    assert recv["args"]["Src Rank"] == 0
    comp = next(e for e in kernels if e["name"] == "fwd")
    assert comp["tid"] == 7 and "Collective name" not in comp["args"]


def test_every_kernel_has_its_launch_and_arrow(tmp_path):
    document = load(export(recording(), tmp_path)[0])
    events = document["traceEvents"]
    by_correlation = {e["args"]["correlation"]: e for e in events if e.get("cat") == "cuda_runtime"}
    kernels = [e for e in events if e.get("cat") == "kernel"]
    assert len(by_correlation) == len(kernels)
    for kernel in kernels:
        launch = by_correlation[kernel["args"]["correlation"]]
        assert launch["args"]["External id"] == kernel["args"]["External id"]
        assert launch["ts"] <= kernel["ts"]
    arrows = [e["id"] for e in events if e["ph"] == "s"]
    assert (
        sorted(arrows)
        == sorted(by_correlation)
        == sorted(e["id"] for e in events if e["ph"] == "f")
    )


def test_nodes_without_a_stream_never_overlap_on_one(tmp_path):
    rec = recording(ranks=1, iterations=1, warmup=0)
    rows = rec.ops[[0] * 6].copy()
    rows["stream"] = -1
    rows["start_ns"] = [0, 10, 20, 90, 95, 200]
    rows["end_ns"] = [100, 50, 30, 190, 96, 300]
    rows["node"] = range(6)
    rec.tables["ops"] = rows
    events = load(export(rec, tmp_path)[0])["traceEvents"]
    lanes: dict[int, list[tuple[float, float]]] = {}
    for e in events:
        if e.get("cat") == "kernel":
            lanes.setdefault(e["tid"], []).append((e["ts"], e["ts"] + e["dur"]))
    assert len(lanes) == 3
    for spans in lanes.values():
        spans.sort()
        assert all(a[1] <= b[0] + 1e-9 for a, b in itertools.pairwise(spans))


def test_unfinished_nodes_are_left_out(tmp_path):
    rec = recording(ranks=2, iterations=1, warmup=0)
    rec.ops["end_ns"][1] = -1
    events = load(export(rec, tmp_path)[0])["traceEvents"]
    assert len([e for e in events if e.get("cat") == "kernel"]) == 3


def test_messages_are_async_events(tmp_path):
    events = load(export(recording(), tmp_path, messages=True)[0])["traceEvents"]
    begin = [e for e in events if e["ph"] == "b"]
    end = [e for e in events if e["ph"] == "e"]
    assert len(begin) == len(end) == 1 and begin[0]["args"]["nbytes"] == 4096
    assert end[0]["ts"] - begin[0]["ts"] == pytest.approx(0.4)
    assert begin[0]["args"]["node name"] == "grads"


def test_files_are_not_replaced_silently(tmp_path):
    rec = recording(ranks=2)
    first = [p.read_bytes() for p in export(rec, tmp_path)]
    with pytest.raises(RecordError, match="there already"):
        export(rec, tmp_path)
    assert [p.read_bytes() for p in export(rec, tmp_path, force=True)] == first
    plain = export(rec, tmp_path / "plain", compress=False)
    assert json.loads(plain[0].read_text())["schemaVersion"] == 1
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match="was not written"):
        export(rec, tmp_path / "file" / "x")


@pytest.fixture(scope="module")
def hta() -> str:
    """A Python with HolisticTraceAnalysis: GENIE_HTA_PYTHON, or .venv-hta made here once."""
    given = os.environ.get("GENIE_HTA_PYTHON")
    if given:
        return given
    folder = ROOT / ".venv-hta"
    python = folder / "bin" / "python"
    check = [str(python), "-c", "import hta.trace_analysis"]
    if not python.exists() or subprocess.run(check, capture_output=True).returncode:
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        done = subprocess.run(
            [str(python), "-m", "pip", "install", "-q", "HolisticTraceAnalysis"],
            capture_output=True, text=True,
        )  # fmt: skip
        if done.returncode:
            pytest.skip(f"HolisticTraceAnalysis cannot be installed: {done.stderr[-300:]}")
    return str(python)


def report(hta: str, folder: Path, home: Path):
    done = subprocess.run(
        [hta, str(Path(__file__).with_name("hta_report.py")), str(folder)],
        capture_output=True, text=True, env={"PATH": os.environ["PATH"], "HOME": str(home)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("made", ["sample", "replay"])
def test_hta_reads_it_and_finds_our_numbers(tmp_path, hta, made):
    if made == "sample":
        rec = recording(ranks=4, iterations=2, warmup=1)
    else:
        trace = steps(tmp_path / "trace", ranks=4, steps=4, comp_ns=2_000_000)
        rec = genie.replay(trace, "local:2", iterations=2, progress=False)
    export(rec, tmp_path / "out")
    found = report(hta, tmp_path / "out", tmp_path)
    assert found["ranks"] == [0, 1, 2, 3]
    ops = rec.ops
    for rank in range(4):
        mine = ops[ops["rank"] == rank]
        assert found["launches"][str(rank)] == len(mine)
        for kind, kernel in (("all_reduce", "AllReduce"), ("all_gather", "AllGather")):
            rows = mine[mine["kind"] == KINDS.index(kind)]
            want = (rows["end_ns"] - rows["start_ns"]).sum() / 1e3
            got = sum(us for r, name, us in found["kernels"] if r == rank and kernel in name)
            # HTA rounds both ends of each event inwards to whole microseconds.
            assert got == pytest.approx(want, abs=2 * len(rows) + 1)
        comp = mine[mine["kind"] == KINDS.index("comp")]
        want = (comp["end_ns"] - comp["start_ns"]).sum() / 1e3
        name = str(rec.column("ops", "name")[ops["kind"] == KINDS.index("comp")][0]).split()[0]
        got = sum(us for r, kernel, us in found["kernels"] if r == rank and kernel.startswith(name))
        assert got == pytest.approx(want, abs=2 * len(comp) + 1)
        assert found["overlap"][str(rank)] == pytest.approx(100 * overlap_share(mine), abs=2.0)


def overlap_share(rows: np.ndarray) -> float:
    """Share of communication time during which compute runs, by brute force over all instants."""
    comm = rows["kind"] < 12
    edges = np.unique(np.concatenate([rows["start_ns"], rows["end_ns"]]))
    busy, both = 0, 0
    for a, b in itertools.pairwise(edges):
        inside = (rows["start_ns"] <= a) & (rows["end_ns"] >= b)
        if (inside & comm).any():
            busy += b - a
            both += (b - a) if (inside & ~comm).any() else 0
    return both / busy
