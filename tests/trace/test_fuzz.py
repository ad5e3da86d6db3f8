"""A short slice of fuzz.py: mutated files are refused or read, and nothing else."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genie.errors import TraceError
from genie.trace import load

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from trace import fuzz


@pytest.mark.parametrize("seed", [11, 12])
def test_mutated_files_only_raise_trace_errors(seed: int, tmp_path: Path) -> None:
    stream = fuzz.mutations(random.Random(seed), fuzz.seeds())
    for _ in range(1000):
        fuzz.scan_all(next(stream))
    for _ in range(100):
        fuzz.load_one(tmp_path, next(stream))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes(data: bytes) -> None:
    fuzz.scan_all(data)


def test_an_id_list_made_to_collide_is_not_slow(tmp_path: Path) -> None:
    # Ids a power of two apart share their low bits: the table must not degrade to a list.
    records = [fuzz.w.v4(k << 44, "n", 4) for k in range(1, 20_000)]
    path = tmp_path / "x.0.et"
    path.write_bytes(fuzz.w.framed(fuzz.w.HEAD_V4, *records))
    assert load(path).n == 19_999


def test_a_bomb_of_dependencies_is_refused_not_fatal(tmp_path: Path) -> None:
    record = fuzz.w.v4(1, "n", 4, fuzz.w.text(5, b"\x02" * 100_000))
    path = tmp_path / "x.0.et"
    path.write_bytes(fuzz.w.framed(fuzz.w.HEAD_V4, record))
    trace = load(path)
    with pytest.raises(TraceError, match="depends on node 2"):
        trace.check()
    assert len(trace.problems()) < 30
