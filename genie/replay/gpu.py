"""The GPU side that a CPU-only host has to imagine: how long a chunk is copied or reduced.

A model, with its parameters. The constants are those of NCCL's own cost model (spec
nccl-wire-schedule §2.1, NCCL 2.30.7): what one hop costs over NVLink or PCIe, and the part of a
network hop that is not the network's. The bandwidths bound one channel's copy or reduction.
"""

from __future__ import annotations

from dataclasses import dataclass

PROTOCOLS = ("ll", "ll128", "simple")

#: Latency of one hop in us by algorithm and protocol (spec §2.1, "Hardware latency").
_NVLINK_US = {"ring": (0.6, 1.9, 3.4), "tree": (0.6, 1.25, 4.0), "pat": (0.0, 0.0, 4.0)}
_PCI_US = {"ring": (1.0, 2.5, 5.7), "tree": (1.0, 1.9, 4.0), "pat": (0.0, 0.0, 4.0)}
_NET_US = {
    "ring": (2.7, 4.0, 14.0),
    "tree": (5.0, 8.5, 14.0),
    "pat": (0.0, 0.0, 14.0),
    "nvls_tree": (0.0, 0.0, 20.9),
}


@dataclass(frozen=True)
class GpuModel:
    """What the missing GPU would add to every message.

    Attributes:
        enabled: False switches the whole model off (as benchmarks do).
        copy_gbps: One channel's copy or reduction bandwidth, GB/s (0 = unlimited).
        hop_scale: Factor on the fixed hop times (1 = NCCL's constants).
        network_ns: Part of a network hop that the real network supplies, subtracted from NCCL's
            constant, ns.
        nvlink_gbps: One channel's bandwidth over NVLink for hops inside a host, GB/s.
    """

    enabled: bool = True
    copy_gbps: float = 30.0
    hop_scale: float = 1.0
    network_ns: int = 2000
    nvlink_gbps: float = 30.0

    @classmethod
    def off(cls) -> GpuModel:
        """Return the model that adds nothing."""
        return cls(enabled=False, copy_gbps=0.0, hop_scale=0.0, network_ns=0, nvlink_gbps=0.0)

    def call_ns(self, algorithm: str, protocol: str) -> int:
        """Return the fixed time that a call spends before a network message is sent, ns."""
        row = _NET_US.get(algorithm, _NET_US["ring"])
        fixed = row[PROTOCOLS.index(protocol)] * 1e3 * self.hop_scale
        return max(0, round(fixed) - self.network_ns) if self.enabled else 0

    def hop_ns(self, algorithm: str, protocol: str, type_intra: int = 1) -> int:
        """Return the latency of a hop inside a host, ns.

        Args:
            algorithm: "ring", "tree", "pat" or "nvls_tree".
            protocol: "ll", "ll128" or "simple".
            type_intra: NCCL's path type inside the host; 1 is NVLink (spec §2.1).
        """
        table = _NVLINK_US if type_intra <= 1 else _PCI_US
        row = table.get(algorithm, table["ring"])
        return round(row[PROTOCOLS.index(protocol)] * 1e3 * self.hop_scale) if self.enabled else 0
