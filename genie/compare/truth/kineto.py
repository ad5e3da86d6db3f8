"""PyTorch profiler (Kineto) traces of one rank or many: one operation an NCCL kernel."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from genie.compare.truth.kernels import NCCL_KERNEL, kernel_choice, kernel_kind, torch_kind
from genie.compare.truth.kineto_file import (
    Args,
    Event,
    File,
    arguments,
    as_int,
    as_list,
    correlation_of,
    decode,
    groups,
)
from genie.compare.truth.model import KINDS, TEXT_COLUMNS, Labels, Truth, empty_ops
from genie.errors import CompareError
from genie.replay.bandwidth import bus_factor, size_bytes
from genie.trace.kinds import DTYPE_BYTES, DTYPES, dtype_index

_RANK_IN_NAME = re.compile(r"(?:rank|worker)[-_.]?(\d+)", re.IGNORECASE)
_COMPUTE, _MEMCPY = KINDS.index("comp"), KINDS.index("mem_store")
#: Categories of device activity → kind; profilers before 2022 wrote them in capitals.
_DEVICE = {"kernel": _COMPUTE, "Kernel": _COMPUTE, "gpu_memcpy": _MEMCPY, "Memcpy": _MEMCPY}
_RUNTIME = frozenset({"cuda_runtime", "cuda_driver", "hip_runtime", "runtime", "Runtime"})
_ANNOTATIONS = frozenset({"user_annotation", "gpu_user_annotation"})


def read(paths: list[Path], source: Path, data: dict[Path, bytes] | None = None) -> Truth:
    """Return the GPU's operations of a set of files, one file a rank.

    Sizes are elements times the size of the arguments' dtype (never the kernel name's: a
    broadcast of floats runs as an int8 kernel). An operation without arguments keeps nbytes -1.
    Iterations are the profiler's steps, numbered from 0, by the time of launch where the trace
    has no step on the device; -1 before the first.

    Args:
        paths: Files.
        source: What they are together.
        data: Contents that have been read already.

    Raises:
        CompareError: No file has an NCCL kernel, or they are not of one job.
    """
    labels = Labels()
    unused: Counter[str] = Counter()
    inferred: Counter[str] = Counter()
    tables: list[npt.NDArray[np.void]] = []
    communicators: dict[str, tuple[int, ...]] = {}
    worlds: dict[int, Path] = {}
    ranks: list[int] = []
    bases = set()
    for table, path in enumerate(paths):
        file = decode(path, (data or {}).get(path))
        rank = rank_of(file, path, len(paths))
        if rank in ranks:
            raise CompareError(f"{path}: rank {rank} is in the set twice", path=str(path))
        ranks.append(rank)
        bases.add(file.base_ns)
        if file.distributed is not None and file.distributed.world_size:
            worlds.setdefault(file.distributed.world_size, path)
        communicators |= groups(file.distributed)
        rows = _file_rows(file, labels, unused, inferred)
        rows["rank"], rows["table"] = rank, table
        tables.append(rows)
    if len(worlds) > 1:
        shown = ", ".join(f"{path.name} of {world} ranks" for world, path in worlds.items())
        raise CompareError(
            f"{source}: not the files of one job: {shown}; give one of them", path=str(source)
        )
    ops = np.concatenate(tables)
    ops = ops[np.lexsort((ops["start_ns"], ops["rank"]))]
    computes = (ops["kind"] == _COMPUTE) | (ops["kind"] == _MEMCPY)
    kernels = int((ops["kind"] != _MEMCPY).sum())
    if computes.all():
        raise CompareError(
            f"{source}: no NCCL kernel among {kernels} GPU kernels: nothing to compare "
            "(one GPU, CPU-only, or a profile without device activity)",
            path=str(source),
        )
    ops, compute = ops[~computes], ops[computes]
    world = max(worlds, default=-1)
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
    file: File, labels: Labels, unused: Counter[str], inferred: Counter[str]
) -> npt.NDArray[np.void]:
    """Return the rows of one file: device activity that has a duration."""
    device = []
    negative = 0
    for event in file.events:
        cat = _DEVICE.get(event.cat)
        if cat is None or event.ph != "X":
            continue
        if event.dur is None or event.dur < 0:
            negative += 1
            continue
        device.append((event, cat))
    if negative:
        unused["device event with a negative or no duration"] += negative
    out = empty_ops(len(device))
    if not device:
        return out
    out["start_ns"] = _ns([event.ts for event, _ in device]) + int(file.base_ns)
    length = _ns([event.dur or 0 for event, _ in device])
    out["end_ns"] = out["start_ns"] + length
    out["time_ns"] = length
    out["kind"] = [kind for _, kind in device]
    out["stream"] = [as_int(event.tid) for event, _ in device]
    names: dict[str, int] = {}
    for event, _ in device:
        if event.name not in names:
            names[event.name] = labels.code("name", event.name.split("(", 1)[0])
    out["name"] = [names[event.name] for event, _ in device]
    nccl_names = {name for name in names if NCCL_KERNEL.match(name)}
    annotations = _Annotations(file.events)
    comms: dict[int, Args] | None = None
    nccl = [i for i, (event, kind) in enumerate(device)
            if kind == _COMPUTE and event.name in nccl_names]  # fmt: skip
    for i in nccl:
        event = device[i][0]
        args = arguments(event)
        if args.collective is None and args.in_nelems is None:
            if comms is None:
                comms = _comm_ops(file.events)
            args = _linked(args, comms, inferred)
        row = _communication(event, args, annotations, inferred)
        for column, value in row.items():
            out[column][i] = labels.code(column, value) if column in TEXT_COLUMNS else value
    out["iteration"] = annotations.iterations([event for event, _ in device])
    return out


def _ns(us: list[int | float]) -> npt.NDArray[np.int64]:
    """Return us as whole ns; whole us stay exact where a double could not hold their ns."""
    values = np.array(us)
    if values.dtype.kind != "f":
        return values.astype(np.int64) * 1000
    whole = np.floor(values)
    exact: npt.NDArray[np.int64] = whole.astype(np.int64) * 1000
    exact += np.rint((values - whole) * 1000).astype(np.int64)
    return exact


class _Annotations:
    """Where PyTorch's "nccl:…" and "ProfilerStep#…" annotations are, on device and CPU.

    A kernel's annotation is the device's around it, else the CPU's around its launch (found by
    correlation id); of several the innermost. Launches are looked up only when they are needed.
    """

    def __init__(self, events: list[Event]) -> None:
        self._device: dict[int, list[tuple[float, float, str]]] = defaultdict(list)
        self._host: dict[int, list[tuple[float, float, str]]] = defaultdict(list)
        self._events = events
        self._found: dict[int, tuple[int, float]] | None = None
        device_steps: list[float] = []
        host_steps: list[float] = []
        for event in events:
            # Most events are neither; their names are not looked at twice.
            if event.cat not in _ANNOTATIONS:
                continue
            on_device = event.cat == "gpu_user_annotation"
            if event.name.startswith("nccl:"):
                where = self._device if on_device else self._host
                span = (float(event.ts), float(event.ts + (event.dur or 0)), event.name)
                where[as_int(event.tid)].append(span)
            elif event.name.startswith("ProfilerStep"):
                (device_steps if on_device else host_steps).append(float(event.ts))
        self.by_launch = not device_steps
        self.steps = np.array(sorted(set(device_steps or host_steps)))

    @property
    def launches(self) -> dict[int, tuple[int, float]]:
        """Correlation id → (thread, time) of launches."""
        if self._found is None:
            self._found = {}
            for event in self._events:
                if event.cat in _RUNTIME:
                    correlation = correlation_of(event)
                    if correlation >= 0:
                        self._found[correlation] = (as_int(event.tid), float(event.ts))
        return self._found

    def of(self, event: Event, correlation: int) -> str | None:
        """Return the annotation of a kernel, None if there is none."""
        found = _around(self._device.get(as_int(event.tid), ()), float(event.ts))
        if found is None and self._host and correlation in self.launches:
            thread, at = self.launches[correlation]
            found = _around(self._host.get(thread, ()), at)
        return found

    def iterations(self, device: list[Event]) -> npt.NDArray[np.int64]:
        """Return the step of each device event, -1 before the first or where there is none."""
        if not len(self.steps):
            return np.full(len(device), -1)
        at = np.array([float(event.ts) for event in device])
        if self.by_launch and len(self.steps) > 1:
            # Only what ran after a later step began can have been launched before it.
            launches = self.launches
            for i, event in enumerate(device):
                launch = launches.get(correlation_of(event))
                if launch is not None:
                    at[i] = min(at[i], launch[1])
        found: npt.NDArray[np.int64] = np.searchsorted(self.steps, at, side="right") - 1
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


def _linked(args: Args, comms: dict[int, Args], inferred: Counter[str]) -> Args:
    """Return the arguments of the CPU operation that launched a kernel, if they say more."""
    linked = comms.get(as_int(args.external_id))
    if linked is None or linked.collective is None:
        return args
    inferred["metadata taken from the CPU operation"] += 1
    linked.grid, linked.stream, linked.correlation = args.grid, args.stream, args.correlation
    return linked


def _communication(
    event: Event, args: Args, annotations: _Annotations, inferred: Counter[str]
) -> dict[str, Any]:
    """Return the columns of one NCCL kernel."""
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
