"""PyTorch profiler (Kineto) traces of one rank or many: one operation an NCCL kernel.

A file is gone through once, piece by piece; a second time only where launches are needed, because
the trace has no annotations or steps on the device. Memory grows with the tables, not the file.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from genie.compare.truth.kernels import NCCL_KERNEL, kernel_choice, kernel_kind, torch_kind
from genie.compare.truth.kineto_file import (
    PIECE,
    Args,
    Event,
    File,
    Profile,
    arguments,
    as_int,
    as_list,
    groups,
)
from genie.compare.truth.kineto_spans import Spans, launches, launches_of
from genie.compare.truth.model import KINDS, TEXT_COLUMNS, Labels, Truth, empty_ops
from genie.errors import CompareError
from genie.replay.bandwidth import bus_factor, size_bytes
from genie.trace.kinds import DTYPE_BYTES, DTYPES, dtype_index

_RANK_IN_NAME = re.compile(r"(?:rank|worker)[-_.]?(\d+)", re.IGNORECASE)
_COMPUTE, _MEMCPY = KINDS.index("comp"), KINDS.index("mem_store")
#: Categories of device activity → kind; profilers before 2022 wrote them in capitals.
_DEVICE = {"kernel": _COMPUTE, "Kernel": _COMPUTE, "gpu_memcpy": _MEMCPY, "Memcpy": _MEMCPY}
#: Which events are read at all: what the device did, annotations, and what the CPU called.
_WANTED = {
    "cat": (*_DEVICE, "user_annotation", "gpu_user_annotation"),
    "name": ("record_param_comms",),
}


def read(paths: list[Path], source: Path, piece: int = PIECE) -> Truth:
    """Return the GPU's operations of a set of files, one file a rank.

    Sizes are elements times the size of the arguments' dtype (never the kernel name's: a
    broadcast of floats runs as an int8 kernel). An operation without arguments keeps nbytes -1.
    Iterations are the profiler's steps, numbered from 0, by the time of launch where the trace
    has no step on the device; -1 before the first.

    Args:
        paths: Files.
        source: What they are together.
        piece: Bytes of a file that are held at once.

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
        profile = Profile(path, piece)
        rows = _Reader(profile, labels, unused, inferred).rows()
        file = profile.about
        rank = rank_of(file, path, len(paths))
        if rank in ranks:
            raise CompareError(f"{path}: rank {rank} is in the set twice", path=str(path))
        ranks.append(rank)
        bases.add(file.base_ns)
        if file.distributed is not None and file.distributed.world_size:
            worlds.setdefault(file.distributed.world_size, path)
        communicators |= groups(file.distributed)
        rows["rank"], rows["table"] = rank, table
        tables.append(rows)
    if len(worlds) > 1:
        shown = ", ".join(f"{path.name} of {world} ranks" for world, path in worlds.items())
        raise CompareError(
            f"{source}: not the files of one job: {shown}; give one of them", path=str(source)
        )
    # Tables are as large as memory gets: each is let go as soon as it has been copied.
    rows = np.concatenate(tables) if len(tables) > 1 else tables[0]
    tables.clear()
    order = np.lexsort((rows["start_ns"], rows["rank"]))
    computes = ((rows["kind"] == _COMPUTE) | (rows["kind"] == _MEMCPY))[order]
    kernels = int((rows["kind"] != _MEMCPY).sum())
    if computes.all():
        raise CompareError(
            f"{source}: no NCCL kernel among {kernels} GPU kernels: nothing to compare "
            "(one GPU, CPU-only, or a profile without device activity)",
            path=str(source),
        )
    ops, compute = rows[order[~computes]], rows[order[computes]]
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


class _Reader:
    """One file on its way to rows of OPS: device activity that has a duration."""

    def __init__(
        self, profile: Profile, labels: Labels, unused: Counter[str], inferred: Counter[str]
    ) -> None:
        self._profile = profile
        self._labels = labels
        self._unused = unused
        self._inferred = inferred
        self._tables: list[npt.NDArray[np.void]] = []
        self._times: list[npt.NDArray[np.float64]] = []  # us, as the file has them
        self._names: dict[str, tuple[int, bool]] = {}  # → label, is NCCL's
        self._nccl: list[tuple[int, Event, Args]] = []  # row, kernel, its arguments
        self._calls: dict[int, Args] = {}  # External id → arguments of record_param_comms
        self._spans = Spans()
        self._count = 0

    def rows(self) -> npt.NDArray[np.void]:
        """Return the rows of the file, rank and table not set."""
        for events in self._profile.pick(_WANTED):
            self._take(events)
        base = int(self._profile.about.base_ns)
        out = np.concatenate([empty_ops(), *self._tables])
        self._tables.clear()
        out["start_ns"] += base
        out["end_ns"] += base
        self._communications(out)
        times = np.concatenate([np.zeros(0), *self._times])
        if self._spans.by_launch:
            # Only what ran after a later step began can have been launched before it.
            times = np.fmin(times, launches_of(self._profile, tuple(_DEVICE), self._counts))
        out["iteration"] = self._spans.iterations(times)
        return out

    @staticmethod
    def _counts(event: Event) -> bool:
        return event.ph == "X" and event.dur is not None and event.dur >= 0

    def _take(self, events: list[Event]) -> None:
        device = []
        negative = 0
        for event in events:
            kind = _DEVICE.get(event.cat)
            if kind is None:
                if event.name == "record_param_comms":
                    args = arguments(event)
                    self._calls[as_int(args.external_id)] = args
                else:
                    self._spans.add(event)
            elif event.ph == "X":
                if event.dur is None or event.dur < 0:
                    negative += 1
                else:
                    device.append((event, kind))
        if negative:
            self._unused["device event with a negative or no duration"] += negative
        if not device:
            return
        out = empty_ops(len(device))
        out["start_ns"] = _ns([event.ts for event, _ in device])
        length = _ns([event.dur or 0 for event, _ in device])
        out["end_ns"] = out["start_ns"] + length
        out["time_ns"] = length
        out["kind"] = [kind for _, kind in device]
        out["stream"] = [as_int(event.tid) for event, _ in device]
        codes = []
        for i, (event, kind) in enumerate(device):
            known = self._names.get(event.name)
            if known is None:
                code = self._labels.code("name", event.name.split("(", 1)[0])
                known = self._names[event.name] = (code, bool(NCCL_KERNEL.match(event.name)))
            codes.append(known[0])
            if known[1] and kind == _COMPUTE:
                args = arguments(event)
                # What was decoded keeps the piece that it comes from.
                event.args = msgspec.Raw()
                self._nccl.append((self._count + i, event, args))
        out["name"] = codes
        self._count += len(device)
        self._tables.append(out)
        self._times.append(np.array([float(event.ts) for event, _ in device]))

    def _communications(self, out: npt.NDArray[np.void]) -> None:
        """Fill the columns of NCCL's kernels."""
        kernels = []
        for row, event, args in self._nccl:
            bare = args.collective is None and args.in_nelems is None
            full = _linked(args, self._calls, self._inferred) if bare else args
            kernels.append((row, event, full, _kind(event, full)))
        # Launches are looked up only for kernels that nothing on the device explains.
        around = {
            row: self._spans.on_device(event)
            for row, event, _, kind in kernels
            if kind == "unknown"
        }
        lost = {
            as_int(args.correlation)
            for row, _, args, kind in kernels
            if kind == "unknown" and around[row] is None
        }
        if lost and self._spans.host:
            found = launches(self._profile, lost)
            for row, _, args, kind in kernels:
                launch = found.get(as_int(args.correlation))
                if kind == "unknown" and around[row] is None and launch is not None:
                    around[row] = self._spans.on_host(*launch)
        for row, event, args, kind in kernels:
            named = torch_kind(around[row]) if kind == "unknown" else None
            if named is not None:
                self._inferred["kind taken from the annotation around kernel or launch"] += 1
            for column, value in _columns(event, args, named or kind).items():
                code = column in TEXT_COLUMNS
                out[column][row] = self._labels.code(column, value) if code else value


def _ns(us: list[int | float]) -> npt.NDArray[np.int64]:
    """Return us as whole ns; whole us stay exact where a double could not hold their ns."""
    values = np.array(us)
    if values.dtype.kind != "f":
        return values.astype(np.int64) * 1000
    whole = np.floor(values)
    exact: npt.NDArray[np.int64] = whole.astype(np.int64) * 1000
    exact += np.rint((values - whole) * 1000).astype(np.int64)
    return exact


def _linked(args: Args, calls: dict[int, Args], inferred: Counter[str]) -> Args:
    """Return the arguments of the CPU operation that launched a kernel, if they say more."""
    linked = calls.get(as_int(args.external_id))
    if linked is None or linked.collective is None:
        return args
    inferred["metadata taken from the CPU operation"] += 1
    return msgspec.structs.replace(
        linked, grid=args.grid, stream=args.stream, correlation=args.correlation
    )


def _kind(event: Event, args: Args) -> str:
    """Return the kind that a kernel's arguments, else its name, state."""
    named = torch_kind(str(args.collective) if args.collective is not None else None)
    return kernel_kind(event.name) if named is None else named


def _columns(event: Event, args: Args, kind: str) -> dict[str, Any]:
    """Return the columns of one NCCL kernel."""
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
