"""What the guest's one boot is to do, as files in a folder."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import genie
from corpus_data import CORPUS
from genie.trace import Builder, Coll, Kind, write

from .boot import ROOT
from .combinations import choices_of, combinations, write_trace

ONE_GPU = {
    "all_reduce": ("Tree", "Ring"),
    "all_gather": ("Ring", "PAT"),
    "reduce_scatter": ("Ring", "PAT"),
    "broadcast": ("Ring",),
    "reduce": ("Ring",),
}
PAIR = ONE_GPU
EIGHT_GPUS = {
    "all_reduce": ("Tree", "Ring", "NVLSTree"),
    "all_gather": ("Ring",),
    "reduce_scatter": ("Ring",),
    "broadcast": ("Ring",),
    "reduce": ("Ring",),
}
#: Captured on the bridge: name → machine, hosts, algorithms.
CASES = {
    "pair2": ("local", 2, PAIR),
    "hosts2": ("h100x8", 2, EIGHT_GPUS),
    "hosts4": ("local", 4, ONE_GPU),
    "hosts8": ("local", 8, ONE_GPU),
}


def cluster_of(name: str, hosts: int) -> genie.Cluster:
    """The cluster of a case."""
    if name == "local":
        return genie.Cluster.local(hosts, 1)
    return genie.Cluster.preset(name, hosts=hosts)


def wire_folder(folder: Path) -> Path:
    """Write the traces of CASES (those that GENIE_WIRE_CASES names) and what to do with them."""
    listed = []
    for name in os.environ.get("GENIE_WIRE_CASES", ",".join(CASES)).split(","):
        machine, hosts, algorithms = CASES[name]
        made = combinations(algorithms)
        ranks = cluster_of(machine, hosts).n_ranks
        write_trace(folder / name, made, ranks)
        choices = choices_of(made, ranks)
        listed.append(
            {"name": name, "cluster": machine, "hosts": hosts, "choices": choices, "env": {}}
        )
    (folder / "runs.json").write_text(json.dumps(listed))
    return folder


def device_folder(folder: Path, long: bool = True) -> Path:
    """Write the traces of device_runs.py; all of them, or those that are quick when emulated."""
    made = combinations(PAIR)
    write_trace(folder / "pair", made, 2)
    listed: list[dict[str, Any]] = [
        {"name": "demo", "path": str(ROOT / "workloads/demo"), "ranks": 8},
    ]
    if long:
        listed.append({"name": "pair", "path": "pair", "ranks": 2, "choices": choices_of(made, 2)})
    source = CORPUS / "et-gent-all_reduce-2p26"
    if long and source.is_dir():
        shutil.copytree(source, folder / "2p26")
        ranks = genie.load(folder / "2p26").world_size
        listed.append({"name": "all_reduce-2p26", "path": "2p26", "ranks": ranks})
    ranks = []
    for _ in range(2):
        rank, last = Builder(), []
        for number in range(2000):
            last = [
                rank.node(
                    Kind.COMM_COLL, f"step {number}", deps=last, coll=Coll.ALL_REDUCE,
                    nbytes=1 << 20, dtype="float32",
                )
            ]  # fmt: skip
        ranks.append(rank)
    write(folder / "long", "t", ranks)
    (folder / "device.json").write_text(json.dumps(listed))
    return folder
