"""Figures of a comparison and of recordings; each draws into an `ax` and returns it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from genie.compare.figures.style import COLOURS
from genie.compare.metrics.collective import BANDS, band_of, usable
from genie.compare.metrics.messages import first_iteration
from genie.compare.truth.model import KINDS
from genie.errors import InputError
from genie.replay.tables import N_COLLECTIVES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from genie.compare.comparison import Comparison
    from genie.compare.truth.model import Truth


def draw_busbw(sides: dict[str, Truth], ax: Axes, kind: str | None = None) -> Axes:
    """Draw bus bandwidth against size, one line a side: median, with the quartiles as a band.

    Args:
        sides: Name ("replay", "truth", "simulate") → run.
        ax: Where to draw.
        kind: Only this collective; None takes the most frequent one.
    """
    from genie.compare.instances import instances

    tables = {name: instances(side) for name, side in sides.items()}
    rows = np.concatenate([table["kind"][table["nbytes"] > 0] for table in tables.values()])
    if not len(rows):
        raise InputError("no operation has a size to draw")
    code = KINDS.index(kind) if kind else int(np.bincount(rows).argmax())
    for name, table in tables.items():
        mine = table[(table["kind"] == code) & (table["nbytes"] > 0) & np.isfinite(table["busbw"])]
        sizes = np.unique(mine["nbytes"])
        if not len(sizes):
            continue
        low, mid, high = np.array(
            [np.percentile(mine["busbw"][mine["nbytes"] == size], (25, 50, 75)) for size in sizes]
        ).T
        colour = COLOURS.get(name)
        (line,) = ax.plot(sizes, mid, marker="o", label=name, color=colour)
        ax.fill_between(sizes, low, high, alpha=0.25, color=line.get_color(), linewidth=0)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_xlabel("size [B]")
    ax.set_ylabel("bus bandwidth [GB/s]")
    ax.set_title(f"{KINDS[code]}: median and quartiles")
    ax.legend()
    return ax


def draw_cdf(sides: dict[str, Truth], ax: Axes) -> Axes:
    """Draw the distribution of collective times of each side."""
    from genie.compare.instances import instances

    for name, side in sides.items():
        table = instances(side)
        times = np.sort(table["transfer_ns"][np.isfinite(table["transfer_ns"])]) / 1e3
        if len(times):
            share = np.arange(1, len(times) + 1) / len(times)
            ax.step(times, share, where="post", label=name, color=COLOURS.get(name))
    ax.set_xscale("log")
    ax.set_ylim(0, 1)
    ax.set_xlabel("time of a collective [us]")
    ax.set_ylabel("fraction of collectives")
    ax.legend()
    return ax


def draw_errors(comparison: Comparison, ax: Axes) -> Axes:
    """Draw the relative error of each pair by size band, as boxes with the median."""
    pairs = usable(comparison.alignment)
    band = band_of(pairs["nbytes"])
    used = [b for b in range(len(BANDS)) if (band == b).any()]
    if not used:
        raise InputError("no pair has a size and a time to draw")
    ax.boxplot(
        [pairs["error"][band == b] * 100 for b in used],
        whis=(1, 99),
        showfliers=False,
        medianprops={"color": COLOURS["truth"]},
    )
    ax.set_xticks(
        range(1, len(used) + 1),
        [f"{BANDS[b][1]}\nn = {(band == b).sum()}" for b in used],
    )
    ax.axhline(0, color="0.5", linewidth=0.6)
    ax.set_ylabel("replay / truth - 1 [%]")
    ax.set_title("box: quartiles; whiskers: 1st, 99th percentile")
    return ax


def draw_timeline(side: Truth, ax: Axes, iteration: int | None = None) -> Axes:
    """Draw one step of one run: a row a rank; compute, communication and waiting.

    Waiting is the part of a collective before its last rank started.
    """
    ops = side.ops
    if side.compute is not None:
        ops = np.concatenate([ops, side.compute])
    timed = (ops["start_ns"] >= 0) & (ops["end_ns"] > ops["start_ns"]) & (ops["rank"] >= 0)
    iterations = np.unique(ops["iteration"][timed])
    measured = iterations[iterations >= 0] if (iterations >= 0).any() else iterations
    if not len(measured):
        raise InputError(f"{side.source} has no times to draw")
    chosen = int(measured[0]) if iteration is None else iteration
    last = _last_starts(side)
    last = np.concatenate([last, np.full(len(ops) - len(last), -np.inf)])
    rows = np.flatnonzero(timed & (ops["iteration"] == chosen))
    ops, last = ops[rows], last[rows]
    origin = int(ops["start_ns"].min())
    begin = (ops["start_ns"] - origin) / 1e6
    end = (ops["end_ns"] - origin) / 1e6
    communication = (ops["kind"] < 12) | (ops["kind"] == KINDS.index("unknown"))
    last = (last - origin) / 1e6
    place = {rank: i for i, rank in enumerate(np.unique(ops["rank"]).tolist())}
    y = np.array([place[rank] for rank in ops["rank"].tolist()], float)
    ax.barh(
        y[~communication] - 0.2, (end - begin)[~communication], left=begin[~communication],
        height=0.36, color=COLOURS["compute"], label="compute",
    )  # fmt: skip
    ax.barh(
        y[communication] + 0.2, (end - begin)[communication], left=begin[communication],
        height=0.36, color=COLOURS["communication"], label="communication",
    )  # fmt: skip
    waits = communication & (last > begin)
    if waits.any():
        ax.barh(
            y[waits] + 0.2,
            (np.minimum(last, end) - begin)[waits],
            left=begin[waits],
            height=0.36,
            color=COLOURS["wait"],
            label="waiting for a rank",
        )
    if len(place) <= 32:
        ax.set_yticks(list(place.values()), [str(rank) for rank in place])
    ax.invert_yaxis()
    ax.set_xlabel("time [ms]")
    ax.set_ylabel("rank")
    ax.legend(ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.18))
    return ax


def _last_starts(side: Truth) -> npt.NDArray[np.float64]:
    """Return, for each row of `side.ops`, when the last rank of its collective started, ns."""
    from genie.compare.instances import sequence

    ops, seq = side.ops, sequence(side)
    out = np.full(len(ops), -np.inf)
    collective = ops["kind"] < N_COLLECTIVES
    keys = np.stack([ops["iteration"], ops["communicator"], seq], axis=1)[collective]
    _, inverse = np.unique(keys, axis=0, return_inverse=True)
    inverse = inverse.reshape(-1)
    latest = np.full(inverse.max(initial=-1) + 1, np.iinfo(np.int64).min)
    np.maximum.at(latest, inverse, ops["start_ns"][collective])
    out[collective] = latest[inverse]
    return out


def draw_runs(times: Sequence[float], ax: Axes, simulated: float | None = None) -> Axes:
    """Draw bandwidth run by run, with what the simulation says as a line (the paper's Figure 1).

    Args:
        times: Bus bandwidth of each run, GB/s, in order.
        ax: Where to draw.
        simulated: Bus bandwidth of the simulation, GB/s.
    """
    runs = np.arange(1, len(times) + 1)
    ax.plot(runs, times, marker="o", color=COLOURS["replay"], label="replay")
    if simulated is not None:
        ax.axhline(simulated, color=COLOURS["simulate"], linestyle="--", label="simulate")
    ax.set_ylim(bottom=0)
    ax.set_xlabel("run")
    ax.set_ylabel("bus bandwidth [GB/s]")
    ax.legend()
    return ax


def draw_matrix(side: Truth, ax: Axes, host_of: Sequence[int] | None = None) -> Axes:
    """Draw bytes that each rank (or host) sent to each other in the first measured iteration.

    Args:
        side: A run with messages.
        ax: Where to draw.
        host_of: Host of each rank, to draw by host.
    """
    if side.messages is None:
        raise InputError(f"{side.source} has no messages to draw")
    rows = first_iteration(side)
    rows = rows[(rows["direction"] == 0) & (rows["peer"] >= 0)]
    src, dst = rows["rank"].astype(np.int64), rows["peer"].astype(np.int64)
    if host_of is not None:
        hosts = np.asarray(host_of)
        src, dst = hosts[src], hosts[dst]
    n = int(max(src.max(initial=0), dst.max(initial=0))) + 1
    total = np.zeros((n, n))
    np.add.at(total, (src, dst), rows["nbytes"] / 1e6)
    image = ax.imshow(np.where(total > 0, total, np.nan), cmap="cividis", origin="upper", vmin=0)
    ax.grid(visible=False)
    what = "rank" if host_of is None else "host"
    ax.set_xlabel(f"to {what}")
    ax.set_ylabel(f"from {what}")
    ax.figure.colorbar(image, ax=ax, label="sent [MB]")
    return ax


def draw_rate(sides: dict[str, Truth], ax: Axes) -> Axes:
    """Draw the rate of all senders in each 100 us."""
    from genie.compare.metrics.shape import traffic_shape

    drawn = False
    for name, side in sides.items():
        shape = traffic_shape(side)
        if shape is not None:
            time = np.arange(len(shape.rate_100us)) * 0.1
            ax.step(time, shape.rate_100us, where="post", label=name, color=COLOURS.get(name))
            drawn = True
    if not drawn:
        raise InputError("no run has timed messages to draw")
    ax.set_xlabel("time [ms]")
    ax.set_ylabel("sent, all NICs [GB/s]")
    ax.legend()
    return ax


def draw_concurrency(sides: dict[str, Truth], ax: Axes) -> Axes:
    """Draw how many messages are in flight when one starts, as a distribution."""
    from genie.compare.metrics.shape import traffic_shape

    drawn = False
    for name, side in sides.items():
        shape = traffic_shape(side)
        if shape is not None:
            values = np.sort(shape.concurrency)
            share = np.arange(1, len(values) + 1) / len(values)
            ax.step(values, share, where="post", label=name, color=COLOURS.get(name))
            drawn = True
    if not drawn:
        raise InputError("no run has timed messages to draw")
    ax.set_ylim(0, 1)
    ax.set_xlabel("messages in flight")
    ax.set_ylabel("fraction of messages")
    ax.legend()
    return ax


def draw_bursts(sides: dict[str, Truth], ax: Axes) -> Axes:
    """Draw the sizes of a sender's bursts, as a distribution."""
    from genie.compare.metrics.shape import BURST_GAP_NS, traffic_shape

    drawn = False
    for name, side in sides.items():
        shape = traffic_shape(side)
        if shape is not None:
            values = np.sort(shape.burst_bytes) / 1e6
            share = np.arange(1, len(values) + 1) / len(values)
            ax.step(values, share, where="post", label=name, color=COLOURS.get(name))
            drawn = True
    if not drawn:
        raise InputError("no run has timed messages to draw")
    ax.set_xscale("log")
    ax.set_ylim(0, 1)
    ax.set_xlabel(f"burst [MB] (gaps above {BURST_GAP_NS // 1000} us end one)")
    ax.set_ylabel("fraction of bursts")
    ax.legend()
    return ax
