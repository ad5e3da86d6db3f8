"""The GPU side that a CPU-only host has to imagine: how long a chunk is copied or reduced.

A model, with its parameters in `genie/data/gpu.json`, where each has its source. Latencies are
those of NCCL's own cost model (spec nccl-wire-schedule §2.1, NCCL 2.30.7); bandwidths are what
one channel moves in each protocol and what NVLink carries in and out of a GPU.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from genie import checks

PROTOCOLS = ("ll", "ll128", "simple")

#: NCCL's path type for NVLink; larger numbers are slower paths (spec §2.1).
NVLINK_PATH = 1


#: Of what crosses a GPU's links in an NVLS all_reduce of 8, the part that is the data: a GPU sends
#: its whole buffer to the switch and the sum of its eighth back to all.
NVLS_SHARE = 8 / 9


class ProgramTimes(NamedTuple):
    """What the engine adds to one program (docs/architecture.md, "Engine").

    Attributes:
        start_ns: From the start of the collective to its first move.
        move_ns: Fixed time of every move.
        send_ns: From the end of a send to another host until the network can have it; the
            channel goes on meanwhile.
        copy_gbps: Wire bytes that one channel sends of its own, GB/s; 0 = unlimited.
        reduce_gbps: Wire bytes that one channel takes in and sends on, GB/s.
        receive_gbps: Wire bytes that one channel takes in where it sends nothing on, GB/s.
        gap_ns: Between two messages of a simulated connection.
        local_ns: Latency of a hop inside the host.
        local_gbps: Bandwidth of one connection inside the host, GB/s; 0 = unlimited.
        early: Messages inside the host go out before the GPU time of their move.
    """

    start_ns: int = 0
    move_ns: int = 0
    send_ns: int = 0
    copy_gbps: float = 0.0
    reduce_gbps: float = 0.0
    receive_gbps: float = 0.0
    gap_ns: int = 0
    local_ns: int = 0
    local_gbps: float = 0.0
    early: bool = False


@lru_cache(maxsize=1)
def parameters() -> dict[str, Any]:
    """Return the table of parameters, as `genie/data/gpu.json` has it."""
    path = Path(__file__).parents[1] / "data" / "gpu.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


@dataclass(frozen=True)
class GpuModel:
    """What the missing GPU would add to every message.

    Attributes:
        enabled: False switches the whole model off (as benchmarks do).
        hop_scale: Factor on the fixed times (1 = the table's).
        network_ns: Part of a network hop that the real or simulated network supplies, subtracted
            from NCCL's constant, ns.
        copy_gbps: Wire bytes/ns of one channel instead of the table's, GB/s (0 = unlimited).
        nvlink_gbps: What NVLink carries out of a GPU instead of the table's, GB/s (0 = unlimited).
    """

    enabled: bool = True
    hop_scale: float = 1.0
    network_ns: int = 2000
    copy_gbps: float | None = None
    nvlink_gbps: float | None = None

    def __post_init__(self) -> None:
        checks.truth("enabled", self.enabled)
        checks.real("hop_scale", self.hop_scale, 0, 1e6)
        checks.whole("network_ns", self.network_ns, 0, 10**15)
        for name in ("copy_gbps", "nvlink_gbps"):
            if getattr(self, name) is not None:
                checks.real(name, getattr(self, name), 0, 1e9)

    @classmethod
    def off(cls) -> GpuModel:
        """Return the model that adds nothing."""
        return cls(enabled=False)

    def times(
        self,
        algorithm: str,
        protocol: str,
        *,
        sm: int = 90,
        type_intra: int = 1,
        fanout: int = 1,
        peers: int = 1,
        cpu: str = "intel",
        queue_pairs: int = 1,
    ) -> ProgramTimes:
        """Return what one program of a rank costs beside the network.

        Args:
            algorithm: "ring", "tree", "pat", "nvls", "nvls_tree" or "p2p".
            protocol: "ll", "ll128" or "simple".
            sm: Compute capability times ten, 80 for an A100.
            type_intra: NCCL's path type inside the host; 1 is NVLink.
            fanout: Connections of the program out of this rank to ranks of its host; they share
                the GPU's links.
            peers: Ranks of the host that take part, this one included.
            cpu: CPU vendor, "intel", "amd" or another.
            queue_pairs: Queue pairs that share a connection's messages.
        """
        if not self.enabled:
            return ProgramTimes()
        table = parameters()
        p = PROTOCOLS.index(protocol)
        # LL and LL128 carry a flag in every line: the next rank starts on the first of them.
        early = protocol != "simple"
        machine = table["generations"][_generation(sm)]
        hops = table["hops_us"]["nvlink" if type_intra <= NVLINK_PATH else "pci"]
        network = table["hops_us"]["network"]
        kind = "ring" if algorithm == "p2p" else algorithm
        hop, net = (row.get(kind, row["ring"])[p] for row in (hops, network))
        move = hop if early else min(hop, machine["move_us"])
        channel = machine["channel_gbps"][p] if self.copy_gbps is None else self.copy_gbps
        gap = table["gap_us"].get(cpu, table["gap_us"]["other"])[p] / queue_pairs
        links = machine["nvlink_gbps"] if self.nvlink_gbps is None else self.nvlink_gbps
        ns = 1e3 * self.hop_scale
        if kind.startswith("nvls"):
            # A program names one message a rank where the switch sums or multiplies one stream;
            # the engine counts the largest message of a move, the links carry all of them.
            links *= machine["nvls_efficiency"] * NVLS_SHARE / peers
            channel /= peers
        # The copy into a peer's memory is the copy that the channel makes: one rate for both.
        share = links / fanout if fanout else 0.0
        rate = min((x for x in (channel, share) if x > 0), default=0.0)
        start = table["start_us"].get(kind, table["start_us"]["other"])[p]
        return ProgramTimes(
            start_ns=round(start * ns),
            move_ns=round(move * ns),
            send_ns=max(0, round((net - move) * ns) - self.network_ns),
            # Into and out of the buffers that NVLS shares a channel copies in its own memory.
            copy_gbps=channel if kind.startswith("nvls") else rate,
            reduce_gbps=rate,
            receive_gbps=channel,
            gap_ns=round(gap * ns),
            local_ns=round((hop if early else hop - move) * ns),
            early=early,
        )


def _generation(sm: int) -> str:
    """Return the newest generation of the table that is not newer than `sm`."""
    known = sorted(int(key) for key in parameters()["generations"])
    return str(max([key for key in known if key <= sm], default=known[0]))
