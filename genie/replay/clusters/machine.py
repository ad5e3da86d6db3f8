"""A host type: its GPUs, NICs and switches, and the search results measured for it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

from genie.errors import InputError
from genie.replay.clusters.graph import NO_NVLS, Graph, HostGraphs

__all__ = ["Machine", "preset_graphs", "preset_machine", "preset_names"]


@dataclass(frozen=True)
class Machine:
    """What a host is made of, as far as NCCL's rules look at it.

    Attributes:
        name: Preset id, or where the machine was read from.
        description: One line for people.
        gpus_per_host: GPUs that the preset's own communicator uses on each host.
        nics_per_host: NICs of a host.
        nic_gbps: GB/s of one NIC as NCCL counts it (Mbit/s / 8000); 0 unknown.
        path_gbps: GB/s of a GPU's path to its nearest NIC (PCIe may be the limit).
        sm: Compute capability times ten (90 = Hopper); 0 unknown.
        cpu_vendor: "intel", "amd", "arm" or "unknown".
        switch_of_gpu: PCIe switch of each GPU number.
        switch_of_nic: PCIe switch of each NIC number.
        cpu_of_gpu: CPU socket of each GPU number.
        family: "h" one GPU and one NIC a switch, "a" two and two (spec sub section 1): the
            machines whose communicators are known exactly; "" any other.
        nvls: Whether NVSwitch multicast works (driver and fabric allow it).
        nvlink: Whether all GPUs of a host reach each other by NVLink (PXN needs it).
        part_of: Preset whose first GPUs this one uses, or "".
    """

    name: str
    description: str
    gpus_per_host: int
    nics_per_host: int
    nic_gbps: float
    path_gbps: float
    sm: int
    cpu_vendor: str
    switch_of_gpu: tuple[int, ...]
    switch_of_nic: tuple[int, ...]
    cpu_of_gpu: tuple[int, ...]
    family: str = ""
    nvls: bool = False
    nvlink: bool = True
    part_of: str = ""

    @property
    def n_gpus(self) -> int:
        """GPUs in the whole host, those outside the preset's communicator included."""
        return len(self.switch_of_gpu)

    def own_nics(self, gpu: int) -> tuple[int, ...]:
        """Return the NICs on the PCIe switch of `gpu`."""
        switch = self.switch_of_gpu[gpu]
        return tuple(n for n, s in enumerate(self.switch_of_nic) if s == switch)

    def nics_of_gpu(self, gpu: int) -> tuple[int, ...]:
        """Return the NICs nearest to `gpu`: those on its switch, else all of the host."""
        return self.own_nics(gpu) or tuple(range(self.nics_per_host))


@lru_cache(maxsize=1)
def _machines() -> dict[str, dict[str, Any]]:
    text = files("genie").joinpath("data", "clusters", "machines.json").read_text("utf-8")
    data: dict[str, dict[str, Any]] = json.loads(text)
    return data


@lru_cache(maxsize=1)
def _graphs() -> dict[str, list[dict[str, Any]]]:
    text = files("genie").joinpath("data", "clusters", "graphs.json").read_text("utf-8")
    data: dict[str, list[dict[str, Any]]] = json.loads(text)
    return data


def preset_names() -> tuple[str, ...]:
    """Return the ids that `Cluster.preset` takes."""
    return tuple(_machines())


@lru_cache(maxsize=64)
def preset_machine(name: str) -> Machine:
    """Return the machine of a preset id.

    Raises:
        InputError: If there is no such preset; the message lists them.
    """
    data = _machines().get(name)
    if data is None:
        raise InputError(f"no preset cluster {name!r}; known: {', '.join(_machines())}", name=name)
    whole = _machines()[data["part_of"]] if data["part_of"] else data
    gpus, nics = whole["gpus_per_host"], whole["nics_per_host"]
    return Machine(
        name=name,
        description=data["description"],
        gpus_per_host=data["gpus_per_host"],
        nics_per_host=nics,
        nic_gbps=float(data["nic_gbps"]),
        path_gbps=min(float(data["nic_gbps"]), float(data["pcie_gbps"])),
        sm=data["sm"],
        cpu_vendor=data["cpu_vendor"],
        switch_of_gpu=tuple(g // data["gpus_per_switch"] for g in range(gpus)),
        switch_of_nic=tuple(n // data["nics_per_switch"] for n in range(nics)),
        cpu_of_gpu=tuple(g // data["gpus_per_cpu"] for g in range(gpus)),
        family=data["family"] or "",
        nvls=data["nvls"],
        part_of=data["part_of"] or "",
    )


def _graph(data: dict[str, Any]) -> Graph:
    return Graph(
        pattern=data["pattern"],
        n_channels=data["n_channels"],
        bw_intra=float(data["bw_intra"]),
        bw_inter=float(data["bw_inter"]),
        latency_inter=float(data["latency_inter"]),
        type_intra=data["type_intra"],
        type_inter=data["type_inter"],
        same_channels=data["same_channels"],
        cross_nic=data["cross_nic"],
        intra=tuple(tuple(order) for order in data["intra"]),
        inter=tuple((nics[0], nics[1]) for nics in data["inter"]),
    )


@lru_cache(maxsize=256)
def preset_graphs(name: str, one_host: bool, version: tuple[int, ...]) -> HostGraphs | None:
    """Return the measured search results of a preset's own communicator, if there are any.

    Args:
        name: Preset id.
        one_host: Whether the communicator lives on a single host.
        version: NCCL release.

    Returns:
        The three graphs in the machine's GPU numbers; None where golden has no entry.
    """
    want = "one" if one_host else "many"
    chosen: dict[str, Any] | None = None
    for entry in _graphs()[name]:
        if entry["hosts"] != want:
            continue
        limited = "since" in entry
        if limited and not tuple(entry["since"]) <= version < tuple(entry["before"]):
            continue
        if chosen is None or limited:
            chosen = entry
    if chosen is None:
        return None
    nvls = _graph(chosen["nvls"]) if "nvls" in chosen else NO_NVLS
    return HostGraphs(_graph(chosen["ring"]), _graph(chosen["tree"]), nvls)
