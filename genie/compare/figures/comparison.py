"""Figures of a comparison and of recordings; each draws into an `ax` and returns it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from genie.compare.figures.axes import legend_below, log_if_wide, size_axis, steps
from genie.compare.figures.style import COLOURS
from genie.compare.metrics.collective import BANDS, band_of, usable
from genie.compare.truth.model import KINDS, UNKNOWN
from genie.errors import InputError
from genie.replay.tables import N_COLLECTIVES
from genie.units import format_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from genie.compare.comparison import Comparison
    from genie.compare.truth.model import Truth


#: Numbers of runs, and a value of each.
Series = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]


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
    ax.set_yscale("log")
    drawn = [t["nbytes"][(t["kind"] == code) & (t["nbytes"] > 0)] for t in tables.values()]
    every = np.concatenate(drawn)
    size_axis(ax, int(every.min()), int(every.max()))
    ax.set_ylabel("bus bandwidth [GB/s]")
    ax.set_title(f"{KINDS[code]}: median and quartiles")
    ax.legend()
    return ax


def draw_cdf(sides: dict[str, Truth], ax: Axes) -> Axes:
    """Draw the distribution of collective times of each side."""
    from genie.compare.instances import instances

    drawn = []
    for name, side in sides.items():
        table = instances(side)
        times = np.sort(table["transfer_ns"][np.isfinite(table["transfer_ns"])]) / 1e3
        if len(times):
            steps(times, name, ax)
            drawn += [times[0], times[-1]]
    if not drawn:
        raise InputError("no operation has a time to draw")
    log_if_wide(ax, min(drawn), max(drawn))
    ax.set_ylim(0, 1.02)
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


def draw_sensitivity(comparison: Comparison, ax: Axes, quantity: str | None = None) -> Axes:
    """Draw the slowdown by each fault in both worlds: two dots a fault, joined.

    Args:
        comparison: With faults.
        ax: Where to draw.
        quantity: "step" or "collectives"; None takes the step where there is one.
    """
    found = comparison.sensitivity
    if not found:
        raise InputError("no fault was tried in both worlds")
    chosen = quantity or next(iter(found))
    if chosen not in found:
        raise InputError(f"no slowdown of {chosen!r}; there are {', '.join(found)}")
    tried = found[chosen]
    y = np.arange(len(tried.faults))
    ax.hlines(y, tried.replay, tried.truth, color="0.6", linewidth=1)
    ax.plot(tried.replay, y, "o", color=COLOURS["replay"], label="replay", markersize=5)
    ax.plot(tried.truth, y, "D", color=COLOURS["truth"], label="truth", markersize=4)
    ax.axvline(1, color="0.5", linewidth=0.6)
    ax.set_yticks(y, tried.faults)
    ax.set_ylim(len(y) - 0.5, -0.5)
    ax.set_xlim(left=0)
    ax.set_xlabel(f"slowdown of the {chosen} [times]")
    ax.set_ylabel("fault")
    if np.isfinite(tried.rank_correlation):
        ax.set_title(f"rank correlation {tried.rank_correlation:.2f}")
    legend_below(ax)
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
    legend_below(ax)
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


def draw_runs(sides: dict[str, Truth], ax: Axes, nbytes: int | None = None) -> Axes:
    """Draw bus bandwidth run after run, anomalies marked (Figure 1 of the paper).

    A side named "simulate" is a line at its median. Of the others each operation of the chosen
    kind and size is a point, in order; a point whose distance from the side's median is more than
    3.5 scaled median absolute deviations (Iglewicz and Hoaglin 1993) and 5 % is an anomaly.

    Args:
        sides: Name → run.
        ax: Where to draw.
        nbytes: Size; None takes that which took most time.
    """
    from genie.compare.instances import instances

    tables = {name: instances(side) for name, side in sides.items()}
    every = np.concatenate(list(tables.values()))
    every = every[(every["nbytes"] > 0) & np.isfinite(every["busbw"]) & (every["kind"] != UNKNOWN)]
    if not len(every):
        raise InputError("no operation has a bandwidth to draw")
    keys, inverse = np.unique(every[["kind", "nbytes"]], return_inverse=True)
    took = np.bincount(inverse.reshape(-1), weights=np.nan_to_num(every["transfer_ns"]))
    if nbytes is not None:
        took = np.where(keys["nbytes"] == nbytes, took + 1, 0)
    kind, size = keys[int(took.argmax())]
    series: dict[str, Series] = {}
    lines: dict[str, float] = {}
    for name, table in tables.items():
        mine = table[(table["kind"] == kind) & (table["nbytes"] == size)]
        rate = mine["busbw"][np.isfinite(mine["busbw"])]
        if not len(rate):
            continue
        if name == "simulate" and len(sides) > 1:
            lines[name] = float(np.median(rate))
        else:
            series[name] = (np.arange(1.0, len(rate) + 1), rate)
    draw_values(series, lines, ax)
    ax.set_ylabel("bus bandwidth [GB/s]")
    ax.set_title(f"{KINDS[kind]} of {format_size(int(size))}, run after run")
    return ax


def draw_values(series: dict[str, Series], lines: dict[str, float], ax: Axes) -> Axes:
    """Draw values run after run with their anomalies, and levels to hold them against.

    Args:
        series: Name → numbers of the runs, value of each.
        lines: Name → level.
        ax: Where to draw.
    """
    for name, level in lines.items():
        colour = COLOURS["simulate"] if len(lines) == 1 else None
        ax.axhline(level, color=colour, linestyle="--", label=name)
    for name, (runs, values) in series.items():
        (line,) = ax.plot(runs, values, marker="o", label=name, color=COLOURS.get(name))
        odd = anomalies(values)
        if odd.any():
            ax.plot(runs[odd], values[odd], "o", markersize=8, markerfacecolor="none",
                    color=COLOURS["bad"] if line.get_color() != COLOURS["bad"] else "black",
                    label=f"{name}: anomaly")  # fmt: skip
    ax.set_ylim(bottom=0)
    ax.set_xlabel("run")
    legend_below(ax)
    return ax


def anomalies(values: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Return which values are outliers by the modified z-score (above 3.5) and 5 % away."""
    middle = np.median(values)
    away = np.abs(values - middle)
    scaled = 1.4826 * np.median(away)
    found: npt.NDArray[np.bool_] = (away > 3.5 * scaled) & (away > 0.05 * abs(middle))
    return found


def draw_path(side: Truth, ax: Axes) -> Axes:
    """Draw the critical path of the first measured iteration: which rank, doing what, when."""
    from genie.compare.metrics.path import PARTS, critical_path

    pieces = critical_path(side)
    if not len(pieces):
        raise InputError(f"{side.source} has no times to draw")
    origin = int(pieces["start_ns"][0])
    total = int(pieces["end_ns"][-1]) - origin
    begin = (pieces["start_ns"] - origin) / 1e6
    width = (pieces["end_ns"] - pieces["start_ns"]) / 1e6
    place = {rank: i for i, rank in enumerate(np.unique(side.ops["rank"]).tolist())}
    y = np.array([place.get(rank, 0) for rank in pieces["rank"].tolist()], float)
    colours = (COLOURS["compute"], COLOURS["communication"], "#ffffff")
    for i, part in enumerate(PARTS):
        mine = pieces["part"] == i
        if mine.any():
            share = width[mine].sum() * 1e6 / total
            ax.barh(y[mine], width[mine], left=begin[mine], height=0.7, color=colours[i],
                    edgecolor="0.3" if part == "idle" else "none", linewidth=0.4,
                    label=f"{part} {share:.0%}")  # fmt: skip
    for i in range(1, len(pieces)):
        if y[i] != y[i - 1]:
            ax.plot([begin[i]] * 2, [y[i - 1], y[i]], color="0.3", linewidth=0.6, zorder=0)
    if len(place) <= 32:
        ax.set_yticks(list(place.values()), [str(rank) for rank in place])
    ax.set_ylim(len(place) - 0.4, -0.6)
    ax.set_xlabel("time [ms]")
    ax.set_ylabel("rank")
    legend_below(ax)
    return ax
