"""`Truth`: what a run on GPUs (or any other run) measured, whatever file it came from."""

from __future__ import annotations

import html
from dataclasses import dataclass, field
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


def empty_messages(rows: int = 0) -> npt.NDArray[np.void]:
    """Return rows of MESSAGES with everything unknown."""
    out = np.zeros(rows, MESSAGES)
    for name in ("op", "rank", "peer", "channel", "step", "qp", "opcode", "start_ns", "end_ns"):
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
        notes: What a reader of the numbers should know.
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
    notes: tuple[str, ...] = ()

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
