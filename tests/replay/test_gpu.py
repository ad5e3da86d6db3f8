"""The GPU-time model's numbers for known programs."""

from __future__ import annotations

import pytest

import genie
from genie.replay.gpu import ProgramTimes, parameters


def test_ring_on_one_host_shares_the_links():
    times = genie.GpuModel().times("ring", "simple", sm=80, fanout=24)
    assert times.reduce_gbps == times.copy_gbps == 240 / 24
    assert times.receive_gbps == 24.0  # nothing goes out: the links do not hold it up
    assert (times.start_ns, times.move_ns, times.local_ns, times.early) == (8400, 3400, 0, False)


def test_a_channel_is_the_limit_where_few_share_the_links():
    assert genie.GpuModel().times("ring", "simple", sm=90, fanout=2).reduce_gbps == 38.7
    assert genie.GpuModel().times("ring", "simple", sm=90, fanout=0).reduce_gbps == 38.7


def test_ll128_hops_are_latency_for_the_next_rank():
    times = genie.GpuModel().times("tree", "ll128", sm=90, fanout=16)
    assert (times.move_ns, times.local_ns, times.early) == (1250, 1250, True)
    assert times.send_ns == 8500 - 1250 - 2000


@pytest.mark.parametrize(("cpu", "pairs", "gap"), [("intel", 1, 3000), ("amd", 2, 3000)])
def test_gap_follows_the_host_and_the_queue_pairs(cpu, pairs, gap):
    assert genie.GpuModel().times("ring", "simple", cpu=cpu, queue_pairs=pairs).gap_ns == gap


def test_off_and_overrides():
    assert genie.GpuModel.off().times("ring", "simple") == ProgramTimes()
    times = genie.GpuModel(copy_gbps=1.0, nvlink_gbps=0.0, hop_scale=0.0).times("ring", "simple")
    assert (times.reduce_gbps, times.receive_gbps) == (1.0, 1.0)
    assert (times.start_ns, times.move_ns, times.send_ns, times.gap_ns) == (0, 0, 0, 0)


def test_every_parameter_has_a_source():
    table = parameters()
    used = {key for row in table["generations"].values() for key in row}
    assert used | {"hops_us", "start_us", "gap_us"} == set(table["sources"])
