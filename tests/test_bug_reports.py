"""Public bug reports of trace replay, RDMA and comparison tools, each with the tests of it.

`REPORTS` maps a report's number to what goes wrong there and the tests of it; a test below makes
sure that they exist. Reports that several parts share have their tests here.
"""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest

import genie
from genie.trace import Builder, write

TESTS = Path(__file__).parent
CHECK, FILES = "trace/test_check.py::", "trace/test_files.py::"
ATTRIBUTES, VERSIONS = "trace/test_attributes.py::", "trace/test_versions.py::"
VIRTUAL, READERS = "engine/test_virtual.py::", "compare/test_readers.py::"
ALIGN, ERRORS = "compare/test_align.py::", "verbs/test_errors.py::"
LOGS, HERE = "cluster/test_nccl_log.py::", "test_bug_reports.py::"

REPORTS: dict[int, tuple[str, ...]] = {
    # A. Trace structure and dependencies
    1: (CHECK + "test_cycle_of_three",
        CHECK + "test_the_shortest_cycle_of_an_otherwise_good_graph"),
    2: (CHECK + "test_self_dependency_is_a_cycle_of_one",),
    3: (CHECK + "test_a_chain_of_200_000", "trace/test_graph.py::test_shortest_cycle"),
    4: (CHECK + "test_a_communication_node_behind_a_missing_ancestor_is_counted",),
    5: (CHECK + "test_missing_parent_is_named",),
    6: (CHECK + "test_control_dependencies_gate_too",
        HERE + "test_a_control_dependency_alone_gates_and_stays_readable"),
    7: (CHECK + "test_a_parent_listed_three_times_gates_once",),
    8: (CHECK + "test_file_order_is_not_execution_order",),
    9: (CHECK + "test_duplicate_ids_are_named_with_both_offsets",
        CHECK + "test_the_same_ids_in_every_rank_are_fine"),
    11: (CHECK + "test_fourteen_sends_with_one_tag",),
    # B. Schema, encoding, files
    12: (FILES + "test_any_numeric_arm_holds_a_size", FILES + "test_what_is_no_size_is_refused",
         ATTRIBUTES + "test_a_truth_value_is_no_number",
         ATTRIBUTES + "test_two_attributes_of_one_name"),
    13: (CHECK + "test_no_hint_is_needed",
         "runtime/test_traffic_line.py::test_everything_sent",
         "runtime/test_traffic_line.py::test_a_link_that_fails_leaves_some_behind"),
    14: (CHECK + "test_absent_is_not_zero", CHECK + "test_explicit_zero_is_a_size"),
    15: (VERSIONS + "test_v001", VERSIONS + "test_v002_and_v003",
         VERSIONS + "test_v002_or_v003_without_attributes_is_ambiguous"),
    17: (VERSIONS + "test_unknown_version_is_refused_by_name", VERSIONS + "test_known_schemas"),
    18: (FILES + "test_cut_at_every_byte", FILES + "test_dependencies_tell_of_a_missing_tail"),
    19: (FILES + "test_gzip_under_any_name", FILES + "test_empty_text_and_missing"),
    20: (HERE + "test_four_files_and_other_numbers_of_endpoints",
         FILES + "test_a_gap_in_the_ranks"),
    22: ("trace/test_huge.py::test_ten_million_nodes",),
    # C. Collectives, groups, sizes
    23: (VIRTUAL + "test_overlapping_communicators_progress_by_themselves",
         CHECK + "test_overlapping_groups_of_part_of_the_ranks"),
    24: (FILES + "test_groups_beside_the_traces", FILES + "test_group_names_are_text"),
    26: (CHECK + "test_pipelines_of_any_length", VIRTUAL + "test_a_chain_of_pipeline_stages"),
    27: (FILES + "test_bad_groups",
         "runtime/test_blame.py::test_the_end_of_the_chain_is_to_blame"),
    29: (READERS + "test_send_recv_kernel_under_an_annotation_is_one_all_to_all",),
    30: (CHECK + "test_uneven_splits_with_zeros_and_a_self_chunk",
         CHECK + "test_one_pair_that_disagrees_although_the_totals_agree",
         ATTRIBUTES + "test_splits_in_bytes", ATTRIBUTES + "test_pytorchs_splits_are_elements",
         ATTRIBUTES + "test_splits_say_what_is_sent_of_a_larger_buffer"),
    31: (CHECK + "test_splits_for_another_number_of_ranks",
         ATTRIBUTES + "test_splits_of_another_number_of_ranks"),
    33: (HERE + "test_wire_bytes_of_a_size_on_three_ranks",
         "replay/test_sizes.py::test_count_means_what_nccl_means"),
    34: (HERE + "test_sizes_of_nothing_and_of_less_than_a_byte_a_rank",
         "nccl/test_laws.py::test_zero_byte_messages_are_kept"),
    35: (VIRTUAL + "test_ring_of_eight_with_one_in_flight_and_one_slow_link",),
    36: (READERS + "test_operation_without_arguments_has_no_size",
         ALIGN + "test_coalesced_operation_without_size_is_not_matched_by_force"),
    # D. Comparison and trace analysis
    37: (READERS + "test_kernel_spellings", READERS + "test_no_kernel_at_all_is_an_error"),
    39: (READERS + "test_device_time_not_launch_time",),
    40: (READERS + "test_negative_duration_is_counted_and_zero_is_kept",),
    42: (ALIGN + "test_missing_rank_is_named_and_the_rest_matches",
         READERS + "test_rank_that_nothing_names"),
    43: (HERE + "test_bytes_between_two_hosts_by_ring_and_by_tree",),
    44: (HERE + "test_bus_bandwidth_is_algorithm_bandwidth_times_a_stated_factor",),
    47: (LOGS + "test_forms_of_old_releases", LOGS + "test_two_jobs_are_refused",
         READERS + "test_numeric_choices_of_old_releases"),
    # E. RDMA
    48: ("verbs/test_gids.py::test_the_routable_v2_entry_is_taken",
         "verbs/test_gids.py::test_all_ipv6_takes_the_routable_one_and_says_so",
         "verbs/test_gids.py::test_nothing_fits_prints_the_table"),
    49: (ERRORS + "test_modify_qp_names_both_ends_and_states",),
    50: (ERRORS + "test_transport_retry_exceeded_is_reported_once_and_flushes_are_counted",),
    51: (ERRORS + "test_a_silent_peer_is_named",
         "runtime/test_failures.py::test_stopped_worker_is_blamed"),
    52: (ERRORS + "test_enomem_tells_the_memlock_limit",),
    53: ("verbs/test_data_path.py::test_messages_above_the_device_limit_are_split",
         "verbs/test_data_path.py::test_one_gib_and_four_bytes"),
    54: (ERRORS + "test_path_mtu_is_the_smaller_one_and_a_mismatch_is_noted",),
    56: (ERRORS + "test_receiver_that_is_late_loses_nothing",),
    60: (ERRORS + "test_unused_nics_are_named",),
}  # fmt: skip


@pytest.mark.parametrize("number", REPORTS)
def test_a_report_has_its_tests(number: int) -> None:
    assert REPORTS[number]
    for name in REPORTS[number]:
        file, _, function = name.partition("::")
        tree = ast.parse((TESTS / file).read_text())
        defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert function in defined, name


def step(folder: Path, n: int, kind: str, nbytes: int) -> genie.Trace:
    ranks = [Builder() for _ in range(n)]
    for rank in ranks:
        first = rank.node("COMM_COLL", kind, coll=kind, nbytes=nbytes)
        rank.node("COMP", "after", deps=[first], duration_ns=1000)
    return genie.load(write(folder, "t", ranks))


def test_a_control_dependency_alone_gates_and_stays_readable(tmp_path: Path) -> None:
    rank = Builder()
    first = rank.node("COMP", "a", duration_ns=10_000_000)
    rank.node("COMP", "b", ctrl_deps=[first], duration_ns=10_000_000)
    trace = genie.load(write(tmp_path, "t", [rank]))
    recording = genie.simulate(trace, genie.Cluster.local(1))
    assert recording.steps()["time_ns"].tolist() == [20_000_000]
    assert trace.ranks[0].parents(1).tolist() == [0]


@pytest.mark.parametrize("endpoints", [3, 5])
def test_four_files_and_other_numbers_of_endpoints(tmp_path: Path, endpoints: int) -> None:
    trace = step(tmp_path, 4, "all_reduce", 64)
    with pytest.raises(genie.GenieError) as caught:
        genie.replay(trace, f"local:{endpoints}")
    assert "4" in str(caught.value)
    assert str(endpoints) in str(caught.value)


def sent_between_hosts(plan: genie.Plan) -> list[int]:
    total = [0] * plan.n_hosts
    for row in plan.traffic():
        total[row["src_host"]] += int(row["nbytes"])
    return total


def test_wire_bytes_of_a_size_on_three_ranks(tmp_path: Path) -> None:
    # all_gather: a rank's part goes to n - 1 others; reduce_scatter: the whole input of S bytes
    # is cut into n parts, of which n - 1 travel.
    n, size = 3, 3 << 20
    simple = genie.Nccl(env={"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple"})
    for kind, expected in (
        ("all_gather", (n - 1) * size),
        ("reduce_scatter", (n - 1) * size // n),
        ("all_reduce", 2 * (n - 1) * size // n),
    ):
        trace = step(tmp_path / kind, n, kind, size)
        plan = genie.plan(trace, genie.Cluster.local(n), nccl=simple)
        assert sent_between_hosts(plan) == [expected] * n, kind


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
def test_sizes_of_nothing_and_of_less_than_a_byte_a_rank(tmp_path: Path, kind: str) -> None:
    nothing = genie.simulate(step(tmp_path / "a", 4, kind, 0), genie.Cluster.local(4))
    assert nothing.complete
    assert int(nothing.messages["nbytes"].sum()) == 0
    assert (nothing.ops["end_ns"] >= nothing.ops["ready_ns"]).all()
    if kind == "all_reduce":
        few = genie.simulate(step(tmp_path / "b", 4, kind, 3), genie.Cluster.local(4))
        assert few.complete
        assert len(np.unique(few.ops["rank"])) == 4


def test_bytes_between_two_hosts_by_ring_and_by_tree() -> None:
    cluster, count = genie.Cluster.preset("h100x8", hosts=2), 16 << 20
    total = {}
    for algorithm in ("Ring", "Tree"):
        nccl = genie.Nccl(env={"NCCL_ALGO": algorithm, "NCCL_PROTO": "Simple"})
        one = genie.schedule("all_reduce", count=count, cluster=cluster, nccl=nccl)
        messages = one.to_pandas()
        total[algorithm] = int(messages[messages["direction"] == 0]["nbytes"].sum())
    size, n = 4 * count, 16
    # Ring: on each of two edges between hosts 2 (n - 1) / n of the data; tree: once up, once down.
    assert total["Ring"] == 2 * (2 * (n - 1) * size // n)
    assert total["Tree"] == 2 * size


def test_bus_bandwidth_is_algorithm_bandwidth_times_a_stated_factor() -> None:
    from genie.replay.bandwidth import bus_factor
    from genie.replay.bench import BenchResult, BenchRow, render

    n = 8
    assert bus_factor("all_to_all", n) == (n - 1) / n
    assert bus_factor("all_reduce", n) == 2 * (n - 1) / n
    assert bus_factor("broadcast", n) == 1
    recording = genie.Recording({}, {})
    for kind, formula in (
        ("all_to_all", "busbw = algbw x (n-1)/n, size = that of all n parts"),
        ("all_reduce", "busbw = algbw x 2(n-1)/n"),
        ("broadcast", "busbw = algbw"),
    ):
        row = [BenchRow(8, 2, 1.0, 1.0, bus_factor(kind, n))]
        result = BenchResult(kind, "float32", 0, n, 1, 0, row, recording)
        assert f"# {formula}\n" in render(result)
        assert result.plot().get_title() == formula
