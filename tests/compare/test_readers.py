"""Readers against small files written here: the traps of public bug reports, one a test."""

from __future__ import annotations

import gzip
import json
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from compare.build import all_reduce, kernel, kineto
from genie.compare.truth.load import load_truth
from genie.errors import CompareError


@pytest.mark.parametrize(
    ("name", "kind", "algorithm", "protocol"),
    [
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", "all_reduce", "ring", "ll"),
        ("ncclDevKernel_AllReduce_Sum_f32_TREE_LL(x)", "all_reduce", "tree", "ll"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_SIMPLE(x)", "reduce_scatter", "ring", "simple"),
        ("ncclKernel_AllGather_RING_LL128_Sum_int8_t(x)", "all_gather", "ring", "ll128"),
        ("ncclSymkDevKernel_AllGather_LL(x)", "all_gather", None, "ll"),
        ("nccldevkernel_allreduce_sum_f32_nvls_simple(x)", "all_reduce", "nvls", "simple"),
        ("ncclDevKernel_SendRecv(x)", "unknown", None, None),
        ("ncclDevKernel_Generic(x)", "unknown", None, None),
        ("rcclGenericKernel(x)", "unknown", None, None),
    ],
)
def test_kernel_spellings(
    tmp_path: Path, name: str, kind: str, algorithm: str | None, protocol: str | None
) -> None:
    truth = load_truth(kineto(tmp_path / "a.json", [kernel(name, 10, 5)]))
    assert truth.column("kind").tolist() == [kind]
    assert truth.column("algorithm").tolist() == [algorithm or ""]
    assert truth.column("protocol").tolist() == [protocol or ""]


def test_no_kernel_at_all_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CompareError, match="no NCCL kernel among 1 GPU kernels"):
        load_truth(kineto(tmp_path / "a.json", [kernel("gemm", 10, 5)]))
    with pytest.raises(CompareError, match="no NCCL kernel among 0"):
        load_truth(kineto(tmp_path / "a.json", []))


def test_negative_duration_is_counted_and_zero_is_kept(tmp_path: Path) -> None:
    events = [all_reduce(10, 5), all_reduce(20, -1), all_reduce(30, 0)]
    truth = load_truth(kineto(tmp_path / "a.json", events))
    assert truth.ops["time_ns"].tolist() == [5000, 0]
    assert truth.unused == {"device event with a negative or no duration": 1}


def test_device_time_not_launch_time(tmp_path: Path) -> None:
    launch = {
        "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1,
        "ts": 0, "dur": 3, "args": {"correlation": 7},
    }  # fmt: skip
    truth = load_truth(kineto(tmp_path / "a.json", [launch, all_reduce(5000, 9, correlation=7)]))
    assert truth.ops["start_ns"].tolist() == [5_000_000]
    # Clock skew: a kernel 1 us before its launch is kept as it is.
    launch["ts"] = 5001
    truth = load_truth(kineto(tmp_path / "a.json", [launch, all_reduce(5000, 9, correlation=7)]))
    assert truth.ops["start_ns"].tolist() == [5_000_000]


def test_bytes_come_from_the_arguments_type(tmp_path: Path) -> None:
    event = kernel(
        "ncclDevKernel_Broadcast_RING_LL(x)", 10, 5,
        **{"Collective name": "broadcast", "In msg nelems": 100, "dtype": "Double",
           "Group size": 4},
    )  # fmt: skip
    row = load_truth(kineto(tmp_path / "a.json", [event])).ops[0]
    assert (row["nbytes"], row["count"]) == (800, 100)


def test_operation_without_arguments_has_no_size(tmp_path: Path) -> None:
    truth = load_truth(
        kineto(tmp_path / "a.json", [kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", 1, 2)])
    )
    assert truth.ops["nbytes"].tolist() == [-1]
    assert "1 operations carry no size" in truth.notes[0]


def test_send_recv_kernel_under_an_annotation_is_one_all_to_all(tmp_path: Path) -> None:
    events = [
        {"ph": "X", "cat": "user_annotation", "name": "nccl:all_to_all", "pid": 1, "tid": 5,
         "ts": 0, "dur": 100},
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 5,
         "ts": 50, "dur": 3, "args": {"correlation": 7}},
        kernel("ncclDevKernel_SendRecv(x)", 500, 9, correlation=7),
    ]  # fmt: skip
    truth = load_truth(kineto(tmp_path / "a.json", events))
    assert truth.column("kind").tolist() == ["all_to_all"]


def test_uneven_splits(tmp_path: Path) -> None:
    event = kernel(
        "ncclDevKernel_SendRecv(x)", 1, 2,
        **{"Collective name": "all_to_allv", "In msg nelems": 39, "Out msg nelems": 44,
           "dtype": "Float", "Group size": 2, "In split size": "[9, 30]"},
    )  # fmt: skip
    row = load_truth(kineto(tmp_path / "a.json", [event])).ops[0]
    assert (row["nbytes"], row["count"]) == (39 * 4, -1)


def test_integers_beyond_64_bits_and_bad_json(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(
        '{"schemaVersion": 1, "x": , "traceEvents": [{"ph": "X", "cat": "kernel", "name": '
        '"ncclKernel_AllReduce", "ts": 1, "dur": 2, "args": {"stream": 7, "Seq": '
        '99999999999999999999999, "y": NaN,}},], }'
    )
    truth = load_truth(path)
    assert truth.ops["time_ns"].tolist() == [2000]


def test_microseconds_since_1970_stay_exact(tmp_path: Path) -> None:
    whole = load_truth(kineto(tmp_path / "a.json", [all_reduce(1694128201429757, 3)]))
    assert whole.ops["start_ns"].tolist() == [1694128201429757000]
    broken = load_truth(kineto(tmp_path / "a.json", [all_reduce(4458676524670.502, 0.125)]))
    assert abs(int(broken.ops["start_ns"][0]) - 4458676524670502) <= 1
    assert broken.ops["time_ns"].tolist() == [125]


def test_gzip_under_any_name(tmp_path: Path) -> None:
    path = kineto(tmp_path / "a.json", [all_reduce(1, 2)])
    packed = tmp_path / "b.json"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert len(load_truth(packed).ops) == 1
    packed.write_bytes(gzip.compress(path.read_bytes())[:-9])
    with pytest.raises(CompareError, match="damaged gzip"):
        load_truth(packed)


def test_rank_that_nothing_names(tmp_path: Path) -> None:
    for name in ("a", "b"):
        kineto(tmp_path / f"{name}.json", [all_reduce(1, 2)], rank=None)
    with pytest.raises(CompareError, match="which rank"):
        load_truth(tmp_path)


def test_same_rank_twice(tmp_path: Path) -> None:
    for name in ("a", "b"):
        kineto(tmp_path / f"{name}.json", [all_reduce(1, 2)], rank=3)
    with pytest.raises(CompareError, match="rank 3 is in the set twice"):
        load_truth(tmp_path)


def test_iterations_are_the_profilers_steps(tmp_path: Path) -> None:
    step = {"ph": "X", "cat": "user_annotation", "pid": 1, "tid": 1, "dur": 90}
    launch = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1}
    events = [
        step | {"name": "ProfilerStep#7", "ts": 100},
        step | {"name": "ProfilerStep#8", "ts": 200},
        # Launched in step 7, run in step 8: belongs to step 7.
        launch | {"ts": 190, "dur": 1, "args": {"correlation": 1}},
        launch | {"ts": 220, "dur": 1, "args": {"correlation": 2}},
        all_reduce(50, 1, correlation=9), all_reduce(205, 1, correlation=1),
        all_reduce(230, 1, correlation=2),
    ]  # fmt: skip
    assert load_truth(kineto(tmp_path / "a.json", events)).ops["iteration"].tolist() == [-1, 0, 1]


def test_nccl_log_calls_and_choices(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text(
        "h1:11:20 [0] NCCL INFO comm 0xa rank 0 nRanks 2 nNodes 2 localRanks 1 commId 0x5\n"
        "h2:12:21 [0] NCCL INFO comm 0xb rank 1 nRanks 2 nNodes 2 localRanks 1 commId 0x5\n"
        "h1:11:20 [0] NCCL INFO AllReduce: opCount 0 sendbuff 0x1 recvbuff 0x2 count 1024 "
        "datatype 7 op 0 root 0 comm 0xa [nranks=2] stream 0x9\n"
        "h2:12:21 [0] NCCL INFO AllReduce: opCount 0 sendbuff 0x1 recvbuff 0x2 count 1024 "
        "datatype 7 op 0 root 0 comm 0xb [nranks=2] stream 0x9\n"
        "h1:11:20 [0] NCCL INFO AllReduce: 4096 Bytes -> Algo RING proto LL "
        "channel{Lo..Hi}={0..1}\n"
        "h1:11:20 [0] NCCL INFO AllGather: opCount 1 sendbuff 0x1 recvbuff 0x2 count 256 "
        "datatype 9 op 0 root 0 comm 0xa [nranks=2] stream 0x9\n"
    )
    frame = load_truth(path).to_pandas()
    assert frame["rank"].tolist() == [0, 1, 0]
    assert frame.nbytes.tolist() == [4096, 4096, 256 * 2 * 2]
    assert frame.algorithm.tolist() == ["ring", "ring", ""]
    assert frame.channels.tolist() == [2, 2, -1]
    assert set(frame.communicator) == {"0x5"}


def test_numeric_choices_of_old_releases(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text("h:1:1 [0] NCCL INFO 8 Bytes -> Algo 0 proto 0 time 25.200924\n")
    truth = load_truth(path)
    assert (truth.column("algorithm")[0], truth.column("protocol")[0]) == ("tree", "ll")


def test_log_with_only_a_graph_points_at_cluster(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text(
        "h:1:1 [0] NCCL INFO Channel 00/02 : 0 1\nh:1:1 [0] NCCL INFO Trees [0] 1/-1/-1->0->-1\n"
    )
    with pytest.raises(CompareError, match=r"log\.txt: .*--cluster FILE"):
        load_truth(path)


def plugin_events(comma_and_no_bracket: bool) -> str:
    events = [
        {"name": "AllReduce", "cat": "COLL", "ph": "b", "id": 1, "pid": 77, "tid": 1, "ts": 10.0,
         "args": {"SeqNum": 0, "CommHash": 123, "Rank": 3, "Count": 1024,
                  "Datatype": "ncclFloat32", "Algorithm": "RING", "Protocol": "LL",
                  "nChannels": 2}},
        {"name": "ProgressSend", "cat": "PROXY", "ph": "b", "id": 2, "pid": 77, "tid": 1,
         "ts": 11.0, "args": {"Channel": 1, "Peer": 4, "Steps": 2, "ChunkSize": 2048}},
        {"name": "SendWait", "cat": "NET", "ph": "b", "id": 3, "pid": 77, "tid": 1, "ts": 12.0,
         "args": {"Step": 0}},
        {"name": "Qp", "cat": "NET_IB", "ph": "b", "id": 4, "pid": 77, "tid": 1, "ts": 12.5,
         "args": {"device": 0, "qp_num": 901, "opcode": 1, "wr_id": 5, "size": 2048}},
        {"name": "Qp", "cat": "NET_IB", "ph": "e", "id": 4, "pid": 77, "tid": 1, "ts": 13.5},
        {"name": "SendWait", "cat": "NET", "ph": "e", "id": 3, "pid": 77, "tid": 1, "ts": 14.0},
        {"name": "ProgressSend", "cat": "PROXY", "ph": "e", "id": 2, "pid": 77, "tid": 1,
         "ts": 15.0},
        {"name": "AllReduce", "cat": "COLL", "ph": "e", "id": 1, "pid": 77, "tid": 1, "ts": 16.0},
    ]  # fmt: skip
    text = json.dumps(events)
    return text[:-1] + ",\n" if comma_and_no_bracket else text


@pytest.mark.parametrize("broken", [False, True])
def test_profiler_plugin(tmp_path: Path, broken: bool) -> None:
    path = tmp_path / "trace.json"
    path.write_text(plugin_events(broken))
    truth = load_truth(path)
    op = truth.to_pandas().iloc[0]
    assert (op.kind, op["rank"], op["nbytes"], op.algorithm) == ("all_reduce", 3, 4096, "ring")
    assert (op.start_ns, op.end_ns, op.time_ns) == (10_000, 16_000, 6_000)
    assert truth.messages is not None
    message = truth.messages[0]
    assert message["op"] == 0
    assert (message["rank"], message["peer"], message["channel"]) == (3, 4, 1)
    assert (message["qp"], message["nbytes"], message["direction"]) == (901, 2048, 0)
    assert truth.labels["opcode"][message["opcode"]] == "RDMA_WRITE_WITH_IMM"
    assert (message["start_ns"], message["end_ns"]) == (12_500, 13_500)


def nsys(path: Path, rows: list[tuple[int, int, int, int, int]], names: list[str]) -> Path:
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
    db.execute(
        "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER,"
        " streamId INTEGER, correlationId INTEGER, gridX INTEGER, demangledName INTEGER)"
    )
    db.execute(
        "CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, globalTid INTEGER,"
        " correlationId INTEGER)"
    )
    db.execute(
        "CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT,"
        " globalTid INTEGER)"
    )
    db.executemany("INSERT INTO StringIds VALUES (?, ?)", list(enumerate(names)))
    for start, end, device, correlation, name in rows:
        db.execute(
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, 7, ?, 2, ?)",
            (start, end, device, correlation, name),
        )
        db.execute(
            "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, 5, ?)",
            (correlation * 100, correlation * 100 + 5, correlation),
        )
    db.execute("INSERT INTO NVTX_EVENTS VALUES (150, 350, 59, 'ncclAllToAll', 5)")
    db.commit()
    db.close()
    return path


def test_nsight_export(tmp_path: Path) -> None:
    names = ["ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", "ncclDevKernel_SendRecv(x)", "gemm"]
    rows = [(1000, 3000, 0, 1, 0), (4000, 5000, 0, 2, 1), (100, 200, 0, 3, 2), (9, 8, 0, 4, 2)]
    truth = load_truth(nsys(tmp_path / "rank3.sqlite", rows, names))
    assert truth.column("kind").tolist() == ["all_reduce", "all_to_all"]
    assert truth.ops["time_ns"].tolist() == [2000, 1000]
    assert truth.ops["rank"].tolist() == [3, 3]
    assert truth.compute is not None and len(truth.compute) == 1
    assert truth.unused == {"kernel with a negative or no duration": 1}


def test_sqlite_of_something_else(tmp_path: Path) -> None:
    db = sqlite3.connect(tmp_path / "x.sqlite")
    db.execute("CREATE TABLE a (b INTEGER)")
    db.commit()
    db.close()
    with pytest.raises(CompareError, match="not an Nsight Systems export"):
        load_truth(tmp_path / "x.sqlite")
    (tmp_path / "y.sqlite").write_bytes(b"SQLite format 3\0" + b"\xff" * 100)
    with pytest.raises(CompareError, match="damaged sqlite"):
        load_truth(tmp_path / "y.sqlite")


def test_astra_sim_stdout(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    path.write_text(
        "[workload] [info] sys[0] finished, 1000 cycles, exposed communication 400 cycles.\n"
        "[workload] [info] sys[1] finished, 900 cycles, exposed communication 0 cycles.\n"
    )
    truth = load_truth(path)
    from genie.compare.metrics.step import step_times

    rows = step_times(truth)
    assert rows["step_ns"].tolist() == [1000, 900]
    assert rows["exposed_ns"].tolist() == [400, 0]


def test_perftest_units(tmp_path: Path) -> None:
    path = tmp_path / "bw.txt"
    head = " #bytes     #iterations    BW peak[{u}]    BW average[{u}]   MsgRate[Mpps]\n"
    path.write_text(head.format(u="Gb/sec") + " 65536  20000  0.00  98.01  0.186932\n")
    assert load_truth(path).ops["algbw"].tolist() == [pytest.approx(98.01 / 8)]
    path.write_text(head.format(u="MB/sec") + " 1024  1000  0.00  5544.28  5.67734\n")
    rate = load_truth(path).ops["algbw"][0]
    assert rate == pytest.approx(5544.28 * 2**20 / 1e9)
    assert rate * 1e3 / 1024 == pytest.approx(5.67734, rel=1e-4)  # perftest's own message rate


def test_interceptor(tmp_path: Path) -> None:
    path = tmp_path / "rank2.json"
    path.write_text(
        json.dumps(
            [
                {"qp_num": 5, "opcode": 1, "length": 4096, "timestamp_ns": 10},
                {"qp_num": 5, "opcode": "IBV_WR_RDMA_WRITE", "length": 8, "timestamp_ns": 20},
                {"qp_num": 5, "opcode": 32552, "length": 32549, "status": 12},
            ]
        )
    )
    truth = load_truth(path)
    assert truth.messages is not None
    assert truth.messages["nbytes"].tolist() == [4096, 8]
    assert [truth.labels["opcode"][c] for c in truth.messages["opcode"]] == [
        "RDMA_WRITE_WITH_IMM", "RDMA_WRITE",
    ]  # fmt: skip
    assert (truth.messages["rank"] == 2).all()
    assert truth.unused == {"failed completion (opcode and length are not valid)": 1}


HOST_1_1 = {
    "schema": "1.1.0-chakra.0.0.4", "pid": 1, "nodes": [
        {"id": 2, "name": "## process_group:init ##", "ctrl_deps": 1, "inputs": {
            "values": ['[{"pg_name": "7", "pg_desc": "dp", "ranks": [], "group_size": 4}]'],
            "shapes": [[]], "types": ["String"]}, "outputs": {"values": []}, "attrs": []},
        {"id": 3, "name": "record_param_comms", "ctrl_deps": 1, "inputs": {
            "values": [[5, [0, False]], ["7", "dp"], 0, "_allgather_base", [], [], 0, 1, 4],
            "shapes": [], "types": ["Tuple", "Tuple[String,String]", "Int", "String"]},
         "outputs": {"values": []}, "attrs": [
            {"name": "collective_name", "type": "string", "value": "_allgather_base"},
            {"name": "dtype", "type": "string", "value": "BFloat16"},
            {"name": "in_msg_nelems", "type": "uint64", "value": 10},
            {"name": "out_msg_nelems", "type": "uint64", "value": 40},
            {"name": "pg_name", "type": "string", "value": "7"},
            {"name": "pg_size", "type": "uint64", "value": 4}]},
        {"id": 4, "name": "record_param_comms", "ctrl_deps": 1, "inputs": {
            "values": [6, ["7", "dp"], 0, "wait", [], []], "types": []}, "attrs": []},
    ],
}  # fmt: skip


def test_host_trace_attributes_of_1_1(tmp_path: Path) -> None:
    path = tmp_path / "et_rank1.json"
    path.write_text(json.dumps(HOST_1_1))
    truth = load_truth(path)
    row = truth.to_pandas().iloc[0]
    assert (row.kind, row["nbytes"], row["count"], row.group_size) == ("all_gather", 80, 10, 4)
    assert (row.communicator, row["dtype"], row["rank"]) == ("7", "bfloat16", 1)
    assert truth.communicators == {"7": (0, 1, 2, 3)}
    assert np.isnan(row.time_ns)
    assert truth.unused == {"wait records (no operation)": 1}


def test_nccl_tests_kind_sizes_and_repeats(tmp_path: Path) -> None:
    head = "#  size  count  type  redop  root  time  algbw  busbw #wrong  time algbw busbw #wrong\n"
    path = tmp_path / "out.txt"
    path.write_text(
        "# Collective test starting: all_gather_perf\n" + head
        + "0: 0 0 float none -1 1.5 0.00 0.00 0 1.4 0.00 0.00 0\n"
        + "0: 1024 64 float none -1 2e+01 0.05 0.05 N/A 20 0.05 0.05 N/A\n"
        + "0: 1024 64 float none -1 21 0.05 0.05 0 20 0.05 0.05 0\n...\n"
    )  # fmt: skip
    truth = load_truth(path)
    assert truth.ops["nbytes"].tolist() == [0, 1024, 1024]
    assert set(truth.column("kind")) == {"all_gather"}
    assert truth.ops["time_ns"].tolist() == [1500, 20000, 21000]
    assert truth.ops["wrong"].tolist() == [0, -1, 0]
    assert truth.unused == {"elided rows ('...')": 1}


@pytest.mark.parametrize("content", [b"", b"hello\n", b"{}", b"[1, 2]", b"\x00\x01\x02", b'{"a": '])
def test_what_is_not_ground_truth(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x"
    path.write_bytes(content)
    with pytest.raises(CompareError, match=str(path)):
        load_truth(path)


def test_missing_and_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(CompareError, match="no such file"):
        load_truth(tmp_path / "none")
    with pytest.raises(CompareError, match="has no files"):
        load_truth(tmp_path)


def test_roce_counters_as_text(tmp_path: Path) -> None:
    path = tmp_path / "counters"
    path.write_text("np_cnp_sent: 5\nout_of_sequence 7\nrp_cnp_handled 0\nlifespan 10\n")
    with pytest.raises(CompareError, match="np_cnp_sent 5, out_of_sequence 7"):
        load_truth(path)
