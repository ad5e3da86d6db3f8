"""`Trace` and `RankTrace`: a checked-and-readable trace set as NumPy columns and dependency CSR."""

from __future__ import annotations

import hashlib
import html
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from genie import checks
from genie.errors import TraceError
from genie.trace.kinds import Kind

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

# Columns of one node, in the order of docs/architecture.md, with the value that means "missing".
COLUMNS: dict[str, tuple[str, int]] = {
    "id": ("u8", 0),
    "kind": ("u1", 0),
    "duration_ns": ("i8", -1),
    "start_ns": ("i8", -1),
    "coll": ("i1", -1),
    "nbytes": ("i8", -1),
    "group": ("i4", -1),
    "peer": ("i4", -1),
    "tag": ("i4", 0),
    "root": ("i4", 0),
    "stream": ("i4", -1),
    "thread": ("i4", -1),
    "dtype": ("i1", -1),
    "num_ops": ("i8", -1),
    "tensor_size": ("i8", -1),
    "is_cpu": ("u1", 0),
    "splits": ("i4", -1),
}

Splits = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]


_MOST_CHECKED = 1_000_000


class Order(IntEnum):
    """How telling a problem is: lower ones come first and are what `check` raises."""

    FILE = 0
    RANKS = 1
    CYCLE = 2
    IDS = 3
    DANGLING = 4
    VALUES = 5
    GROUPS = 6
    MATCH = 7
    UNITS = 8


class Records(Protocol):
    """Where the text of a rank's nodes is kept: names and the attributes without a column."""

    def name(self, i: int) -> str:
        """Return the name of the node at position `i`."""

    def names(self) -> list[str]:
        """Return every name in file order."""

    def attrs(self, i: int) -> dict[str, Any]:
        """Return every attribute of the node at position `i`, as the file has it."""


class NoRecords:
    """The records of a rank that has none: missing, or not readable at all."""

    def name(self, i: int) -> str:
        """Refuse, because there are no nodes."""
        raise IndexError(i)

    def names(self) -> list[str]:
        """Return an empty list."""
        return []

    def attrs(self, i: int) -> dict[str, Any]:
        """Refuse, because there are no nodes."""
        raise IndexError(i)


class RankTrace:
    """One rank's nodes: columns in file order and each node's parents in a CSR.

    Attributes:
        rank: Global rank.
        path: The file that was read.
        n: Number of nodes.
        id: Node ids of the file, uint64.
        kind: Codes of `Kind`, uint8.
        duration_ns: Recorded durations in ns, int64, -1 missing.
        start_ns: Recorded starts in ns, int64, -1 missing.
        coll: Codes of `Coll`, int8, -1 missing.
        nbytes: `comm_size` in bytes, int64, -1 missing, which is not 0.
        group: Indices into `Trace.group_names`, int32, -1 the world.
        peer: Global rank a send goes to or a receive comes from, int32, -1 missing.
        tag: Tags of sends and receives, int32.
        root: Roots as ranks in their group, int32.
        stream: GPU streams, int32, -1 none.
        thread: CPU threads, int32, -1 none.
        dtype: Indices into `DTYPES`, int8, -1 unsaid.
        num_ops: Operations (FLOP) of a compute node, int64, -1 missing.
        tensor_size: Bytes of a memory or compute node's tensors, int64, -1 missing.
        is_cpu: 1 for an operation on the CPU, uint8.
        splits: Indices into `split_lists`, int32, -1 even.
        dep_indptr: int64[n + 1]; the parents of node i are
            `deps[dep_indptr[i]:dep_indptr[i + 1]]`.
        deps: Positions of parents, uint32; data and control merged, each parent once.
        split_lists: Pairs (bytes to each rank, bytes from each rank) of uneven all_to_alls.
        version: Wire version or JSON form of the file.
        schema: The schema the file names, "" if it names none.
        ignored: What the reader passed over, and how often.
    """

    id: npt.NDArray[np.uint64]
    kind: npt.NDArray[np.uint8]
    duration_ns: npt.NDArray[np.int64]
    start_ns: npt.NDArray[np.int64]
    coll: npt.NDArray[np.int8]
    nbytes: npt.NDArray[np.int64]
    group: npt.NDArray[np.int32]
    peer: npt.NDArray[np.int32]
    tag: npt.NDArray[np.int32]
    root: npt.NDArray[np.int32]
    stream: npt.NDArray[np.int32]
    thread: npt.NDArray[np.int32]
    dtype: npt.NDArray[np.int8]
    num_ops: npt.NDArray[np.int64]
    tensor_size: npt.NDArray[np.int64]
    is_cpu: npt.NDArray[np.uint8]
    splits: npt.NDArray[np.int32]

    def __init__(
        self,
        rank: int,
        path: str,
        columns: dict[str, npt.NDArray[Any]],
        dep_indptr: npt.NDArray[np.int64],
        deps: npt.NDArray[np.uint32],
        records: Records,
        *,
        version: str,
        schema: str = "",
        split_lists: Sequence[Splits] = (),
    ) -> None:
        self.rank = rank
        self.path = path
        self.n = len(dep_indptr) - 1
        self.dep_indptr = dep_indptr
        self.deps = deps
        self.version = version
        self.schema = schema
        self.split_lists: list[Splits] = list(split_lists)
        self.splits_in_bytes: set[int] = set()
        self.metadata: dict[str, Any] = {}
        self.ignored: dict[str, int] = {}
        self.problems: list[tuple[Order, TraceError]] = []
        self.dangling: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        self.noted: set[int] = set()
        self._order: npt.NDArray[np.int64] | None = None
        self.missing = False
        self._records = records
        for name, (dtype, default) in COLUMNS.items():
            column = columns.get(name)
            if column is None:
                column = np.full(self.n, default, dtype)
            setattr(self, name, column)

    @classmethod
    def empty(cls, rank: int, path: str, *, missing: bool = False) -> RankTrace:
        """Return a rank without nodes, in the place of one that could not be read."""
        none = np.zeros(0, np.uint32)
        made = cls(rank, path, {}, np.zeros(1, np.int64), none, NoRecords(), version="")
        made.missing = missing
        return made

    def __len__(self) -> int:
        return self.n

    def __repr__(self) -> str:
        return f"<RankTrace rank {self.rank}: {self.n} nodes, {self.version or 'not read'}>"

    def parents(self, i: int) -> npt.NDArray[np.uint32]:
        """Return the positions of the parents of the node at position `i`."""
        return self.deps[self.dep_indptr[i] : self.dep_indptr[i + 1]]

    @property
    def order(self) -> npt.NDArray[np.int64]:
        """Positions in issue order, without the nodes on or behind a cycle."""
        if self._order is None:
            from genie._core.graph import issue_order

            self._order = issue_order(self.dep_indptr, self.deps, self.id)
        return self._order

    def name(self, i: int) -> str:
        """Return the name of the node at position `i`."""
        return self._records.name(i)

    def names(self) -> list[str]:
        """Return every name in file order."""
        return self._records.names()

    def attrs(self, i: int) -> dict[str, Any]:
        """Return the attributes of the node at position `i`, also those without a column."""
        return self._records.attrs(i)

    def describe(self, i: int) -> str:
        """Return "node ID (name)" of the node at position `i`, for messages."""
        return f"node {int(self.id[i])} ({self.name(i)})"

    def columns(self) -> Iterator[tuple[str, npt.NDArray[Any]]]:
        """Yield every column with its name."""
        for name in COLUMNS:
            yield name, getattr(self, name)

    @property
    def nbytes_in_memory(self) -> int:
        """Bytes of the columns and the CSR in memory."""
        arrays = [column for _, column in self.columns()]
        return sum(a.nbytes for a in [*arrays, self.dep_indptr, self.deps])


class Trace:
    """A trace set: one `RankTrace` a rank, and the groups their nodes name.

    Attributes:
        ranks: One entry a rank; the index is the rank.
        groups: Group name to its global ranks in communicator order.
        group_names: What the `group` column indexes; may hold names that no group defines.
        version: Wire version or JSON form of the set.
        path: What was asked for.
        elements: What one unit of the set's sizes is, if they are elements and that was said.
        sizes_in_elements: Whether the set counts elements and nobody said of what.
        warnings: What a user should know although it stops nothing.
    """

    def __init__(
        self,
        ranks: list[RankTrace],
        *,
        path: str,
        version: str,
        groups: dict[str, tuple[int, ...]],
        group_names: Iterable[str] = (),
        elements: str | None = None,
        sizes_in_elements: bool = False,
        undefined_group: str | None = None,
    ) -> None:
        self.ranks = ranks
        self.path = path
        self.version = version
        self.groups = groups
        self.group_names = list(group_names)
        self.elements = elements
        self.sizes_in_elements = sizes_in_elements
        self.undefined_group = undefined_group
        self.warnings: list[str] = []
        self.load_problems: list[TraceError] = []
        self.groups_path: str | None = None
        self.unread_groups: dict[str, str] = {}
        self._digest: str | None = None
        self._problems: list[tuple[Order, TraceError]] | None = None

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.ranks)

    @property
    def n(self) -> int:
        """Number of nodes of all ranks."""
        return sum(rank.n for rank in self.ranks)

    def __repr__(self) -> str:
        return (
            f"<Trace {Path(self.path).name}: {self.world_size} ranks, {self.n} nodes, "
            f"{len(self.groups)} groups, {self.version}{self._doubt()}>"
        )

    def _doubt(self) -> str:
        # A whole check of a very large set takes seconds, too long for a repr.
        if self._problems is None and self.n > _MOST_CHECKED:
            return ", not checked"
        count = len(self.problems())
        if not count:
            return ""
        return f", {count} problem{'s' if count > 1 else ''}: see problems()"

    def _repr_html_(self) -> str:
        """Return what `genie inspect` prints, and every problem, for a notebook."""
        from genie.trace.inspect import render

        problems = [f"cannot be replayed: {problem}" for problem in self.problems()]
        return f"<pre>{html.escape(chr(10).join([render(self.inspect()), *problems]))}</pre>"

    @property
    def digest(self) -> str:
        """The sha256, in hex, of the set's content: files in rank order, then the groups."""
        if self._digest is None:
            total = hashlib.sha256()
            for rank in self.ranks:
                part = hashlib.sha256()
                if not rank.missing:
                    with open(rank.path, "rb") as file:
                        while block := file.read(1 << 20):
                            part.update(block)
                total.update(part.digest())
            total.update(repr((sorted(self.groups.items()), self.elements)).encode())
            self._digest = total.hexdigest()
        return self._digest

    def members(self, group: int) -> tuple[int, ...] | None:
        """Return the global ranks of an entry of the `group` column, None if undefined."""
        if group < 0:
            return tuple(range(self.world_size))
        name = self.group_names[group]
        if name in self.groups:
            return self.groups[name]
        if self.undefined_group == "world":
            return tuple(range(self.world_size))
        return None

    def kinds(self) -> dict[str, int]:
        """Return how many nodes of each kind the set has."""
        total = np.zeros(len(Kind), np.int64)
        for rank in self.ranks:
            total += np.bincount(rank.kind, minlength=len(Kind))
        return {kind.name: int(total[kind]) for kind in Kind if total[kind]}

    def problems(self) -> list[TraceError]:
        """Return every reason why the set cannot be replayed, the most telling first."""
        return [problem for _, problem in self.ranked_problems()]

    def ranked_problems(self) -> list[tuple[Order, TraceError]]:
        """Return every reason with how telling it is, the most telling first."""
        if self._problems is None:
            from genie.trace.check import find_problems

            self._problems = find_problems(self)
        return self._problems

    def check(self) -> None:
        """Refuse a set that cannot be replayed.

        Raises:
            TraceError: The first reason; its text says how many more there are.
        """
        problems = self.problems()
        if not problems:
            return
        first = problems[0]
        if len(problems) > 1:
            more = len(problems) - 1
            text = f"{first.message} (and {more} more: genie inspect {self.path})"
            raise type(first)(text, **first.fields)
        raise first

    def issue_order(self, rank: int) -> npt.NDArray[np.int64]:
        """Return the positions of a rank's nodes in the order in which GENIE issues them.

        A node comes after its parents; of several that could come next, the one with the
        lowest id does, as in Chakra's own feeder.

        Raises:
            DependencyCycleError: The dependencies close a loop.
        """
        from genie.trace.order import issue_order

        return issue_order(self.ranks[checks.whole("rank", rank, 0, self.world_size - 1)])

    def to_pandas(self, rank: int | None = None) -> pd.DataFrame:
        """Return the nodes as a DataFrame: rank, name, every column, and the number of parents.

        Args:
            rank: Only this rank's; all ranks' by default.

        Raises:
            InputError: No such rank.
        """
        from genie.trace.tables import to_pandas

        return to_pandas(self, rank)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw how many bytes each kind of communication asks for, all ranks together.

        Args:
            ax: Axes to draw into; a new figure's when None.
        """
        from genie.trace.tables import plot

        return plot(self, ax)

    def save(self, path: str | os.PathLike[str], force: bool = False, name: str = "trace") -> Path:
        """Write the set as Chakra v0.0.4 files and their groups; return the folder.

        Nodes, dependencies, sizes (in bytes where `elements` was said), groups, and attributes
        are kept; data and control dependencies become one, tensors' texts (inputs, outputs) go.

        Args:
            path: Folder to create.
            force: Replace a trace set that is there. Anything else is never replaced.
            name: Prefix of the files.

        Raises:
            TraceError: The set cannot be replayed.
            InputError: Something is in the way.
        """
        from genie.trace.tables import save

        return save(self, path, force, name)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        groups: str | os.PathLike[str] | Mapping[str, Sequence[int]] | None = None,
        *,
        elements: str | None = None,
        undefined_group: str | None = None,
    ) -> Trace:
        """Return the trace set at `path`, as `genie.load` does."""
        from genie.trace.load import load

        return load(path, groups, elements=elements, undefined_group=undefined_group)

    def inspect(self) -> dict[str, Any]:
        """Return what the set holds, as a document that JSON can carry."""
        from genie.trace.inspect import inspect

        return inspect(self)
