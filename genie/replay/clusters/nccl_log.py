"""Reads NCCL_DEBUG=INFO logs: what they say of one communicator, and nothing more.

Formats of NCCL 2.3 to 2.30 (spec nccl-wire-schedule section 11 and the corpus): rank lists
"Channel 00/16 : 0 7 6", links "Ring 00 : 3 -> 0 -> 1", trees written children first
("1/8/-1->0->-1") or parent first ("-1->0->1/8/-1"), edges "via NET/IB/0(8)", counts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TypeVar

from genie.errors import InputError
from genie.replay.clusters.log_views import COMM, RANKS, choose, lines, split

__all__ = ["LogFacts", "LogGraph", "read_log"]

_BUS = re.compile(r"busId (?:0x)?([0-9a-fA-F]{1,12})\b")
_HOSTS = re.compile(r"nNodes (\d+) localRanks (\d+)")
_VERSION = re.compile(r"NCCL version (\d+)\.(\d+)\.(\d+)")
_LINK = re.compile(r"Ring (\d+)\s*:\s*(\d+) -> (\d+) -> (\d+)\s*$")
_TREE_LINE = re.compile(r"Tree (\d+)\s*:\s*(-?\d+) -> (\d+) -> (-?\d+(?:/-?\d+)*)\s*$")
_TREE_ITEM = re.compile(r"\[(\d+)\]\s+(\S+)")
_EDGE = re.compile(
    r"(?:Channel|Ring) (\d+)(?:/(\d+))?\s*:\s*(\d+)(?:\[\w+\])? -> (\d+)(?:\[\w+\])?"
    r"(?: \[(send|receive)\])? via (\S+)"
)
_NET = re.compile(r"NET/[^/\s]+/(\d+)(?:\((\d+)\))?")
_COUNT = re.compile(r"(\d+) (coll|collnet|nvls|p2p) channels(?! per)")
_PER_PEER = re.compile(r"(\d+) p2p channels per peer")
_CHUNK = re.compile(r"P2P Chunksize set to (\d+)")
_ENV = re.compile(r"(NCCL_\w+) set by environment to (.*?)\.?\s*$")
_NICS = re.compile(r"NET/\S+\s*: Using (\[\d+\].*)$")
_HEAD = re.compile(r"NVLS Head\s*(\d+):((?:\s+\d+)+)\s*$")
_PATTERN = re.compile(
    r"Pattern (\d+), crossNic (\d+), nChannels (\d+), (?:bw|speed) ([\d.]+)/([\d.]+), "
    r"type (\w+)/(\w+)(?:, sameChannels (\d+))?"
)
_ORDER = re.compile(r"^\s*(\d+) :((?:\s+(?:NET|GPU)/\S+)+)\s*$")
_LINE_BYTES = 1000  # NCCL cuts a line at 1 KiB: what stands last there may be cut too

Row = TypeVar("Row")


@dataclass
class LogGraph:
    """One "Pattern" block: a search result, GPUs named by rank."""

    pattern: int
    cross_nic: int
    n_channels: int
    bw_intra: float
    bw_inter: float
    type_intra: str
    type_inter: str
    same_channels: bool
    intra: list[tuple[int, ...]] = field(default_factory=list)
    inter: list[tuple[int, int]] = field(default_factory=list)


@dataclass
class LogFacts:
    """What a log says of one communicator; absent things are None or empty.

    Attributes:
        version: NCCL release.
        n_ranks: Ranks.
        n_hosts: Hosts (nNodes).
        local_ranks: Ranks on the host that said so.
        host_name: Host name by rank.
        rings: Ranks in ring order by channel, as far as printed.
        links: (previous, next) by channel and rank.
        trees: (parent, children) by channel and rank.
        total: Channels, from "Channel 00/16".
        counts: Channel counts by kind: "coll", "nvls", "p2p", "per_peer".
        p2p_chunk: Step of a send/recv part, bytes.
        env: Variables that NCCL reports as set.
        heads: Ranks of each NVLS head, one a host.
        nics: (NIC, proxy rank or None) by channel, rank, peer and "send" or "recv".
        local_pairs: Pairs of ranks joined inside a host.
        remote_pairs: Pairs of ranks joined over the network.
        n_nics: NICs of a host.
        bus: Rank by PCI bus id of its GPU (hosts of one job are equal: any host's rank).
        graphs: Search results, from the GRAPH subsystem.
        notes: Oddities worth telling.
    """

    version: tuple[int, int, int] | None = None
    n_ranks: int | None = None
    n_hosts: int | None = None
    local_ranks: int | None = None
    host_name: dict[int, str] = field(default_factory=dict)
    rings: dict[int, list[int]] = field(default_factory=dict)
    links: dict[int, dict[int, tuple[int, int]]] = field(default_factory=dict)
    trees: dict[int, dict[int, tuple[int, tuple[int, ...]]]] = field(default_factory=dict)
    total: int | None = None
    counts: dict[str, int] = field(default_factory=dict)
    p2p_chunk: int | None = None
    env: dict[str, str] = field(default_factory=dict)
    heads: dict[int, list[int]] = field(default_factory=dict)
    nics: dict[tuple[int, int, int, str], tuple[int, int | None]] = field(default_factory=dict)
    local_pairs: set[tuple[int, int]] = field(default_factory=set)
    remote_pairs: set[tuple[int, int]] = field(default_factory=set)
    n_nics: int | None = None
    bus: dict[int, int] = field(default_factory=dict)
    graphs: list[LogGraph] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def read_log(text: str, where: str = "log") -> LogFacts:
    """Return the facts of the largest communicator in a log.

    Args:
        text: The log; lines of several ranks may be mixed.
        where: File name for messages.

    Raises:
        InputError: No NCCL lines, lines that contradict each other, or two jobs in one log.
    """
    common = LogFacts()
    for _, _, line in lines(text):
        _read_common(common, line)
    chosen, communicators = choose(split(text), where)
    if communicators > 1:
        common.notes.append(
            f"the log shows {communicators} communicators: the largest, printed first, is used"
        )
    names: dict[int, str] = {}
    for view in chosen:
        buses = (_BUS.search(line) for _, line in view.lines if "busId" in line)
        for bus in buses:
            if bus and view.rank is not None:
                common.bus.setdefault(int(bus[1], 16), view.rank)
    for view in chosen:
        if view.rank is not None and view.process[0]:
            names[view.rank] = view.process[0]
        for number, line in view.lines:
            _read(common, line, f"{where}, line {number}")
        if view.n_ranks is not None:
            common.n_ranks = view.n_ranks
    common.host_name = names
    _check(common, where)
    return common


def _read_common(facts: LogFacts, line: str) -> None:
    """Facts of the job, whichever communicator is being set up."""
    if "NCCL version" in line:
        match = _VERSION.search(line)
        if match:
            facts.version = (int(match[1]), int(match[2]), int(match[3]))
    elif "set by environment" in line:
        match = _ENV.search(line)
        if match:
            facts.env[match[1]] = match[2]
    elif ": Using [" in line:
        match = _NICS.search(line)
        if match:
            facts.n_nics = len(re.findall(r"\[\d+\]", match[1]))


def _read(facts: LogFacts, line: str, where: str) -> None:
    if " via " in line:
        match = _EDGE.search(line)
        if match:
            _read_edge(facts, match)
        return
    if "comm 0x" in line:
        match = _HOSTS.search(line)
        if match:
            facts.n_hosts, facts.local_ranks = int(match[1]), int(match[2])
        if COMM.search(line):
            return
    match = RANKS.search(line)
    if match:
        _read_ranks(facts, match, where)
        return
    match = _LINK.search(line)
    if match:
        channel, before, rank, after = (int(x) for x in match.groups())
        _put(facts.links.setdefault(channel, {}), rank, (before, after), "ring", channel, where)
        return
    match = _TREE_LINE.search(line)
    if match:
        row = _tree(f"{match[2]}->{match[3]}->{match[4]}")
        assert row is not None
        trees = facts.trees.setdefault(int(match[1]), {})
        _put(trees, row[0], row[1], "tree", int(match[1]), where)
        return
    if line.lstrip().startswith("Trees"):
        _read_trees(facts, line, where)
        return
    _read_rest(facts, line)


def _read_rest(facts: LogFacts, line: str) -> None:
    if "channels" in line:
        for count, kind in _COUNT.findall(line):
            facts.counts[kind] = int(count)
        match = _PER_PEER.search(line)
        if match:
            facts.counts["per_peer"] = int(match[1])
    match = _CHUNK.search(line)
    if match:
        facts.p2p_chunk = int(match[1])
    match = _HEAD.search(line)
    if match:
        facts.heads[int(match[1])] = [int(x) for x in match[2].split()]
    match = _PATTERN.search(line)
    if match:
        facts.graphs.append(
            LogGraph(
                pattern=int(match[1]),
                cross_nic=int(match[2]),
                n_channels=int(match[3]),
                bw_intra=float(match[4]),
                bw_inter=float(match[5]),
                type_intra=match[6],
                type_inter=match[7],
                same_channels=match[8] == "1",
            )
        )
    match = _ORDER.search(line)
    if match and facts.graphs and len(facts.graphs[-1].intra) < facts.graphs[-1].n_channels:
        graph = facts.graphs[-1]
        items = match[2].split()
        gpus = [_gpu(facts, item[4:]) for item in items if item.startswith("GPU")]
        nics = [_number(item[4:]) for item in items if item.startswith("NET")]
        graph.intra.append(tuple(gpus))
        if len(nics) == 2:
            graph.inter.append((nics[0], nics[1]))


def _number(text: str) -> int:
    """Return the NIC of "0", or of "0-1" where the host's number stands first, in hex."""
    last = text.rsplit("-", maxsplit=1)[-1]
    return int(last, 16) if re.fullmatch(r"[0-9a-fA-F]{1,12}", last) else -1


def _gpu(facts: LogFacts, text: str) -> int:
    """Return the rank of "3", or of "0-1b000" where a PCI bus id stands for it; -1 unknown."""
    if "-" not in text:
        return int(text) if text.isdigit() and len(text) < 9 else -1
    return facts.bus.get(_number(text), -1)


def _read_edge(facts: LogFacts, match: re.Match[str]) -> None:
    channel, index, a, b = int(match[1]), match[2], int(match[3]), int(match[4])
    net = _NET.match(match[6])
    pair = (min(a, b), max(a, b))
    if net is None:
        if not match[6].startswith("NET"):
            facts.local_pairs.add(pair)
        return
    facts.remote_pairs.add(pair)
    if index not in (None, "0"):
        return  # connection 1 carries sends and receives, not collectives
    proxy = int(net[2]) if net[2] else None
    if match[5] == "receive":
        facts.nics[channel, b, a, "recv"] = (int(net[1]), None)
    else:
        facts.nics[channel, a, b, "send"] = (int(net[1]), proxy)


def _read_ranks(facts: LogFacts, match: re.Match[str], where: str) -> None:
    channel = int(match[1])
    order = [int(x) for x in match[3].split()]
    if len(set(order)) != len(order):
        raise InputError(f"{where}: channel {channel} lists a rank twice: {order}")
    if match[2]:
        total = int(match[2])
        if facts.total not in (None, total):
            raise InputError(f"{where}: {total} channels, and {facts.total} in an earlier line")
        if channel >= total:
            raise InputError(f"{where}: channel {channel} of {total}")
        facts.total = total
    known = facts.rings.get(channel)
    if known is not None and known != order:
        raise InputError(
            f"{where}: channel {channel} has two different rings: two communicators or jobs"
        )
    facts.rings[channel] = order


def _read_trees(facts: LogFacts, line: str, where: str) -> None:
    items = _TREE_ITEM.findall(line)
    if len(line) >= _LINE_BYTES and items:
        items = items[:-1]
    for channel, text in items:
        halves = [_tree(part) for part in text.split("|")]
        row = halves[0]
        if row is None:
            continue  # cut off in the middle: missing, and reported as such
        if len(halves) == 2 and halves[1] is not None and halves[1] != row:
            facts.notes.append(f"channel {channel}: reduce and broadcast trees differ; first kept")
        trees = facts.trees.setdefault(int(channel), {})
        _put(trees, row[0], row[1], "tree", int(channel), where)


def _tree(text: str) -> tuple[int, tuple[int, tuple[int, ...]]] | None:
    """Return rank, (parent, children) of either historic form; None if it is cut."""
    parts = text.split("->")
    if len(parts) != 3 or not all(re.fullmatch(r"-?\d+(/-?\d+)*", part) for part in parts):
        return None
    left, middle, right = parts
    if "/" in middle:
        return None
    down, up = (left, right) if "/" in left else (right, left)
    if "/" in up or "/" not in down:
        return None
    children = tuple(int(x) for x in down.split("/") if int(x) >= 0)
    return int(middle), (int(up), children)


def _put(table: dict[int, Row], rank: int, row: Row, what: str, channel: int, where: str) -> None:
    known = table.get(rank)
    if known is not None and known != row:
        raise InputError(
            f"{where}: rank {rank} has two different {what}s on channel {channel}: two "
            "communicators or jobs in one log",
            rank=rank,
        )
    table[rank] = row


def _check(facts: LogFacts, where: str) -> None:
    """Fill in what follows from the rest, and refuse numbers that cannot be."""
    named = set(facts.host_name)
    for order in facts.rings.values():
        named.update(order)
    for rows in facts.trees.values():
        for rank, (up, down) in rows.items():
            named.update({rank, *down} | ({up} if up >= 0 else set()))
    for links in facts.links.values():
        for rank, pair in links.items():
            named.update({rank, *pair})
    for pair in facts.local_pairs | facts.remote_pairs:
        named.update(pair)
    if not (facts.rings or facts.trees or facts.links):
        raise InputError(f"{where}: no rings and no trees (NCCL_DEBUG=INFO prints them)")
    if facts.n_ranks is None:
        facts.n_ranks = max(named) + 1
        facts.notes.append(
            f"the log does not say how many ranks there are: {facts.n_ranks}, the highest named"
        )
    if max(named) >= facts.n_ranks:
        raise InputError(f"{where}: rank {max(named)} in a communicator of {facts.n_ranks} ranks")
    highest = max((*facts.trees, *facts.rings, *facts.links), default=-1)
    if facts.total is None:
        facts.total = facts.counts.get("coll")
    if facts.total is None:
        facts.total = highest + 1
        facts.notes.append(f"the log does not say how many channels there are: {highest + 1} shown")
    if highest >= facts.total:
        raise InputError(f"{where}: channel {highest} among {facts.total} channels")
