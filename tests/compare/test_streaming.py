"""Kineto piece by piece: the same tables for any size of piece, and memory that stays flat."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compare.build import all_reduce, kernel, kineto
from corpus_data import corpus
from genie._core.events import Picker
from genie.compare.truth import kineto as reader
from genie.compare.truth.kineto_file import Profile
from genie.compare.truth.load import load_truth
from genie.compare.truth.model import Truth
from genie.errors import CompareError

TEXTS = st.text(alphabet='ab"\\{}[]:, \n\u00e9', max_size=6)
VALUES = st.recursive(
    st.one_of(st.none(), st.integers(), TEXTS, st.sampled_from(["cat", "kernel", "name", "x"])),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=6,
)
EVENTS = st.lists(
    st.dictionaries(st.one_of(TEXTS, st.sampled_from(["cat", "name", "args"])), VALUES, max_size=4),
    max_size=6,
)


def picked(
    text: bytes, wanted: dict[str, list[str]], piece: int
) -> tuple[list[object], int, bytes]:
    """Go through the text of an array, given without its opening bracket, in pieces."""
    picker, found, seen, rest, at = Picker(wanted), [], 0, b"", 0
    while True:
        rest += text[at : at + piece]
        at += piece
        out, n, done, ended = picker.pick(rest)
        found += json.loads(out)
        seen += n
        rest = rest[done:]
        if ended:
            return found, seen, rest + text[at:]
        assert at < len(text) + piece


@settings(deadline=None, max_examples=100)
@given(EVENTS, st.sampled_from([1, 3, 64, 65, 1000]), st.sampled_from([None, 1]))
def test_picks_what_a_json_parser_picks(
    events: list[dict[str, object]], piece: int, indent: int | None
) -> None:
    text = json.dumps(events, indent=indent)[1:].encode() + b', "more": [1]}'
    wanted = {"cat": ["kernel", "x"], "name": ["kernel"]}
    found, seen, rest = picked(text, wanted, piece)
    assert found == [
        e for e in events
        if str(e.get("cat")) in wanted["cat"] or e.get("name") == "kernel"
    ]  # fmt: skip
    assert (seen, rest) == (len(events), b', "more": [1]}')


@pytest.mark.parametrize("text", [b"5]", b'"a"]', b"{}}", b" x", b"{} null]", b"[{}]]"])
def test_what_is_no_object_is_refused_by_place(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"byte \d+: expected an object, found b'"):
        Picker({}).pick(text)


def equal(a: Truth, b: Truth) -> None:
    assert a.ops.tobytes() == b.ops.tobytes()
    assert (a.compute is None) == (b.compute is None)
    assert a.compute is None or a.compute.tobytes() == b.compute.tobytes()
    for name in ("labels", "unused", "notes", "communicators", "world_size", "counts"):
        assert getattr(a, name) == getattr(b, name)


@pytest.mark.parametrize(
    "name",
    ["kn-hta-nccl-meta", "kn-hta-largeint", "kn-hta-sampled2", "pt-dlrm8-kineto",
     "kn-hta-ab-pair/test.json.gz"],
)  # fmt: skip
def test_tables_do_not_depend_on_the_piece(name: str) -> None:
    folder, _, file = name.partition("/")
    target = corpus(folder) / file if file else corpus(folder)
    files = (
        [target] if target.is_file() else sorted(p for p in target.iterdir() if "json" in p.name)
    )
    whole = reader.read(files, target, piece=1 << 30)
    equal(whole, reader.read(files, target, piece=4099))


def test_events_are_all_counted_and_kept_ones_are_a_json_parsers() -> None:
    path = sorted(corpus("pt-dlrm8-kineto").glob("*.json*"))[0]
    data = path.read_bytes()
    document = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    profile = Profile(path, piece=5000)
    kept = [event for events in profile.pick({"cat": ["kernel"]}) for event in events]
    wanted = [event for event in document["traceEvents"] if event.get("cat") == "kernel"]
    assert [event.name for event in kept] == [event["name"] for event in wanted]
    assert [event.ts for event in kept] == [event["ts"] for event in wanted]
    assert profile.events == len(document["traceEvents"])


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    idle = json.dumps({"ph": "X", "cat": "cpu_op", "name": "aten::add", "ts": 1, "dur": 2,
                       "args": {"Input Dims": [[64, 256, 56, 56]] * 20}})  # fmt: skip
    peaks = []
    for repeats in (4_000, 40_000):
        path = tmp_path / f"{repeats}.json"
        one = json.dumps(all_reduce(1, 2))
        path.write_text('{"traceEvents": [' + f"{one}," + f"{idle},\n" * repeats + one + "]}")
        load_truth(path)
        tracemalloc.start()
        assert len(load_truth(path).ops) == 2
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        size = path.stat().st_size
    assert size > 15_000_000
    # A file ten times as long takes no more than a piece or two.
    assert peaks[1] < peaks[0] + 10_000_000


def test_cut_short_at_every_place(tmp_path: Path) -> None:
    path = kineto(tmp_path / "a.json", [all_reduce(1, 2), kernel("gemm", 3, 4)])
    data = path.read_bytes()
    for at in range(data.index(b"[{"), len(data) - 1, 7):
        path.write_bytes(data[:at])
        with pytest.raises(CompareError, match=r"a\.json: not a readable profiler trace"):
            load_truth(path)


def test_damage_in_one_piece_is_mended(tmp_path: Path) -> None:
    good = [all_reduce(i * 10, 2) for i in range(50)]
    path = kineto(tmp_path / "a.json", good)
    whole = load_truth(path)
    text = path.read_text().replace('"ts": 40,', '"ts": 40, "bad": NaN, "empty": ,', 1)
    path.write_text(text.replace("]}", ",]}"))
    equal(whole, load_truth(path))


def test_launches_are_found_in_a_second_pass(tmp_path: Path) -> None:
    # Steps on the CPU only: the second kernel ran in step 1, but was launched in step 0.
    events = []
    for step in range(2):
        events.append({"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}",
                       "tid": 1, "ts": 100 * step, "dur": 100})  # fmt: skip
    for at, ran, number in ((10, 20, 1), (90, 110, 2), (120, 130, 3)):
        events.append({"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "tid": 1,
                       "ts": at, "dur": 1, "args": {"correlation": number}})  # fmt: skip
        events.append(all_reduce(ran, 5, correlation=number))
    for piece in (100, 1 << 20):
        path = kineto(tmp_path / "a.json", events)
        ops = reader.read([path], path, piece).ops
        assert ops["iteration"].tolist() == [0, 0, 1]
        assert np.all(ops["time_ns"] == 5000)
