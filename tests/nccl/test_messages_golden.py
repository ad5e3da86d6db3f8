"""Every golden wire entry: the messages of every rank, from `schedule()` down to bytes."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from genie.replay.nccl.schedule import schedule
from golden_data import VERSIONS, exists, load
from reference.golden_wire import (
    DTYPES,
    KINDS,
    cluster_of,
    golden_sends,
    nccl_of,
    our_streams,
    parts,
)

#: (entries, message sequences) in the packaged files; a drop means the test went blind.
COUNTS = {
    ("2.30", "wire_1gpu"): (554, 8178),
    ("2.30", "wire_1gpu_a100"): (172, 1304),
    ("2.30", "wire_multi"): (63, 1954),
    ("2.30", "wire_multi_small"): (405, 6000),
    ("2.30", "wire_pat"): (89, 9452),
    ("2.30", "sub/sub_wire"): (440, 11876),
    ("2.27", "wire_1gpu"): (554, 8488),
    ("2.27", "wire_1gpu_a100"): (172, 1304),
    ("2.27", "wire_multi"): (63, 2046),
    ("2.27", "wire_multi_small"): (392, 3962),
    ("2.27", "wire_pat"): (89, 9572),
    ("2.21", "wire_1gpu"): (505, 6151),
    ("2.21", "wire_1gpu_a100"): (158, 1024),
    ("2.21", "wire_multi"): (63, 2074),
    ("2.21", "wire_multi_small"): (392, 5028),
}


def made(entry, version):
    return schedule(
        KINDS[entry["coll"]],
        count=entry["count"],
        dtype=DTYPES[entry["eltSize"]],
        cluster=cluster_of(entry),
        nccl=nccl_of(entry, version),
        root=entry["root"],
    )


def label(entry, version):
    where = entry.get("case", f"{entry['machine']}:{entry['nNodes']}")
    return (
        f"NCCL {version} {where} {entry['coll']} {entry['count']} x {entry['eltSize']} B "
        f"root {entry['root']} {entry['env']}"
    )


@pytest.mark.parametrize(("version", "name"), COUNTS, ids=lambda value: str(value))
def test_messages_equal_golden(version, name):
    entries = load(name, version)["entries"]
    sequences = 0
    for entry in entries:
        ours, plan = made(entry, version), entry["plan"]
        where = label(entry, version)
        assert ours.choice.algorithm == plan["algo"].lower(), where
        assert ours.choice.protocol == plan["proto"].lower(), where
        assert ours.choice.element_size == plan["eltSize"], where
        assert ours.parts.tolist() == list(parts(plan)), where
        for rank in range(entry["nRanks"]):
            messages = ours.messages(rank)
            expected = golden_sends(entry, rank)
            sequences += len(expected)
            assert our_streams(messages) == expected, f"{where}: rank {rank}"
    entries_seen, sequences_seen = COUNTS[version, name]
    assert len(entries) >= entries_seen
    assert sequences >= sequences_seen


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ["wire_1gpu", "wire_multi_small", "wire_pat", "sub/sub_wire"])
def test_receives_mirror_the_sender(version, name):
    """Receives have the sender's sizes, group, channel and FIFO steps."""
    if not exists(name, version):
        pytest.skip(f"NCCL {version} has no {name}")
    flows = 0
    for entry in load(name, version)["entries"][::7]:
        ours = made(entry, version)
        tables = [ours.messages(rank) for rank in range(entry["nRanks"])]
        sent = {}
        for rank, table in enumerate(tables):
            for key, rows in by_flow(table[table["direction"] == 0], rank, 0):
                sent[key] = rows
        for rank, table in enumerate(tables):
            for key, rows in by_flow(table[table["direction"] == 1], rank, 1):
                assert sent.pop(key) == rows, f"{label(entry, version)}: {key}"
                flows += 1
        assert not sent, label(entry, version)
    assert flows > 300


def by_flow(rows, rank, direction):
    found = {}
    for row in rows.tolist():
        channel, group, peer, _, nbytes, step = row[:6]
        key = (channel, group, *((rank, peer) if direction == 0 else (peer, rank)))
        found.setdefault(key, []).append((nbytes, step))
    return found.items()


@functools.cache
def _events(version, name):
    return [entry for entry in load(name, version)["entries"] if "events" in entry]


EVENT_COUNTS = {
    ("2.30", "wire_1gpu"): 245,
    ("2.30", "wire_1gpu_a100"): 15,
    ("2.30", "wire_multi"): 12,
    ("2.30", "wire_multi_small"): 146,
    ("2.27", "wire_1gpu"): 245,
    ("2.27", "wire_1gpu_a100"): 15,
    ("2.27", "wire_multi"): 12,
    ("2.27", "wire_multi_small"): 142,
    ("2.21", "wire_1gpu"): 224,
    ("2.21", "wire_multi_small"): 142,
}


@pytest.mark.parametrize(("version", "name"), EVENT_COUNTS, ids=lambda value: str(value))
def test_program_order_equals_golden_events(version, name):
    """Receives and sends of every call in program order, peers on the same host included."""
    compared = 0
    entries = _events(version, name)
    for entry in entries:
        if entry["plan"]["algo"] == "PAT":
            continue  # test_pat.py compares those, with their peeks
        ours = made(entry, version)
        n = entry["nRanks"]
        for rank in range(n):
            for channel, events in entry["events"].get(str(rank), {}).items():
                expected = golden_ops(events, n)
                assert program_ops(ours.program(rank), int(channel)) == expected, (
                    f"{label(entry, version)}: rank {rank} channel {channel}"
                )
                compared += 1
    assert len(entries) >= EVENT_COUNTS[version, name]
    assert compared > 20


def golden_ops(events, n_ranks):
    """Per group the (direction, peer, wire bytes) in order; NVSwitch peers are left out."""
    groups = {}
    for _, group, _, receives, sends, _, wire in events:
        ops = groups.setdefault(group, [])
        ops += [(1, peer, wire) for peer in receives if peer < n_ranks]
        ops += [(0, peer, wire) for peer in sends if peer < n_ranks]
    return {group: ops for group, ops in groups.items() if ops}


def program_ops(program, channel):
    groups = {}
    for stream in program.streams[program.streams["channel"] == channel]:
        ops = program.ops[stream["first"] : stream["first"] + stream["count"]]
        nvls = stream["group"] in (4, 6) or _switch_only(program, channel)
        rows = [
            (int(op["kind"]), int(op["peer"]), int(op["nbytes"]))
            for op in ops
            if not (nvls and op["flags"] & 2)
        ]
        if rows:
            groups[int(stream["group"])] = rows
    return groups


def _switch_only(program, channel):
    """Whether this is an NVLS tree, whose NVSwitch hops golden gives other peer numbers."""
    return bool(np.isin(program.streams["group"], (4, 6)).any())
