"""Workers whose clocks are wrong on purpose: the Recording finds offset, drift and steps again."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

import genie
from runtime.steps import steps

OFFSET, DRIFT_PPM = 7_777_777_777, 300


@pytest.fixture(scope="module")
def shim(tmp_path_factory) -> Path:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler for the clock shim")
    out = tmp_path_factory.mktemp("shim") / "clockshim.so"
    source = Path(__file__).with_name("clockshim.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(out), str(source)], check=True)
    return out


def replay_with_shim(tmp_path, monkeypatch, shim, variables, **options):
    """Worker 1 lives by the shim's clock, worker 0 by the true one."""
    site = tmp_path / "site"
    site.mkdir()
    values = {"LD_PRELOAD": str(shim), **{k: str(v) for k, v in variables.items()}}
    (site / "sitecustomize.py").write_text(
        "import os, sys\n"
        "mine = '--worker 1' in ' '.join(sys.orig_argv) and 'SHIMMED' not in os.environ\n"
        "if mine and 'genie.replay.worker' in sys.orig_argv:\n"
        f"    os.environ.update({values!r}, SHIMMED='1')\n"
        "    os.execv(sys.executable, sys.orig_argv)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(site))
    monkeypatch.setenv("GENIE_CLOCK_SYNC", "always")
    trace = steps(tmp_path / "trace", ranks=2, **options)
    return genie.replay(trace, "local:2", progress=False)


def test_offset_and_drift_are_recovered_within_the_bound(tmp_path, monkeypatch, shim):
    zero = time.monotonic_ns()
    rec = replay_with_shim(
        tmp_path,
        monkeypatch,
        shim,
        {"SHIM_OFFSET_NS": OFFSET, "SHIM_DRIFT_PPM": DRIFT_PPM, "SHIM_ZERO_NS": zero},
        steps=40,
        comp_ns=100_000_000,
    )
    assert rec.complete
    found = rec.manifest["clock"]["corrections"][1]
    start = rec.manifest["clock"]["start_ns"]
    truth = OFFSET + DRIFT_PPM * 1e-6 * (start - zero)
    row = rec.health[1]
    assert found["steady"] and found["exchanges"] > 40
    assert abs(row["clock_offset_ns"] - truth) <= row["clock_bound_ns"]
    # Four seconds between the exchanges before and after.
    assert abs(row["clock_drift"] - DRIFT_PPM * 1e-6) <= 2 * row["clock_bound_ns"] / 4e9
    assert row["clock_bound_ns"] < 2_000_000
    other = rec.health[0]
    assert abs(other["clock_offset_ns"]) <= other["clock_bound_ns"]
    # One timeline: no message is received before it was sent, beyond the stated errors.
    slack = rec.health["clock_bound_ns"].sum()
    sends = rec.messages[rec.messages["direction"] == 0]
    receives = rec.messages[rec.messages["direction"] == 1]
    for connection in np.unique(sends["connection"]):
        out = sends[sends["connection"] == connection]["posted_ns"]
        back = receives[receives["connection"] == connection]["completed_ns"]
        assert len(out) == len(back) and (back - out >= -slack).all()


def test_step_of_a_clock_is_reported(tmp_path, monkeypatch, shim):
    rec = replay_with_shim(
        tmp_path,
        monkeypatch,
        shim,
        {
            "SHIM_STEP_NS": 40_000_000,
            "SHIM_STEP_AFTER_NS": 6_000_000_000,  # after the process began
        },
        steps=90,
        comp_ns=100_000_000,
    )
    assert any("its clock stepped" in text for text in rec.manifest["warnings"])
    assert not rec.manifest["clock"]["corrections"][1]["steady"]
    assert rec.health[1]["clock_bound_ns"] > 10_000_000
