"""Experiments on the guest's virtual clock, with exact expectations (qemu -icount)."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

import genie
from genie.trace import Builder, Coll, Kind, write

from .boot import ROOT, in_guest
from .driver import HERE, compile_c

pytestmark = pytest.mark.rdma

BITS = {"100mbit": 100e6, "200mbit": 200e6, "400mbit": 400e6, "1gbit": 1e9}
#: Ethernet, IP, UDP, BTH headers and the ICRC of each of 16 packets; RETH and ImmDt once.
WIRE = 65536 + 16 * (14 + 20 + 8 + 12 + 4) + 16 + 4
#: The ACK of the message's CTS shares the way: BTH and AETH.
ACK = 14 + 20 + 8 + 12 + 4 + 4
SMALL = 8 + 14 + 20 + 8 + 12 + 4 + 16 + 4
RING_BYTES, LINK = 1 << 20, 20e6


@pytest.fixture(scope="module")
def virtual(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("virtual")
    ranks = []
    for _ in range(4):
        rank = Builder()
        rank.node(Kind.COMM_COLL, "ring", coll=Coll.ALL_REDUCE, nbytes=RING_BYTES, dtype="float32")
        ranks.append(rank)
    (folder / "ring").mkdir()
    write(folder / "ring", "t", ranks)
    compile_c(HERE / "driver.c", "-shared", "-fPIC")
    in_guest(
        "guest_virtual.py",
        folder,
        compile_c(ROOT / "benchmarks/verbs_loop.c", "-libverbs"),
        devices=4,
        mods="sch_netem sch_prio cls_u32",
        shares=[str(folder)],
        icount="shift=0,sleep=on",
    )
    return json.loads((folder / "virtual.json").read_text()), folder


@pytest.mark.parametrize("rate", BITS)
def test_sustained_rate(virtual: Any, rate: str) -> None:
    """256 messages of 64 KiB back to back take what their bytes on the wire take, to 0.1 %."""
    row = next(row for row in virtual[0]["rates"] if row["rate"] == rate)
    times = row["times"]
    assert len(times) == 257
    # Over 128 messages; the first ones are posted while the processor is busy posting.
    spans = [(times[i + 128] - times[i]) / 128 for i in range(16, len(times) - 128)]
    theory = (WIRE + ACK) * 8 / BITS[rate] * 1e9
    assert statistics.median(spans) == pytest.approx(theory, rel=1e-3)


@pytest.mark.parametrize("rate", BITS)
def test_single_message(virtual: Any, rate: str) -> None:
    """A lone message takes its bytes' time, what a bare C loop takes beside, and at most 6 us more.

    Soft-RoCE copies a packet and computes its CRC before the first one leaves and after the last
    one came: of a 64 KiB message that is a 4 KiB packet at either end, which the C loop shows.
    """
    row = next(row for row in virtual[0]["rates"] if row["rate"] == rate)
    bit_ns = 1e9 / BITS[rate]
    for text, wire in (("8", SMALL), ("65536", WIRE)):
        # The C loop has no CTS, so no ACK of one is on the way before its message.
        ours = statistics.median(row["singles"][text]) - (wire + ACK) * 8 * bit_ns
        bare = statistics.median(row["c"][text]) - wire * 8 * bit_ns
        assert 15_000 < ours < bare + 6_000, (text, ours, bare)
        if text == "8":
            assert ours < 31_000


def predicted(folder: Path, slow: float | None) -> int:
    """What simulate says of the same all_reduce on links of 20 Mbit/s, one of them slower."""
    rate = LINK / 8 / 1e9 * 65536 / WIRE
    network = genie.Network(nic_gbps=rate, latency_ns=25_000, cts_latency_ns=25_000)
    if slow is not None:
        network = network.degrade(2, 0, rate * slow)
    recording = genie.simulate(
        genie.load(folder / "ring"),
        genie.Cluster.local(4, 1),
        network=network,
        nccl=genie.Nccl(env={"NCCL_ALGO": "allreduce:Ring", "NCCL_PROTO": "allreduce:Simple"}),
        gpu=genie.GpuModel.off(),
    )
    return int(recording.ops["end_ns"].max())


def test_one_slow_link_slows_the_ring_by_the_predicted_factor(virtual: Any) -> None:
    result, folder = virtual
    equal, slow = (result["slow_link"][name] for name in ("equal", "slow"))
    assert slow["time_ns"] == pytest.approx(predicted(folder, 0.25), rel=0.02)
    # Equal links carry all four hosts' packets at once, which one processor handles in turn: runs
    # of 649 and 654 ms were seen where 638 are predicted.
    assert equal["time_ns"] == pytest.approx(predicted(folder, None), rel=0.04)
    factor = predicted(folder, 0.25) / predicted(folder, None)
    assert slow["time_ns"] / equal["time_ns"] == pytest.approx(factor, rel=0.04)
    # The ring's links carry 2 (n - 1) / n of the buffer each.
    assert slow["nbytes"] == 4 * RING_BYTES * 6 // 4


def test_the_recording_shows_which_link(virtual: Any) -> None:
    """Messages of rank 1 to rank 2 take longest by far: that is the link that was slowed."""
    links = {
        name: statistics.median(times)
        for name, times in virtual[0]["slow_link"]["slow"]["links"].items()
    }
    slowest = max(links, key=lambda name: links[name])
    assert slowest == "1>2"
    assert links["1>2"] > 5 * max(value for name, value in links.items() if name != "1>2")
