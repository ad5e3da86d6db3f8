"""What NCCL's topology search finds on one host: a graph per kind of algorithm."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

__all__ = ["PATHS", "PATTERNS", "Graph", "HostGraphs", "path_code", "reduce_graphs"]

PATHS = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS", "NET")
"""Path types by code as NCCL 2.27.5 and later number them (spec nccl-wire-schedule 2.2)."""

PATTERNS = {1: "balanced tree", 2: "split tree", 3: "chain", 4: "ring", 5: "nvls"}

_PATHS_BEFORE_C2C = ("LOC", "NVL", "NVB", "PIX", "PXB", "PXN", "PHB", "SYS", "NET")
_PATHS_WITH_C2C = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "PXN", "PHB", "SYS", "NET")
_PATHS_P2C_AFTER_PXN = (
    "LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "PXN", "P2C", "PHB", "SYS", "NET",
)  # fmt: skip


def path_code(code: int, version: tuple[int, ...]) -> int:
    """Return the number that NCCL `version` prints for a path type.

    GENIE keeps the codes of 2.30 for every version; this is the way back to the numbers
    found in an older log or golden file (spec nccl-versions section 1).

    Args:
        code: Index into `PATHS`.
        version: NCCL release, for example (2, 21, 5).
    """
    name = PATHS[code]
    if version < (2, 26, 2):
        table: tuple[str, ...] = _PATHS_BEFORE_C2C
    elif version < (2, 27, 3):
        table = _PATHS_WITH_C2C
    elif version < (2, 27, 5):
        table = _PATHS_P2C_AFTER_PXN
    else:
        table = PATHS
    if name not in table:
        name = {"C2C": "NVB", "P2C": "PHB"}[name]
    return table.index(name)


@dataclass(frozen=True)
class Graph:
    """One search result: `n_channels` orders of a host's GPUs and the NICs at their ends.

    Attributes:
        pattern: 1 balanced tree, 2 split tree, 3 chain, 4 ring, 5 NVLS.
        n_channels: Channels the search found (before NCCL doubles them).
        bw_intra: GB/s of one channel inside the host.
        bw_inter: GB/s of one channel on the network.
        latency_inter: Latency the network plugin declares, microseconds (0 built in).
        type_intra: Worst path between GPUs, index into `PATHS` whatever the version.
        type_inter: Worst path between GPU and NIC, index into `PATHS`.
        same_channels: Whether every channel has the same order.
        cross_nic: 0 a channel enters and leaves by one NIC, 1 by two, 2 by two and swapped
            on odd hosts (spec section 1.2; older versions call this 1).
        intra: GPU order of each channel, in the machine's GPU numbers; NVLS: the head only.
        inter: (entry NIC, exit NIC) of each channel.
    """

    pattern: int
    n_channels: int
    bw_intra: float
    bw_inter: float
    latency_inter: float = 0.0
    type_intra: int = 0
    type_inter: int = 0
    same_channels: bool = False
    cross_nic: int = 0
    intra: tuple[tuple[int, ...], ...] = ()
    inter: tuple[tuple[int, int], ...] = ()

    def type_names(self) -> tuple[str, str]:
        """Return the names of `type_intra` and `type_inter`."""
        return PATHS[self.type_intra], PATHS[self.type_inter]


NO_NVLS = Graph(pattern=5, n_channels=0, bw_intra=0.0, bw_inter=0.0)


class HostGraphs(NamedTuple):
    """The three search results of one host."""

    ring: Graph
    tree: Graph
    nvls: Graph


def reduce_graphs(graphs: list[Graph]) -> Graph:
    """Return what a communicator uses of its hosts' results (spec sub section 3).

    Channels and bandwidths are the smallest over the hosts, link types, pattern and
    cross-NIC mode the largest; the orders shown are those of host 0.
    """
    first = graphs[0]
    if len(graphs) == 1:
        return first
    n = min(g.n_channels for g in graphs)
    return replace(
        first,
        pattern=max(g.pattern for g in graphs),
        n_channels=n,
        bw_intra=min(g.bw_intra for g in graphs),
        bw_inter=min(g.bw_inter for g in graphs),
        latency_inter=max(g.latency_inter for g in graphs),
        type_intra=max(g.type_intra for g in graphs),
        type_inter=max(g.type_inter for g in graphs),
        same_channels=all(g.same_channels for g in graphs),
        cross_nic=max(g.cross_nic for g in graphs),
        intra=first.intra[:n],
        inter=first.inter[:n],
    )
