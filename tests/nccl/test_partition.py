"""Parts and chunks by hand; golden data in test_selftest, the reference in test_tuner_reference."""

from __future__ import annotations

import numpy as np
import pytest

from genie.replay.cluster import Cluster
from genie.replay.nccl.choice import Choice, choose
from genie.replay.nccl.chunk import chunk_bytes, fifo_steps, last_chunk_bytes
from genie.replay.nccl.env import Nccl
from genie.replay.nccl.group import plan_group
from genie.replay.nccl.names import ALL_REDUCE
from genie.replay.nccl.partition import PART, parts


@pytest.fixture
def cluster():
    return Cluster.preset("h100x8", hosts=2)


def test_parts_are_an_array_that_cannot_change(cluster):
    nccl = Nccl()
    choice = choose("all_reduce", 1 << 20, "float32", "sum", cluster, nccl)
    made = parts(choice, "all_reduce", 1 << 20, "float32", cluster, nccl)
    assert made.dtype == PART and made["count"].sum() == 1 << 20
    assert parts(choice, "all_reduce", 1 << 20, "float32", cluster, nccl) is made
    with pytest.raises(ValueError, match="read-only"):
        made["count"][0] = 1


def test_gathers_and_broadcasts_are_counted_in_bytes(cluster):
    nccl = Nccl()
    for kind, size in (("all_gather", 1), ("broadcast", 1), ("reduce_scatter", 8), ("reduce", 8)):
        choice = choose(kind, 1000, "float64", "sum", cluster, nccl)
        assert choice.element_size == size
        made = parts(choice, kind, 1000, "float64", cluster, nccl)
        assert made["count"].sum() * size == 8000


def test_nothing_has_no_parts(cluster):
    choice = choose("all_reduce", 0, "float32", "sum", cluster, Nccl())
    assert len(parts(choice, "all_reduce", 0, "float32", cluster, Nccl())) == 0
    alone = cluster.communicator([(0, 0)])
    choice = choose("all_reduce", 5, "float32", "sum", alone, Nccl())
    assert len(parts(choice, "all_reduce", 5, "float32", alone, Nccl())) == 0


@pytest.mark.parametrize(
    ("version", "kib", "channels"),
    [("2.21", 64, 16), ("2.22.3", 64, 16), ("2.23.4", 64, 8), ("2.28.9", 64, 8), ("2.29.2", 64, 4)],
)
def test_how_many_channels_a_small_collective_takes(version, kib, channels):
    # nccl-versions.md section 7: 64 KiB of Simple can use every channel in 2.22, at most 8 from
    # 2.23 on, 4 from 2.29.2 on.
    cluster = Cluster.preset("h100x8", hosts=2)
    nccl = Nccl(version)
    cluster = cluster.with_nccl(nccl)
    choice = Choice("ring", "simple", 16, 17, 1.0, 4, kib << 10)
    made = parts(choice, "all_reduce", (kib << 10) // 4, "float32", cluster, nccl)
    assert len(made) == channels


def test_ll_counts_four_times_from_2_26(cluster):
    choice = Choice("ring", "ll", 16, 16, 1.0, 4, 65536)
    sizes = {}
    for version in ("2.25.1", "2.26.2", "2.30"):
        nccl = Nccl(version)
        made = parts(choice, "all_reduce", 16384, "float32", cluster.with_nccl(nccl), nccl)
        sizes[version] = len(made)
    assert sizes == {"2.25.1": 8, "2.26.2": 16, "2.30": 16}


def test_a_hundred_gigabytes_still_add_up(cluster):
    nccl = Nccl()
    for count in (25_000_000_001, (1 << 38) + 5):
        choice = choose("all_reduce", count, "float32", "sum", cluster, nccl)
        made = parts(choice, "all_reduce", count, "float32", cluster, nccl)
        assert made["count"].dtype == np.int64 and made["count"].sum() == count


def test_numpy_counts_are_taken(cluster):
    nccl = Nccl()
    for kind in ("all_reduce", "all_gather"):
        choice = choose(kind, np.int64(1 << 20), "float32", "sum", cluster, nccl)
        made = parts(choice, kind, np.int64(1 << 20), "float32", cluster, nccl)
        assert made["count"].sum() * choice.element_size == 4 << 20
        [one] = plan_group([(kind, np.int32(1 << 20), "float32")], cluster, nccl)
        assert one.parts.tolist() == made.tolist()


def test_steps_and_last_chunk_follow_the_loops(cluster):
    nccl = Nccl()
    choice = Choice("ring", "simple", 16, 17, 1.0, 4)
    chunk = chunk_bytes(ALL_REDUCE, choice, 1 << 24, cluster, nccl)
    assert chunk == 2 << 20
    loop = (chunk // 4) * 16
    assert last_chunk_bytes(ALL_REDUCE, choice, 3 * loop, chunk, cluster, nccl) == 0
    assert fifo_steps(ALL_REDUCE, choice, 3 * loop, chunk, cluster) == 3 * 30 * 4
    assert fifo_steps(ALL_REDUCE, choice, 3 * loop + 1, chunk, cluster) == 4 * 30 * 4
    assert last_chunk_bytes(ALL_REDUCE, choice, 3 * loop + 1, chunk, cluster, nccl) == 16
    # Until 2.21.5 the last loop is rounded to what all threads move at once.
    old = Nccl("2.21")
    assert last_chunk_bytes(ALL_REDUCE, choice, 3 * loop + 1, chunk, cluster, old) == 4096
