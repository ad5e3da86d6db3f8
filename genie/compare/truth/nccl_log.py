"""NCCL_DEBUG logs: calls (subsystem COLL) and what NCCL chose for them (TUNING).

Line formats by release (spec trace-formats §2 and §1 of the corpus): `AllReduce: opCount 0 …
count 1024 datatype 7 … root 0 comm 0x… [nranks=8]`; choices `AllReduce: 1024 Bytes -> Algo RING
proto LL channel{Lo..Hi}={0..1}` from 2.24 on, before that numbers: `1024 Bytes -> Algo 1 proto 0
time 25.2`. A log without either describes a cluster, and is refused as ground truth.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from genie.compare.truth.inspector import FUNCTIONS
from genie.compare.truth.model import KINDS, UNKNOWN, Labels, Truth, ops_of
from genie.errors import CompareError
from genie.replay.bandwidth import WHOLE_BUFFER_KINDS, size_bytes
from genie.trace.kinds import DTYPE_BYTES, DTYPES

#: NCCL's numbers of algorithms and protocols (2.19 to 2.30).
ALGORITHMS = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")
PROTOCOLS = ("ll", "ll128", "simple")

_NCCL = re.compile(r"\bNCCL (?:INFO|WARN|TRACE|VERSION|version)\b")
_CALL = re.compile(
    r"\b(?P<func>All[A-Z]\w+|ReduceScatter|Reduce|Broadcast|Send|Recv|Gather|Scatter|AlltoAll)"
    r": opCount (?P<op>[0-9a-fA-F]+) .*?\bcount (?P<count>\d+) datatype (?P<dtype>\d+)"
    r"(?: op (?P<redop>-?\d+))? root (?P<root>-?\d+) comm (?P<comm>\S+)"
    r"(?: \[nranks=(?P<n>\d+)\])?(?: stream (?P<stream>\S+))?"
)
_TUNING = re.compile(
    r"(?:\b(?P<func>[A-Z]\w+)\s*: )?\b(?P<bytes>\d+) Bytes -> "
    r"Algo (?P<algo>\w+) proto (?P<proto>\w+)"
    r"(?: time (?P<time>[\d.eE+-]+))?"
    r"(?:.*?channel\{Lo\.\.Hi\}=\{(?P<lo>\d+)\.\.(?P<hi>\d+)\})?"
)
_INIT = re.compile(r"comm (?P<comm>0x[0-9a-fA-F]+) rank (?P<rank>\d+) n[rR]anks (?P<n>\d+)")
_COMM_ID = re.compile(r"commId (0x[0-9a-fA-F]+)")
_PROCESS = re.compile(r"^\s*(?:\S+[>:]\s*)??(\S+?):(\d+)(?::\d+)? \[")
_VERSION = re.compile(r"NCCL version (\S+)")


def is_log(text: str) -> bool:
    """Return whether a text holds lines of NCCL_DEBUG, or choices cut out of one."""
    return bool(_NCCL.search(text) or _TUNING.search(text))


def read(path: Path, text: str) -> Truth:
    """Return one operation a call, with the choice NCCL logged; without calls, one a choice.

    Choices are printed by rank 0 only; each is given to rank 0's next call of its kind and size
    and to the same call of the other ranks.

    Raises:
        CompareError: Only lines about the graph or the network.
    """
    labels, unused = Labels(), Counter[str]()
    ranks: dict[tuple[str, str], tuple[int, int]] = {}
    ids: dict[tuple[str, str], str] = {}
    calls: list[dict[str, Any]] = []
    choices: list[dict[str, Any]] = []
    version = ""
    for line in text.splitlines():
        process = _PROCESS.match(line)
        where = f"{process[1]}:{process[2]}" if process else ""
        init = _INIT.search(line)
        if init:
            key = (where, init["comm"])
            ranks[key] = (int(init["rank"]), int(init["n"]))
            named = _COMM_ID.search(line)
            if named:
                ids[key] = named[1]
            continue
        found = _VERSION.search(line)
        version = found[1] if found else version
        call = _CALL.search(line)
        if call:
            calls.append(call.groupdict() | {"where": where})
            continue
        tuning = _TUNING.search(line)
        if tuning:
            choices.append(tuning.groupdict())
        elif _NCCL.search(line):
            unused["line that is neither a call nor a choice"] += 1
    rows = [_call_row(call, ranks, ids) for call in calls]
    if rows:
        _attach(rows, choices, unused)
    else:
        rows = [_choice_row(choice) for choice in choices]
    if not rows:
        raise CompareError(
            f"{path}: an NCCL log that describes the graph but no operation (NCCL_DEBUG_SUBSYS="
            "COLL or TUNING would log them); to use it as a cluster give it to --cluster FILE",
            path=str(path),
        )
    notes = ["a log has no times of operations"]
    if version:
        notes.append(f"NCCL {version}")
    return Truth(
        ops=ops_of(rows, labels),
        source=str(path),
        format="nccl-log",
        labels=labels.tables(),
        counts={"calls": len(calls), "choices": len(choices)},
        unused=dict(unused),
        world_size=max((n for _, n in ranks.values()), default=-1),
        notes=tuple(notes),
    )


def _call_row(
    call: dict[str, Any], ranks: dict[tuple[str, str], tuple[int, int]],
    ids: dict[tuple[str, str], str],
) -> dict[str, Any]:  # fmt: skip
    key = (call["where"], call["comm"])
    rank, n = ranks.get(key, (-1, int(call["n"] or -1)))
    kind = FUNCTIONS.get(call["func"], "unknown")
    dtype, count = int(call["dtype"]), int(call["count"])
    nbytes = -1
    if dtype < len(DTYPES) and (n > 0 or kind not in WHOLE_BUFFER_KINDS):
        nbytes = size_bytes(kind, count * DTYPE_BYTES[dtype], max(n, 1))
    p2p = kind in ("send", "recv")
    return {
        "rank": rank,
        "kind": KINDS.index(kind),
        "name": call["func"],
        "communicator": ids.get(key, "world" if n == _world(ranks) else call["comm"]),
        "group_size": n,
        "count": count,
        "nbytes": nbytes,
        "dtype": DTYPES[dtype] if dtype < len(DTYPES) else None,
        "root": -1 if p2p else int(call["root"]),
        "peer": int(call["root"]) if p2p else -1,
        "op_count": int(call["op"], 16),
    }


def _world(ranks: dict[tuple[str, str], tuple[int, int]]) -> int:
    return max((n for _, n in ranks.values()), default=-2)


def _name(text: str | None, names: tuple[str, ...]) -> str | None:
    if text is None:
        return None
    if text.isdigit():
        return names[int(text)] if int(text) < len(names) else text
    return text.lower()


def _chosen(choice: dict[str, Any]) -> dict[str, Any]:
    channels = int(choice["hi"]) - int(choice["lo"]) + 1 if choice["hi"] is not None else -1
    return {
        "algorithm": _name(choice["algo"], ALGORITHMS),
        "protocol": _name(choice["proto"], PROTOCOLS),
        "channels": channels,
    }


def _choice_row(choice: dict[str, Any]) -> dict[str, Any]:
    kind = FUNCTIONS.get(choice["func"] or "", "unknown")
    return _chosen(choice) | {
        "kind": KINDS.index(kind),
        "name": choice["func"],
        "nbytes": int(choice["bytes"]),
    }


def _attach(
    rows: list[dict[str, Any]], choices: list[dict[str, Any]], unused: Counter[str]
) -> None:
    """Give choices to calls: the k-th of a kind and size to the k-th call of it on each rank."""
    by: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for choice in choices:
        kind = FUNCTIONS.get(choice["func"] or "", "unknown")
        by[KINDS.index(kind), int(choice["bytes"])].append(choice)
    seen: Counter[tuple[Any, ...]] = Counter()
    most: Counter[tuple[int, int]] = Counter()
    for row in rows:
        row.pop("op_count", None)
        key = (row["kind"], row["nbytes"])
        if key not in by and (UNKNOWN, row["nbytes"]) in by:
            key = (UNKNOWN, row["nbytes"])
        turn = seen[row["rank"], row["communicator"], key]
        seen[row["rank"], row["communicator"], key] += 1
        if turn < len(by.get(key, ())):
            row.update(_chosen(by[key][turn]))
            most[key] = max(most[key], turn + 1)
    left = sum(len(found) - most[key] for key, found in by.items())
    if left:
        unused["choice without a call of its kind and size"] += left
