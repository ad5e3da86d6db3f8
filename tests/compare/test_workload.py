"""Kineto sets as workloads: what becomes a node and an edge, what is inferred, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import genie
from compare.build import all_reduce, kernel, kineto
from corpus_data import CORPUS, corpus
from genie.errors import TraceError
from genie.trace.kinds import Kind


def host(name: str, ts: float, correlation: int | None = None) -> dict[str, Any]:
    args = {} if correlation is None else {"correlation": correlation}
    return {"ph": "X", "cat": "cuda_runtime", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": 1,
            "args": args}  # fmt: skip


def two_ranks(folder: Path, events: list[dict[str, Any]]) -> Path:
    for rank in range(2):
        kineto(folder / f"rank{rank}.json", events, rank, world=2)
    return folder


def test_edges_from_streams_and_waits(tmp_path: Path) -> None:
    events = [
        host("cudaLaunchKernel", 0, 1), kernel("gemm", 10, 10, stream=7, correlation=1),
        host("cudaLaunchKernel", 1, 2), all_reduce(20, 10, n=2, stream=20, correlation=2),
        # Launched before the host waited: runs beside the all_reduce, not after it.
        host("cudaLaunchKernel", 2, 3), kernel("gemm", 31, 4, stream=7, correlation=3),
        host("cudaStreamWaitEvent", 3),
        host("cudaLaunchKernel", 4, 4), kernel("adam", 40, 5, stream=7, correlation=4),
    ]  # fmt: skip
    trace = genie.load(two_ranks(tmp_path, events))
    trace.check()
    rank = trace.ranks[0]
    names = [rank.name(i).split("(")[0] for i in range(rank.n)]
    assert names == [
        "gemm", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "host gap", "gemm", "host gap", "adam"
    ]  # fmt: skip
    parents = [
        {int(p) for p in rank.deps[rank.dep_indptr[i] : rank.dep_indptr[i + 1]]}
        for i in range(rank.n)
    ]
    assert parents == [set(), {0}, {0}, {2}, {1, 3}, {4}]
    assert rank.duration_ns.tolist() == [10000, 10000, 11000, 4000, 5000, 5000]
    assert rank.nbytes[1] == 4096
    assert rank.stream.tolist() == [7, 20, 7, 7, 7, 7]
    assert any("edge between streams" in text for text in trace.warnings)
    recording = genie.simulate(trace, genie.Cluster.local(2, 1))
    assert len(recording.ops) == 12


def test_send_recv_peers_and_uneven_splits(tmp_path: Path) -> None:
    common = {"dtype": "Float", "Group size": 2, "Process Group Name": "0"}
    for rank in range(2):
        p2p = {"Collective name": "send", "Dst Rank": 1} if rank == 0 else {
            "Collective name": "recv", "Src Rank": 0
        }  # fmt: skip
        sent, got = ([1, 2], [1, 4]) if rank == 0 else ([4, 8], [2, 8])
        events = [
            kernel("ncclDevKernel_SendRecv(x)", 10, 5, **common, **p2p, **{"In msg nelems": 10}),
            kernel(
                "ncclDevKernel_SendRecv(x)", 20, 5, **common,
                **{"Collective name": "all_to_allv", "In msg nelems": sum(sent),
                   "In split size": str(sent), "Out split size": str(got)},
            ),
        ]  # fmt: skip
        kineto(tmp_path / f"rank{rank}.json", events, rank, world=2)
    trace = genie.load(tmp_path)
    trace.check()
    kinds = [Kind(int(k)) for k in trace.ranks[0].kind if k != Kind.COMP]
    assert kinds == [Kind.COMM_SEND, Kind.COMM_COLL]
    assert trace.ranks[0].peer[0] == 1
    assert trace.ranks[1].peer[0] == 0
    sent_bytes, received = trace.ranks[1].split_lists[0]
    assert (sent_bytes.tolist(), received.tolist()) == ([16, 32], [8, 32])


def test_kernel_without_metadata_is_refused_by_name(tmp_path: Path) -> None:
    two_ranks(tmp_path, [kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", 1, 2)])
    with pytest.raises(TraceError, match=r"without comm_size: .*ncclDevKernel_AllReduce"):
        genie.load(tmp_path).check()


def test_dlrm_profile_is_replayable() -> None:
    trace = genie.load(corpus("pt-dlrm8-kineto"))
    trace.check()
    assert sum(int((rank.kind == Kind.COMM_COLL).sum()) for rank in trace.ranks) == 64
    recording = genie.simulate(trace, genie.Cluster.local(2, 4))
    found = genie.compare(recording, genie.load_truth(corpus("pt-dlrm8-et")))
    assert len(found.pairs) == 8


def test_every_folder_of_these_kinds_runs_to_its_end_or_is_refused() -> None:
    """Folders that the tests do not name, too; never is it an error of another kind."""
    corpus("pt-dlrm8-kineto")
    replayable = []
    for folder in sorted(CORPUS.iterdir()):
        if folder.name[:3] not in ("pt-", "kn-"):
            continue
        try:
            trace = genie.load(folder)
            trace.check()
        except TraceError as error:
            assert folder.name in str(error)
            continue
        # Two hosts where the ranks divide, so that messages cross.
        hosts = 2 if trace.world_size % 2 == 0 else 1
        cluster = genie.Cluster.local(hosts, trace.world_size // hosts)
        recording = genie.simulate(trace, cluster)
        assert recording.complete
        assert len(recording.ops) == sum(rank.n for rank in trace.ranks)
        assert (recording.ops["end_ns"] >= recording.ops["start_ns"]).all()
        assert (recording.messages["status"] == 0).all()
        replayable.append(folder.name)
    assert "pt-dlrm8-kineto" in replayable


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("kn-hta-ab-pair", "not the files of one job"),
        ("kn-hta-amd", "a Kineto profile without an NCCL kernel"),
        ("kn-hta-largeint", "missing: rank 0"),
        ("kn-hta-nccl-meta", "missing: rank 1"),
        ("kn-hta-sampled2", "missing: rank 2"),
        ("kn-mi300-ddp", "a Kineto profile without an NCCL kernel"),
        ("pt-dlrm8-et", "8 of them are PyTorch host traces, which have neither durations"),
        ("pt-dlrm8-plus", "8 of them are PyTorch host traces, which have neither durations"),
        ("pt-pt2", "a PyTorch host trace .* it has neither durations"),
        ("pt-resnet2gpu-103", "a PyTorch host trace .* it has neither durations"),
    ],
)
def test_profiles_that_cannot_be_replayed(name: str, why: str) -> None:
    with pytest.raises(TraceError, match=why):
        genie.load(corpus(name)).check()
