"""NCCL's latency and bandwidth model: one number pair per function, algorithm and protocol.

spec/nccl-wire-schedule.md sections 2.1 and 2.2; what changed between releases is in `tables`.
Every assignment is rounded to float32 where NCCL's own variable is a float, because times are
compared with NCCL's to six digits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from genie.replay.nccl import tables
from genie.replay.nccl.env import Nccl
from genie.replay.nccl.names import (
    ALGORITHMS,
    ALL_GATHER,
    ALL_REDUCE,
    BROADCAST,
    COLLNET_CHAIN,
    COLLNET_DIRECT,
    FUNCTIONS,
    LL,
    LL128,
    NVLS,
    NVLS_TREE,
    PAT,
    PROTOCOLS,
    REDUCE,
    REDUCE_SCATTER,
    RING,
    SIMPLE,
    TREE,
)
from genie.replay.nccl.versions import Switch

if TYPE_CHECKING:
    from genie.replay.cluster import Cluster

#: Release that has PAT.
HAS_PAT = Switch("PAT exists", {"2.20.5": False, "2.23.4": True})
#: Compute capabilities for which LL128 is on by default; empty: every one from 70.
LL128_CAPABILITIES: Switch[tuple[int, ...]] = Switch(
    "LL128 compute capabilities",
    {"2.20.5": (70, 80, 90), "2.25.1": (70, 80, 90, 100, 120), "2.27.3": ()},
)
#: Whether a function may be left without an algorithm (before, ring always stayed).
MAY_BE_EMPTY = Switch("restrictions may leave nothing", {"2.20.5": False, "2.24.3": True})

TREE_PATTERN = 3

#: Path types, in 2.30's codes whatever the release (`genie.replay.clusters.graph.PATHS`).
PATH_NVL, PATH_NVB, PATH_PXB, PATH_PXN = 1, 2, 5, 7

Entry = tuple[float, float]


@dataclass(frozen=True)
class Model:
    """Latency (us), bandwidth (GB/s) and the reason why not, per function, algorithm, protocol.

    `entries[function][algorithm][protocol]` is None where NCCL has no such kernel;
    `reasons[...]` is "" where the choice is open to the cost model.
    """

    entries: tuple[tuple[tuple[Entry | None, ...], ...], ...]
    reasons: tuple[tuple[tuple[str, ...], ...], ...]
    max_threads: tuple[tuple[int, int, int], ...]
    thresholds: tuple[tuple[int, int, int], ...]

    def open_choices(self, function: int) -> list[tuple[int, int]]:
        """Return (algorithm, protocol) of everything enabled, in NCCL's order."""
        return [
            (a, p)
            for a in range(len(ALGORITHMS))
            for p in range(len(PROTOCOLS))
            if not self.reasons[function][a][p]
        ]


def f32(value: float) -> float:
    """Return `value` rounded to what a C float holds."""
    return float(np.float32(value))


def log2_floor(value: int) -> int:
    """Return the floor of the base-2 logarithm; 0 for values below one, as NCCL's log2i."""
    return max(value.bit_length() - 1, 0)


def build_model(cluster: Cluster, nccl: Nccl) -> Model:
    """Return the model of `cluster` (with its environment applied) under `nccl`."""
    entries, reasons = [], []
    restriction = _algorithm_restriction(cluster, nccl)
    for function in range(len(FUNCTIONS)):
        rows, whys = [], []
        for algorithm in range(len(ALGORITHMS)):
            row: list[Entry | None] = []
            why: list[str] = []
            for protocol in range(len(PROTOCOLS)):
                reason = _missing(cluster, nccl, function, algorithm, protocol)
                if reason:
                    row.append(None)
                    why.append(reason)
                    continue
                bandwidth = _bandwidth(cluster, nccl, function, algorithm, protocol)
                latency = _latency(cluster, nccl, function, algorithm, protocol)
                row.append((latency, bandwidth))
                why.append(
                    _disabled(cluster, nccl, function, algorithm, protocol, restriction)
                    or ("" if bandwidth > 0 else "no bandwidth")
                )
            rows.append(tuple(row))
            whys.append(tuple(why))
        entries.append(tuple(rows))
        reasons.append(tuple(whys))
    max_threads, thresholds = _threads(cluster, nccl)
    return Model(tuple(entries), tuple(reasons), max_threads, thresholds)


# --------------------------------------------------------------------------- what exists


def _missing(cluster: Cluster, nccl: Nccl, function: int, algorithm: int, protocol: int) -> str:
    """Why NCCL has no such choice at all on this communicator; "" where it has."""
    if algorithm == RING:
        return ""
    if algorithm in (COLLNET_DIRECT, COLLNET_CHAIN):
        return "needs a CollNet (SHARP) plugin"
    if algorithm == TREE:
        return "" if function == ALL_REDUCE else "trees serve all_reduce only"
    if algorithm == PAT:
        if not HAS_PAT.at(nccl.version):
            return f"NCCL {nccl.version_text} has no PAT"
        if function not in (ALL_GATHER, REDUCE_SCATTER):
            return "PAT serves all_gather and reduce_scatter only"
        return "" if protocol == SIMPLE else "PAT has the Simple protocol only"
    if protocol != SIMPLE:
        return "NVLS has the Simple protocol only"
    if algorithm == NVLS_TREE and function != ALL_REDUCE:
        return "NVLS trees serve all_reduce only"
    if function in (BROADCAST, REDUCE):
        return "NVLS does not serve broadcast and reduce"
    if algorithm == NVLS_TREE and cluster.n_hosts == 1:
        return "NVLS trees need several hosts"
    if algorithm == NVLS and cluster.n_hosts > 1:
        return "NVLS over several hosts needs a CollNet (SHARP) plugin"
    if cluster.nvls_channels == 0 or _graph_channels(cluster, "nvls") == 0:
        return "no NVLS: hardware, driver, too few local GPUs, or NCCL_NVLS_ENABLE=0"
    return ""


def _graph_channels(cluster: Cluster, name: str) -> int:
    graph = cluster.graphs.get(name)
    return 0 if graph is None else graph.n_channels


def _algorithm_restriction(cluster: Cluster, nccl: Nccl) -> tuple[tuple[bool, ...] | None, ...]:
    """Per function what NCCL_ALGO leaves on, after the older releases' fallbacks."""
    chosen = nccl.algorithms
    if MAY_BE_EMPTY.at(nccl.version) or chosen[ALL_REDUCE] is None:
        return chosen
    row = list(chosen[ALL_REDUCE] or ())
    if cluster.n_hosts > 1:
        row[NVLS] = False
    else:
        row[NVLS_TREE] = False
    if not any(row[a] for a in (TREE, RING, NVLS, NVLS_TREE)):
        # Nothing that can run is left: NCCL ignores the variable.
        row[TREE] = row[RING] = True
    plain = tuple(row)
    # Ring is never taken from the other functions, so that jobs run with NCCL_ALGO=Tree.
    others = tuple(on or a == RING for a, on in enumerate(row))
    return tuple(plain if f == ALL_REDUCE else others for f in range(len(FUNCTIONS)))


def _disabled(
    cluster: Cluster,
    nccl: Nccl,
    function: int,
    algorithm: int,
    protocol: int,
    restriction: tuple[tuple[bool, ...] | None, ...],
) -> str:
    """Why an existing choice is off; "" where it is on."""
    allowed = restriction[function]
    if allowed is not None and not allowed[algorithm]:
        return f"off by NCCL_ALGO={nccl.get('NCCL_ALGO')}"
    protocols = nccl.protocols[function]
    if protocols is not None and not protocols[protocol]:
        return f"off by NCCL_PROTO={nccl.get('NCCL_PROTO')}"
    if algorithm == PAT:
        wanted = nccl.get_int("NCCL_PAT_ENABLE", 2)
        if wanted == 0:
            return "off by NCCL_PAT_ENABLE=0"
        if cluster.sm < 60:
            return "PAT needs compute capability 60"
        if wanted == 2 and cluster.n_hosts != cluster.n_ranks:
            return "PAT is on by default only where every host has one rank"
    # A list that leaves LL128 on forces it past the checks.
    if protocol == LL128 and protocols is None:
        return _ll128_disabled(cluster, nccl, algorithm)
    return ""


def _ll128_disabled(cluster: Cluster, nccl: Nccl, algorithm: int) -> str:
    graph = cluster.graphs["ring" if algorithm == RING else "tree"]
    over_pxn = cluster.sm >= 90 and nccl.get_int("NCCL_LL128_C2C", 1) == 1
    limit = PATH_PXN if over_pxn else PATH_PXB
    if graph.type_inter > limit:
        return f"LL128 needs a closer NIC (path type {graph.type_inter}, at most {limit})"
    if graph.type_intra > PATH_NVB:
        return f"LL128 needs NVLink inside the host (path type {graph.type_intra})"
    capabilities = LL128_CAPABILITIES.at(nccl.version)
    if cluster.sm < 70 or (capabilities and cluster.sm not in capabilities):
        return f"LL128 is off on compute capability {cluster.sm}"
    return ""


# --------------------------------------------------------------------------- bandwidth


def _column(cluster: Cluster) -> int:
    return min(cluster.n_hosts, 3) - 1


def is_amd(cluster: Cluster, nccl: Nccl) -> bool:
    """Whether the CPU counts as AMD in the model (hosts of several vendors: since 2.24.3)."""
    vendor = cluster.cpu_vendor.lower()
    return vendor == "amd" or (vendor == "mixed" and tables.MIXED_CPU_IS_AMD.at(nccl.version))


def _nsteps(function: int, ranks: int) -> int:
    if function == ALL_REDUCE:
        return 2 * (ranks - 1)
    return ranks - 1 if function in (ALL_GATHER, REDUCE_SCATTER) else ranks


def _bandwidth(cluster: Cluster, nccl: Nccl, function: int, algorithm: int, protocol: int) -> float:
    """Return the algorithm bandwidth in GB/s (section 2.1, rows in their order)."""
    version, hosts, ranks = nccl.version, cluster.n_hosts, cluster.n_ranks
    arch, column = tables.architecture(cluster.sm, version), _column(cluster)
    if ranks == 1:
        return 0.0
    if algorithm in (NVLS, NVLS_TREE):
        bus = _nvls_bandwidth(cluster, nccl, function, algorithm)
        if function in (ALL_GATHER, REDUCE_SCATTER):
            return bus
        if tables.NVLS_TREE_MAX.at(version) is None:
            return f32(bus * f32(5.0 / 6.0))
        return f32(bus * f32(1.0 * ranks / _nsteps(function, ranks)))
    graph = cluster.graphs["ring" if algorithm == RING else "tree"]
    channels = graph.n_channels
    bus = f32(channels * f32(graph.bw_intra if hosts <= 2 else graph.bw_inter))
    if algorithm == RING:
        if protocol == LL:
            row = arch if hosts == 1 else int(is_amd(cluster, nccl))
            first, second = tables.RING_LL_FACTOR.at(version)
            alone = hosts == 1 and function not in (ALL_REDUCE, REDUCE)
            bus = f32(
                min(tables.LL_MAX.at(version)[row][column], bus * (second if alone else first))
            )
        elif protocol == LL128:
            factor = 0.92
            if cluster.n_hosts == ranks:
                factor = tables.RING_LL128_ONE_RANK.at(version)
            limit = channels * tables.RING_LL128_MAX.at(version)[arch][column]
            bus = f32(min(bus * factor, limit))
        return f32(bus * f32(1.0 * ranks / _nsteps(function, ranks)))
    if algorithm == TREE:
        bus = f32(min(bus * 0.92, channels * tables.TREE_MAX.at(version)[arch][column]))
        if protocol == LL:
            row = arch if hosts == 1 else int(is_amd(cluster, nccl))
            bus = f32(min(bus * 1.0 / 3.8, tables.LL_MAX.at(version)[row][column]))
        elif protocol == LL128:
            share = 7.0 / 9.0 if hosts == 1 else 120.0 / 128.0
            limit = channels * tables.TREE_LL128_MAX.at(version)[arch][column]
            bus = f32(min(bus * share, limit))
        if graph.pattern == TREE_PATTERN:
            bus = f32(bus * 0.85)
        return f32(bus * 0.5)
    return f32(bus * tables.PAT_FACTOR.at(version))


def _nvls_bandwidth(cluster: Cluster, nccl: Nccl, function: int, algorithm: int) -> float:
    version, hosts = nccl.version, cluster.n_hosts
    graph = cluster.graphs["nvls"]
    channels = graph.n_channels
    intra, inter = f32(graph.bw_intra), f32(graph.bw_inter)
    local = cluster.n_ranks / hosts
    limits = tables.NVLS_TREE_MAX.at(version)
    if limits is None:
        if algorithm == NVLS_TREE:
            return f32(channels * min(intra, inter if hosts <= 2 else f32(inter / 2)))
        if function != ALL_REDUCE:
            shared, factor = tables.NVLS_SHARE.at(version)
            if shared:
                intra = f32(intra * (local - 1) / local)
            inter = f32(inter * factor)
        return f32(channels * min(intra, inter))
    if channels < 2:
        return 0.0
    arch = tables.architecture(cluster.sm, version)
    intra = f32(intra * tables.NVLS_EFFICIENCY[arch] * (channels - 1) / channels)
    intra = f32(intra * 2) if function == ALL_REDUCE else f32(intra * (local - 1) / local)
    if algorithm == NVLS_TREE:
        inter = f32(inter * 2) if hosts <= 2 else inter
        return f32(channels * min(intra, inter, f32(limits[arch][_column(cluster)])))
    return f32(channels * min(intra, inter))


# --------------------------------------------------------------------------- latency


def net_overhead_us(cluster: Cluster, nccl: Nccl) -> float:
    """Return the microseconds a network step of a ring costs the CPU at least."""
    given = nccl.get_int("NCCL_NET_OVERHEAD", -1)
    if given >= 0:
        return f32(given * 0.001)
    return 2.0 if is_amd(cluster, nccl) else 1.0


def _latency(cluster: Cluster, nccl: Nccl, function: int, algorithm: int, protocol: int) -> float:
    """Return the latency in microseconds (section 2.1)."""
    version, hosts, ranks = nccl.version, cluster.n_hosts, cluster.n_ranks
    base = tables.BASE_LATENCY.at(version).get(algorithm, (0, 0, 0))[protocol]
    hardware = tables.HARDWARE_LATENCY.at(version)
    name = {RING: "ring", NVLS: "nvls", NVLS_TREE: "nvls"}.get(algorithm, "tree")
    graph = cluster.graphs[name]
    link = tables.HW_NVLINK if graph.type_intra == PATH_NVL else tables.HW_PCI
    intra = f32(hardware[algorithm][link][protocol])
    one_rank = ranks == hosts and tables.TREE_LATENCY_ONE_RANK.at(version)
    source = TREE if one_rank else algorithm
    inter = f32(hardware[source][tables.HW_NET][protocol])
    inter = f32(inter + graph.latency_inter)
    if protocol == SIMPLE:
        inter = f32(inter + graph.latency_inter)
    total = f32(base)
    if algorithm == RING:
        steps = _nsteps(function, ranks)
        if function in (BROADCAST, REDUCE):
            where = link if hosts == 1 else tables.HW_NET
            if graph.same_channels:
                return f32(total + f32(hardware[RING][where][protocol]))
            row = TREE if protocol == SIMPLE else RING
            return f32(total + steps * f32(hardware[row][where][protocol]))
        overhead = 0.0
        if hosts > 1:
            overhead = net_overhead_us(cluster, nccl)
            if protocol == SIMPLE:
                overhead = f32(overhead * 3)
        intra = max(intra, overhead)
        network = 0
        if hosts > 1:
            network = hosts - 1
            if function == ALL_REDUCE:
                network = 2 * (hosts - tables.RING_INTER_STEPS.at(version))
        return f32(total + f32(f32((steps - network) * intra) + f32(network * inter)))
    levels = log2_floor(hosts)
    if algorithm == TREE:
        hops = f32(f32((ranks // hosts - 1) * intra) + f32(levels * inter))
        return f32(total + 2 * hops)
    if algorithm == PAT:
        return f32(total + (levels * (inter / 3.5) + ranks * 2.8))
    if algorithm == NVLS_TREE:
        return f32(total + f32(intra + f32(2 * levels * inter)))
    total = f32(total + intra)
    return f32(total + inter) if hosts > 1 else total


# --------------------------------------------------------------------------- threads


def _clamped(given: int, low: int, high: int, default: int) -> int:
    return default if given == 0 else min(max(given, low), high)


def _threads(
    cluster: Cluster, nccl: Nccl
) -> tuple[tuple[tuple[int, int, int], ...], tuple[tuple[int, int, int], ...]]:
    """Return most threads, and bytes per thread below which they shrink (section 2.3)."""
    wanted = nccl.get_int("NCCL_NTHREADS", 0)
    wanted_ll128 = nccl.get_int("NCCL_LL128_NTHREADS", 0)
    ring = cluster.graphs["ring"]
    slow = ring.bw_intra * ring.n_channels <= 12
    low_latency = _clamped(wanted, 64, 512, 512)
    ll128 = _clamped(wanted_ll128, 160, 640, 640)
    threads = {
        TREE: (low_latency, ll128, _clamped(wanted, 64, 512, 512)),
        RING: (low_latency, ll128, _clamped(wanted, 64, 512, 256 if slow else 512)),
        PAT: (0, 0, 0),
    }
    max_threads = tuple(threads.get(a, (0, 0, 640)) for a in range(len(ALGORITHMS)))
    limits = {a: [8, 8, 64] for a in range(len(ALGORITHMS))}
    limits[COLLNET_DIRECT] = limits[COLLNET_CHAIN] = [8, 8, 512]
    limits[RING][LL] *= cluster.n_ranks
    for i, value in enumerate(nccl.thresholds):
        if value is not None:
            limits[TREE if i < 3 else RING][i % 3] = value
    thresholds = tuple((limits[a][0], limits[a][1], limits[a][2]) for a in range(len(ALGORITHMS)))
    return max_threads, thresholds
