"""Predicted times of all candidates of one function at once (spec section 2.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from genie.replay.nccl import tables
from genie.replay.nccl.env import Nccl
from genie.replay.nccl.model import Model
from genie.replay.nccl.names import (
    ALGORITHMS,
    ALL_GATHER,
    ALL_REDUCE,
    BROADCAST,
    NVLS_TREE,
    PROTOCOLS,
    RING,
    SIMPLE,
    TREE,
)
from genie.replay.nccl.versions import Switch

if TYPE_CHECKING:
    from genie.replay.cluster import Cluster

#: Releases in which collectives share channels that were raised to NVLS's count (2.28.3 stopped
#: raising); until 2.21.5 the collectives themselves kept the count before.
RAISED_TO_NVLS = Switch("channels raised to NVLS's", {"2.20.5": True, "2.28.3": False})
#: Collectives of one launch batch, which pipelined operations are counted by.
BATCH_COLLECTIVES = Switch("collectives per batch", {"2.20.5": 9, "2.22.3": 10})

#: A ring's cost where float8 would lose too much over its steps.
FLOAT8_PENALTY = 1024


class Prices:
    """Times of every kernel that exists for one function, in NCCL's order, in float32.

    Attributes:
        codes: (algorithm, protocol) of each candidate.
        position: candidate -> index.
        reasons: why a candidate is off, "" where it is on.
    """

    def __init__(self, function: int, model: Model, cluster: Cluster, nccl: Nccl) -> None:
        self.codes = [
            (a, p)
            for a in range(len(ALGORITHMS))
            for p in range(len(PROTOCOLS))
            if (entry := model.entries[function][a][p]) is not None and entry[1] > 0
        ]
        self.position = {code: i for i, code in enumerate(self.codes)}
        self.reasons = [model.reasons[function][a][p] for a, p in self.codes]
        entries = [model.entries[function][a][p] or (0.0, 0.0) for a, p in self.codes]
        self.latency = np.array([entry[0] for entry in entries], dtype=np.float32)
        self.ring = np.array([a == RING for a, _ in self.codes], dtype=bool)
        self.batch = BATCH_COLLECTIVES.at(nccl.version)
        self.reduces = function not in (ALL_GATHER, BROADCAST)
        bandwidth = np.array([entry[1] for entry in entries], dtype=np.float32)
        factors = _corrections(function, self.codes, cluster, nccl)
        #: 1000 * GB/s by size class (row: bits of nbytes / 64) and candidate.
        self.bytes_per_us = np.float32(1000) * (bandwidth * factors)
        self._plateau(function, cluster, nccl)

    def _plateau(self, function: int, cluster: Cluster, nccl: Nccl) -> None:
        """A Simple ring pays more latency once every channel has 64 bytes a rank."""
        channels = cluster.coll_channels
        if RAISED_TO_NVLS.at(nccl.version):
            channels = max(channels, cluster.nvls_channels)
        self.plateau_bytes = 64 * max(channels, 1) * cluster.n_ranks
        factor = 1.9 if cluster.sm < 80 else 1.4
        self.plateau_latency = self.latency.copy()
        if function == ALL_REDUCE and cluster.n_hosts > 1 and (RING, SIMPLE) in self.position:
            at = self.position[RING, SIMPLE]
            self.plateau_latency[at] = np.float32(float(self.latency[at]) * factor)

    def times_us(
        self, nbytes: int, dtype: str, ranks: int, pipelined: int = 1
    ) -> npt.NDArray[np.float32]:
        """Return the predicted microseconds of every candidate, on or off.

        Args:
            nbytes: size in the cost model.
            dtype: element type, for float8's penalty on rings over more than 8 ranks.
            ranks: ranks of the communicator.
            pipelined: operations per channel that run back to back.
        """
        row = min((nbytes >> 6).bit_length(), len(self.bytes_per_us) - 1)
        latency = self.plateau_latency if nbytes >= self.plateau_bytes else self.latency
        if pipelined != 1:
            others = np.float32(-(-pipelined // self.batch))
            latency = latency * np.where(self.ring, np.float32(pipelined), others)
        times: npt.NDArray[np.float32] = latency + np.float32(nbytes) / self.bytes_per_us[row]
        if self.reduces and ranks > 8 and dtype.startswith("float8"):
            times[self.ring] *= np.float32(FLOAT8_PENALTY)
        return times


def _corrections(
    function: int, codes: list[tuple[int, int]], cluster: Cluster, nccl: Nccl
) -> npt.NDArray[np.float32]:
    """Return factors on bandwidth by size class and candidate; the last class is all the rest."""
    width = len(tables.TREE_CORRECTION[0])
    factors = np.ones((width + 2, len(codes)), dtype=np.float32)
    x86 = cluster.cpu_vendor.lower() in ("intel", "amd", "mixed")
    for i, (algorithm, protocol) in enumerate(codes):
        column = tables.TREE_CORRECTION[protocol]
        if algorithm == TREE and function == ALL_REDUCE:
            used = tables.TREE_CORRECTION_WIDTH
        elif algorithm == NVLS_TREE and x86 and cluster.sm >= 100:
            used = width if tables.CORRECTION_NVLS_TREE.at(nccl.version) else 0
        else:
            continue
        factors[1 : used + 1, i] = column[:used]
        if used and tables.CORRECTION_BELOW_64.at(nccl.version):
            factors[0, i] = column[0]
    return factors
