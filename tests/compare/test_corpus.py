"""Every corpus folder of the kinds that hold ground truth: read, or refused for the right reason.

`EXPECTED` says what is right for the folders seen; folders of these kinds that it does not name
must still be read with at least one row or be refused by a CompareError that names the file.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from corpus_data import CORPUS, corpus
from genie.compare.truth.load import load_truth
from genie.errors import CompareError

PREFIXES = ("kn", "pt", "tb", "nd", "tn", "in", "pf", "rc", "wc", "dg")
# Id (or id/file) → format, rows by kind; or the words of the refusal.
EXPECTED: dict[str, tuple[str, dict[str, int]] | str] = {
    "dg-pairs-a": ("facts", {"all_reduce": 19}),
    "in-a": ("nccl-inspector", {"all_reduce": 1}),
    "kn-hta-ab-pair": "not the files of one job",
    "kn-hta-ab-pair/control.json.gz": ("kineto", {"all_reduce": 18, "all_to_all": 42}),
    "kn-hta-ab-pair/test.json.gz": (
        "kineto", {"all_reduce": 21, "all_to_all": 42, "unknown": 1},
    ),
    "kn-hta-amd": "no NCCL kernel among 14 GPU kernels",
    "kn-hta-largeint": ("kineto", {"all_reduce": 1}),
    "kn-hta-nccl-meta": ("kineto", {"all_reduce": 15, "broadcast": 6}),
    "kn-hta-sampled2": ("kineto", {"all_gather": 4, "all_reduce": 8, "all_to_all": 8}),
    "kn-mi300-ddp": "no NCCL kernel among 2360 GPU kernels",
    "nd-1x8-16ch": "describes NCCL's graph (8 ranks, 16 channels)",
    "nd-2x1-2ch": "describes NCCL's graph (2 ranks, 2 channels)",
    "nd-2x8-16ch-4nic": "describes NCCL's graph (16 ranks, 16 channels)",
    "nd-2x8-16ch-nvls8": "describes NCCL's graph (16 ranks, 16 channels)",
    "nd-3x1-2ch": "describes NCCL's graph (3 ranks, 2 channels)",
    "nd-3x8-16ch": "describes NCCL's graph (24 ranks, 16 channels)",
    "nd-4x4-2ch": "describes NCCL's graph (16 ranks, 2 channels)",
    "nd-h100-2x8-oddorder": "describes NCCL's graph (16 ranks, 16 channels)",
    "nd-p4d-8ch": "describes NCCL's graph (16 ranks, 8 channels)",
    "pf-a": ("perftest", {"send": 4}),
    "pt-dlrm8-et": ("pytorch-et", {"all_reduce": 24, "all_to_all": 40}),
    "pt-dlrm8-kineto": ("kineto", {"all_reduce": 24, "all_to_all": 40}),
    "pt-dlrm8-plus": ("pytorch-et-linked", {"all_reduce": 24, "all_to_all": 40}),
    "pt-pt2": "no collective, send or recv",
    "pt-resnet2gpu-103": ("pytorch-et", {"all_reduce": 15, "broadcast": 6}),
    "rc-a": "RoCE counters (30) are totals",
    "tb-aws-p4de-p5": ("nccl-tests", {"unknown": 68}),
    "tb-aws-topo": ("nccl-tests", {"unknown": 3}),
    "tb-b300-degraded": ("facts", {"unknown": 88}),
    "tb-dgxc-h100x8": ("nccl-tests", {"unknown": 32}),
    "tb-eunomia-bcast-proto": ("nccl-tests", {"unknown": 52}),
    "tb-gcp-a3high": ("nccl-tests", {"unknown": 10}),
    "tb-gcp-dws-q": ("nccl-tests", {"unknown": 24}),
    "tn-eunomia-a": ("nccl-tuning facts", {"all_reduce": 4, "broadcast": 31}),
    "tn-issues-a": ("facts", {"all_reduce": 2, "broadcast": 1, "unknown": 1}),
    "wc-a": "failed work completions (3 x status 12, 1 x status 5)",
}  # fmt: skip


def other_folders() -> list[str]:
    """Return the folders of these kinds that the table does not name."""
    if not CORPUS.is_dir():
        return []
    return sorted(
        folder.name
        for folder in CORPUS.iterdir()
        if folder.name[:2] in PREFIXES and folder.name[2] == "-" and folder.name not in EXPECTED
    )


@pytest.mark.parametrize("name", EXPECTED)
def test_corpus_folder(name: str) -> None:
    folder, _, file = name.partition("/")
    target: Path = corpus(folder) / file if file else corpus(folder)
    expected = EXPECTED[name]
    if isinstance(expected, str):
        with pytest.raises(CompareError) as raised:
            load_truth(target)
        assert expected in str(raised.value)
        assert folder in str(raised.value)
        return
    truth = load_truth(target)
    kinds, counts = np.unique(truth.column("kind").astype(str), return_counts=True)
    assert (truth.format, dict(zip(kinds.tolist(), counts.tolist(), strict=True))) == expected
    assert truth.counts["ops"] == len(truth.ops)


def test_folders_the_table_does_not_name() -> None:
    for name in other_folders():
        try:
            truth = load_truth(corpus(name))
        except CompareError as error:
            assert name in str(error)
        else:
            assert len(truth.ops) or (truth.messages is not None and len(truth.messages))


def test_uneven_splits_keep_the_bytes_that_were_sent() -> None:
    truth = load_truth(corpus("pt-dlrm8-et"))
    rank0 = truth.ops[truth.ops["rank"] == 0]
    assert rank0["nbytes"].tolist() == [
        6144 * 4, 24 * 8, 384 * 4, 3392 * 4, 394241 * 4, 6144 * 4, 112 * 4, 226960 * 4
    ]  # fmt: skip
    assert (rank0["group_size"][:1] == 8).all()


def test_linked_trace_has_the_times_of_its_kernels() -> None:
    linked = load_truth(corpus("pt-dlrm8-plus"))
    profile = load_truth(corpus("pt-dlrm8-kineto"))
    for rank in range(8):
        a = linked.ops[linked.ops["rank"] == rank]
        b = profile.ops[profile.ops["rank"] == rank]
        # The linker wrote the launches' times: earlier, by what the notes warn of.
        late = b["start_ns"] - a["start_ns"]
        assert late.min() > 0
        assert late.max() < 100_000
        assert a["time_ns"].tolist() == b["time_ns"].tolist()
        assert a["kind"].tolist() == b["kind"].tolist()
    assert (linked.ops["nbytes"] > 0).all()
    assert (profile.ops["nbytes"] == -1).all()
    assert "may be those of launches" in linked.notes[0]


def test_kineto_gives_times_and_execution_traces_give_sizes(tmp_path: Path) -> None:
    for folder in ("pt-dlrm8-kineto", "pt-dlrm8-et"):
        for path in corpus(folder).iterdir():
            (tmp_path / path.name).symlink_to(path)
    both = load_truth(tmp_path)
    profile, host = load_truth(corpus("pt-dlrm8-kineto")), load_truth(corpus("pt-dlrm8-et"))
    assert both.format == "kineto"
    assert (both.ops["start_ns"] == profile.ops["start_ns"]).all()
    for rank in range(8):
        mine = both.ops["nbytes"][both.ops["rank"] == rank]
        assert mine.tolist() == host.ops["nbytes"][host.ops["rank"] == rank].tolist()


def test_table_rows_keep_the_printed_numbers() -> None:
    text = load_truth(corpus("tb-dgxc-h100x8") / "rows.txt")
    typed = load_truth(corpus("tb-dgxc-h100x8") / "tables.json")
    assert (text.ops["group_size"] == 8).all()
    for name in ("nbytes", "count", "time_ns", "busbw", "time_in_ns", "busbw_in"):
        assert text.ops[name].tolist() == typed.ops[name].tolist()


def test_inspector_size_is_the_whole_buffer_of_an_all_reduce() -> None:
    row = load_truth(corpus("in-a")).ops[0]
    assert row["nbytes"] == 17179869184
    assert row["nbytes"] / row["time_ns"] == pytest.approx(row["algbw"], rel=1e-6)


def test_choices_carry_algorithm_protocol_and_channels() -> None:
    truth = load_truth(corpus("tn-eunomia-a"))
    first = truth.to_pandas().iloc[0]
    assert (first.algorithm, first.protocol, first.channels) == ("ring", "ll", 1)
