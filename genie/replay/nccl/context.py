"""What is worked out once per (cluster, settings) and kept as long as the cluster lives."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from genie.replay.nccl.env import Nccl
from genie.replay.nccl.model import Model, build_model

if TYPE_CHECKING:
    from genie.replay.cluster import Cluster

DEFAULT = Nccl()


@dataclass
class Context:
    """The model of one cluster under one `Nccl`, and the answers given so far."""

    model: Model
    choices: dict[Any, Any] = field(default_factory=dict)
    parts: dict[Any, Any] = field(default_factory=dict)


def context(cluster: Cluster, nccl: Nccl) -> Context:
    """Return the context of `cluster` (with its environment applied) and `nccl`."""
    # Kept on the cluster itself, so that it goes when the cluster goes.
    by_nccl: dict[Nccl, Context] = cluster.__dict__.setdefault("_nccl_contexts", {})
    found = by_nccl.get(nccl)
    if found is None:
        found = by_nccl[nccl] = Context(build_model(cluster, nccl))
    return found
