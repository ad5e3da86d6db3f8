"""Truth tables by hand, and small Kineto files, for the tests of compare."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from genie.compare.truth.model import KINDS, Labels, Truth, messages_of, ops_of


def truth(
    rows: list[dict[str, Any]],
    compute: list[dict[str, Any]] | None = None,
    messages: list[dict[str, Any]] | None = None,
    format: str = "recording",
    **more: Any,
) -> Truth:
    """Return a Truth of rows; "kind" is text and times are filled from start_ns and end_ns."""
    labels = Labels()

    def made(given: list[dict[str, Any]]) -> list[dict[str, Any]]:
        out = []
        for row in given:
            new = dict(row, kind=KINDS.index(row.get("kind", "all_reduce")))
            if "start_ns" in row and "end_ns" in row:
                new.setdefault("time_ns", float(row["end_ns"] - row["start_ns"]))
            out.append(new)
        return out

    return Truth(
        ops=ops_of(made(rows), labels),
        compute=None if compute is None else ops_of(made(compute), labels),
        messages=None if messages is None else messages_of(messages, labels),
        source="hand",
        format=format,
        labels=labels.tables(),
        **more,
    )


def kernel(name: str, ts: float, dur: float, **args: Any) -> dict[str, Any]:
    """Return a Kineto event of a GPU kernel."""
    return {
        "ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": args.pop("stream", 20),
        "ts": ts, "dur": dur, "args": args,
    }  # fmt: skip


def all_reduce(
    ts: float, dur: float, elements: int = 1024, n: int = 8, **more: Any
) -> dict[str, Any]:
    """Return the kernel event of an all_reduce with its metadata."""
    return kernel(
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long, ncclWork*)",
        ts,
        dur,
        **{
            "Collective name": "allreduce",
            "In msg nelems": elements,
            "Out msg nelems": elements,
            "Group size": n,
            "dtype": "Float",
            "Process Group Name": "0",
            **more,
        },
    )


def kineto(path: Path, events: list[dict[str, Any]], rank: int | None = 0, world: int = 8) -> Path:
    """Write a Kineto file."""
    document: dict[str, Any] = {"schemaVersion": 1, "traceEvents": events}
    if rank is not None:
        document["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": world}
    path.write_text(json.dumps(document))
    return path
