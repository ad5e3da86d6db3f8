"""The environment variables that change channels, buffers, p2p counts and NICs (spec 7)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from genie.errors import InputError

__all__ = ["DEFAULT_VERSION", "Environment", "Settings", "refuse_search_settings"]


class Environment(Protocol):
    """As much of `genie.Nccl` as is read here."""

    @property
    def version(self) -> tuple[int, ...]:
        """NCCL release."""

    @property
    def env(self) -> dict[str, str]:
        """Variables that are set."""

    def get_int(self, name: str, default: int) -> int:
        """Return a numeric variable, `default` where unset."""


DEFAULT_VERSION = (2, 30, 7)

MAX_CHANNELS = 64

# First release that reads a variable; on an older one it has no effect (versions section 10).
_SINCE = {
    "NCCL_NVLS_CHUNKSIZE": (2, 21, 5),
    "NCCL_NETDEVS_POLICY": (2, 28, 3),
    "NCCL_P2P_SCHEDULE_GROUP_SIZE": (2, 28, 7),
    "NCCL_P2P_PER_CHANNEL_NET_BW": (2, 29, 2),
    "NCCL_P2P_MAX_PEERS": (2, 30, 3),
}

# Variables that change the topology search, with the values that are their defaults.
_SEARCH = {
    "NCCL_GRAPH_FILE": ("",),
    "NCCL_TOPO_FILE": ("",),
    "NCCL_IGNORE_DISABLED_P2P": ("", "0"),
    "NCCL_P2P_LEVEL": ("",),
    "NCCL_P2P_DIRECT_DISABLE": ("", "0"),
    "NCCL_P2P_DISABLE": ("", "0"),
    "NCCL_NVB_DISABLE": ("", "0"),
    "NCCL_NET_GDR_LEVEL": ("", "P2C"),
    "NCCL_NET_GDR_READ": ("",),
    "NCCL_NET_GDR_C2C": ("", "1"),
    "NCCL_PXN_C2C": ("", "1"),
    "NCCL_NET_DISABLE_INTRA": ("", "0"),
    "NCCL_NET_MERGE_LEVEL": ("", "LOC", "PORT"),
    "NCCL_NET_FORCE_MERGE": ("",),
    "NCCL_MNNVL_ENABLE": ("", "0", "2"),
}

_PAIRS = (
    "NCCL_IGNORE_DISABLED_P2P",
    "NCCL_P2P_LEVEL",
    "NCCL_P2P_DIRECT_DISABLE",
    "NCCL_P2P_DISABLE",
    "NCCL_NVB_DISABLE",
)


@dataclass(frozen=True)
class Settings:
    """What a cluster takes from NCCL's environment; the defaults are NCCL's.

    Attributes:
        version: NCCL release.
        min_channels: NCCL_MIN_NCHANNELS (or the older NCCL_MIN_NRINGS).
        max_channels: NCCL_MAX_NCHANNELS (or NCCL_MAX_NRINGS).
        min_ctas: NCCL_MIN_CTAS.
        max_ctas: NCCL_MAX_CTAS.
        buffer_ll: NCCL_LL_BUFFSIZE, bytes.
        buffer_ll128: NCCL_LL128_BUFFSIZE, bytes.
        buffer_simple: NCCL_BUFFSIZE, bytes.
        min_p2p_channels: NCCL_MIN_P2P_NCHANNELS.
        max_p2p_channels: NCCL_MAX_P2P_NCHANNELS.
        channels_per_net_peer: NCCL_NCHANNELS_PER_NET_PEER, -1 automatic.
        net_gbps_per_p2p_channel: NCCL_P2P_PER_CHANNEL_NET_BW, GB/s.
        p2p_max_peers: NCCL_P2P_MAX_PEERS, 0 for all ranks.
        p2p_net_chunk: NCCL_P2P_NET_CHUNKSIZE, bytes.
        p2p_nvl_chunk: NCCL_P2P_NVL_CHUNKSIZE, bytes.
        p2p_pci_chunk: NCCL_P2P_PCI_CHUNKSIZE, bytes.
        p2p_group_size: NCCL_P2P_SCHEDULE_GROUP_SIZE.
        nvls: NCCL_NVLS_ENABLE is not 0.
        nvls_channels: NCCL_NVLS_NCHANNELS, 0 automatic.
        nvls_chunk: NCCL_NVLS_CHUNKSIZE, bytes, 0 automatic.
        nvls_tree_max_chunk: NCCL_NVLSTREE_MAX_CHUNKSIZE, bytes, 0 automatic.
        pxn: NCCL_PXN_DISABLE is not set.
        p2p_pxn_level: NCCL_P2P_PXN_LEVEL.
        same_rail_p2p: NCCL_CROSS_NIC=0: p2p takes the receiver's rail even without PXN.
        nics_per_gpu: NCCL_NETDEVS_POLICY as a number: 0 AUTO, -1 ALL, n MAX:n.
    """

    version: tuple[int, ...] = DEFAULT_VERSION
    min_channels: int = 0
    max_channels: int = MAX_CHANNELS
    min_ctas: int = 1
    max_ctas: int = MAX_CHANNELS
    buffer_ll: int = 524288
    buffer_ll128: int = 4915200
    buffer_simple: int = 4194304
    min_p2p_channels: int = 1
    max_p2p_channels: int = MAX_CHANNELS
    channels_per_net_peer: int = -1
    net_gbps_per_p2p_channel: int = 14
    p2p_max_peers: int = 0
    p2p_net_chunk: int = 131072
    p2p_nvl_chunk: int = 524288
    p2p_pci_chunk: int = 131072
    p2p_group_size: int = 8
    nvls: bool = True
    nvls_channels: int = 0
    nvls_chunk: int = 0
    nvls_tree_max_chunk: int = 0
    pxn: bool = True
    p2p_pxn_level: int = 2
    same_rail_p2p: bool = False
    nics_per_gpu: int = 0

    @classmethod
    def of(cls, nccl: Environment) -> Settings:
        """Return the settings of an `Nccl`.

        Raises:
            InputError: If a value cannot be used.
        """
        version = tuple(nccl.version)
        most = MAX_CHANNELS if version >= (2, 25, 1) else 32

        def number(name: str, default: int, least: int = 0) -> int:
            if version < _SINCE.get(name, (0,)):
                return default
            value = nccl.get_int(name, default)
            if value == -2:  # NCCL's own "not set"
                return default
            if value < least:
                raise InputError(f"{name}={value}: must be at least {least}", name=name)
            return value

        def either(name: str, older: str, default: int) -> int:
            return number(name, number(older, default))

        return cls(
            version=version,
            min_channels=min(either("NCCL_MIN_NCHANNELS", "NCCL_MIN_NRINGS", 0), most),
            max_channels=max(1, min(either("NCCL_MAX_NCHANNELS", "NCCL_MAX_NRINGS", most), most)),
            min_ctas=number("NCCL_MIN_CTAS", 1, 1),
            max_ctas=number("NCCL_MAX_CTAS", most, 1),
            buffer_ll=number("NCCL_LL_BUFFSIZE", cls.buffer_ll, 1),
            buffer_ll128=number("NCCL_LL128_BUFFSIZE", cls.buffer_ll128, 1),
            buffer_simple=number("NCCL_BUFFSIZE", cls.buffer_simple, 1),
            min_p2p_channels=number("NCCL_MIN_P2P_NCHANNELS", 1),
            max_p2p_channels=number("NCCL_MAX_P2P_NCHANNELS", most, 1),
            channels_per_net_peer=number("NCCL_NCHANNELS_PER_NET_PEER", -1, -1),
            net_gbps_per_p2p_channel=number("NCCL_P2P_PER_CHANNEL_NET_BW", 14, 1),
            p2p_max_peers=number("NCCL_P2P_MAX_PEERS", 0),
            p2p_net_chunk=number("NCCL_P2P_NET_CHUNKSIZE", 131072, 1),
            p2p_nvl_chunk=number("NCCL_P2P_NVL_CHUNKSIZE", 524288, 1),
            p2p_pci_chunk=number("NCCL_P2P_PCI_CHUNKSIZE", 131072, 1),
            p2p_group_size=number("NCCL_P2P_SCHEDULE_GROUP_SIZE", 8, 1),
            nvls=number("NCCL_NVLS_ENABLE", 2) != 0,
            nvls_channels=number("NCCL_NVLS_NCHANNELS", 0),
            nvls_chunk=number("NCCL_NVLS_CHUNKSIZE", 0),
            nvls_tree_max_chunk=number("NCCL_NVLSTREE_MAX_CHUNKSIZE", 0),
            pxn=number("NCCL_PXN_DISABLE", 0) != 1,
            p2p_pxn_level=number("NCCL_P2P_PXN_LEVEL", 2),
            same_rail_p2p=number("NCCL_CROSS_NIC", 2) == 0,
            nics_per_gpu=_netdevs_policy(nccl, version),
        )


def _netdevs_policy(nccl: Environment, version: tuple[int, ...]) -> int:
    name = "NCCL_NETDEVS_POLICY"
    text = (nccl.env.get(name) or "AUTO").strip().upper()
    if version < _SINCE[name] or text == "AUTO":
        return 0
    if text == "ALL":
        return -1
    kind, _, count = text.partition(":")
    if kind == "MAX" and count.isdigit() and int(count) > 0:
        return int(count)
    raise InputError(f"{name}={nccl.env[name]!r}: expected AUTO, ALL or MAX:<number>", name=name)


def refuse_search_settings(
    nccl: Environment, cross_nic: int, nics_per_host: int, ranks_per_host: int
) -> None:
    """Refuse variables under which NCCL's search would find something else.

    Args:
        nccl: The environment.
        cross_nic: Cross-NIC mode of the ring graph at hand.
        nics_per_host: With a single NIC, NCCL_CROSS_NIC can change nothing.
        ranks_per_host: With a single GPU, what concerns pairs of GPUs can change nothing.

    Raises:
        InputError: Naming the variable, and the graph dump that would answer instead.
    """
    for name, harmless in _SEARCH.items():
        value = nccl.env.get(name)
        if ranks_per_host == 1 and name in _PAIRS:
            continue
        if value is not None and value.strip().upper() not in harmless:
            raise _refusal(name, value)
    value = (nccl.env.get("NCCL_CROSS_NIC") or "2").strip()
    if value == "2" or nics_per_host == 1:
        return
    if value == "0" and cross_nic == 0:
        return
    if value == "1" and cross_nic == 2 and tuple(nccl.version) < (2, 23, 4):
        # Before 2.23.4 the search for 2 tried 1 as well, and the result is the same.
        return
    raise _refusal("NCCL_CROSS_NIC", value)


def _refusal(name: str, value: str) -> InputError:
    return InputError(
        f"{name}={value} changes NCCL's topology search, and a preset holds the result of the "
        "default search: give a graph dump of the real cluster (NCCL_GRAPH_DUMP_FILE, "
        "Cluster.from_nccl_graph)",
        name=name,
        value=value,
    )
