"""DLRM and ResNet: shapes against published figures, bytes against what they must be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jobs import totals

import genie
from genie.workload import models
from genie.workload.convnet import blocks_of
from genie.workload.dlrm import deal_tables, layers_of
from genie.workload.generate import prepare, workload
from genie.workload.memory import fullest
from genie.workload.replicas import BUCKET_BYTES, FIRST_BUCKET_BYTES, bucket_sizes


def test_resnet_shape() -> None:
    blocks = blocks_of(models.model("resnet-50"))
    # torchvision's resnet50: 25 557 032 parameters, 4.09e9 multiply-adds.
    assert sum(block.parameters for block in blocks) == 25_557_032
    assert sum(block.macs for block in blocks) == pytest.approx(4.09e9, rel=0.001)


def test_resnet_gradients() -> None:
    trace = workload("resnet-50", dp=4)
    trace.check()
    assert totals(trace, 3) == {("all_reduce", ""): 4 * 25_557_032}
    assert genie.simulate(trace, genie.Cluster.local(2, 2), log_messages=False).complete


def test_dlrm_bytes() -> None:
    trace = workload("dlrm", dp=8, micro=64)
    trace.check()
    model = models.model("dlrm")
    dense = sum(layers_of(model.bottom_mlp)) + sum(layers_of(model.top_mlp))
    row = 64 * 128 * 2
    sent = 0
    for rank in range(8):
        found = totals(trace, rank)
        assert found["all_reduce", ""] == 4 * dense
        sent += found["all_to_all", ""]
    # Every sample's rows of all 26 tables, to its rank and back.
    assert sent == 2 * 26 * row * 8
    assert genie.simulate(trace, genie.Cluster.local(2, 4), log_messages=False).complete


def test_memory() -> None:
    # 204 million rows of 128 floats do not fit on one GPU, the largest share of eight ranks does.
    one, eight = prepare("dlrm"), prepare("dlrm", dp=8)
    whole = fullest(one.spec, one.layout, one.roofline)
    assert not whole.fits
    assert whole.weights > sum(models.model("dlrm").tables) * 512
    assert fullest(eight.spec, eight.layout, eight.roofline).fits
    resnet = prepare("resnet-50")
    assert fullest(resnet.spec, resnet.layout, resnet.roofline).fits


@given(rows=st.lists(st.integers(1, 1000), min_size=1, max_size=40), ranks=st.integers(1, 9))
def test_tables_are_dealt_once_and_evenly(rows: list[int], ranks: int) -> None:
    dealt = deal_tables(tuple(rows), ranks)
    assert sorted(table for tables in dealt for table in tables) == list(range(len(rows)))
    held = [sum(rows[t] for t in tables) for tables in dealt]
    # Greedy: the last table of the fullest rank went where least was.
    fullest = max(range(ranks), key=held.__getitem__)
    if dealt[fullest]:
        assert held[fullest] - rows[dealt[fullest][-1]] <= min(held)


@given(gradients=st.lists(st.integers(1, 20_000_000), max_size=30))
def test_buckets_hold_everything_in_order(gradients: list[int]) -> None:
    buckets = bucket_sizes(gradients, 4)
    assert [i for bucket in buckets for i in bucket] == list(range(len(gradients)))
    for number, bucket in enumerate(buckets[:-1]):
        limit = BUCKET_BYTES if number else FIRST_BUCKET_BYTES
        size = 4 * sum(gradients[i] for i in bucket)
        assert size >= limit > size - 4 * gradients[bucket[-1]]
