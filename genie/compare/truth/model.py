"""`Truth`: what a run on GPUs (or any other run) measured, whatever file it came from."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from genie.errors import CompareError
from genie.replay.tables import KINDS as RECORDING_KINDS

if TYPE_CHECKING:
    import pandas as pd

#: Kinds of operations: a Recording's, and "unknown" where the source does not say.
KINDS: tuple[str, ...] = (*RECORDING_KINDS, "unknown")
UNKNOWN = KINDS.index("unknown")

#: One row an operation of one rank (rank -1: the source speaks for all ranks together).
OPS = np.dtype(
    [
        ("rank", "i4"),  # global rank, -1 unknown or all
        ("kind", "i4"),  # code of KINDS
        ("name", "i4"),  # label: kernel or operation name
        ("communicator", "i4"),  # label: process group, -1 unknown
        ("group_size", "i4"),  # ranks of the communicator, -1 unknown
        ("seq", "i4"),  # position in the communicator's order, -1 unknown
        ("iteration", "i4"),  # -1 unknown
        ("nbytes", "i8"),  # size as nccl-tests prints it, B, -1 unknown
        ("count", "i8"),  # NCCL's count, elements, -1 unknown
        ("dtype", "i4"),  # label, -1 unknown
        ("start_ns", "i8"),  # on this rank's clock, ns, -1 unknown
        ("end_ns", "i8"),  # on this rank's clock, ns, -1 unknown
        ("time_ns", "f8"),  # duration, ns (nccl-tests: out-of-place), NaN unknown
        ("algbw", "f8"),  # GB/s as the source states it, NaN unknown
        ("busbw", "f8"),  # GB/s as the source states it, NaN unknown
        ("wrong", "i8"),  # nccl-tests #wrong, -1 not checked
        ("time_in_ns", "f8"),  # nccl-tests in-place half
        ("algbw_in", "f8"),
        ("busbw_in", "f8"),
        ("wrong_in", "i8"),
        ("root", "i4"),  # root in the communicator, -1 none
        ("peer", "i4"),  # global rank at the other end of a send or receive, -1 none
        ("stream", "i8"),  # GPU stream, -1 unknown
        ("algorithm", "i4"),  # label, -1 unknown
        ("protocol", "i4"),  # label, -1 unknown
        ("channels", "i4"),  # channels used, -1 unknown
        ("table", "i4"),  # which table or file of the source, from 0
    ]
)
TEXT_COLUMNS = ("name", "communicator", "dtype", "algorithm", "protocol")

#: One row a message, where the source has them.
MESSAGES = np.dtype(
    [
        ("op", "i8"),  # row of ops, -1 unknown
        ("rank", "i4"),
        ("peer", "i4"),  # -1 unknown
        ("channel", "i4"),  # -1 unknown
        ("direction", "u1"),  # 0 send, 1 receive
        ("step", "i8"),  # FIFO step, -1 unknown
        ("nbytes", "i8"),  # bytes on the wire
        ("qp", "i8"),  # queue pair number, -1 unknown
        ("nic", "i4"),  # NIC of the rank's host, -1 unknown
        ("opcode", "i4"),  # label, -1 unknown
        ("start_ns", "i8"),
        ("end_ns", "i8"),
    ]
)


def empty_ops(rows: int = 0) -> npt.NDArray[np.void]:
    """Return rows of OPS with everything unknown."""
    out = np.zeros(rows, OPS)
    for name in OPS.names or ():
        out[name] = np.nan if OPS[name].kind == "f" else -1
    out["kind"] = UNKNOWN
    out["table"] = 0
    return out


def ops_of(rows: Sequence[Mapping[str, Any]], labels: Labels) -> npt.NDArray[np.void]:
    """Return named values as rows of OPS; texts get codes of `labels`, what is absent is unknown.

    Args:
        rows: Column → value, of columns of OPS.
        labels: Where codes of texts come from.
    """
    out = empty_ops(len(rows))
    used = {name for row in rows for name in row}
    for name in used:
        missing = float("nan") if OPS[name].kind == "f" else -1
        if name == "kind":
            missing = UNKNOWN
        if name in TEXT_COLUMNS:
            out[name] = [labels.code(name, row.get(name)) for row in rows]
        else:
            out[name] = [row.get(name, missing) for row in rows]
    return out


def messages_of(rows: Sequence[Mapping[str, Any]], labels: Labels) -> npt.NDArray[np.void]:
    """Return named values as rows of MESSAGES; "opcode" gets a code of `labels`."""
    out = empty_messages(len(rows))
    for name in {name for row in rows for name in row}:
        if name == "opcode":
            out[name] = [labels.code(name, row.get(name)) for row in rows]
        else:
            missing = 0 if name in ("direction", "nbytes") else -1
            out[name] = [row.get(name, missing) for row in rows]
    return out


def empty_messages(rows: int = 0) -> npt.NDArray[np.void]:
    """Return rows of MESSAGES with everything unknown."""
    out = np.zeros(rows, MESSAGES)
    for name in (
        "op",
        "rank",
        "peer",
        "channel",
        "step",
        "qp",
        "nic",
        "opcode",
        "start_ns",
        "end_ns",
    ):
        out[name] = -1
    return out


class Labels:
    """Texts and their codes while a table is being read."""

    def __init__(self) -> None:
        self._codes: dict[str, dict[str, int]] = {name: {} for name in (*TEXT_COLUMNS, "opcode")}

    def code(self, column: str, text: str | None) -> int:
        """Return the code of `text` in `column`; None and "" are -1."""
        if not text:
            return -1
        codes = self._codes[column]
        return codes.setdefault(text, len(codes))

    def tables(self) -> dict[str, tuple[str, ...]]:
        """Return column → texts, the code is the position."""
        return {column: tuple(codes) for column, codes in self._codes.items()}


@dataclass(frozen=True, eq=False)
class Truth:
    """Ground truth of one run.

    Attributes:
        ops: `OPS` rows of communications, in the source's order.
        compute: `OPS` rows of what else the GPU did, or None where the source has none.
        messages: `MESSAGES` rows, or None where the source has none.
        labels: Texts of the columns in `TEXT_COLUMNS` (and "opcode"); the code is the position.
        source: File or folder that was read.
        format: Name of the format, such as "kineto" or "nccl-tests".
        counts: What was read: "ops", "ranks", "events", … → number.
        unused: Why something was not used → how often.
        communicators: Name → global ranks, where the source says.
        world_size: Ranks of the job, -1 unknown.
        hosts: Hosts, each with the same number of ranks in a row, -1 unknown.
        mode: "replay" or "simulate" of a recording, "" otherwise.
        notes: What a reader of the numbers should know.
        manifest: That of a recording, {} otherwise.
        health: A recording's own error: column of its health table → the worst worker's value.
    """

    ops: npt.NDArray[np.void]
    source: str
    format: str
    messages: npt.NDArray[np.void] | None = None
    compute: npt.NDArray[np.void] | None = None
    labels: dict[str, tuple[str, ...]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    unused: dict[str, int] = field(default_factory=dict)
    communicators: dict[str, tuple[int, ...]] = field(default_factory=dict)
    world_size: int = -1
    hosts: int = -1
    mode: str = ""
    notes: tuple[str, ...] = ()
    manifest: dict[str, Any] = field(default_factory=dict)
    health: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.ops.dtype != OPS:
            raise CompareError(f"ops of {self.source} have columns {self.ops.dtype.names}")
        if not len(self.ops) and (self.messages is None or not len(self.messages)):
            reasons = "; ".join(f"{n} x {why}" for why, n in self.unused.items())
            raise CompareError(
                f"{self.source}: nothing usable was found in this {self.format} source"
                + (f" ({reasons})" if reasons else ""),
                path=self.source,
            )
        self.counts.setdefault("ops", len(self.ops))

    def column(self, name: str) -> npt.NDArray[Any]:
        """Return one column of `ops`; text columns and kind as str ("" unknown)."""
        values = self.ops[name]
        if name == "kind":
            kinds: npt.NDArray[Any] = np.array(KINDS, dtype=object)[values]
            return kinds
        if name in TEXT_COLUMNS:
            out: npt.NDArray[Any] = np.array([*self.labels.get(name, ()), ""], dtype=object)[values]
            return out
        found: npt.NDArray[Any] = values
        return found

    def to_pandas(self) -> pd.DataFrame:
        """Return `ops` as a DataFrame with texts decoded."""
        import pandas as pd

        return pd.DataFrame({name: self.column(name) for name in OPS.names or ()})

    def __repr__(self) -> str:
        kinds, counts = np.unique(self.column("kind").astype(str), return_counts=True)
        shown = ", ".join(f"{n} {kind}" for kind, n in zip(kinds, counts, strict=True))
        extra = f", {len(self.messages)} messages" if self.messages is not None else ""
        left = sum(self.unused.values())
        return f"<Truth: {self.format}, {len(self.ops)} ops ({shown}){extra}, {left} unused>"

    def _repr_html_(self) -> str:
        """Return a short description for a notebook."""
        lines = [repr(self), *(f"unused: {n} x {why}" for why, n in self.unused.items())]
        return f"<pre>{html.escape(chr(10).join([*lines, *self.notes]))}</pre>"


def joined(parts: Sequence[Truth], source: str) -> Truth:
    """Return several sources of one format as one; tables are numbered on.

    Args:
        parts: At least one.
        source: What was read.
    """
    if len(parts) == 1:
        return replace(parts[0], source=source)
    labels = Labels()
    tables = 0
    ops: list[npt.NDArray[np.void]] = []
    messages: list[npt.NDArray[np.void]] = []
    compute: list[npt.NDArray[np.void]] = []
    counts: dict[str, int] = {}
    unused: dict[str, int] = {}
    rows_before = 0
    for part in parts:
        for table, kept in ((part.ops, ops), (part.compute, compute)):
            if table is None:
                continue
            rows = table.copy()
            for column in TEXT_COLUMNS:
                codes = [labels.code(column, text) for text in part.labels.get(column, ())]
                rows[column] = np.array([*codes, -1], np.int32)[rows[column]]
            rows["table"] += tables
            kept.append(rows)
        if part.messages is not None:
            rows = part.messages.copy()
            codes = [labels.code("opcode", text) for text in part.labels.get("opcode", ())]
            rows["opcode"] = np.array([*codes, -1], np.int32)[rows["opcode"]]
            rows["op"][rows["op"] >= 0] += rows_before
            messages.append(rows)
        rows_before += len(part.ops)
        tables += int(part.ops["table"].max(initial=-1)) + 1
        for name, n in part.counts.items():
            counts[name] = counts.get(name, 0) + n
        for why, n in part.unused.items():
            unused[why] = unused.get(why, 0) + n
    counts["files"] = len(parts)
    return Truth(
        ops=np.concatenate(ops),
        source=source,
        format=parts[0].format,
        messages=np.concatenate(messages) if messages else None,
        compute=np.concatenate(compute) if compute else None,
        labels=labels.tables(),
        counts=counts,
        unused=unused,
        communicators={name: r for part in parts for name, r in part.communicators.items()},
        world_size=max(part.world_size for part in parts),
        notes=tuple(dict.fromkeys(note for part in parts for note in part.notes)),
    )
