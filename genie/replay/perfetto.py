"""A Recording as Chrome traces, one file a rank, that profiler tools read.

The events carry the names and arguments that PyTorch's profiler (Kineto) gives to NCCL kernels, so
that Perfetto, TensorBoard's PyTorch plugin and HolisticTraceAnalysis understand them: a "kernel"
event for each node on its stream, the "record_param_comms" operator, "nccl:..." annotation and
kernel launch on the CPU side, "ProfilerStep#n" for each iteration, and flow arrows between them.
Source of the argument names: Kineto's output as of PyTorch 2.4, and HTA 0.5.
"""

from __future__ import annotations

import datetime
import gzip
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from genie.errors import RecordError
from genie.replay.tables import KINDS, N_COMM

if TYPE_CHECKING:
    from genie.replay.recording import Recording

#: torch.ScalarType names, as Kineto's "dtype" has them.
TORCH_DTYPE = {
    "int8": ("Char", 1),
    "uint8": ("Byte", 1),
    "int32": ("Int", 4),
    "uint32": ("UInt32", 4),
    "int64": ("Long", 8),
    "uint64": ("UInt64", 8),
    "float16": ("Half", 2),
    "float32": ("Float", 4),
    "float64": ("Double", 8),
    "bfloat16": ("BFloat16", 2),
    "float8_e4m3": ("Float8_e4m3fn", 1),
    "float8_e5m2": ("Float8_e5m2", 1),
}
#: kind → (ProcessGroupNCCL's name, the function in NCCL's kernel name).
NAMES = {
    "all_reduce": ("allreduce", "AllReduce_Sum"),
    "reduce": ("reduce", "Reduce_Sum"),
    "all_gather": ("_allgather_base", "AllGather"),
    "gather": ("gather", "SendRecv"),
    "scatter": ("scatter", "SendRecv"),
    "broadcast": ("broadcast", "Broadcast"),
    "all_to_all": ("all_to_all", "SendRecv"),
    "reduce_scatter": ("_reduce_scatter_base", "ReduceScatter_Sum"),
    "reduce_scatter_block": ("_reduce_scatter_base", "ReduceScatter_Sum"),
    "barrier": ("barrier", "AllReduce_Sum"),
    "send": ("send", "SendRecv"),
    "recv": ("recv", "SendRecv"),
}
#: Streams for nodes whose trace names none: compute, and one a communicator.
COMPUTE_STREAM, COMM_STREAM = 7, 20
CPU_THREAD = 1
#: Process ids of the CPU side are above every rank's device id.
CPU_PID = 1_000_000


def export(
    rec: Recording,
    directory: str | os.PathLike[str],
    *,
    compress: bool = True,
    messages: bool = False,
    force: bool = False,
) -> list[Path]:
    """Write `rank<r>.pt.trace.json.gz` for every rank of `rec` into `directory`.

    Args:
        rec: What to write.
        directory: Created if need be.
        compress: Write .json.gz, else .json.
        messages: Also one event a message, by channel and peer, as a process "network".
        force: Replace files of these names.

    Returns:
        The files, in rank order.

    Raises:
        RecordError: A file is there already, or the disk refused.
    """
    folder = Path(directory)
    ranks = [int(rank) for rank in np.unique(rec.ops["rank"])]
    suffix = ".pt.trace.json.gz" if compress else ".pt.trace.json"
    targets = [folder / f"rank{rank}{suffix}" for rank in ranks]
    for target in targets:
        if target.exists() and not force:
            raise RecordError(f"{target} is there already", path=str(target))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for rank, target in zip(ranks, targets, strict=True):
            _write(target, rec, rank, compress, messages)
    except OSError as exc:
        why = exc.strerror or str(exc)
        raise RecordError(f"{folder}: the trace was not written: {why}", path=str(folder)) from exc
    return targets


def _write(target: Path, rec: Recording, rank: int, compress: bool, messages: bool) -> None:
    with tempfile.NamedTemporaryFile("wb", dir=target.parent, delete=False) as scratch:
        try:
            # mtime=0: equal recordings give equal files.
            with (
                gzip.GzipFile(fileobj=scratch, mode="wb", compresslevel=6, mtime=0, filename="")
                if compress
                else scratch
            ) as out:
                for text in _document(rec, rank, target.name, messages):
                    out.write(text.encode())
        except BaseException:
            os.unlink(scratch.name)
            raise
    os.chmod(scratch.name, 0o644)
    shutil.move(scratch.name, target)


def _document(rec: Recording, rank: int, name: str, messages: bool) -> Iterator[str]:
    # HTA finds a file's rank by a pattern in its first bytes: distributedInfo comes first.
    head = {
        "schemaVersion": 1,
        "distributedInfo": _distributed(rec, rank),
        "deviceProperties": [
            {"id": rank, "name": "GENIE replay", "totalGlobalMem": 0, "numSms": 1}
        ],
        "displayTimeUnit": "ns",
        "baseTimeNanoseconds": _base_ns(rec),
        "traceName": name,
        "genie": {
            key: rec.manifest.get(key)
            for key in ("mode", "genie_version", "trace", "plan", "complete", "incomplete")
        },
    }
    yield json.dumps(head)[:-1] + ', "traceEvents": [\n'
    separator = ""
    for event in _events(rec, rank, messages):
        yield separator + json.dumps(event)
        separator = ",\n"
    yield "\n]}\n"


def _base_ns(rec: Recording) -> int:
    """Return the wall clock of the start barrier, ns since the epoch (to the second)."""
    try:
        created = datetime.datetime.fromisoformat(rec.manifest["created"])
    except (KeyError, TypeError, ValueError):
        return 0
    return int(created.timestamp()) * 1_000_000_000


def _distributed(rec: Recording, rank: int) -> dict[str, Any]:
    groups = [c for c in rec.manifest.get("communicators", ()) if rank in c["ranks"]]
    world = rec.manifest.get("trace", {}).get("ranks") or len(np.unique(rec.ops["rank"]))
    return {
        "backend": "nccl",
        "rank": rank,
        "world_size": world,
        "pg_count": len(groups),
        "pg_config": [
            {
                "pg_name": c["name"],
                "pg_desc": "default_pg" if len(c["ranks"]) == world else c["name"],
                "backend_config": "cuda:nccl",
                "pg_size": len(c["ranks"]),
                "ranks": c["ranks"],
            }
            for c in groups
        ],
        "nccl_version": str(rec.manifest.get("nccl_version", "")),
    }


def _us(ns: int) -> float:
    return round(ns / 1e3, 3)


def _events(rec: Recording, rank: int, messages: bool) -> Iterator[dict[str, Any]]:
    cpu = CPU_PID + rank
    yield from _metadata(rank, cpu)
    index = np.flatnonzero(rec.ops["rank"] == rank)
    rows = rec.ops[index]
    names = rec.column("ops", "name")[index]
    dtypes = rec.column("ops", "dtype")[index]
    communicators = rec.column("ops", "communicator")[index]
    streams = _streams(rows)
    groups = {c["name"]: c["ranks"] for c in rec.manifest.get("communicators", ())}
    yield from _steps(rows, cpu)
    for i in np.argsort(rows["start_ns"], kind="stable").tolist():
        row = rows[i]
        if row["start_ns"] < 0 or row["end_ns"] < 0 or KINDS[row["kind"]] == "metadata":
            continue
        comm = int(row["kind"]) < N_COMM
        extra = _comm_args(row, str(dtypes[i]), str(communicators[i]), groups) if comm else {}
        yield from _node(row, i + 1, str(names[i]), streams[i], rank, cpu, extra)
    if messages:
        yield from _messages(rec, rank, index)


def _metadata(rank: int, cpu: int) -> Iterator[dict[str, Any]]:
    for pid, name, label, order in (
        (cpu, f"rank {rank}", "CPU", 0),
        (rank, f"rank {rank}", f"GPU {rank}", 1),
    ):
        base = {"ph": "M", "ts": 0, "pid": pid, "tid": 0}
        yield base | {"name": "process_name", "args": {"name": name}}
        yield base | {"name": "process_labels", "args": {"labels": label}}
        yield base | {"name": "process_sort_index", "args": {"sort_index": order}}
    yield {
        "ph": "X", "cat": "Trace", "ts": 0, "dur": 0, "pid": "Spans", "tid": "PyTorch Profiler",
        "name": "PyTorch Profiler (0)", "args": {"Op count": 0},
    }  # fmt: skip


def _streams(rows: npt.NDArray[np.void]) -> list[int]:
    """Return each row's stream: the trace's, one a communicator, or a free compute lane."""
    out = rows["stream"].astype(np.int64)
    comm = rows["kind"] < N_COMM
    taken = {int(s) for s in np.unique(out[out >= 0])}
    per_group: dict[int, int] = {}
    for code in np.unique(rows["communicator"][comm & (out < 0)]).tolist():
        number = COMM_STREAM
        while number in taken:
            number += 1
        taken.add(number)
        per_group[code] = number
    lanes: list[tuple[int, int]] = []  # (stream, end of its last node)
    for i in np.argsort(rows["start_ns"], kind="stable").tolist():
        if out[i] >= 0:
            continue
        if comm[i]:
            out[i] = per_group[int(rows["communicator"][i])]
            continue
        begin, end = int(rows["start_ns"][i]), int(rows["end_ns"][i])
        free = next((k for k, (_, last) in enumerate(lanes) if last <= begin), None)
        if free is None:
            number = COMPUTE_STREAM
            while number in taken:
                number += 1
            taken.add(number)
            free = len(lanes)
            lanes.append((number, 0))
        lanes[free] = (lanes[free][0], max(end, begin))
        out[i] = lanes[free][0]
    return [int(stream) for stream in out]


def _steps(rows: npt.NDArray[np.void], cpu: int) -> Iterator[dict[str, Any]]:
    done = rows[(rows["ready_ns"] >= 0) & (rows["end_ns"] >= 0)]
    spans = []
    for iteration in np.unique(done["iteration"]).tolist():
        mine = done[done["iteration"] == iteration]
        spans.append((iteration, int(mine["ready_ns"].min()), int(mine["end_ns"].max())))
    if spans:
        # HTA leaves out the last step, because a profiler may have cut it short; ours is whole,
        # so an empty one follows it.
        spans.append((spans[-1][0] + 1, spans[-1][2] + 1000, spans[-1][2] + 2000))
    for number, (iteration, begin, end) in enumerate(spans):
        yield {
            "ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{number}", "pid": cpu,
            "tid": CPU_THREAD, "ts": _us(begin), "dur": _us(end - begin),
            "args": {"External id": 0, "iteration": iteration},
        }  # fmt: skip


def _comm_args(
    row: np.void, dtype: str, communicator: str, groups: dict[str, list[int]]
) -> dict[str, Any]:
    """Return the arguments that Kineto gives to a NCCL kernel."""
    kind = KINDS[row["kind"]]
    ranks = groups.get(communicator, [])
    n = max(len(ranks), 1)
    name, size = TORCH_DTYPE.get(dtype, ("Byte", 1))
    total = int(row["nbytes"]) // size
    part = total // n
    into = part if kind in ("all_gather", "gather") else total
    out = part if kind in ("reduce_scatter", "reduce_scatter_block", "scatter") else total
    args: dict[str, Any] = {
        "Collective name": NAMES[kind][0],
        "In msg nelems": into,
        "Out msg nelems": out,
        "Group size": n,
        "dtype": name,
        "In split size": "[]",
        "Out split size": "[]",
        "Process Group Name": communicator,
        "Process Group Description": communicator,
        "Process Group Ranks": json.dumps(ranks),
        "Rank": int(row["rank"]),
    }
    if int(row["seq"]) >= 0:
        args["Seq"] = int(row["seq"])
    if kind == "send":
        args["Dst Rank"] = int(row["peer"])
    elif kind == "recv":
        args["Src Rank"] = int(row["peer"])
    return args


def _node(
    row: np.void, number: int, name: str, stream: int, device: int, cpu: int, comm: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Yield the GPU event of one node and its CPU side, tied by `correlation`."""
    ready, begin, end = int(row["ready_ns"]), int(row["start_ns"]), int(row["end_ns"])
    kind = KINDS[row["kind"]]
    kernel = name
    if comm:
        dtype = {"Float": "f32", "Double": "f64", "Half": "f16", "BFloat16": "bf16"}.get(
            comm["dtype"], "u8"
        )
        function = NAMES[kind][1]
        suffix = f"_{dtype}" if function.endswith("_Sum") else ""
        kernel = f"ncclDevKernel_{function}{suffix}(ncclDevKernelArgsStorage<4096ul>)"
        base = {"ph": "X", "pid": cpu, "tid": CPU_THREAD, "ts": _us(ready), "dur": 0.001}
        yield base | {
            "cat": "cpu_op", "name": "record_param_comms",
            "args": {"External id": number, **comm},
        }  # fmt: skip
        label = kind.replace("_base", "").lstrip("_")
        yield base | {
            "cat": "user_annotation",
            "name": f"nccl:{label}",
            "args": {"External id": number},
        }
    yield {
        "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": cpu,
        "tid": CPU_THREAD, "ts": _us(ready), "dur": 0.001,
        "args": {"External id": number, "cbid": 211, "correlation": number},
    }  # fmt: skip
    flow = {"id": number, "cat": "ac2g", "name": "ac2g"}
    yield flow | {"ph": "s", "pid": cpu, "tid": CPU_THREAD, "ts": _us(ready)}
    yield flow | {"ph": "f", "bp": "e", "pid": device, "tid": stream, "ts": _us(begin)}
    yield {
        "ph": "X",
        "cat": "kernel",
        "name": kernel,
        "pid": device,
        "tid": stream,
        "ts": _us(begin),
        "dur": _us(end - begin),
        "args": {
            "External id": number,
            "device": device,
            "context": 1,
            "stream": stream,
            "correlation": number,
            **comm,
            "node": int(row["node"]),
            "node name": name,
            "iteration": int(row["iteration"]),
            "queued ns": begin - ready,
        },
    }


def _messages(rec: Recording, rank: int, ops: npt.NDArray[np.intp]) -> Iterator[dict[str, Any]]:
    """Yield an event for each message of the rank, a thread for each direction, peer, channel."""
    pid = 2 * CPU_PID + rank
    yield {
        "ph": "M", "ts": 0, "pid": pid, "tid": 0, "name": "process_name",
        "args": {"name": f"rank {rank} network"},
    }  # fmt: skip
    rows = rec.messages[rec.messages["rank"] == rank]
    names = rec.column("ops", "name")
    threads: dict[tuple[int, int, int], int] = {}
    for number, row in enumerate(rows):
        if row["completed_ns"] < 0:
            continue
        key = (int(row["direction"]), int(row["peer"]), int(row["channel"]))
        thread = threads.get(key)
        way = "recv from" if key[0] else "send to"
        if thread is None:
            thread = threads[key] = len(threads)
            yield {
                "ph": "M", "ts": 0, "pid": pid, "tid": thread, "name": "thread_name",
                "args": {"name": f"{way} {key[1]}, channel {key[2]}"},
            }  # fmt: skip
        # Messages of a window overlap, which only async events can show.
        event = {
            "cat": "message", "name": f"{way} {key[1]}", "id": number, "pid": pid, "tid": thread
        }  # fmt: skip
        op = int(row["op"])
        yield event | {
            "ph": "b", "ts": _us(int(row["posted_ns"])),
            "args": {
                "nbytes": int(row["nbytes"]), "channel": key[2], "status": int(row["status"]),
                "node name": str(names[op]) if 0 <= op < len(names) else "",
            },
        }  # fmt: skip
        yield event | {"ph": "e", "ts": _us(int(row["completed_ns"]))}
