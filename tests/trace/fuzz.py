"""Mutated trace files for the scanner: it may refuse them, never crash, hang or read elsewhere.

As a program: `python tests/trace/fuzz.py --inputs 1000000`; CI runs a short slice as a test.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[k]) for k in (1, 2)]

from trace import wirebytes as w  # noqa: E402

from genie._core import scanner  # noqa: E402
from genie.errors import TraceError  # noqa: E402
from genie.trace import load  # noqa: E402

VERSIONS = (scanner.V1, scanner.V2, scanner.V3, scanner.V4)


def seeds() -> list[bytes]:
    """Small good files of every version, and the corpus's small ones where it is present."""
    found = [
        w.framed(*(w.v1(k, f"n{k}", 3 + k % 4, tuple(range(k)), time=5, size=9, comm_type=1, src=0,
                        dst=1, communicator=2) for k in range(6))),
        w.framed(*(w.old(k, "n", 6, w.int_v2("comm_type", 1), w.int_v2("comm_size", 64),
                         w.text_v2("pg_name", "a"), parents=(0, 1)) for k in range(4))),
        w.framed(*(w.old(k, "n", 7, w.int_v3("comm_type", 1), w.int_v3a("comm_size", 64),
                         w.text_v3("pg_name", "a"), parents=(0, 1)) for k in range(4))),
        w.framed(w.HEAD_V4, *(w.coll_v4(k, data=tuple(range(k)), ctrl=(0, 77)) for k in range(9))),
        w.framed(w.HEAD_V4, *(w.v4(k << 40, "n" * k, 4, w.int_v4("tid", k),
                                   w.attr("pg_name", w.text(29, f"g{k}"))) for k in range(5))),
        w.framed(w.HEAD_V4, w.v4(1, "m", 1, w.text(8, w.text(1, "x")), data=(2,) * 40)),
        b"",
        b'{"nodes": []}',
    ]  # fmt: skip
    from corpus_data import CORPUS

    if CORPUS.is_dir():
        for path in sorted(CORPUS.glob("et-*/*.0.e[tg]")):
            if path.stat().st_size < 2000:
                found.append(path.read_bytes())
    return found


def mutations(draw: random.Random, good: list[bytes]) -> Iterator[bytes]:
    """Yield mutated files for ever."""
    edges = [0, 1, 127, 128, 255, 0x0A, 0x08, 0x12, 0x18, 0x22, 0x2A, 0x52, 0x5A, 0x48, 0xEA]
    while True:
        data = bytearray(draw.choice(good))
        for _ in range(draw.choice((1, 1, 1, 2, 3, 8, 30))):
            at = draw.randrange(len(data) + 1)
            what = draw.randrange(8)
            if what == 0 and data:
                data[at % len(data)] = draw.randrange(256)
            elif what == 1 and data:
                data[at % len(data)] = draw.choice(edges)
            elif what == 2 and data:
                data[at % len(data)] ^= 1 << draw.randrange(8)
            elif what == 3:
                data[at:at] = bytes(draw.choice(edges) for _ in range(draw.randrange(1, 12)))
            elif what == 4:
                del data[at : at + draw.randrange(1, 9)]
            elif what == 5:
                data = data[:at]
            elif what == 6:
                other = draw.choice(good)
                cut = draw.randrange(len(other) + 1)
                data[at:at] = other[cut : cut + draw.randrange(64)]
            else:
                data[at:at] = w.varint(draw.choice((1 << 31, 1 << 63, (1 << 64) - 1, 200, 5000)))
        yield bytes(data[:8192])


def scan_all(data: bytes) -> None:
    """Scan `data` as every version, and hold what comes back to its invariants."""
    mask, seen, at = scanner.probe(data)
    assert 0 <= mask < 32 and seen >= 0 and -1 <= at <= len(data)
    for version in VERSIONS:
        found = scanner.scan(data, version)
        n = len(found.offset)
        assert len(found.dep_indptr) == n + 1
        assert found.dep_indptr[0] == 0 and found.dep_indptr[n] == len(found.deps)
        if n:
            ends = found.offset + found.length
            assert int(ends.max()) <= len(data)
            assert int((found.name_at.astype("i8") + found.name_length - found.length).max()) <= 0
        if len(found.deps):
            assert int(found.deps.max()) < n
        for name in ("kind", "coll", "group"):
            assert len(found.columns[name]) == n
        if n:
            assert int(found.columns["kind"].max()) <= 7
            assert int(found.columns["group"].max()) < len(found.groups)


def load_one(folder: Path, data: bytes) -> None:
    """Take `data` through everything a user can call; only TraceError may come out."""
    path = folder / "x.0.et"
    path.write_bytes(data)
    try:
        trace = load(path)
        trace.inspect()
        for rank in trace.ranks:
            rank.names()
            for i in range(min(rank.n, 3)):
                rank.attrs(i)
        trace.check()
    except TraceError:
        pass


def main() -> None:
    """Run as a program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--loads", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    draw = random.Random(args.seed)
    stream = mutations(draw, seeds())
    start = time.monotonic()
    slowest = 0.0
    for k in range(args.inputs):
        data = next(stream)
        before = time.monotonic()
        try:
            scan_all(data)
        except BaseException:
            Path("fuzz-failure.bin").write_bytes(data)
            raise
        slowest = max(slowest, time.monotonic() - before)
        if k % 100_000 == 99_999:
            print(f"{k + 1} inputs, {time.monotonic() - start:.0f} s", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(args.loads):
            data = next(stream)
            try:
                load_one(Path(folder), data)
            except BaseException:
                Path("fuzz-failure.bin").write_bytes(data)
                raise
    print(
        f"{args.inputs} inputs scanned, {args.loads} loaded, seed {args.seed}, "
        f"{time.monotonic() - start:.0f} s, slowest scan {slowest * 1e3:.1f} ms, no failure"
    )


if __name__ == "__main__":
    main()
