"""Search results of any set of GPUs of a host (spec nccl-subcommunicators section 2).

NCCL searches each host on its own and sees only the communicator's GPUs there, and all
NICs. The rules below reproduce compiled NCCL for the machine families "h" (one GPU and
one NIC a PCIe switch) and "a" (two and two); on other machines they are a best guess.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache
from importlib.resources import files
from typing import Any

from genie.replay.clusters.graph import NO_NVLS, Graph, HostGraphs
from genie.replay.clusters.machine import Machine

__all__ = ["search", "topology_order"]

_RING, _CHAIN, _BALANCED, _NVLS = 4, 3, 1, 5
_LOC, _NVL, _PIX, _PXN, _PHB, _SYS = 0, 1, 4, 7, 8, 9


@lru_cache(maxsize=1)
def _rules() -> dict[str, Any]:
    text = files("genie").joinpath("data", "clusters", "search_rules.json").read_text("utf-8")
    data: dict[str, Any] = json.loads(text)
    return data


def _upto(table: dict[str, Any], k: int) -> Any:
    """Return the entry of the smallest key that is at least `k`, else the largest key's."""
    keys = sorted(int(key) for key in table)
    return table[str(next((key for key in keys if key >= k), keys[-1]))]


def topology_order(
    machine: Machine, gpus: tuple[int, ...], by_position: bool = False
) -> tuple[int, ...]:
    """Return the members of one host in the order in which NCCL's topology holds them.

    Args:
        machine: The host type.
        gpus: Its GPUs in the communicator, by local rank.
        by_position: Whether the order is that of a topology file (GPU number alone)
            instead of a detected one (CPU of the lowest local rank first, then local rank).
    """
    if by_position:
        return tuple(sorted(gpus))
    first = machine.cpu_of_gpu[gpus[0]]
    return tuple(
        sorted(
            gpus,
            key=lambda g: (
                machine.cpu_of_gpu[g] != first,
                machine.cpu_of_gpu[g],
                machine.switch_of_gpu[g],
                gpus.index(g),
            ),
        )
    )


def search(
    machine: Machine, gpus: tuple[int, ...], *, one_host: bool, by_position: bool = False
) -> HostGraphs:
    """Return ring, tree and NVLS graph of one host for a set of its GPUs.

    Args:
        machine: The host type.
        gpus: GPU numbers of the members on this host, by local rank.
        one_host: Whether the communicator has no other host.
        by_position: As in `topology_order`.
    """
    order = topology_order(machine, gpus, by_position)
    if one_host:
        return _one_host(machine, order)
    if machine.family == "a" or (not machine.family and _shared_switches(machine, gpus)):
        return _paired(machine, gpus, order)
    return _one_per_switch(machine, order)


def _shared_switches(machine: Machine, gpus: tuple[int, ...]) -> bool:
    switches = [machine.switch_of_gpu[g] for g in gpus]
    return len(set(switches)) < len(switches)


def _walk(order: tuple[int, ...], start: int, step: int) -> tuple[int, ...]:
    k = len(order)
    return tuple(order[(start + step * i) % k] for i in range(k))


def _graph(
    pattern: int,
    bandwidth: tuple[float, float],
    types: tuple[int, int],
    orders: list[tuple[int, ...]],
    nics: list[tuple[int, int]],
    cross_nic: int = 0,
) -> Graph:
    return Graph(
        pattern=pattern,
        n_channels=len(orders),
        bw_intra=float(bandwidth[0]),
        bw_inter=float(bandwidth[1]),
        type_intra=types[0],
        type_inter=types[1],
        same_channels=pattern != _NVLS and len(orders[0]) == 1,
        cross_nic=cross_nic,
        intra=tuple(orders),
        inter=tuple(nics),
    )


def _nvls(bandwidth: tuple[float, float], order: tuple[int, ...], nics: list[int]) -> Graph:
    heads: list[tuple[int, ...]] = [(g,) for g in order]
    return _graph(_NVLS, bandwidth, (_NVL, _PIX), heads, [(n, n) for n in nics])


def _one_per_switch(machine: Machine, order: tuple[int, ...]) -> HostGraphs:
    """Family h: one channel a GPU, entered and left by that GPU's own NIC."""
    rules, k = _rules()["h"], len(order)
    newer = machine.sm >= 100
    # Eight Hopper GPUs are the one set whose rings pair up their NICs (crossNic 2).
    pairs = k == 8 and not newer and machine.family == "h"
    nic = [machine.nics_of_gpu(g)[0] for g in order]
    rings, ring_nics = [], []
    for i, own in enumerate(nic):
        walk = _walk(order, i, 1 if pairs and i % 2 else -1)
        rings.append(walk)
        ring_nics.append((own, nic[order.index(walk[-1])] if pairs else own))
    trees = [_walk(order, i, 1) for i in range(k)]
    repeat = 2 if k <= 4 else 1
    intra = _LOC if k == 1 else _NVL
    ring = _graph(
        _RING,
        _upto(rules["ring"], k),
        (intra, _PIX if k == 1 or pairs else _PXN),
        rings * repeat,
        ring_nics * repeat,
        2 if pairs else 0,
    )
    tree = _graph(
        _CHAIN,
        _upto(rules["tree_sm100" if newer else "tree"], k),
        (intra, _PIX),
        trees * repeat,
        [(n, n) for n in nic] * repeat,
    )
    if not machine.nvls or k < 2:
        return HostGraphs(ring, tree, NO_NVLS)
    table = rules["nvls_intra_sm100" if newer else "nvls_intra"]
    return HostGraphs(ring, tree, _nvls((_upto(table, k), rules["nvls_inter"]), order, nic))


def _paired(machine: Machine, gpus: tuple[int, ...], order: tuple[int, ...]) -> HostGraphs:
    """Family a: two GPUs and two NICs a switch; an unpaired GPU uses the even NIC."""
    rules, k = _rules()["a"], len(order)
    cpu, switch = machine.cpu_of_gpu, machine.switch_of_gpu
    partner = {g: next((x for x in gpus if x != g and switch[x] == switch[g]), None) for g in gpus}
    near = {g: machine.nics_of_gpu(g) for g in gpus}
    nic = {g: near[g][g % len(near[g])] if partner[g] is not None else near[g][0] for g in gpus}
    # "Alone": no other member hangs on the same CPU.
    alone = any(all(cpu[x] != cpu[g] for x in gpus if x != g) for g in gpus)
    rings, trees = [], []
    for i, g in enumerate(order):
        other = partner[g]
        second = other is not None and i > 0 and order[i - 1] == other
        rings.append(_walk(order, i, 1 if second else -1))
        if other is not None and k == 5 and alone:
            trees.append(_walk(order, order.index(other), 1))
        elif other is not None:
            trees.append(_walk(order, i, 1 if order[(i + 1) % k] == other else -1))
        else:
            stay = alone or cpu[order[(i + 1) % k]] == cpu[g]
            trees.append(_walk(order, i, 1 if stay else -1))
    nics = [(nic[g], nic[g]) for g in order]
    paired = all(other is not None for other in partner.values())
    near_ring = k == 1 or paired
    tree_type = _PIX if near_ring else _SYS if alone else _PHB
    if k == 5 and alone:
        tree_intra = rules["tree_intra"]["five_of_four_and_one"]
    else:
        tree_intra = _upto(rules["tree_intra"]["paired" if paired else "unpaired"], k)
    intra = _LOC if k == 1 else _NVL
    ring = _graph(_RING, tuple(rules["ring"]), (intra, _PIX if near_ring else _PXN), rings, nics)
    tree = _graph(
        _CHAIN if k == 1 else _BALANCED,
        (tree_intra, rules["tree_inter"]),
        (intra, tree_type),
        trees,
        nics,
    )
    if not machine.nvls or k < 2:
        return HostGraphs(ring, tree, NO_NVLS)
    # Not in the family: one head a NIC, as the full machine has.
    heads = {nic[g]: g for g in reversed(order)}
    by_nic = tuple(sorted(heads.values(), key=order.index))
    return HostGraphs(ring, tree, _nvls((48.0, 48.0), by_nic, [nic[g] for g in by_nic]))


def _one_host(machine: Machine, order: tuple[int, ...]) -> HostGraphs:
    """A communicator inside one host: every channel runs through the GPUs in order."""
    rules = _rules()["a" if machine.sm < 90 else "h"]["one_host"]
    k, n = len(order), rules["channels"]
    orders, nics = [order] * n, [(0, 0)] * n
    speed = rules["ring"]
    tree_speed = _upto(rules["tree"], k)
    types = (_LOC if k == 1 else _NVL, _PIX)
    ring = _graph(_RING, (speed, speed), types, orders, nics)
    # Two GPUs: half of the chains run each way, at twice the bandwidth.
    chains = orders if k != 2 else [order] * (n // 2) + [order[::-1]] * (n // 2)
    tree = _graph(_BALANCED, (tree_speed, tree_speed), types, chains, nics)
    ring = replace(ring, same_channels=True)
    tree = replace(tree, same_channels=k != 2)
    if not machine.nvls or k < 2:
        return HostGraphs(ring, tree, NO_NVLS)
    speeds = (_upto(rules["nvls_intra"], k), rules["nvls_inter"])
    return HostGraphs(ring, tree, _nvls(speeds, order, [0] * k))
