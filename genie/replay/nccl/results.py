"""Schedules and tunings as tables, on disk, and as pictures.

On disk a schedule is what it was made of: the cluster's steps, the settings, the choice and the
parts (the calls of every rank for sends and receives); a tuning is what was asked. Both are made
anew when they are read.
"""

from __future__ import annotations

import html
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import numpy.typing as npt

from genie import checks
from genie.errors import InputError, RecordError
from genie.replay import result_io
from genie.replay.clusters.recipe import remake, steps_of
from genie.replay.nccl.choice import Choice
from genie.replay.nccl.env import Nccl
from genie.replay.nccl.names import ALGORITHMS, FUNCTIONS, PROTOCOLS
from genie.replay.nccl.partition import PART

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from genie.replay.nccl.schedule import Schedule
    from genie.replay.nccl.tuner import Tuning

Table = npt.NDArray[np.void]


class ScheduleResult:
    """What makes a `Schedule` a result: kept on disk, in pandas, in a notebook, in a picture."""

    def save(
        self, path: str | os.PathLike[str], force: bool = False, *, rank: int | None = None
    ) -> Path:
        """Write the schedule as folder `path`: parts and messages as Parquet, and a manifest.

        Args:
            path: Folder to create.
            force: Replace a schedule that is there. Anything else is never replaced.
            rank: Write only this rank's messages, as one must for more than 1024 ranks.

        Raises:
            RecordError: Something is in the way, or the disk refused.
            InputError: A cluster that was not made by a constructor, or no such rank.
        """
        return save_schedule(cast("Schedule", self), path, force, rank)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Schedule:
        """Make a saved schedule anew.

        Raises:
            RecordError: Missing, damaged, or a schedule that this GENIE makes otherwise.
        """
        return load_schedule(path)

    def to_pandas(
        self,
        table: Literal["messages", "calls", "parts"] = "messages",
        rank: int | None = None,
        *,
        intra: bool = False,
    ) -> pd.DataFrame:
        """Return a table as a DataFrame; messages and calls have their rank in front.

        Args:
            table: "messages", "calls" or "parts".
            rank: Only this rank's rows; all ranks' by default, up to 1024 ranks.
            intra: Also list messages between ranks of one host.

        Raises:
            InputError: No such table or rank, or too many ranks.
        """
        return result_io.frame(rows(cast("Schedule", self), table, rank, intra))

    def plot(self, ax: Axes | None = None, rank: int | None = None) -> Axes:
        """Draw the bytes of a rank's messages, sent and received, by peer.

        Args:
            ax: Axes to draw into; a new figure's when None.
            rank: The rank; by default 0, or the one whose calls are known.

        Raises:
            InputError: No such rank.
        """
        return plot(cast("Schedule", self), ax, rank)

    def _repr_html_(self) -> str:
        return to_html(cast("Schedule", self))


class TuningResult:
    """What makes a `Tuning` a result."""

    def save(self, path: str | os.PathLike[str], force: bool = False) -> Path:
        """Write the candidates as folder `path`: a Parquet table and a manifest.

        Args:
            path: Folder to create.
            force: Replace a tuning that is there. Anything else is never replaced.

        Raises:
            RecordError: Something is in the way, or the disk refused.
            InputError: A cluster that was not made by a constructor.
        """
        return save_tuning(cast("Tuning", self), path, force)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Tuning:
        """Make a saved tuning anew.

        Raises:
            RecordError: Missing, damaged, or a tuning that this GENIE makes otherwise.
        """
        return load_tuning(path)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the predicted time of every candidate; the one taken stands out.

        Args:
            ax: Axes to draw into; a new figure's when None.
        """
        return plot_tuning(cast("Tuning", self), ax)


MOST_RANKS = 1024
"""Of a larger communicator, the tables of all ranks are only made when the ranks are given."""

EXCHANGE = np.dtype([("rank", "i4"), ("direction", "u1"), ("peer", "i4"), ("nbytes", "i8")])
"""A send (0) or receive (1) that a rank asks for: what a schedule of these is made of."""

TABLES = ("messages", "calls", "parts")


def nccl_facts(nccl: Nccl) -> dict[str, Any]:
    """Return what makes the same `Nccl` again."""
    rows = []
    for given in nccl.choices:
        row = given._asdict()
        del row["where"]
        row["function"] = FUNCTIONS[given.function]
        row["algorithm"] = ALGORITHMS[given.algorithm]
        row["protocol"] = PROTOCOLS[given.protocol]
        rows.append({("kind" if key == "function" else key): value for key, value in row.items()})
    return {"version": nccl.version_text, "env": dict(nccl.env), "choices": rows}


def nccl_of(facts: Any, where: str) -> Nccl:
    """Return the `Nccl` of `nccl_facts`.

    Raises:
        RecordError: The facts are damaged.
    """
    try:
        return Nccl(facts["version"], env=facts["env"], choices=facts["choices"] or None)
    except (KeyError, TypeError) as error:
        raise RecordError(f"{where}: no NCCL settings ({error!r})", path=where) from error


# Schedules


def ranks_of(schedule: Schedule, rank: int | None) -> Sequence[int]:
    """Return the ranks whose rows are asked for.

    Raises:
        InputError: No such rank, or all of too many.
    """
    if rank is not None:
        schedule._check_rank(rank)
        return [int(rank)]
    only = getattr(schedule, "only_rank", None)
    if only is not None:
        return [only]
    if schedule.cluster.n_ranks > MOST_RANKS:
        raise InputError(
            f"{schedule.cluster.n_ranks} ranks: say which one's rows you want (rank=...); all of "
            f"them are listed up to {MOST_RANKS} ranks"
        )
    return range(schedule.cluster.n_ranks)


def rows(schedule: Schedule, table: str, rank: int | None, intra: bool) -> Table:
    """Return a table of `Schedule.to_pandas`, with the rank in front where rows belong to one."""
    checks.one_of("table", table, TABLES)
    checks.truth("intra", intra)
    if table == "parts":
        return schedule.parts
    found = []
    for number in ranks_of(schedule, rank):
        one = schedule.calls(number) if table == "calls" else schedule.messages(number, intra)
        made = np.zeros(len(one), [("rank", "i4"), *one.dtype.descr])
        made["rank"] = number
        for name in one.dtype.names or ():
            made[name] = one[name]
        found.append(made)
    return np.concatenate(found)


def to_html(schedule: Schedule) -> str:
    """Return choice and parts as HTML."""
    title = html.escape(repr(schedule).strip("<>"))
    choice = "" if schedule.choice is None else f"<p>{html.escape(str(schedule.choice))}</p>"
    parts = result_io.frame(schedule.parts).to_html(index=False) if len(schedule.parts) else ""
    return f"<p>{title}</p>{choice}{parts}"


def plot(schedule: Schedule, ax: Axes | None, rank: int | None) -> Axes:
    """Draw a rank's bytes by peer (see `Schedule.plot`)."""
    if rank is None:
        rank = getattr(schedule, "only_rank", None) or 0
    table = schedule.messages(rank, intra=True)
    ax = result_io.new_axes() if ax is None else ax
    peers = np.unique(table["peer"])
    for direction, label in ((0, "sent"), (1, "received")):
        mine = table[table["direction"] == direction]
        at = np.searchsorted(peers, mine["peer"])
        total = np.bincount(at, mine["nbytes"], minlength=len(peers))
        ax.bar(np.arange(len(peers)) + 0.4 * direction, total, width=0.4, label=label)
    if len(peers) <= 64:
        ax.set_xticks(np.arange(len(peers)) + 0.2, [str(peer) for peer in peers])
    if len(peers):
        ax.legend()
    ax.set_xlabel("peer rank")
    ax.set_ylabel("messages [B]")
    ax.set_title(f"{schedule.kind}, {schedule._method}: rank {rank}")
    return ax


def save_schedule(
    schedule: Schedule, path: str | os.PathLike[str], force: bool, rank: int | None
) -> Path:
    """Write a schedule (see `Schedule.save`)."""
    from genie.replay.nccl.p2p_schedule import P2PSchedule

    facts: dict[str, Any] = {
        "kind": schedule.kind,
        "count": schedule.count,
        "dtype": schedule.dtype,
        "op": schedule.op,
        "root": schedule.root,
        "choice": None if schedule.choice is None else asdict(schedule.choice),
        "nccl": nccl_facts(schedule.nccl),
        "cluster": {"name": schedule.cluster.name, "steps": steps_of(schedule.cluster)},
    }
    tables: dict[str, Table] = {"parts": schedule.parts}
    if isinstance(schedule, P2PSchedule):
        facts["exchange"] = {"only_rank": schedule.only_rank, "regular": schedule.regular}
        tables["exchange"] = _exchange(schedule)
    views = {"messages": rows(schedule, "messages", rank, False)}
    return result_io.save(path, "schedule", tables, facts, force, views=views)


def _exchange(schedule: Any) -> Table:
    found = []
    for rank in ranks_of(schedule, None):
        for direction, asked in enumerate(schedule.asked_of(rank)):
            made = np.zeros(len(asked), EXCHANGE)
            made["rank"], made["direction"] = rank, direction
            made["peer"], made["nbytes"] = asked[:, 0], asked[:, 1]
            found.append(made)
    return np.concatenate(found)


def load_schedule(path: str | os.PathLike[str]) -> Schedule:
    """Make a saved schedule anew (see `Schedule.load`)."""
    from genie.replay.nccl.p2p_schedule import P2PSchedule
    from genie.replay.nccl.schedule import Schedule

    manifest, where = result_io.load(path, "schedule"), str(path)
    nccl = nccl_of(manifest.get("nccl"), where)
    try:
        cluster = remake(manifest["cluster"]["steps"], where).with_nccl(nccl)
        kind, count, dtype = manifest["kind"], manifest["count"], manifest["dtype"]
        root, exchange = manifest["root"], manifest.get("exchange")
        made: Schedule
        if exchange is None:
            given = manifest["choice"]
            choice = None if given is None else Choice(**given)
            parts = _structured(result_io.read_table(path, "parts"), PART)
            op = manifest["op"]
            made = Schedule(kind, count, dtype, op, root, cluster, nccl, choice, parts)
            tables = {"parts": made.parts}
        else:
            table = _structured(result_io.read_table(path, "exchange"), EXCHANGE)
            made = P2PSchedule(
                kind,
                count,
                dtype,
                root,
                cluster,
                nccl,
                _asked(table),
                only_rank=exchange["only_rank"],
                regular=exchange["regular"],
            )
            tables = {"parts": made.parts, "exchange": _exchange(made)}
    except (KeyError, TypeError) as error:
        raise RecordError(f"{path}: no schedule ({error!r})", path=where) from error
    result_io.check_same(path, manifest, tables)
    return made


def _structured(columns: Mapping[str, npt.NDArray[Any]], dtype: np.dtype[np.void]) -> Table:
    made = np.zeros(len(next(iter(columns.values()))), dtype)
    for name in dtype.names or ():
        made[name] = columns[name]
    return made


def _asked(table: Table) -> Callable[[int], Any]:
    def asked_of(rank: int) -> tuple[npt.NDArray[np.int64], ...]:
        mine = table[table["rank"] == rank]
        return tuple(
            np.stack(
                [
                    mine[name][mine["direction"] == way].astype(np.int64)
                    for name in ("peer", "nbytes")
                ],
                axis=1,
            )
            for way in (0, 1)
        )

    return asked_of


# Tunings


def plot_tuning(tuning: Tuning, ax: Axes | None) -> Axes:
    """Draw the predicted time of every candidate (see `Tuning.plot`)."""
    ax = result_io.new_axes() if ax is None else ax
    known = tuning.rows[np.isfinite(tuning.rows["time_us"])]
    known = known[np.argsort(known["time_us"], kind="stable")]
    names = [f"{row['algorithm']} {row['protocol']}" for row in known]
    colours = ["C1" if row["chosen"] else "C0" if row["enabled"] else "0.8" for row in known]
    ax.barh(names, known["time_us"], color=colours)
    ax.invert_yaxis()
    ax.set_xlabel("predicted time [us]")
    ax.set_title(f"{tuning.kind} of {tuning.nbytes} B: orange is taken, grey is off")
    return ax


def save_tuning(tuning: Tuning, path: str | os.PathLike[str], force: bool) -> Path:
    """Write a tuning (see `Tuning.save`)."""
    facts = {
        "kind": tuning.kind,
        "count": tuning.count,
        "dtype": tuning.dtype,
        "op": tuning.op,
        "choice": None if tuning.choice is None else asdict(tuning.choice),
        "why_none": tuning.why_none,
        "nccl": nccl_facts(tuning.nccl),
        "cluster": {"name": tuning.cluster.name, "steps": steps_of(tuning.cluster)},
    }
    return result_io.save(path, "tuning", {"candidates": tuning.rows}, facts, force)


def load_tuning(path: str | os.PathLike[str]) -> Tuning:
    """Make a saved tuning anew (see `Tuning.load`)."""
    from genie.replay.nccl.tuner import Tuning

    manifest, where = result_io.load(path, "tuning"), str(path)
    nccl = nccl_of(manifest.get("nccl"), where)
    try:
        cluster = remake(manifest["cluster"]["steps"], where).with_nccl(nccl)
        kind, count, dtype, op = (manifest[name] for name in ("kind", "count", "dtype", "op"))
    except (KeyError, TypeError) as error:
        raise RecordError(f"{path}: no tuning ({error!r})", path=where) from error
    made = Tuning(kind, count, dtype, op, cluster, nccl)
    result_io.check_same(path, manifest, {"candidates": made.rows})
    return made
