"""What imports have in common, and nccl-tests command lines."""

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
