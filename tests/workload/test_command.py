"""`genie workload` as a command, and what goes with it: memory, measured times."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jobs import DENSE, spec

import genie
from genie.cli import main
from genie.errors import InputError
from genie.trace import Kind, load
from genie.workload.generate import prepare, workload
from genie.workload.memory import estimate

ROOT = Path(__file__).resolve().parent.parent.parent


def test_named_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = tmp_path / "job"
    # The job, with fewer layers so that it is quick.
    given = ["llama3-8b", "--layers", "4", "--tp", "2", "--pp", "2", "--dp", "4"]
    assert main(["workload", *given, "-o", str(job)]) == 0
    out = capsys.readouterr().out
    assert "16 (tp 2 dp 4 pp 2, zero 0)" in out
    assert "16 sequences a step, 4 micro-batches of 1, 8192 tokens each" in out
    trace = load(job)
    trace.check()
    assert trace.world_size == 16
    made = genie.plan(trace, genie.Cluster.preset("h100x8", hosts=2))
    assert made.traffic()["nbytes"].sum() > 0
    assert main(["workload", *given, "-o", str(job)]) == 1
    assert main(["workload", *given, "-o", str(job), "--force"]) == 0


def test_json_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["workload", "llama3-405b", "--tp", "8", "--json"]) == 0
    captured = capsys.readouterr()
    said = json.loads(captured.out)
    assert said["ranks"] == 8
    assert not said["memory"]["fits"]
    assert "does not fit" in captured.err


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["workload", "--list"]) == 0
    out = capsys.readouterr().out
    assert "deepseek-v3" in out and "b200" in out and "incast" in out


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([], "say what"),
        (["llama4"], "neither a file nor a known model"),
        (["llama3-8b", "--tp", "3"], "heads (32) must be a multiple of tp (3)"),
        (["incast", "--tp", "2"], "unknown setting tp of a pattern"),
        (["llama3-8b", "--ranks", "4"], "unknown setting ranks"),
    ],
)
def test_errors(given: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["workload", *given]) == 1
    error = capsys.readouterr().err
    assert says in error
    assert "Traceback" not in error


def test_force_keeps_what_is_no_trace(tmp_path: Path) -> None:
    (tmp_path / "thesis.pdf").write_text("mine")
    assert main(["workload", "incast", "-o", str(tmp_path), "--force"]) == 1
    assert (tmp_path / "thesis.pdf").exists()


@pytest.mark.parametrize(
    "file", sorted((ROOT / "workloads").glob("**/*.toml")), ids=lambda p: p.stem
)
def test_specs_of_the_repository(file: Path) -> None:
    if file.stem == "published":
        pytest.skip("the table of published times, no spec")
    job = prepare(file)
    assert len(job.rank(job.world_size - 1)) > 0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("model = 'llama3-8b'\nspeed = 3", "unknown field `speed`"),
        ("model = 'llama3-8b'\n[parallelism]\ndp = '2'", "Expected `int`"),
        ("[parallelism]\ndp = 2", "missing required field `model`"),
        ("model = [", "not TOML"),
    ],
)
def test_bad_files(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "bad.toml"
    file.write_text(text)
    with pytest.raises(InputError, match=says) as caught:
        prepare(file)
    assert "bad.toml" in str(caught.value)


def test_measured_times_win(tmp_path: Path) -> None:
    file = tmp_path / "times.csv"
    file.write_text("name,time_us\nforward.attention,12.5\n")
    trace = workload(spec(DENSE), times=str(file))
    one = trace.ranks[0]
    names = one.names()
    durations = {n: int(d) for n, d in zip(names, one.duration_ns, strict=True)}
    assert durations["forward.attention.layer2.mb1"] == 12_500
    assert durations["forward.mlp.layer2.mb1"] != 12_500
    file.write_text("name,time_us\nforward.attention,soon\n")
    with pytest.raises(InputError, match="line 2: not a time: 'soon'"):
        prepare(spec(DENSE), times=str(file))
    file.write_text("what,when\n")
    with pytest.raises(InputError, match="needs the columns name and time_us"):
        prepare(spec(DENSE), times=str(file))


def test_roofline() -> None:
    # A large product is bound by arithmetic, 2 m n k / (0.84 x 989.5 TFLOP/s), then by the writing
    # of its result; its 64 x 501 tiles of 128 x 256 take 243 waves of 132. The loss streams.
    job = prepare("llama3-8b", layers=1, micro_batches=1)
    trace = workload("llama3-8b", layers=1, micro_batches=1)
    one = trace.ranks[0]
    at = one.names().index("forward.head.mb0")
    flops = 2 * 8192 * 4096 * 128256
    waves = 64 * 501 / (243 * 132)
    product = flops / 989.5e3 / 0.84 / waves + 8192 * 128256 * 2 / 3350
    loss = 4 * 3 * 8192 * 128256 / (3350 * 0.85)
    kernels = 2 * 3000
    assert one.kind[at] == Kind.COMP
    assert int(one.duration_ns[at]) == pytest.approx(product + loss + kernels, rel=1e-6)
    assert job.roofline.peak_tflops == 989.5
    faster = prepare("llama3-8b", gpu="b200").roofline
    assert faster.peak_tflops == 2250
    eight = prepare("llama3-8b", compute_dtype="float8_e4m3").roofline
    assert (eight.peak_tflops, eight.wide_tflops) == (1979, 989.5)


def test_memory_follows_zero() -> None:
    # Rajbhandari et al., arXiv 1910.02054, figure 1: 7.5e9 parameters on 64 ranks, 16 bytes each
    # without sharding (their gradients have 2 bytes).
    shape = {**DENSE, "layers": 2}
    parts = {}
    for zero in range(4):
        job = prepare(spec(shape), dp=64, zero=zero, gradient_dtype="bfloat16", micro_batches=1)
        parts[zero] = estimate(job.spec, job.layout, job.roofline, 0)
    psi = parts[0].weights / 2
    assert parts[0].gradients == 2 * psi and parts[0].optimizer == 12 * psi
    assert parts[1].optimizer == pytest.approx(12 * psi / 64, abs=1)
    assert parts[2].gradients == pytest.approx(2 * psi / 64, abs=1)
    assert parts[3].weights == pytest.approx(2 * psi / 64, abs=1)
    assert parts[0].fits
