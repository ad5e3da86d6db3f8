"""The one-way connections a plan needs between hosts, numbered alike in every worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from genie.replay.communicators import Communicator
    from genie.replay.templates import Template

#: One connection: global ranks, communicator, channel, connection index, NICs, PXN proxy rank.
CONN = np.dtype(
    [
        ("src", "i4"),
        ("dst", "i4"),
        ("communicator", "i4"),
        ("channel", "u2"),
        ("index", "u1"),
        ("nic_src", "i2"),
        ("nic_dst", "i2"),
        ("proxy_src", "i4"),
    ]
)

#: Bytes and messages of one iteration on one connection.
TRAFFIC = np.dtype([("connection", "i4"), ("nbytes", "i8"), ("messages", "i8")])

#: How `Cluster.nic` calls an algorithm's connections; NVLS inside a host uses no NIC.
_NIC_KIND = {
    "ring": "ring", "tree": "tree", "pat": "tree", "nvls_tree": "nvls", "nvls": "nvls",
    "p2p": "p2p",
}  # fmt: skip


def connect(
    uses: dict[tuple[int, int], int],
    communicators: list[Communicator],
    templates: list[Template],
) -> tuple[npt.NDArray[np.void], npt.NDArray[np.void]]:
    """Return the (CONN, TRAFFIC) tables of a plan; both have one row a connection.

    NCCL's algorithms share the connection of a channel and peer; whichever connects first fixes
    its NIC (spec nccl-wire-schedule §1.7). Here: the first to be used in the trace.

    Args:
        uses: (communicator, template) → how many nodes run it in one iteration.
        communicators: The plan's communicators.
        templates: The plan's templates.
    """
    rows: dict[tuple[int, int, int, int, int], list[int]] = {}
    nic_kind: dict[tuple[int, int, int, int, int], str] = {}
    for (comm_index, template_index), count in uses.items():
        communicator, template = communicators[comm_index], templates[template_index]
        ranks = communicator.ranks
        me = int(ranks[template.rank])
        kind = _NIC_KIND[template.algorithm]
        for peer, channel, index, nbytes, messages in template.sends.tolist():
            key = (comm_index, channel, me, int(ranks[peer]), index)
            total = rows.setdefault(key, [0, 0])
            total[0] += nbytes * count
            total[1] += messages * count
            nic_kind.setdefault(key, kind)
        for peer, channel, index in template.receives.tolist():
            key = (comm_index, channel, int(ranks[peer]), me, index)
            rows.setdefault(key, [0, 0])
            nic_kind.setdefault(key, kind)
    ordered = sorted(rows)
    table = np.zeros(len(ordered), CONN)
    traffic = np.zeros(len(ordered), TRAFFIC)
    for i, key in enumerate(ordered):
        comm_index, channel, src, dst, index = key
        communicator = communicators[comm_index]
        src_rank, dst_rank = communicator.rank_of[src], communicator.rank_of[dst]
        kind = "p2p" if index else nic_kind[key]
        cluster = communicator.cluster
        nic_src, proxy = cluster.nic(src_rank, dst_rank, channel, kind, "send")
        nic_dst, _ = cluster.nic(dst_rank, src_rank, channel, kind, "recv")
        table[i] = (
            src, dst, comm_index, channel, index, nic_src, nic_dst, int(communicator.ranks[proxy])
        )  # fmt: skip
        traffic[i] = (i, *rows[key])
    return table, traffic
