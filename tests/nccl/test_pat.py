"""PAT: every golden step (messages used and released, blocks accumulated and posted), and laws."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genie.replay.nccl.pat import aggregation, walk
from golden_data import load
from reference.golden_wire import KINDS, parts

COUNTS = {("2.30", "wire_pat"): 138, ("2.30", "wire_1gpu"): 134, ("2.27", "wire_pat"): 178}


@pytest.mark.parametrize(("version", "name"), COUNTS, ids=str)
def test_steps_equal_golden_events(version, name):
    compared = 0
    for entry in load(name, version)["entries"]:
        plan, size = entry["plan"], entry["nRanks"]
        if plan["algo"] != "PAT" or "events" not in entry:
            continue
        for channel, count, chunk_bytes in parts(plan):
            for rank in range(size):
                expected = [event[3:] for event in entry["events"][str(rank)][str(channel)]]
                ours = steps(entry, rank, count * plan["eltSize"], chunk_bytes)
                assert ours == expected, f"{version} {size} ranks {entry['coll']} rank {rank}"
                compared += 1
    assert compared >= COUNTS[version, name]


def steps(entry, rank, part_bytes, chunk_bytes):
    kind, size = KINDS[entry["coll"]], entry["nRanks"]
    found = walk(kind, size, *aggregation(size, part_bytes, chunk_bytes))
    toward = 1 if kind == "all_gather" else -1
    rows = []
    for begin in range(0, part_bytes, chunk_bytes):
        block = min(chunk_bytes, part_bytes - begin)
        for receive, release, send, blocks in zip(
            found.receive.tolist(),
            found.release.tolist(),
            found.send.tolist(),
            found.blocks.tolist(),
            strict=True,
        ):
            receives = [] if receive < 0 else [(rank + toward * (1 << receive)) % size]
            receives += [-2] if receive >= 0 and not release else []
            sends = [] if send < 0 else [(rank - toward * (1 << send)) % size]
            sends = [-2, *sends] if send >= 0 and not blocks else sends
            rows.append([receives, sends, block, blocks * block])
    return rows


@given(
    kind=st.sampled_from(["all_gather", "reduce_scatter"]),
    size=st.integers(2, 200),
    part_bytes=st.integers(1, 1 << 22),
    chunk_bytes=st.sampled_from([65536, 131072, 262144, 524288]),
    padded=st.booleans(),
)
def test_messages_posted_are_messages_released(kind, size, part_bytes, chunk_bytes, padded):
    """On each dimension a rank releases as many messages as its peers, doing the same, post."""
    width, group = aggregation(size, part_bytes, chunk_bytes)
    found = walk(kind, size, width, group, padded)
    assert 1 <= group <= width <= 8 * group
    for dimension in range(size.bit_length()):
        posted = (found.send == dimension) & (found.blocks > 0)
        released = (found.receive == dimension) & found.release
        assert posted.sum() == released.sum()
    # Every block but a rank's own travels once, and no message outgrows its group.
    assert found.blocks.max() <= group
    if kind == "all_gather":
        assert found.blocks.sum() == size - 1


def test_messages_of_absent_ranks():
    """2.26.2 left room for blocks of ranks that do not exist (spec versions 8)."""
    before = walk("reduce_scatter", 5, 2, 2, False)
    after = walk("reduce_scatter", 5, 2, 2, True)
    assert before.blocks.sum() == 4
    assert after.blocks.sum() > 4
