"""NVLS channel counts and chunk limits (spec/nccl-wire-schedule.md section 1.6)."""

from __future__ import annotations

from typing import NamedTuple

from genie.replay.nccl.versions import Switch, Version

#: Path types by 2.30's codes, which GENIE uses whatever the release.
PATH_NVL, PATH_NVB, PATH_PXB, PATH_P2C, PATH_PXN = 1, 2, 5, 6, 7

#: Channels of Blackwell on one host, and on several.
SM100_ONE_HOST = Switch(
    "NVLS channels, Blackwell, one host", {"2.20.5": 16, "2.25.1": 32, "2.27.3": 24}
)
SM100_HOSTS = Switch("NVLS channels, Blackwell, several hosts", {"2.20.5": 16, "2.25.1": 32})
#: Whether NIC speed and ranks per host decide channels and chunks of Blackwell.
SM100_TABLE = Switch("NVLS limits by NIC, Blackwell", {"2.20.5": False, "2.30.3": True})
#: Chunk limit before the tree's own.
CHUNK = Switch("NVLS chunk bytes", {"2.20.5": 524288, "2.21.5": 131072})


class NvlsLimits(NamedTuple):
    """Channels, bytes of a head's chunk, and the most a tree's chunk may have."""

    channels: int
    chunk_bytes: int
    tree_max_chunk_bytes: int


def nvls_limits(
    version: Version,
    n_hosts: int,
    sm: int,
    nic_gbps: float,
    type_inter: int,
    min_ranks_per_host: int,
) -> NvlsLimits:
    """Return the limits before any environment variable is applied.

    Args:
        version: the release.
        n_hosts: hosts of the communicator.
        sm: compute capability, 90 = Hopper.
        nic_gbps: GB/s of the slowest NIC.
        type_inter: path type between GPU and NIC of the NVLS graph, in 2.30's codes.
        min_ranks_per_host: fewest ranks on one host.
    """
    chunk = CHUNK.at(version)
    tree = 65536 if n_hosts >= 4 else chunk
    if sm < 100:
        return NvlsLimits(16, chunk, tree)
    if n_hosts == 1:
        return NvlsLimits(SM100_ONE_HOST.at(version), chunk, tree)
    channels = SM100_HOSTS.at(version)
    if not SM100_TABLE.at(version):
        return NvlsLimits(channels, chunk, tree)
    ranks, near = min_ranks_per_host, type_inter <= PATH_PXB
    if n_hosts == 2 and nic_gbps >= 48:
        tree = 131072
        if ranks <= 4:
            chunk = tree = 262144
        elif ranks >= 16 or (ranks <= 8 and near and nic_gbps < 96):
            tree = 65536
    elif nic_gbps >= 96:
        if ranks <= 8:
            channels, chunk, tree = 24, 262144, 262144
        else:
            tree = 65536 if ranks >= 32 else 131072
    elif nic_gbps >= 48:
        channels, tree = 24, 65536 if near else 131072
    return NvlsLimits(channels, chunk, tree)
