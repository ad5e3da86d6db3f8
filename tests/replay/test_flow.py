"""The flow level of simulate, and what a simulation keeps."""

from __future__ import annotations

import numpy as np
import pytest

import genie
from genie.commands.simulate import parse_ranks
from genie.errors import InputError
from genie.replay.flow import flow_program
from genie.trace import Builder, Coll, Kind, write


def trace_of(folder, ranks, nodes):
    """A trace whose ranks run `nodes(rank)`: (collective, bytes) or a compute time in ns."""

    def rank(r):
        b = Builder()
        last = ()
        for i, what in enumerate(nodes(r)):
            if isinstance(what, int):
                made = b.node(Kind.COMP, f"c{i}", duration_ns=what, deps=last)
            else:
                kind, nbytes = what
                made = b.node(
                    Kind.COMM_COLL, f"n{i}", coll=Coll[kind.upper()], nbytes=nbytes, deps=last
                )
            last = (made,)
        return b

    write(folder, "t", (rank(r) for r in range(ranks)))
    return genie.load(folder)


def plan_of(tmp_path, nodes, hosts=2):
    cluster = genie.Cluster.preset("h100x8", hosts=hosts)
    return genie.plan(trace_of(tmp_path, 8 * hosts, nodes), cluster)


@pytest.mark.parametrize(
    ("kind", "nbytes"),
    [("all_reduce", 1024), ("all_reduce", 8 << 20), ("all_gather", 1 << 20),
     ("reduce_scatter", 16 << 20), ("all_to_all", 1 << 20)],
)  # fmt: skip
def test_one_collective_takes_its_message_level_time(tmp_path, kind, nbytes):
    plan = plan_of(tmp_path, lambda rank: [(kind, nbytes)])
    exact = genie.simulate(plan)
    flow = genie.simulate(plan, level="flow")
    for recording in (exact, flow):
        assert recording.complete
    by = [np.sort(r.ops[["rank", "end_ns"]], order="rank") for r in (exact, flow)]
    assert by[0].tolist() == by[1].tolist()


def test_flows_carry_the_bytes_of_the_messages(tmp_path):
    plan = plan_of(tmp_path, lambda rank: [("all_to_all", 4 << 20), ("all_reduce", 3 << 20)])
    for template in plan.templates:
        flows = flow_program(template.program)
        sent = flows.ops["nbytes"][flows.ops["kind"] == 0].sum()
        assert sent == template.sends[:, 3].sum()
        assert len(flows.ops) == len(template.sends) + len(template.receives)


def test_a_late_rank_holds_all_back(tmp_path):
    late = 50_000_000
    plan = plan_of(tmp_path, lambda rank: [late if rank == 9 else 1, ("all_reduce", 8 << 20)])
    alone = plan_of(tmp_path / "alone", lambda rank: [1, ("all_reduce", 8 << 20)])
    ends = genie.simulate(plan, level="flow").ops["end_ns"].max()
    assert ends == late - 1 + genie.simulate(alone, level="flow").ops["end_ns"].max()


def test_the_flow_level_says_that_it_is_approximate(tmp_path):
    plan = plan_of(tmp_path, lambda rank: [("all_reduce", 1 << 20)])
    flow = genie.simulate(plan, level="flow")
    assert flow.manifest["level"] == "flow" and flow.manifest["approximate"] is True
    assert "approximate" in repr(flow)
    assert "approximate: " in flow.summary()
    assert len(flow.messages) == 0
    exact = genie.simulate(plan)
    assert exact.manifest["approximate"] is False and "approximate" not in exact.summary()
    assert exact.manifest["simulation"]["peak_rss_bytes"] > 1 << 20
    assert "peak memory of the process" in exact.summary()


def test_log_ranks_keeps_some_rows_and_all_step_times(tmp_path):
    plan = plan_of(tmp_path, lambda rank: [1000 * rank, ("all_reduce", 1 << 20), 500 * rank])
    whole = genie.simulate(plan, iterations=2, warmup=1)
    part = genie.simulate(plan, iterations=2, warmup=1, log_ranks=[3, 8])
    assert set(np.unique(part.ops["rank"])) == {3, 8}
    assert part.steps().tolist() == whole.steps().tolist()
    columns = ["rank", "node", "iteration", "start_ns", "end_ns"]
    keep = np.isin(whole.ops["rank"], [3, 8])
    want = np.sort(whole.ops[columns][keep], order=columns[:3])
    np.testing.assert_array_equal(np.sort(part.ops[columns], order=columns[:3]), want)
    assert np.isin(part.messages["rank"], [3, 8]).all() and len(part.messages)
    assert not part.manifest["warnings"]


def test_bad_levels_and_ranks_are_refused(tmp_path):
    plan = plan_of(tmp_path, lambda rank: [("all_reduce", 1024)])
    with pytest.raises(InputError, match="packet"):
        genie.simulate(plan, level="packet")
    with pytest.raises(InputError, match="rank 16 of 16"):
        genie.simulate(plan, log_ranks=[0, 16])


def test_ranks_are_named_as_ranges():
    assert parse_ranks("0-3,16,2") == [0, 1, 2, 3, 16]
    assert parse_ranks(None) is None
    with pytest.raises(InputError, match="--log-ranks '3-x'"):
        parse_ranks("3-x")


def test_an_uneven_all_to_all_takes_rounds_of_latency(tmp_path):
    # Every rank sends to the next one only; estimated, as each call is another one.
    ranks, nbytes = 16, 4 << 20

    def rank(r):
        b = Builder()
        out, into = np.zeros((2, ranks), np.int64)
        out[(r + 1) % ranks], into[(r - 1) % ranks] = nbytes, nbytes
        b.node(Kind.COMM_COLL, "a", coll=Coll.ALL_TO_ALL, nbytes=nbytes, splits=(out, into))
        return b

    write(tmp_path, "t", (rank(r) for r in range(ranks)))
    plan = genie.plan(genie.load(tmp_path), genie.Cluster.preset("h100x8", hosts=2))
    exact, flow = (genie.simulate(plan, level=level) for level in ("message", "flow"))
    assert exact.complete and flow.complete
    # Rank 8 receives from the other host: a flow is not faster than its NIC.
    end = flow.ops["end_ns"][flow.ops["rank"] == 8][0]
    assert nbytes / plan.cluster.nic_gbps < end < 2 * exact.ops["end_ns"].max()
