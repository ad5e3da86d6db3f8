"""Paths of the simulated network from a table of connections."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from genie.errors import InputError


def nic_links(
    table: npt.NDArray[np.void],
    host_of: Sequence[int] | npt.NDArray[np.int32],
    rate: float,
    latency_ns: int,
) -> dict[str, Any]:
    """Makes one link out of and one link into each NIC that a connection uses.

    A connection goes through the transmit link of its source NIC (which carries
    `latency_ns`) and the receive link of its destination NIC (which carries none).

    Args:
        table: Connections, a `CONN` array (docs/architecture.md, "Connections").
        host_of: Host of each global rank.
        rate: Bytes per ns (GB/s) of each NIC in each direction.
        latency_ns: One-way latency of a message.

    Returns:
        The keyword arguments of `Engine.set_network`: `rate`, `latency_ns`,
        `path_indptr`, `path` and `names` ("h0.nic1.tx", "h0.nic1.rx").
    """
    hosts = np.asarray(host_of, dtype=np.int64)
    n = len(table)
    for end in ("src", "dst"):
        if n and (table[end].min() < 0 or table[end].max() >= len(hosts)):
            raise InputError(f"host_of names {len(hosts)} ranks, the connections use more")
    tx = np.stack([hosts[table["src"]], table["nic_src"].astype(np.int64)], axis=1)
    rx = np.stack([hosts[table["dst"]], table["nic_dst"].astype(np.int64)], axis=1)
    nics, index = np.unique(np.concatenate([tx, rx]), axis=0, return_inverse=True)
    index = index.reshape(-1)
    n_nics = len(nics)
    path = np.empty(2 * n, dtype=np.int32)
    path[0::2] = index[:n]
    path[1::2] = index[n:] + n_nics
    names = [f"h{h}.nic{k}.tx" for h, k in nics] + [f"h{h}.nic{k}.rx" for h, k in nics]
    latency = np.zeros(2 * n_nics, dtype=np.int64)
    latency[:n_nics] = latency_ns
    return {
        "rate": np.full(2 * n_nics, float(rate)),
        "latency_ns": latency,
        "path_indptr": np.arange(n + 1, dtype=np.int64) * 2,
        "path": path,
        "names": names,
    }
