"""Sends and receives against golden p2p.json (three releases) and p2p_uneven.json."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from genie.replay.nccl import p2p
from genie.replay.nccl.env import Nccl
from genie.replay.nccl.p2p_schedule import p2p_rules
from genie.replay.nccl.rounds import hosts_in_order, rounds
from genie.replay.nccl.schedule import p2p_group, schedule
from golden_data import VERSIONS, load
from reference.golden_wire import preset

#: What is compared in the packaged files; a drop means the test went blind.
COUNTS = {
    "2.30": {"rounds": 107, "works": 1490, "parts": 2580, "batches": 873, "messages": 182099},
    "2.27": {"rounds": 107, "works": 1490, "parts": 1767, "batches": 693, "messages": 182098},
    "2.21": {"rounds": 107, "works": 1490, "parts": 1767, "batches": 693, "messages": 183031},
}
UNEVEN = {"groups": 146, "works": 4486, "parts": 5026, "batches": 3960, "messages": 31156}


def cluster_of(entry):
    whole = preset(entry["machine"], entry["nNodes"])
    if "members" not in entry:
        return whole
    return whole.communicator([tuple(member) for member in entry["members"]])


def wire(nbytes, chunk, ll):
    """Sizes on the wire of one part."""
    sizes = [chunk] * (nbytes // chunk) + ([nbytes % chunk] if nbytes % chunk else [])
    return [16 * -(-size // 8) if ll else size for size in sizes or [0]]


def expand(runs):
    return [size for repeat, size in runs for _ in range(repeat)]


def compare_plan(entry, version, rank, sends, receives, plan, seen, where):
    """Works, parts and batches of one rank's group, and the messages made of them."""
    nccl = Nccl(version=version)
    cluster = cluster_of(entry).with_nccl(nccl)
    rules = p2p_rules(cluster, nccl)
    assert rules.channels == entry["p2pnChannels"], where
    assert rules.per_peer == entry["p2pnChannelsPerPeer"], where
    assert rules.chunk_bytes == entry["p2pChunkSize"], where
    host = np.asarray(cluster.host_of, np.int64)
    order = rounds(
        rank,
        hosts_in_order(host),
        channels=rules.channels,
        group_size=entry["p2pSchedGroupSize"],
        version=nccl.version,
    )
    jobs = p2p.works(sends, receives, order, cluster.n_ranks)
    table = p2p.parts(rank, jobs, rules, host)
    works = plan["works"]
    assert len(jobs.round) == len(works), where
    for i, work in enumerate(works):
        seen["works"] += 1
        assert jobs.base[i] == work["channelBase"], where
        for direction, name in ((0, "send"), (1, "recv")):
            rows = table[(table["work"] == i) & (table["direction"] == direction)]
            assert len(rows) == work[f"n{name.title()}Channels"], (where, i, name)
            if len(rows) == 0:
                continue
            rows = np.sort(rows, order="begin", kind="stable")
            assert (rows["peer"] == work[f"{name}Rank"]).all(), (where, i, name)
            assert rows["nbytes"].sum() == work[f"{name}Bytes"], (where, i, name)
            if work[f"{name}Rank"] == rank:
                continue
            assert rows["chunk"][0] == work[f"{name}Chunk"], (where, i, name)
            assert rows["ll"][0] == work[f"{name}LL"], (where, i, name)
            if direction == 0:
                compare_parts(rows, work["parts"], seen, (where, i))
    batches = {}
    for row in table:
        own = batches.setdefault(str(row["channel"]), {}).setdefault(int(row["batch"]), set())
        own.add(int(row["work"]))
    ours = {
        channel: [sorted(found[batch]) for batch in sorted(found)]
        for channel, found in batches.items()
    }
    assert ours == plan["batches"], where
    seen["batches"] += len(ours)
    compare_messages(entry, cluster, nccl, rank, sends, receives, plan, seen, where)


def compare_parts(rows, parts, seen, where):
    ours = [
        [
            int(row["channel"]),
            int(row["begin"]),
            int(row["begin"] + row["nbytes"]),
            wire(int(row["nbytes"]), int(row["chunk"]), row["ll"]),
        ]
        for row in rows
    ]
    assert ours == [[c, begin, end, expand(runs)] for c, begin, end, runs in parts], where
    seen["parts"] += len(ours)


def compare_messages(entry, cluster, nccl, rank, sends, receives, plan, seen, where):
    """`p2p_group(...).messages`: per (channel, batch, peer) what golden's works and parts say."""
    expected = {}
    for channel, batches in plan["batches"].items():
        for batch, members in enumerate(batches):
            for work in members:
                peer = plan["works"][work]["sendRank"]
                for at, _, _, runs in plan["works"][work]["parts"]:
                    if at == int(channel) and peer != rank:
                        expected.setdefault((at, batch, peer), []).extend(expand(runs))
    group = p2p_group(sends, receives, cluster, nccl, rank)
    messages = group.messages(rank, intra=True)
    ours = {}
    for row in messages[messages["direction"] == 0].tolist():
        ours.setdefault((row[0], row[1], row[2]), []).append(row[4])
    assert ours == expected, where
    remote = np.asarray(cluster.host_of)[messages["peer"]] != cluster.host_of[rank]
    assert group.messages(rank).tobytes() == messages[remote].tobytes(), where
    seen["messages"] += len(messages)


@pytest.mark.parametrize("version", VERSIONS)
def test_schedule_rounds_and_channels(version):
    seen = 0
    for entry in load("p2p", version)["clusters"]:
        nccl = Nccl(version=version)
        cluster = cluster_of(entry).with_nccl(nccl)
        hosts = hosts_in_order(cluster.host_of)
        for rank, expected in entry["schedule"].items():
            ours = rounds(
                int(rank),
                hosts,
                channels=cluster.p2p_channels,
                group_size=cluster.p2p_group_size,
                version=nccl.version,
            )
            pairs = np.stack([ours.send, ours.receive], axis=1).tolist()
            assert pairs == expected, (version, entry["machine"], rank)
            assert ours.base.tolist() == entry["channelBaseForRound"]
            seen += 1
    assert seen >= COUNTS[version]["rounds"]


@pytest.mark.parametrize("version", VERSIONS)
def test_all_to_all_and_send_recv(version):
    seen = Counter()
    for entry in load("p2p", version)["clusters"]:
        where = f"NCCL {version} {entry['machine']}:{entry['nNodes']}"
        for group in entry["alltoall"]:
            (plan,) = group["plans"]
            calls = [(rank, group["bytesPerPeer"]) for rank in range(entry["nRanks"])]
            compare_plan(entry, version, group["rank"], calls, calls, plan, seen, where)
            # The collective's own entry point makes the same messages.
            collective = schedule(
                "all_to_all",
                count=group["bytesPerPeer"],
                dtype="int8",
                cluster=cluster_of(entry),
                nccl=Nccl(version=version),
            )
            plain = p2p_group(calls, calls, collective.cluster, collective.nccl, group["rank"])
            ours = collective.messages(group["rank"])
            assert ours.tobytes() == plain.messages(group["rank"]).tobytes()
        for group in entry["sendrecv"]:
            (plan,) = group["plans"]
            sends = [(group["peer"], group["bytes"])]
            compare_plan(entry, version, group["rank"], sends, [], plan, seen, where)
    for name, least in COUNTS[version].items():
        assert name == "rounds" or seen[name] >= least, (name, seen[name])


@pytest.mark.parametrize("version", VERSIONS)
def test_nics(version):
    """NIC and proxy of every golden p2p edge, as messages show them."""
    seen = 0
    for entry in load("p2p", version)["clusters"]:
        cluster = cluster_of(entry)
        golden = {tuple(row[:3]): tuple(row[3:]) for row in entry["netDev"]}
        for rank in sorted({row[0] for row in entry["netDev"]}):
            made = schedule(
                "all_to_all", count=1 << 20, cluster=cluster, nccl=Nccl(version=version)
            )
            for row in made.messages(rank):
                key = (rank, int(row["peer"]), int(row["channel"]))
                if row["direction"] == 0 and key in golden:
                    assert (row["nic"], row["proxy"]) == golden[key], (entry["machine"], key)
                    seen += 1
    assert seen >= {"2.30": 80, "2.27": 32, "2.21": 32}[version]


def test_uneven_groups():
    """alltoallv (zero calls made or dropped), gather, scatter on communicators of any members."""
    seen = Counter()
    for entry in load("sub/p2p_uneven")["clusters"]:
        for group in entry["groups"]:
            seen["groups"] += 1
            where = f"{entry['case']} {group['kind']} {group['name']}"
            into = {rank: [] for rank in range(entry["nRanks"])}
            for source, calls in enumerate(group["sends"]):
                for destination, nbytes in calls:
                    into[destination].append((source, nbytes))
            for rank, plans in group["ranks"].items():
                (plan,) = plans
                sends = [tuple(call) for call in group["sends"][int(rank)]]
                compare_plan(entry, "2.30", int(rank), sends, into[int(rank)], plan, seen, where)
            compare_collective(entry, group, where)
    for name, least in UNEVEN.items():
        assert seen[name] >= least, (name, seen[name])


def compare_collective(entry, group, where):
    """The same group through `schedule(...)`, where it is a collective."""
    cluster, n = cluster_of(entry), entry["nRanks"]
    if group["kind"] in ("alltoallv", "alltoall"):
        matrix = np.zeros((n, n), np.int64)
        made = np.zeros((n, n), bool)
        for source, calls in enumerate(group["sends"]):
            for destination, nbytes in calls:
                matrix[source, destination] = nbytes
                made[source, destination] = True
        drops = bool(group["dropZeros"])
        if not drops and not made.all():
            return  # calls that no collective makes
        collective = schedule(
            "all_to_all", splits=matrix, dtype="int8", cluster=cluster, drop_zeros=drops
        )
    elif group["kind"] in ("gather", "scatter"):
        calls = group["sends"][group["root"] if group["kind"] == "scatter" else 0]
        sizes = {nbytes for row in group["sends"] for _, nbytes in row}
        if len(sizes) != 1:
            return
        collective = schedule(
            group["kind"], count=calls[0][1], dtype="int8", cluster=cluster, root=group["root"]
        )
    else:
        return
    collective.check()
    for rank in group["ranks"]:
        into = [
            (source, nbytes)
            for source, calls in enumerate(group["sends"])
            for destination, nbytes in calls
            if destination == int(rank)
        ]
        sends = [tuple(call) for call in group["sends"][int(rank)]]
        plain = p2p_group(sends, into, cluster, None, int(rank))
        ours = collective.messages(int(rank), intra=True)
        assert ours.tobytes() == plain.messages(int(rank), intra=True).tobytes(), where
