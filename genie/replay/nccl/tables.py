"""Numbers of NCCL's latency and bandwidth model (spec/nccl-wire-schedule.md section 2.1).

Rows that changed between releases are switches (spec/nccl-versions.md section 5). Columns of a
three-wide row: one host, two hosts, more. Latencies in microseconds, bandwidths in GB/s.
"""

from __future__ import annotations

from genie.replay.nccl.names import NVLS, NVLS_TREE, PAT, RING, TREE
from genie.replay.nccl.versions import Switch, Version

Row = tuple[float, float, float]

VOLTA, AMPERE, HOPPER, BLACKWELL = range(4)

_BLACKWELL_ARCH = Switch("Blackwell has tables of its own", {"2.20.5": False, "2.25.1": True})


def architecture(sm: int, version: Version) -> int:
    """Return the row of the GPU tables for compute capability `sm`."""
    if sm >= 100 and _BLACKWELL_ARCH.at(version):
        return BLACKWELL
    return HOPPER if sm >= 90 else AMPERE if sm >= 80 else VOLTA


#: Most bandwidth of LL, by GPU on one host, else by CPU (row 1 AMD or mixed, row 0 others).
LL_MAX: Switch[tuple[Row, ...]] = Switch(
    "LL bandwidth limit",
    {
        "2.20.5": ((39, 39, 20.4), (87.7, 22.5, 19), (87.7, 22.5, 19), (87.7, 22.5, 19)),
        "2.21.5": ((39, 39, 20.4), (87.7, 22.5, 19), (141, 45, 35), (141, 45, 35)),
        "2.25.1": ((39, 39, 20.4), (87.7, 22.5, 19), (141, 45, 35), (282, 90, 70)),
    },
)

_RING_LL128: tuple[Row, ...] = ((20, 20, 20), (20, 20, 20), (36.7, 36.7, 36.7))
#: Most bandwidth a channel of ring LL128 has.
RING_LL128_MAX: Switch[tuple[Row, ...]] = Switch(
    "ring LL128 bandwidth limit per channel",
    {
        "2.20.5": (*_RING_LL128, (36.7, 36.7, 36.7)),
        "2.25.1": (*_RING_LL128, (73.4, 73.4, 73.4)),
        "2.28.7": (*_RING_LL128, (73.4, 34.6, 73.4)),
        "2.29.2": (*_RING_LL128, (34.5, 34.6, 34.5)),
        "2.29.7": (*_RING_LL128, (40, 40, 40)),
    },
)

_TREE_LL128: tuple[Row, ...] = ((20, 20, 20), (20, 20, 20), (36.7, 36.7, 29))
#: Most bandwidth a channel of tree LL128 has.
TREE_LL128_MAX: Switch[tuple[Row, ...]] = Switch(
    "tree LL128 bandwidth limit per channel",
    {
        "2.20.5": (*_TREE_LL128, (36.7, 36.7, 29)),
        "2.25.1": (*_TREE_LL128, (73.4, 73.4, 58)),
        "2.28.3": (*_TREE_LL128, (55.6, 31.67, 20)),
    },
)

_TREE_MAX: tuple[Row, ...] = ((26.5, 18.5, 10), (24, 23.6, 17.8), (38.7, 41.4, 36))
#: Most bandwidth a channel of a tree has.
TREE_MAX: Switch[tuple[Row, ...]] = Switch(
    "tree bandwidth limit per channel",
    {
        "2.20.5": (*_TREE_MAX, (38.7, 41.4, 36)),
        "2.25.1": (*_TREE_MAX, (77.4, 82.8, 72)),
        "2.28.3": (*_TREE_MAX, (70, 42.8, 24)),
    },
)

_NVLS_TREE: tuple[Row, ...] = ((26.5, 18.5, 10), (24, 23.6, 17.8), (0, 57.7, 45.5))
#: Most bandwidth a channel of an NVLS tree has; None: the older model without a limit.
NVLS_TREE_MAX: Switch[tuple[Row, ...] | None] = Switch(
    "NVLS tree bandwidth limit per channel",
    {
        "2.20.5": None,
        "2.28.3": (*_NVLS_TREE, (0, 96, 43.1)),
        "2.28.9": (*_NVLS_TREE, (0, 96, 43.8)),
        "2.30.3": (*_NVLS_TREE, (0, 96, 80)),
    },
)

#: Share of NVLS bandwidth that is reached, by GPU (2.28.3 and later).
NVLS_EFFICIENCY = (0.85, 0.85, 0.85, 0.74)

#: NVLS all_gather and reduce_scatter: (factor (G-1)/G on the intra side, factor on the inter side).
NVLS_SHARE = Switch("NVLS gather share", {"2.20.5": (False, 1.0), "2.27.3": (True, 0.9)})

#: Factor of ring LL; the second holds for one host and neither all_reduce nor reduce.
RING_LL_FACTOR = Switch("ring LL factor", {"2.20.5": (1.0 / 4.0, 1.0 / 3.0), "2.21.5": (0.5, 0.5)})
#: Factor of ring LL128 where every host has one rank.
RING_LL128_ONE_RANK = Switch("ring LL128 factor, one rank a host", {"2.20.5": 0.7, "2.23.4": 0.92})
#: Factor of PAT.
PAT_FACTOR = Switch("PAT factor", {"2.20.5": 0.75, "2.23.4": 0.85, "2.24.3": 0.75})
#: Whether one rank a host takes the tree's network latency for every algorithm.
TREE_LATENCY_ONE_RANK = Switch("tree latency, one rank a host", {"2.20.5": False, "2.23.4": True})
#: Network steps of a ring all_reduce: 2N or 2(N-1).
RING_INTER_STEPS = Switch("ring all_reduce network steps less", {"2.20.5": 0, "2.23.4": 1})
#: Whether hosts with CPUs of several vendors count as AMD.
MIXED_CPU_IS_AMD = Switch("mixed CPU vendors count as AMD", {"2.20.5": False, "2.24.3": True})

_NONE: Row = (0, 0, 0)
#: Latency of starting an algorithm, by protocol.
BASE_LATENCY: Switch[dict[int, Row]] = Switch(
    "base latency",
    {
        "2.20.5": {TREE: (6.8, 14, 0), RING: (6.6, 14, 8.4), PAT: (8, 8, 8)},
        "2.23.4": {TREE: (6.8, 14, 8.4), RING: (6.6, 14, 8.4), PAT: (8, 8, 8)},
    },
)

_RING_HW: tuple[Row, ...] = ((0.6, 1.9, 3.4), (1, 2.5, 5.7), (2.7, 4, 14))
_TREE_HW: tuple[Row, ...] = ((0.6, 1.25, 28), (1, 1.9, 28), (5, 8.5, 28))
_TREE_HW_NEW: tuple[Row, ...] = ((0.6, 1.25, 4), (1, 1.9, 4), (5, 8.5, 14))
_PAT_HW: tuple[Row, ...] = ((0, 0, 4), (0, 0, 4), (0, 0, 14))
HW_NVLINK, HW_PCI, HW_NET = range(3)


def _hardware(
    tree: tuple[Row, ...], nvls: float, nvls_tree_net: float
) -> dict[int, tuple[Row, ...]]:
    return {
        TREE: tree,
        RING: _RING_HW,
        NVLS: ((0, 0, nvls), _NONE, (0, 0, 18)),
        NVLS_TREE: ((0, 0, nvls), _NONE, (0, 0, nvls_tree_net)),
        PAT: _PAT_HW,
    }


#: Latency of one hop: algorithm -> (NVLink, PCI, network) -> protocol.
HARDWARE_LATENCY: Switch[dict[int, tuple[Row, ...]]] = Switch(
    "hardware latency",
    {
        "2.20.5": _hardware(_TREE_HW, 23, 14),
        "2.21.5": _hardware(_TREE_HW, 25, 14),
        "2.23.4": _hardware(_TREE_HW_NEW, 25, 14),
        "2.28.9": _hardware(_TREE_HW_NEW, 25, 20.9),
    },
)

#: Bandwidth of a tree by size: factor at log2(bytes / 64), per protocol (section 2.3).
# fmt: off
TREE_CORRECTION = (
    (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5,
     0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1, 1, 1, 1),
    (1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6,
     0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1, 1, 1),
    (0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5,
     0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9, 0.9),
)
# fmt: on
#: Entries of that table a tree uses.
TREE_CORRECTION_WIDTH = 23
#: Whether sizes below 64 bytes take the first entry.
CORRECTION_BELOW_64 = Switch("tree correction below 64 B", {"2.20.5": True, "2.22.3": False})
#: Whether NVLS trees of Blackwell machines with x86 CPUs are corrected too.
CORRECTION_NVLS_TREE = Switch("NVLS tree correction, Blackwell", {"2.20.5": False, "2.29.2": True})
