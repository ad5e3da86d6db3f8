"""How one collective, or a group of them, is split over channels (spec sections 2.4 and 2.5).

A group becomes one or more kernel plans; a plan is an ordered list of collectives, each with
its parts. NCCL changed the split twice: until 2.21.5 channels are filled one after the other
("G2"), from 2.22.3 traffic is dealt out in cells ("G3") with a few rules that moved since.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from genie.replay.nccl.choice import Choice
from genie.replay.nccl.chunk import chunk_bytes, last_loop_alignment
from genie.replay.nccl.context import context
from genie.replay.nccl.env import Nccl
from genie.replay.nccl.names import (
    ALL_GATHER,
    ALL_REDUCE,
    BROADCAST,
    REDUCE_SCATTER,
    dtype_size,
    function_code,
)
from genie.replay.nccl.versions import Switch

if TYPE_CHECKING:
    from genie.replay.cluster import Cluster

#: A part: `count` elements (of the plan's element size) on `channel`, contiguous in that order.
PART = np.dtype([("channel", "u2"), ("count", "i8"), ("chunk_bytes", "i8")])

Parts = npt.NDArray[np.void]


@dataclass(frozen=True)
class CellRules:
    """How traffic is dealt out from 2.22.3 on."""

    minimum: int
    cell_by_minimum: bool
    traffic_at_least_minimum: bool
    ll_weight: int
    share_rounded: bool
    lo_rounded_up: bool
    whole_cells_used: bool


#: None: the channels are filled one after the other (2.20.3 to 2.21.5).
CELLS: Switch[CellRules | None] = Switch(
    "split over channels",
    {
        "2.20.5": None,
        "2.22.3": CellRules(512, False, False, 1, False, False, False),
        "2.23.4": CellRules(16384, True, True, 1, False, True, True),
        "2.26.2": CellRules(16384, True, True, 4, False, True, True),
        "2.29.2": CellRules(32768, True, True, 4, True, True, True),
    },
)


def cdiv(a: int, b: int) -> int:
    """Return a / b rounded up."""
    return -(-a // b)


def round_up(a: int, b: int) -> int:
    """Return a rounded up to a multiple of b."""
    return cdiv(a, b) * b


@dataclass(frozen=True)
class Load:
    """One collective as the planner sees it: count in elements of `choice.element_size`."""

    function: int
    count: int
    choice: Choice

    @property
    def nvls(self) -> bool:
        """Whether NVLS's own channels are used."""
        return self.choice.algorithm in ("nvls", "nvls_tree")


def plan_count(function: int, count: int, dtype: str) -> int:
    """Return the count in the plan's elements: bytes for all_gather and broadcast."""
    return int(count) * (dtype_size(dtype) if function in (ALL_GATHER, BROADCAST) else 1)


def parts(choice: Choice, kind: str, count: int, dtype: str, cluster: Cluster, nccl: Nccl) -> Parts:
    """Return the parts of one collective alone in its group.

    Args:
        choice: what `choose` gave for it.
        kind: as the trace spells it.
        count: as NCCL's call counts.
        dtype: element type.
        cluster: with the environment applied.
        nccl: release and environment.

    Returns:
        Array of `PART`, one row a channel, in channel order, read-only; `count` in elements of
        `choice.element_size` (per rank for all_gather and reduce_scatter). Empty for count 0.
    """
    found = context(cluster, nccl)
    function = function_code(kind)
    size = plan_count(function, count, dtype)
    key = (function, size, choice)
    array = found.parts.get(key)
    if array is None:
        array = split([Load(function, size, choice)], cluster, nccl)[0]
        found.parts[key] = array
    return array


def traffic_per_byte(function: int, ranks: int) -> int:
    """Return how many bytes cross a channel for each byte of the call's count."""
    if function == ALL_REDUCE:
        return 2
    return ranks if function in (ALL_GATHER, REDUCE_SCATTER) else 1


def split(loads: Sequence[Load], cluster: Cluster, nccl: Nccl) -> list[Parts]:
    """Return the parts of every collective of one plan, in the plan's order.

    NVLS collectives come after the others in a plan and start again at channel 0.
    """
    rules = CELLS.at(nccl.version)
    if cluster.n_ranks == 1:
        return [_array([]) for _ in loads]
    if rules is None:
        return _fill(loads, cluster, nccl)
    return _deal(loads, cluster, nccl, rules)


def _array(rows: Sequence[tuple[int, int, int]]) -> Parts:
    array = np.array(rows, dtype=PART)
    array.setflags(write=False)
    return array


def _channels(load: Load, cluster: Cluster) -> int:
    return cluster.nvls_channels if load.nvls else cluster.coll_channels


# --------------------------------------------------------------------------- 2.22.3 and later


def _weight(load: Load, ranks: int, rules: CellRules) -> int:
    """Return traffic per byte, LL counting more."""
    weight = traffic_per_byte(load.function, ranks)
    return weight * rules.ll_weight if load.choice.protocol == "ll" else weight


def load_traffic(load: Load, ranks: int, rules: CellRules) -> int:
    """Return the traffic one collective adds to its plan, bytes."""
    traffic = load.count * load.choice.element_size * _weight(load, ranks, rules)
    return max(rules.minimum, traffic) if rules.traffic_at_least_minimum else traffic


def _deal(loads: Sequence[Load], cluster: Cluster, nccl: Nccl, rules: CellRules) -> list[Parts]:
    ranks = cluster.n_ranks
    dealers: dict[bool, _Dealer] = {}
    for nvls in (False, True):
        mine = [load for load in loads if load.nvls is nvls and load.count]
        if mine:
            channels = _channels(mine[0], cluster)
            usable = min(sum(load.choice.channels for load in mine), channels)
            total = sum(load_traffic(load, ranks, rules) for load in mine)
            share = total // usable
            share = round_up(share, 16) if rules.share_rounded else max(rules.minimum, share)
            dealers[nvls] = _Dealer(channels, share, rules)
    result = []
    for load in loads:
        if load.count == 0:
            result.append(_array([]))
            continue
        rows = dealers[load.nvls].deal(load, ranks)
        result.append(
            _array(
                [
                    (channel, count, chunk_bytes(load.function, load.choice, count, cluster, nccl))
                    for channel, count in rows
                ]
            )
        )
    return result


class _Dealer:
    """Deals collectives out over channels, keeping the channel and what it already carries."""

    def __init__(self, channels: int, share: int, rules: CellRules) -> None:
        self.channels = channels
        self.share = share
        self.rules = rules
        self.channel = 0
        self.used = 0

    def deal(self, load: Load, ranks: int) -> list[tuple[int, int]]:
        """Return (channel, count) of one collective and move on."""
        rules, size = self.rules, load.choice.element_size
        weight = _weight(load, ranks, rules)
        cell = 16
        if rules.cell_by_minimum:
            cell = round_up(cdiv(rules.minimum, weight), 16)
        per_cell, traffic = cell // size, cell * weight
        cells = cdiv(load.count * size, cell)
        each = min(cells, cdiv(self.share, traffic))
        low = cells
        if self.channel + 1 != self.channels:
            left = self.share - self.used
            low = min(cells, cdiv(left, traffic) if rules.lo_rounded_up else left // traffic)
        middle, high = divmod(cells - low, each)
        if self.channel + (low != 0) + middle + (high != 0) > self.channels:
            middle = self.channels - self.channel - 2
            each, rest = divmod(cells - low, middle + 1)
            high = each + rest
        if high == 0 and middle:
            high, middle = each, middle - 1
        if low == 0:
            self.channel += 1
            if middle:
                low, middle = each, middle - 1
            else:
                low, high = high, 0
        excess = cells * per_cell - load.count
        counts = [low * per_cell] + [each * per_cell] * middle
        if high:
            counts.append(high * per_cell)
        counts[-1] -= excess
        rows = [(self.channel + i, count) for i, count in enumerate(counts)]
        last_cells = high or low
        carried = last_cells * traffic if rules.whole_cells_used else counts[-1] * size * weight
        if high:
            self.channel += len(counts) - 1
            self.used = carried
        else:
            self.used += carried
        if self.used >= self.share and self.channel + 1 != self.channels:
            self.channel += 1
            self.used = 0
        return rows


# --------------------------------------------------------------------------- until 2.21.5


def _fill(loads: Sequence[Load], cluster: Cluster, nccl: Nccl) -> list[Parts]:
    """Fill channels 0, 1, .. each to its share of the plan's bytes."""
    total = sum(load.count * load.choice.element_size for load in loads)
    most = max((_channels(load, cluster) for load in loads), default=1)
    usable = min(most, sum(load.choice.channels for load in loads))
    share = round_up(cdiv(total, max(usable, 1)), 16)
    used = [0] * max(usable, 1)
    result = []
    channel = 0
    for load in loads:
        size = load.choice.element_size
        left = load.count
        align = last_loop_alignment(load.choice, nccl)
        rows = []
        while left:
            while used[channel] >= share and channel + 1 < len(used):
                channel += 1
            room = max(share - used[channel], 0)
            take = min(round_up(cdiv(room, size), align), left)
            if channel + 1 == len(used) and room == 0:
                take = left
            used[channel] += take * size
            left -= take
            rows.append((channel, take))
        total_bytes = load.count * size
        chunk = chunk_bytes(
            load.function, load.choice, load.count, cluster, nccl, (total, total_bytes, usable)
        )
        result.append(_array([(c, n, chunk) for c, n in rows]))
    return result
