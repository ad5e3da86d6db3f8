"""What types, operations, restrictions and settings do to choices (golden: test_selftest)."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

import golden_data
from genie.errors import InputError, UnsupportedCollectiveError
from genie.replay.cluster import Cluster
from genie.replay.nccl.choice import choose
from genie.replay.nccl.env import Nccl
from genie.replay.nccl.schedule import schedule
from genie.replay.nccl.selfcheck import plans
from genie.replay.nccl.tuner import CANDIDATE, candidates, tune


@pytest.mark.parametrize("version", golden_data.VERSIONS)
def test_cross_nic_variants_equal_golden_on_a_graph_of_theirs(version, monkeypatch):
    # A preset refuses NCCL_CROSS_NIC, as its graph is the default search's; with the graph that
    # golden's own search found, every choice follows.
    compared = 0
    for entry in golden_data.load("env_variants", version)["entries"]:
        if set(entry["env"]) != {"NCCL_CROSS_NIC"} or entry["machine"] == "h100x1":
            continue
        cluster = Cluster.preset(entry["machine"], hosts=entry["nNodes"])
        cluster = cluster.with_nccl(Nccl(version))
        found = entry["ringGraph"]
        path = {3: 4, 4: 4, 5: 7, 7: 7}[found["typeInter"]] if version == "2.21" else None
        graphs = dict(cluster.graphs)
        graphs["ring"] = replace(
            graphs["ring"],
            n_channels=found["nChannels"],
            bw_intra=found["bwIntra"],
            bw_inter=found["bwInter"],
            type_inter=path or found["typeInter"],
            cross_nic=found["crossNic"],
        )
        monkeypatch.setitem(cluster.__dict__, "graphs", graphs)
        assert cluster.coll_channels == entry["nChannels"]
        for coll, nbytes, *rest in entry["select"]:
            per = 4 * (cluster.n_ranks if coll in ("allgather", "reducescatter") else 1)
            nccl = Nccl(version, env={"NCCL_WHATEVER": str(entry["env"])})
            choice = choose(plans.KIND[coll], nbytes // per, "float32", "sum", cluster, nccl)
            got = [choice.algorithm.upper(), choice.protocol.upper(), choice.channels, choice.warps]
            assert got == rest[:4], (entry["env"], coll, nbytes)
            compared += 1
    assert compared >= 30


@pytest.fixture
def hopper():
    return Cluster.preset("h100x8", hosts=2)


# --------------------------------------------------------------------------- types, operations


@pytest.mark.parametrize(
    ("dtype", "op", "nvls"),
    [
        ("float32", "sum", True),
        ("float64", "sum", True),
        ("float32", "max", False),
        ("float64", "min", False),
        ("float16", "max", True),
        ("bfloat16", "min", True),
        ("bfloat16", "prod", False),
        ("int32", "max", True),
        ("uint64", "sum", True),
        ("int8", "sum", False),
        ("float8_e4m3", "sum", False),
        ("float32", "avg", False),
        ("float16", "avg", False),
        ("float32", "premulsum", False),
    ],
)
def test_nvls_reduces_some_types_and_operations(hopper, dtype, op, nvls):
    rows = tune("all_reduce", count=1 << 26, dtype=dtype, op=op, cluster=hopper)
    row = rows[(rows.algorithm == "nvls_tree") & (rows.protocol == "simple")][0]
    assert row.enabled == nvls
    assert ("NVLS does not reduce" in row.reason) != nvls
    assert (rows.choice.algorithm == "nvls_tree") == nvls


def test_pat_does_not_average():
    cluster = Cluster.preset("h100x1", hosts=16)
    assert choose("reduce_scatter", 1024, "float32", "sum", cluster, Nccl()).algorithm == "pat"
    for op in ("avg", "premulsum"):
        assert choose("reduce_scatter", 1024, "float32", op, cluster, Nccl()).algorithm == "ring"
    assert choose("all_gather", 1024, "float32", "avg", cluster, Nccl()).algorithm == "pat"


def test_float8_avoids_rings_over_many_ranks():
    four = Cluster.preset("h100x8_nonvls", hosts=4)
    plain = choose("all_reduce", 1 << 30, "int8", "sum", four, Nccl())
    small = choose("all_reduce", 1 << 30, "float8_e5m2", "sum", four, Nccl())
    assert plain.algorithm == "ring" and small.algorithm == "tree"
    rows = tune("all_reduce", count=1 << 30, dtype="float8_e5m2", cluster=four)
    other = tune("all_reduce", count=1 << 30, dtype="int8", cluster=four)
    ring = rows.algorithm == "ring"
    assert (rows.time_us[ring] == other.time_us[ring] * 1024).all()
    # Up to 8 ranks a ring loses little.
    two = Cluster.preset("h100x1", hosts=8)
    assert choose("all_reduce", 1 << 30, "float8_e5m2", "sum", two, Nccl()).algorithm == "ring"


def test_float8_needs_a_release_and_a_gpu(hopper):
    with pytest.raises(UnsupportedCollectiveError, match=r"NCCL 2\.21\.5 has no float8"):
        choose("all_reduce", 8, "float8_e4m3", "sum", hopper, Nccl("2.21"))
    old = Cluster.preset("a100x8", hosts=2)
    with pytest.raises(UnsupportedCollectiveError, match="capability 90, not 80"):
        tune("reduce_scatter", count=8, dtype="float8_e4m3", cluster=old)
    assert choose("all_gather", 8, "float8_e4m3", "sum", old, Nccl()).algorithm == "ring"


def test_barrier_is_one_element_and_block_is_reduce_scatter(hopper):
    barrier = tune("barrier", cluster=hopper)
    assert barrier.count == 1 and barrier.nbytes == 4
    assert barrier.choice == tune("all_reduce", count=1, cluster=hopper).choice
    block = choose("reduce_scatter_block", 4096, "float32", "sum", hopper, Nccl())
    assert block == choose("reduce_scatter", 4096, "float32", "sum", hopper, Nccl())


# --------------------------------------------------------------------------- restrictions


def test_tree_alone_leaves_nothing_for_other_collectives(hopper):
    nccl = Nccl(env={"NCCL_ALGO": "Tree"})
    assert choose("all_reduce", 1, "float32", "sum", hopper, nccl).algorithm == "tree"
    with pytest.raises(
        UnsupportedCollectiveError, match="no algorithm left for all_gather"
    ) as info:
        schedule("all_gather", count=1, cluster=hopper, nccl=nccl)
    assert info.value.fields["kind"] == "all_gather"
    assert "allreduce:Tree" in str(info.value) and "NCCL_ALGO=Tree" in str(info.value)
    # Older releases ran it: ring is never taken from the others there.
    for version in ("2.21", "2.23.4"):
        old = Nccl(version, env={"NCCL_ALGO": "Tree"})
        assert choose("all_gather", 1, "float32", "sum", hopper, old).algorithm == "ring"
        assert choose("all_reduce", 1, "float32", "sum", hopper, old).algorithm == "tree"


def test_an_algorithm_list_that_cannot_run_is_ignored_before_2_24(hopper):
    for algorithm in ("CollnetDirect", "NVLS", "allreduce:ring"):
        nccl = Nccl("2.21", env={"NCCL_ALGO": algorithm})
        assert choose("all_reduce", 1 << 28, "float32", "sum", hopper, nccl).algorithm == "ring"
        assert choose("all_reduce", 1, "float32", "sum", hopper, nccl).algorithm == "tree"
    with pytest.raises(UnsupportedCollectiveError):
        nccl = Nccl(env={"NCCL_ALGO": "NVLS"})
        choose("all_reduce", 1, "float32", "sum", hopper, nccl)


def test_pat_is_on_where_every_host_has_one_rank(hopper):
    why = {r.protocol: r.reason for r in tune("all_gather", count=1, cluster=hopper)
           if r.algorithm == "pat"}["simple"]  # fmt: skip
    assert "every host has one rank" in why
    forced = tune("all_gather", count=1, cluster=hopper, nccl=Nccl(env={"NCCL_PAT_ENABLE": 1}))
    assert forced[-1].algorithm == "pat" and forced[-1].enabled
    single = Cluster.preset("h100x1", hosts=4)
    off = tune("all_gather", count=1, cluster=single, nccl=Nccl(env={"NCCL_PAT_ENABLE": 0}))
    assert off[-1].reason == "off by NCCL_PAT_ENABLE=0"
    assert not tune("all_gather", count=1, cluster=single, nccl=Nccl("2.22.3"))[-1].enabled


def test_listing_ll128_forces_it():
    far = Cluster.preset("a100x8", hosts=2).communicator([(0, 0), (0, 3), (1, 0), (1, 3)])
    reason = tune("all_reduce", count=1 << 18, cluster=far)[4].reason
    assert reason.startswith("LL128 needs a closer NIC")
    for proto in ("LL,LL128", "^Simple", "allreduce:ll128"):
        forced = tune(
            "all_reduce", count=1 << 18, cluster=far, nccl=Nccl(env={"NCCL_PROTO": proto})
        )
        assert forced[4].enabled and forced[4].protocol == "ll128"


def test_one_host_has_nvls_without_trees():
    one = Cluster.preset("h100x8", hosts=1)
    assert choose("all_reduce", 1 << 26, "float32", "sum", one, Nccl()).algorithm == "nvls"
    for kind in ("all_reduce", "all_gather", "reduce_scatter", "broadcast"):
        rows = {(r.algorithm, r.protocol): r for r in tune(kind, count=1 << 26, cluster=one)}
        assert rows["nvls", "simple"].enabled == (kind != "broadcast")
        assert not rows["nvls_tree", "simple"].enabled
    off = Nccl(env={"NCCL_NVLS_ENABLE": "0"})
    assert choose("all_reduce", 1 << 26, "float32", "sum", one.with_nccl(off), off).algorithm == (
        "ring"
    )


# --------------------------------------------------------------------------- releases

KIB, MIB = 1 << 10, 1 << 20


def first_size(cluster, version, algorithm, protocol):
    """The smallest power of two bytes of all_reduce that takes this."""
    nccl = Nccl(version)
    cluster = cluster.with_nccl(nccl)
    for bits in range(3, 35):
        made = choose("all_reduce", (1 << bits) // 4, "float32", "sum", cluster, nccl)
        if (made.algorithm, made.protocol) == (algorithm, protocol):
            return 1 << bits
    return None


@pytest.mark.parametrize(
    ("hosts", "algorithm", "sizes"),
    [
        (
            2,
            "nvls_tree",
            {"2.21": 512 * KIB, "2.27": 512 * KIB, "2.28.9": 2 * MIB, "2.30": 2 * MIB},
        ),
        (4, "nvls_tree", {"2.21": 2 * MIB, "2.27": 2 * MIB, "2.28.9": 8 * MIB, "2.30": 8 * MIB}),
        (4, "ring", {"2.21": 512 * MIB, "2.27": 256 * MIB, "2.30": 1024 * MIB}),
    ],
)
def test_where_releases_change_algorithm(hosts, algorithm, sizes):
    # nccl-versions.md section 6, measured with compiled NCCL.
    cluster = Cluster.preset("h100x8", hosts=hosts)
    assert {v: first_size(cluster, v, algorithm, "simple") for v in sizes} == sizes


def test_single_gpu_hosts_across_releases():
    four, sixteen = Cluster.preset("h100x1", hosts=4), Cluster.preset("h100x1", hosts=16)
    for protocol in ("ll", "ll128", "simple"):
        assert first_size(four, "2.21", "tree", protocol) is None
    assert first_size(four, "2.27", "tree", "ll") == first_size(four, "2.30", "tree", "ll") == 8
    for version, algorithm in (("2.22.3", "ring"), ("2.23.4", "pat"), ("2.30", "pat")):
        nccl = Nccl(version)
        made = choose("all_gather", 1 << 16, "float32", "sum", sixteen.with_nccl(nccl), nccl)
        assert made.algorithm == algorithm, version


# --------------------------------------------------------------------------- arguments


def test_kinds_and_arguments_that_cannot_be(hopper):
    for kind in ("all_to_all", "gather", "send", "allreduce"):
        with pytest.raises(UnsupportedCollectiveError, match="not a collective NCCL chooses"):
            tune(kind, count=1, cluster=hopper)
    for count in (None, 1.5, "8", True):
        with pytest.raises(InputError, match="count"):
            tune("all_reduce", count=count, cluster=hopper)
    with pytest.raises(InputError, match="count is negative"):
        choose("all_reduce", -1, "float32", "sum", hopper, Nccl())
    with pytest.raises(InputError, match="not a data type NCCL has: 'float31'"):
        tune("all_reduce", count=1, dtype="float31", cluster=hopper)
    with pytest.raises(InputError, match="not a reduction NCCL has: 'xor'"):
        tune("all_reduce", count=1, op="xor", cluster=hopper)


def test_one_rank_has_nothing_to_choose():
    alone = Cluster.preset("h100x8", hosts=1).communicator([(0, 3)])
    made = tune("all_reduce", count=1 << 20, cluster=alone)
    assert made.choice.channels == 0 and not made.enabled.any()
    assert "one rank" in made.table() and "one rank" in repr(made)


# --------------------------------------------------------------------------- the table


def test_a_tuning_is_rows_columns_and_text(hopper):
    made = tune("all_reduce", count=1000, dtype="float32", cluster=hopper)
    assert len(made) == len(list(made)) == 21
    assert made["time_us"].shape == made.time_us.shape == (21,)
    best = min((row for row in made if row.enabled), key=lambda row: row.time_us)
    assert best.chosen and made.chosen.sum() == 1
    assert (best.algorithm, best.protocol) == (made.choice.algorithm, made.choice.protocol)
    assert best.time_us == made.choice.time_us
    assert math.isnan(made[-1].latency_us) and made[-1].reason
    assert repr(made).startswith("<Tuning all_reduce of 1000 float32 over 16 ranks, NCCL 2.30.7: ")
    frame = made.to_pandas()
    assert list(frame.columns) == list(CANDIDATE.names) and len(frame) == 21
    assert "<table" in made._repr_html_()
    with pytest.raises(AttributeError):
        _ = made.nothing
    with pytest.raises(ValueError, match="read-only"):
        made.rows["enabled"] = False


def test_the_table_says_what_is_taken_and_by_which_rules(hopper):
    text = tune("all_reduce", count=1000, cluster=hopper).table()
    lines = text.splitlines()
    assert "NCCL 2.30.7 (held to golden data)" in lines[0] and "4000 B" in lines[0]
    [winner] = [line for line in lines if line.startswith(">")]
    assert winner.split()[1:3] == ["tree", "ll"]
    assert "takes tree ll" in text and "2.28.9: hardware latency" in text
    assert max(map(len, lines)) <= 160
    other = tune("all_reduce", count=1000, cluster=hopper, nccl=Nccl("2.28.3")).table()
    assert "no golden data of this release" in other and "2.28.9" not in other
    off = tune("all_gather", count=1, cluster=hopper, nccl=Nccl(env={"NCCL_ALGO": "Tree"}))
    assert off.choice is None and "nothing can run" in off.table() and "no candidate" in repr(off)


def test_candidates_are_a_record_array(hopper):
    rows = candidates("all_gather", 1000, "float32", "sum", hopper, Nccl())
    assert rows.dtype.names == CANDIDATE.names and rows.time_us is not None
    assert set(rows.reason[~rows.enabled]) and not set(rows.reason[rows.enabled]) - {""}


def test_answers_are_kept_per_cluster_and_settings(hopper):
    nccl = Nccl(env={"NCCL_NTHREADS": "256"})
    first = choose("all_reduce", 1 << 20, "float32", "sum", hopper, nccl)
    assert choose("all_reduce", 1 << 20, "float32", "sum", hopper, nccl) is first
    assert choose("all_reduce", 1 << 20, "float32", "sum", hopper, Nccl(env=nccl.env)) is first
    assert choose("all_reduce", 1 << 20, "float32", "sum", hopper, Nccl()) is not first
