"""A `Trace` as a result: saved and read again, a DataFrame, a picture."""

from __future__ import annotations

from pathlib import Path

import pytest

from corpus_data import corpus
from genie.errors import InputError, TraceError
from genie.trace import Builder, Trace, load, write

GOOD = (
    "et-resnet50-dp64",
    "et-t3d8",
    "js-chakra-small",
    "et-custom-ring8",
    "et-v003-coll-allreduce",
)


def same(one: Trace, other: Trace) -> None:
    assert other.groups == one.groups
    for a, b in zip(one.ranks, other.ranks, strict=True):
        for (name, column), (_, twin) in zip(a.columns(), b.columns(), strict=True):
            if name == "group":
                told = [[t.group_names[k] if k >= 0 else None for k in c]
                        for t, c in ((one, column), (other, twin))]  # fmt: skip
                assert told[0] == told[1]
            elif name == "duration_ns":
                # proto3 does not write a duration of 0.
                assert [v or -1 for v in column.tolist()] == twin.tolist()
            elif name != "splits":
                assert column.tolist() == twin.tolist(), name
        assert a.names() == b.names()
        for i in range(a.n):
            assert sorted(a.id[a.parents(i)].tolist()) == sorted(b.id[b.parents(i)].tolist())
        assert [(s.tolist(), r.tolist()) for s, r in a.split_lists] == [
            (s.tolist(), r.tolist()) for s, r in b.split_lists
        ]


@pytest.mark.parametrize("name", GOOD)
def test_saved_and_read_again(tmp_path: Path, name: str) -> None:
    trace = load(corpus(name))
    if trace.problems():
        with pytest.raises(TraceError):
            trace.save(tmp_path / "set")
        pytest.skip("this set cannot be replayed")
    trace.save(tmp_path / "set")
    again = Trace.load(tmp_path / "set")
    same(trace, again)
    assert not again.problems()
    with pytest.raises(InputError, match="already"):
        trace.save(tmp_path / "set")
    trace.save(tmp_path / "set", force=True)


def test_elements_become_bytes(tmp_path: Path) -> None:
    source = corpus("et-stg-dense-dp2tp2pp2")
    trace = load(source, elements="float32")
    trace.save(tmp_path / "set")
    same(trace, load(tmp_path / "set"))
    counted = load(source)
    counted.save(tmp_path / "counted")
    assert load(tmp_path / "counted").sizes_in_elements


def test_splits_and_further_attributes_are_kept(tmp_path: Path) -> None:
    ranks = []
    for sent, received in (([0, 12], [0, 8]), ([8, 4], [12, 4])):
        ranks.append(Builder())
        ranks[-1].node("COMM_COLL", "a", coll="all_to_all", nbytes=12, splits=(sent, received),
                       attrs={"seq_id": -1, "op_schema": "x", "shape": [1, 2]})  # fmt: skip
    trace = load(write(tmp_path / "a", "t", ranks))
    trace.save(tmp_path / "b")
    again = load(tmp_path / "b")
    same(trace, again)
    assert again.ranks[1].attrs(0) == trace.ranks[1].attrs(0)


def test_what_is_no_trace_set_is_never_replaced(tmp_path: Path) -> None:
    trace = load(corpus("et-t3d8"))
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(InputError, match=r"thesis\.tex"):
        trace.save(tmp_path, force=True)
    with pytest.raises(InputError, match="a file is in the way"):
        trace.save(tmp_path / "thesis.tex", force=True)


def test_to_pandas() -> None:
    trace = load(corpus("et-t3d8"))
    frame = trace.to_pandas()
    assert len(frame) == trace.n
    assert frame["rank"].nunique() == trace.world_size
    own = trace.to_pandas(rank=1)
    assert own["id"].tolist() == trace.ranks[1].id.tolist()
    assert own["name"].tolist() == trace.ranks[1].names()
    assert set(own["kind"].astype(str)) == set(trace.kinds())
    for wrong in (-1, trace.world_size, True, "0"):
        with pytest.raises(InputError, match="rank"):
            trace.to_pandas(rank=wrong)  # type: ignore[arg-type]


def test_plot_draws_the_bytes_of_each_kind() -> None:
    from matplotlib.figure import Figure

    trace = load(corpus("et-t3d8"))
    ax = Figure().add_subplot()
    assert trace.plot(ax=ax) is ax
    drawn = {
        label.get_text(): round(bar.get_width())
        for label, bar in zip(ax.get_yticklabels(), ax.patches, strict=True)
    }
    expected: dict[str, int] = {}
    for row in trace.inspect()["total"]["collectives"]:
        expected[row["kind"]] = expected.get(row["kind"], 0) + row["sum"]
    assert {k: v for k, v in drawn.items() if k != "send"} == expected
    assert trace.plot() is not None
