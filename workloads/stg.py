"""What symbolic_tensor_graph's traces and ours communicate for the same model and parallelism.

Usage: python workloads/stg.py          (GENIE_CORPUS names the folder of the et-stg-* sets)

Prints, per set, every (collective, ranks of its group, bytes) of rank 0 with how often either has
it, and for each difference the reason; a difference without one is an error. Both have 4 layers of
width 1024, a two-matrix feed-forward layer of 4096, a vocabulary of 4096, 2048 tokens a
micro-batch, one micro-batch, and gradients in bfloat16.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from genie.trace import Coll, Kind, Trace, load
from genie.workload.generate import workload

ROOT = Path(__file__).resolve().parent.parent
CORPUS = Path(os.environ.get("GENIE_CORPUS", ROOT.parent / "shared" / "corpus"))

H, FFN, VOCAB, TOKENS, E = 1024, 4096, 4096, 2048, 2
MODEL = {
    "layers": 4, "hidden": H, "heads": 16, "ffn": FFN, "gated": False, "vocab": VOCAB,
    "sequence": TOKENS,
}  # fmt: skip
JOB = {
    "name": "job", "model": MODEL, "precision": {"gradients": "bfloat16"},
    "batch": {"micro_batches": 1}, "schedule": {"bucket_parameters": 1},
}  # fmt: skip
#: Set: (our settings, which of STG's ranks is which of ours).
CASES: dict[str, tuple[dict[str, int | bool], dict[int, int]]] = {
    "et-stg-dense-tp4-notpsp": ({"tp": 4, "sp": False}, {}),
    # STG: rank = dp + 2 tp + 4 pp. Megatron-LM: tp + 2 dp + 4 pp.
    "et-stg-dense-dp2tp2pp2": (
        {"dp": 2, "tp": 2, "pp": 2},
        {d + 2 * t + 4 * p: t + 2 * d + 4 * p for d in (0, 1) for t in (0, 1) for p in (0, 1)},
    ),
    "et-stg-dense-fsdp4": ({"dp": 4, "zero": 3}, {}),
}

Row = tuple[str, tuple[int, ...], int]

_BH = TOKENS * H * E
_LAYER = (4 * H * H + 2 * H * FFN) * E
_NORMS = 2 * H * E
_HEAD = "head over the vocabulary (Megatron-LM), STG's over the width"
_LOSS = "vocabulary-parallel loss: three sums of a float32 a token"
_NORM = "gradient norm, which STG leaves out"
#: Set: (collective, ranks in the group, bytes): why the counts differ.
REASONS: dict[str, dict[tuple[str, int, int], str]] = {
    "et-stg-dense-tp4-notpsp": {
        ("all_reduce", 4, _BH): f"{_HEAD}: ours sums the gradient of its input",
        ("all_gather", 4, _BH // 4): f"{_HEAD}: STG gathers the gradient of its input",
        ("all_reduce", 4, TOKENS * VOCAB * E): f"{_HEAD}: STG sums whole logits",
        ("all_reduce", 4, 4 * TOKENS): _LOSS,
        ("all_reduce", 4, 4): _NORM,
    },
    "et-stg-dense-dp2tp2pp2": {
        ("reduce_scatter", 2, _BH): "embedding split over the vocabulary: its sum is scattered",
        ("all_gather", 2, _BH // 2): "embedding and head under sequence parallel",
        ("all_reduce", 2, _LAYER // 2): "gradients: STG a layer at once; ours next two rows",
        ("all_reduce", 2, 4 * H * H // 2 * E + _NORMS // 2): "attention's gradients, with a norm",
        ("all_reduce", 2, 4 * H * H // 2 * E + _NORMS): "attention's gradients, with norms",
        # As many bytes as a feed-forward layer's gradients, which ours has twice.
        ("all_reduce", 2, VOCAB * H * E): (
            "STG: whole embedding, summed over replicas and tensor-parallel ranks; "
            "ours: feed-forward gradients"
        ),
        ("all_reduce", 2, VOCAB * H // 2 * E): "half the embedding's gradients",
        ("all_reduce", 2, 2 * _NORMS): "gradients of norms in sequence-parallel regions",
        ("all_reduce", 4, 4): _NORM,
    },
    "et-stg-dense-fsdp4": {
        ("all_gather", 4, _LAYER // 4): "STG gives norms no parameters: next row",
        ("all_gather", 4, (_LAYER + _NORMS) // 4): "the same layers with their norms",
        ("reduce_scatter", 4, _LAYER): "STG gives norms no parameters: next row",
        ("reduce_scatter", 4, _LAYER + _NORMS): "the same layers with their norms",
        ("all_reduce", 4, VOCAB * H * E): "STG keeps embedding and head whole",
        ("all_gather", 4, (2 * VOCAB * H + H) * E // 4): "FSDP's root: embedding, head, last norm",
        ("reduce_scatter", 4, (2 * VOCAB * H + H) * E): "FSDP's root, its gradients",
        ("all_reduce", 4, 4): _NORM,
    },
}


def communication(trace: Trace, rank: int, where: dict[int, int]) -> Counter[Row]:
    """Return how often a rank has each (what, ranks, bytes); `where` renames ranks."""
    one, found = trace.ranks[rank], Counter[Row]()
    for i in np.flatnonzero(one.kind >= Kind.COMM_SEND).tolist():
        if one.kind[i] == Kind.COMM_COLL:
            what, members = Coll(int(one.coll[i])).name.lower(), trace.members(int(one.group[i]))
            assert members is not None
        else:
            what = "send" if one.kind[i] == Kind.COMM_SEND else "recv"
            members = (rank, int(one.peer[i]))
        ranks = tuple(sorted(where.get(member, member) for member in members))
        found[what, ranks, int(one.nbytes[i])] += 1
    return found


def pair(name: str) -> tuple[Trace, Trace, dict[int, int]]:
    """Return STG's trace, ours, and which of STG's ranks is which of ours."""
    settings, where = CASES[name]
    return load(CORPUS / name, elements="bfloat16"), workload(JOB, **settings), where


def table() -> Iterator[str]:
    """Yield the table, line by line.

    Raises:
        SystemExit: A difference has no reason.
    """
    yield "| set | collective | ranks | bytes | STG | ours | why |"
    yield "|---|---|---|---|---|---|---|"
    for name in CASES:
        theirs, mine, where = pair(name)
        first, second = communication(theirs, 0, where), communication(mine, where.get(0, 0), {})
        for row in sorted({*first, *second}, key=lambda r: (r[0], len(r[1]), -r[2], r[1])):
            what, ranks, nbytes = row
            why = ""
            if first[row] != second[row]:
                why = REASONS[name].get((what, len(ranks), nbytes), "")
                if not why:
                    raise SystemExit(f"{name}: {row}: {first[row]} and {second[row]}, unexplained")
            yield (
                f"| {name} | {what} | {', '.join(map(str, ranks))} | {nbytes} "
                f"| {first[row] or '–'} | {second[row] or '–'} | {why} |"
            )


if __name__ == "__main__":
    for line in table():
        print(line)
