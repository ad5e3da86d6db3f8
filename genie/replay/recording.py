"""`Recording`: what one replay or simulation measured, in memory and on disk."""

from __future__ import annotations

import html
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from genie import checks
from genie.errors import InputError, RecordError
from genie.replay import record_counters, record_io, record_summary
from genie.replay.tables import KINDS, N_COLLECTIVES, TABLES, dtype_of, empty, text_columns
from genie.units import format_time

if TYPE_CHECKING:
    import matplotlib.axes
    import pandas as pd

TableName = Literal["ops", "messages", "health", "counters", "failures"]


class Recording:
    """The tables of one run and where they come from.

    Attributes:
        tables: NumPy structured arrays `ops`, `messages`, `health`, `counters`, `failures`;
            columns and units are those of `genie.replay.tables.TABLES`. Missing ones are empty.
        labels: For every text column (table, column): the strings its int32 codes stand for.
        manifest: JSON-like provenance: `mode` ("replay" or "simulate"), `complete`,
            `incomplete` (why not), `warnings`, `trace`, `plan`, `endpoints`, `devices`,
            `kernel`, `genie_version`, `nccl_version`, `command`,
            `communicators` (list of {"name", "ranks", "exact"}), `iterations`, `warmup`.
    """

    def __init__(
        self,
        tables: dict[str, npt.NDArray[np.void]],
        manifest: dict[str, Any],
        labels: dict[tuple[str, str], tuple[str, ...]] | None = None,
    ) -> None:
        unknown = sorted(set(tables) - set(TABLES))
        if unknown:
            raise RecordError(f"no such table in a recording: {', '.join(unknown)}", path=None)
        self.tables = {name: tables.get(name, empty(name)) for name in TABLES}
        self.labels = {(t, c): () for t in TABLES for c in text_columns(t)} | (labels or {})
        self.labels["ops", "kind"] = self.labels["ops", "kind"] or KINDS
        self.manifest = manifest
        for name, table in self.tables.items():
            if table.dtype != dtype_of(name):
                raise RecordError(f"table {name!r} has columns {table.dtype.names}", path=None)
        self._normalise_kinds()

    def _normalise_kinds(self) -> None:
        """Make the codes of `ops.kind` those of KINDS, whatever order a file gave them."""
        found = self.labels["ops", "kind"]
        if found == KINDS:
            return
        unknown = sorted(set(found) - set(KINDS))
        if unknown:
            raise RecordError(f"unknown kind of operation: {', '.join(unknown)}", path=None)
        lookup = np.array([KINDS.index(name) for name in found] + [-1], dtype=np.int32)
        ops = self.tables["ops"] = self.tables["ops"].copy()
        ops["kind"] = lookup[ops["kind"]]
        self.labels["ops", "kind"] = KINDS

    @property
    def ops(self) -> npt.NDArray[np.void]:
        """One row for every node that ran on every rank and iteration."""
        return self.tables["ops"]

    @property
    def messages(self) -> npt.NDArray[np.void]:
        """One row for every message given to a transport."""
        return self.tables["messages"]

    @property
    def health(self) -> npt.NDArray[np.void]:
        """One row a worker: timer error, poll gaps, CPU, clock."""
        return self.tables["health"]

    @property
    def counters(self) -> npt.NDArray[np.void]:
        """Kernel and device counters before, during and after the run, sorted by time in each."""
        return self.tables["counters"]

    def counter_changes(self) -> npt.NDArray[np.void]:
        """Return worker, device, name, meaning (codes), before, after, delta of every counter."""
        return record_counters.changes(self)

    @property
    def failures(self) -> npt.NDArray[np.void]:
        """One row for everything that went wrong."""
        return self.tables["failures"]

    @property
    def complete(self) -> bool:
        """Whether the run reached its end on every rank."""
        return bool(self.manifest.get("complete", False))

    def column(self, table: TableName, name: str) -> npt.NDArray[Any]:
        """Return one column; text columns as an object array of str ("" for none)."""
        checks.one_of("table", table, TABLES)
        checks.one_of("name", name, self.tables[table].dtype.names or ())
        values = self.tables[table][name]
        if (table, name) not in self.labels:
            return values
        lookup = np.array([*self.labels[table, name], ""], dtype=object)
        out: npt.NDArray[Any] = lookup[values]
        return out

    def group_sizes(self) -> dict[int, int]:
        """Return the number of ranks of each communicator code of `ops`."""
        ranks = {c["name"]: len(c["ranks"]) for c in self.manifest.get("communicators", ())}
        return {i: ranks.get(name, 0) for i, name in enumerate(self.labels["ops", "communicator"])}

    def communicator_ranks(self, name: str) -> tuple[int, ...]:
        """Return the global ranks of communicator `name`, in communicator order."""
        for entry in self.manifest.get("communicators", ()):
            if isinstance(name, str) and entry["name"] == name:
                return tuple(entry["ranks"])
        raise InputError(f"the recording has no communicator {checks.short(name)}")

    def collectives(self) -> npt.NDArray[np.void]:
        """Return one row for every collective (and send), all its ranks together.

        Columns: `genie.replay.tables.COLLECTIVES`. `time_ns` runs from the last rank's start
        to the last rank's end; -1 where it did not finish everywhere.
        """
        return record_summary.collectives(self)

    def steps(self) -> npt.NDArray[np.void]:
        """Return iteration, start_ns, end_ns and time_ns of every iteration."""
        return record_summary.steps(self)

    def summary(self) -> str:
        """Return a table of every collective and the step times, as text."""
        return record_summary.summary(self)

    def to_pandas(self, table: TableName = "ops") -> pd.DataFrame:
        """Return one table as a DataFrame; text columns become categories."""
        import pandas as pd

        checks.one_of("table", table, TABLES)
        data: dict[str, Any] = {}
        for column in TABLES[table]:
            values = self.tables[table][column.name]
            if column.text:
                labels = pd.Index(list(self.labels[table, column.name]), dtype=object)
                codes = np.ascontiguousarray(values, dtype=np.int32)
                data[column.name] = pd.Categorical.from_codes(codes, categories=labels)
            else:
                data[column.name] = np.ascontiguousarray(values)
        return pd.DataFrame(data)

    def save(self, path: str | os.PathLike[str], force: bool = False) -> Path:
        """Write the recording as folder `path`: Parquet tables and `manifest.json`.

        Args:
            path: Folder to create.
            force: Replace a recording that is there. Anything else is never replaced.

        Raises:
            RecordError: Something is in the way, or the disk refused.
        """
        target = Path(checks.path("path", path, "a folder"))
        checks.truth("force", force)
        record_io.save(target, self.tables, self.labels, self.manifest, force)
        return target

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Recording:
        """Read a recording; every file is checked against the manifest's SHA-256.

        Raises:
            RecordError: Missing, damaged, or not a recording.
            RecordVersionError: Written by a genie with another schema version.
        """
        folder = Path(checks.path("path", path, "a folder"))
        tables, labels, manifest = record_io.load(folder)
        found = cls(tables, manifest, labels)
        found._join_remote(folder)
        return found

    def _join_remote(self, folder: Path | None) -> None:
        """Add what stayed on the workers' hosts, as far as it is here."""
        if "remote" not in self.manifest:
            return
        from genie.replay.remote import gather

        found = gather(self.manifest, folder)
        if found is None:
            return
        tables, labels = found
        if len(self.ops):
            from genie.replay.assemble import merge

            mine = {name: self.tables[name] for name in ("ops", "messages")}
            known = {key: value for key, value in self.labels.items() if key[0] == "ops"}
            tables, labels = merge([(mine, known), (tables, labels)])
        self.tables |= tables
        self.labels |= labels

    def plot(
        self,
        ax: matplotlib.axes.Axes | None = None,
        what: Literal["auto", "busbw", "timeline"] = "auto",
    ) -> matplotlib.axes.Axes:
        """Draw bus bandwidth against size, or the timeline of one step.

        Args:
            ax: Axes to draw into; a new figure's when None.
            what: "busbw", "timeline", or "auto": busbw when a kind ran with three or more sizes.
        """
        from genie.replay.record_plot import plot

        return plot(self, ax, what)

    def _facts(self) -> tuple[str, ...]:
        manifest = self.manifest
        ops = self.ops
        done = self.steps()
        times = done["time_ns"][(done["iteration"] >= 0) & (done["time_ns"] >= 0)]
        n_coll = int(((ops["kind"] >= 0) & (ops["kind"] < N_COLLECTIVES)).sum())
        mode = manifest.get("mode", "recording")
        facts = [
            f"{mode} at the flow level (approximate)" if manifest.get("approximate") else mode,
            f"{len(np.unique(ops['rank']))} ranks",
            f"{len(ops)} ops ({n_coll} collective)",
            f"{len(self.messages)} messages",
        ]
        if len(times):
            facts.append(f"step {format_time(float(np.median(times)))}")
        if len(self.failures):
            facts.append(f"{len(self.failures)} failures")
        if not self.complete:
            facts.append("INCOMPLETE")
        return tuple(facts)

    def __repr__(self) -> str:
        return f"<Recording: {', '.join(self._facts())}>"

    def _repr_html_(self) -> str:
        """Return the summary for a notebook."""
        return f"<pre>{html.escape(self.summary())}</pre>"
