"""Other tools' descriptions of traffic: nccl-tests command lines, SimAI/AICB text workloads."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from genie.errors import InputError
from genie.trace import Builder, Coll, Kind
from genie.trace.kinds import DTYPES, dtype_bytes, dtype_index
from genie.units import parse_size
from genie.workload.emit import COMPUTE, DATA, EXPERT, TENSOR
from genie.workload.files import write_set

# nccl-tests: program -> collective; sendrecv is a ring of sends and receives.
_PROGRAMS = {
    "all_reduce_perf": Coll.ALL_REDUCE,
    "all_gather_perf": Coll.ALL_GATHER,
    "reduce_scatter_perf": Coll.REDUCE_SCATTER,
    "alltoall_perf": Coll.ALL_TO_ALL,
    "broadcast_perf": Coll.BROADCAST,
    "reduce_perf": Coll.REDUCE,
    "gather_perf": Coll.GATHER,
    "scatter_perf": Coll.SCATTER,
    "sendrecv_perf": None,
}
_SHARED = {Coll.ALL_GATHER, Coll.REDUCE_SCATTER, Coll.ALL_TO_ALL, Coll.GATHER, Coll.SCATTER}
_ROOTED = {Coll.BROADCAST, Coll.REDUCE, Coll.GATHER, Coll.SCATTER}


class Import:
    """A job read from elsewhere: `world_size`, `groups()`, `rank(r)`, `write(folder)`."""

    def __init__(self, name: str, world_size: int) -> None:
        self.name = name
        self.world_size = world_size

    def groups(self) -> dict[str, tuple[int, ...]]:
        """Return the groups: name to global ranks."""
        return {}

    def rank(self, rank: int) -> Builder:
        """Return the nodes of one rank."""
        raise NotImplementedError

    def write(
        self,
        folder: str | os.PathLike[str],
        *,
        progress: Callable[[int, int], None] | None = None,
    ) -> Path:
        """Write the trace set and return the folder."""
        return write_set(self, folder, progress)


@dataclass(frozen=True)
class _Test:
    coll: Coll | None
    program: str
    begin: int
    end: int
    step: int
    factor: float
    iterations: int
    warmup: int
    dtype: str
    root: int
    ranks: int


class NcclTests(Import):
    """An nccl-tests run: every size of its table, warm-up and timed iterations one after the other.

    Sizes follow nccl-tests (src/common.cu, `getSendRecvCounts` of each test): of all_gather,
    reduce_scatter, alltoall, gather and scatter the size is shared by the ranks, each part a
    multiple of 16 bytes.
    """

    def __init__(self, command: str, ranks: int | None = None) -> None:
        """Read a command line.

        Args:
            command: Such as "mpirun -np 16 all_reduce_perf -b 8 -e 1G -f 2 -g 1".
            ranks: How many, where the command line does not say.

        Raises:
            InputError: It is no nccl-tests command line, or says no number of ranks.
        """
        self.test = test = _nccl_tests(command, ranks)
        super().__init__(test.program, test.ranks)

    def sizes(self) -> list[int]:
        """Return the sizes of the table, in bytes."""
        test, found = self.test, []
        size = test.begin
        while size <= test.end:
            found.append(size)
            size = int(size * test.factor) if test.factor > 1 else size + test.step
            if test.factor <= 1 and not test.step:
                break
        return found

    def rank(self, rank: int) -> Builder:
        """Return the nodes of one rank."""
        made = Builder()
        last: list[int] = []
        for size in self.sizes():
            for repeat in range(self.test.warmup + self.test.iterations):
                what = "warmup" if repeat < self.test.warmup else "iteration"
                last = self._call(made, rank, size, last, f"{size}.{what}{repeat}")
        return made

    def _call(self, made: Builder, rank: int, size: int, last: list[int], where: str) -> list[int]:
        test, n, element = self.test, self.world_size, dtype_bytes(self.test.dtype)
        if test.coll is None:
            nbytes = size // element * element
            return [
                made.node(
                    kind, f"{kind.name.lower()}.{where}", deps=last, peer=(rank + step) % n,
                    nbytes=nbytes, dtype=test.dtype,
                )
                for kind, step in ((Kind.COMM_SEND, 1), (Kind.COMM_RECV, -1))
            ]  # fmt: skip
        count = size // element
        if test.coll in _SHARED:
            part = count // n & -(16 // element)
            nbytes = part * element * (1 if test.coll == Coll.ALL_GATHER else n)
        else:
            nbytes = count * element
        return [
            made.node(
                Kind.COMM_COLL, f"{test.coll.name.lower()}.{where}", deps=last, coll=test.coll,
                nbytes=nbytes, dtype=test.dtype, root=test.root if test.coll in _ROOTED else None,
            )
        ]  # fmt: skip


def _nccl_tests(command: str, ranks: int | None) -> _Test:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise InputError(f"not a command line: {command!r}: {error}") from error
    at = next((i for i, w in enumerate(words) if w.rpartition("/")[2] in _PROGRAMS), None)
    if at is None:
        raise InputError(f"no nccl-tests program ({', '.join(_PROGRAMS)}) in {command!r}")
    program = words[at].rpartition("/")[2]
    processes = _after(words[:at], ("-np", "-n", "--np", "--ntasks"))
    given = words[at + 1 :]

    def option(names: tuple[str, ...], default: str) -> str:
        return _after(given, names) or default

    def number(names: tuple[str, ...], default: int) -> int:
        text = option(names, str(default))
        if not text.isdigit():
            raise InputError(f"{command!r}: {names[0]} {text!r} is not a whole number")
        return int(text)

    threads = number(("-t", "--nthreads"), 1) * number(("-g", "--ngpus"), 1)
    if processes is not None and not processes.isdigit():
        raise InputError(f"{command!r}: {processes!r} processes is not a whole number")
    total = ranks or (int(processes) if processes else 1) * threads
    if total < 2:
        raise InputError(f"{command!r} says no number of ranks above 1; give it with --ranks")
    begin = parse_size(option(("-b", "--minbytes"), "32M"))
    end = parse_size(option(("-e", "--maxbytes"), "32M"))
    if end < begin:
        raise InputError(f"{command!r}: ends at {end} bytes, before its beginning of {begin}")
    dtype = option(("-d", "--datatype"), "float")
    index = dtype_index(dtype)
    if index < 0:
        raise InputError(f"{command!r}: no element type {dtype!r}")
    try:
        factor = float(option(("-f", "--stepfactor"), "1"))
    except ValueError:
        raise InputError(f"{command!r}: the step factor is not a number") from None
    root = number(("-r", "--root"), 0)
    if root >= total:
        raise InputError(f"{command!r}: no root {root} among {total} ranks")
    return _Test(
        _PROGRAMS[program], program, begin, end, parse_size(option(("-i", "--stepbytes"), "1M")),
        factor, number(("-n", "--iters"), 20), number(("-w", "--warmup_iters"), 1), DTYPES[index],
        root, total,
    )  # fmt: skip


def _after(words: list[str], names: tuple[str, ...]) -> str | None:
    for i, word in enumerate(words):
        if word in names and i + 1 < len(words):
            return words[i + 1]
        for name in names:
            if name.startswith("--") and word.startswith(f"{name}="):
                return word.partition("=")[2]
    return None


_AICB = {
    "ALLREDUCE": Coll.ALL_REDUCE,
    "ALLGATHER": Coll.ALL_GATHER,
    "REDUCESCATTER": Coll.REDUCE_SCATTER,
    "ALLTOALL": Coll.ALL_TO_ALL,
}
_SUFFIXES = ("_DP_EP", "_EP", "_DP", "_TP")


@dataclass(frozen=True)
class _Phase:
    compute_ns: int
    coll: Coll | None
    group: str
    nbytes: int


class Aicb(Import):
    """A SimAI/AICB text workload ("HYBRID_TRANSFORMER_FWD_IN_BCKWD ...").

    A line is a layer: forward, input-gradient and weight-gradient phase, each a computation (ns)
    and a collective, whose size is the whole buffer. Forward and input-gradient collectives run
    among tensor-parallel ranks and hold the layer up, weight-gradient ones among data-parallel
    ranks behind what follows; `_EP`, `_DP`, `_DP_EP` and `_TP` name another group. Ranks are
    ordered tensor parallel, expert parallel, the rest. Files of pipelines hold one stage and no
    transfers, so pp above 1 is refused.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Read a file.

        Raises:
            InputError: It cannot be read as such a workload.
        """
        file = Path(path)
        try:
            lines = file.read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{file}: {error}") from error
        self.tp, self.ep, world = _header(file, lines)
        super().__init__(file.stem, world)
        self._dp = world // self.tp
        self.layers = _layers(file, lines)

    def groups(self) -> dict[str, tuple[int, ...]]:
        """Return the tensor, data, expert and expert-data parallel groups."""
        found: dict[str, tuple[int, ...]] = {}
        for rank in range(self.world_size):
            for kind in ("TP", "DP", "EP", "DP_EP"):
                name, members = self._group(kind, rank)
                if len(members) > 1:
                    found[name] = members
        return found

    def _group(self, kind: str, rank: int) -> tuple[str, tuple[int, ...]]:
        tensor, data = rank % self.tp, rank // self.tp
        inner, outer = data % self.ep, data // self.ep
        if kind == "TP":
            start = data * self.tp
            return f"TP_{data}", tuple(range(start, start + self.tp))
        if kind == "DP":
            return f"DP_{tensor}", tuple(range(tensor, self.world_size, self.tp))
        if kind == "EP":
            members = range(outer * self.ep, (outer + 1) * self.ep)
            return f"EP_{tensor + self.tp * outer}", tuple(tensor + self.tp * m for m in members)
        members = range(inner, self._dp, self.ep)
        return f"DP_EP_{tensor + self.tp * inner}", tuple(tensor + self.tp * m for m in members)

    def rank(self, rank: int) -> Builder:
        """Return the nodes of one rank: forward, then backward, weight gradients in background."""
        made = Builder()
        last: list[int] = []
        behind: list[int] = []
        for name, forward, _, _ in self.layers:
            last = self._phase(made, rank, f"forward.{name}", forward, last)[1]
        for name, _, inputs, weights in reversed(self.layers):
            # The weights' collective runs on while the next layer is computed.
            computed, ended = self._phase(made, rank, f"weights.{name}", weights, last)
            if ended != computed:
                behind += ended
            last = self._phase(made, rank, f"inputs.{name}", inputs, computed)[1]
        if behind:
            made.node(
                Kind.COMP, "end", deps=sorted({*last, *behind}), duration_ns=1, stream=COMPUTE
            )
        return made

    def _phase(
        self, made: Builder, rank: int, name: str, phase: _Phase, last: list[int]
    ) -> tuple[list[int], list[int]]:
        # Returns what ends the computation, and what ends the phase.
        if phase.compute_ns > 0:
            last = [
                made.node(
                    Kind.COMP, name, deps=last, duration_ns=phase.compute_ns, stream=COMPUTE
                )
            ]  # fmt: skip
        if phase.coll is None or phase.nbytes == 0:
            return last, last
        group, members = self._group(phase.group, rank)
        if len(members) == 1:
            return last, last
        nbytes = phase.nbytes // len(members) if phase.coll == Coll.ALL_GATHER else phase.nbytes
        if phase.coll in {Coll.REDUCE_SCATTER, Coll.ALL_TO_ALL}:
            nbytes -= nbytes % len(members)
        stream = {"TP": TENSOR, "EP": EXPERT}.get(phase.group, DATA)
        node = made.node(
            Kind.COMM_COLL, f"{name}.{phase.coll.name.lower()}", deps=last, coll=phase.coll,
            nbytes=nbytes, group=group, stream=stream, dtype="int8",
        )  # fmt: skip
        return last, [node]


def is_aicb(path: str | os.PathLike[str]) -> bool:
    """Return whether a file starts as a SimAI/AICB workload does."""
    try:
        with Path(path).open("rb") as file:
            return file.read(7) == b"HYBRID_"
    except OSError:
        return False


def _header(file: Path, lines: list[str]) -> tuple[int, int, int]:
    words = lines[0].replace(":", " ").split() if lines else []
    if not words or not words[0].startswith("HYBRID_"):
        raise InputError(f"{file}: line 1 is no SimAI header (HYBRID_TRANSFORMER_FWD_IN_BCKWD ...)")

    def value(name: str) -> int:
        text = words[words.index(name) + 1] if name in words[:-1] else ""
        if not text.isdigit() or int(text) < 1:
            raise InputError(f"{file}: line 1 has no whole number after {name!r}")
        return int(text)

    tp, ep, pp, world = (
        value(name) for name in ("model_parallel_NPU_group", "ep", "pp", "all_gpus")
    )
    if pp != 1:
        raise InputError(f"{file}: pp {pp}: such files hold no transfers between stages")
    if world % tp or world // tp % ep:
        raise InputError(
            f"{file}: {world} ranks cannot be split into tensor parallel {tp} and expert "
            f"parallel {ep}"
        )
    return tp, ep, world


def _layers(file: Path, lines: list[str]) -> list[tuple[str, _Phase, _Phase, _Phase]]:
    found = []
    for number, line in enumerate(lines[2:], 3):
        words = line.split()
        if not words:
            continue
        if len(words) != 12:
            raise InputError(f"{file}: line {number}: 12 columns expected, found {len(words)}")
        phases = [
            _phase(file, number, words[i : i + 3], "DP" if i == 8 else "TP") for i in (2, 5, 8)
        ]
        found.append((words[0], phases[0], phases[1], phases[2]))
    text = lines[1].strip() if len(lines) > 1 else ""
    if text != str(len(found)):
        raise InputError(f"{file}: line 2 says {text!r} layers, found {len(found)}")
    return [(f"{i}.{name}", a, b, c) for i, (name, a, b, c) in enumerate(found)]


def _phase(file: Path, number: int, words: list[str], group: str) -> _Phase:
    kind = words[1].upper()
    for suffix in _SUFFIXES:
        if kind.endswith(suffix):
            kind, group = kind.removesuffix(suffix), suffix[1:]
            break
    if kind != "NONE" and kind not in _AICB:
        raise InputError(f"{file}: line {number}: no collective {words[1]!r}")
    try:
        compute, nbytes = int(float(words[0])), int(float(words[2]))
    except (ValueError, OverflowError):
        raise InputError(
            f"{file}: line {number}: {words[0]!r} ns and {words[2]!r} bytes must be numbers"
        ) from None
    if compute < 0 or nbytes < 0:
        raise InputError(f"{file}: line {number}: a time or size is negative")
    return _Phase(compute, _AICB.get(kind), group, nbytes)
