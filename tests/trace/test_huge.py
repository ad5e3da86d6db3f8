"""Ten million nodes: memory follows the columns (bug report 22). Long: `make soak` runs it."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from genie.trace import load

from trace import wirebytes as w  # isort: skip

NODES = 10_000_000


def write(path: Path, nodes: int) -> None:
    # Records of one length, with the id counting in a varint of five bytes.
    with path.open("wb") as file:
        file.write(w.framed(w.HEAD_V4))
        batch = bytearray()
        for k in range(nodes):
            number = (1 << 28) + k
            batch += b"\x13\x08" + w.varint(number) + b"\x12\x01n\x18\x04\x38\x05"
            if k:
                batch += b"\x28" + w.varint(number - 1)
            else:
                batch += b"\x30" + w.varint(number)  # a start, as long as a parent
            if len(batch) > 1 << 22:
                file.write(batch)
                batch.clear()
        file.write(batch)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ten_million_nodes(tmp_path: Path) -> None:
    file = tmp_path / "t.0.et"
    write(file, NODES)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    trace = load(tmp_path)
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert trace.n == NODES
    rank = trace.ranks[0]
    print(f"{rank.nbytes_in_memory / NODES:.1f} B a node kept, {peak / NODES:.1f} B a node at most")
    assert rank.nbytes_in_memory <= 200 * NODES
    # The file itself is mapped, and counts as resident while it is read.
    assert peak - file.stat().st_size <= 260 * NODES
