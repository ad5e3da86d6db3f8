"""How many channels: collectives, NVLS and send/recv (spec nccl-wire-schedule 1.4, 1.6, 1.9).

What changed between releases (nccl-versions sections 3 and 4) stands beside each rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from genie.replay.clusters.graph import Graph
from genie.replay.clusters.settings import Settings

__all__ = ["CollChannels", "NvlsCounts", "P2pCounts", "coll_channels", "nvls_counts", "p2p_counts"]

_PXB = 5


@dataclass(frozen=True)
class CollChannels:
    """Channel counts of collectives.

    Attributes:
        search: Search channels that the rings and trees start from.
        kept: Channels after doubling and NCCL_MAX_NCHANNELS; more are copies of these.
        coll: Channels that ring and tree collectives use.
        total: Channels that exist (more than `coll` only in 2.20.3 to 2.22.2).
    """

    search: int
    kept: int
    coll: int
    total: int


def coll_channels(
    ring: Graph, tree: Graph, *, sm: int, n_hosts: int, nvls_channels: int, settings: Settings
) -> CollChannels:
    """Return the channel counts after NCCL's post-processing, in its order.

    Args:
        ring: Reduced ring graph.
        tree: Reduced tree graph.
        sm: Compute capability times ten.
        n_hosts: Hosts of the communicator.
        nvls_channels: NVLS channels, which older releases raise the count to.
        settings: Environment and release.
    """
    version = settings.version
    search = min(ring.n_channels, tree.n_channels)
    # Twice always: the copies carry the second tree of the double tree.
    n = 2 * search
    # Hopper at full NIC speed (2.25.1: and later GPUs) gets more SMs per NIC.
    fast = sm >= 90 if version >= (2, 25, 1) else sm == 90
    if fast and n_hosts > 1 and ring.bw_intra > 45 and n < 16:
        n *= 2
    n = min(n, settings.max_channels, settings.max_ctas)
    kept = n
    n = max(n, settings.min_channels, settings.min_ctas)
    total = max(n, nvls_channels) if (2, 20, 3) <= version < (2, 28, 3) else n
    return CollChannels(search, kept, total if version >= (2, 22, 3) else n, total)


@dataclass(frozen=True)
class NvlsCounts:
    """NVLS channels and chunk limits; all 0 without NVLS.

    Attributes:
        channels: Channels of NVLS and NVLS_TREE collectives.
        chunk_bytes: Largest chunk of a head.
        tree_max_chunk_bytes: Largest chunk of NVLS_TREE.
    """

    channels: int
    chunk_bytes: int
    tree_max_chunk_bytes: int


def nvls_counts(
    nvls: Graph,
    *,
    sm: int,
    n_hosts: int,
    min_ranks_per_host: int,
    nic_gbps: float,
    settings: Settings,
) -> NvlsCounts:
    """Return NVLS channel count and chunk limits (spec 1.6).

    Args:
        nvls: Reduced NVLS graph; no channels means no NVLS.
        sm: Compute capability times ten.
        n_hosts: Hosts of the communicator.
        min_ranks_per_host: Fewest ranks on a host.
        nic_gbps: Smallest GPU to NIC bandwidth, GB/s.
        settings: Environment and release.
    """
    version = settings.version
    chunk = 131072 if version >= (2, 21, 5) else 524288
    if nvls.n_channels == 0:
        # Until 2.30 the limit is a rule of the host count alone.
        late = version < (2, 30, 3) and n_hosts >= 4
        return NvlsCounts(0, 0, 65536 if late else 0)
    channels = 16
    tree_max = 65536 if n_hosts >= 4 else chunk
    if sm >= 100 and version >= (2, 25, 1):
        channels = 32
        if n_hosts == 1:
            channels = 24 if version >= (2, 27, 3) else 32
        elif version >= (2, 30, 3):
            channels, chunk, tree_max = _blackwell(
                n_hosts, min_ranks_per_host, nic_gbps, nvls.type_inter, chunk, tree_max
            )
    if settings.nvls_channels:
        channels = settings.nvls_channels
    channels = max(settings.min_ctas, min(settings.max_ctas, channels))
    if settings.nvls_chunk:
        chunk = settings.nvls_chunk
        tree_max = 65536 if n_hosts >= 4 else chunk
    if settings.nvls_tree_max_chunk:
        tree_max = settings.nvls_tree_max_chunk
    return NvlsCounts(channels, chunk, tree_max)


def _blackwell(
    n_hosts: int, ranks: int, gbps: float, path: int, chunk: int, tree_max: int
) -> tuple[int, int, int]:
    """SM100 over several hosts, 2.30.3 and later: channels, chunk, tree limit by NIC speed."""
    if n_hosts == 2 and gbps >= 48:
        if ranks <= 4:
            return 32, 262144, 262144
        small = ranks >= 16 or (ranks <= 8 and path <= _PXB and gbps < 96)
        return 32, chunk, 65536 if small else 131072
    if gbps >= 96:
        if ranks <= 8:
            return 24, 262144, 262144
        return 32, chunk, 65536 if ranks >= 32 else 131072
    if gbps >= 48:
        return 24, chunk, 65536 if path <= _PXB else 131072
    return 32, chunk, tree_max


@dataclass(frozen=True)
class P2pCounts:
    """Channels of sends and receives.

    Attributes:
        channels: Channels that sends and receives use, a power of two.
        per_peer: Most channels that one peer's data is split over, a power of two.
        chunk_bytes: Step of a part.
        group_size: Ranks of a host scheduled as one group.
    """

    channels: int
    per_peer: int
    chunk_bytes: int
    group_size: int


def _power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length() if n > 1 else 1


def p2p_counts(
    *,
    n_channels: int,
    n_ranks: int,
    ranks_per_host: list[int],
    net_gbps: float,
    all_nvlink: bool,
    sm: int,
    cpu_vendor: str,
    settings: Settings,
) -> P2pCounts:
    """Return the counts of send/recv (spec 1.9, nccl-versions section 4).

    Args:
        n_channels: Channels that exist for collectives.
        n_ranks: Ranks of the communicator.
        ranks_per_host: Distinct numbers of ranks on a host.
        net_gbps: Bandwidth of a GPU's path to its NIC, GB/s; 0 if there is no NIC.
        all_nvlink: Whether all GPUs of a host reach each other by NVLink.
        sm: Compute capability times ten.
        cpu_vendor: CPU vendor of the hosts.
        settings: Environment and release.
    """
    version = settings.version
    one_host = len(ranks_per_host) == 1 and ranks_per_host[0] == n_ranks
    channels = min(n_channels, settings.max_p2p_channels)
    channels = max(channels, settings.min_p2p_channels)
    per_peer = channels
    if not one_host:
        per_peer = min(per_peer, _net_peer(n_ranks, channels, net_gbps, settings))
    elif not all_nvlink:
        per_peer = min(per_peer, 2)
    per_peer, channels = _power_of_two(per_peer), _power_of_two(channels)
    given = settings.channels_per_net_peer > 0
    if one_host or given or version < (2, 29, 2):
        per_peer = min(per_peer, channels)
    else:
        peers = settings.p2p_max_peers or n_ranks
        while per_peer > 1 and per_peer * -(-peers // 8) > channels:
            per_peer //= 2
    if one_host:
        chunk = settings.p2p_nvl_chunk if all_nvlink else settings.p2p_pci_chunk
    else:
        chunk = settings.p2p_net_chunk
        if cpu_vendor == "arm" and sm >= 100 and version >= (2, 29, 2):
            chunk *= 2
    chunk = min(chunk, settings.buffer_simple // 8)
    return P2pCounts(channels, per_peer, chunk, _group_size(ranks_per_host, one_host, settings))


def _net_peer(n_ranks: int, channels: int, net_gbps: float, settings: Settings) -> int:
    """Channels for one peer on another host, before rounding."""
    if settings.channels_per_net_peer > 0:
        return settings.channels_per_net_peer
    nics = 1  # NICs of one GPU until their sum covers its PCIe path: one on every machine here
    if settings.version >= (2, 29, 2):
        if net_gbps <= 0:
            return 2
        return max(nics, -(-int(net_gbps) // settings.net_gbps_per_p2p_channel))
    by_scale = 2
    while by_scale > 1 and by_scale * n_ranks > channels * 4:
        by_scale //= 2
    return max(nics, by_scale)


def _group_size(ranks_per_host: list[int], one_host: bool, settings: Settings) -> int:
    if settings.version < (2, 28, 7):
        # No groups yet: a round covers a whole host.
        return max(ranks_per_host)
    if one_host:
        return ranks_per_host[0]
    size = settings.p2p_group_size
    for ranks in ranks_per_host:
        size = gcd(size, ranks)
    return size
