"""The engine executes every kind of program: order and bytes on each connection = the schedule."""

from __future__ import annotations

import numpy as np
import pytest

from genie.errors import UnsupportedCollectiveError
from genie.replay.cluster import Cluster
from genie.replay.connections import CONN
from genie.replay.nccl.env import Nccl
from genie.replay.nccl.schedule import schedule

engine_module = pytest.importorskip("genie._core.engine", reason="the engine is not built")
from genie._core.links import nic_links  # noqa: E402

CLUSTERS = [
    ("h100x1", 2),
    ("h100x1", 5),
    ("a100x1", 9),
    ("h100x8", 2),
    ("a100x8", 2),
    ("h100x8use4", 3),
]
KINDS = {
    "all_reduce": ["", "Tree", "Ring", "NVLSTree"],
    "all_gather": ["", "Ring", "PAT"],
    "reduce_scatter": ["", "Ring", "PAT"],
    "broadcast": [""],
    "reduce": [""],
    "all_to_all": [""],
    "gather": [""],
    "scatter": [""],
    "barrier": [""],
}


def run(made, repeats=2):
    """(status, {(channel, source, destination, index): sizes in posting order})."""
    cluster = made.cluster
    n = cluster.n_ranks
    engine = engine_module.Engine(clock="virtual")
    communicator = engine.add_communicator(np.arange(n, dtype=np.int32))
    expected = {}
    for rank in range(n):
        program = made.program(rank)
        number = engine.add_program(
            program.streams, program.ops, window=program.window, windows=program.windows
        )
        engine.add_rank(
            rank,
            np.full(repeats, 2, np.uint8),
            np.zeros(repeats, np.int64),
            np.full(repeats, number, np.int32),
            np.full(repeats, communicator, np.int32),
            np.concatenate([[0], np.arange(repeats)]).astype(np.int64),
            np.arange(repeats - 1, dtype=np.uint32),
            host=int(cluster.host_of[rank]),
        )
        for key, sizes in sends(made, program, rank).items():
            expected[key] = sizes * repeats
    table = np.zeros(len(expected), CONN)
    for row, (channel, source, destination, index) in zip(table, sorted(expected), strict=True):
        row["src"], row["dst"] = source, destination
        row["channel"], row["index"] = channel, index
        row["nic_src"], row["nic_dst"] = cluster.local_of[source], cluster.local_of[destination]
        row["proxy_src"] = source
    if len(table):
        engine.add_connections(table)
        engine.set_network(**nic_links(table, cluster.host_of, 50.0, 2000))
    status = engine.run()
    assert status == "done", engine.explain()
    return expected, posted(engine)


def sends(made, program, rank):
    """Sizes of the network sends of a program, by connection."""
    found = {}
    for stream in program.streams:
        ops = program.ops[stream["first"] : stream["first"] + stream["count"]]
        for op in ops[(ops["kind"] == 0) & ((ops["flags"] & 2) == 0)].tolist():
            key = (int(stream["channel"]), rank, op[0], op[6])
            found.setdefault(key, []).append(op[1])
    return found


def posted(engine):
    log, connections = engine.messages(), engine.connections()
    log = log[log["direction"] == 0]
    log = log[np.argsort(log["posted_ns"], kind="stable")]
    found = {}
    for row in log.tolist():
        where = connections[row[1]]
        key = tuple(int(where[name]) for name in ("channel", "src", "dst", "index"))
        found.setdefault(key, []).append(row[2])
    return found


@pytest.mark.parametrize(("preset", "hosts"), CLUSTERS, ids=lambda value: str(value))
def test_every_kind_of_program_runs(preset, hosts):
    cluster = Cluster.preset(preset, hosts=hosts)
    ran = 0
    for kind, algorithms in KINDS.items():
        for algorithm in algorithms:
            env = {"NCCL_ALGO": f"{kind.replace('_', '')}:{algorithm}"} if algorithm else {}
            for count in (1, 300_000):
                try:
                    made = schedule(kind, count=count, cluster=cluster, nccl=Nccl(env=env))
                except UnsupportedCollectiveError:
                    continue  # no NVLS or PAT on this machine
                expected, seen = run(made)
                assert seen == expected, made
                ran += 1
    assert ran >= 20
