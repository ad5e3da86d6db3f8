"""Plans of real traces: connections agree on both ends, bytes add up, shards are complete."""

import numpy as np
import pytest

import genie
from corpus_data import ROOT, corpus
from genie.replay.shard import Shard

DEMO = ROOT / "workloads" / "demo"


@pytest.fixture(scope="module")
def demo():
    return genie.plan(genie.load(DEMO), genie.Cluster.local(2, 4))


def test_traffic_is_the_sum_of_every_ranks_messages(demo):
    expected = 0
    for rank in demo.ranks:
        for node in np.flatnonzero(rank.template >= 0):
            template = demo.templates[rank.template[node]]
            schedule = next(s for k, _, s in demo.schedules if k == template.key)
            messages = schedule.messages(template.rank)
            expected += int(messages["nbytes"][messages["direction"] == 0].sum())
    assert demo.nbytes == expected > 0
    assert int(demo.traffic()["nbytes"].sum()) == expected


def test_demo_bytes_follow_the_closed_formula(demo):
    # Four data-parallel pairs reduce 4 buckets of 12 h^2 / 4 bfloat16: ring all_reduce over two
    # ranks moves 2 (n-1)/n = 1 buffer out of each rank.
    bucket = 12 * 1024 * 1024 * 2 // 4
    assert demo.nbytes == 8 * 4 * bucket


def test_every_connection_has_both_ends_on_different_hosts(demo):
    host = np.asarray(demo.cluster.host_of)
    table = demo.connections
    assert (host[table["src"]] != host[table["dst"]]).all()
    assert len(np.unique(table)) == len(table)


def test_shards_hold_each_rank_once_and_their_connections(demo):
    shards = [demo.shard(worker) for worker in range(2)]
    assert sorted(r.rank for s in shards for r in s.ranks) == list(range(8))
    for shard in shards:
        np.testing.assert_array_equal(demo.connections[shard.connection_ids], shard.connections)


def test_a_shard_survives_the_journey(demo):
    shard = demo.shard(1)
    back = Shard.from_bytes(shard.to_bytes())
    assert back.worker == 1
    for mine, theirs in zip(shard.ranks, back.ranks, strict=True):
        assert mine.names == theirs.names
        for name in ("cls", "delay_ns", "template", "communicator", "dep_indptr", "deps", "kind"):
            np.testing.assert_array_equal(getattr(mine, name), getattr(theirs, name))
    for mine, theirs in zip(shard.programs, back.programs, strict=True):
        np.testing.assert_array_equal(mine.ops, theirs.ops)
        np.testing.assert_array_equal(mine.streams, theirs.streams)


def test_equal_plans_have_equal_digests(demo):
    again = genie.plan(genie.load(DEMO), genie.Cluster.local(2, 4))
    assert again.digest == demo.digest
    other = genie.plan(
        genie.load(DEMO), genie.Cluster.local(2, 4), nccl=genie.Nccl(env={"NCCL_PROTO": "LL"})
    )
    assert other.digest != demo.digest


def test_strided_groups_use_one_search_result():
    plan = genie.plan(genie.load(corpus("et-t3d8")), genie.Cluster.preset("h100x8use4", hosts=2))
    shapes = {id(c.cluster) for c in plan.communicators}
    assert len(plan.communicators) == 12
    assert len(shapes) < 12


def test_simulated_time_is_exact_and_repeatable(demo):
    first, second = genie.simulate(demo), genie.simulate(demo)
    assert first.ops.tobytes() == second.ops.tobytes()
    assert first.messages.tobytes() == second.messages.tobytes()
    assert first.complete


def test_a_slower_nic_makes_the_step_slower(demo):
    base = genie.simulate(demo).steps()["time_ns"][0]
    network = genie.Network().degrade(host=1, nic=0, gbps=1.0)
    assert genie.simulate(demo, network=network).steps()["time_ns"][0] > base


def test_simulated_messages_are_the_schedules(demo):
    """Bytes and order of every connection equal the schedule's messages."""
    recording = genie.simulate(demo)
    rows = recording.messages
    sends = rows[rows["direction"] == 0]
    got = sends[np.lexsort((sends["posted_ns"], sends["connection"]))]
    per_connection = np.bincount(got["connection"], weights=got["nbytes"])
    np.testing.assert_array_equal(per_connection, demo.connection_traffic["nbytes"].astype(float))


def test_groups_inside_one_host_need_no_nic(tmp_path):
    """NVLS and NVLink groups run beside groups that cross hosts."""
    from genie.trace import Builder, Coll, Kind, write

    ranks = []
    for rank in range(16):
        made = Builder()
        inside = made.node(
            Kind.COMM_COLL, "tp", coll=Coll.ALL_REDUCE, nbytes=1 << 24, group=f"tp{rank // 8}"
        )
        made.node(Kind.COMM_COLL, "dp", deps=[inside], coll=Coll.ALL_GATHER, nbytes=1 << 20)
        ranks.append(made)
    groups = {f"tp{i}": tuple(range(8 * i, 8 * i + 8)) for i in range(2)}
    write(tmp_path, "x", ranks, groups=groups)
    plan = genie.plan(genie.load(tmp_path), genie.Cluster.preset("h100x8", hosts=2))
    assert plan.communicators[0].name == "tp0"
    assert set(np.unique(plan.connections["communicator"])) == {
        c.index for c in plan.communicators if c.name == "world"
    }
    assert genie.simulate(plan).complete
