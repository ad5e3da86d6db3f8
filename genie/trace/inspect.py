"""What a trace set holds, as a document that JSON can carry and as text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from genie.trace.kinds import Coll, Kind
from genie.trace.model import RankTrace, Trace
from genie.trace.order import compute_ns, critical_path_ns, reachable
from genie.units import format_size, format_time

SCHEMA = 1
_MOST_ROWS = 40
_WHY = {
    "repeated dependencies": "a parent gates a node once",
    "metadata nodes": "they hold no work; groups are read from them",
    "durations of communication nodes": "they include waiting for peers; the network decides",
    "collectives' peers and tags": "only sends and receives have them",
}
_UNKNOWN_WHY = "no field that this wire version has"


def inspect(trace: Trace) -> dict[str, Any]:
    """Return what the set holds, per rank and in total.

    Keys: `path`, `version`, `schemas`, `world_size`, `nodes`, `unit` ("bytes" or "elements" of
    every size below), `elements`, `groups`, `groups_from`, `total`, `ranks`, `ignored`,
    `warnings`, `problems`. `total` and every rank have `kinds` (nodes by kind), `collectives`
    (kind, communicator, size, count, sum), `sent` and `received` (count, sum), `compute_ns`,
    `critical_path_ns` (longest path of durations with a network that takes no time),
    `untimed_compute` (COMP nodes without a duration), `communication` (nodes read, and those
    that can start). Times are in ns.
    """
    ranks = [_rank(trace, rank) for rank in trace.ranks]
    return {
        "schema": SCHEMA,
        "path": trace.path,
        "version": trace.version,
        "schemas": sorted({rank.schema for rank in trace.ranks if rank.schema}),
        "world_size": trace.world_size,
        "nodes": trace.n,
        "unit": "elements" if trace.sizes_in_elements else "bytes",
        "elements": trace.elements,
        "groups": {name: list(members) for name, members in trace.groups.items()},
        "groups_from": trace.groups_path,
        "total": _total(ranks),
        "ranks": ranks,
        "ignored": _ignored(trace),
        "warnings": list(trace.warnings),
        "problems": [problem.message for problem in trace.problems()],
    }


def _rank(trace: Trace, rank: RankTrace) -> dict[str, Any]:
    communicates = rank.kind >= Kind.COMM_SEND
    compute = rank.kind == Kind.COMP
    return {
        "rank": rank.rank,
        "path": rank.path,
        "missing": rank.missing,
        "nodes": rank.n,
        "dependencies": len(rank.deps),
        "kinds": _kinds(rank),
        "collectives": _collectives(trace, rank),
        "sent": _transfers(rank, Kind.COMM_SEND),
        "received": _transfers(rank, Kind.COMM_RECV),
        "compute_ns": int(compute_ns(rank).sum()),
        "critical_path_ns": critical_path_ns(rank),
        "untimed_compute": int((compute & (rank.duration_ns < 0)).sum()),
        "communication": {
            "read": int(communicates.sum()),
            "can_start": int((communicates & reachable(rank)).sum()),
        },
    }


def _kinds(rank: RankTrace) -> dict[str, int]:
    counts = np.bincount(rank.kind, minlength=len(Kind))
    return {kind.name: int(counts[kind]) for kind in Kind if counts[kind]}


def _collectives(trace: Trace, rank: RankTrace) -> list[dict[str, Any]]:
    nodes = np.flatnonzero(rank.kind == Kind.COMM_COLL)
    keys = np.stack([rank.coll[nodes], rank.group[nodes], rank.nbytes[nodes]], axis=1)
    unique, counts = np.unique(keys.astype(np.int64), axis=0, return_counts=True)
    return [
        {
            "kind": Coll(coll).name.lower() if coll >= 0 else None,
            "communicator": None if group < 0 else trace.group_names[group],
            "size": size if size >= 0 else None,
            "count": count,
            "sum": max(size, 0) * count,
        }
        for (coll, group, size), count in zip(unique.tolist(), counts.tolist(), strict=True)
    ]


def _transfers(rank: RankTrace, kind: Kind) -> dict[str, int]:
    sizes: npt.NDArray[np.int64] = rank.nbytes[rank.kind == kind]
    return {"count": len(sizes), "sum": int(sizes[sizes > 0].sum())}


def _total(ranks: list[dict[str, Any]]) -> dict[str, Any]:
    kinds: dict[str, int] = {}
    merged: dict[tuple[Any, ...], dict[str, Any]] = {}
    for rank in ranks:
        for kind, count in rank["kinds"].items():
            kinds[kind] = kinds.get(kind, 0) + count
        for row in rank["collectives"]:
            key = (row["kind"], row["communicator"], row["size"])
            if key in merged:
                merged[key]["count"] += row["count"]
                merged[key]["sum"] += row["sum"]
            else:
                merged[key] = dict(row)
    rows = sorted(
        merged.values(),
        key=lambda row: (row["kind"] or "", row["communicator"] or "", row["size"] or -1),
    )

    def summed(what: str) -> dict[str, int]:
        return {
            key: sum(rank[what][key] for rank in ranks) for key in (ranks[0][what] if ranks else ())
        }

    return {
        "kinds": {kind.name: kinds[kind.name] for kind in Kind if kind.name in kinds},
        "dependencies": sum(rank["dependencies"] for rank in ranks),
        "collectives": rows,
        "sent": summed("sent"),
        "received": summed("received"),
        "compute_ns": sum(rank["compute_ns"] for rank in ranks),
        "critical_path_ns": max((rank["critical_path_ns"] for rank in ranks), default=0),
        "untimed_compute": sum(rank["untimed_compute"] for rank in ranks),
        "communication": summed("communication"),
    }


def _ignored(trace: Trace) -> list[dict[str, Any]]:
    counts: dict[str, int] = {}
    for rank in trace.ranks:
        communicates = rank.kind >= Kind.COMM_SEND
        for what, count in (
            *rank.ignored.items(),
            ("metadata nodes", int((rank.kind == Kind.METADATA).sum())),
            (
                "durations of communication nodes",
                int((communicates & (rank.duration_ns > 0)).sum()),
            ),
        ):
            if count:
                counts[what] = counts.get(what, 0) + count
    return [
        {"what": what, "count": count, "why": _WHY.get(what, _UNKNOWN_WHY)}
        for what, count in counts.items()
    ]


def render(document: dict[str, Any]) -> str:
    """Return the document of `inspect` as text, without problems and warnings."""
    return "\n".join(_lines(document)) + "\n"


def _lines(document: dict[str, Any]) -> Iterator[str]:
    schemas = f" (schema {', '.join(document['schemas'])})" if document["schemas"] else ""
    yield f"trace       {document['path']}"
    yield f"version     {document['version']}{schemas}"
    yield f"ranks       {document['world_size']}"
    total = document["total"]
    kinds = ", ".join(f"{count} {kind}" for kind, count in total["kinds"].items())
    yield f"nodes       {document['nodes']}: {kinds or 'none'}"
    yield f"parents     {total['dependencies']} dependencies"
    unit = document["unit"]
    if unit == "elements":
        yield "sizes       in elements of an unknown type (say which with elements)"
    elif document["elements"]:
        yield f"sizes       in bytes, from {document['elements']} elements"
    else:
        yield "sizes       in bytes"
    if document["groups"]:
        source = f" from {document['groups_from']}" if document["groups_from"] else ""
        yield f"groups      {len(document['groups'])}{source}"
    yield f"compute     {format_time(total['compute_ns'])} summed over ranks" + (
        f"; {total['untimed_compute']} COMP nodes without a duration"
        if total["untimed_compute"]
        else ""
    )
    yield f"longest path without network  {format_time(total['critical_path_ns'])}"
    communication = total["communication"]
    if communication["read"] != communication["can_start"]:
        yield (
            f"communication nodes  {communication['read']} read, "
            f"{communication['can_start']} can start"
        )
    if total["collectives"]:
        yield ""
        yield f"{'collective':<22} {'communicator':<14} {'size':>14} {'count':>8} {'sum':>14}"
        rows = total["collectives"]
        for row in rows[:_MOST_ROWS]:
            yield (
                f"{row['kind'] or '(no comm_type)':<22} {_communicator(row):<14} "
                f"{_size(row['size'], unit):>14} {row['count']:>8} {_size(row['sum'], unit):>14}"
            )
        if len(rows) > _MOST_ROWS:
            yield f"... {len(rows) - _MOST_ROWS} more kinds"
    for what in ("sent", "received"):
        if total[what].get("count"):
            yield f"{what:<9} {total[what]['count']} messages, {_size(total[what]['sum'], unit)}"
    yield ""
    yield (
        f"{'rank':<12} {'nodes':>9} {'compute':>10} {'path':>10} {'collectives':>12} "
        f"{'size':>12} {'sends':>7} {'receives':>9}"
    )
    yield from _rank_lines(document["ranks"], unit)
    for entry in document["ignored"]:
        yield f"ignored     {entry['count']} {entry['what']}: {entry['why']}"


def _rank_lines(ranks: list[dict[str, Any]], unit: str) -> Iterator[str]:
    # One line for every run of ranks that look the same.
    run: list[int] = []
    last = ""
    for rank in ranks:
        line = _rank_line(rank, unit)
        if line != last and run:
            yield f"{_span(run):<12} {last}"
            run = []
        run.append(rank["rank"])
        last = line
    if run:
        yield f"{_span(run):<12} {last}"


def _span(run: list[int]) -> str:
    return f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0])


def _rank_line(rank: dict[str, Any], unit: str) -> str:
    if rank["missing"]:
        return "(no file)"
    size = sum(row["sum"] for row in rank["collectives"])
    count = sum(row["count"] for row in rank["collectives"])
    return (
        f"{rank['nodes']:>9} {format_time(rank['compute_ns']):>10} "
        f"{format_time(rank['critical_path_ns']):>10} {count:>12} {_size(size, unit):>12} "
        f"{rank['sent']['count']:>7} {rank['received']['count']:>9}"
    )


def _communicator(row: dict[str, Any]) -> str:
    return "world" if row["communicator"] is None else repr(row["communicator"])


def _size(size: int | None, unit: str) -> str:
    if size is None:
        return "(no size)"
    return format_size(size) if unit == "bytes" else f"{size} el."
