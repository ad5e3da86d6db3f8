"""What NCCL sends for one collective: who is connected to whom, and every message in time."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from genie.compare.figures.space_time import draw_space_time
from genie.compare.figures.style import new_figure, style
from genie.compare.figures.topology import draw_peers, draw_ring, draw_tree

if TYPE_CHECKING:
    from genie.compare.figures.picture import Picture
    from genie.replay.cluster import Cluster
    from genie.replay.nccl.env import Nccl
    from genie.replay.recording import Recording


def one_collective(
    kind: str, nbytes: int, cluster: Cluster, nccl: Nccl | None, root: int = 0
) -> Recording:
    """Simulate one collective alone, so that its messages have times.

    Args:
        kind: Collective as a trace spells it.
        nbytes: The node's `comm_size`, bytes.
        cluster: Where it runs.
        nccl: Version and environment.
        root: Root rank.
    """
    from genie.replay.gpu import GpuModel
    from genie.replay.simulate import simulate
    from genie.trace import Builder, Coll, Kind, load, write

    with tempfile.TemporaryDirectory(prefix="genie-figure-") as folder:
        ranks = []
        for _ in range(cluster.n_ranks):
            made = Builder()
            made.node(
                Kind.COMM_COLL, kind, coll=Coll[kind.upper()], nbytes=nbytes, root=root,
                dtype="float32",
            )  # fmt: skip
            ranks.append(made)
        write(Path(folder), "one", ranks)
        return simulate(load(folder), cluster, nccl=nccl, gpu=GpuModel.off())


def figure_schedule(
    kind: str,
    nbytes: int,
    cluster: Cluster,
    *,
    nccl: Nccl | None = None,
    root: int = 0,
    channel: int = 0,
) -> Picture:
    """Return a figure of one collective: left the channel's ring or tree, right its messages.

    Args:
        kind: Collective, such as "all_reduce".
        nbytes: The node's `comm_size`, bytes.
        cluster: Small: every rank is a row.
        nccl: Version and environment; `NCCL_ALGO` chooses what is shown.
        root: Root rank of rooted collectives.
        channel: Which channel's topology and messages are shown.
    """
    from genie.replay.nccl.env import Nccl as NcclClass

    recording = one_collective(kind, nbytes, cluster, nccl, root)
    effective = cluster.with_nccl(NcclClass() if nccl is None else nccl)
    algorithm = _algorithm(kind, nbytes, effective, nccl, root)
    with style():
        figure = new_figure("double", aspect=0.4)
        left, right = figure.subplots(1, 2, width_ratios=[1, 2])
        # Sends and receives spread their rounds over channels: all of them are the picture.
        shown = None if algorithm == "p2p" else channel
        if algorithm == "tree":
            draw_tree(effective, left, channel)
        elif algorithm == "ring":
            draw_ring(effective, left, channel)
        else:
            draw_peers(effective, recording, left, shown)
        draw_space_time(recording, right, shown)
        right.set_title(f"{kind}, {nbytes} B a rank, {algorithm}: messages")
    return figure


def _algorithm(kind: str, nbytes: int, cluster: Cluster, nccl: Nccl | None, root: int) -> str:
    from genie.replay.nccl.schedule import schedule
    from genie.replay.sizes import call_size

    size = call_size(kind, nbytes, cluster.n_ranks, "float32")
    made = schedule(kind, count=size.count, dtype=size.dtype, cluster=cluster, nccl=nccl, root=root)
    return made.choice.algorithm if made.choice is not None else "p2p"
