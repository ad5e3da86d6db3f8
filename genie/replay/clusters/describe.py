"""A cluster as text and as HTML, for `genie plan --channels` and notebooks."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from genie.replay.clusters.graph import PATTERNS
from genie.units import format_size

if TYPE_CHECKING:
    from genie.replay.cluster import Cluster
    from genie.replay.clusters.channels import Channel

__all__ = ["describe", "to_html"]

_SHOWN = 32  # ranks of a ring, and edges of a tree, before the middle is left out


def describe(cluster: Cluster) -> str:
    """Return machine, search results, counts, rings, trees and notes, one fact a line."""
    lines = [_title(cluster), f"  {cluster.machine.description}"]
    lines += [f"  {name:<5} {text}" for name, text in _searches(cluster)]
    lines += [f"  {name}: {text}" for name, text in _counts(cluster)]
    lines += _channels(cluster)
    lines += _heads(cluster)
    lines += [f"  note: {note}" for note in cluster.notes]
    return "\n".join(lines)


def to_html(cluster: Cluster) -> str:
    """Return the same facts without rings and trees as an HTML table."""
    facts = [*_searches(cluster), *_counts(cluster), *(("note", note) for note in cluster.notes)]
    rows = "".join(
        f"<tr><th style='text-align:left'>{escape(name)}</th>"
        f"<td style='text-align:left'>{escape(text)}</td></tr>"
        for name, text in facts
    )
    return f"<p>{escape(_title(cluster))}</p><table>{rows}</table>"


def _title(cluster: Cluster) -> str:
    counts = cluster.layout.counts
    low, high = int(counts.min()), int(counts.max())
    each = str(low) if low == high else f"{low} to {high}"
    hosts = "host" if cluster.n_hosts == 1 else "hosts"
    version = ".".join(map(str, cluster.settings.version))
    doubt = "" if cluster.exact else ", NOT EXACT (see notes)"
    return (
        f"cluster {cluster.name}: {cluster.n_ranks} ranks, {cluster.n_hosts} {hosts} x {each} "
        f"GPUs, NCCL {version}{doubt}"
    )


def _searches(cluster: Cluster) -> list[tuple[str, str]]:
    out = []
    for name, graph in cluster.graphs.items():
        if graph.n_channels == 0:
            out.append((name, "none"))
            continue
        intra, inter = graph.type_names()
        out.append(
            (
                name,
                f"{PATTERNS[graph.pattern]}, {graph.n_channels} search channels, "
                f"{graph.bw_intra:g}/{graph.bw_inter:g} GB/s inside/between hosts, "
                f"paths {intra}/{inter}, crossNic {graph.cross_nic}",
            )
        )
    return out


def _counts(cluster: Cluster) -> list[tuple[str, str]]:
    buffers = ", ".join(f"{k} {format_size(v)}" for k, v in cluster.buffer_bytes.items())
    out = [
        ("collective channels", str(cluster.coll_channels)),
        (
            "send/recv channels",
            f"{cluster.p2p_channels}, up to {cluster.p2p_channels_per_peer} a peer, parts of "
            f"{format_size(cluster.p2p_chunk_bytes)}, groups of {cluster.p2p_group_size} ranks",
        ),
        ("buffers", buffers),
    ]
    if cluster.nvls_channels:
        chunks = (
            f"{cluster.nvls_channels}, chunk {format_size(cluster.nvls_chunk_bytes)}, tree chunk "
            f"at most {format_size(cluster.nvls_tree_max_chunk_bytes)}"
        )
        out.insert(1, ("NVLS channels", chunks))
    return out


def _channels(cluster: Cluster) -> list[str]:
    """One line a channel for rings and one for trees; equal ones share a line."""
    rings: dict[str, list[int]] = {}
    trees: dict[str, list[int]] = {}
    for channel in cluster.channels:
        rings.setdefault(_ring(channel), []).append(channel.index)
        trees.setdefault(_tree(cluster, channel), []).append(channel.index)
    lines = [f"  ring {_span(at)}: {text}" for text, at in rings.items()]
    return lines + [f"  tree {_span(at)}: {text}" for text, at in trees.items()]


def _ring(channel: Channel) -> str:
    return " ".join(_shorten(channel.ring)) if channel.has_ring else "not known"


def _tree(cluster: Cluster, channel: Channel) -> str:
    if not channel.has_tree:
        return "known in part (see notes)"
    up = channel.tree_up.array
    host = cluster.host_of
    roots = [str(r) for r in range(len(up)) if up[r] < 0]
    edges = [f"{int(up[r])}>{r}" for r in range(len(up)) if up[r] >= 0 and host[up[r]] != host[r]]
    if not edges:
        edges = [f"{int(up[r])}>{r}" for r in range(len(up)) if up[r] >= 0]
        where = "edges"
    else:
        where = "between hosts"
    return f"root {' '.join(roots)}, {where} {' '.join(_shorten(edges)) or 'none'}"


def _heads(cluster: Cluster) -> list[str]:
    if not cluster.nvls_trees:
        return []
    lines = []
    for parity, tree in zip(("even", "odd"), cluster.nvls_trees, strict=True):
        heads = [str(r) for r in tree.heads[0]]
        edges = [f"{u}>{r}" for r, u in enumerate(tree.up.tolist()) if u >= 0]
        lines.append(
            f"  NVLS tree, {parity} channels: heads of host 0 {' '.join(heads)}, edges "
            f"{' '.join(_shorten(edges))}"
        )
    return lines


def _shorten(items: list[int] | list[str]) -> list[str]:
    texts = [str(x) for x in items]
    if len(texts) <= _SHOWN:
        return texts
    half = _SHOWN // 2
    return [*texts[:half], f"...({len(texts) - _SHOWN} more)...", *texts[-half:]]


def _span(numbers: list[int]) -> str:
    return ",".join(map(str, numbers))
