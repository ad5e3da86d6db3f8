"""What a verb looks at before it does any work: output folders, interfaces, timeouts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from corpus_data import corpus
from genie.replay.endpoints import Endpoint
from genie.units import parse_time


def genie(*args: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "genie.cli", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def trace() -> Path:
    return corpus("et-t3d8")


@pytest.mark.parametrize(
    "args",
    [
        ("plan", "TRACE", "--cluster", "local:2x4", "-o"),
        ("replay", "TRACE", "-o"),
        ("replay", "TRACE", "--perfetto"),
        ("simulate", "TRACE", "--cluster", "local:2x4", "-o"),
        ("bench", "all_reduce", "-o"),
        ("compare", "run", "truth", "-o"),
        ("figure", "all", "data", "-o"),
        ("workload", "incast", "-o"),
    ],
)
def test_where_a_result_goes_is_looked_at_first(args: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    done = genie(*(trace() if arg == "TRACE" else arg for arg in args), tmp_path / "file" / "x")
    assert done.returncode == 1
    assert done.stdout == ""
    assert f"{tmp_path}/file is not a folder" in done.stderr


def test_an_interface_that_is_not_there_is_refused_though_nothing_is_sent() -> None:
    done = genie("replay", trace(), "--endpoints", str(Endpoint("localhost")) + "/nosuchnic")
    assert done.returncode == 1
    assert "localhost/nosuchnic" in done.stderr
    assert "interfaces: lo" in done.stderr


@pytest.mark.parametrize(
    ("text", "ns"), [("10", 10**10), ("0.5", 5 * 10**8), ("2min", 120 * 10**9), ("7ms", 7 * 10**6)]
)
def test_a_plain_timeout_is_in_seconds(text: str, ns: int) -> None:
    assert parse_time(text, plain="s") == ns
