"""The tuner and the split equal a plain reference written from the spec's text."""

from __future__ import annotations

import math

import pytest
from drawing import KINDS, as_dict, clusters, counts, dtypes, effective, ops, settings_of
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from genie.errors import UnsupportedCollectiveError
from genie.replay.cluster import Cluster
from genie.replay.nccl.choice import Choice, choose
from genie.replay.nccl.env import Nccl
from genie.replay.nccl.group import plan_group
from genie.replay.nccl.names import ALL_GATHER, DTYPE_SIZE, function_code
from genie.replay.nccl.partition import parts, plan_count
from genie.replay.nccl.tuner import candidates
from genie.replay.nccl.versions import RELEASES, version_text
from reference import plain_group, plain_split, plain_tuner


def known_env(nccl):
    """Variables the release has, as the reference takes them."""
    return {name: nccl.get(name) for name in nccl.env if nccl.get(name) is not None}


def allowed(kind, dtype, nccl, cluster):
    reduces = kind not in ("all_gather", "broadcast")
    return not (dtype.startswith("float8") and reduces) or (
        nccl.version >= (2, 24, 3) and cluster.sm >= 90
    )


def whole_bytes(kind, count, dtype, cluster):
    ranks = cluster.n_ranks if kind in ("all_gather", "reduce_scatter") else 1
    return count * DTYPE_SIZE[dtype] * ranks


def same_candidates(kind, count, dtype, op, cluster, nccl):
    """Every candidate's enabling, latency, bandwidth and time; then the choice."""
    c, env, v = as_dict(cluster), known_env(nccl), nccl.version
    nbytes = whole_bytes(kind, count, dtype, cluster)
    for row in candidates(kind, count, dtype, op, cluster, nccl):
        key = (kind, str(row.algorithm), str(row.protocol))
        if key[1].startswith("collnet") or not plain_tuner.kernel_exists(*key, c, v):
            assert not row.enabled and math.isnan(row.time_us), key
            continue
        assert row.enabled == plain_tuner.enabled(*key, dtype, op, c, v, env), key
        assert row.latency_us == plain_tuner.latency(*key, c, v, env), key
        assert row.bandwidth_gbps == plain_tuner.bandwidth(*key, c, v), key
        if row.bandwidth_gbps:
            time = plain_tuner.predicted(*key, nbytes, c, v, env, 1)
            ring = row.algorithm == "ring" and kind not in ("all_gather", "broadcast")
            if ring and dtype.startswith("float8") and cluster.n_ranks > 8:
                time *= 1024
            assert row.time_us == time, key
    return plain_tuner.choose(kind, nbytes, dtype, op, c, v, env)


@settings(max_examples=400, deadline=None)
@given(clusters(), settings_of(), st.sampled_from(KINDS), counts(), dtypes(), ops())
def test_candidates_and_choice_equal_the_reference(cluster, nccl, kind, count, dtype, op):
    cluster = effective(cluster, nccl)
    assume(cluster is not None and cluster.n_ranks > 1)
    assume(allowed(kind, dtype, nccl, cluster))
    want = same_candidates(kind, count, dtype, op, cluster, nccl)
    if want is None:
        with pytest.raises(UnsupportedCollectiveError, match="no algorithm left"):
            choose(kind, count, dtype, op, cluster, nccl)
        return
    got = choose(kind, count, dtype, op, cluster, nccl)
    assert (got.algorithm, got.protocol, got.channels, got.warps, got.time_us) == want


@pytest.mark.parametrize("version", [version_text(release) for release in RELEASES])
def test_every_release_equals_the_reference(version):
    # Every row of the model's tables, at sizes on both sides of each correction index.
    nccl = Nccl(version)
    names = [("h100x1", 4), ("a100x1", 3), ("v100x1_100g", 2), ("h100x8", 2), ("h100x8", 4)]
    names += [("a100x8", 4), ("h100x8", 1), ("a100x8", 1)]
    if nccl.version >= (2, 25, 1):
        names += [("b200x8", 2), ("b200x8", 4)]
    for name, hosts in names:
        cluster = Cluster.preset(name, hosts=hosts).with_nccl(nccl)
        for kind in KINDS:
            for bits in range(0, 31, 3):
                count = (1 << bits) + 7 * (bits % 2)
                want = same_candidates(kind, count, "float32", "sum", cluster, nccl)
                got = choose(kind, count, "float32", "sum", cluster, nccl)
                row = (got.algorithm, got.protocol, got.channels, got.warps, got.time_us)
                assert row == want, (name, hosts, kind, count)


def conserves(table, count, limit):
    """Every element is on one channel, channels rise, none is empty."""
    assert table["count"].sum() == count
    assert (table["count"] > 0).all()
    assert (table["chunk_bytes"] > 0).all()
    channels = table["channel"].tolist()
    assert channels == list(range(channels[0], channels[0] + len(channels)))
    assert channels[-1] < limit


_METHODS = [("ring", p) for p in ("ll", "ll128", "simple")]
_METHODS += [("tree", p) for p in ("ll", "ll128", "simple")] * 2
_METHODS += [("pat", "simple"), ("nvls_tree", "simple"), ("nvls_tree", "simple")]


@settings(max_examples=800, deadline=None)
@given(clusters(), settings_of(), st.sampled_from(_METHODS), st.sampled_from(KINDS), counts(),
       dtypes(), st.integers(1, 64), st.sampled_from([3, 4, 8, 10, 16, 17, 20]))  # fmt: skip
def test_parts_equal_the_reference(cluster, nccl, method, kind, count, dtype, channels, warps):
    # Any method, whether NCCL would take it here or not: the split has no opinion.
    cluster = effective(cluster, nccl)
    assume(cluster is not None and cluster.n_ranks > 1)
    algorithm, protocol = method
    if algorithm in ("tree", "nvls_tree"):
        kind = "all_reduce"
    if algorithm == "pat":
        kind = "all_gather" if kind < "b" else "reduce_scatter"
    limit = cluster.nvls_channels if algorithm == "nvls_tree" else cluster.coll_channels
    assume(limit > 0)
    size = 1 if kind in ("all_gather", "broadcast") else DTYPE_SIZE[dtype]
    nbytes = whole_bytes(kind, count, dtype, cluster)
    choice = Choice(algorithm, protocol, min(channels, limit), warps, 1.0, size, nbytes)
    got = parts(choice, kind, count, dtype, cluster, nccl)
    total = plan_count(function_code(kind), count, dtype)
    task = (kind, total, size, algorithm, protocol, min(channels, limit), warps, nbytes)
    assert got.tolist() == plain_split.split([task], as_dict(cluster), nccl.version)[0]
    conserves(got, total, limit)


def tasks_of():
    size = st.one_of(counts(), st.integers(1, 100_000), st.integers(1, 64).map(lambda n: n * 1000))
    kinds = st.sampled_from([*KINDS, "all_reduce", "all_reduce", "all_reduce"])
    types = st.one_of(dtypes(), st.just("float32"))
    task = st.tuples(kinds, size, types, st.one_of(ops(), st.just("sum")))
    return st.lists(task, min_size=1, max_size=7)


@settings(max_examples=400, deadline=None)
@given(clusters(), settings_of(), tasks_of())
def test_groups_equal_the_reference(cluster, nccl, tasks):
    cluster = effective(cluster, nccl)
    assume(cluster is not None and cluster.n_ranks > 1)
    tasks = [t for t in tasks if allowed(t[0], t[2], nccl, cluster)]
    assume(tasks)
    c, env, v = as_dict(cluster), known_env(nccl), nccl.version
    try:
        planned = plan_group(tasks, cluster, nccl)
    except UnsupportedCollectiveError:
        # Some task alone has no algorithm left: then the group has none either.
        with pytest.raises(UnsupportedCollectiveError):
            for kind, count, dtype, op in tasks:
                choose(kind, count, dtype, op, cluster, nccl)
        return
    sized = [(*task, DTYPE_SIZE[task[2]]) for task in tasks]
    decided = []
    for bundle in plain_group.order(sized, cluster.n_ranks, v):
        kind, _, dtype, op, _ = sized[bundle[0]]
        nbytes = sum(whole_bytes(kind, sized[i][1], sized[i][2], cluster) for i in bundle)
        if kind in ("all_gather", "broadcast"):
            dtype = "int8"
        together = len(bundle) if v < (2, 22, 3) else len(tasks)
        pipelined = -(-together // cluster.coll_channels)
        method = plain_tuner.choose(kind, nbytes, dtype, op, c, v, env, pipelined)
        decided += [(i, method, nbytes) for i in bundle]
    if v >= (2, 22, 3):
        decided.sort(key=lambda one: "nvls" in one[1][0])
    rows = []
    for i, method, nbytes in decided:
        kind, count, dtype, _, size = sized[i]
        total = plan_count(function_code(kind), count, dtype)
        plan_size = 1 if function_code(kind) in (ALL_GATHER, 0) else size
        rows.append((kind, total, plan_size, *method[:4], nbytes))
    want = plain_split.split(rows, c, v)
    assert [p.index for p in planned] == [one[0] for one in decided]
    for p, (_, method, _), parts_wanted in zip(planned, decided, want, strict=True):
        ch = p.choice
        assert (ch.algorithm, ch.protocol, ch.channels, ch.warps, ch.time_us) == method
        assert p.parts.tolist() == parts_wanted
        limit = cluster.nvls_channels if "nvls" in ch.algorithm else cluster.coll_channels
        if v < (2, 22, 3):
            # One count for the whole plan; rings are copied up to NVLS's channels there.
            limit = max(cluster.nvls_channels, cluster.coll_channels)
            assert limit <= len(cluster.channels)
        conserves(p.parts, p.count, limit)
        assert p.plan == 0
