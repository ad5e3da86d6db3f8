"""Against symbolic_tensor_graph's traces of the same model and parallelism (corpus et-stg-*).

Their model: 4 layers, width 1024, a two-matrix feed-forward layer of 4096, vocabulary 4096, 2048
tokens a micro-batch, one micro-batch, gradients in the activations' type. Layers must agree in
collectives, groups, counts and bytes; what differs is listed in full, with the reason.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
from jobs import spec

from corpus_data import corpus
from genie.trace import Coll, Kind, Trace, load
from genie.workload.generate import workload

H, FFN, VOCAB, TOKENS, E = 1024, 4096, 4096, 2048, 2
SHAPE = {
    "layers": 4, "hidden": H, "heads": 16, "ffn": FFN, "gated": False, "vocab": VOCAB,
    "sequence": TOKENS,
}  # fmt: skip
PRECISION = {"gradients": "bfloat16"}
#: STG gives norms no parameters; ours are two of width H a layer.
NORMS = 2 * H * E

Row = tuple[str, tuple[int, ...], int]


def stg(name: str) -> Trace:
    return load(corpus(name), elements="bfloat16")


def ours(**parallelism: int | bool) -> Trace:
    job = {**spec(SHAPE), "precision": PRECISION, "batch": {"micro_batches": 1}}
    return workload(job, bucket_parameters=1, **parallelism)


def rows(
    trace: Trace, rank: int, of_layers: bool, where: dict[int, int] | None = None
) -> Counter[Row]:
    """Return (what, ranks, bytes) of a rank's communication, in layers or outside of them.

    `where` renames ranks. A send's ranks are the peer alone.
    """
    one, found = trace.ranks[rank], Counter[Row]()
    for i in np.flatnonzero(one.kind >= Kind.COMM_SEND).tolist():
        name = one.name(i)
        if ("layer" in name or "transformer" in name) != of_layers:
            continue
        if one.kind[i] == Kind.COMM_COLL:
            what, members = Coll(int(one.coll[i])).name.lower(), trace.members(int(one.group[i]))
            assert members is not None
        else:
            what = "send" if one.kind[i] == Kind.COMM_SEND else "recv"
            members = (int(one.peer[i]),)
        if where:
            members = tuple(sorted(where[m] for m in members))
        found[what, tuple(sorted(members)), int(one.nbytes[i])] += 1
    return found


def test_tensor_parallel() -> None:
    theirs, mine = stg("et-stg-dense-tp4-notpsp"), ours(tp=4, sp=False)
    everyone = (0, 1, 2, 3)
    bh = TOKENS * H * E
    for rank in range(4):
        # STG names the embedding's sum, the input of layer 0, and the gathered gradient of its
        # output layer "transformer".
        layers = rows(theirs, rank, True)
        assert layers.pop(("all_gather", everyone, bh // 4)) == 1
        layers["all_reduce", everyone, bh] -= 1
        assert rows(mine, rank, True) == layers
        # Megatron-LM's head is split over the vocabulary: the input's gradient is summed, the loss
        # needs three sums of a float32 a token. STG splits the head over the width: whole logits
        # are summed and the input's gradient gathered (above). The embedding's sum is in both.
        assert rows(theirs, rank, False) == {("all_reduce", everyone, TOKENS * VOCAB * E): 1}
        assert rows(mine, rank, False) == {
            ("all_reduce", everyone, bh): 2,
            ("all_reduce", everyone, 4 * TOKENS): 3,
            ("all_reduce", everyone, 4): 1,  # gradient norm
        }


def test_dp_tp_pp() -> None:
    theirs, mine = stg("et-stg-dense-dp2tp2pp2"), ours(dp=2, tp=2, pp=2)
    # STG: rank = dp + 2 tp + 4 pp. Megatron-LM: tp + 2 dp + 4 pp.
    where = {d + 2 * t + 4 * p: t + 2 * d + 4 * p for d in (0, 1) for t in (0, 1) for p in (0, 1)}
    bh = TOKENS * H * E
    weights = (4 * H * H + 2 * H * FFN) // 2 * E
    for rank in range(8):
        twin = where[rank]
        layers, found = rows(theirs, rank, True, where), rows(mine, twin, True)
        tensor = tuple(sorted((twin, twin ^ 1)))
        replicas = tuple(sorted((twin, twin ^ 2)))
        # Activations pass between stages with the same bytes; ours are not named after a layer.
        peer = (twin ^ 4,)
        transfers = {("send", peer, bh // 2): 1, ("recv", peer, bh // 2): 1}
        for row in transfers:
            assert layers.pop(row) == 1
        # Gradients: STG all_reduces a layer at once, ours (buckets of one piece) in two, with the
        # norms; compared below.
        assert layers.pop(("all_reduce", replicas, weights)) == 2
        assert found == layers
        rest = rows(mine, twin, False)
        for row, count in transfers.items():
            assert rest.pop(row) == count
        buckets = Counter({k: n for k, n in rest.items() if k[1] == replicas})
        total = sum(nbytes * n for (_, _, nbytes), n in buckets.items())
        ends = VOCAB * H // 2 * E + (H * E if twin >= 4 else 0)  # half the embedding; last norm
        assert total == 2 * (weights + NORMS) + ends
        # STG's embedding and head are whole on every rank: their gradients are summed over the
        # replicas and over the tensor-parallel group. Ours are split over it (Megatron-LM).
        assert rows(theirs, rank, False, where) == {
            ("all_reduce", replicas, VOCAB * H * E): 1,
            ("all_reduce", tensor, VOCAB * H * E): 1,
        }
        ends_of_model = {
            0: {("reduce_scatter", tensor, bh): 1, ("all_gather", tensor, bh // 2): 1},
            1: {
                # Head: gathered forward and again for its weights; its input's gradient scattered.
                ("reduce_scatter", tensor, bh): 1, ("all_gather", tensor, bh // 2): 2,
                ("all_reduce", tensor, 4 * TOKENS): 3,
            },
        }  # fmt: skip
        model = tuple(sorted({twin, twin ^ 1, twin ^ 4, twin ^ 5}))
        expected = Counter(ends_of_model[twin // 4])
        expected["all_reduce", tensor, 2 * NORMS] += 1  # norms of sequence-parallel regions
        expected["all_reduce", model, 4] += 1  # gradient norm
        assert rest - buckets == expected


def test_fsdp() -> None:
    theirs, mine = stg("et-stg-dense-fsdp4"), ours(dp=4, zero=3)
    everyone = (0, 1, 2, 3)
    weights = (4 * H * H + 2 * H * FFN) * E
    for rank in range(4):
        layers = rows(theirs, rank, True)
        assert layers == {
            ("all_gather", everyone, weights // 4): 8, ("reduce_scatter", everyone, weights): 4,
        }  # fmt: skip
        # The same with the norms' parameters.
        assert rows(mine, rank, True) == {
            ("all_gather", everyone, (weights + NORMS) // 4): 8,
            ("reduce_scatter", everyone, weights + NORMS): 4,
        }
        # STG keeps embedding and head whole and all_reduces their gradients; FSDP shards them as
        # its root unit, with the last norm.
        root = 2 * VOCAB * H * E + H * E
        assert rows(theirs, rank, False) == {("all_reduce", everyone, VOCAB * H * E): 2}
        assert rows(mine, rank, False) == {
            ("all_gather", everyone, root // 4): 1,
            ("reduce_scatter", everyone, root): 1,
            ("all_reduce", everyone, 4): 1,  # gradient norm
        }
