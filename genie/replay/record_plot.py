"""Pictures of one Recording: bus bandwidth by size, timeline of a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from genie import checks
from genie.replay.bandwidth import bus_formula
from genie.replay.tables import KINDS, N_COMM

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from genie.replay.recording import Recording


def plot(rec: Recording, ax: Axes | None, what: Literal["auto", "busbw", "timeline"]) -> Axes:
    """Draw `rec` into `ax` (see `Recording.plot`)."""
    checks.one_of("what", what, ("auto", "busbw", "timeline"))
    if ax is None:
        from matplotlib.figure import Figure

        ax = Figure(layout="constrained").add_subplot()
    if what == "auto":
        what = "busbw" if _sizes(rec) >= 3 else "timeline"
    return _busbw(rec, ax) if what == "busbw" else _timeline(rec, ax)


def _sizes(rec: Recording) -> int:
    rows = rec.collectives()
    return max(
        (len(np.unique(rows["nbytes"][rows["kind"] == k])) for k in np.unique(rows["kind"])),
        default=0,
    )


def _busbw(rec: Recording, ax: Axes) -> Axes:
    rows = rec.collectives()
    rows = rows[(rows["iteration"] >= 0) & np.isfinite(rows["busbw"]) & (rows["nbytes"] > 0)]
    formulas = {bus_formula(KINDS[kind]) for kind in np.unique(rows["kind"])}
    for kind in np.unique(rows["kind"]):
        mine = rows[rows["kind"] == kind]
        sizes = np.unique(mine["nbytes"])
        low, mid, high = np.array(
            [np.percentile(mine["busbw"][mine["nbytes"] == size], (25, 50, 75)) for size in sizes]
        ).T
        (line,) = ax.plot(sizes, mid, marker="o", label=KINDS[kind])
        ax.fill_between(sizes, low, high, alpha=0.25, color=line.get_color(), linewidth=0)
    if len(rows):
        ax.set_xscale("log", base=2)
        ax.legend()
    ax.set_xlabel("size [B]")
    ax.set_ylabel("bus bandwidth [GB/s]")
    ax.set_title("\n".join(["median and quartiles", *sorted(formulas)]), fontsize="small")
    return ax


def _timeline(rec: Recording, ax: Axes) -> Axes:
    """One bar a node of the first measured iteration, a row a rank; communication below compute."""
    ops = rec.ops
    iterations = ops["iteration"][ops["iteration"] >= 0]
    ops = ops[(ops["end_ns"] > ops["start_ns"]) & (ops["start_ns"] >= 0)]
    if len(iterations):
        ops = ops[ops["iteration"] == iterations.min()]
    origin = int(ops["start_ns"].min()) if len(ops) else 0
    for kind in np.unique(ops["kind"]):
        mine = ops[ops["kind"] == kind]
        level = mine["rank"] + (0.0 if kind < N_COMM else -0.4)
        ax.barh(
            level,
            (mine["end_ns"] - mine["start_ns"]) / 1e6,
            left=(mine["start_ns"] - origin) / 1e6,
            height=0.38,
            align="edge",
            label=KINDS[kind],
        )
    if len(ops):
        ax.legend(fontsize="small")
        ranks = np.unique(ops["rank"])
        if len(ranks) <= 32:
            ax.set_yticks(ranks)
    ax.invert_yaxis()
    ax.set_xlabel("time [ms]")
    ax.set_ylabel("rank")
    return ax
