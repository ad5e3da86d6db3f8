"""Every public result: a one-line repr, HTML, a DataFrame, a picture, saved and read again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import genie
from cluster.log_text import log
from corpus_data import corpus
from genie.errors import InputError, RecordError, RecordVersionError
from genie.replay.bench import BenchResult, BenchRow
from genie.replay.nccl.schedule import p2p_group
from genie.replay.nccl.tuner import Tuning

H100 = genie.Cluster.preset("h100x8", hosts=2)
NCCL = genie.Nccl(
    "2.27",
    env={"NCCL_MAX_NCHANNELS": "8"},
    choices=[{"kind": "all_reduce", "min_bytes": 0, "max_bytes": -1, "algorithm": "ring",
              "protocol": "simple", "channels": 4}],
)  # fmt: skip


def clusters() -> list[genie.Cluster]:
    dump = H100.to_nccl_graph()
    text = log(json.loads((corpus("nd-4x4-2ch") / "graph.json").read_text()))
    return [
        genie.Cluster.local(2, 4),
        H100,
        genie.Cluster.preset("h100x8", hosts=2, gpu_order=[1, 0, 2, 3, 4, 5, 6, 7]),
        genie.Cluster.preset("h100x8", hosts=4).sub(range(0, 32, 2)),
        H100.with_nccl(NCCL).communicator([(0, 1), (1, 3)]),
        genie.Cluster.from_nccl_graph(dump, hosts=2, like="h100x8"),
        genie.Cluster.from_nccl_graph([dump, dump], like="h100x8").sub([1, 2, 9]),
        genie.Cluster.from_nccl_log(text),
        genie.Cluster.from_nccl_log(text).with_nccl(NCCL),
    ]


def schedules() -> list[genie.Schedule]:
    return [
        genie.schedule("all_reduce", count=1 << 20, cluster=H100, nccl=NCCL),
        genie.schedule("broadcast", count=999, dtype="int8", cluster=H100, root=3),
        genie.schedule("all_reduce", count=0, cluster=H100),
        genie.schedule("all_to_all", count=100, cluster=H100),
        genie.schedule("all_to_all", splits=[[0, 3], [5, 1]], cluster=genie.Cluster.local(2)),
        genie.schedule("gather", count=9, cluster=H100, root=3),
        p2p_group([(9, 100)], [(3, 5)], H100, rank=1),
        *genie.schedule_group([("all_reduce", 262144, "float32"), ("all_gather", 100, "int8")],
                              cluster=H100),
    ]  # fmt: skip


def plans() -> list[genie.Plan]:
    stg = genie.load(corpus("et-stg-dense-dp2tp2pp2"), elements="float32")
    return [
        genie.plan(genie.load(corpus("et-t3d8")), genie.Cluster.local(2, 4)),
        genie.plan(
            stg,
            genie.Cluster.preset("h100x8use4", hosts=2),
            nccl=NCCL,
            gpu=genie.GpuModel.off(),
            compute=genie.ComputeModel(1.0, 2.0, 0.5),
        ),
    ]


def every() -> list[Any]:
    recording = genie.simulate(plans()[0])
    bench = BenchResult(
        "all_reduce", "float32", 0, 2, 1, 0, [BenchRow(8, 2, 1.5, 0.1, 0.2)], recording
    )
    trace = genie.load(corpus("et-t3d8"))
    tuning = genie.tune("all_reduce", count=1000, cluster=H100)
    return [*clusters()[:1], *schedules()[:1], *plans()[:1], tuning, recording, bench, trace]


@pytest.mark.parametrize("i", range(7))
def test_what_every_result_has(i: int, tmp_path: Path) -> None:
    from matplotlib.figure import Figure

    result = every()[i]
    assert "\n" not in repr(result)
    assert "<" in result._repr_html_()
    assert len(result.to_pandas())
    ax = Figure().add_subplot()
    assert result.plot(ax=ax) is ax
    assert ax.get_xlabel()
    ax.figure.savefig(tmp_path / "x.png")
    assert result.plot() is not None
    saved = result.save(tmp_path / "kept")
    again = type(result).load(saved)
    if not isinstance(result, genie.Trace):
        assert repr(again) == repr(result)
    assert again.to_pandas().to_dict("list") == result.to_pandas().to_dict("list") or isinstance(
        result, genie.Recording | genie.Trace | Tuning
    )
    with pytest.raises((RecordError, InputError), match="there already"):
        result.save(tmp_path / "kept")
    result.save(tmp_path / "kept", force=True)
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "a.tex").write_text("x")
    with pytest.raises((RecordError, InputError)):
        result.save(tmp_path / "thesis", force=True)
    assert (tmp_path / "thesis" / "a.tex").exists()


@pytest.mark.parametrize("i", range(9))
def test_clusters_come_back(i: int, tmp_path: Path) -> None:
    one = clusters()[i]
    again = genie.Cluster.load(one.save(tmp_path / "c"))
    assert again.describe() == one.describe()
    for table in ("ranks", "channels"):
        assert again.to_pandas(table).equals(one.to_pandas(table))
    # What was read goes on as the original does.
    assert repr(again.sub([0, 1])) == repr(one.sub([0, 1]))


@pytest.mark.parametrize("i", range(9))
def test_schedules_come_back(i: int, tmp_path: Path) -> None:
    one = schedules()[i]
    again = genie.Schedule.load(one.save(tmp_path / "s"))
    rank = 1
    assert np.array_equal(again.messages(rank), one.messages(rank))
    assert np.array_equal(again.calls(rank), one.calls(rank))
    assert np.array_equal(again.program(rank).ops, one.program(rank).ops)
    assert np.array_equal(again.work_requests(rank), one.work_requests(rank))
    assert again.choice == one.choice
    frame = one.to_pandas()
    assert len(frame) == sum(
        len(one.messages(r)) for r in ([rank] if i == 6 else range(one.cluster.n_ranks))
    )


@pytest.mark.parametrize("i", range(2))
def test_plans_come_back_and_do_the_same(i: int, tmp_path: Path) -> None:
    one = plans()[i]
    again = genie.Plan.load(one.save(tmp_path / "p"))
    assert again.digest == one.digest
    assert again.trace.digest == one.trace.digest
    assert again.describe() == one.describe()
    for table in ("calls", "traffic", "connections", "parts"):
        assert again.to_pandas(table).equals(one.to_pandas(table))
    assert genie.simulate(again).ops.tobytes() == genie.simulate(one).ops.tobytes()


def test_a_plan_that_was_changed_is_refused(tmp_path: Path) -> None:
    plans()[0].save(tmp_path / "p")
    manifest = tmp_path / "p" / "manifest.json"
    text = manifest.read_text()
    for old, new, error in (
        ('"gpus": 4', '"gpus": 8', InputError),
        ('"hosts": 2', '"hosts": 1', InputError),
        ('"schema_version": 1', '"schema_version": 9', RecordVersionError),
        ("genie-plan", "genie-schedule", RecordError),
        ('"call": "local"', '"call": "exec"', RecordError),
        ('"steps"', '"stops"', RecordError),
    ):
        assert old in text
        manifest.write_text(text.replace(old, new))
        with pytest.raises(error):
            genie.Plan.load(tmp_path / "p")
    manifest.write_text(text)
    with (tmp_path / "p" / "traffic.parquet").open("ab") as file:
        file.write(b"x")
    with pytest.raises(RecordError, match="damaged"):
        genie.Plan.load(tmp_path / "p")


def test_a_cluster_that_cannot_be_saved_says_so(tmp_path: Path) -> None:
    bare = genie.Cluster(H100.name, H100.source, H100.layout)
    with pytest.raises(InputError, match="was not made by"):
        bare.save(tmp_path / "c")
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    "make",
    [lambda: H100, lambda: genie.schedule("all_reduce", count=9, cluster=H100),
     lambda: plans()[0], lambda: genie.simulate(plans()[0])],
)  # fmt: skip
@pytest.mark.parametrize("where", ["/etc/passwd/x", "/proc/x/y"])
def test_a_folder_that_cannot_be_made(make: Callable[[], Any], where: str) -> None:
    with pytest.raises(RecordError, match="cannot write there"):
        make().save(where)


def test_the_picture_of_a_plan_is_its_traffic() -> None:
    plan = plans()[0]
    ax = plan.plot()
    drawn = np.asarray(ax.images[0].get_array())
    expected = np.zeros((2, 2))
    for row in plan.traffic():
        expected[row["src_host"], row["dst_host"]] += row["nbytes"]
    assert np.array_equal(drawn, expected)
    assert drawn.sum() == plan.nbytes


def test_the_picture_of_a_schedule_is_its_messages() -> None:
    one = genie.schedule("all_reduce", count=1 << 20, cluster=H100)
    ax = one.plot(rank=0)
    table = one.messages(0, intra=True)
    assert sum(bar.get_height() for bar in ax.patches) == table["nbytes"].sum()


def test_all_ranks_of_many_are_asked_for_by_rank(tmp_path: Path) -> None:
    large = genie.Cluster.preset("h100x8", hosts=256)
    one = genie.schedule("all_reduce", count=1 << 20, cluster=large)
    with pytest.raises(InputError, match="2048 ranks: say which"):
        one.to_pandas()
    assert len(one.to_pandas(rank=7)) == len(one.messages(7))
    again = genie.Schedule.load(one.save(tmp_path / "s", rank=7))
    assert np.array_equal(again.messages(9), one.messages(9))
