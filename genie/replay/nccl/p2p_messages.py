"""Messages and program of a group of sends and receives, from its parts (spec 3.9)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from genie.replay.nccl.messages import MESSAGE
from genie.replay.nccl.program import CONN_P2P, INTRA, OP, RECV, SEND, STREAM, Program

IntArray = npt.NDArray[np.int64]
Table = npt.NDArray[np.void]


def expand(parts: Table) -> tuple[IntArray, IntArray, IntArray]:
    """Messages of each part, in order.

    Args:
        parts: array of `p2p.PART`.

    Returns:
        (row of its part, number within the part, wire bytes) of each message; no data is one
        message of 0 bytes.
    """
    counts = np.maximum(-(-parts["nbytes"] // parts["chunk"]), 1)
    row = np.repeat(np.arange(len(parts)), counts)
    ends = np.cumsum(counts)
    number = np.arange(len(row)) - np.repeat(ends - counts, counts)
    nbytes = parts["chunk"][row]
    if len(parts):
        nbytes[ends - 1] = parts["nbytes"] - (counts - 1) * parts["chunk"]
    if parts["ll"].any():
        # An LL line carries 8 bytes of data in 16.
        nbytes = np.where(parts["ll"][row] > 0, 16 * -(-nbytes // 8), nbytes)
    return row, number, nbytes


def first_steps(parts: Table) -> IntArray:
    """FIFO step at which each part starts: parts of one connection follow each other."""
    counts = np.maximum(-(-parts["nbytes"] // parts["chunk"]), 1)
    key = (
        parts["channel"].astype(np.int64) << 40
        | parts["direction"].astype(np.int64) << 36
        | parts["peer"]
    )
    order = np.argsort(key, kind="stable")
    before = np.cumsum(counts[order]) - counts[order]
    fresh = np.ones(len(order), np.bool_)
    fresh[1:] = key[order][1:] != key[order][:-1]
    start = np.maximum.accumulate(np.where(fresh, before, 0))
    steps = np.empty(len(parts), np.int64)
    steps[order] = before - start
    return steps


def p2p_messages(
    parts: Table,
    nics: Callable[[Table], tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]],
    *,
    intra: bool = False,
) -> Table:
    """Messages of all parts but a rank's own data, by channel, batch and work.

    Args:
        parts: array of `p2p.PART`, own data left out.
        nics: NIC and proxy rank of each part that crosses hosts.
        intra: also list messages between ranks of one host.

    Returns:
        Array of `MESSAGE`.
    """
    chosen = parts if intra else parts[parts["intra"] == 0]
    row, number, nbytes = expand(chosen)
    out = np.zeros(len(row), MESSAGE)
    for name, source in (
        ("channel", "channel"),
        ("group", "batch"),
        ("peer", "peer"),
        ("direction", "direction"),
    ):
        out[name] = chosen[source][row]
    out["nbytes"] = nbytes
    out["step"] = first_steps(chosen)[row] + number
    nic = np.full(len(chosen), -1, np.int64)
    proxy = np.full(len(chosen), -1, np.int64)
    remote = chosen["intra"] == 0
    nic[remote], proxy[remote] = nics(chosen[remote])
    out["nic"] = nic[row]
    out["proxy"] = proxy[row]
    return out


def p2p_program(parts: Table) -> Program:
    """The program of a group: one stream a part, batches as phases.

    Args:
        parts: array of `p2p.PART`, own data left out.
    """
    row, number, nbytes = expand(parts)
    ops = np.zeros(len(row), OP)
    ops["peer"] = parts["peer"][row]
    ops["nbytes"] = nbytes
    ops["call"] = number
    ops["kind"] = np.where(parts["direction"] == 0, SEND, RECV)[row]
    ops["flags"] = np.where(parts["intra"] != 0, INTRA, 0)[row]
    ops["steps"] = 1
    ops["conn"] = CONN_P2P
    counts = np.bincount(row, minlength=len(parts))
    streams = np.zeros(len(parts), STREAM)
    streams["channel"] = parts["channel"]
    streams["group"] = parts["batch"] & 0xFF
    streams["lane"] = 2 * parts["slot"] + parts["direction"]
    streams["phase"] = parts["batch"]
    streams["count"] = counts
    streams["first"] = np.cumsum(counts) - counts
    return Program(streams, ops, windows=parts["window"].astype(np.uint8))
