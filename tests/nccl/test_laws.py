"""Laws of every schedule: nothing lost, nothing stuck, every rank ends with all its data."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genie.errors import ScheduleError
from genie.replay.cluster import Cluster
from genie.replay.nccl.env import Nccl
from genie.replay.nccl.program import OP, Program
from genie.replay.nccl.program_cache import PROGRAMS
from genie.replay.nccl.schedule import schedule
from genie.replay.nccl.trees import double_binary_tree
from reference import plain, plain_pat
from reference.program_executor import Deadlock, run_programs

RING_KINDS = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"]


@st.composite
def rings(draw):
    n = draw(st.integers(2, 9))
    order = [0, *draw(st.permutations(range(1, n)))]
    chunk = draw(st.integers(1, 40)) * 4
    return order, draw(st.integers(1, chunk * n * 3)), chunk


@given(kind=st.sampled_from(RING_KINDS), ring=rings(), root=st.integers(0, 8))
@settings(deadline=None)
def test_ring_completes_everybody_s_data(kind, ring, root):
    """The reference: contributions of all ranks arrive where they belong."""
    order, count, chunk = ring
    n, root = len(order), root % len(order)
    calls = [plain.ring(kind, order, r, count, chunk, 4, root) for r in range(n)]
    kept = plain.run(calls, window=2)
    everybody = frozenset(range(n))
    loops = len(plain.chunks(count, chunk))
    for rank in range(n):
        if kind == "all_reduce":
            assert set(kept[rank].values()) == {everybody}
            assert sum(call.elements for call in calls[rank] if call.keep) == count
        elif kind == "all_gather":
            assert kept[rank] == {(i, r): {r} for i in range(loops) for r in range(n)}
        elif kind == "reduce_scatter":
            assert kept[rank] == {(i, rank): everybody for i in range(loops)}
        elif kind == "broadcast":
            assert kept[rank] == {(i, root): {root} for i in range(loops)}
        elif rank == root:
            assert kept[rank] == {(i, root): everybody for i in range(loops)}


@given(n=st.integers(2, 40), second=st.booleans(), count=st.integers(1, 300))
@settings(deadline=None)
def test_tree_completes_everybody_s_data(n, second, count):
    table = np.asarray(double_binary_tree(n))
    column = 4 * second
    up = [int(row[column]) for row in table]
    down = [[int(x) for x in row[column + 1 : column + 3] if x >= 0] for row in table]
    calls = [plain.tree(up, down, rank, count, 64, "simple") for rank in range(n)]
    kept = plain.run(calls, window=2)
    for rank in range(n):
        assert list(kept[rank].values()) == [frozenset(range(n))] * len(plain.chunks(count, 64))


@given(
    n=st.integers(2, 70),
    part_bytes=st.sampled_from([1, 100, 5000, 70000, 300000, 1 << 21]),
    chunk_bytes=st.sampled_from([65536, 524288]),
)
@settings(deadline=None, max_examples=40)
def test_pat_completes_everybody_s_data(n, part_bytes, chunk_bytes):
    gathered = plain_pat.run("all_gather", n, part_bytes, chunk_bytes)
    for rank, blocks in enumerate(gathered):
        assert blocks == {block: (rank + block) % n for block in range(n)}
    scattered = plain_pat.run("reduce_scatter", n, part_bytes, chunk_bytes)
    assert scattered == [set(range(n))] * n


#: (preset, hosts) small enough to run all programs in plain Python.
CLUSTERS = [
    ("h100x1", 2),
    ("h100x1", 5),
    ("a100x1", 9),
    ("h100x8", 2),
    ("a100x8", 2),
    ("h100x8use2", 3),
    ("h100x8use4", 2),
    ("h100x8_nonvls", 2),
]
SETTINGS = [
    {},
    {"NCCL_ALGO": "allreduce:Tree"},
    {"NCCL_ALGO": "allreduce:Ring", "NCCL_PROTO": "Simple"},
    {"NCCL_ALGO": "allgather:Ring;reducescatter:Ring", "NCCL_PROTO": "LL"},
    {"NCCL_ALGO": "allreduce:Ring", "NCCL_PROTO": "LL128"},
    {"NCCL_BUFFSIZE": "1048576"},
]
KINDS = [*RING_KINDS, "all_to_all", "gather", "scatter", "barrier", "reduce_scatter_block"]


@given(
    where=st.sampled_from(CLUSTERS),
    kind=st.sampled_from(KINDS),
    count=st.sampled_from([0, 1, 3, 1000, 40000, 262144, 3000001]),
    dtype=st.sampled_from(["float32", "int8", "float64", "bfloat16"]),
    env=st.sampled_from(SETTINGS),
    version=st.sampled_from(["2.30", "2.27", "2.21"]),
    root=st.integers(0, 1),
)
@settings(deadline=None, max_examples=60)
def test_programs_end_and_every_byte_arrives(where, kind, count, dtype, env, version, root):
    """All ranks' programs run to the end; what arrives is what `messages` lists."""
    if version == "2.21" and ":" in "".join(env.values()):
        env = {}  # per-function lists came with 2.24.3
    cluster = Cluster.preset(where[0], hosts=where[1])
    nccl = Nccl(version=version, env=env)
    made = schedule(kind, count=count, dtype=dtype, cluster=cluster, nccl=nccl, root=root)
    n = cluster.n_ranks
    programs = [made.program(rank) for rank in range(n)]
    received = run_programs(programs)
    made.check()
    listed = {}
    for rank in range(n):
        table = made.messages(rank, intra=True)
        remote = cluster.host_of[table["peer"]] != cluster.host_of[rank]
        assert made.messages(rank).tobytes() == table[remote].tobytes()
        for direction in (0, 1):
            rows = table[table["direction"] == direction]
            for channel in np.unique(rows["channel"]).tolist():
                here = rows[rows["channel"] == channel]
                for peer in np.unique(here["peer"]).tolist():
                    sizes = here["nbytes"][here["peer"] == peer].tolist()
                    source, destination = (rank, peer) if direction == 0 else (peer, rank)
                    listed[direction, channel, source, destination] = sorted(sizes)
    arrived = {}
    for (channel, source, destination, _), messages in received.items():
        key = (channel, source, destination)
        arrived[key] = sorted(arrived.get(key, []) + [nbytes for nbytes, _ in messages])
    for direction in (0, 1):
        assert {key[1:]: v for key, v in listed.items() if key[0] == direction} == arrived
    totals(made, kind, count, dtype, programs)


SIZE = {"float32": 4, "int8": 1, "float64": 8, "bfloat16": 2}


def totals(made, kind, count, dtype, programs):
    """Bytes sent by all ranks together = the closed formula (Simple, where data is not padded)."""
    n = made.cluster.n_ranks
    total = sum(
        int(p.ops["nbytes"][(p.ops["kind"] == 0) & (p.ops["conn"] < 2)].sum()) for p in programs
    )
    data = (1 if kind == "barrier" else count) * SIZE[dtype]
    if kind == "all_to_all":
        if made.cluster.n_hosts == n:
            assert total == n * (n - 1) * data
        return
    if kind in ("gather", "scatter"):
        if made.cluster.n_hosts == n:
            assert total == (n - 1) * data
        return
    if made.choice is None or made.choice.protocol != "simple":
        return
    if made.choice.algorithm == "ring":
        times = {"all_reduce": 2, "barrier": 2, "broadcast": 1, "reduce": 1}.get(kind, n)
        assert total == times * (n - 1) * data
    elif made.choice.algorithm == "tree":
        assert total == 2 * (n - 1) * data
    elif made.choice.algorithm == "pat" and kind == "all_gather":
        assert total == n * (n - 1) * data


def test_zero_byte_messages_are_kept():
    cluster = Cluster.preset("h100x1", hosts=4)
    ring = Nccl(env={"NCCL_ALGO": "allreduce:Ring", "NCCL_PROTO": "Simple"})
    made = schedule("all_reduce", count=1, cluster=cluster, nccl=ring)
    table = made.messages(1)
    # One element: 2 x 3 calls of two slices, of which a single slice on each lap has data.
    assert len(table) == 24
    assert sorted(table["nbytes"][table["direction"] == 0].tolist()) == [0] * 10 + [4, 4]
    exchange = schedule("all_to_all", count=0, cluster=cluster)
    table = exchange.messages(0)
    assert table["nbytes"].tolist() == [0] * 6
    assert sorted(table["peer"].tolist()) == [1, 1, 2, 2, 3, 3]
    assert len(schedule("all_reduce", count=0, cluster=cluster).messages(0)) == 0


def test_the_laws_can_fail():
    """A lost message, a wrong size and a cyclic wait are seen."""
    cluster = Cluster.preset("h100x1", hosts=3)
    made = schedule("all_gather", count=1000, cluster=cluster)
    programs = [made.program(rank) for rank in range(3)]
    run_programs(programs)
    for change in ("drop", "resize", "swap"):
        broken = list(programs)
        broken[1] = _broken(programs[1], change)
        with pytest.raises(Deadlock):
            run_programs(broken)
    PROGRAMS.clear()
    made._make_program = lambda rank: _broken(programs[rank], "resize") if rank else programs[0]
    with pytest.raises(ScheduleError, match="expects"):
        made.check()
    PROGRAMS.clear()


def _broken(program, change):
    streams, ops = program.streams.copy(), program.ops.copy()
    if change == "drop":
        ops = ops[1:]
        streams["count"][0] -= 1
    elif change == "resize":
        ops["nbytes"][ops["kind"] == 0] += 16
    else:
        ops["kind"] = 1 - ops["kind"]
    assert ops.dtype == OP
    return Program(streams, ops)
