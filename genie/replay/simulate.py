"""`simulate()`: the same engine and schedules as a replay, over a model network in virtual time."""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from genie import checks
from genie.errors import InputError
from genie.replay import tables
from genie.replay.assemble import assemble, plan_manifest
from genie.replay.network import Network
from genie.replay.plan import Plan
from genie.replay.plan import plan as make_plan
from genie.replay.shard import make_shard

if TYPE_CHECKING:
    from genie._core.engine import Engine
    from genie.replay.cluster import Cluster
    from genie.replay.compute import ComputeModel
    from genie.replay.gpu import GpuModel
    from genie.replay.nccl.env import Nccl
    from genie.replay.recording import Recording
    from genie.trace import Trace


_MOST_ITERATIONS = 1 << 30


def simulate(
    trace: Trace | Plan,
    cluster: Cluster | None = None,
    *,
    network: Network | None = None,
    nccl: Nccl | None = None,
    iterations: int = 1,
    warmup: int = 0,
    time_scale: float = 1.0,
    compute: ComputeModel | None = None,
    gpu: GpuModel | None = None,
    progress: Callable[[int, int], None] | None = None,
    log_messages: bool = True,
    log_ranks: Sequence[int] | None = None,
    level: Literal["message", "flow"] = "message",
) -> Recording:
    """Run a trace on a model network and return what happened, repeatable to the nanosecond.

    Args:
        trace: From `genie.load`, or a `Plan`.
        cluster: Needed unless `trace` is a plan.
        network: Rates and latency; None is the cluster's NICs plus 2 us.
        nccl: NCCL version and environment.
        iterations: Measured iterations.
        warmup: Iterations before them, recorded with negative numbers.
        time_scale: Factor on compute times.
        compute: Roofline for compute nodes without a duration.
        gpu: GPU-time model.
        progress: Called with (nodes done, nodes in all) about every 100 ms.
        log_messages: Keep the `messages` table (about 95 bytes a message while it is made).
        log_ranks: Ranks whose operations and messages are kept; None = all. Step times are those
            of all ranks in any case.
        level: "message": NCCL's messages, each by itself. "flow": one flow a channel and peer of
            each collective between hosts (`genie.replay.flow`), approximate, for jobs of 10 000
            ranks and more; it keeps no `messages` table.

    Raises:
        GenieError: As `genie.plan`; also when a failed link leaves work that cannot end.
    """
    check_run(iterations, warmup, time_scale)
    checks.callback("progress", progress)
    checks.truth("log_messages", log_messages)
    if network is not None:
        checks.instance("network", network, Network, "genie.Network()")
    if isinstance(trace, Plan):
        made = trace
    elif cluster is None:
        raise InputError(
            "simulate needs a cluster, such as genie.Cluster.preset('h100x8', hosts=2)"
        )
    else:
        made = make_plan(trace, cluster, nccl=nccl, compute=compute, gpu=gpu)
    network = Network() if network is None else network
    if level not in ("message", "flow"):
        raise InputError(f'level is "message" or "flow", not {level!r}')
    if log_ranks is not None:
        outside = [rank for rank in log_ranks if not 0 <= rank < made.world_size]
        if outside:
            raise InputError(f"log_ranks names rank {outside[0]} of {made.world_size}")
    flows = None
    if level == "flow":
        from genie.replay.flow import flow_programs

        flows = flow_programs(made, network)
        log_messages = False
    shard = make_shard(made, None, flows)
    engine = shard.engine(clock="virtual")
    set_links(engine, made.connections, made, network)
    status = engine.run(
        iterations=iterations,
        warmup=warmup,
        time_scale=time_scale,
        progress=progress,
        log_messages="network" if log_messages else "none",
        log_ranks=log_ranks,
    )
    more: dict[str, Any] = {
        "level": level,
        "approximate": level == "flow",
        "log_messages": log_messages,
    }
    if level == "flow":
        more["approximation"] = FLOW_ERROR
    if log_ranks is not None:
        more["log_ranks"] = [int(rank) for rank in log_ranks]
        more["steps"] = [list(row) for row in engine.steps()]
    return _record(
        made,
        network,
        shard,
        engine,
        status,
        more | {"iterations": iterations, "warmup": warmup, "time_scale": time_scale},
    )


def check_run(iterations: int, warmup: int, time_scale: float) -> None:
    """Refuse a number of iterations or a factor on time that cannot be.

    Raises:
        InputError: Which, what it is and what it should be.
    """
    checks.whole("iterations", iterations, 1, _MOST_ITERATIONS)
    checks.whole("warmup", warmup, 0, _MOST_ITERATIONS)
    checks.real("time_scale", time_scale, 0, 1e6)


#: What `level="flow"` says about itself; measured, docs/simulate.md has the table.
FLOW_ERROR = (
    "flow level: step times of training jobs within 0.1 % of the message level where both were "
    "run; collectives that share all their NICs -1 to +24 %, median 0.3 %"
)


def set_links(
    engine: Engine,
    table: npt.NDArray[np.void],
    plan: Plan,
    network: Network,
    *,
    events: bool = True,
) -> None:
    """Give the engine one link out of and one into every NIC that its connections use.

    Args:
        engine: Has the connections already.
        table: Its `connections.CONN` rows.
        plan: Says where ranks are and what a NIC does.
        network: Rates, latency and changes.
        events: Whether the changes happen.
    """
    from genie._core.engine import NETWORK_EVENT
    from genie._core.links import nic_links

    gbps = plan.cluster.nic_gbps if network.nic_gbps is None else network.nic_gbps
    rate = _rate(plan, network)
    host_of = np.asarray(plan.cluster.host_of, np.int32)
    links = nic_links(table, host_of, rate, network.latency_ns)
    index = {name: i for i, name in enumerate(links["names"])}
    changes = []
    for event in network.events if events else ():
        _check_nic(plan, event.host, event.nic)
        for side in ("tx", "rx"):
            # A NIC that carries nothing has no link: changing it changes nothing.
            link = index.get(f"h{event.host}.nic{event.nic}.{side}")
            if link is not None:
                changes.append((event.at_ns, link, event.gbps * rate / gbps))
    engine.set_network(
        **links,
        cts_latency_ns=network.cts_latency_ns,
        events=np.array(changes, NETWORK_EVENT),
    )


def _rate(plan: Plan, network: Network) -> float:
    """Return what a NIC carries of messages' own bytes, GB/s."""
    gbps = float(plan.cluster.nic_gbps if network.nic_gbps is None else network.nic_gbps)
    return gbps * network.mtu / (network.mtu + network.header_bytes)


def _check_nic(plan: Plan, host: int, nic: int) -> None:
    """Refuse a NIC that the cluster does not have."""
    hosts, nics = plan.n_hosts, plan.cluster.nics_per_host
    if not (0 <= host < hosts and 0 <= nic < nics):
        raise InputError(
            f"no NIC {nic} on host {host}: {plan.cluster.name} has hosts 0 to {hosts - 1} "
            f"with NICs 0 to {nics - 1}"
        )


def _record(
    plan: Plan,
    network: Network,
    shard: Any,
    engine: Engine,
    status: str,
    more: dict[str, Any],
) -> Recording:
    """Return the Recording of a finished engine."""
    from genie.replay.provenance import provenance
    from genie.replay.recording import Recording

    found, labels = assemble(
        shard, engine.ops(), engine.messages(), engine.connections(), engine.forget_messages
    )
    health = engine.health()
    complete = status == "done"
    warnings = list(plan.warnings)
    lost_ops, lost_messages = engine.dropped
    if lost_ops or lost_messages:
        warnings.append(
            f"the log was full: {lost_ops} operations and {lost_messages} messages are not in it"
        )
    if not complete:
        failures = tables.empty("failures", 1)
        failures["error"], failures["message"] = 0, 0
        failures["rank"] = failures["worker"] = -1
        found["failures"] = failures
        text = engine.explain()
        labels["failures", "error"] = ("ReplayTimeoutError",)
        labels["failures", "message"] = (text,)
        print(f"genie simulate: {status}: {text}", file=sys.stderr)
    manifest = (
        provenance(plan)
        | plan_manifest(shard)
        | {
            "mode": "simulate",
            "clock": "virtual",
            "complete": complete,
            "incomplete": "" if complete else f"simulation {status}",
            "warnings": warnings,
            "transport": "sim",
            "simulation": {
                "events": health["events"],
                "joint_runs": health["joint_runs"],
                "joint_hits": health["joint_hits"],
                "wall_ns": health["wall_ns"],
                "cpu_ns": health["cpu_user_ns"] + health["cpu_system_ns"],
                "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            },
            "network": {
                "nic_gbps": network.nic_gbps or float(plan.cluster.nic_gbps),
                "latency_ns": network.latency_ns,
                "cts_latency_ns": network.cts_latency_ns,
                "events": [[e.at_ns, e.host, e.nic, e.gbps] for e in network.events],
            },
            "endpoints": [],
            "devices": [],
        }
        | more
    )
    return Recording(found, manifest, labels)
