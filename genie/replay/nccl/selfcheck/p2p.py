"""Golden p2p, p2p_uneven and ib: sends and receives, and the work requests of messages."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from genie.replay.cluster import Cluster
from genie.replay.nccl import golden
from genie.replay.nccl.env import Nccl
from genie.replay.nccl.schedule import p2p_group, schedule
from genie.replay.nccl.selfcheck.common import entry_cluster, entry_name
from genie.replay.nccl.selfcheck.plans import settings
from genie.replay.nccl.selfcheck.tally import Tally
from genie.replay.nccl.selfcheck.wire import Streams, sent
from genie.replay.nccl.wire import MULTI_SEND_IMM, Connection, multi_send, receives, sends

Calls = list[tuple[int, int]]

_COUNTS = {
    "p2pnChannels": "p2p_channels",
    "p2pnChannelsPerPeer": "p2p_channels_per_peer",
    "p2pSchedGroupSize": "p2p_group_size",
    "p2pChunkSize": "p2p_chunk_bytes",
}


def check_p2p(version: str) -> Tally:
    """Compare counts, NICs, all_to_all and single sends."""
    tally = Tally("p2p", version)
    nccl = settings(version, None)
    for entry in golden.load("p2p", version)["clusters"]:
        cluster = entry_cluster(entry).with_nccl(nccl)
        _frame(tally, cluster, entry)
        where: tuple[object, ...]
        for group in entry["alltoall"]:
            where = (entry_name(entry), "all_to_all", group["bytesPerPeer"])
            made = schedule(
                "all_to_all",
                count=group["bytesPerPeer"],
                dtype="int8",
                cluster=cluster,
                nccl=nccl,
            )
            messages = made.messages(group["rank"], intra=True)
            _same_group(tally, messages, group["plans"], group["rank"], where)
        for group in entry["sendrecv"]:
            where = (entry_name(entry), "send", group["peer"], group["bytes"])
            calls = [(group["peer"], group["bytes"])]
            messages = _messages(calls, [], cluster, nccl, group["rank"])
            _same_group(tally, messages, group["plans"], group["rank"], where)
    return tally


def check_p2p_uneven(version: str = "2.30") -> Tally:
    """Compare uneven all_to_all, gather, scatter and sends, every rank of every group."""
    tally = Tally("sub/p2p_uneven", version)
    nccl = settings(version, None)
    for entry in golden.load("sub/p2p_uneven", version)["clusters"]:
        cluster = entry_cluster(entry).with_nccl(nccl)
        _frame(tally, cluster, entry)
        for group in entry["groups"]:
            into: list[Calls] = [[] for _ in range(entry["nRanks"])]
            for source, calls in enumerate(group["sends"]):
                for destination, nbytes in calls:
                    into[destination].append((source, nbytes))
            for text, plans in group["ranks"].items():
                rank = int(text)
                calls = [(peer, nbytes) for peer, nbytes in group["sends"][rank]]
                messages = _messages(calls, into[rank], cluster, nccl, rank)
                where = (entry["case"], group["kind"], group["name"])
                _same_group(tally, messages, plans, rank, where)
    return tally


def _messages(
    out: Calls, into: Calls, cluster: Cluster, nccl: Nccl, rank: int
) -> npt.NDArray[np.void]:
    return p2p_group(out, into, cluster, nccl, rank).messages(rank, intra=True)


def _frame(tally: Tally, cluster: Cluster, entry: dict[str, Any]) -> None:
    name = entry_name(entry)
    for field, attribute in _COUNTS.items():
        tally.same(getattr(cluster, attribute), entry[field], name, field)
    for rank, peer, channel, nic, proxy in entry["netDev"]:
        got = cluster.nic(rank, peer, channel, "p2p", "send")
        tally.same(got, (nic, proxy), name, "NIC", rank, peer, channel)


def _same_group(
    tally: Tally,
    messages: npt.NDArray[np.void],
    plans: list[dict[str, Any]],
    rank: int,
    where: tuple[object, ...],
) -> None:
    """Compare one rank's sends per (channel, batch, peer) with golden's works and parts."""
    want: Streams = {}
    [plan] = plans
    for channel, batches in plan["batches"].items():
        for batch, works in enumerate(batches):
            for index in works:
                work = plan["works"][index]
                for at, _, _, runs in work["parts"]:
                    if at == int(channel) and work["sendRank"] != rank:
                        sizes = [size for repeat, size in runs for _ in range(repeat)]
                        want.setdefault((at, batch, work["sendRank"]), []).extend(sizes)
    got = sent(messages)
    for key in want.keys() | got.keys():
        tally.same(got.get(key), want.get(key), *where, "rank", rank, key)


def check_ib(version: str) -> Tally:
    """Compare the work requests of sends, receives and grouped sends."""
    tally = Tally("ib", version)
    data = golden.load("ib", version)
    for entry in data["sends"]:
        sizes, requests, expected = zip(*entry["messages"], strict=True)
        number = np.arange(len(sizes))
        connection = _connection(entry, version)
        table = sends(number, np.array(requests), np.array(sizes), connection)
        for i, want in enumerate(expected):
            tally.same(_rows(table[table["message"] == i]), want, "send", connection, sizes[i])
    for entry in data["recv_posts"]:
        requests, expected = zip(*entry["ops"], strict=True)
        number = np.arange(len(requests))
        connection = _connection(entry, version)
        table = receives(number, np.array(requests), connection, entry["n_recvs"])
        for i, want in enumerate(expected):
            tally.same(_rows(table[table["message"] == i]), want, "receive", connection, i)
    for entry in data["multi_sends"]:
        grouped = np.array(entry["sizes"])
        connection = _connection(entry, version)
        table = multi_send(np.arange(len(grouped)), 0, grouped, connection)
        tally.same(_rows(table), entry["wrs"], "grouped send", connection, entry["sizes"])
    return tally


def _connection(entry: dict[str, Any], version: str) -> Connection:
    return Connection(
        devices=entry["ndevs"],
        qps=entry["ndevs"] * entry["qps_per_connection"],
        split=bool(entry.get("split_data_on_qps", 0)),
        adaptive=bool(entry.get("ar", 0)),
        first_size_imm=MULTI_SEND_IMM.at(settings(version, None).version),
    )


def _rows(table: npt.NDArray[np.void]) -> list[list[object]]:
    return [list(row)[1:] for row in table.tolist()]
