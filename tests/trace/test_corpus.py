"""Every Chakra trace of the corpus: what it loads as, or why it is refused."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from corpus_data import CORPUS, corpus
from genie.errors import DependencyCycleError, TraceError
from genie.trace import Coll, Kind, load

# id -> (version, ranks, nodes, groups, unit); read from the files by MANIFEST.md's account.
LOADS = {
    "et-hgx-ar1m": ("v0.0.4", 8, 8, 0),
    "et-micro-all_reduce-4": ("v0.0.4", 4, 4, 0),
    "et-micro-all_reduce-16": ("v0.0.4", 16, 16, 0),
    "et-micro-all_gather-8": ("v0.0.4", 8, 8, 0),
    "et-micro-all_to_all-4": ("v0.0.4", 4, 4, 0),
    "et-micro-all_to_all-16": ("v0.0.4", 16, 16, 0),
    "et-micro-reduce_scatter-8": ("v0.0.4", 8, 8, 0),
    "et-custom-ring8": ("v0.0.4", 8, 280, 0),
    "et-resnet50-dp64": ("v0.0.4", 64, 13760, 0),
    "et-ar-many30": ("v0.0.4", 2, 200, 0),
    "et-genie-ag4": ("v0.0.4", 4, 4, 0),
    "et-gent-comp4": ("v0.0.4", 4, 4, 0),
    **{
        f"et-gent-{kind}-2p{power}": ("v0.0.4", 16, 16, 0)
        for kind in ("all_reduce", "all_gather")
        for power in range(18, 32, 2)
    },
    "et-onecomm-ar64": ("v0.0.4", 64, 64, 0),
    "et-v003-coll-allreduce": ("v0.0.3", 4, 4, 0),
    "et-v003-coll-alltoall": ("v0.0.3", 4, 4, 0),
    "et-v003-one-comp-node": ("v0.0.3", 4, 4, 0),
    "et-v003-one-mem-store-node": ("v0.0.3", 4, 4, 0),
    "et-v003-two-comp-nodes-independent": ("v0.0.3", 4, 8, 0),
    "et-v003-one-metadata-node-strings": ("v0.0.3", 4, 4, 0),
    "et-t1d8": ("v0.0.4", 8, 8, 1),
    "et-t3d8": ("v0.0.4", 8, 40, 12),
}
# These count elements: they load, and check says so until the type is given.
ELEMENTS = {
    "et-multitenant-denseA": ("v0.0.4", 4, 232, 8),
    "et-stg-dense-dp2tp2pp2": ("v0.0.4", 8, 752, 16),
    "et-stg-dense-fsdp4": ("v0.0.4", 4, 600, 9),
    "et-stg-dense-tp4-notpsp": ("v0.0.4", 4, 620, 9),
}
# These load, and check refuses them: error type, words of its text, and of the other reasons.
REFUSED = {
    "et-resnet50-1rank-cycles": (
        DependencyCycleError,
        ("shortest cycle has 1 node", "node 3322 (aten::threshold_backward(1))"),
        ("without comm_type and comm_size", "depends on node 3, which the file does not have"),
    ),
    "et-v003-one-comm-send-node": (
        TraceError,
        ("sends without comm_size",),
        ("which never receives it",),
    ),
    "js-chakra-small": (
        TraceError,
        ("node 216", "depends on node 3, which the file does not have"),
        ("collectives without comm_type and comm_size",),
    ),
}
# Nothing of these can be read as a trace.
UNREADABLE = {
    "et-tiny-twonode": ("ambiguous wire version", "v0.0.1 or v0.0.4"),
    "js-chakra-102": ("PyTorch host trace (schema '1.0.2-chakra.0.0.4')", "durations"),
    "bad-text-et": ("not a Chakra trace but text",),
}


def _listed() -> dict[str, dict]:
    manifest = CORPUS / "manifest.json"
    if not manifest.is_file():
        pytest.skip(f"{manifest} is not here (set GENIE_CORPUS)")
    return {entry["id"]: entry for entry in json.loads(manifest.read_text())}


def test_the_table_has_every_chakra_trace() -> None:
    chakra = {name for name in _listed() if name.startswith(("et-", "js-", "bad-text"))}
    table = {*LOADS, *ELEMENTS, *REFUSED, *UNREADABLE}
    assert table == chakra
    assert len(table) == 45


@pytest.mark.parametrize("name", LOADS)
def test_loads(name: str) -> None:
    trace = load(corpus(name))
    assert (trace.version, trace.world_size, trace.n, len(trace.groups)) == LOADS[name]
    assert trace.problems() == []
    trace.check()
    _against_manifest(name, trace)


@pytest.mark.parametrize("name", ELEMENTS)
def test_loads_in_elements(name: str) -> None:
    trace = load(corpus(name))
    assert (trace.version, trace.world_size, trace.n, len(trace.groups)) == ELEMENTS[name]
    assert trace.sizes_in_elements
    assert any("elements" in warning for warning in trace.warnings)
    with pytest.raises(TraceError, match="sizes are in elements"):
        trace.check()
    assert len(trace.problems()) == 1
    _against_manifest(name, trace)
    in_bytes = load(corpus(name), elements="bfloat16")
    in_bytes.check()
    for rank, scaled in zip(trace.ranks, in_bytes.ranks, strict=True):
        known = rank.nbytes >= 0
        assert (scaled.nbytes[known] == 2 * rank.nbytes[known]).all()
        assert (scaled.nbytes[~known] == -1).all()
        sized = rank.tensor_size >= 0
        assert (scaled.tensor_size[sized] == 2 * rank.tensor_size[sized]).all()


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    error, words, others = REFUSED[name]
    trace = load(corpus(name))
    with pytest.raises(error) as caught:
        trace.check()
    for word in words:
        assert word in str(caught.value)
    told = "\n".join(problem.message for problem in trace.problems())
    for word in others:
        assert word in told
    document = trace.inspect()
    assert document["problems"] and document["nodes"] == trace.n
    json.dumps(document)


@pytest.mark.parametrize("name", UNREADABLE)
def test_unreadable(name: str) -> None:
    with pytest.raises(TraceError) as caught:
        load(corpus(name))
    for word in UNREADABLE[name]:
        assert word in str(caught.value)


def _against_manifest(name: str, trace) -> None:
    # The counts that were measured with other people's readers when the corpus was gathered.
    stats = _listed()[name]["stats"]
    kinds: Counter[str] = Counter()
    for text, files in stats["types"]:
        for kind, count in json.loads(text).items():
            kinds[kind.removesuffix("_NODE")] += count * files
    assert trace.kinds() == dict(kinds)
    found: Counter[tuple[str, int, str]] = Counter()
    for rank in trace.ranks:
        for i in range(rank.n):
            if rank.kind[i] == Kind.COMM_COLL:
                group = trace.group_names[rank.group[i]] if rank.group[i] >= 0 else "None"
                found[Coll(rank.coll[i]).name, int(rank.nbytes[i]), group] += 1
    for (kind, size, group), count in stats["coll"]:
        assert found[kind, int(size), group] == count
    assert len(found) == stats["ncoll_kinds"]
    # MANIFEST counts each listed dependency; the CSR has each parent once.
    repeated = sum(rank.ignored.get("repeated dependencies", 0) for rank in trace.ranks)
    assert sum(len(rank.deps) for rank in trace.ranks) + repeated == stats["ctrl"] + stats["data"]


def test_cycle_corpus_counts() -> None:
    trace = load(corpus("et-resnet50-1rank-cycles"))
    rank = trace.ranks[0]
    odd = _listed()["et-resnet50-1rank-cycles"]["stats"]["odd"]
    assert rank.ignored["repeated dependencies"] == odd["repeated_dep"]
    own = rank.deps == [i for i in range(rank.n) for _ in rank.parents(i)]
    assert int(own.sum()) == odd["self_dep"]
    assert rank.n - len(rank.order) == odd["nodes_in_or_after_cycle"]
    assert int(((rank.kind == Kind.COMM_COLL) & (rank.coll < 0)).sum()) == odd["coll_no_comm_type"]


def test_every_rank_file_alone_or_by_prefix(tmp_path: Path) -> None:
    folder = corpus("et-t3d8")
    whole = load(folder)
    by_prefix = load(folder / "trace")
    assert by_prefix.groups == whole.groups
    assert by_prefix.digest == whole.digest
    alone = load(folder / "trace.0.et")
    assert alone.world_size == 1
    assert any("only trace.0.et was read" in warning for warning in alone.warnings)
