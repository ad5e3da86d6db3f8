"""Clusters made of golden's own fields, for tests of the tuner alone."""

from __future__ import annotations

from types import SimpleNamespace

import golden_data

from genie.replay.nccl.nvls import nvls_limits

VENDOR = {1: "intel", 2: "amd"}
#: Path codes of 2.21 (no C2C, no P2C) -> 2.30's.
OLD_PATH = {0: 0, 1: 1, 2: 2, 3: 4, 4: 5, 5: 7, 6: 8, 7: 9}
BUFFERS = {"ll": 524288, "ll128": 4915200, "simple": 4194304}


class FakeCluster(SimpleNamespace):
    __hash__ = object.__hash__


def path(code, version):
    return OLD_PATH[code] if version == "2.21" else code


def graph(data, version):
    return SimpleNamespace(
        pattern=data["pattern"], n_channels=data["nChannels"], bw_intra=data["bwIntra"],
        bw_inter=data["bwInter"], latency_inter=data["latencyInter"],
        type_intra=path(data["typeIntra"], version), type_inter=path(data["typeInter"], version),
        cross_nic=data["crossNic"], same_channels=data["sameChannels"],
    )


def preset(machine, hosts, version="2.30", channels=None, **changes):
    info = golden_data.load("presets", version)["machines"][machine]
    entry = next((g for g in info["graphs"] if hosts in g["nNodes"]), info["graphs"][-1])
    graphs = {name: graph(data, version) for name, data in entry["graphs"].items()}
    local = info["gpusPerNode"]
    heads = graphs["nvls"].n_channels if "nvls" in graphs else 0
    from genie.replay.nccl.versions import parse_version
    limits = nvls_limits(parse_version(version), hosts, info["sm"], info["nicMbps"] / 8000,
                         graphs["nvls"].type_inter if heads else 0, local)
    cluster = FakeCluster(
        name=machine, n_ranks=hosts * local, n_hosts=hosts, sm=info["sm"],
        cpu_vendor=VENDOR[info["cpuVendor"]], graphs=graphs,
        coll_channels=channels or graphs["ring"].n_channels * 2,
        nvls_channels=limits.channels if heads else 0,
        nic_gbps=info["nicMbps"] / 8000,
        min_ranks_per_host=local, max_ranks_per_host=local, buffer_bytes=dict(BUFFERS),
    )
    for name, value in changes.items():
        setattr(cluster, name, value)
    return cluster
