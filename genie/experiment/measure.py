"""From a Recording to an experiment's numbers, and the simulation beside it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from genie.errors import InputError
from genie.replay.bandwidth import WHOLE_BUFFER_KINDS
from genie.replay.tables import KINDS
from genie.units import format_size, parse_size, parse_time

if TYPE_CHECKING:
    from genie.experiment.links import States
    from genie.experiment.spec import Condition, Experiment, Workload
    from genie.experiment.testbeds.base import Testbed
    from genie.replay.cluster import Cluster
    from genie.replay.gpu import GpuModel
    from genie.replay.network import Network
    from genie.replay.recording import Recording
    from genie.trace import Trace


def trace_of(workload: Workload, ranks: int, folder: Path, scratch: Path) -> Trace:
    """Return the trace that every run replays.

    Args:
        workload: A collective, or the path of a trace.
        ranks: Of the testbed.
        folder: Where relative paths start.
        scratch: Where a collective's trace is written, for as long as it is used.

    Raises:
        InputError: Neither or both, or not for so many ranks.
    """
    from genie.trace import load

    if bool(workload.trace) == bool(workload.collective):
        raise InputError("a workload is a collective or a trace: give one of them")
    if workload.trace:
        path = Path(workload.trace)
        path = path if path.is_absolute() else folder / path
        trace = load(path, groups=workload.groups, elements=workload.elements)
        if trace.world_size % ranks:
            raise InputError(
                f"{path} has {trace.world_size} ranks, the testbed has {ranks} hosts: the ranks "
                "must be a multiple of the hosts",
                ranks=trace.world_size,
                endpoints=ranks,
            )
        return trace
    _write(workload, ranks, scratch)
    return load(scratch / "collective")


def _write(workload: Workload, ranks: int, folder: Path) -> None:
    """Write the trace: each size once, in order, on every rank."""
    from genie.trace import Builder, Coll, Kind, write
    from genie.trace.kinds import code, dtype_bytes

    coll = code(Coll, workload.collective)
    kind = coll.name.lower()
    element = dtype_bytes(workload.dtype)
    if not workload.sizes:
        raise InputError("workload.sizes: no size")
    unit = element * (ranks if kind in WHOLE_BUFFER_KINDS else 1)
    made = []
    for _ in range(ranks):
        builder = Builder()
        last: list[int] = []
        for size in workload.sizes:
            nbytes = parse_size(size) // unit * unit
            # comm_size of all_gather is one rank's part, of the others a rank's whole input.
            last = [
                builder.node(
                    Kind.COMM_COLL, f"{kind} {size}", deps=last, coll=coll,
                    nbytes=nbytes // ranks if kind in ("all_gather", "gather") else nbytes,
                    dtype=workload.dtype, root=workload.root,
                )
            ]  # fmt: skip
        made.append(builder)
    write(folder, "collective", made)


def gpu_of(workload: Workload) -> GpuModel:
    """Return the GPU-time model of a workload."""
    from genie.replay.gpu import GpuModel

    return GpuModel() if workload.gpu_model else GpuModel.off()


def values_of(recording: Recording, workload: Workload) -> dict[str, list[float]]:
    """Return what a run measured: one value an iteration.

    Of a collective the bus bandwidth of each size, GB/s, from the last rank's start to the last
    rank's end; of a trace the time of a step, ns.
    """
    if workload.trace:
        steps = recording.steps()
        times = steps["time_ns"][(steps["iteration"] >= 0) & (steps["time_ns"] >= 0)]
        return {"step": [float(t) for t in times]} if len(times) else {}
    table = recording.collectives()
    table = table[(table["iteration"] >= 0) & np.isfinite(table["busbw"])]
    out: dict[str, list[float]] = {}
    for row in table:
        label = f"{KINDS[row['kind']]} {format_size(int(row['nbytes']))}"
        out.setdefault(label, []).append(float(row["busbw"]))
    return out


def health_of(recording: Recording) -> dict[str, float]:
    """Return the worst worker's numbers."""
    table = recording.health
    out = {}
    for name in ("poll_gap_p99_ns", "timer_error_p99_ns", "host_cpu_busy", "host_cpu_steal"):
        found = table[name][np.isfinite(table[name])]
        if len(found):
            out[name] = float(found.max())
    known = (table["cpu_wait_ns"] >= 0) & (table["wall_ns"] > 0)
    if known.any():
        out["cpu_wait"] = float(
            (table["cpu_wait_ns"] / np.maximum(table["wall_ns"], 1))[known].max()
        )
    return out


def network_of(
    spec: Experiment, testbed: Testbed, states: States, condition: Condition, cluster: Cluster
) -> Network | None:
    """Return the model network that stands for a condition: what its links say, and no fault.

    Rates of host links, less what headers take; a host whose link has another rate is a host
    with a slower NIC. The network between them is one switch without limits.

    Returns:
        None when the hosts' links have no rate to go by.
    """
    from genie.experiment.links import LinkState
    from genie.replay.network import Network

    payload, header = testbed.wire(condition.mtu)
    latency = parse_time(spec.testbed.latency)
    nics = max(1, cluster.nics_per_host)
    rates: dict[str, float] = {}
    delays = []
    for (link, way), state in states.items():
        if _is_host(link):
            rates[link] = min(rates.get(link, float("inf")), state.bits_per_s)
            if way == "tx":
                delays.append(state.delay_ns)
    if not testbed.links:
        # The user's own network: what the specification says of it.
        said = LinkState().updated(spec.testbed).updated(condition)
        rates = {f"h{i}": said.bits_per_s for i in range(len(testbed.endpoints))}
        delays = [said.delay_ns]
    if not rates or not all(rates.values()):
        return None
    # A packet passes its sender's link and its receiver's: both delays.
    latency += 2 * max(delays, default=0)
    common = max(rates.values())
    network = Network(
        nic_gbps=common / 8e9 / nics,
        latency_ns=latency,
        cts_latency_ns=latency,
        header_bytes=header,
        mtu=payload,
    )
    for host, rate in enumerate(rates.values()):
        if rate != common:
            for nic in range(cluster.nics_per_host):
                network = network.degrade(host, nic, rate / 8e9 / nics)
    return network


def _is_host(link: str) -> bool:
    return link.startswith("h")


def describe(network: Network) -> dict[str, Any]:
    """Return what a model network was told, as plain values."""
    share = network.mtu / (network.mtu + network.header_bytes)
    return {
        "nic_gbps": network.nic_gbps,
        "payload_share": share,
        "latency_ns": network.latency_ns,
        "slower_nics": {f"h{e.host}": e.gbps for e in network.events},
    }


def difference(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """Return how much each counter grew; those of a discipline made anew start at 0."""
    out = {}
    for name, value in after.items():
        grown = value - before.get(name, 0)
        out[name] = grown if grown >= 0 else value
    return out
