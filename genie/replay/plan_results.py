"""A plan as tables, on disk, and as a picture of its traffic.

On disk a plan is what it was made of: a copy of the trace's files, the cluster's steps, the
settings and the models. It is made anew when it is read, and held to the tables that were saved.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from genie import checks
from genie.errors import RecordError
from genie.replay import result_io
from genie.replay.clusters.recipe import remake, steps_of
from genie.replay.compute import ComputeModel
from genie.replay.gpu import GpuModel
from genie.replay.nccl.results import nccl_facts, nccl_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from genie.replay.plan import Plan

Table = npt.NDArray[np.void]

#: A distinct call, how often it runs in one iteration, and what all its runs send.
PLAN_CALL = np.dtype(
    [
        ("kind", "U24"),
        ("count", "i8"),
        ("dtype", "U12"),
        ("communicator", "U64"),
        ("ranks", "i4"),
        ("algorithm", "U14"),
        ("protocol", "U6"),
        ("channels", "i4"),
        ("times", "i8"),
        ("messages", "i8"),
        ("nbytes", "i8"),
    ]
)
PLAN_PART = np.dtype([("call", "i4"), ("channel", "u2"), ("elements", "i8"), ("chunk_bytes", "i8")])
TABLES = ("calls", "traffic", "connections", "parts")
_TRACE = "trace"


def calls(plan: Plan) -> Table:
    """Return one row of `PLAN_CALL` a distinct call; "channels" is 0 for sends and receives."""
    uses = np.zeros(len(plan.templates), np.int64)
    for rank in plan.ranks:
        used = rank.template[rank.template >= 0]
        uses += np.bincount(used, minlength=len(plan.templates))
    per_call: dict[object, list[int]] = {}
    for template in plan.templates:
        total = per_call.setdefault(template.key, [0, 0, 0])
        count = int(uses[template.index])
        total[0] = max(total[0], count)
        total[1] += count * int(template.sends[:, 4].sum())
        total[2] += count * int(template.sends[:, 3].sum())
    made = np.zeros(len(plan.schedules), PLAN_CALL)
    for row, (key, communicator, schedule) in zip(made, plan.schedules, strict=True):
        choice = schedule.choice
        row["kind"], row["count"], row["dtype"] = key.kind, key.count, key.dtype
        row["communicator"], row["ranks"] = communicator.name, communicator.n_ranks
        row["algorithm"] = choice.algorithm if choice else "p2p"
        row["protocol"] = choice.protocol if choice else "simple"
        row["channels"] = choice.channels if choice else 0
        row["times"], row["messages"], row["nbytes"] = per_call.get(key, (0, 0, 0))
    return made


def parts(plan: Plan) -> Table:
    """Return the parts of every distinct collective; "call" is its row of `calls`."""
    found = []
    for number, (_, _, schedule) in enumerate(plan.schedules):
        made = np.zeros(len(schedule.parts), PLAN_PART)
        made["call"] = number
        made["channel"] = schedule.parts["channel"]
        made["elements"] = schedule.parts["count"]
        made["chunk_bytes"] = schedule.parts["chunk_bytes"]
        found.append(made)
    return np.concatenate(found) if found else np.zeros(0, PLAN_PART)


def table(plan: Plan, name: str) -> Table:
    """Return a table of `Plan.to_pandas`.

    Raises:
        InputError: No such table.
    """
    checks.one_of("table", name, TABLES)
    if name == "traffic":
        return plan.traffic()
    if name == "connections":
        return plan.connections
    if name == "calls":
        return calls(plan)
    return parts(plan)


def plot(plan: Plan, ax: Axes | None) -> Axes:
    """Draw the bytes between hosts (see `Plan.plot`)."""
    ax = result_io.new_axes() if ax is None else ax
    rows = plan.traffic()
    matrix = np.zeros((plan.n_hosts, plan.n_hosts))
    np.add.at(matrix, (rows["src_host"], rows["dst_host"]), rows["nbytes"])
    image = ax.imshow(matrix, interpolation="nearest", cmap="viridis")
    ax.figure.colorbar(image, ax=ax, label="bytes of one iteration [B]")
    if plan.n_hosts <= 16:
        ax.set_xticks(range(plan.n_hosts))
        ax.set_yticks(range(plan.n_hosts))
    ax.set_xlabel("to host")
    ax.set_ylabel("from host")
    ax.set_title(plan.cluster.name)
    return ax


def save(plan: Plan, path: str | os.PathLike[str], force: bool) -> Path:
    """Write a plan (see `Plan.save`)."""
    from genie.replay.provenance import provenance

    trace = plan.trace
    facts = {
        **provenance(plan),
        "options": {
            "name": Path(trace.path).name,
            "elements": trace.elements,
            "undefined_group": trace.undefined_group,
            "groups": {name: list(members) for name, members in trace.groups.items()},
        },
        "steps": steps_of(plan.cluster),
        "nccl": nccl_facts(plan.nccl),
        "warnings": plan.warnings,
    }

    def copy(scratch: Path) -> None:
        folder = scratch / _TRACE
        folder.mkdir()
        for rank in trace.ranks:
            shutil.copyfile(rank.path, folder / Path(rank.path).name)

    tables = {name: table(plan, name) for name in TABLES}
    return result_io.save(path, "plan", tables, facts, force, more=copy)


def load(path: str | os.PathLike[str]) -> Plan:
    """Make a saved plan anew (see `Plan.load`)."""
    from genie.replay.plan import plan
    from genie.trace import load as load_trace

    manifest, where = result_io.load(path, "plan"), str(path)
    nccl = nccl_of(manifest.get("nccl"), where)
    try:
        options: dict[str, Any] = manifest["options"]
        groups = {name: tuple(members) for name, members in options["groups"].items()}
        compute = ComputeModel(**manifest["compute_model"])
        gpu = GpuModel(**manifest["gpu_model"])
        cluster = remake(manifest["steps"], where)
        digest = manifest["trace"]["digest"], manifest["plan"]["digest"]
        said = {name: options[name] for name in ("elements", "undefined_group")}
    except (KeyError, TypeError, AttributeError) as error:
        raise RecordError(f"{path}: no plan ({error!r})", path=where) from error
    trace = load_trace(Path(path) / _TRACE, groups, **said)
    made = plan(trace, cluster, nccl=nccl, compute=compute, gpu=gpu)
    result_io.check_same(path, manifest, {name: table(made, name) for name in TABLES})
    if (trace.digest, made.digest) != digest:
        raise RecordError(f"{path}: the trace in it is not the one that was planned", path=where)
    return made
