"""Slurm for real: an allocation from which srun starts workers, and a job that joins."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import genie
from genie.replay.auth import new_secret
from runtime.netns import Star, needs_namespaces
from runtime.slurm import Slurm
from runtime.steps import write_steps

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.netns


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    needs_namespaces()
    with (
        Star(2, net=78, root=True) as star,
        Slurm(star, tmp_path_factory.mktemp("slurm")) as made,
    ):
        yield made


def command(prefix: Path, out: Path, ends: list[str]) -> list[str]:
    return [
        sys.executable, "-m", "genie.cli", "replay", str(prefix), "--timeout", "30s",
        "-o", str(out), "--endpoints", *ends,
    ]  # fmt: skip


def check(out: Path, ends: list[str]) -> None:
    rec = genie.Recording.load(out)
    assert rec.complete and len(np.unique(rec.ops["rank"])) == 4
    assert (rec.messages["status"] == 0).all() and len(rec.messages) > 0
    assert rec.manifest["endpoints"] == ends
    tx = rec.counters[
        (rec.column("counters", "name") == "tx_bytes") & (rec.column("counters", "device") == "e0")
    ]
    sent = rec.messages["nbytes"][rec.messages["direction"] == 0].sum()
    assert tx["delta"].sum() > sent


def test_srun_starts_workers_in_an_allocation(slurm, tmp_path):
    ends = ["n1/e0", "n0/e0"]  # not the order of the nodes
    prefix = write_steps(tmp_path / "trace", ranks=4, steps=20)
    run = command(prefix, tmp_path / "run", ends)
    done = subprocess.run(
        ["salloc", "-Q", "-N2", "-n2", *run],
        env={**slurm.env, "GENIE_ADDRESS": slurm.star.root_address, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=100, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    check(tmp_path / "run", ends)
    assert slurm.star.pids() == [] or all(
        b"genie" not in Path(f"/proc/{pid}/cmdline").read_bytes() for pid in slurm.star.pids()
    )


def test_a_job_that_srun_started_joins(slurm, tmp_path):
    ends = ["n0/e0", "n1/e0"]
    prefix = write_steps(tmp_path / "trace", ranks=4, steps=20)
    done = subprocess.run(
        ["srun", "-N2", "-n2", "--unbuffered", *command(prefix, tmp_path / "run", ends)],
        env={**slurm.env, "GENIE_SECRET": new_secret().hex(), "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=100, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("all_reduce") == 1
    check(tmp_path / "run", ends)
