"""Where a result comes from: the manifest entries every Recording carries."""

from __future__ import annotations

import datetime
import platform
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from genie.replay.tables import KINDS

if TYPE_CHECKING:
    from genie.replay.plan import Plan


def provenance(plan: Plan) -> dict[str, Any]:
    """Return what was run, on what, by which version."""
    from genie.version import __version__

    now = datetime.datetime.now(datetime.timezone.utc)
    return {
        "trace": {
            "path": str(plan.trace.path),
            "digest": plan.trace.digest,
            "version": plan.trace.version,
            "ranks": plan.world_size,
        },
        "plan": {
            "digest": plan.digest,
            "cluster": plan.cluster.name,
            "hosts": plan.n_hosts,
            "messages": plan.messages,
            "nbytes": plan.nbytes,
        },
        "choices": _choices(plan),
        "nccl_version": ".".join(map(str, plan.nccl.version)),
        "nccl_env": dict(plan.nccl.env),
        "genie_version": __version__,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "command": sys.argv,
        "created": now.isoformat(timespec="seconds"),
        "compute_model": vars(plan.compute),
        "gpu_model": vars(plan.gpu),
    }


def _choices(plan: Plan) -> list[dict[str, Any]]:
    """Return what NCCL chooses for each communicator, kind and size that the plan has."""
    found = {}
    for first in sorted({int(c.ranks[0]) for c in plan.communicators}):
        rank = plan.ranks[first]
        rows = np.flatnonzero(rank.template >= 0)
        columns = (rank.communicator, rank.kind, rank.nbytes, rank.template)
        keys = np.unique(np.stack([column[rows] for column in columns], axis=1), axis=0)
        for communicator, kind, nbytes, template in keys.tolist():
            made = plan.templates[template]
            choice = getattr(made.schedule, "choice", None)
            entry = {
                "communicator": plan.communicators[communicator].name,
                "kind": KINDS[kind],
                "nbytes": nbytes,
                "algorithm": made.algorithm,
                "protocol": made.protocol,
                "channels": choice.channels if choice is not None else -1,
            }
            found[tuple(entry.values())] = entry
    return list(found.values())
