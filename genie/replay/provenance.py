"""Where a result comes from: the manifest entries every Recording carries."""

from __future__ import annotations

import datetime
import platform
import sys
from typing import TYPE_CHECKING, Any

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
