"""Golden wire files: the messages of every rank, from `schedule()` down to bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from genie.replay.nccl import golden
from genie.replay.nccl.schedule import schedule
from genie.replay.nccl.selfcheck.common import DTYPE, KIND, entry_cluster, entry_name
from genie.replay.nccl.selfcheck.plans import same_plan, settings
from genie.replay.nccl.selfcheck.tally import Tally

Streams = dict[tuple[int, int, int], list[int]]


def expand(runs: list[list[Any]]) -> list[int]:
    """Return a run-length list [[repeat, [bytes, ...]], ...] as plain sizes."""
    return [size for repeat, sizes in runs for _ in range(repeat) for size in sizes]


def golden_sends(entry: dict[str, Any], rank: int) -> Streams:
    """Return what a rank sends over the network by (channel, group, peer)."""
    found: Streams = {}
    for channel, flows in entry["sends"].get(str(rank), {}).items():
        for name, runs in flows.items():
            group, peer = name[1:].split(">")
            found[int(channel), int(group), int(peer)] = expand(runs)
    return found


def sent(messages: npt.NDArray[np.void]) -> Streams:
    """Return the sizes of the sends in `messages` by (channel, group, peer), in order."""
    rows = messages[messages["direction"] == 0]
    found: Streams = {}
    keys = zip(rows["channel"].tolist(), rows["group"].tolist(), rows["peer"].tolist(), strict=True)
    for key, nbytes in zip(keys, rows["nbytes"].tolist(), strict=True):
        found.setdefault(key, []).append(nbytes)
    return found


def check_wire(name: str, version: str) -> Tally:
    """Compare plan and messages: one comparison a plan, one a rank and stream."""
    tally = Tally(name, version)
    for entry in golden.load(name, version)["entries"]:
        made = schedule(
            KIND[entry["coll"]],
            count=entry["count"],
            dtype=DTYPE[entry["eltSize"]],
            cluster=entry_cluster(entry),
            nccl=settings(version, entry.get("env")),
            root=entry["root"],
        )
        where = (entry_name(entry), entry["coll"], entry["count"], f"root {entry['root']}")
        same_plan(tally, entry["plan"], made, entry["coll"], *where)
        for rank in range(entry["nRanks"]):
            want = golden_sends(entry, rank)
            got = sent(made.messages(rank))
            for key in want.keys() | got.keys():
                tally.same(got.get(key), want.get(key), *where, "rank", rank, key)
    return tally
