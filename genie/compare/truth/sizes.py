"""Sizes of Kineto's operations from the execution traces of the same ranks."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from genie.compare.truth.host_trace import CommRecord, columns_of, parse, rank_of
from genie.compare.truth.model import KINDS, TEXT_COLUMNS, UNKNOWN, Labels
from genie.replay.bandwidth import bus_factor

if TYPE_CHECKING:
    import numpy.typing as npt

    from genie.compare.truth.model import Truth


def with_host_sizes(truth: Truth, documents: dict[Path, Any]) -> Truth:
    """Return Kineto's operations with sizes and groups of the execution traces.

    A rank's NCCL kernels in time order are its `record_param_comms` in node order, if both have
    the same kinds in the same order; else, if there are equally many of each kind, kind by kind.
    Otherwise the rank's operations stay without sizes. Times always stay the profile's.
    """
    ops = truth.ops.copy()
    labels = Labels()
    for column, texts in truth.labels.items():
        for text in texts:
            labels.code(column, text)
    groups = dict(truth.communicators)
    filled = 0
    failed: list[int] = []
    for path, document in documents.items():
        trace = parse(path, document)
        rank = rank_of(path, len(documents))
        rows = np.flatnonzero((ops["rank"] == rank) & (ops["nbytes"] < 0))
        if not len(rows):
            continue
        groups |= trace.groups
        rows = rows[np.argsort(ops["start_ns"][rows], kind="stable")]
        records = [record for record in trace.records if record.kind != "barrier"]
        matched = _match(ops["kind"][rows], records)
        if matched is None:
            failed.append(rank)
            continue
        for row, record in zip(rows.tolist(), matched, strict=True):
            _fill(ops, row, record, labels)
        filled += len(rows)
    notes = [note for note in truth.notes if "carry no size" not in note]
    notes.append(f"sizes of {filled} operations are taken from the execution traces")
    without = int((ops["nbytes"] < 0).sum())
    if without:
        notes.append(f"{without} operations carry no size; they are left out of the metrics")
    if failed:
        notes.append(
            f"execution traces of ranks {failed} do not have the operations of the profile"
        )
    return replace(truth, ops=ops, labels=labels.tables(), communicators=groups, notes=tuple(notes))


def _match(kinds: npt.NDArray[np.int32], records: list[CommRecord]) -> list[CommRecord] | None:
    """Return the record of each kernel, None if the two lists do not fit."""
    theirs = [KINDS.index(record.kind) for record in records]
    ours = kinds.tolist()
    if len(theirs) == len(ours) and all(
        a in (b, UNKNOWN) or b == UNKNOWN for a, b in zip(ours, theirs, strict=True)
    ):
        return records
    if Counter(ours) != Counter(theirs):
        return None
    queues: dict[int, list[CommRecord]] = {}
    for kind, record in zip(theirs, records, strict=True):
        queues.setdefault(kind, []).append(record)
    return [queues[kind].pop(0) for kind in ours]


def _fill(ops: npt.NDArray[np.void], row: int, record: CommRecord, labels: Labels) -> None:
    for column, value in columns_of(record).items():
        ops[column][row] = labels.code(column, value) if column in TEXT_COLUMNS else value
    nbytes, time, n = int(ops["nbytes"][row]), float(ops["time_ns"][row]), record.group_size
    if nbytes > 0 and time > 0:
        ops["algbw"][row] = nbytes / time
        if n > 0 and record.kind != "unknown":
            ops["busbw"][row] = nbytes / time * bus_factor(record.kind, n)
