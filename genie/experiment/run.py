"""`experiment()`: make every run, refuse those that the CPU limited, keep everything."""

from __future__ import annotations

import datetime
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from genie.errors import GenieError, InputError
from genie.experiment import conditions as plan_runs
from genie.experiment import measure, store
from genie.experiment.result import CPU_LIMITED, FAILED, ExperimentResult, RunResult
from genie.experiment.spec import Condition, Experiment, load_spec
from genie.experiment.testbeds.make import make_testbed
from genie.experiment.testbeds.shell import run as shell
from genie.units import parse_time

if TYPE_CHECKING:
    from genie.experiment.testbeds.base import Testbed
    from genie.replay.cluster import Cluster
    from genie.trace import Trace

Progress = Callable[[int, int, str], None]


class ExperimentError(GenieError, RuntimeError):
    """An experiment that stopped early: `result` holds what was done."""


def run_experiment(
    spec: str | os.PathLike[str] | Mapping[str, Any] | Experiment,
    output: str | os.PathLike[str] | None,
    force: bool,
    progress: Progress | None,
    folder: str | os.PathLike[str] | None,
) -> ExperimentResult:
    """Do the work of `genie.experiment`."""
    wanted, here = load_spec(spec)
    with tempfile.TemporaryDirectory(prefix="genie-experiment-") as scratch:
        job = _prepare(wanted, here if folder is None else Path(folder), Path(scratch))
        return _carry_out(job, store.prepare(output, force), progress)


def _carry_out(job: _Job, target: Path | None, progress: Progress | None) -> ExperimentResult:
    """Build the testbed, make the runs, take it down, and keep what was found."""
    result = ExperimentResult(
        job.spec, planned=len(job.runs), began=_now(), command=" ".join(sys.argv[:20])
    )
    error: BaseException | None = None
    try:
        with _interruptible(), job.testbed:
            _simulate(job, result)
            _make_runs(job, result, target, progress)
    except (GenieError, KeyboardInterrupt) as exc:
        if not result.runs:
            raise
        result.stopped = result.stopped or (str(exc) or "interrupted")
        error = exc
    if target is not None:
        store.finish(result, target)
    if error is not None:
        error.result = result  # type: ignore[attr-defined]
        raise error
    return result


@dataclass
class _Job:
    """An experiment that has been checked as far as it can be before anything is built."""

    spec: Experiment
    testbed: Testbed
    runs: tuple[plan_runs.Run, ...]
    conditions: tuple[Condition, ...]
    trace: Trace
    cluster: Cluster


def _prepare(spec: Experiment, folder: Path, scratch: Path) -> _Job:
    """Check all that can be checked before anything is built."""
    from genie.replay.cluster import Cluster
    from genie.replay.clusters.named import parse_cluster
    from genie.replay.plan import plan

    if not 0 < spec.confidence < 1:
        raise InputError(f"confidence {spec.confidence}: expected a share such as 0.95")
    conditions = plan_runs.expand(spec)
    runs = plan_runs.order(spec, conditions)
    plan_runs.check_changes(conditions, spec.repetitions)
    testbed = make_testbed(spec.testbed)
    hosts = len(testbed.endpoints)
    cluster = parse_cluster(spec.testbed.cluster or None)
    trace = None
    if cluster is None:
        gpus = spec.testbed.gpus
        if spec.workload.trace:
            trace = measure.trace_of(spec.workload, hosts, folder, scratch)
            gpus = trace.world_size // hosts
        cluster = Cluster.local(hosts, gpus)
    if cluster.n_hosts != hosts:
        raise InputError(
            f"testbed.cluster {spec.testbed.cluster} has {cluster.n_hosts} hosts, the testbed has "
            f"{hosts}: one worker runs the ranks of one host, so the numbers must be equal"
        )
    if trace is None:
        trace = measure.trace_of(spec.workload, cluster.n_ranks, folder, scratch)
    for condition in conditions:
        if testbed.links:
            plan_runs.base_states(testbed.links, spec.testbed, condition)
            if condition.before or condition.after or any(c.before for c in condition.changes):
                raise InputError(
                    f'condition {condition.name!r}: before and after are for testbed "commands"'
                )
        elif condition.links or any(change.links for change in condition.changes):
            raise InputError(
                f"condition {condition.name!r}: links of the user's own network are changed by "
                "commands (before, after), which GENIE_RATE and the like tell what is wanted"
            )
        plan(trace, cluster, nccl=plan_runs.nccl_of(spec, condition))
    for run in runs:
        plan_runs.states_of(testbed.links, spec.testbed, run)
    return _Job(spec, testbed, runs, conditions, trace, cluster)


def _simulate(job: _Job, result: ExperimentResult) -> None:
    """Simulate every condition as it is without its changes."""
    from genie.replay.simulate import simulate

    if not job.spec.simulate:
        return
    work = job.spec.workload
    for condition in job.conditions:
        states = plan_runs.base_states(job.testbed.links, job.spec.testbed, condition)
        network = measure.network_of(job.spec, job.testbed, states, condition, job.cluster)
        if network is None:
            continue
        recording = simulate(
            job.trace,
            job.cluster,
            network=network,
            nccl=plan_runs.nccl_of(job.spec, condition),
            iterations=work.iterations,
            warmup=work.warmup,
            time_scale=work.time_scale,
            gpu=measure.gpu_of(work),
            log_messages=False,
        )
        result.network[condition.name] = measure.describe(network)
        result.simulated[condition.name] = {
            what: sorted(values)[len(values) // 2]
            for what, values in measure.values_of(recording, work).items()
        }


def _make_runs(
    job: _Job, result: ExperimentResult, target: Path | None, progress: Progress | None
) -> None:
    for run in job.runs:
        if progress is not None:
            text = f"{run.condition.name}{', ' if run.phase else ''}{run.phase}"
            progress(run.number - 1, len(job.runs), text)
        made = RunResult(run.number, run.condition.name, run.repetition, run.phase, began=_now())
        result.runs.append(made)
        try:
            _one(job, run, made, target)
        except BaseException as exc:
            made.status, made.error = FAILED, made.error or str(exc) or type(exc).__name__
            raise
        finally:
            if target is not None:
                store.keep_runs(result, target)
        _judge(job.spec, made)
    if progress is not None:
        progress(len(job.runs), len(job.runs), "")


def _judge(spec: Experiment, made: RunResult) -> None:
    """Stop at a run that does not count, unless the specification keeps such runs."""
    where = f"run {made.number} ({made.condition}{', ' if made.phase else ''}{made.phase})"
    if made.status == FAILED and spec.on_failure == "stop":
        raise ExperimentError(f'{where} failed: {made.error} (on_failure = "keep" goes on)')
    if made.status == CPU_LIMITED and spec.on_cpu_limit == "stop":
        raise ExperimentError(
            f"{where} measured the CPU, not the network: {'; '.join(made.limits[:3])} "
            "(lower the links' rates or use fewer hosts; --allow-cpu-limited keeps such runs)"
        )


def _one(job: _Job, run: plan_runs.Run, made: RunResult, target: Path | None) -> None:
    """Make one run: network, commands, replay, health, counters."""
    from genie.replay.record_health import cpu_limits
    from genie.replay.run import replay

    spec, testbed, condition = job.spec, job.testbed, run.condition
    work = spec.workload
    testbed.apply(
        plan_runs.states_of(testbed.links, spec.testbed, run), condition.mtu, condition.hash_seed
    )
    env = _environment(run)
    before = testbed.counters()
    began = time.monotonic()
    try:
        for line in (*condition.before, *(b for c in run.changes for b in c.before)):
            shell("sh", "-c", line, env=env)
        recording = replay(
            job.trace,
            testbed.endpoints,
            cluster=job.cluster,
            nccl=plan_runs.nccl_of(spec, condition),
            transport=testbed.transport,
            iterations=work.iterations,
            warmup=work.warmup,
            time_scale=work.time_scale,
            gpu=measure.gpu_of(work),
            progress=False,
            timeout=parse_time(spec.timeout) / 1e9,
            on_error="record",
            options=plan_runs.options_of(condition, testbed.transport, testbed.congestion),
            quiet=True,
        )
    finally:
        _after(run, env)
    made.seconds = time.monotonic() - began
    made.counters = measure.difference(before, testbed.counters())
    made.values = measure.values_of(recording, work)
    made.health = measure.health_of(recording)
    recording.manifest["experiment"] = {
        "name": spec.name,
        "run": run.number,
        "condition": condition.name,
        "repetition": run.repetition,
        "phase": run.phase,
    }
    if target is not None:
        made.folder = f"runs/{run.folder}"
        recording.save(target / made.folder)
    else:
        made.recording = recording
    if not recording.complete:
        made.status, made.error = FAILED, str(recording.manifest.get("incomplete"))
        if "interrupted by" in made.error.partition(";")[0]:
            raise KeyboardInterrupt(made.error)
        return
    made.limits = cpu_limits(recording)
    if made.limits:
        made.status = CPU_LIMITED


def _after(run: plan_runs.Run, env: Mapping[str, str]) -> None:
    """Run every command that follows a run; the first that fails is raised when all were run."""
    failed: GenieError | None = None
    for line in (*(a for c in run.changes for a in c.after), *run.condition.after):
        try:
            shell("sh", "-c", line, env=env)
        except GenieError as exc:
            failed = failed or exc
    if failed is not None:
        raise failed


def _environment(run: plan_runs.Run) -> dict[str, str]:
    """Return what a run's commands are told: GENIE_RUN, GENIE_CONDITION, GENIE_RATE, ..."""
    out = {
        "GENIE_RUN": str(run.number),
        "GENIE_CONDITION": run.condition.name,
        "GENIE_REPETITION": str(run.repetition),
        "GENIE_PHASE": run.phase,
    }
    for name in ("rate", "delay", "loss", "mtu", "hash_seed", "traffic_class"):
        value = getattr(run.condition, name)
        for change in run.changes:
            value = getattr(change, name, None) or value
        if value:
            out[f"GENIE_{name.upper()}"] = str(value)
    return out


@contextmanager
def _interruptible() -> Iterator[None]:
    """Have SIGTERM and SIGHUP unwind as Ctrl-C does, so that the testbed is taken down."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt(f"interrupted by {signal.Signals(number).name}")

    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, stop)
    try:
        yield
    finally:
        for known, handler in before.items():
            signal.signal(known, handler)


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
