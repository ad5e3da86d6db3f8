"""A trace set as a DataFrame, as a picture, and as a Chakra v0.0.4 set of its own."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from genie import checks
from genie._core.scanner import ATTRIBUTES
from genie.errors import InputError
from genie.trace.kinds import DTYPES, Coll, Kind
from genie.trace.model import COLUMNS, Order, RankTrace, Trace
from genie.trace.writer import Builder, write

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_COLUMNS = frozenset(ATTRIBUTES[1:])
_FIELDS = frozenset({"inputs", "outputs"})


def to_pandas(trace: Trace, rank: int | None) -> pd.DataFrame:
    """Return the nodes as a DataFrame (see `Trace.to_pandas`)."""
    import pandas as pd

    if rank is not None:
        rank = checks.whole("rank", rank, 0, trace.world_size - 1)
    chosen = trace.ranks if rank is None else [trace.ranks[rank]]
    data: dict[str, Any] = {
        "rank": np.concatenate([np.full(r.n, r.rank, np.int32) for r in chosen]),
        "name": [name for r in chosen for name in r.names()],
    }
    for name in COLUMNS:
        data[name] = np.concatenate([getattr(r, name) for r in chosen])
    data["parents"] = np.concatenate([np.diff(r.dep_indptr) for r in chosen])
    for name, labels in (
        ("kind", [kind.name for kind in Kind]),
        ("coll", [coll.name.lower() for coll in Coll]),
        ("dtype", list(DTYPES)),
        ("group", trace.group_names),
    ):
        codes = data[name].astype(np.int32)
        data[name] = pd.Categorical.from_codes(codes, categories=pd.Index(labels, dtype=object))
    return pd.DataFrame(data)


def plot(trace: Trace, ax: Axes | None) -> Axes:
    """Draw the bytes of each kind of communication (see `Trace.plot`)."""
    if ax is None:
        from matplotlib.figure import Figure

        ax = Figure(layout="constrained").add_subplot()
    total = trace.inspect()["total"]
    sums: dict[str, int] = {}
    for row in total["collectives"]:
        kind = row["kind"] or "(no comm_type)"
        sums[kind] = sums.get(kind, 0) + row["sum"]
    if total["sent"].get("count"):
        sums["send"] = total["sent"]["sum"]
    ax.barh(list(sums), list(sums.values()))
    ax.invert_yaxis()
    unit = "elements" if trace.sizes_in_elements else "B"
    ax.set_xlabel(f"comm_size of all ranks' nodes [{unit}]")
    ax.set_title(f"{trace.world_size} ranks")
    return ax


def save(trace: Trace, path: str | os.PathLike[str], force: bool, name: str) -> Path:
    """Write the set as Chakra v0.0.4 (see `Trace.save`)."""
    checks.text("name", name)
    wrong = [problem for problem in trace.ranked_problems() if problem[0] != Order.UNITS]
    if wrong:
        raise wrong[0][1]
    target = Path(checks.path("path", path))
    check_target(target, force)
    if target.is_dir():
        shutil.rmtree(target)
    builders = (_builder(trace, rank) for rank in trace.ranks)
    return write(target, name, builders, groups=trace.groups)


def check_target(target: Path, force: bool) -> None:
    """Refuse a folder that a trace set cannot be written to.

    Raises:
        InputError: Something is in the way.
    """
    if not os.path.lexists(target):
        return
    if not target.is_dir():
        raise InputError(f"{target}: a file is in the way of the trace set")
    entries = sorted(target.iterdir())
    others = [e for e in entries if e.suffix != ".et" and not e.name.endswith(".groups.json")]
    if others:
        raise InputError(f"{target} holds {others[0].name}, which is no part of a trace set")
    if entries and not force:
        raise InputError(f"{target}: a trace set is there already (force replaces it)")


def _builder(trace: Trace, rank: RankTrace) -> Builder:
    metadata = {key: value for key, value in rank.metadata.items() if key != "version"}
    if not trace.sizes_in_elements:
        # What counted elements counts bytes now.
        metadata.pop("schema", None)
    made = Builder(metadata)
    for i in range(rank.n):
        kind = Kind(int(rank.kind[i]))
        transfer = kind in {Kind.COMM_SEND, Kind.COMM_RECV}
        splits = None if rank.splits[i] < 0 else rank.split_lists[rank.splits[i]]
        made.node(
            kind,
            rank.name(i),
            id=int(rank.id[i]),
            deps=rank.id[rank.parents(i)].tolist(),
            duration_ns=_known(rank.duration_ns[i]),
            start_ns=_known(rank.start_ns[i]),
            coll=Coll(int(rank.coll[i])) if kind == Kind.COMM_COLL else None,
            nbytes=_known(rank.nbytes[i]),
            group=None if rank.group[i] < 0 else trace.group_names[rank.group[i]],
            peer=_known(rank.peer[i]) if transfer else None,
            tag=int(rank.tag[i]) or None,
            root=int(rank.root[i]) or None,
            stream=_known(rank.stream[i]),
            thread=_known(rank.thread[i]),
            dtype=None if rank.dtype[i] < 0 else DTYPES[rank.dtype[i]],
            splits=None if splits is None else (splits[0].tolist(), splits[1].tolist()),
            num_ops=_known(rank.num_ops[i]),
            tensor_size=_known(rank.tensor_size[i]),
            is_cpu=bool(rank.is_cpu[i]) or None,
            attrs=dict(_others(rank.attrs(i))),
        )
    return made


def _known(value: Any) -> int | None:
    return int(value) if value >= 0 else None


def _others(attrs: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    # Attributes without a column, where a list holds one kind of value.
    for name, value in attrs.items():
        if name in _COLUMNS or name in _FIELDS or value is None:
            continue
        if isinstance(value, list) and len({type(item) for item in value}) > 1:
            continue
        if isinstance(value, bool | int | float | str | bytes | list):
            yield name, value
