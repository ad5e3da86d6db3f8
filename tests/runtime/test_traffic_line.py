"""The report of a run says what was sent beside what was planned (bug report 13)."""

from __future__ import annotations

from pathlib import Path

import genie
from genie.trace import Builder, write


def planned(folder: Path) -> genie.Plan:
    # Nothing but comm_type and comm_size: no is_cpu_op, no involved_dim.
    ranks = [Builder(), Builder()]
    for rank in ranks:
        rank.node("COMM_COLL", "ar", coll="all_reduce", nbytes=1 << 20)
    return genie.plan(genie.load(write(folder, "t", ranks)), genie.Cluster.local(2))


def test_everything_sent(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    text = genie.simulate(plan, iterations=2, warmup=1).summary()
    assert f"between hosts: all {3 * plan.messages} messages sent, " in text
    assert ", as planned" in text


def test_a_link_that_fails_leaves_some_behind(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    broken = genie.Network(nic_gbps=1.0).degrade(0, 0, 0.0, at_ns=600_000)
    rec = genie.simulate(plan, network=broken)
    assert not rec.complete
    sent = rec.messages[rec.messages["direction"] == 0]
    done = int((sent["completed_ns"] >= 0).sum())
    assert done < len(sent)
    text = rec.summary()
    assert f"{len(sent)} of {plan.messages} planned messages posted" in text
    assert f"; {done} completed" in text
