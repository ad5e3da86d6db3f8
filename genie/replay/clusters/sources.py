"""Where search results come from: a preset, the plain local machine, or a graph dump."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple, Protocol

from genie.errors import InputError
from genie.replay.clusters.graph import NO_NVLS, Graph, HostGraphs
from genie.replay.clusters.machine import Machine, preset_graphs, preset_machine
from genie.replay.clusters.search import search, topology_order

__all__ = ["Found", "GraphSource", "LocalSource", "PresetSource", "Source"]

GOLDEN_VERSIONS = ((2, 21, 5), (2, 27, 7), (2, 30, 7))


class Found(NamedTuple):
    """Search results of one host and how sure they are.

    Attributes:
        graphs: Ring, tree and NVLS graph.
        order: The members in topology order.
        why_not_exact: Empty where compiled NCCL gave the same, else the reason.
        machine: The host's own type, where hosts differ; else the source's.
    """

    graphs: HostGraphs
    order: tuple[int, ...]
    why_not_exact: str = ""
    machine: Machine | None = None


class Source(Protocol):
    """Gives the search results of any set of GPUs of a host type."""

    @property
    def kind(self) -> str:
        """One of "preset", "local", "graph", "log"."""

    @property
    def machine(self) -> Machine:
        """The host type."""

    def find(
        self, gpus: tuple[int, ...], host_kind: int, one_host: bool, version: tuple[int, ...]
    ) -> Found:
        """Return what NCCL's search finds for `gpus` (by local rank) of one host."""


@dataclass(frozen=True)
class PresetSource:
    """A preset machine.

    Attributes:
        machine: The machine.
        by_position: GPU numbers are PCI positions given by the user: the topology order is
            theirs, whatever the ranks.
    """

    machine: Machine
    by_position: bool = False
    kind: str = "preset"

    @classmethod
    def named(cls, name: str, by_position: bool = False) -> PresetSource:
        """Return the source of a preset id."""
        return cls(preset_machine(name), by_position)

    def find(
        self, gpus: tuple[int, ...], host_kind: int, one_host: bool, version: tuple[int, ...]
    ) -> Found:
        """Return the measured result, or the rules' where only the rules reach."""
        return _preset_find(self.machine, self.by_position, gpus, one_host, version)


@lru_cache(maxsize=4096)
def _preset_find(
    machine: Machine,
    by_position: bool,
    gpus: tuple[int, ...],
    one_host: bool,
    version: tuple[int, ...],
) -> Found:
    name = machine.name
    if machine.sm >= 100 and version < (2, 25, 1):
        raise InputError(
            f"cluster {name}: NCCL {_dotted(version)} knows no SM{machine.sm} tables; "
            "the first release that does is 2.25.1",
            name=name,
        )
    order = topology_order(machine, gpus, by_position)
    own = order == tuple(range(machine.gpus_per_host))
    # Where the rules do not reach, all GPUs in any rank order are nearest to the measured case.
    near = not machine.family and len(gpus) == machine.gpus_per_host
    measured = preset_graphs(name, one_host, version) if own or near else None
    if measured is not None:
        why = "" if own else f"{name}: the search was measured with ranks in GPU order only"
        return Found(measured, order, why or _no_golden(version))
    graphs = search(machine, gpus, one_host=one_host, by_position=by_position)
    return Found(graphs, order, _doubt(machine, len(gpus), own, one_host, version))


def _doubt(machine: Machine, k: int, own: bool, one_host: bool, version: tuple[int, ...]) -> str:
    if not machine.family:
        what = "one host" if own and one_host else f"{k} GPUs of a host"
        return f"{machine.name}: no measured search for {what}; rules of similar machines used"
    if one_host and (k not in (2, 4, 8) or machine.sm >= 100):
        return f"{machine.name}: no measured single-host search for {k} GPUs; rules of 2, 4, 8 used"
    if version not in GOLDEN_VERSIONS:
        return _no_golden(version)
    if version != GOLDEN_VERSIONS[-1] and k not in (1, 2, 4, 8):
        return f"search rules for {k} GPUs of a host were measured with 2.30.7 only"
    return ""


def _no_golden(version: tuple[int, ...]) -> str:
    if version in GOLDEN_VERSIONS:
        return ""
    return f"NCCL {_dotted(version)} has no compiled tables here: rules by its switch points"


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


@dataclass(frozen=True)
class LocalSource:
    """Plain machines: one rank-order ring and chain, tuner inputs of a100x1_100g."""

    machine: Machine
    kind: str = "local"

    @classmethod
    def sized(cls, gpus: int) -> LocalSource:
        """Return the source of hosts with `gpus` GPUs and one NIC."""
        base = preset_machine("a100x1_100g")
        return cls(
            replace(
                base,
                name="local",
                description="plain hosts: rank-order rings, no NVLS, no PXN; a100x1_100g's model",
                gpus_per_host=gpus,
                nics_per_host=1,
                switch_of_gpu=(0,) * gpus,
                switch_of_nic=(0,),
                cpu_of_gpu=(0,) * gpus,
                family="",
                nvls=False,
                nvlink=False,
            )
        )

    def find(
        self, gpus: tuple[int, ...], host_kind: int, one_host: bool, version: tuple[int, ...]
    ) -> Found:
        """Return the rank-order graphs."""
        base = preset_graphs("a100x1_100g", False, version)
        assert base is not None

        def ranked(graph: Graph) -> Graph:
            return replace(graph, intra=(gpus,) * graph.n_channels)

        return Found(HostGraphs(ranked(base.ring), ranked(base.tree), NO_NVLS), gpus)


@dataclass(frozen=True)
class GraphSource:
    """Search results read from NCCL's graph dumps, one per host type.

    Attributes:
        machine: What the dump says of the hosts, and the user added (first host type).
        hosts: Machine and graphs by host type.
        one_host: Whether the dump is that of a communicator inside one host.
        kind: "graph" or "log".
        doubt: What in the graphs is not the dump's; empty if nothing.
    """

    machine: Machine
    hosts: tuple[tuple[Machine, HostGraphs], ...]
    one_host: bool = False
    kind: str = "graph"
    doubt: str = ""

    def find(
        self, gpus: tuple[int, ...], host_kind: int, one_host: bool, version: tuple[int, ...]
    ) -> Found:
        """Return the dump's graphs for all its GPUs; the rules of similar machines for fewer."""
        machine, graphs = self.hosts[host_kind]
        own = graphs.ring.intra[0]
        unknown = sorted(set(gpus) - set(own))
        if unknown:
            raise InputError(
                f"{machine.name}: GPU {unknown[0]} is not in the graph, which has {sorted(own)}"
            )
        if len(gpus) == len(own) and one_host == self.one_host:
            return Found(graphs, tuple(sorted(own)), self.doubt, machine)
        found = search(machine, gpus, one_host=one_host)
        what = "on one host" if one_host and not self.one_host else f"of {len(gpus)} GPUs a host"
        why = f"{machine.name}: the dump is not of a communicator {what}; similar machines' rules"
        return Found(found, topology_order(machine, gpus), why, machine)
