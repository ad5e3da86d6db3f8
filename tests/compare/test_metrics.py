"""Every metric against a case worked by hand, or scipy, or plain Python under numba."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from compare.build import truth
from compare.runs import simulated
from compare.test_align import run
from genie.compare.align import align
from genie.compare.metrics import kernels
from genie.compare.metrics.collective import (
    BANDS,
    band_of,
    bootstrap_median,
    collective_errors,
    overall,
)
from genie.compare.metrics.intervals import length, overlap, union
from genie.compare.metrics.messages import match_messages
from genie.compare.metrics.sensitivity import of_runs, sensitivity, slowdown
from genie.compare.metrics.shape import (
    compare_shapes,
    nic_shapes,
    shape_distances,
    together,
    traffic_shape,
)
from genie.compare.metrics.step import step_errors, step_times
from genie.compare.truth.model import Truth
from genie.compare.truth.recording import from_recording
from genie.errors import CompareError

SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=12)


def arrays(spans: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    start = np.array([a for a, _ in spans], np.int64)
    return start, start + np.array([d for _, d in spans], np.int64)


def covered(spans: list[tuple[int, int]]) -> set[int]:
    return {t for a, d in spans for t in range(a, a + d)}


@settings(deadline=None)
@given(SPANS, SPANS)
def test_interval_algebra_is_set_algebra(
    a: list[tuple[int, int]], b: list[tuple[int, int]]
) -> None:
    ua, ub = union(*arrays(a)), union(*arrays(b))
    assert length(ua) == len(covered(a))
    assert overlap(ua, ub) == len(covered(a) & covered(b))
    assert (ua[0][1:] > ua[1][:-1]).all()


@settings(deadline=None, max_examples=40)
@given(SPANS, SPANS, st.lists(st.integers(0, 1000), min_size=12, max_size=12))
def test_compiled_loops_equal_plain_python(
    a: list[tuple[int, int]], b: list[tuple[int, int]], sizes: list[int]
) -> None:
    start, end = arrays(sorted(a))
    ua, ub = union(*arrays(a)), union(*arrays(b))
    assert kernels.union_length(start, end) == kernels.union_length.py_func(start, end)
    assert kernels.intersection_length(*ua, *ub) == kernels.intersection_length.py_func(*ua, *ub)
    outs = [(np.zeros_like(start), np.zeros_like(start)) for _ in range(2)]
    n = kernels.merge(start, end, *outs[0])
    assert n == kernels.merge.py_func(start, end, *outs[1])
    assert (outs[0][0][:n] == outs[1][0][:n]).all()
    assert (outs[0][1][:n] == outs[1][1][:n]).all()
    nbytes = np.array(sizes[: len(start)], np.int64)
    bins = [np.zeros(10), np.zeros(10)]
    kernels.bin_bytes(start, end, nbytes, 9, bins[0])
    kernels.bin_bytes.py_func(start, end, nbytes, 9, bins[1])
    assert bins[0] == pytest.approx(bins[1])
    assert bins[0].sum() == pytest.approx(nbytes.sum())


def test_bootstrap_interval_is_scipys() -> None:
    values = np.random.default_rng(3).normal(0.1, 0.05, 60)
    low, high = bootstrap_median(values)
    theirs = stats.bootstrap(
        (values,), np.median, method="percentile", n_resamples=4000,
        random_state=np.random.default_rng(0),
    ).confidence_interval  # fmt: skip
    assert low == pytest.approx(theirs.low, abs=0.006)
    assert high == pytest.approx(theirs.high, abs=0.006)
    assert bootstrap_median(values) == (low, high)
    picks = np.random.default_rng(0).integers(0, 60, (1000, 60))
    medians = np.median(values[picks], axis=1)
    assert (low, high) == pytest.approx(tuple(np.percentile(medians, (2.5, 97.5))))
    assert np.isnan(bootstrap_median(values[:1])).all()


def test_bands() -> None:
    edges = [0, 65535, 65536, (1 << 20) - 1, 1 << 20, 64 << 20, 1 << 40]
    assert band_of(np.array(edges)).tolist() == [0, 0, 1, 1, 2, 3, 3]
    assert len(BANDS) == 4


def test_errors_of_three_pairs_by_hand() -> None:
    # replay / truth = 1.1, 0.9, 1.5.
    replay, other = run([100, 200, 300], ranks=1), run([100, 200, 300], ranks=1)
    for rows, times in ((replay, (110, 180, 450)), (other, (100, 200, 300))):
        for row, took in zip(rows, times, strict=True):
            row["end_ns"] = row["start_ns"] + took
            row["time_ns"] = float(took)
    found = align(truth(replay), truth(other))
    row = collective_errors(found)[0]
    assert row["count"] == 3
    assert row["median_error"] == pytest.approx(0.1)
    assert row["geomean_ratio"] == pytest.approx((1.1 * 0.9 * 1.5) ** (1 / 3))
    assert row["worst_error"] == pytest.approx(0.5)
    assert row["p99_abs_error"] == pytest.approx(np.percentile([0.1, 0.1, 0.5], 99))
    all_ = overall(found)
    assert all_["mean_abs_error"] == pytest.approx(0.7 / 3)
    assert all_["alignment"] == pytest.approx(1 - 0.7 / 3)
    assert all_["geomean_abs_error"] == pytest.approx((0.1 * 0.1 * 0.5) ** (1 / 3))


def test_step_by_hand() -> None:
    # compute [0, 100), communication [60, 140), idle [140, 150), compute [150, 160).
    rows = [{"rank": 0, "iteration": 0, "start_ns": 60, "end_ns": 140}]
    compute = [
        {"rank": 0, "kind": "comp", "iteration": 0, "start_ns": 0, "end_ns": 100},
        {"rank": 0, "kind": "comp", "iteration": 0, "start_ns": 150, "end_ns": 160},
    ]
    side = truth(rows, compute)
    row = step_times(side)[0]
    names = ("step_ns", "compute_ns", "communication_ns", "overlap_ns", "exposed_ns", "idle_ns")
    assert [row[name] for name in names] == [160, 110, 80, 40, 40, 10]
    slower = truth([dict(rows[0], end_ns=180)], compute)
    found = step_errors(slower, side)
    assert found["step_error"] == pytest.approx(180 / 160 - 1)
    # 120 of communication; 40 + 10 of it overlapped.
    assert found["exposed_error"] == pytest.approx(70 / 40 - 1)
    assert found["atlahs_error"] == pytest.approx(0.125)


def message(rank: int, peer: int, nbytes: int, at: int = 0, **more: int) -> dict[str, int]:
    return {"rank": rank, "peer": peer, "channel": 0, "nbytes": nbytes, "start_ns": at,
            "end_ns": at + 10} | more  # fmt: skip


def test_messages_by_hand() -> None:
    ops = run([8])
    ours = [message(0, 1, 10, 0), message(0, 1, 20, 5), message(1, 0, 10, 0)]
    other = [message(0, 1, 10, 90), message(0, 1, 21, 95), message(1, 0, 10, 7)]
    found = match_messages(truth(ops, messages=ours), truth(ops, messages=other))
    assert (found.equal, found.compared, found.equal_streams, found.streams) == (2, 3, 1, 2)
    assert found.first_difference == (
        "rank 0 to 1, channel 0: message 1 is 20 B here and 21 B in the truth"
    )
    assert found.bytes_error == pytest.approx(1 - 30 / 31)
    with pytest.raises(CompareError, match="no messages"):
        match_messages(truth(ops), truth(ops, messages=other))


def test_messages_only_the_replay_has_count_against_it() -> None:
    ops = run([8])
    found = match_messages(
        truth(ops, messages=[message(0, 1, 10), message(0, 2, 10)]),
        truth(ops, messages=[message(0, 1, 10)]),
    )
    assert (found.equal, found.compared, found.replay_only) == (1, 2, 1)


def test_traffic_shape_by_hand() -> None:
    # Two bursts of rank 0: 300 B, a gap of 200 us, 50 B.
    side = truth(
        run([8]),
        messages=[message(0, 1, 100, 0), message(0, 1, 200, 5), message(0, 1, 50, 200_015)],
    )
    found = traffic_shape(side)
    assert found is not None
    assert found.burst_bytes.tolist() == [300, 50]
    assert found.gap_ns.tolist() == [200_000]
    # The first two are one flow.
    assert found.concurrency.tolist() == [1, 1, 1]
    assert found.rate_1ms.tolist() == pytest.approx([350 / 1e6])
    assert found.rate_100us.tolist() == pytest.approx([300 / 1e5, 0, 50 / 1e5])
    assert traffic_shape(truth(run([8]))) is None


def two_nics(gap: int) -> Truth:
    """Ranks 0 and 1 share host 0's NIC, rank 2 has host 1's; one message is inside a host."""
    sent = [
        message(0, 2, 100, 0, nic=0), message(0, 2, 100, 5, nic=0), message(1, 3, 60, 8, nic=0),
        message(1, 3, 40, 8 + gap, nic=0), message(2, 0, 7, 3, nic=0), message(2, 3, 9, 3, nic=-1),
    ]  # fmt: skip
    return truth(run([8], ranks=4), messages=sent, world_size=4, hosts=2)


def test_traffic_shape_by_nic_by_hand() -> None:
    found = nic_shapes(two_nics(gap=200_000))
    assert list(found) == ["host 0 NIC 0", "host 1 NIC 0"]
    first, second = found.values()
    assert first.burst_bytes.tolist() == [260, 40]
    # From the end of rank 1's first message at 18 to the start of its second at 200 008.
    assert first.gap_ns.tolist() == [199_990]
    assert first.concurrency.tolist() == [1, 1, 2, 1]
    assert first.rate_100us.tolist() == pytest.approx([260 / 1e5, 0, 40 / 1e5])
    assert second.burst_bytes.tolist() == [7]
    assert second.rate_100us.tolist() == pytest.approx([7 / 1e5, 0, 0])
    whole = together(found)
    assert whole is not None
    assert whole.burst_bytes.tolist() == [260, 40, 7]
    assert whole.rate_100us.tolist() == pytest.approx([267 / 1e5, 0, 40 / 1e5])
    by_rank = nic_shapes(two_nics(gap=200_000), by_nic=False)
    assert list(by_rank) == ["rank 0", "rank 1", "rank 2"]
    assert by_rank["rank 2"].burst_bytes.tolist() == [16]


def test_distances_by_nic_by_hand() -> None:
    found = compare_shapes(two_nics(gap=200_000), two_nics(gap=0))
    assert list(found) == ["all NICs", "host 0 NIC 0", "host 1 NIC 0"]
    # Bursts 260, 40 against 300: every value is on its own side.
    assert found["host 0 NIC 0"]["burst_bytes"]["ks"] == 1
    assert found["host 0 NIC 0"]["burst_bytes"]["wasserstein"] == pytest.approx(150 / 300)
    assert found["host 1 NIC 0"]["burst_bytes"] == {"ks": 0, "p": 1, "wasserstein": 0}
    assert "gap_ns" not in found["host 0 NIC 0"]  # the truth has one burst
    plain = truth(run([8], ranks=4), messages=[message(0, 2, 100)])
    assert list(compare_shapes(two_nics(gap=0), plain)) == ["all NICs", "rank 0"]
    assert compare_shapes(two_nics(gap=0), truth(run([8]))) == {}


def test_recordings_say_which_nic() -> None:
    side = from_recording(simulated())
    assert side.messages is not None
    found = nic_shapes(side)
    assert list(found) == ["host 0 NIC 0", "host 1 NIC 0"]
    sends = side.messages[side.messages["direction"] == 0]
    for host, part in enumerate(found.values()):
        assert part.burst_bytes.sum() == sends["nbytes"][sends["rank"] // 4 == host].sum()


def test_distances_are_scipys() -> None:
    sides = [
        truth(run([8]), messages=[message(0, 1, size, i * 300_000) for i, size in enumerate(s)])
        for s in ([100, 200, 300], [100, 250, 500, 900])
    ]
    a, b = traffic_shape(sides[0]), traffic_shape(sides[1])
    assert a is not None
    assert b is not None
    found = shape_distances(a, b)["burst_bytes"]
    assert found["ks"] == pytest.approx(stats.ks_2samp(a.burst_bytes, b.burst_bytes).statistic)
    # Wasserstein by hand: area between the two step functions / mean of the truth.
    assert found["wasserstein"] == pytest.approx(
        stats.wasserstein_distance([100, 200, 300], [100, 250, 500, 900]) / 437.5
    )


def test_sensitivity_by_hand() -> None:
    found = sensitivity(
        [10, 10, 10], {"a": [20], "b": [30], "c": [15], "x": [1]},
        [100, 100], {"a": [200], "b": [400], "c": [150], "y": [1]},
    )  # fmt: skip
    assert found.faults == ("a", "b", "c")
    assert found.replay == (2.0, 3.0, 1.5)
    assert found.truth == (2.0, 4.0, 1.5)
    assert found.errors == pytest.approx((0, -0.25, 0))
    assert found.rank_correlation == pytest.approx(1.0)
    with pytest.raises(CompareError, match="no fault was tried on both sides"):
        sensitivity([1], {"a": [1]}, [1], {"b": [1]})


def scaled(**factors: int) -> Truth:
    """Two iterations of all_reduces of 100 and 200 B, each size as many times as long."""
    rows = run([100, 200], iterations=2)
    moved = dict.fromkeys(range(2), 0)
    for row in rows:
        rank = int(row["rank"])
        took = (int(row["end_ns"]) - int(row["start_ns"])) * factors[f"of_{row['nbytes']}"]
        row["start_ns"] = moved[rank]
        row["end_ns"] = moved[rank] = moved[rank] + took
    return truth(rows)


def test_slowdown_by_hand() -> None:
    healthy, faulted = scaled(of_100=1, of_200=1), scaled(of_100=2, of_200=8)
    # Steps of 300 and 1800; collectives 2 and 8 times as long.
    assert slowdown(healthy, faulted, "step") == pytest.approx(6)
    assert slowdown(healthy, faulted, "collectives") == pytest.approx(4)
    table = truth([{"nbytes": 100, "time_ns": 50.0}, {"nbytes": 200, "time_ns": 50.0}],
                  format="nccl-tests")  # fmt: skip
    slow = truth([{"nbytes": 100, "time_ns": 150.0}, {"nbytes": 400, "time_ns": 1.0}],
                 format="nccl-tests")  # fmt: skip
    assert slowdown(table, slow, "step") is None
    assert slowdown(table, slow, "collectives") == pytest.approx(3)


def test_sensitivity_of_runs_by_hand() -> None:
    healthy = scaled(of_100=1, of_200=1)
    runs = {n: scaled(of_100=n, of_200=n) for n in (2, 3, 4, 5)}
    found = of_runs(
        (healthy, healthy),
        {"a": (runs[2], runs[2]), "b": (runs[3], runs[4]), "c": (runs[4], runs[3])},
    )
    assert list(found) == ["step", "collectives"]
    for part in found.values():
        assert part.replay == pytest.approx((2, 3, 4))
        assert part.truth == pytest.approx((2, 4, 3))
        assert part.errors == pytest.approx((0, -0.25, 1 / 3))
        # Ranks 1, 2, 3 against 1, 3, 2: 1 - 6 (0 + 1 + 1) / (3 (9 - 1)).
        assert part.rank_correlation == pytest.approx(0.5)
    other = truth(run([7], number=False), format="kineto")
    for row in ("start_ns", "end_ns"):
        other.ops[row] = -1
    with pytest.raises(CompareError, match="faults x: neither a step nor a collective"):
        of_runs((healthy, healthy), {"x": (runs[2], other)})


def test_run_time_is_by_iteration() -> None:
    found = step_errors(truth(run([100, 200], iterations=4)), truth(run([100, 200], iterations=2)))
    # 4 x 320 - 10 against 2 x 320 - 10.
    assert found["runtime_replay_ns"] == pytest.approx(1270 / 4)
    assert found["runtime_truth_ns"] == pytest.approx(630 / 2)
    assert found["atlahs_error"] == pytest.approx(317.5 / 315 - 1)
