"""Which operation is which: alignment, iterations, clocks, against cases worked by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import genie
from compare.build import all_reduce, kernel, kineto, truth
from compare.runs import simulated
from corpus_data import ROOT
from genie.compare.align import HOW, align
from genie.compare.clocks import offsets, on_one_clock
from genie.compare.comparison import compare
from genie.compare.instances import instances
from genie.compare.periods import with_iterations
from genie.compare.truth.load import load_truth
from genie.compare.truth.model import Truth
from genie.errors import CompareError, NothingMatchedError


def run(
    sizes: list[int],
    ranks: int = 2,
    iterations: int = 1,
    kind: str = "all_reduce",
    factor: int = 1,
    number: bool = True,
    **more: object,
) -> list[dict[str, object]]:
    """Return rows of a run: every rank does the sizes in order, one after the other."""
    rows: list[dict[str, object]] = []
    for rank in range(ranks):
        at = 0
        for iteration in range(iterations):
            for i, nbytes in enumerate(sizes):
                took = nbytes * factor
                rows.append(
                    {
                        "rank": rank,
                        "kind": kind,
                        "nbytes": nbytes,
                        "communicator": "0",
                        "group_size": ranks,
                        "iteration": iteration if number else -1,
                        "start_ns": at,
                        "end_ns": at + took,
                        "seq": i if number else -1,
                        **more,
                    }
                )
                at += took + 10
    return rows


def test_same_runs_match_by_identity() -> None:
    found = align(truth(run([100, 200, 300])), truth(run([100, 200, 300], factor=2)))
    assert [HOW[h] for h in found.pairs["how"]] == ["identity"] * 3
    assert found.pairs["error"].tolist() == [-0.5, -0.5, -0.5]
    assert not found.only_replay
    assert not found.only_truth


def test_missing_rank_is_named_and_the_rest_matches() -> None:
    rows = [row for row in run([100, 200], ranks=8) if row["rank"] != 3]
    found = align(truth(run([100, 200], ranks=8)), truth(rows))
    assert len(found.pairs) == 2
    assert found.notes[0].startswith("the truth lacks ranks 3:")


def test_extra_collective_of_the_truth_is_left_over_by_name() -> None:
    found = align(truth(run([100, 200])), truth(run([100, 200, 999])))
    assert len(found.pairs) == 2
    assert found.only_truth == {"all_reduce of 999 B: the other side has none": [2]}


def test_extra_collective_first_shifts_nothing() -> None:
    # One more at the start moves every sequence number: what is left is matched in order.
    found = align(truth(run([100, 200, 300])), truth(run([50, 100, 200, 300])))
    assert sorted(found.pairs["nbytes"].tolist()) == [100, 200, 300]
    assert {HOW[h] for h in found.pairs["how"]} == {"order"}
    assert list(found.only_truth) == ["all_reduce of 50 B: the other side has none"]


def test_coalesced_operation_without_size_is_not_matched_by_force() -> None:
    other = run([100, 200])
    for row in other:
        if row["nbytes"] == 200:
            row["nbytes"] = -1
    found = align(truth(run([100, 200])), truth(other))
    assert found.pairs["nbytes"].tolist() == [100]
    assert list(found.only_truth) == ["all_reduce without a size (coalesced, or no metadata)"]


def test_one_iteration_of_truth_against_many() -> None:
    found = align(truth(run([100, 200], iterations=3)), truth(run([100, 200], number=False)))
    assert len(found.pairs) == 6
    assert found.pairs["truth"].tolist() == [0, 1, 0, 1, 0, 1]


def test_iterations_found_by_repetition() -> None:
    replay = truth(run([100, 200], iterations=2))
    other = with_iterations(truth(run([100, 200] * 3, number=False)), replay)
    assert other.ops["iteration"].tolist() == [0, 0, 1, 1, 2, 2] * 2
    assert other.notes == ("3 iterations found by their repeating operations",)
    # Not a multiple, or no period: left alone.
    for sizes in ([100, 200, 100], [100, 200, 300, 400]):
        left = with_iterations(truth(run(sizes, number=False)), replay)
        assert (left.ops["iteration"] == -1).all()


def test_table_rows_match_by_kind_and_size_and_repeats_take_turns() -> None:
    table = truth(
        [{"kind": "all_reduce", "nbytes": 100, "time_ns": 50.0},
         {"kind": "all_reduce", "nbytes": 100, "time_ns": 100.0},
         {"kind": "all_gather", "nbytes": 100, "time_ns": 7.0}],
        format="nccl-tests",
    )  # fmt: skip
    found = align(truth(run([100, 100])), table)
    assert found.pairs["truth_ns"].tolist() == [50, 100]
    assert [HOW[h] for h in found.pairs["how"]] == ["table", "table"]


def test_table_of_unknown_kind_matches_any() -> None:
    table = truth([{"kind": "unknown", "nbytes": 100, "time_ns": 50.0}], format="nccl-tests")
    assert align(truth(run([100])), table).pairs["error"].tolist() == [1.0]


def test_nothing_in_common_names_both_sides() -> None:
    with pytest.raises(NothingMatchedError, match=r"2 x all_reduce.*against 1 x all_gather of 7 B"):
        align(
            truth(run([100, 100], ranks=1)), truth(run([7], ranks=1, kind="all_gather"))
        )  # fmt: skip


def test_compare_takes_only_runs() -> None:
    with pytest.raises(CompareError, match="not str"):
        compare(truth(run([1])), "x")  # type: ignore[arg-type]


def test_waiting_is_not_transfer() -> None:
    # Rank 1 comes 60 late; both end at 100: the transfer took 40, rank 0 waited 60.
    rows = [
        {"rank": 0, "nbytes": 80, "group_size": 2, "start_ns": 0, "end_ns": 100},
        {"rank": 1, "nbytes": 80, "group_size": 2, "start_ns": 60, "end_ns": 100},
    ]
    row = instances(truth(rows))[0]
    assert (row["transfer_ns"], row["busy_ns"], row["wait_ns"]) == (40, 40, 30)
    assert (row["algbw"], row["busbw"]) == (2.0, 2.0)  # 80 B / 40 ns, factor 2 (n - 1) / n = 1


def test_different_kinds_at_one_position_stay_apart() -> None:
    rows = [
        {"rank": 0, "kind": "all_reduce", "nbytes": 8, "start_ns": 0, "end_ns": 9},
        {"rank": 1, "kind": "all_gather", "nbytes": 8, "start_ns": 0, "end_ns": 9},
    ]
    assert len(instances(truth(rows))) == 2


def skewed(offset: dict[int, int], jitter: list[int]) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for i, noise in enumerate(jitter):
        for rank, ahead in offset.items():
            end = 10_000 * (i + 1) + ahead + (noise if rank else 0)
            rows.append({"rank": rank, "communicator": "0", "nbytes": 8, "seq": i,
                         "start_ns": end - 500, "end_ns": end})  # fmt: skip
    return rows


@settings(deadline=None, max_examples=50)
@given(
    st.integers(-5000, 5000),
    st.integers(-5000, 5000),
    st.lists(st.integers(-100, 100), min_size=5, max_size=20),
)
def test_clock_offsets_are_found_within_the_jitter(a: int, b: int, jitter: list[int]) -> None:
    found = offsets(truth(skewed({0: 0, 1: a, 2: b}, jitter), format="kineto"))
    middle = int(np.median(jitter))
    assert abs(found.offset_ns[1] - a - middle) <= 1
    assert abs(found.offset_ns[2] - b - middle) <= 1
    assert found.offset_ns[0] == 0
    assert found.spread_ns[1] <= 200


def test_clocks_are_aligned_through_a_third_rank() -> None:
    rows = [
        {"rank": 0, "communicator": "a", "seq": 0, "start_ns": 1000, "end_ns": 2000},
        {"rank": 1, "communicator": "a", "seq": 0, "start_ns": 1700, "end_ns": 2700},
        {"rank": 1, "communicator": "b", "seq": 0, "start_ns": 4000, "end_ns": 5000},
        {"rank": 2, "communicator": "b", "seq": 0, "start_ns": 3000, "end_ns": 4000},
    ]
    side = truth(rows, format="kineto")
    assert offsets(side).offset_ns == {0: 0, 1: 700, 2: -300}
    assert on_one_clock(side).ops["end_ns"].tolist() == [2000, 2000, 4300, 4300]


def test_broadcasts_do_not_set_clocks_and_recordings_keep_theirs() -> None:
    rows = [
        {"rank": 0, "kind": "broadcast", "start_ns": 0, "end_ns": 10, "seq": 0},
        {"rank": 1, "kind": "broadcast", "start_ns": 0, "end_ns": 90, "seq": 0},
    ]
    side = truth(rows, format="kineto")
    assert offsets(side).offset_ns == {0: 0, 1: 0}
    assert "no collective ties the clocks of ranks [1]" in on_one_clock(side).notes[-1]
    recording = truth(skewed({0: 0, 1: 700}, [0, 0]), format="recording")
    assert on_one_clock(recording) is recording


def test_messages_without_operations_are_compared_alone() -> None:
    message = {"rank": 0, "peer": 1, "channel": 0, "nbytes": 8, "start_ns": 1, "end_ns": 2}
    replay = truth(run([100]), messages=[message])
    other = truth([], messages=[message], format="verbs-interceptor")
    found = compare(replay, other)
    assert len(found.pairs) == 0
    assert found.messages is not None
    assert found.messages.rate == 1
    assert "only messages are compared" in found.summary()
    assert found.to_json()["L1"]["overall"]["median_error"] is None


def test_other_algorithms_are_named() -> None:
    ours = truth(run([100, 200, 300], algorithm="ring", protocol="simple"))
    other = truth(
        [row | {"algorithm": "RING" if row["nbytes"] == 100 else "nvls"}
         for row in run([100, 200, 300], protocol="SIMPLE")]
    )  # fmt: skip
    assert align(ours, other).notes == (
        "all_reduce of 200 B: ring/simple here, nvls/simple in the truth (1 of the pairs)",
        "all_reduce of 300 B: ring/simple here, nvls/simple in the truth (1 of the pairs)",
    )
    # What a side does not say is no difference.
    assert align(ours, truth(run([100, 200, 300], algorithm="ring"))).notes == ()
    many = list(range(100, 112))
    found = align(truth(run(many, algorithm="ring")), truth(run(many, algorithm="tree"))).notes
    assert len(found) == 9
    assert found[-1] == "4 more differences of algorithms"


def test_recordings_say_what_nccl_chose() -> None:
    tree = genie.simulate(
        genie.load(ROOT / "workloads" / "demo"), genie.Cluster.local(2, 4),
        nccl=genie.Nccl(env={"NCCL_ALGO": "Tree"}),
    )  # fmt: skip
    found = genie.compare(tree, simulated())
    assert set(found.replay.column("algorithm")) == {"tree"}
    assert set(found.truth.column("algorithm")) == {"ring"}
    assert (found.replay.ops["channels"] > 0).all()
    sizes = sorted(set(found.pairs["nbytes"].tolist()))
    assert [note.split(" B:")[0] for note in sorted(found.alignment.notes)] == sorted(
        f"all_reduce of {size}" for size in sizes
    )
    assert all(": tree/" in note and "here, ring/" in note for note in found.alignment.notes)


@settings(deadline=None, max_examples=20)
@given(st.permutations(range(8)), st.integers(0, 7))
def test_ids_that_ranks_number_for_themselves_do_not_matter(order: list[int], lost: int) -> None:
    """One rank of 8 is lost; the others' rows come in any order, with ids of their own."""
    whole = run([100, 200, 100], ranks=8, iterations=2, number=False)
    parts = [[row for row in whole if row["rank"] == rank] for rank in order if rank != lost]
    rows = [row | {"stream": 7 * int(str(row["rank"])) + 3} for part in parts for row in part]
    found = compare(truth(run([100, 200, 100], ranks=8, iterations=2)), truth(rows))
    assert len(found.pairs) == 6
    assert (found.pairs["error"] == 0).all()
    assert found.alignment.notes[0].startswith(f"the truth lacks ranks {lost}:")
    assert not found.alignment.only_truth


def test_extra_collective_in_the_middle_leaves_the_others_matched() -> None:
    other = run([100, 200, 999, 300, 400])
    found = align(truth(run([100, 200, 300, 400])), truth(other))
    assert sorted(found.pairs["nbytes"].tolist()) == [100, 200, 300, 400]
    assert [HOW[h] for h in found.pairs["how"]] == ["identity", "identity", "order", "order"]
    assert found.only_truth == {"all_reduce of 999 B: the other side has none": [2]}


def test_profiles_of_seven_ranks_with_clocks_and_ids_of_their_own(tmp_path: Path) -> None:
    """Rank 3 of 8 is lost, ids differ by rank, clocks are apart, rank 5 comes late each time."""
    for rank in range(8):
        if rank == 3:
            continue
        events: list[dict[str, object]] = []
        for i in range(3):
            own = 1000 * rank + 17 * i
            end = 1000.0 * (i + 1) + 250.0 * rank  # us, on a clock 250 us a rank ahead
            took = 40.0 if rank == 5 else 100.0
            call = all_reduce(0, 1, elements=1024 << i, **{"External id": own})["args"]
            events.append({"ph": "X", "cat": "cpu_op", "name": "record_param_comms", "tid": 1,
                           "ts": 1, "dur": 1, "args": call})  # fmt: skip
            events.append(kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", end - took, took,
                                 **{"External id": own, "correlation": own}))  # fmt: skip
        kineto(tmp_path / f"rank{rank}.json", events, rank)
    other = load_truth(tmp_path)
    found = compare(truth(run([4096, 8192, 16384], ranks=8)), other)
    assert [HOW[h] for h in found.pairs["how"]] == ["identity"] * 3
    # The transfer begins when rank 5 is there; the others waited 60 us, the mean over 7 is 360 / 7.
    assert found.pairs["truth_ns"].tolist() == [40_000] * 3
    assert found.alignment.truth["wait_ns"] == pytest.approx(60_000 * 6 / 7)
    notes = " ".join((*found.alignment.notes, *found.truth.notes))
    assert "the truth lacks ranks 3: waiting and step time of those ranks are not judged" in notes
    assert "clocks of 7 ranks aligned by ends of collectives: largest offset 1.75 ms" in notes
    assert "metadata taken from the CPU operation: 21 operations" in notes


def test_communicators_of_one_name_but_other_ranks_are_not_mixed() -> None:
    """Two groups call at the same place and size; each pair is of one group."""

    def both(first: int, second: int) -> Truth:
        rows = [row | {"communicator": "a"} for row in run([100], factor=first)]
        rows += [
            row | {"communicator": "b", "rank": int(str(row["rank"])) + 2}
            for row in run([100], factor=second)
        ]
        return truth(rows, communicators={"a": (0, 1), "b": (2, 3)})

    found = align(both(1, 4), both(2, 2))
    assert sorted(found.pairs["error"].tolist()) == [-0.5, 1.0]
