"""Writes NCCL_DEBUG=INFO logs from facts, in the forms that NCCL's releases print.

The wording is that of the messages NCCL logs; hosts, processes and addresses are ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def flip(row: str) -> str:
    """Return a tree row in the older form, parent first."""
    down, rank, up = row.split("->")
    return f"{up}->{rank}->{down}"


def log(
    facts: Mapping[str, Any],
    *,
    form: str = "children first",
    prefix: bool = True,
    comm_lines: bool = True,
    job: str = "job",
    comm_id: int = 0xC0FFEE,
) -> str:
    """Return the log of a job with these facts (keys as the corpus's graph.json)."""
    n, hosts = facts["n_ranks"], facts["n_nodes"]
    each = n // hosts
    lines: list[tuple[int, str]] = []

    def say(rank: int, text: str) -> None:
        lines.append((rank, text))

    if "nccl_version" in facts:
        say(0, f"NCCL version {facts['nccl_version']}+cuda12.4")
    speakers = sorted({0, *(int(r) for r in facts["trees"]), *facts.get("speakers", ())})
    for rank in speakers:
        for name, value in facts.get("env", {}).items():
            say(rank, f"{name} set by environment to {value}.")
        if comm_lines:
            where = f"cudaDev {rank % each} nvmlDev {rank % each} busId {rank % each + 1}000"
            start = f"ncclCommInitRank comm 0x{rank + 16:x} rank {rank} nranks {n} {where}"
            say(rank, f"{start} commId 0x{comm_id:x} - Init START")
            say(
                rank,
                f"comm 0x{rank + 16:x} rank {rank} nRanks {n} nNodes {hosts} localRanks {each} "
                f"localRank {rank % each} MNNVL 0",
            )
    for block in facts.get("patterns", ()):
        for line in block:
            say(0, line)
    for head, ranks in enumerate(facts.get("nvls_heads", ())):
        say(0, f"NVLS Head {head:2d}: " + " ".join(f"{r:2d}" for r in ranks))
    total = facts["coll_channels"]
    for channel, ring in facts["rings"].items():
        width = facts.get("ring_width", n)
        ranks = " ".join(f"{r:3d}" for r in ring[:width])
        say(0, f"Channel {int(channel):02d}/{total:02d} : {ranks}")
    for channel, by_rank in facts.get("ring_prev_next", {}).items():
        for rank, (before, after) in by_rank.items():
            say(int(rank), f"Ring {int(channel):02d} : {before} -> {rank} -> {after}")
    for rank, rows in facts["trees"].items():
        if form == "one a line":
            for channel, row in enumerate(rows):
                if row is not None:
                    up, r, down = flip(row).split("->")
                    say(int(rank), f"Tree {channel} : {up} -> {r} -> {down}")
            continue
        items = []
        for channel, row in enumerate(rows):
            if row is None:
                continue
            text = row if form == "children first" else flip(row)
            if form == "both trees":
                text = f"{row}|{flip(row)}"
            items.append(f"[{channel}] {text}")
        say(int(rank), "Trees " + " ".join(items))
    for edge in facts.get("net_edges", ()):
        proxy = f"({edge['proxy']})" if "proxy" in edge else ""
        ends = f"{edge['src']}[0] -> {edge['dst']}[0]"
        for rank, way in ((edge["src"], "send"), (edge["dst"], "receive")):
            via = f"via NET/IB/{edge['nic']}{proxy if way == 'send' else ''}/GDRDMA"
            say(rank, f"Channel {edge['ch']:02d}/0 : {ends} [{way}] {via}")
    if "p2p_chunksize" in facts:
        say(0, f"P2P Chunksize set to {facts['p2p_chunksize']}")
    if "p2p_channels" in facts:
        say(
            0,
            f"{total} coll channels, {facts.get('collnet_channels', 0)} collnet channels, "
            f"{facts.get('nvls_channels', 0)} nvls channels, {facts['p2p_channels']} p2p channels, "
            f"{facts['p2p_channels_per_peer']} p2p channels per peer",
        )
    elif not facts["rings"]:
        say(0, f"{total} coll channels")
    if not prefix:
        return "\n".join(f"NCCL INFO {text}" for _, text in lines) + "\n"
    return "".join(
        f"{job}-host{r // each}:{1000 + r}:{2000 + r} [{r % each}] NCCL INFO {text}\n"
        for r, text in lines
    )


def facts_of(cluster: Any, ranks: Iterable[int] | None = None) -> dict[str, Any]:
    """Return the facts that a log of this cluster would show."""
    ranks = range(cluster.n_ranks) if ranks is None else ranks

    def row(channel: Any, rank: int) -> str:
        down = [*channel.tree_down[rank], -1, -1, -1][:3]
        return f"{'/'.join(map(str, down))}->{rank}->{channel.tree_up[rank]}"

    facts: dict[str, Any] = {
        "n_ranks": cluster.n_ranks,
        "n_nodes": cluster.n_hosts,
        "coll_channels": len(cluster.channels),
        "rings": {c.index: c.ring for c in cluster.channels},
        "trees": {r: [row(c, r) for c in cluster.channels] for r in ranks},
        "nvls_channels": cluster.nvls_channels,
        "p2p_channels": cluster.p2p_channels,
        "p2p_channels_per_peer": cluster.p2p_channels_per_peer,
        "p2p_chunksize": cluster.p2p_chunk_bytes,
        "nccl_version": ".".join(map(str, cluster.settings.version)),
    }
    if cluster.nvls_trees:
        facts["nvls_heads"] = cluster.nvls_trees[0].heads.T.tolist()
    return facts
