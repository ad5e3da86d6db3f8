"""Messages over the verbs transport, on fakeverbs: order, sizes, schedules, back-pressure."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genie.replay.transports.verbs_config import VerbsConfig

from . import fake
from .driver import Flow, drive

ROOT = Path(__file__).resolve().parents[2]
RECV_WR, SIGNALED = 0x100, 2
OPCODES = {0: "WRITE", 1: "WRITE_IMM"}


def run(pair, sizes, count=0, window=8, **options):  # type: ignore[no-untyped-def]
    a, b = pair
    send = Flow(0, True, sizes, count=count, window=window, **options)
    receive = Flow(0, False, sizes, count=count, window=window, **options)
    assert drive([(a, [send]), (b, [receive])]) == 0, (a.failures(), b.failures())
    assert send.complete == receive.complete == send.count
    return send, receive


@given(
    sizes=st.lists(st.sampled_from([0, 1, 127, 128, 8192, 8193, 65536, 1 << 20, 3 << 20]),
                   min_size=1, max_size=40),
    qps=st.sampled_from([1, 2, 3]),
    split=st.booleans(),
    ar=st.sampled_from([0, 1]),
    window=st.integers(1, 8),
    lag=st.integers(0, 1),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_every_message_arrives_in_order(sizes, qps, split, ar, window, lag):  # type: ignore[no-untyped-def]
    fake.configure(lag=lag)
    config = VerbsConfig(qps_per_connection=qps, split_data=split, adaptive_routing=ar)
    with fake.workers(fake.table((0, 1)), config=config) as pair:
        run(pair, sizes, window=window)
        assert pair[1].stats()["received_bytes"] == sum(sizes)


def test_many_connections_both_ways() -> None:
    pairs = [(0, 1), (1, 0)] * 40
    with fake.workers(fake.table(*pairs)) as (a, b):
        flows = ([], [])
        for conn, (src, dst) in enumerate(pairs):
            sizes = [conn * 100, 65536, 0]
            flows[src].append(Flow(conn, True, sizes, count=600))
            flows[dst].append(Flow(conn, False, sizes, count=600))
        assert drive([(a, flows[0]), (b, flows[1])]) == 0
        assert a.stats()["sent_bytes"] == b.stats()["received_bytes"] > 0


@pytest.mark.parametrize("max_msg", [4096, 65536])
@pytest.mark.parametrize("ar", [0, 1])
@pytest.mark.parametrize("lag", [0, 1])
def test_messages_above_the_device_limit_are_split(max_msg: int, ar: int, lag: int) -> None:
    # gloo issue 474: 2^30 + 4 bytes on a device whose limit is 2^30.
    fake.configure(max_msg=max_msg, lag=lag, log=1)
    big = 16 * max_msg * 40 + 4
    with fake.workers(fake.table((0, 1)), config=VerbsConfig(adaptive_routing=ar)) as pair:
        run(pair, [big, 10, big, 0])
        rows = [r for r in fake.log() if r.opcode in OPCODES and r.bytes != 64]
        assert max(r.bytes for r in rows) <= max_msg
        assert sum(r.bytes for r in rows) == 2 * big + 10
        assert [r.imm for r in rows if r.opcode == 1] == [big, 10, big, 0]


def test_one_gib_and_four_bytes() -> None:
    fake.configure(copy=0)
    with fake.workers(fake.table((0, 1))) as pair:
        run(pair, [(1 << 30) + 4])


def test_a_full_send_queue_is_back_pressure() -> None:
    fake.configure(lag=1, send_queue=4, max_msg=4096)
    with fake.workers(fake.table((0, 1))) as pair:
        run(pair, [100_000, 5, 70_000], count=90)


def test_size_mismatch_is_an_error_of_that_connection() -> None:
    with fake.workers(fake.table((0, 1))) as (a, b):
        send, receive = Flow(0, True, [200]), Flow(0, False, [100])
        assert drive([(a, [send]), (b, [receive])]) == 1
        (failure,) = a.failures()
        assert "200 bytes" in failure.reason and "rank 0 to rank 1" in failure.reason
    with fake.workers(fake.table((0, 1))) as (a, b):
        send, receive = Flow(0, True, [50]), Flow(0, False, [100])
        assert drive([(a, [send]), (b, [receive])]) == 1
        (failure,) = b.failures()
        assert failure.found == 50


def golden() -> dict:  # type: ignore[type-arg]
    for folder in (
        os.environ.get("GENIE_GOLDEN"),
        ROOT / "tests/golden",
        ROOT / "../shared/golden",
    ):
        if folder and (Path(folder) / "ib.json.gz").exists():
            with gzip.open(Path(folder) / "ib.json.gz") as file:
                return json.load(file)
    pytest.skip("no golden/ib.json.gz")


GROUPS = {
    n: (tuple(f"fake{i}" for i in range(n)), tuple(f"fake{i}" for i in range(n, 2 * n)))
    for n in (1, 2, 4)
}


def merged(ndevs: int, **fields: object) -> VerbsConfig:
    devices = [",".join(group) for group in GROUPS[ndevs]]
    return VerbsConfig(force_merge=";".join(devices) if ndevs > 1 else None, **fields)  # type: ignore[arg-type]


def test_work_requests_equal_compiled_nccl() -> None:
    """Every send of golden/ib.json: QP, device, opcode, bytes, offset, imm, signaled."""
    checked = 0
    for case in golden()["sends"]:
        fake.configure(devices=8, log=1, copy=0)
        ndevs = case["ndevs"]
        config = merged(
            ndevs,
            buffer_bytes=8 << 30,  # so that the largest message, 1 GiB, fits a slot
            qps_per_connection=case["qps_per_connection"],
            split_data=bool(case["split_data_on_qps"]),
            adaptive_routing=case["ar"],
        )
        with fake.workers(fake.table((0, 1)), devices=GROUPS[ndevs], config=config) as pair:
            sizes = [message[0] for message in case["messages"]]
            run(pair, sizes, window=1)
            qps = pair[0]._verbs.connections()[0]["qps"]
            slots = pair[1]._verbs.create_info(0)["at"]
            sends = [r for r in fake.log() if r.qp in qps and r.opcode in OPCODES]
            position = 0
            for number, (size, request, wrs) in enumerate(case["messages"]):
                assert request == number
                base = slots + ((number % 8) << 30)
                for qp, dev, opcode, nbytes, offset, imm, signaled in wrs:
                    row = sends[position]
                    position += 1
                    assert qps.index(row.qp) == qp and qp % ndevs == dev
                    assert OPCODES[row.opcode] == opcode
                    assert row.bytes == nbytes
                    if offset >= 0:
                        assert row.remote - base == offset
                    assert bool(row.flags & SIGNALED) == bool(signaled)
                    if opcode == "WRITE_IMM":
                        assert row.imm == imm == size
                    checked += 1
            assert position == len(sends)
    assert checked > 1000


def test_receives_and_cts_equal_compiled_nccl() -> None:
    """Receive WRs and CTS writes of golden/ib.json (single receives)."""
    checked = 0
    for case in golden()["recv_posts"]:
        if case["n_recvs"] != 1:
            continue
        fake.configure(devices=8, log=1)
        ndevs = case["ndevs"]
        config = merged(
            ndevs,
            qps_per_connection=case["qps_per_connection"],
            split_data=bool(case["split_data_on_qps"]),
        )
        with fake.workers(fake.table((0, 1)), devices=GROUPS[ndevs], config=config) as pair:
            run(pair, [64] * len(case["ops"]), window=1)
            qps = pair[1]._verbs.connections()[0]["qps"]
            fifo = pair[0]._verbs.create_info(0)["at"]
            rows = [r for r in fake.log() if r.qp in qps]
            position = 0
            for _, ops in case["ops"]:
                for qp, dev, opcode, nbytes, offset, _, signaled in ops:
                    row = rows[position]
                    position += 1
                    assert qps.index(row.qp) == qp and qp % ndevs == dev
                    if opcode == "RECV_WR":
                        assert row.opcode == RECV_WR
                    else:
                        assert row.opcode == 0 and row.bytes == nbytes
                        assert row.remote - fifo == offset
                        assert bool(row.flags & SIGNALED) == bool(signaled)
                    checked += 1
            assert position == len(rows)
    assert checked > 20
