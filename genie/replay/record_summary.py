"""What a Recording says in numbers: its collectives, its steps, and the text of `summary()`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from genie.replay.bandwidth import algbw_gbps, bus_factor
from genie.replay.record_counters import counters_line
from genie.replay.record_health import cpu_limits, health_line
from genie.replay.tables import COLLECTIVES, KINDS, N_COLLECTIVES
from genie.units import format_size, format_time

if TYPE_CHECKING:
    from genie.replay.recording import Recording

HEAD = (
    "collective",
    "communicator",
    "ranks",
    "size",
    "count",
    "time med",
    "min",
    "max",
    "algbw GB/s",
    "busbw GB/s",
)
STEP = np.dtype([("iteration", "i4"), ("start_ns", "i8"), ("end_ns", "i8"), ("time_ns", "i8")])


def fill_bandwidth(ops: npt.NDArray[np.void], group_size: npt.NDArray[np.int64]) -> None:
    """Set `algbw` and `busbw` of every row of `ops`, in place.

    Args:
        ops: Table `ops` of a Recording; `kind`, `nbytes`, `start_ns`, `end_ns` are read.
        group_size: Ranks of each row's communicator.
    """
    done = (ops["end_ns"] >= 0) & (ops["start_ns"] >= 0) & (ops["nbytes"] > 0)
    time = np.where(done, ops["end_ns"] - ops["start_ns"], 0)
    ops["algbw"] = algbw_gbps(ops["nbytes"], time)
    ops["busbw"] = ops["algbw"] * _factors(ops["kind"], group_size)


def _factors(
    kinds: npt.NDArray[np.int32], group_size: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    # One integer a pair: unique over rows of two is many times slower.
    pairs = (kinds.astype(np.int64) << 32) | group_size.astype(np.int64)
    unique, inverse = np.unique(pairs, return_inverse=True)
    factors = np.array(
        [
            bus_factor(KINDS[pair >> 32], pair & 0xFFFFFFFF) if pair & 0xFFFFFFFF else np.nan
            for pair in unique.tolist()
        ],
        dtype=np.float64,
    )
    return factors[inverse.reshape(-1)] if len(unique) else np.empty(0, np.float64)


def collectives(rec: Recording) -> npt.NDArray[np.void]:
    """Return one row for every collective that ran, its ranks taken together.

    `time_ns` runs from the last rank's start to the last rank's end, so that a rank that came
    late (its compute was slower) is not counted as network time. A send is a row of its own,
    timed on the sender. `end_ns`, `time_ns` are -1 where a rank is missing or did not finish.
    """
    ops = rec.ops
    sizes = rec.group_sizes()
    collective = (ops["kind"] >= 0) & (ops["kind"] < N_COLLECTIVES)
    rows = ops[collective & (ops["start_ns"] >= 0)]
    order = np.lexsort((rows["seq"], rows["communicator"], rows["iteration"]))
    rows = rows[order]
    keys = np.stack([rows["iteration"], rows["communicator"], rows["seq"]], axis=1)
    new = np.ones(len(rows), dtype=bool)
    new[1:] = (keys[1:] != keys[:-1]).any(axis=1)
    first = np.flatnonzero(new)
    sends = ops[(ops["kind"] == KINDS.index("send")) & (ops["start_ns"] >= 0)]
    out = np.zeros(len(first) + len(sends), dtype=COLLECTIVES)
    part = out[: len(first)]
    if len(first):
        present = np.diff(np.append(first, len(rows)))
        for name in ("kind", "communicator", "seq", "iteration", "nbytes"):
            part[name] = rows[name][first]
        part["ranks"] = [sizes.get(int(c), 0) for c in part["communicator"]]
        part["first_start_ns"] = np.minimum.reduceat(rows["start_ns"], first)
        part["last_start_ns"] = np.maximum.reduceat(rows["start_ns"], first)
        whole = (np.minimum.reduceat(rows["end_ns"], first) >= 0) & (present == part["ranks"])
        part["end_ns"] = np.where(whole, np.maximum.reduceat(rows["end_ns"], first), -1)
    rest = out[len(first) :]
    for name in ("kind", "communicator", "seq", "iteration", "nbytes", "end_ns"):
        rest[name] = sends[name]
    rest["ranks"] = 2
    rest["first_start_ns"] = rest["last_start_ns"] = sends["start_ns"]
    out["time_ns"] = np.where(out["end_ns"] >= 0, out["end_ns"] - out["last_start_ns"], -1)
    out["algbw"] = np.where(out["nbytes"] > 0, algbw_gbps(out["nbytes"], out["time_ns"]), np.nan)
    out["busbw"] = out["algbw"] * _factors(out["kind"], out["ranks"].astype(np.int64))
    return out[np.lexsort((out["first_start_ns"], out["iteration"]))]


def steps(rec: Recording) -> npt.NDArray[np.void]:
    """Return the step time of every iteration: first node ready to last node done, all ranks.

    `end_ns` and `time_ns` are -1 for an iteration in which some node did not finish.
    """
    ops = rec.ops
    if "steps" in rec.manifest:  # the table has some ranks only
        given = rec.manifest["steps"]
        out = np.zeros(len(given), dtype=STEP)
        for row, (iteration, start, end) in zip(out, given, strict=True):
            time = end - start if end >= 0 else -1
            row["iteration"], row["start_ns"], row["end_ns"] = iteration, start, end
            row["time_ns"] = time
        return out
    found = np.unique(ops["iteration"])
    out = np.zeros(len(found), dtype=STEP)
    for row, iteration in zip(out, found, strict=True):
        mine = ops[ops["iteration"] == iteration]
        ready = mine["ready_ns"][mine["ready_ns"] >= 0]
        whole = bool((mine["end_ns"] >= 0).all())
        row["iteration"] = iteration
        row["start_ns"] = ready.min() if len(ready) else -1
        row["end_ns"] = mine["end_ns"].max() if whole else -1
        row["time_ns"] = row["end_ns"] - row["start_ns"] if whole and len(ready) else -1
    return out


def summary(rec: Recording) -> str:
    """Return the table of every collective and the step time of every iteration, as text."""
    rows = collectives(rec)
    measured = rows[rows["iteration"] >= 0]
    comm = rec.labels["ops", "communicator"]
    lines = [repr(rec)]
    body: list[tuple[str, ...]] = [HEAD]
    order = np.lexsort((measured["nbytes"], measured["communicator"], measured["kind"]))
    measured = measured[order]
    new = np.ones(len(measured), bool)
    for name in ("kind", "communicator", "nbytes"):
        new[1:] &= measured[name][1:] == measured[name][:-1]
    new[1:] = ~new[1:]
    for same in np.split(measured, np.flatnonzero(new)[1:]) if len(measured) else ():
        kind, communicator, nbytes = same[["kind", "communicator", "nbytes"]][0].tolist()
        done = same[same["time_ns"] >= 0]
        count = str(len(same)) if len(done) == len(same) else f"{len(done)} of {len(same)}"
        if len(done):
            time = done["time_ns"]
            median = float(np.median(time))
            algbw = algbw_gbps(int(nbytes), median) if nbytes else float("nan")
            busbw = algbw * bus_factor(KINDS[kind], int(same["ranks"][0]))
            numbers = (
                *(format_time(float(t)) for t in (median, time.min(), time.max())),
                *(f"{bw:.3f}" if np.isfinite(bw) else "-" for bw in (algbw, busbw)),
            )
        else:
            numbers = ("-",) * 5
        name = comm[communicator] if communicator >= 0 else ""
        body.append(
            (KINDS[kind], name, str(same["ranks"][0]), format_size(int(nbytes)), count, *numbers)
        )
    if len(body) > 1:
        lines += ["", *_align(body, left=2)]
    timed: list[tuple[str, ...]] = [("iteration", "step time")]
    for step in steps(rec):
        label = str(step["iteration"]) if step["iteration"] >= 0 else "warm-up"
        timed.append(
            (label, format_time(float(step["time_ns"])) if step["time_ns"] >= 0 else "incomplete")
        )
    lines += ["", *_align(timed, left=0)]
    lines += _notes(rec)
    return "\n".join(lines)


def _align(rows: list[tuple[str, ...]], left: int) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def traffic_line(rec: Recording) -> str:
    """Return what was sent between hosts beside what the plan says, "" where neither is known."""
    plan, messages = rec.manifest.get("plan"), rec.messages
    if not isinstance(plan, dict) or not len(messages) or "log_ranks" in rec.manifest:
        return ""
    runs = int(rec.manifest.get("iterations", 1)) + int(rec.manifest.get("warmup", 0))
    # Column by column: rows of tens of millions of messages are not copied.
    sent = (messages["direction"] == 0) & (messages["posted_ns"] >= 0)
    sent &= messages["connection"] >= 0
    count, nbytes = int(sent.sum()), int(messages["nbytes"][sent].sum())
    done = int(((messages["status"] == 0) & (messages["completed_ns"] >= 0))[sent].sum())
    planned, planned_bytes = int(plan["messages"]) * runs, int(plan["nbytes"]) * runs
    if (done, count, nbytes) == (planned, planned, planned_bytes):
        return f"between hosts: all {count} messages sent, {format_size(nbytes)}, as planned"
    return (
        f"between hosts: {count} of {planned} planned messages posted, {format_size(nbytes)} of "
        f"{format_size(planned_bytes)}; {done} completed"
    )


def _notes(rec: Recording) -> list[str]:
    out = [line for line in (traffic_line(rec), health_line(rec), counters_line(rec)) if line]
    if rec.manifest.get("approximate"):
        out.append(f"approximate: {rec.manifest.get('approximation', '')}")
    cost = rec.manifest.get("simulation")
    if cost:
        out.append(
            f"simulated with {cost['events']} events in {format_time(cost['wall_ns'])}, "
            f"peak memory of the process {format_size(cost['peak_rss_bytes'])}"
        )
    out += [f"warning: {text}" for text in rec.manifest.get("warnings", ())]
    limits = cpu_limits(rec)
    if limits:
        more = f" (and {len(limits) - 1} more)" if len(limits) > 1 else ""
        out.append(f"warning: the CPU, not the network, may have set the pace: {limits[0]}{more}")
    if "remote" in rec.manifest:
        from genie.replay.remote import missing

        out += [f"stays on its host: {place}" for place in missing(rec.manifest)]
    if not rec.complete:
        out.append(f"INCOMPLETE: {rec.manifest.get('incomplete') or 'the run did not finish'}")
    messages = rec.column("failures", "message")
    out += [f"failure: {text}" for text in messages[:10]]
    if len(messages) > 10:
        out.append(f"... and {len(messages) - 10} failures more")
    return ["", *out] if out else []
