"""From what the workers sent back to one Recording."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from genie.replay import tables
from genie.replay.assemble import assemble, merge, plan_manifest
from genie.replay.clocks import clock_identity
from genie.replay.nic_counters import MEANINGS
from genie.replay.recording import Recording
from genie.replay.sampler import MAX_SAMPLES, SAMPLE

if TYPE_CHECKING:
    from genie.errors import GenieError
    from genie.replay.clocks import ClockFit
    from genie.replay.control import Control, Outcome, WorkerResult
    from genie.replay.shard import Shard

Labels = dict[tuple[str, str], tuple[str, ...]]


def recording(control: Control) -> Recording:
    """Return the Recording of a run, whole or not."""
    from genie.replay.provenance import provenance

    outcome, plan = control.outcome, control.plan
    parts = [
        _part(control, worker, result)
        for worker, result in enumerate(outcome.results)
        if result.whole and result.done is not None and result.done.kept is None
    ]
    whole, labels = merge(parts)
    if not parts:
        labels = {}
    whole["health"] = _health(control)
    whole["counters"], more = _counters(outcome)
    labels |= more
    whole["failures"], more = _failures(control)
    labels |= more
    shard = plan.shard(0)
    manifest = (
        provenance(plan)
        | plan_manifest(shard)
        | {
            "mode": "replay",
            "complete": outcome.error is None,
            "incomplete": _why(control),
            "warnings": [*plan.warnings, *outcome.warnings, *_dropped(control)],
            "iterations": control.settings.iterations,
            "warmup": control.settings.warmup,
            "time_scale": control.settings.time_scale,
            "transport": control.settings.transport,
            "endpoints": [str(endpoint) for endpoint in control.endpoints],
            "devices": [list(r.ready.devices) if r.ready else [] for r in outcome.results],
            "workers": [_worker(r) for r in outcome.results],
            "clock": {
                "reference": "CLOCK_MONOTONIC of the coordinator",
                "identity": clock_identity(),
                "start_ns": outcome.started_ns,
                "corrections": [_clock(r) for r in outcome.results],
            },
            "seconds": outcome.seconds,
            "rejected_peers": outcome.rejected,
        }
    )
    remote = _remote(control)
    if remote:
        manifest["remote"] = remote
    return Recording(whole, manifest, labels)


def _part(
    control: Control, worker: int, result: WorkerResult
) -> tuple[dict[str, npt.NDArray[np.void]], Labels]:
    from genie._core.engine import CONNECTIONS, MESSAGES, OPS

    assert result.done is not None
    logs = {
        name: np.frombuffer(result.blobs[name], dtype=dtype)
        for name, dtype in (("ops", OPS), ("messages", MESSAGES), ("connections", CONNECTIONS))
    }
    zero = (result.done.start_ns, control.outcome.started_ns)
    return part_of(control.plan.shard(worker), logs, result.clock, zero)


def part_of(
    shard: Shard, logs: dict[str, npt.NDArray[np.void]], clock: ClockFit, zero: tuple[int, int]
) -> tuple[dict[str, npt.NDArray[np.void]], Labels]:
    """Return one worker's `ops` and `messages`, its times on the common timeline.

    Args:
        shard: What it ran.
        logs: The engine's "ops", "messages" and "connections".
        clock: Its clock against the coordinator's.
        zero: The start barrier on its clock and on the coordinator's, ns.
    """
    ops, messages = logs["ops"].copy(), logs["messages"].copy()
    for table, names in (
        (ops, ("ready_ns", "start_ns", "end_ns")),
        (messages, ("posted_ns", "completed_ns")),
    ):
        for name in names:
            table[name] = clock.correct(table[name], *zero)
    found, labels = assemble(shard, ops, messages, logs["connections"])
    open_ = (found["messages"]["completed_ns"] < 0) & (found["messages"]["status"] == 0)
    found["messages"]["status"][open_] = tables.IN_FLIGHT
    return found, labels


def _remote(control: Control) -> list[dict[str, Any]]:
    """Return where the tables are that stayed on their hosts."""
    out = []
    for worker, result in enumerate(control.outcome.results):
        if result.done is not None and result.done.kept is not None:
            path, nbytes, sha256 = result.done.kept
            out.append(
                {
                    "worker": worker,
                    "endpoint": str(control.endpoints[worker]),
                    "host": result.hello.host if result.hello else "",
                    "path": path,
                    "nbytes": nbytes,
                    "sha256": sha256,
                }
            )
    return out


def _health(control: Control) -> npt.NDArray[np.void]:
    outcome = control.outcome
    table = tables.empty("health", len(outcome.results))
    names = set(table.dtype.names or ())
    for worker, (row, result) in enumerate(zip(table, outcome.results, strict=True)):
        row["worker"] = worker
        row["ranks"] = len(control.plan.ranks_of(worker))
        row["workers_on_host"] = outcome.workers_on_host.get(worker, 0)
        if result.hello is not None:
            row["cores"] = result.hello.cores
        if result.done is not None:
            for name, value in result.done.health.items():
                if name in names:
                    row[name] = value
        if outcome.started_ns >= 0:
            row["clock_offset_ns"] = result.clock.offset_at(outcome.started_ns)
            row["clock_drift"] = result.clock.drift
            row["clock_bound_ns"] = result.clock.bound_ns
    return table


def _counters(outcome: Outcome) -> tuple[npt.NDArray[np.void], Labels]:
    """Return every worker's readings, sorted by worker, series and time."""
    devices: dict[str, int] = {}
    names: dict[str, int] = {}
    meanings: dict[str, int] = {}
    parts = [tables.empty("counters")]
    for worker, result in enumerate(outcome.results):
        if result.done is None or "counters" not in result.blobs:
            continue
        found = np.frombuffer(result.blobs["counters"], dtype=SAMPLE)
        found = found[np.argsort(found["series"], kind="stable")]
        series = result.done.series
        out = tables.empty("counters", len(found))
        out["worker"], out["value"] = worker, found["value"]
        for column, codes, texts in (
            ("device", devices, [device for device, _ in series]),
            ("name", names, [name for _, name in series]),
            ("meaning", meanings, [MEANINGS.get(name, "") for _, name in series]),
        ):
            lookup = np.array([codes.setdefault(text, len(codes)) for text in texts], dtype="i4")
            out[column] = lookup[found["series"]] if len(found) else 0
        out["time_ns"] = result.clock.correct(
            found["t_ns"] - result.done.start_ns, result.done.start_ns, outcome.started_ns
        )
        out["delta"] = 0
        same = found["series"][1:] == found["series"][:-1]
        out["delta"][1:][same] = np.diff(found["value"])[same]
        parts.append(out)
    return np.concatenate(parts), {
        ("counters", "device"): tuple(devices),
        ("counters", "name"): tuple(names),
        ("counters", "meaning"): tuple(meanings),
    }


def _failures(control: Control) -> tuple[npt.NDArray[np.void], Labels]:
    rows: list[dict[str, Any]] = []
    outcome = control.outcome
    for worker, exc in outcome.causes:
        rows.append(
            {"worker": worker, "error": type(exc).__name__, "message": _one_line(exc)}
            | {k: v for k, v in exc.fields.items() if k == "rank" and isinstance(v, int)}
        )
    for worker, result in enumerate(outcome.results):
        if result.done is not None:
            for failure in result.done.failures:
                times = np.array([failure["time_ns"]], dtype=np.int64)
                zero = (result.done.start_ns, outcome.started_ns)
                at = int(result.clock.correct(times, *zero)[0])
                rows.append({**failure, "worker": worker, "time_ns": at})
    table = tables.empty("failures", len(rows))
    errors: dict[str, int] = {}
    messages: dict[str, int] = {}
    for out, row in zip(table, rows, strict=True):
        out["rank"] = out["node"] = -1
        for name, value in row.items():
            if name == "error":
                out["error"] = errors.setdefault(value, len(errors))
            elif name == "message":
                out["message"] = messages.setdefault(value, len(messages))
            else:
                out[name] = value
    return table, {
        ("failures", "error"): tuple(errors),
        ("failures", "message"): tuple(messages),
    }


def _one_line(exc: GenieError) -> str:
    return exc.message


def _why(control: Control) -> str:
    error = control.outcome.error
    if error is None:
        return ""
    missing = [
        control.names[worker]
        for worker, result in enumerate(control.outcome.results)
        if not result.whole
    ]
    lost = f"; nothing came from {', '.join(missing[:8])}" if missing else ""
    if len(missing) > 8:
        lost += f" and {len(missing) - 8} more"
    return error.message + lost


def _dropped(control: Control) -> list[str]:
    out = []
    for worker, result in enumerate(control.outcome.results):
        if result.done is not None and result.done.not_kept:
            out.append(
                f"{control.names[worker]}: its recording could not stay there "
                f"({result.done.not_kept}), and came home"
            )
        if result.done is not None and any(result.done.dropped):
            ops, messages = result.done.dropped
            out.append(
                f"{control.names[worker]}: {ops} rows of ops and {messages} of messages "
                "did not fit into its log"
            )
        if result.done is not None and result.done.counters_full:
            out.append(
                f"{control.names[worker]}: {MAX_SAMPLES} changes of counters were kept, then only "
                "the last values"
            )
    return out


def _worker(result: WorkerResult) -> dict[str, Any]:
    hello = result.hello
    if hello is None:
        return {}
    return {
        "host": hello.host,
        "pid": hello.pid,
        "cores": hello.cores,
        "kernel": hello.kernel,
        "python": hello.python,
        "status": result.done.status if result.done else "lost",
        "failures_more": result.done.failures_more if result.done else 0,
        "pinned_to_cores": result.done.pinned if result.done else "",
        "strangers_refused": result.done.rejected if result.done else 0,
    }


def _clock(result: WorkerResult) -> dict[str, Any]:
    clock = result.clock
    return {
        "offset_ns": clock.offset_ns,
        "drift": clock.drift,
        "reference_ns": clock.reference_ns,
        "bound_ns": clock.bound_ns,
        "steady": clock.steady,
        "exchanges": clock.exchanges,
    }
