"""Merging, repeating, slicing and scaling trace sets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from jobs import DENSE, MOE, spec, totals

import genie
from corpus_data import corpus
from genie.cli import main
from genie.errors import InputError
from genie.trace import Kind, Trace, load
from genie.workload import transform
from genie.workload.generate import workload


def step_ns(trace: Trace, hosts: int = 2) -> int:
    cluster = genie.Cluster.local(hosts, trace.world_size // hosts)
    recording = genie.simulate(trace, cluster, log_messages=False)
    assert recording.complete
    return int(recording.steps()[0]["time_ns"])


def test_merge(tmp_path: Path) -> None:
    one, other = workload(spec(DENSE), dp=4), workload(spec(MOE), dp=4, ep=4, skew=1.0)
    placed = [[0, 1, 4, 5], [2, 3, 6, 7]]
    both = load(transform.merge([one, other], tmp_path, placement=placed))
    both.check()
    assert both.groups["job0.DATA_PARALLEL_GROUP_0"] == (0, 1, 4, 5)
    assert sorted(totals(both, 6).values()) == sorted(totals(other, 2).values())
    assert step_ns(both) > 0


def test_merge_of_real_traces(tmp_path: Path) -> None:
    stg = load(corpus("et-stg-dense-fsdp4"), elements="bfloat16")
    both = load(transform.merge([stg, workload(spec(DENSE), dp=4)], tmp_path))
    both.check()
    assert sum(totals(both, 0).values()) == sum(totals(stg, 0).values())


def test_repeat(tmp_path: Path) -> None:
    once = workload(spec(DENSE), dp=2, pp=2)
    thrice = load(transform.repeat(once, tmp_path, 3))
    thrice.check()
    assert thrice.ranks[1].n == 3 * once.ranks[1].n
    # The next step follows the optimizer, which ends a rank's step.
    assert step_ns(thrice) == pytest.approx(3 * step_ns(once), rel=0.02)


def test_take_one_replica(tmp_path: Path) -> None:
    # Two of four replicas of a pipeline with ZeRO-1: what is left is the job with dp 2.
    whole = workload(spec(DENSE), dp=4, pp=2, zero=1)
    ranks = [rank for rank in range(8) if rank % 4 < 2]
    half = load(transform.take(whole, tmp_path, ranks))
    half.check()
    direct = workload(spec(DENSE), dp=2, pp=2, zero=1, micro_batches=4)
    for rank in range(4):
        assert totals(half, rank) == totals(direct, rank)
    assert step_ns(half) > 0


def test_take_refuses_half_a_pipeline(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="talks to rank 2, which is not kept"):
        transform.take(workload(spec(DENSE), dp=2, pp=2), tmp_path, [0, 1])
    with pytest.raises(InputError, match="uneven"):
        transform.take(workload(spec(MOE), dp=4, ep=4), tmp_path, [0, 1])


def test_scale(tmp_path: Path) -> None:
    trace = workload(spec(MOE), dp=4, ep=4, skew=1.0)
    half = load(transform.scale(trace, tmp_path, nbytes=0.5, compute=2.0))
    half.check()
    before, after = trace.ranks[0], half.ranks[0]
    coll = (before.kind == Kind.COMM_COLL) & (before.nbytes > 1000)
    assert np.allclose(after.nbytes[coll] / before.nbytes[coll], 0.5, rtol=0.01)
    comp = before.kind == Kind.COMP
    assert (after.duration_ns[comp] == 2 * before.duration_ns[comp]).all()
    assert step_ns(half) > 0


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    assert main(["workload", "incast", "--ranks", "4", "-o", one]) == 0
    assert main(["workload", "rail", "--ranks", "4", "--per-host", "2", "-o", two]) == 0
    both = str(tmp_path / "both")
    given = ["--merge", two, "--steps", "2", "--scale-bytes", "0.5", "-o", both]
    assert main(["workload", one, *given]) == 0
    trace = load(both)
    trace.check()
    assert trace.world_size == 8
    assert sum(totals(trace, 1).values()) == 2 * (1 << 19)
    capsys.readouterr()
    assert main(["workload", one, "--take", "0-1", "-o", str(tmp_path / "less")]) == 1
    assert "which is not kept" in capsys.readouterr().err
    assert main(["workload", one, "--take", "1-0", "-o", str(tmp_path / "no")]) == 1
    assert "not a list of ranks" in capsys.readouterr().err
    assert main(["workload", one, "--steps", "2"]) == 1
    assert "-o DIR" in capsys.readouterr().err
