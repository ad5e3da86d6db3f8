"""What is worked out once per (cluster, settings) and kept as long as the cluster lives."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from genie import checks
from genie.errors import InputError
from genie.replay.clusters.base import ClusterFacts
from genie.replay.nccl.env import Nccl
from genie.replay.nccl.model import Model, build_model
from genie.replay.nccl.names import ALL_GATHER, NVLS, NVLS_TREE, PAT, REDUCE_SCATTER
from genie.replay.nccl.prices import Prices

if TYPE_CHECKING:
    from genie.replay.cluster import Cluster

DEFAULT = Nccl()


@dataclass
class Context:
    """The model of one cluster under one `Nccl`, and the answers given so far."""

    model: Model
    choices: dict[Any, Any] = field(default_factory=dict)
    parts: dict[Any, Any] = field(default_factory=dict)
    _prices: dict[int, Prices] = field(default_factory=dict)
    _usable: dict[tuple[int, str, str], list[int]] = field(default_factory=dict)

    def prices(self, function: int, cluster: Cluster, nccl: Nccl) -> Prices:
        """Return the candidates of `function` and their times."""
        found = self._prices.get(function)
        if found is None:
            found = self._prices[function] = Prices(function, self.model, cluster, nccl)
        return found

    def usable(self, function: int, dtype: str, op: str, prices: Prices) -> list[int]:
        """Return the candidates that neither settings nor types rule out, in NCCL's order."""
        key = (function, dtype, op)
        found = self._usable.get(key)
        if found is None:
            found = self._usable[key] = [
                i
                for i, (algorithm, _) in enumerate(prices.codes)
                if not prices.reasons[i] and not type_reason(function, algorithm, dtype, op)
            ]
        return found


def type_reason(function: int, algorithm: int, dtype: str, op: str) -> str:
    """Why this data type and operation rule `algorithm` out; "" where they do not."""
    if algorithm == PAT and function == REDUCE_SCATTER and op in ("avg", "premulsum"):
        return f"PAT does not reduce_scatter with {op}"
    if algorithm in (NVLS, NVLS_TREE) and function != ALL_GATHER:
        if dtype in ("float32", "float64"):
            fits = op == "sum"
        elif dtype in ("int8", "uint8") or dtype.startswith("float8"):
            fits = False
        else:
            fits = op in ("sum", "min", "max")
        return "" if fits else f"NVLS does not reduce {dtype} with {op}"
    return ""


def context(cluster: Cluster, nccl: Nccl) -> Context:
    """Return the context of `cluster` (with its environment applied) and `nccl`."""
    # Kept on the cluster itself, so that it goes when the cluster goes.
    by_nccl: dict[Nccl, Context] = cluster.__dict__.setdefault("_nccl_contexts", {})
    found = by_nccl.get(nccl)
    if found is None:
        found = by_nccl[nccl] = Context(build_model(cluster, nccl))
    return found


def check_setting(nccl: Nccl | None, cluster: Cluster) -> Nccl:
    """Return the settings (2.30's defaults if None), refusing what is no `Nccl` or `Cluster`.

    Raises:
        InputError: One of them is something else.
    """
    nccl = DEFAULT if nccl is None else nccl
    if not isinstance(nccl, Nccl):
        raise InputError(
            f"nccl is a genie.Nccl, such as Nccl(env={{...}}), not {checks.short(nccl)}"
        )
    if not isinstance(cluster, ClusterFacts):
        raise InputError(
            f'cluster is a genie.Cluster, such as Cluster.preset("h100x8", hosts=2), not '
            f"{checks.short(cluster)}"
        )
    return nccl
