"""nccl-tests command lines and SimAI/AICB text workloads."""

from __future__ import annotations

from pathlib import Path

import pytest
from jobs import counts, totals

import genie
from genie.errors import InputError
from genie.trace import Coll
from genie.workload.generate import prepare, workload
from genie.workload.imports import NcclTests

HEADER = (
    "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2 ep: 2 pp: 1 vpp: 2 ga: 1 "
    "all_gpus: 8 checkpoints: 0 checkpoint_initiates: 0 pp_comm: 0"
)
PIPELINE = (
    "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2 ep: 1 pp: 2 vpp: 2 ga: 3 "
    "all_gpus: 8 checkpoints: 0 checkpoint_initiates: 0 pp_comm: 1048576.0"
)
STAGE = (
    "grads -1 100 REDUCESCATTER 4096 1 NONE 0 1 NONE 0 100\n"
    + 3
    * (
        "attention -1 7000 ALLREDUCE 8192 9000 ALLREDUCE 8192 3000 NONE 0 100\n"
        "mlp -1 7000 ALLREDUCE 8192 9000 ALLREDUCE 8192 3000 NONE 0 100\n"
    )
    + "optimizer -1 200 ALLREDUCE 4 1 NONE 0 1 NONE 0 100\n"
)
LAYERS = (
    "embedding\t-1\t5000\tALLREDUCE\t4096\t1\tNONE\t0\t1\tNONE\t0\t100\n"
    "attention -1 7000 ALLGATHER 8192 9000 REDUCESCATTER 8192 3000 ALLREDUCE 65536 100\n"
    "\n"
    "moe -1 7000 ALLTOALL_EP 8192 9000 ALLTOALL_EP 8192 3000 REDUCESCATTER_DP_EP 32768 100\n"
)


def written(folder: Path, text: str) -> Path:
    file = folder / "job.txt"
    file.write_text(text)
    return file


def test_aicb(tmp_path: Path) -> None:
    trace = workload(written(tmp_path, f"{HEADER}\n3\n{LAYERS}"))
    trace.check()
    assert trace.groups["TP_1"] == (2, 3)
    assert trace.groups["DP_1"] == (1, 3, 5, 7)
    assert trace.groups["EP_1"] == (1, 3)
    assert trace.groups["DP_EP_0"] == (0, 4)
    assert totals(trace, 5) == {
        ("all_reduce", "TP"): 4096, ("all_gather", "TP"): 4096, ("reduce_scatter", "TP"): 8192,
        ("all_reduce", "DP"): 65536, ("all_to_all", "EP"): 16384,
        ("reduce_scatter", "DP_EP"): 32768,
    }  # fmt: skip
    compute = 5000 + 7000 * 2 + 9000 * 2 + 1 + 3000 * 2 + 1
    assert int(trace.ranks[0].duration_ns.clip(0).sum()) == compute + 1
    assert genie.simulate(trace, genie.Cluster.local(2, 4), log_messages=False).complete


def test_aicb_pipeline(tmp_path: Path) -> None:
    trace = workload(written(tmp_path, f"{PIPELINE}\n8\n{STAGE}"))
    trace.check()
    assert trace.groups["PP_1"] == (1, 5)
    assert trace.groups["TP_3"] == (6, 7)
    assert trace.groups["DP_2"] == (4, 6)
    for rank in range(8):
        found, number = totals(trace, rank), counts(trace, rank)
        # Three micro-batches of two lines, forward and backward; the other lines once.
        assert found["all_reduce", "TP"] == 2 * 3 * 2 * 8192 + 4
        assert found["reduce_scatter", "TP"] == 4096
        assert found["send", "PP"] == found["recv", "PP"] == 3 * 1048576
        assert number["send", "PP"] == 3
    # 1F1B: the first stage runs two micro-batches ahead, the last one none.
    order = [name for name in trace.ranks[0].names() if name.startswith("pipeline")]
    assert [name.rpartition(".")[0] for name in order] == [
        "pipeline.activations.mb0", "pipeline.activations.mb1", "pipeline.gradients.mb0",
        "pipeline.activations.mb2", "pipeline.gradients.mb1", "pipeline.gradients.mb2",
    ]  # fmt: skip
    recording = genie.simulate(trace, genie.Cluster.local(2, 4), log_messages=False)
    assert recording.complete
    # (m + p - 1) forward and backward passes, the lines once, and some communication.
    passes = 4 * 2 * (7000 + 9000 + 3000)
    assert int(recording.steps()[0]["time_ns"]) > passes + 300


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("HYBRID_X\n0\n", "no whole number after 'model_parallel_NPU_group'"),
        (f"{HEADER}\n2\n{LAYERS}", "line 2 says '2' layers, found 3"),
        (f"{HEADER.replace('pp: 1', 'pp: 2')}\n3\n{LAYERS}", "needs bytes between stages"),
        (f"{PIPELINE.replace('ga: 3', 'ga: 4')}\n8\n{STAGE}", "pp 2: no lines that stand ga"),
        (f"{HEADER.replace('all_gpus: 8', 'all_gpus: 6')}\n3\n{LAYERS}", "6 ranks cannot be split"),
        (f"{HEADER}\n1\na -1 1 SHOUT 1 1 NONE 0 1 NONE 0 1\n", "line 3: no collective 'SHOUT'"),
        (f"{HEADER}\n1\na -1 1 NONE 0 1 NONE 0\n", "line 3: 12 columns expected, found 8"),
        (f"{HEADER}\n1\na -1 x NONE 0 1 NONE 0 1 NONE 0 1\n", "must be numbers"),
    ],
)
def test_aicb_refusals(tmp_path: Path, text: str, rule: str) -> None:
    with pytest.raises(InputError, match=rule):
        workload(written(tmp_path, text))


def test_nccl_tests() -> None:
    job = NcclTests("mpirun -np 4 ./build/all_gather_perf -b 1K -e 8K -f 2 -g 2 -n 2 -w 1 -d half")
    assert job.world_size == 8
    assert job.sizes() == [1024, 2048, 4096, 8192]
    trace = workload("mpirun -np 4 all_gather_perf -b 1000 -e 1000 -g 2 -n 2 -w 1 -d half")
    trace.check()
    rank = trace.ranks[0]
    assert rank.coll.tolist() == [Coll.ALL_GATHER] * 3
    # 500 elements among 8 ranks: 62 each, rounded down to 16 bytes.
    assert rank.nbytes.tolist() == [112] * 3
    assert genie.simulate(trace, genie.Cluster.local(2, 4), log_messages=False).complete


@pytest.mark.parametrize(
    "program",
    [
        "all_reduce",
        "reduce_scatter",
        "alltoall",
        "broadcast",
        "reduce",
        "gather",
        "scatter",
        "sendrecv",
    ],
)
def test_nccl_tests_programs(program: str) -> None:
    trace = workload(f"{program}_perf -b 8K -e 8K -n 1 -w 0", ranks=4)
    trace.check()
    assert genie.simulate(trace, genie.Cluster.local(2, 2), log_messages=False).complete


def test_nccl_tests_steps() -> None:
    assert NcclTests("all_reduce_perf -b 8 -e 40 -i 16 -g 2").sizes() == [8, 24, 40]


@pytest.mark.parametrize(
    ("command", "rule"),
    [
        ("all_reduce_perf -b 8 -e 1K", "no number of ranks"),
        ("all_reduce_perf -b 1K -e 8 -g 8", "before its beginning"),
        ("all_reduce_perf -d quad -g 8", "no element type 'quad'"),
        ("broadcast_perf -r 9 -g 8", "no root 9 among 8"),
        ("all_reduce_perf -n many -g 8", "-n 'many' is not a whole number"),
    ],
)
def test_nccl_tests_refusals(command: str, rule: str) -> None:
    with pytest.raises(InputError, match=rule):
        prepare(command)
