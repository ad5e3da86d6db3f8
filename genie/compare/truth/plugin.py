"""Chrome traces of NCCL's example profiler plugin: collectives, proxy operations, messages.

Events are async begin/end pairs (`ph` "b" and "e"). Collectives (cat COLL) and sends (P2P) hold
proxy operations (PROXY), which hold proxy steps (NET) and, from NCCL 2.26, the verbs requests of
the IB plugin (NET_IB: qp_num, opcode, size). The finest level there is becomes `messages`.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from genie.compare.truth.inspector import FUNCTIONS
from genie.compare.truth.model import KINDS, Labels, Truth, messages_of, ops_of
from genie.errors import CompareError
from genie.replay.bandwidth import size_bytes
from genie.trace.kinds import DTYPE_BYTES, DTYPES, dtype_index

_OP_CATS = ("COLL", "P2P")
_RANK = re.compile(r"(?:rank|worker)[-_.]?(\d+)", re.IGNORECASE)
#: ibv_wr_opcode, and ibv_wc_opcode's receives.
OPCODES = {
    0: "RDMA_WRITE",
    1: "RDMA_WRITE_WITH_IMM",
    2: "SEND",
    3: "SEND_WITH_IMM",
    4: "RDMA_READ",
    128: "RECV",
    129: "RECV_RDMA_WITH_IMM",
}


def events_of(document: Any) -> list[dict[str, Any]] | None:
    """Return the events of a plugin's trace, None if the document is something else."""
    events = document.get("traceEvents") if isinstance(document, dict) else document
    if not isinstance(events, list):
        return None
    found = [e for e in events if isinstance(e, dict) and e.get("ph") in ("b", "e", "n")]
    if any(str(e.get("cat")) in ("COLL", "P2P", "PROXY", "NET", "NET_IB") for e in found):
        return found
    return None


@dataclass
class _Reader:
    rank: int
    table: int
    rows: list[dict[str, Any]] = field(default_factory=list)
    proxies: list[dict[str, Any]] = field(default_factory=list)
    steps: list[dict[str, Any]] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    unused: Counter[str] = field(default_factory=Counter)
    pid_rank: dict[Any, int] = field(default_factory=dict)
    #: What is open, by pid: rows of the levels above.
    op: dict[Any, int] = field(default_factory=dict)
    proxy: dict[Any, dict[str, Any]] = field(default_factory=dict)
    open: dict[tuple[Any, ...], dict[str, Any]] = field(default_factory=dict)

    def feed(self, event: dict[str, Any], base: int) -> None:
        cat, ph, pid = str(event.get("cat")), event["ph"], event.get("pid")
        args: dict[str, Any] = event["args"] if isinstance(event.get("args"), dict) else {}
        ts = event.get("ts")
        at = round(float(ts) * 1000) if isinstance(ts, int | float) else -1
        key = (cat, event.get("name"), event.get("id"), pid)
        if ph == "e":
            self._end(key, at, args, base)
        elif ph == "b":
            row = self._begin(cat, event, args, at, base)
            if row is None:
                self.unused[f"{cat} {event.get('name')} event (no operation, no message)"] += 1
            else:
                self.open[key] = row

    def _end(self, key: tuple[Any, ...], at: int, args: dict[str, Any], base: int) -> None:
        row = self.open.pop(key, None)
        if row is None:
            # Ends of events that carry no operation were not opened either.
            return
        row["end_ns"] = at
        if "time_ns" in row:
            row["time_ns"] = float(at - row["start_ns"])
        if isinstance(args.get("transSize"), int) and key[0] in ("PROXY", "NET"):
            row["nbytes"] = args["transSize"]

    def _begin(
        self, cat: str, event: dict[str, Any], args: dict[str, Any], at: int, base: int
    ) -> dict[str, Any] | None:
        pid = event.get("pid")
        if cat in _OP_CATS:
            return self._operation(cat, str(event.get("name")), args, at, pid)
        rank = self.pid_rank.get(pid, self.rank)
        op = self.op[pid] + base if pid in self.op else -1
        row: dict[str, Any] = {"rank": rank, "op": op, "start_ns": at}
        name = str(event.get("name", ""))
        if cat == "PROXY" and "Channel" in args:
            row |= {
                "peer": _int(args.get("Peer")),
                "channel": _int(args["Channel"]),
                "direction": int("recv" in name.lower()),
                "nbytes": max(_int(args.get("transSize")), 0),
                "steps": _int(args.get("Steps")),
            }
            self.proxy[pid] = row
            self.proxies.append(row)
            return row
        above = self.proxy.get(pid, {})
        inherited = {k: above[k] for k in ("peer", "channel", "direction") if k in above}
        if cat == "NET_IB":
            opcode = _int(args.get("opcode"))
            row |= inherited | {
                "qp": _int(args.get("qp_num")),
                "opcode": OPCODES.get(opcode, str(opcode)),
                "nbytes": max(_int(args.get("size", args.get("length"))), 0),
            }
            if opcode >= 128:
                row["direction"] = 1
            self.requests.append(row)
            return row
        if cat == "NET" and "transSize" in args:
            row |= inherited | {"step": _int(args.get("Step")), "nbytes": _int(args["transSize"])}
            self.steps.append(row)
            return row
        return None

    def _operation(
        self, cat: str, name: str, args: dict[str, Any], at: int, pid: Any
    ) -> dict[str, Any]:
        kind = FUNCTIONS.get(name, "unknown")
        rank = _int(args.get("Rank"))
        if rank >= 0:
            self.pid_rank[pid] = rank
        dtype = dtype_index(str(args.get("Datatype", "")))
        count = _int(args.get("Count"))
        n = _int(args.get("nRanks", args.get("NRanks")))
        nbytes = -1
        if count >= 0 and dtype >= 0:
            part = count * DTYPE_BYTES[dtype]
            # A count of one rank's part says nothing of the whole without the number of ranks.
            nbytes = size_bytes(kind, part, n) if n > 0 or size_bytes(kind, 1, 2) == 1 else -1
        row: dict[str, Any] = {
            "rank": rank if rank >= 0 else self.rank,
            "table": self.table,
            "kind": KINDS.index(kind),
            "name": name,
            "communicator": str(args["CommHash"]) if "CommHash" in args else None,
            "group_size": n,
            "seq": _int(args.get("SeqNum")),
            "count": count,
            "nbytes": nbytes,
            "dtype": DTYPES[dtype] if dtype >= 0 else None,
            "algorithm": _lower(args.get("Algorithm")),
            "protocol": _lower(args.get("Protocol")),
            "channels": _int(args.get("nChannels")),
            "peer": _int(args.get("Peer")) if cat == "P2P" else -1,
            "start_ns": at,
            "end_ns": -1,
            "time_ns": float("nan"),
        }
        self.op[pid] = len(self.rows)
        self.rows.append(row)
        return row


def _int(value: Any) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return -1
    return number if -(1 << 63) <= number < 1 << 63 else -1


def _lower(value: Any) -> str | None:
    return str(value).lower() if value else None


def read(documents: dict[Path, list[dict[str, Any]]], source: Path) -> Truth:
    """Return the operations and messages of one trace or several (one a process).

    Args:
        documents: File → its events, from `events_of`.
        source: What was read.

    Raises:
        CompareError: Neither an operation nor a message.
    """
    labels = Labels()
    unused: Counter[str] = Counter()
    rows: list[dict[str, Any]] = []
    requests: list[dict[str, Any]] = []
    steps: list[dict[str, Any]] = []
    proxies: list[dict[str, Any]] = []
    for table, (path, events) in enumerate(documents.items()):
        match = _RANK.search(path.name)
        reader = _Reader(int(match[1]) if match else -1, table)
        for event in events:
            reader.feed(event, len(rows))
        unused.update(reader.unused)
        never = sum(row["end_ns"] < 0 for row in reader.rows)
        if never:
            unused["operation that never ended (kept, without a time)"] += never
        rows += reader.rows
        requests += reader.requests
        steps += reader.steps
        proxies += reader.proxies
    found, level = next(
        (
            (list_, name)
            for list_, name in (
                (requests, "verbs requests"),
                (steps, "proxy steps"),
                ([p for p in proxies if p["nbytes"] > 0], "proxy operations"),
            )
            if list_
        ),
        ([], ""),
    )
    if not rows and not found:
        raise CompareError(
            f"{source}: a profiler plugin's trace without a collective, send or message",
            path=str(source),
        )
    for row in found:
        row.pop("steps", None)
    notes = [f"messages are the {level}"] if found else ["the trace has no messages"]
    if any(row["seq"] < 0 for row in rows):
        for row in rows:
            row["seq"] = -1
    return Truth(
        ops=ops_of(rows, labels),
        messages=messages_of(found, labels) if found else None,
        source=str(source),
        format="nccl-profiler-plugin",
        labels=labels.tables(),
        counts={
            "files": len(documents),
            "ranks": len({row["rank"] for row in rows}),
            "proxy operations": len(proxies),
        },
        unused=dict(unused),
        notes=tuple(notes),
    )
