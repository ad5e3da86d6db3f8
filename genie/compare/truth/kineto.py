"""PyTorch profiler (Kineto) traces of one rank or many: one operation an NCCL kernel."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from genie.compare.truth.kernels import NCCL_KERNEL, kernel_choice, kernel_kind, torch_kind
from genie.compare.truth.kineto_file import (
    Args,
    Event,
    File,
    arguments,
    as_int,
    as_list,
    decode,
    groups,
)
from genie.compare.truth.model import KINDS, Labels, Truth, empty_ops
from genie.errors import CompareError
from genie.replay.bandwidth import bus_factor, size_bytes
from genie.trace.kinds import DTYPE_BYTES, DTYPES, dtype_index

_RANK_IN_NAME = re.compile(r"(?:rank|worker)[-_.]?(\d+)", re.IGNORECASE)
_COMPUTE, _MEMCPY = KINDS.index("comp"), KINDS.index("mem_store")


def read(paths: list[Path], source: Path) -> Truth:
    """Return the GPU's operations of a set of files, one file a rank.

    Sizes are elements times the size of the arguments' dtype (never the kernel name's: a
    broadcast of floats runs as an int8 kernel). An operation without arguments keeps nbytes -1.

    Raises:
        CompareError: No file has an NCCL kernel.
    """
    labels = Labels()
    unused: Counter[str] = Counter()
    rows: list[dict[str, Any]] = []
    communicators: dict[str, tuple[int, ...]] = {}
    world = -1
    ranks: list[int] = []
    kernels = 0
    inferred: Counter[str] = Counter()
    bases = set()
    for table, path in enumerate(paths):
        file = decode(path)
        rank = rank_of(file, path, len(paths))
        if rank in ranks:
            raise CompareError(f"{path}: rank {rank} is in the set twice", path=str(path))
        ranks.append(rank)
        bases.add(file.base_ns)
        if file.distributed is not None and file.distributed.world_size:
            world = max(world, file.distributed.world_size)
        communicators |= groups(file.distributed)
        found, seen = _file_rows(file, rank, table, unused, inferred)
        kernels += seen
        rows += found
    if all(row["kind"] in (_COMPUTE, _MEMCPY) for row in rows):
        raise CompareError(
            f"{source}: no NCCL kernel among {kernels} GPU kernels: nothing to compare "
            "(one GPU, CPU-only, or a profile without device activity)",
            path=str(source),
        )
    ops = empty_ops(len(rows))
    for i, row in enumerate(rows):
        for column, value in row.items():
            if column in ("name", "communicator", "dtype", "algorithm", "protocol"):
                ops[column][i] = labels.code(column, value)
            else:
                ops[column][i] = value
    ops = ops[np.lexsort((ops["start_ns"], ops["rank"]))]
    computes = np.isin(ops["kind"], (_COMPUTE, _MEMCPY))
    ops, compute = ops[~computes], ops[computes]
    notes = [f"{why}: {n} operations" for why, n in inferred.items()]
    without = int((ops["nbytes"] < 0).sum())
    if without:
        notes.append(f"{without} operations carry no size; they are left out of the metrics")
    if world > len(ranks):
        notes.append(f"{len(ranks)} of {world} ranks are here")
    if len(paths) > 1 and bases == {0}:
        notes.append("the files name no base time: clocks of ranks are compared as they are")
    return Truth(
        ops=ops,
        compute=compute,
        source=str(source),
        format="kineto",
        labels=labels.tables(),
        counts={"files": len(paths), "ranks": len(ranks), "kernels": kernels},
        unused=dict(unused),
        communicators=communicators,
        world_size=world,
        notes=tuple(notes),
    )


def rank_of(file: File, path: Path, files: int) -> int:
    """Return a file's rank: as it says, else from its name, else 0 for a lone file, else -1."""
    if file.distributed is not None and file.distributed.rank is not None:
        return file.distributed.rank
    match = _RANK_IN_NAME.search(path.name)
    if match:
        return int(match[1])
    if files == 1:
        return 0
    raise CompareError(
        f"{path}: neither distributedInfo nor the file name says which rank this is",
        path=str(path),
    )


def _file_rows(
    file: File, rank: int, table: int, unused: Counter[str], inferred: Counter[str]
) -> tuple[list[dict[str, Any]], int]:
    """Return the rows of one file, and how many GPU kernels it has."""
    annotations = _Annotations(file.events)
    comms = _comm_ops(file.events)
    rows = []
    kernels = 0
    for event in file.events:
        cat = event.cat.lower()
        if event.ph != "X" or cat not in ("kernel", "gpu_memcpy"):
            continue
        kernels += cat == "kernel"
        if event.dur is None or event.dur < 0:
            unused["device event with a negative or no duration"] += 1
            continue
        start = round(file.base_ns + event.ts * 1000)
        row: dict[str, Any] = {
            "rank": rank,
            "table": table,
            "name": event.name.split("(", 1)[0],
            "start_ns": start,
            "end_ns": start + round(event.dur * 1000),
            "time_ns": float(round(event.dur * 1000)),
            "stream": as_int(event.tid),
        }
        if cat == "gpu_memcpy":
            rows.append(row | {"kind": _MEMCPY})
        elif NCCL_KERNEL.match(event.name):
            rows.append(row | _communication(event, annotations, comms, inferred))
        else:
            rows.append(row | {"kind": _COMPUTE})
    return rows, kernels


class _Annotations:
    """Where PyTorch's "nccl:…" annotations are, on the device and on the CPU.

    A kernel's annotation is the device's around it, else the CPU's around its launch (found by
    correlation id); of several the innermost.
    """

    def __init__(self, events: list[Event]) -> None:
        self._device: dict[int, list[tuple[float, float, str]]] = defaultdict(list)
        self._host: dict[int, list[tuple[float, float, str]]] = defaultdict(list)
        self._launches: dict[int, tuple[int, float]] = {}
        for event in events:
            if event.name.startswith("nccl:"):
                where = self._device if event.cat == "gpu_user_annotation" else self._host
                span = (float(event.ts), float(event.ts + (event.dur or 0)), event.name)
                where[as_int(event.tid)].append(span)
        if not self._host:
            return
        for event in events:
            if event.cat.lower() in ("cuda_runtime", "runtime", "cuda_driver"):
                correlation = as_int(arguments(event).correlation)
                if correlation >= 0:
                    self._launches[correlation] = (as_int(event.tid), float(event.ts))

    def of(self, event: Event, correlation: int) -> str | None:
        """Return the annotation of a kernel, None if there is none."""
        found = _around(self._device.get(as_int(event.tid), ()), float(event.ts))
        if found is None and correlation in self._launches:
            thread, at = self._launches[correlation]
            found = _around(self._host.get(thread, ()), at)
        return found


def _around(spans: Sequence[tuple[float, float, str]], at: float) -> str | None:
    """Return the shortest span's name that contains a time."""
    inside = [span for span in spans if span[0] <= at <= span[1]]
    return min(inside, key=lambda span: span[1] - span[0])[2] if inside else None


def _comm_ops(events: list[Event]) -> dict[int, Args]:
    """Return External id → arguments of the CPU side's record_param_comms."""
    found = {}
    for event in events:
        if event.name == "record_param_comms":
            args = arguments(event)
            found[as_int(args.external_id)] = args
    return found


def _communication(
    event: Event,
    annotations: _Annotations,
    comms: dict[int, Args],
    inferred: Counter[str],
) -> dict[str, Any]:
    """Return the columns of one NCCL kernel."""
    args = arguments(event)
    if args.collective is None and args.in_nelems is None:
        linked = comms.get(as_int(args.external_id))
        if linked is not None and linked.collective is not None:
            inferred["metadata taken from the CPU operation"] += 1
            linked.grid, linked.stream = args.grid, args.stream
            args = linked
    kind = torch_kind(str(args.collective) if args.collective is not None else None)
    if kind is None:
        kind = kernel_kind(event.name)
        if kind == "unknown":
            found = torch_kind(annotations.of(event, as_int(args.correlation)))
            if found is not None:
                kind = found
                inferred["kind taken from the annotation around kernel or launch"] += 1
    algorithm, protocol = kernel_choice(event.name)
    n = as_int(args.group_size)
    dtype = dtype_index(str(args.dtype)) if args.dtype is not None else -1
    count, nbytes = _size(kind, args, n, dtype)
    time = float(event.dur or 0) * 1000
    algbw = nbytes / time if nbytes > 0 and time > 0 else float("nan")
    return {
        "kind": KINDS.index(kind),
        "communicator": str(args.group) if args.group is not None else None,
        "group_size": n,
        "seq": -1,
        "count": count,
        "nbytes": nbytes,
        "dtype": DTYPES[dtype] if dtype >= 0 else None,
        "algbw": algbw,
        "busbw": algbw * bus_factor(kind, n) if n > 0 and kind != "unknown" else float("nan"),
        "algorithm": algorithm,
        "protocol": protocol,
        "channels": as_int(args.grid[0]) if args.grid else -1,
        "peer": as_int(args.dst_rank if kind == "send" else args.src_rank)
        if kind in ("send", "recv")
        else -1,
    }


def _size(kind: str, args: Args, n: int, dtype: int) -> tuple[int, int]:
    """Return NCCL's count and nccl-tests' bytes, -1 where the arguments do not say."""
    elements_in, elements_out = as_int(args.in_nelems), as_int(args.out_nelems)
    if dtype < 0 or (elements_in < 0 and elements_out < 0):
        return -1, -1
    size = DTYPE_BYTES[dtype]
    splits = as_list(args.in_split)
    if kind == "all_to_all" and splits:
        return -1, elements_in * size
    if kind == "all_gather":
        count = elements_in if elements_in >= 0 else elements_out // max(n, 1)
    elif kind == "reduce_scatter":
        count = elements_out if elements_out >= 0 else elements_in // max(n, 1)
    elif kind in ("all_to_all", "scatter"):
        count = elements_in // n if n > 0 else -1
    else:
        count = elements_in if elements_in >= 0 else elements_out
    if count < 0:
        return -1, -1
    return count, size_bytes(kind, count * size, max(n, 1))
