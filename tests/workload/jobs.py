"""Small jobs that every test of this folder uses."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from genie.trace import Coll, Kind, RankTrace, Trace

#: A dense transformer small enough to be simulated in no time.
DENSE: dict[str, Any] = {
    "layers": 4, "hidden": 256, "heads": 8, "kv_heads": 4, "ffn": 512, "vocab": 1024,
    "sequence": 128,
}  # fmt: skip
#: A mixture of experts of the same size, its first layer dense.
MOE: dict[str, Any] = {
    **DENSE, "experts": 8, "top_k": 2, "expert_ffn": 128, "shared_experts": 1, "dense_layers": 1,
}  # fmt: skip
GPT: dict[str, Any] = {
    **DENSE, "kv_heads": 0, "gated": False, "bias": True, "tied": True, "positions": 128,
}  # fmt: skip


def spec(model: dict[str, Any], **parallelism: Any) -> dict[str, Any]:
    """Return a spec as a mapping."""
    return {"name": "job", "model": model, "parallelism": parallelism}


def totals(trace: Trace, rank: int) -> Counter[tuple[str, str]]:
    """Return bytes by (collective, kind of group) of one rank; sends and receives too."""
    one, found = trace.ranks[rank], Counter[tuple[str, str]]()
    for i in np.flatnonzero(one.kind >= Kind.COMM_SEND).tolist():
        found[_what(one, i), group_kind(trace, one, i)] += int(one.nbytes[i])
    return found


def counts(trace: Trace, rank: int) -> Counter[tuple[str, str]]:
    """Return how many nodes of each (collective, kind of group) one rank has."""
    one, found = trace.ranks[rank], Counter[tuple[str, str]]()
    for i in np.flatnonzero(one.kind >= Kind.COMM_SEND).tolist():
        found[_what(one, i), group_kind(trace, one, i)] += 1
    return found


def group_kind(trace: Trace, one: RankTrace, i: int) -> str:
    """Return the kind of a node's group: its name without the number; "" the world."""
    group = int(one.group[i])
    return "" if group < 0 else trace.group_names[group].rpartition("_")[0]


def _what(one: RankTrace, i: int) -> str:
    if one.kind[i] == Kind.COMM_COLL:
        return Coll(int(one.coll[i])).name.lower()
    return "send" if one.kind[i] == Kind.COMM_SEND else "recv"
