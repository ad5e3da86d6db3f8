"""How a cluster was made, as steps that JSON can carry: what makes `Cluster.save` exact.

The first step is a constructor with what it was given (the text of a dump or log, not its path);
the others are `communicator`, `sub` and `with_nccl`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from genie.errors import InputError, RecordError

if TYPE_CHECKING:
    from genie.replay.cluster import Cluster
    from genie.replay.clusters.settings import Environment

Steps = tuple[dict[str, Any], ...]


def text_of(given: str | Path) -> str:
    """Return what a dump or log says, from text or from a path that has been read before."""
    if isinstance(given, str) and ("\n" in given or "NCCL" in given or given.lstrip()[:1] == "<"):
        return given
    return Path(given).read_text("utf-8", errors="replace")


def nccl_step(nccl: Environment) -> dict[str, Any]:
    """Return the step that applies an NCCL version and environment."""
    version = ".".join(map(str, nccl.version))
    return {"call": "with_nccl", "version": version, "env": dict(nccl.env)}


def steps_of(cluster: Cluster) -> Steps:
    """Return the steps that make this cluster.

    Raises:
        InputError: It was not made by one of the constructors.
    """
    if not cluster.steps:
        raise InputError(
            f"{cluster!r} was not made by Cluster.preset, local, from_nccl_graph or from_nccl_log, "
            "so it cannot be saved"
        )
    return cluster.steps


def remake(steps: list[dict[str, Any]], where: str) -> Cluster:
    """Return the cluster that the steps make.

    Raises:
        RecordError: The steps are damaged.
        InputError: A step that this GENIE refuses.
    """
    from genie.replay.cluster import Cluster
    from genie.replay.nccl.env import Nccl

    makers: dict[str, Callable[..., Cluster]] = {
        "preset": Cluster.preset,
        "local": Cluster.local,
        "from_nccl_graph": Cluster.from_nccl_graph,
        "from_nccl_log": Cluster.from_nccl_log,
    }
    made: Cluster | None = None
    try:
        for step in steps:
            arguments = dict(step)
            call = arguments.pop("call")
            if made is None:
                made = makers[call](**arguments)
            elif call == "with_nccl":
                made = made.with_nccl(Nccl(**arguments))
            elif call in ("communicator", "sub"):
                made = getattr(made, call)(**arguments)
            else:
                raise KeyError(call)
    except (KeyError, TypeError, AttributeError) as error:
        raise RecordError(
            f"{where}: no steps that make a cluster ({error!r})", path=where
        ) from error
    if made is None:
        raise RecordError(f"{where}: no steps that make a cluster", path=where)
    return made
