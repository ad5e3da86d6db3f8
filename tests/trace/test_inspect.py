"""`inspect`: numbers that can be counted by hand, a document for JSON, and its text."""

from __future__ import annotations

import json
from pathlib import Path

from genie.trace import Builder, Trace, load, write
from genie.trace.inspect import render


def example(folder: Path) -> Trace:
    made = []
    for rank in range(3):
        builder = Builder()
        one = builder.node("COMP", "a", duration_ns=1_000_000)
        two = builder.node("COMP", "b", deps=[one], duration_ns=500_500)
        builder.node("COMP", "side", duration_ns=1_200_000)
        builder.node("COMP", "flops", num_ops=10)
        for size in (64, 64, 128):
            two = builder.node("COMM_COLL", "c", deps=[two], coll="all_reduce", nbytes=size,
                               duration_ns=9_000_000)  # fmt: skip
        builder.node("COMM_COLL", "d", coll="all_gather", nbytes=7, group="g")
        builder.node("METADATA", "m")
        if rank == 0:
            builder.node("COMM_SEND", "s", peer=1, nbytes=11)
        if rank == 1:
            builder.node("COMM_RECV", "r", peer=0, nbytes=11)
        made.append(builder)
    return load(write(folder, "t", made, groups={"g": [0, 1, 2]}))


def test_counts(tmp_path: Path) -> None:
    document = example(tmp_path).inspect()
    assert json.loads(json.dumps(document)) == document
    total = document["total"]
    assert document["problems"] == []
    assert total["kinds"] == {
        "METADATA": 3, "COMP": 12, "COMM_SEND": 1, "COMM_RECV": 1, "COMM_COLL": 12,
    }  # fmt: skip
    assert [
        (row["kind"], row["communicator"], row["size"], row["count"], row["sum"])
        for row in total["collectives"]
    ] == [
        ("all_gather", "g", 7, 3, 21),
        ("all_reduce", None, 64, 6, 384),
        ("all_reduce", None, 128, 3, 384),
    ]
    # Recorded durations of collectives are not slept, so they are on no path.
    assert document["ranks"][0]["critical_path_ns"] == 1_500_500
    assert document["ranks"][0]["compute_ns"] == 2_700_500
    assert total["compute_ns"] == 3 * 2_700_500
    assert total["untimed_compute"] == 3
    assert total["sent"] == {"count": 1, "sum": 11}
    assert total["received"] == {"count": 1, "sum": 11}
    assert {entry["what"]: entry["count"] for entry in document["ignored"]} == {
        "metadata nodes": 3,
        "durations of communication nodes": 9,
    }


def test_text(tmp_path: Path) -> None:
    text = render(example(tmp_path).inspect())
    assert "version     v0.0.4" in text
    assert "nodes       29: 3 METADATA, 12 COMP" in text
    assert "all_reduce" in text and "'g'" in text
    lines = text.splitlines()
    assert any(line.startswith("0-1 ") or line.startswith("0  ") for line in lines)
    assert "ignored     9 durations of communication nodes: they include waiting" in text


def test_missing_ranks_are_shown(tmp_path: Path) -> None:
    example(tmp_path)
    (tmp_path / "t.1.et").unlink()
    trace = load(tmp_path)
    assert "1            (no file)" in render(trace.inspect())
