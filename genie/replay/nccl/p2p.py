"""Sends and receives: parts, channels, messages and concurrent batches (spec section 3.9).

A group of sends and receives becomes *works*, one a round of the communicator's schedule that has
anything to do. Each direction of a work is cut into parts, one a channel, and each part into
messages. On a channel, works are fused into batches: a batch's parts run side by side, batches one
after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from genie.replay.nccl.rounds import Rounds, bit_reverse
from genie.replay.nccl.versions import Switch, Version

IntArray = npt.NDArray[np.int64]

PARTS: Switch[str] = Switch("p2p parts", {"2.20.3": "rounded", "2.22.3": "counted"})
PART_CHANNEL: Switch[str] = Switch(
    "p2p channel of a part", {"2.20.3": "wrapped", "2.22.3": "reversed", "2.28.3": "plain"}
)
LL_LIMIT: Switch[str] = Switch(
    "p2p LL up to 16 KiB times", {"2.20.3": "part", "2.22.3": "per_peer", "2.29.2": "parts"}
)
BATCHES: Switch[str] = Switch(
    "p2p batches",
    {"2.20.3": "fused", "2.22.3": "eight", "2.28.7": "block", "2.29.2": "epoch"},
)

LL_THRESHOLD = 16384
"""NCCL_P2P_LL_THRESHOLD."""
MAX_BATCH = 8

PART = np.dtype(
    [
        ("work", "i4"),
        ("direction", "u1"),
        ("peer", "i4"),
        ("channel", "u2"),
        ("batch", "u4"),
        ("slot", "u1"),
        ("ll", "u1"),
        ("intra", "u1"),
        ("window", "u1"),
        ("begin", "i8"),
        ("nbytes", "i8"),
        ("chunk", "i8"),
    ]
)
"""One direction of one work on one channel.

`direction` 0 send, 1 receive; `batch` counts on the channel, `slot` is the place in it; `begin`
and `nbytes` are the part of the peer's data, `chunk` the data bytes of a full message; `window`
messages may be in flight at once.
"""


@dataclass(frozen=True)
class P2P:
    """What a communicator fixes for its sends and receives.

    Attributes:
        channels: p2p channels, a power of two.
        per_peer: channels that one peer may use.
        chunk_bytes: p2p step (NCCL_P2P_NET_CHUNKSIZE, NVL or PCI on one host).
        n_ranks: ranks.
        n_hosts: hosts.
        version: NCCL release.
        ll_threshold: NCCL_P2P_LL_THRESHOLD.
        net_ll: NCCL_ALLOC_P2P_NET_LL_BUFFERS: LL over the network too.
        chunk_override: NCCL_CHUNK_SIZE, 0 unset.
        epochs: NCCL_P2P_EPOCH_ENABLE: a pass over the schedule starts new batches.
        ll_step_bytes: wire bytes of one LL FIFO step.
    """

    channels: int
    per_peer: int
    chunk_bytes: int
    n_ranks: int
    n_hosts: int
    version: Version
    ll_threshold: int = LL_THRESHOLD
    net_ll: bool = False
    chunk_override: int = 0
    epochs: bool = True
    ll_step_bytes: int = 65536

    @property
    def fewest_parts(self) -> int:
        """Parts that data is cut into before its size asks for more."""
        parts = self.per_peer
        while parts * self.n_ranks > self.channels and parts > 1:
            parts //= 2
        return parts


@dataclass(frozen=True, eq=False)
class Split:
    """How sizes are cut: all arrays are by size.

    Attributes:
        parts: number of parts.
        part_bytes: bytes of a part but the last.
        ll: whether the parts use LL (releases that decide it once for all parts).
        chunk: data bytes of a full message (the same releases).
    """

    parts: IntArray
    part_bytes: IntArray
    ll: npt.NDArray[np.bool_]
    chunk: IntArray


def split(
    nbytes: IntArray, network: npt.NDArray[np.bool_], own: npt.NDArray[np.bool_], rules: P2P
) -> Split:
    """Cuts each size into parts.

    Args:
        nbytes: bytes to one peer.
        network: whether that peer is on another host.
        own: whether that peer is this rank itself (a copy, never LL after 2.22.3).
        rules: the communicator's numbers.
    """
    version, step, most = rules.version, rules.chunk_bytes, rules.per_peer
    counted = PARTS.at(version) == "counted"
    fewest = rules.fewest_parts
    ll = np.zeros(len(nbytes), np.bool_)
    may_ll = ~own & (~network | rules.net_ll)
    limit = LL_LIMIT.at(version)
    steps = np.full(len(nbytes), step, np.int64)
    if limit == "per_peer":
        ll = may_ll & (nbytes <= rules.per_peer * rules.ll_threshold)
        steps[ll] = rules.ll_step_bytes
    if rules.n_hosts > 1:
        least, greatest = steps // 2, steps
    else:
        least, greatest = steps // 8, steps * 32
    if counted:
        parts = np.minimum(fewest, -(-nbytes // least))
        size = np.maximum(least, -(-nbytes // np.maximum(parts, 1)))
    else:
        parts = np.full(len(nbytes), fewest, np.int64)
        size = np.maximum(least, -(-nbytes // fewest))
    while True:
        more = (size > greatest) & (parts <= most // 2)
        if not more.any():
            break
        parts = np.where(more, parts * 2, parts)
        size = np.where(more, -(-nbytes // np.maximum(parts, 1)), size)
    if counted:
        parts = np.maximum(parts, 1)
        size = -(nbytes // -parts)
        size = -(size // -4096) * 4096
    else:
        size = -(-size // least) * least
        parts = np.maximum(-(-nbytes // np.maximum(size, 1)), 1)
    if limit == "parts":
        ll = may_ll & (nbytes <= parts * rules.ll_threshold)
    chunk = _chunk(nbytes, network & ~ll, ll, rules)
    return Split(parts, size, ll, chunk)


def _chunk(
    nbytes: IntArray, network: npt.NDArray[np.bool_], ll: npt.NDArray[np.bool_], rules: P2P
) -> IntArray:
    """Data bytes of a full message, for sizes of `nbytes`."""
    step = rules.chunk_bytes
    chunk = np.full(len(nbytes), step, np.int64)
    chunk[network & (nbytes < 8 * step)] = step // 2
    chunk[network & (nbytes < step)] = step // 4
    if rules.chunk_override:
        chunk[network] = rules.chunk_override
    chunk[ll] = rules.ll_step_bytes // 2
    if PARTS.at(rules.version) == "counted":
        # The value travels as an 8-bit float with 3 mantissa bits, rounded down.
        shift = np.maximum(np.floor(np.log2(np.maximum(chunk, 1))).astype(np.int64) - 3, 0)
        chunk = chunk >> shift << shift
    return np.maximum(chunk, 1)


@dataclass(frozen=True, eq=False)
class Works:
    """The works of one rank in one group, in issue order.

    Attributes:
        round: round of the schedule.
        turn: pass over the schedule (several sends to one peer need several).
        send_peer: rank sent to, -1 none.
        receive_peer: rank received from, -1 none.
        send_bytes: bytes sent.
        receive_bytes: bytes received.
        base: first channel.
    """

    round: IntArray
    turn: IntArray
    send_peer: IntArray
    receive_peer: IntArray
    send_bytes: IntArray
    receive_bytes: IntArray
    base: IntArray


def works(
    sends: Sequence[tuple[int, int]] | npt.NDArray[np.int64],
    receives: Sequence[tuple[int, int]] | npt.NDArray[np.int64],
    schedule: Rounds,
    n_ranks: int,
) -> Works:
    """Arranges calls along the schedule.

    Args:
        sends: (peer, bytes) of each send call, in call order.
        receives: (peer, bytes) of each receive call.
        schedule: this rank's rounds.
        n_ranks: ranks of the communicator.
    """
    out = _placed(np.asarray(sends, np.int64).reshape(-1, 2), schedule.send, n_ranks)
    into = _placed(np.asarray(receives, np.int64).reshape(-1, 2), schedule.receive, n_ranks)
    count = len(schedule.send)
    turns = 1 + max((int(p[0].max()) for p in (out, into) if len(p[0])), default=0)
    table = np.full((2, turns, count), -1, np.int64)
    for side, (turn, at, nbytes) in enumerate((out, into)):
        table[side, turn, at] = nbytes
    turn, at = np.nonzero((table >= 0).any(axis=0))
    bytes_out, bytes_in = table[0, turn, at], table[1, turn, at]
    return Works(
        at,
        turn,
        np.where(bytes_out >= 0, schedule.send[at], -1),
        np.where(bytes_in >= 0, schedule.receive[at], -1),
        np.maximum(bytes_out, 0),
        np.maximum(bytes_in, 0),
        schedule.base[at],
    )


def _placed(calls: IntArray, peers: IntArray, n_ranks: int) -> tuple[IntArray, IntArray, IntArray]:
    """Pass, round and bytes of each call: the n-th call to a peer waits for pass n."""
    round_of = np.full(n_ranks, -1, np.int64)
    valid = peers >= 0
    round_of[peers[valid]] = np.nonzero(valid)[0]
    order = np.argsort(calls[:, 0], kind="stable")
    sorted_peers = calls[order, 0]
    fresh = np.ones(len(order), np.bool_)
    fresh[1:] = sorted_peers[1:] != sorted_peers[:-1]
    number = np.arange(len(order))
    turn = np.empty(len(order), np.int64)
    turn[order] = number - np.maximum.accumulate(np.where(fresh, number, 0))
    return turn, round_of[calls[:, 0]], calls[:, 1]


def parts(
    rank: int,
    jobs: Works,
    rules: P2P,
    host_of: npt.NDArray[np.int64],
    proxies: npt.NDArray[np.int64] | None = None,
) -> npt.NDArray[np.void]:
    """Parts of all works, by channel, batch and work; own data (a copy) has parts too.

    Args:
        rank: this rank.
        jobs: the works.
        rules: the communicator's numbers.
        host_of: host of each rank.
        proxies: local rank of the proxy of sends to each rank (PXN); one for all if not given.
    """
    into = _side(rank, 1, jobs.receive_peer, jobs.receive_bytes, jobs, rules, host_of)
    out = _side(rank, 0, jobs.send_peer, jobs.send_bytes, jobs, rules, host_of)
    columns = {name: np.concatenate([into[name], out[name]]) for name in into}
    # Receives come first, so a stable sort leaves a work's receives before its sends.
    order = np.argsort(columns["channel"] << 32 | columns["work"], kind="stable")
    table = np.zeros(len(order), PART)
    for name, column in columns.items():
        table[name] = column[order]
    _batch(table, jobs, rules)
    _windows(table, proxies)
    return table


def _side(
    rank: int,
    direction: int,
    peers: IntArray,
    sizes: IntArray,
    jobs: Works,
    rules: P2P,
    host_of: npt.NDArray[np.int64],
) -> dict[str, npt.NDArray[np.generic]]:
    """Columns of the parts of all sends or all receives, by work."""
    (index,) = np.nonzero(peers >= 0)
    peer, whole = peers[index], sizes[index]
    network = host_of[peer] != host_of[rank]
    cut = split(whole, network, peer == rank, rules)
    row = np.repeat(np.arange(len(index)), cut.parts)
    number = np.arange(len(row)) - np.repeat(np.cumsum(cut.parts) - cut.parts, cut.parts)
    mapping = PART_CHANNEL.at(rules.version)
    offset = number
    if mapping == "reversed":
        offset = bit_reverse(number, rules.channels)
    elif mapping == "wrapped":
        offset = number % rules.per_peer
    begin = np.minimum(number * cut.part_bytes[row], whole[row])
    nbytes = np.minimum(begin + cut.part_bytes[row], whole[row]) - begin
    ll, chunk = cut.ll[row], cut.chunk[row]
    if LL_LIMIT.at(rules.version) == "part":
        ll = (nbytes <= rules.ll_threshold) & (~network[row] | rules.net_ll)
        chunk = _chunk(nbytes, network[row] & ~ll, ll, rules)
    return {
        "work": index[row],
        "direction": np.full(len(row), direction, np.uint8),
        "peer": peer[row],
        "channel": (jobs.base[index][row] + offset) % rules.channels,
        "ll": ll,
        "intra": ~network[row],
        "begin": begin,
        "nbytes": nbytes,
        "chunk": chunk,
    }


def _batch(table: npt.NDArray[np.void], jobs: Works, rules: P2P) -> None:
    """Fills `batch` and `slot` of sorted parts: which works of a channel run side by side."""
    if len(table) == 0:
        return
    key = table["channel"].astype(np.int64) << 32 | table["work"]
    opens_pair = np.ones(len(key), np.bool_)
    opens_pair[1:] = key[1:] != key[:-1]
    pairs, inverse = key[opens_pair], np.cumsum(opens_pair) - 1
    channel, work = pairs >> 32, pairs & 0xFFFFFFFF
    number = np.arange(len(pairs))
    first = np.ones(len(pairs), np.bool_)
    first[1:] = channel[1:] != channel[:-1]
    start = np.maximum.accumulate(np.where(first, number, 0))
    style = BATCHES.at(rules.version)
    if style == "epoch" and not rules.epochs:
        style = "block"
    if style == "epoch" or (style != "fused" and not jobs.turn.any()):
        if style == "eight":
            batch = (number - start) // MAX_BATCH
        else:
            block = jobs.turn[work] * (1 << 32) + jobs.round[work] // MAX_BATCH
            fresh = ~first
            fresh[1:] &= block[1:] != block[:-1]
            seen = np.cumsum(fresh)
            batch = seen - seen[start]
    else:
        leads = channel == jobs.base[work] % rules.channels
        batch = _batches_one_by_one(channel, jobs.round[work], leads, style)
    opens = first.copy()
    opens[1:] |= batch[1:] != batch[:-1]
    slot = number - np.maximum.accumulate(np.where(opens, number, 0))
    table["batch"] = batch[inverse]
    table["slot"] = slot[inverse]


def _batches_one_by_one(
    channel: IntArray, round_: IntArray, leads: npt.NDArray[np.bool_], style: str
) -> IntArray:
    """Batches where a round may come up again: no batch holds it twice.

    Args:
        channel: channel of each (channel, work), ascending.
        round_: round of the work.
        leads: whether the work's first part is on this channel.
        style: value of `BATCHES`; "fused" also starts anew where every 8th round begins.
    """
    batch = np.zeros(len(channel), np.int64)
    held: set[int] = set()
    current, last_channel, block = 0, -1, -1
    rows = zip(channel.tolist(), round_.tolist(), leads.tolist(), strict=True)
    for i, (c, r, lead) in enumerate(rows):
        if c != last_channel:
            held, current, last_channel = set(), 0, c
        elif (
            r in held
            or len(held) == MAX_BATCH
            or (style == "block" and r // MAX_BATCH != block)
            or (style == "fused" and lead and r % MAX_BATCH == 0)
        ):
            held, current = set(), current + 1
        held.add(r)
        block = r // MAX_BATCH
        batch[i] = current
    return batch


def _windows(table: npt.NDArray[np.void], proxies: npt.NDArray[np.int64] | None) -> None:
    """Fills `window`: min(8, 16 / parts that share a proxy queue) messages (spec 3.9)."""
    table["window"] = 8
    rows = np.flatnonzero(table["intra"] == 0)
    if not len(rows):
        return
    channel, batch, peer, sends = (
        table["channel"][rows],
        table["batch"][rows],
        table["peer"][rows],
        table["direction"][rows] == 0,
    )
    # Rows come by channel and batch, so those of one batch are neighbours; all its receives
    # share this rank's queue, its sends the queue of their proxy.
    fresh = np.zeros(len(rows), np.int64)
    fresh[1:] = (channel[1:] != channel[:-1]) | (batch[1:] != batch[:-1])
    queue = np.zeros(len(rows), np.int64)
    if proxies is not None:
        queue[sends] = proxies[peer[sends]]
    queues = int(queue.max()) + 2
    key = np.cumsum(fresh) * queues + np.where(sends, queue + 1, 0)
    counts = np.bincount(key)
    table["window"][rows] = np.clip(16 // counts[key], 1, 8)
