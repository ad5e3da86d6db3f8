"""`replay()`: a trace's communication over the real network."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from genie import checks
from genie.errors import GenieError, InputError
from genie.replay.endpoints import Endpoint, deal_ranks, parse_endpoints
from genie.replay.mapping import check_nics
from genie.replay.plan import Plan, check_models
from genie.replay.plan import plan as make_plan
from genie.replay.simulate import check_run

if TYPE_CHECKING:
    from genie.replay.cluster import Cluster
    from genie.replay.compute import ComputeModel
    from genie.replay.control import Control, Settings
    from genie.replay.gpu import GpuModel
    from genie.replay.launchers.join import Role
    from genie.replay.nccl.env import Nccl
    from genie.replay.recording import Recording
    from genie.trace import Trace

#: A reading takes up to some ms; more often it would be the load that is measured.
MIN_COUNTER_INTERVAL = 0.001


def replay(
    trace: Trace | Plan,
    endpoints: str | os.PathLike[str] | Endpoint | Sequence[str | Endpoint] = "local:2",
    *,
    cluster: Cluster | None = None,
    nccl: Nccl | None = None,
    transport: str = "auto",
    iterations: int = 1,
    warmup: int = 0,
    time_scale: float = 1.0,
    compute: ComputeModel | None = None,
    gpu: GpuModel | None = None,
    progress: Callable[[int, int], None] | bool | None = None,
    timeout: float = 60.0,
    log_messages: bool = True,
    counter_interval: float = 1.0,
    on_error: Literal["raise", "record"] = "raise",
    options: dict[str, Any] | None = None,
    quiet: bool = False,
    keep_remote: str | os.PathLike[str] | None = None,
) -> Recording:
    """Replay a trace between workers over the real network and return what was measured.

    Args:
        trace: From `genie.load`, or a `Plan`.
        endpoints: Where workers run: "local:N", a list, or a file; one worker each, in the order
            of the cluster's hosts.
        cluster: The machine that is emulated; None is `Cluster.local` with one host an endpoint.
        nccl: NCCL version and environment.
        transport: "auto", "tcp" or "verbs".
        iterations: Measured iterations.
        warmup: Iterations before them, recorded with negative numbers.
        time_scale: Factor on compute times.
        compute: Roofline for compute nodes without a duration.
        gpu: GPU-time model.
        progress: Called with (nodes done, nodes in all); True is a bar, False nothing, None a bar
            when stderr is a terminal.
        timeout: Seconds for workers to start and to connect, and without any progress in the run
            (beyond the longest compute between two communications of the trace).
        log_messages: Keep the `messages` table.
        counter_interval: Seconds between readings of the NICs' counters during the run (table
            `counters`), by a thread of each worker; 0 reads before and after it only.
        on_error: What to do when a run that had begun fails or is interrupted: "raise" the error,
            whose `recording` attribute holds what was recorded, or return ("record") that
            Recording, marked incomplete.
        options: Further options of the transport, such as {"sockets": 2} for TCP.
        keep_remote: Folder on every host where the worker there leaves what it recorded, instead
            of sending it home; an absolute path. The Recording lists host, path and SHA-256, and
            `Recording.load` joins the files that it finds.
        quiet: Do not say on stderr which rank runs where, by which NIC and on which cores.

    Raises:
        InputError: Endpoints, ranks and cluster that do not fit together.
        GenieError: As `genie.plan`, or what ended the run; every worker is gone by then.
        KeyboardInterrupt: Ctrl-C, with on_error="raise".
        SystemExit: In every process but the first of a job that a launcher (srun, mpirun,
            torchrun) started: such a process serves as a worker and then ends.
    """
    from genie.replay.control import InterruptedRunError
    from genie.replay.launchers.join import LAUNCHER_VAR, role, serve
    from genie.replay.progress import make_progress

    checks.one_of("on_error", on_error, ("raise", "record"))
    checks.one_of("transport", transport, ("auto", "tcp", "verbs"))
    check_run(iterations, warmup, time_scale)
    checks.real("timeout", timeout, 1e-3, 1e7)
    checks.truth("log_messages", log_messages)
    if not isinstance(progress, bool):
        checks.callback("progress", progress)
    if options is not None and not isinstance(options, dict):
        raise InputError(f"options is a dict of the transport's, not {checks.short(options)}")
    check_models(compute, gpu)
    if counter_interval != 0:
        checks.real("counter_interval", counter_interval, MIN_COUNTER_INTERVAL, 1e6)
    checks.truth("quiet", quiet)
    if keep_remote is not None:
        checks.path("keep_remote", keep_remote)
    if keep_remote is not None and not os.path.isabs(keep_remote):
        raise InputError(
            f"keep_remote {os.fspath(keep_remote)!r}: workers run in no folder of yours, so the "
            "path must be absolute"
        )
    ends = parse_endpoints(endpoints)
    who = role()
    if who is not None and who.size != len(ends):
        raise InputError(
            f"{who.launcher} started {who.size} processes, there are {len(ends)} endpoints: one "
            f"process is one worker, so the numbers must be equal ({LAUNCHER_VAR}=local starts "
            "workers from this process instead)",
            size=who.size,
            endpoints=len(ends),
        )
    if who is not None and who.rank > 0:
        raise SystemExit(serve(who, timeout))
    made = _plan(trace, ends, cluster, nccl, compute, gpu)
    odd = check_nics(made.cluster, ends)
    settings = _settings(transport, ends)
    settings.iterations, settings.warmup, settings.time_scale = iterations, warmup, time_scale
    settings.timeout, settings.quiet = timeout, quiet
    settings.keep = "" if keep_remote is None else os.fspath(keep_remote)
    settings.log_messages = "network" if log_messages else "none"
    settings.counter_interval = counter_interval
    settings.options = _options(settings.transport, made, options or {})
    bar = make_progress(progress, "replay")
    control = _control(made, ends, settings, bar, who)
    control.outcome.warnings += odd
    try:
        outcome = control.run()
    finally:
        close = getattr(bar, "close", None)
        if close is not None and not callable(progress):
            close()
    error = outcome.error
    if error is not None and outcome.started_ns < 0:
        if isinstance(error, InterruptedRunError) and on_error == "raise":
            raise KeyboardInterrupt(error.message)
        raise error
    from genie.replay.collect import recording

    result = recording(control)
    if error is None or on_error == "record":
        return result
    raised: GenieError | KeyboardInterrupt = error
    if isinstance(error, InterruptedRunError):
        raised = KeyboardInterrupt(error.message)
    raised.recording = result  # type: ignore[union-attr]
    raise raised


def _plan(
    trace: Trace | Plan,
    ends: Sequence[Endpoint],
    cluster: Cluster | None,
    nccl: Nccl | None,
    compute: ComputeModel | None,
    gpu: GpuModel | None,
) -> Plan:
    """Return the plan, with as many hosts as there are endpoints."""
    from genie.replay.cluster import Cluster as ClusterClass
    from genie.replay.nccl.context import check_setting
    from genie.trace import Trace as TraceClass

    if isinstance(trace, Plan):
        made = trace
    else:
        checks.instance("trace", trace, TraceClass, "genie.load(path)")
        check_setting(nccl, cluster if cluster is not None else ClusterClass.local(1))
        if cluster is None:
            per_host = len(deal_ranks(trace.world_size, ends)[0])
            cluster = ClusterClass.local(len(ends), per_host)
        elif cluster.n_hosts != len(ends):
            raise _hosts_differ(cluster.name, cluster.n_hosts, ends)
        made = make_plan(trace, cluster, nccl=nccl, compute=compute, gpu=gpu)
    if made.n_hosts != len(ends):
        raise _hosts_differ(made.cluster.name, made.n_hosts, ends)
    return made


def _hosts_differ(name: str, hosts: int, ends: Sequence[Endpoint]) -> InputError:
    return InputError(
        f"cluster {name} has {hosts} hosts, there are {len(ends)} endpoints: one worker runs the "
        "ranks of one host, so the numbers must be equal",
        hosts=hosts,
        endpoints=len(ends),
    )


def _settings(transport: str, ends: Sequence[Endpoint]) -> Settings:
    """Return settings with the transport chosen."""
    from genie.replay.control import Settings as SettingsClass

    if transport == "auto":
        # RDMA where the endpoints name RDMA devices; those of other hosts cannot be looked at.
        rdma = Path("/sys/class/infiniband")
        named = [nic.name for end in ends for nic in end.nics if end.is_local]
        known = bool(named) and all((rdma / name).exists() for name in named)
        transport = "verbs" if known and all(end.nics for end in ends) else "tcp"
    return SettingsClass(transport=transport)


def _options(transport: str, made: Plan, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the transport's options: NCCL's environment says how verbs behaves."""
    if transport != "verbs":
        return dict(options)
    from genie.replay.transports.verbs_config import VerbsConfig

    settings = VerbsConfig.from_nccl(made.nccl).to_options()
    settings = VerbsConfig.from_options({**settings, **options}).to_options()
    if "spin" not in options:
        del settings["spin"]  # The worker knows its cores.
    return settings


def settings_of(transport: str, ends: Sequence[Endpoint], nccl: Nccl | None) -> Settings:
    """Return transport and options as `replay` would choose them for these endpoints.

    Args:
        transport: "auto", "tcp" or "verbs".
        ends: The endpoints.
        nccl: NCCL's environment; None is its defaults.
    """
    from genie.replay.nccl.env import Nccl as NcclClass

    settings = _settings(transport, ends)
    if settings.transport == "verbs":
        from genie.replay.transports.verbs_config import VerbsConfig

        settings.options = VerbsConfig.from_nccl(nccl or NcclClass()).to_options()
    return settings


def _control(
    made: Plan,
    ends: Sequence[Endpoint],
    settings: Settings,
    progress: Callable[[int, int], None] | None,
    who: Role | None,
) -> Control:
    from genie.replay.control import Control as ControlClass
    from genie.replay.launchers.choose import choose, listen_address

    if who is None:
        return ControlClass(
            made, ends, choose(ends), settings, address=listen_address(ends), progress=progress
        )
    from genie.replay.auth import take_secret
    from genie.replay.launchers.join import JoinedLauncher, coordinator_address

    host, port = coordinator_address(who)
    return ControlClass(
        made,
        ends,
        JoinedLauncher(),
        settings,
        address=host,
        port=port,
        secret=take_secret(),
        progress=progress,
    )
