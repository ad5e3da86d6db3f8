"""The table of faults: what the user is told, how soon every worker is gone, what is kept.

Each row names the test that makes the fault and asserts what the row says. Seconds count from the
fault (from the end of `--timeout` without progress, where that is what finds it).
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

RUNTIME = Path(__file__).parent

#: Fault, what is told, seconds until all workers are gone, what data remains, test.
FAULTS = [
    ("worker killed (SIGKILL)", "worker, host, ranks, 'was killed by SIGKILL'", "5",
     "what the others recorded", "test_failures.py::test_killed_worker"),
    ("worker on another host killed", "the same, by mpirun and by ssh", "5",
     "what the others recorded", "test_launchers.py::test_killed_worker_on_another_host"),
    ("worker crashes (SIGSEGV)", "worker, signal, its last words", "5",
     "what the others recorded", "test_failures.py::test_crash_in_a_worker_is_one_error"),
    ("worker hangs", "rank that is waited for, by whom, in which collective", "timeout + 5",
     "what the others recorded", "test_failures.py::test_stopped_worker_is_blamed"),
    ("host cut off (link down)", "the same, and which worker nothing came from", "timeout + 5",
     "what the others recorded", "test_launchers.py::test_host_cut_off"),
    ("link at 1 % of its rate", "nothing: it is what is measured", "-",
     "everything", "test_launchers.py::test_slow_link_is_measured_not_fatal"),
    ("5 % loss", "retransmits in `counters`", "-",
     "everything", "test_launchers.py::test_five_per_cent_loss_is_measured_not_fatal"),
    ("a rank's trace lacks a collective", "rank, collective, before a worker is started", "-",
     "nothing was run",
     "test_failures.py::test_rank_that_lacks_a_collective_is_found_before_anything_runs"),
    ("slow disk", "nothing: the end waits for it, the run does not", "-",
     "everything", "test_failures.py::test_slow_disk"),
    ("full disk", "'was not written: No space left on device', and the summary", "-",
     "nothing half-written", "test_failures.py::test_full_disk"),
    ("disk of a host refuses its recording", "a warning with the reason", "-",
     "everything: it comes home", "test_remote.py::test_a_disk_that_refuses_sends_them_home"),
    ("memory limit", "worker, what could not be had", "5",
     "nothing was run", "test_failures.py::test_memory_limit"),
    ("clock steps", "a warning: worker, and how good times are", "-",
     "everything", "test_clock_shim.py::test_step_of_a_clock_is_reported"),
    ("port taken", "address, port, 'Address already in use'", "-",
     "nothing was run", "test_launchers.py::test_port_that_is_taken_is_named"),
    ("half-open and strange connections", "counts in `rejected_peers`", "-",
     "everything", "test_launchers.py::test_half_open_strangers_do_not_stop_a_run"),
    ("Ctrl-C, SIGTERM", "'interrupted by Ctrl-C'", "5",
     "everything so far", "test_failures.py::test_interrupt"),
    ("second Ctrl-C", "the same, at once", "3",
     "what had arrived", "test_failures.py::test_second_interrupt_ends_at_once"),
    ("the command killed (SIGKILL)", "nothing", "5",
     "nothing", "test_failures.py::test_no_orphans_when_the_command_is_killed"),
    ("a worker that never comes", "which endpoints are missing", "timeout + 5",
     "nothing was run", "test_failures.py::test_worker_that_never_calls_is_named"),
    ("other version on a host", "both versions", "5",
     "nothing was run", "test_failures.py::test_version_mismatch"),
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda row: row[0])
def test_every_fault_has_its_test(fault):
    file, _, name = fault[4].partition("::")
    found = {
        node.name: ast.get_source_segment((RUNTIME / file).read_text(), node)
        for node in ast.parse((RUNTIME / file).read_text()).body
        if isinstance(node, ast.FunctionDef)
    }
    text = found.get(name) or ""
    assert "assert " in text or "pytest.raises" in text
