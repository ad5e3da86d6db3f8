"""Another GENIE Recording as ground truth: a second run, a simulation, another cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from genie.compare.truth.model import KINDS, Truth, empty_messages, empty_ops
from genie.replay.tables import N_COMM

if TYPE_CHECKING:
    from genie.replay.recording import Recording


def from_recording(recording: Recording, source: str = "recording") -> Truth:
    """Return the communications, compute and messages of a Recording as Truth.

    Args:
        recording: What was measured.
        source: Where it was read from.
    """
    table = recording.ops
    ops = empty_ops(len(table))
    for name in ("rank", "iteration", "start_ns", "end_ns", "algbw", "busbw", "seq", "peer"):
        ops[name] = table[name]
    for name in ("kind", "communicator", "name", "dtype", "stream"):
        ops[name] = table[name]
    sizes = recording.group_sizes()
    lookup = np.array([sizes[i] for i in range(len(sizes))] + [-1], np.int64)
    ops["group_size"] = lookup[table["communicator"]]
    communication = (table["kind"] >= 0) & (table["kind"] < N_COMM)
    ops["nbytes"] = np.where(communication, table["nbytes"], -1)
    chosen = _choices(recording, ops)
    done = (table["end_ns"] >= 0) & (table["start_ns"] >= 0)
    ops["time_ns"] = np.where(done, table["end_ns"] - table["start_ns"], np.nan)
    messages = None
    if len(recording.messages):
        rows = recording.messages
        messages = empty_messages(len(rows))
        for name in ("rank", "peer", "channel", "direction", "nbytes"):
            messages[name] = rows[name]
        messages["start_ns"] = rows["posted_ns"]
        messages["end_ns"] = rows["completed_ns"]
        messages["nic"] = rows["nic"]
        # Rows of ops are counted among communications only.
        place = np.where(communication, np.cumsum(communication) - 1, -1)
        known = rows["op"] >= 0
        messages["op"] = np.where(known, place[np.maximum(rows["op"], 0)], -1)
    labels = {
        column: tuple(recording.labels["ops", column])
        for column in ("name", "communicator", "dtype")
    } | chosen
    return Truth(
        ops=ops[communication],
        compute=ops[~communication],
        source=source,
        format="recording",
        messages=messages,
        labels=labels,
        counts={"ranks": len(np.unique(ops["rank"]))},
        unused={"operations that did not end": int((~done).sum())} if (~done).any() else {},
        communicators={
            entry["name"]: tuple(entry["ranks"])
            for entry in recording.manifest.get("communicators", ())
        },
        world_size=int(recording.manifest.get("trace", {}).get("ranks", -1)),
        mode=str(recording.manifest.get("mode", "")),
        hosts=int(recording.manifest.get("plan", {}).get("hosts", -1)),
        notes=() if recording.complete else ("the recording is incomplete",),
        manifest=recording.manifest,
        health=_health(recording),
    )


def _health(recording: Recording) -> dict[str, float]:
    """Return the worst worker's value of each time and share of the health table."""
    table = recording.health
    if not len(table):
        return {}
    return {
        column: float(np.nanmax(table[column]))
        for column in table.dtype.names or ()
        if (column.endswith("_ns") or column.startswith("host_cpu"))
        and not np.isnan(table[column].astype(float)).all()
    }


def _choices(recording: Recording, ops: npt.NDArray[np.void]) -> dict[str, tuple[str, ...]]:
    """Fill algorithm, protocol and channels where the manifest says them; return the labels.

    A size for which a communicator has more than one choice (of other element types) keeps none.
    """
    names = {name: i for i, name in enumerate(recording.labels["ops", "communicator"])}
    labels: dict[str, dict[str, int]] = {"algorithm": {}, "protocol": {}}
    by_key: dict[tuple[int, int, int], list[dict[str, Any]]] = {}
    for entry in recording.manifest.get("choices", ()):
        if entry["communicator"] in names:
            key = (names[entry["communicator"]], KINDS.index(entry["kind"]), entry["nbytes"])
            by_key.setdefault(key, []).append(entry)
    for (communicator, kind, nbytes), entries in by_key.items():
        if len(entries) > 1:
            continue
        rows = (
            (ops["communicator"] == communicator)
            & (ops["kind"] == kind)
            & (ops["nbytes"] == nbytes)
        )
        for column, codes in labels.items():
            ops[column][rows] = codes.setdefault(entries[0][column], len(codes))
        ops["channels"][rows] = entries[0]["channels"]
    return {column: tuple(codes) for column, codes in labels.items()}
