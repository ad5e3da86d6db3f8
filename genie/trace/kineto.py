"""Kineto (PyTorch profiler) traces as a workload: one node a GPU activity, edges from the device.

What the profile says is taken as it is: kinds, sizes, splits, groups, peers, streams, durations.
What it does not say is inferred, counted in `Trace.warnings` and marked in a node's `inferred`
attribute: sizes from the annotation around a launch, kinds of SendRecv kernels from it, edges
between streams, roots (0). Edges:

- an activity waits for the one before it on its stream;
- communication waits for the last other activity that had ended when it began: it sends that;
- another stream's activity waits for communication that had ended when it began only if the host
  told a stream or itself to wait (cudaStreamWaitEvent, cuda…Synchronize) between both launches;
- time in which nothing above explains why an activity had not begun is the host's: a `host gap`
  node of that length on the same stream.
"""

from __future__ import annotations

import gc
import json
import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from genie.errors import TraceError
from genie.trace.gunzip import MAGIC, TooLargeError, gunzip, most_unpacked, read_head
from genie.trace.kinds import DTYPE_BYTES, DTYPES, Coll, Kind, dtype_index
from genie.trace.model import RankTrace, Trace
from genie.trace.rows import Row, rank_trace

FORM = "Kineto"
_HEAD = 1 << 20
_RANK = re.compile(r"(?:rank|worker)[-_.]?(\d+)", re.IGNORECASE)
_NCCL = re.compile(r"^(?:void\s+)?(?:nccl|rccl|msccl)", re.IGNORECASE)
_DEVICE = {"kernel": Kind.COMP, "gpu_memcpy": Kind.MEM_STORE, "gpu_memset": Kind.MEM_STORE}
_RUNTIME = frozenset({"cuda_runtime", "cuda_driver", "hip_runtime"})
_WAITS = re.compile(r"StreamWaitEvent|Synchronize", re.IGNORECASE)
_BASE = re.compile(
    r"(allreduce|allgather|reducescatter|alltoall|broadcast|barrier|gather|scatter|reduce|send|recv)"
)
_COLLS = {
    "allreduce": Coll.ALL_REDUCE,
    "allgather": Coll.ALL_GATHER,
    "reducescatter": Coll.REDUCE_SCATTER,
    "alltoall": Coll.ALL_TO_ALL,
    "broadcast": Coll.BROADCAST,
    "barrier": Coll.BARRIER,
    "gather": Coll.GATHER,
    "scatter": Coll.SCATTER,
    "reduce": Coll.REDUCE,
}
#: C++ names of element types in "Input type".
_CPP = {"long int": "int64", "long": "int64", "unsigned char": "uint8", "signed char": "int8"}
_MENDS = (
    (re.compile(rb":\s*(-?(?:nan|inf|infinity))\b", re.IGNORECASE), b": null"),
    (re.compile(rb":(\s*[,}])"), rb": null\1"),
    (re.compile(rb",(\s*[\]}])"), rb"\1"),
)


def files_of(path: str | Path) -> list[Path]:
    """Return the Kineto files that `path` is or holds, none if it is something else."""
    target = Path(path)
    if target.is_file():
        candidates = [target]
    elif target.is_dir():
        candidates = sorted(
            entry
            for entry in target.iterdir()
            if entry.is_file() and entry.name.removesuffix(".gz").endswith(".json")
        )
    else:
        return []
    return [candidate for candidate in candidates if _is_kineto(candidate)]


def _is_kineto(path: Path) -> bool:
    head = read_head(path, _HEAD)
    return head.lstrip()[:1] == b"{" and b'"traceEvents"' in head


def _decode(path: Path) -> dict[str, Any]:
    data: bytes | bytearray
    with open(path, "rb") as file:
        data = file.read(len(MAGIC))
        file.seek(0)
        if data != MAGIC:
            data = file.read()
        else:
            try:
                data, wrong = gunzip(file, most_unpacked())
            except TooLargeError as error:
                raise TraceError(f"{path}: {error}", path=str(path)) from error
            if wrong:
                raise TraceError(f"{path}: damaged gzip: {wrong}", path=str(path))
    was = gc.isenabled()
    gc.disable()
    try:
        for mend in (False, True):
            if mend:
                for pattern, text in _MENDS:
                    data = pattern.sub(text, data)
            try:
                document = json.loads(data)
            except ValueError as error:
                problem = error
                continue
            if isinstance(document, dict) and isinstance(document.get("traceEvents"), list):
                return document
            raise TraceError(f"{path}: no list of traceEvents", path=str(path))
    finally:
        if was:
            gc.enable()
    raise TraceError(f"{path}: not a readable profiler trace: {problem}", path=str(path))


def load(path: str, files: list[Path]) -> Trace:
    """Return a set of Kineto files as a trace.

    Raises:
        TraceError: No communication in it, a rank twice or unknown, or files of several jobs.
    """
    ranks: dict[int, _Rank] = {}
    worlds: dict[int, str] = {}
    known: dict[str, int] = {}
    for file in files:
        document = _decode(file)
        info = document.get("distributedInfo")
        info = info if isinstance(info, dict) else {}
        rank = _rank(info, file, len(files))
        if rank in ranks:
            raise TraceError(f"{file}: rank {rank} is in the set twice", path=str(file), rank=rank)
        if isinstance(info.get("world_size"), int) and info["world_size"] > 0:
            worlds.setdefault(info["world_size"], file.name)
        ranks[rank] = _Rank(file, rank, document["traceEvents"], info)
    if len(worlds) > 1:
        shown = ", ".join(f"{name} of {n} ranks" for n, name in worlds.items())
        raise TraceError(f"{path}: not the files of one job: {shown}", path=path)
    world = max([*worlds, max(ranks) + 1])
    groups: dict[str, list[int]] = {}
    made: list[RankTrace] = []
    for number in range(world):
        one = ranks.get(number)
        if one is None:
            lost = f"{Path(path)}/rank {number} of {world}"
            made.append(RankTrace.empty(number, lost, missing=True))
            continue
        rows = one.rows(world)
        groups |= one.groups
        trace_of = rank_trace(number, str(one.file), rows, known, version=FORM)
        made.append(trace_of)
    if not any(one.communications for one in ranks.values()):
        raise TraceError(
            f"{path}: a Kineto profile without an NCCL kernel: no traffic to replay", path=path
        )
    trace = Trace(made, path=path, version=FORM, groups={}, group_names=known)
    trace.groups = {name: tuple(members) for name, members in groups.items()}
    total: Counter[str] = Counter()
    for one in ranks.values():
        total.update(one.inferred)
    trace.warnings += [f"inferred: {what} ({n} nodes)" for what, n in sorted(total.items())]
    return trace


def _rank(info: dict[str, Any], file: Path, files: int) -> int:
    if isinstance(info.get("rank"), int) and info["rank"] >= 0:
        return int(info["rank"])
    match = _RANK.search(file.name)
    if match:
        return int(match[1])
    if files == 1:
        return 0
    raise TraceError(
        f"{file}: neither distributedInfo nor the file name says which rank this is",
        path=str(file),
    )


#: Thread or stream → (start, end, event) of annotations, us.
_Spans = dict[Any, list[tuple[float, float, dict[str, Any]]]]


@dataclass
class _Activity:
    event: dict[str, Any]
    args: dict[str, Any]
    kind: Kind
    start: int  # ns
    end: int
    launch: float  # us, the host's call
    stream: int


@dataclass
class _Rank:
    """One file on its way to rows."""

    file: Path
    rank: int
    events: list[dict[str, Any]]
    info: dict[str, Any]
    groups: dict[str, list[int]] = field(default_factory=dict)
    inferred: Counter[str] = field(default_factory=Counter)
    communications: int = 0

    def rows(self, world: int) -> list[Row]:
        """Return a node an activity, and one a gap of the host."""
        self._read_groups(world)
        launches, waits, spans = self._host()
        activities = self._activities(launches)
        origin = activities[0].start if activities else 0
        rows: list[Row] = []
        node_of: list[int] = []
        on_stream: dict[int, int] = {}
        by_end: list[tuple[int, int]] = []  # (end, activity) of what began so far, sorted
        comm_by_end: list[tuple[int, int]] = []
        next_id = 1
        told: set[tuple[int, int]] = set()  # (stream, activity of another one it waited for)
        for i, one in enumerate(activities):
            is_comm = bool(_NCCL.match(str(one.event.get("name", ""))))
            parents: set[int] = set()
            marks: list[str] = []
            if one.stream in on_stream:
                parents.add(on_stream[one.stream])
            source = by_end if is_comm else comm_by_end
            at = bisect_right(source, (one.start, len(activities))) - 1
            if at >= 0:
                other = source[at][1]
                apart = activities[other].stream != one.stream
                if (
                    apart
                    and (one.stream, other) not in told
                    and (is_comm or self._waited(waits, activities[other].launch, one.launch))
                ):
                    parents.add(other)
                    told.add((one.stream, other))
                    marks.append("edge between streams")
            ready = max((activities[p].end for p in parents), default=origin)
            above = [node_of[p] for p in sorted(parents)]
            if one.start > ready:
                rows.append(
                    Row(next_id, "host gap", Kind.COMP, f"{self.file}: before node {next_id + 1}",
                        parents=above, attrs={"stream": one.stream,
                                              "duration_ns": one.start - ready})
                )  # fmt: skip
                above, next_id = [next_id], next_id + 1
            attrs: dict[str, Any] = {"stream": one.stream, "duration_ns": one.end - one.start}
            kind = one.kind
            if is_comm:
                self.communications += 1
                kind = self._communication(one, attrs, spans, launches, world, marks)
            if marks:
                attrs["inferred"] = marks
                self.inferred.update(marks)
            name = str(one.event.get("name", ""))
            place = f"{self.file}: GPU activity {i}"
            rows.append(Row(next_id, name, kind, place, start_us=max(one.start // 1000, 0),
                            parents=above, attrs=attrs))  # fmt: skip
            node_of.append(next_id)
            next_id += 1
            on_stream[one.stream] = i
            entry = (one.end, i)
            by_end.insert(bisect_left(by_end, entry), entry)
            if is_comm:
                comm_by_end.insert(bisect_left(comm_by_end, entry), entry)
        return rows

    def _waited(self, waits: list[float], after: float, before: float) -> bool:
        at = bisect_right(waits, after)
        return at < len(waits) and waits[at] <= before

    def _read_groups(self, world: int) -> None:
        config = self.info.get("pg_config")
        entries = list(config.values()) if isinstance(config, dict) else config
        for entry in entries if isinstance(entries, list) else []:
            if not isinstance(entry, dict) or entry.get("pg_name") is None:
                continue
            members, size = entry.get("ranks"), entry.get("pg_size")
            if not members and size == world:
                members = list(range(world))
            if isinstance(members, list) and members and len(members) == (size or len(members)):
                self.groups[str(entry["pg_name"])] = [int(member) for member in members]

    def _host(
        self,
    ) -> tuple[
        dict[int, tuple[Any, float]],
        list[float],
        dict[Any, list[tuple[float, float, dict[str, Any]]]],
    ]:
        """Return launches by correlation, times of waits, and NCCL annotations by thread."""
        launches: dict[int, tuple[Any, float]] = {}
        waits: list[float] = []
        spans: _Spans = defaultdict(list)
        for event in self.events:
            cat, ts = event.get("cat"), event.get("ts")
            if not isinstance(ts, int | float):
                continue
            if cat in _RUNTIME:
                number = _int((event.get("args") or {}).get("correlation"))
                if number is not None:
                    launches[number] = (event.get("tid"), float(ts))
                if _WAITS.search(str(event.get("name"))):
                    waits.append(float(ts))
            elif cat in ("user_annotation", "gpu_user_annotation") and str(
                event.get("name")
            ).startswith("nccl:"):
                end = float(ts) + float(event.get("dur") or 0)
                spans[event.get("tid")].append((float(ts), end, event))
        return launches, sorted(waits), spans

    def _activities(self, launches: dict[int, tuple[Any, float]]) -> list[_Activity]:
        found = []
        for event in self.events:
            kind = _DEVICE.get(str(event.get("cat")))
            if kind is None or event.get("ph") != "X":
                continue
            ts, duration = event.get("ts"), event.get("dur")
            if not isinstance(ts, int | float):
                continue
            if not isinstance(duration, int | float) or duration < 0:
                self.inferred["device activity of no or negative duration left out"] += 1
                continue
            args = event.get("args")
            args = args if isinstance(args, dict) else {}
            start = round(ts * 1000)
            number = _int(args.get("correlation"))
            launch = launches.get(number, (None, float(ts)))[1] if number is not None else float(ts)
            stream = _int(args.get("stream", event.get("tid"))) or 0
            found.append(
                _Activity(event, args, kind, start, start + round(duration * 1000), launch, stream)
            )
        found.sort(key=lambda one: (one.start, one.launch))
        return found

    def _communication(
        self,
        one: _Activity,
        attrs: dict[str, Any],
        spans: _Spans,
        launches: dict[int, tuple[Any, float]],
        world: int,
        marks: list[str],
    ) -> Kind:
        """Fill the attributes of an NCCL kernel and return its node kind."""
        args = one.args
        around = self._annotation(one, spans, launches)
        base = _base(args.get("Collective name"))
        if base is None and around is not None:
            base = _base(str(around.get("name")).split(":", 1)[1])
            if base is not None:
                marks.append("kind from the annotation around the launch")
        if base is None:
            base = _base(str(one.event.get("name")).split("(", 1)[0].removesuffix("SendRecv"))
        self._group(args, attrs, world)
        self._size(args, around, attrs, marks)
        if base in ("send", "recv"):
            peer = _int(args.get("Dst Rank" if base == "send" else "Src Rank"))
            if peer is not None:
                attrs["comm_dst" if base == "send" else "comm_src"] = peer
            return Kind.COMM_SEND if base == "send" else Kind.COMM_RECV
        if base is not None:
            attrs["comm_type"] = int(_COLLS[base])
        if base in ("broadcast", "reduce", "gather", "scatter"):
            marks.append("root 0")
        if base == "alltoall":
            for name, arg in (
                ("in_split_size", "In split size"),
                ("out_split_size", "Out split size"),
            ):
                if args.get(arg) is not None:
                    attrs[name] = args[arg]
            if args.get("Out msg nelems") is not None:
                attrs["out_msg_nelems"] = args["Out msg nelems"]
        return Kind.COMM_COLL

    def _annotation(
        self,
        one: _Activity,
        spans: _Spans,
        launches: dict[int, tuple[Any, float]],
    ) -> dict[str, Any] | None:
        """Return the innermost NCCL annotation around the launch, else around the kernel."""
        number = _int(one.args.get("correlation"))
        thread, at = launches.get(number if number is not None else -1, (None, one.launch))
        for place, time in ((thread, at), (one.event.get("tid"), float(one.event["ts"]))):
            inside = [span for span in spans.get(place, ()) if span[0] <= time <= span[1]]
            if inside:
                return min(inside, key=lambda span: span[1] - span[0])[2]
        return None

    def _group(self, args: dict[str, Any], attrs: dict[str, Any], world: int) -> None:
        name = args.get("Process Group Name")
        if name is None:
            return
        members = _splits(args.get("Process Group Ranks"))
        size = _int(args.get("Group size"))
        if str(name) not in self.groups and members and len(members) == (size or len(members)):
            self.groups[str(name)] = members
        if str(name) not in self.groups and size == world:
            self.groups[str(name)] = list(range(world))
        attrs["pg_name"] = str(name)

    def _size(
        self,
        args: dict[str, Any],
        around: dict[str, Any] | None,
        attrs: dict[str, Any],
        marks: list[str],
    ) -> None:
        """Set comm_size (of the input) and element type, where they are known."""
        elements = _int(args.get("In msg nelems"))
        dtype = dtype_index(str(args["dtype"])) if args.get("dtype") is not None else -1
        if (elements is None or dtype < 0) and around is not None:
            shapes = (around.get("args") or {}).get("Input Dims")
            types = (around.get("args") or {}).get("Input type")
            if isinstance(shapes, list) and shapes and isinstance(types, list) and types:
                elements = _elements(shapes[0])
                text = str(types[0]).removeprefix("c10::")
                dtype = dtype_index(_CPP.get(text, text))
                if elements is not None and dtype >= 0:
                    marks.append("size from the annotation around the launch, splits taken as even")
        if elements is None or dtype < 0:
            return
        attrs["comm_size"] = elements * DTYPE_BYTES[dtype]
        attrs["comm_dtype"] = DTYPES[dtype]


def _base(text: Any) -> str | None:
    if text is None:
        return None
    found = _BASE.search(re.sub(r"[^a-z]", "", str(text).lower()))
    return found[1] if found else None


def _int(value: Any) -> int | None:
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if 0 <= number < 1 << 63 else None


def _splits(value: Any) -> list[int] | None:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    if isinstance(value, list) and value and all(isinstance(item, int) for item in value):
        return value
    return None


def _elements(shape: Any) -> int | None:
    total = 1
    for item in shape if isinstance(shape, list) else [None]:
        if not isinstance(item, int) or item < 0:
            return None
        total *= item
    return total
