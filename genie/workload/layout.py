"""Who talks to whom: ranks, their place in every dimension, and the process groups.

Rank order is Megatron-LM's default "tp-cp-ep-dp-pp": tensor parallel fastest, pipeline slowest
(megatron/core/parallel_state.py, `RankGenerator`). Experts have a second decomposition of the
same ranks: expert tensor parallel, expert parallel, expert data parallel, pipeline. Groups are
called by the description Megatron-LM gives them and a number, in its order of creation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from genie.workload.spec import Spec

_ATTENTION = ("tp", "cp", "dp", "pp")
_EXPERT = ("etp", "ep", "edp", "pp")
#: Kind of group: (description, decomposition, dimensions its members differ in), as created.
_KINDS: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "dp": ("DATA_PARALLEL_GROUP", _ATTENTION, ("dp",)),
    "dp_cp": ("DATA_PARALLEL_GROUP_WITH_CP", _ATTENTION, ("cp", "dp")),
    "cp": ("CONTEXT_PARALLEL_GROUP", _ATTENTION, ("cp",)),
    "mp": ("MODEL_PARALLEL_GROUP", _ATTENTION, ("tp", "pp")),
    "tp": ("TENSOR_MODEL_PARALLEL_GROUP", _ATTENTION, ("tp",)),
    "pp": ("PIPELINE_MODEL_PARALLEL_GROUP", _ATTENTION, ("pp",)),
    "ep": ("EXPERT_MODEL_PARALLEL_GROUP", _EXPERT, ("ep",)),
    "etp": ("EXPERT_TENSOR_PARALLEL_GROUP", _EXPERT, ("etp",)),
    "edp": ("EXPERT_DATA_PARALLEL_GROUP", _EXPERT, ("edp",)),
}
_EMBEDDING = "EMBEDDING_GROUP"
_SHARD, _REPLICATE = "SHARD_GROUP", "REPLICATE_GROUP"


@dataclass(frozen=True)
class Group:
    """A communicator: its name, and its global ranks in communicator order."""

    name: str
    members: tuple[int, ...]

    @property
    def size(self) -> int:
        """How many ranks it has."""
        return len(self.members)


#: All ranks: a node without a group.
WORLD = Group("", ())


class Layout:
    """Coordinates and groups of a job's ranks; everything is worked out for one rank at a time."""

    def __init__(self, spec: Spec) -> None:
        """Take the sizes of `spec`, which has passed `rules.validate`."""
        p = spec.parallelism
        self.world = p.world
        self._decimal = spec.group_names == "pytorch"
        self._sizes = {
            "tp": p.tp,
            "cp": p.cp,
            "dp": p.dp,
            "pp": p.pp,
            "etp": p.expert_tp if spec.shape.experts else p.tp,
            "ep": p.ep,
            "edp": p.expert_dp if spec.shape.experts else p.dp * p.cp,
        }
        self._shard = p.shard or p.dp * p.cp
        self._tied = spec.shape.tied
        self.has_experts = bool(spec.shape.experts)
        self._first_number: dict[str, int] = {}
        number = 1
        for kind in self.kinds():
            self._first_number[kind] = number
            number += self._count(kind)
        self.group = lru_cache(maxsize=64)(self._group)

    def kinds(self) -> list[str]:
        """Return the kinds of group this job has, in order of creation."""
        made = [k for k in _KINDS if self.has_experts or _KINDS[k][1] is _ATTENTION]
        made.insert(made.index("pp") + 1, "embedding")
        return [*made, "shard", "replicate"]

    def coordinates(self, rank: int) -> dict[str, int]:
        """Return the place of a rank in every dimension."""
        place = {}
        for dims in (_ATTENTION, _EXPERT):
            rest = rank
            for dim in dims:
                rest, place[dim] = divmod(rest, self._sizes[dim])
        return place

    def size(self, kind: str) -> int:
        """Return how many ranks a group of a kind has."""
        if kind == "embedding":
            return 2 if self._tied and self._sizes["pp"] > 1 else 1
        if kind == "shard":
            return self._shard
        if kind == "replicate":
            return self._sizes["dp"] * self._sizes["cp"] // self._shard
        total = 1
        for dim in _KINDS[kind][2]:
            total *= self._sizes[dim]
        return total

    def _count(self, kind: str) -> int:
        if kind == "embedding":
            return self.world // self._sizes["pp"]
        return self.world // self.size(kind)

    def _group(self, kind: str, rank: int) -> Group | None:
        """Return a rank's group of a kind; None where it would be alone or is in none."""
        if self.size(kind) == 1:
            return None
        if kind in {"shard", "replicate"}:
            return self._part_of_data_parallel(kind, rank)
        if kind == "embedding":
            return self._embedding(rank)
        description, dims, varying = _KINDS[kind]
        place, index, stride, many = self.coordinates(rank), 0, 1, 1
        members = [0]
        for dim in dims:
            size = self._sizes[dim]
            if dim in varying:
                members = [m + i * stride for i in range(size) for m in members]
            else:
                members = [m + place[dim] * stride for m in members]
                index += place[dim] * many
                many *= size
            stride *= size
        return Group(self._name(kind, description, index), tuple(members))

    def _name(self, kind: str, description: str, index: int) -> str:
        if self._decimal:
            return str(self._first_number[kind] + index)
        return f"{description}_{index}"

    def _part_of_data_parallel(self, kind: str, rank: int) -> Group:
        # HSDP's mesh (replicate, shard): neighbours in the data-parallel group share shards.
        whole = self._group("dp_cp", rank)
        assert whole is not None
        at, size = whole.members.index(rank), self._shard
        place = self.coordinates(rank)
        outer = place["tp"] + self._sizes["tp"] * place["pp"]
        if kind == "shard":
            first = at // size * size
            index = outer * (whole.size // size) + at // size
            name = self._name(kind, _SHARD, index)
            return Group(name, whole.members[first : first + size])
        index = outer * size + at % size
        return Group(self._name(kind, _REPLICATE, index), whole.members[at % size :: size])

    def _embedding(self, rank: int) -> Group | None:
        pipeline = self._group("pp", rank)
        assert pipeline is not None
        ends = (pipeline.members[0], pipeline.members[-1])
        if rank not in ends:
            return None
        # Pipelines are numbered by their first rank.
        return Group(self._name("embedding", _EMBEDDING, ends[0]), ends)

    def all_groups(self) -> dict[str, tuple[int, ...]]:
        """Return every group of more than one rank: name to global ranks."""
        return {group.name: group.members for group in self._walk()}

    def _walk(self) -> Iterator[Group]:
        for kind in self.kinds():
            if self.size(kind) == 1:
                continue
            if kind == "shard" and self.size("replicate") == 1:
                continue
            if kind == "dp_cp" and self._sizes["cp"] == 1:
                continue
            for rank in range(self.world):
                group = self._group(kind, rank)
                if group is not None and group.members[0] == rank:
                    yield group
