from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from genie.errors import InputError, RecordError, RecordVersionError
from genie.replay.bandwidth import algbw_gbps, bus_factor, size_bytes
from genie.replay.record_health import cpu_limits
from genie.replay.recording import Recording
from genie.replay.tables import KINDS, TABLES, empty
from runtime.sample import recording


@pytest.mark.parametrize(
    ("kind", "n", "factor"),
    [
        ("all_reduce", 8, 1.75),
        ("all_reduce", 1, 0.0),
        ("all_gather", 8, 0.875),
        ("reduce_scatter", 4, 0.75),
        ("all_to_all", 2, 0.5),
        ("gather", 4, 0.75),
        ("scatter", 4, 0.75),
        ("broadcast", 8, 1.0),
        ("reduce", 8, 1.0),
        ("send", 2, 1.0),
    ],
)
def test_bus_factor_is_nccl_tests(kind, n, factor):
    assert bus_factor(kind, n) == factor


def test_size_bytes_counts_the_whole_buffer():
    assert size_bytes("all_gather", 10, 4) == 40
    assert size_bytes("all_to_all", 10, 4) == 40
    assert size_bytes("all_reduce", 10, 4) == 10


def test_algbw_is_nan_without_time():
    assert algbw_gbps(1_000_000, 1_000) == 1000.0
    assert np.isnan(algbw_gbps(1, 0))
    assert np.isnan(algbw_gbps(np.array([1]), np.array([-1]))).all()


def test_rows_carry_bandwidth():
    rec = recording()
    row = rec.ops[(rec.ops["kind"] == KINDS.index("all_reduce")) & (rec.ops["rank"] == 3)][0]
    assert row["algbw"] == pytest.approx(1_000_000 / 101_000)
    assert row["busbw"] == pytest.approx(1.5 * 1_000_000 / 101_000)
    assert np.isnan(rec.ops["algbw"][rec.ops["kind"] == KINDS.index("comp")]).all()


def test_collectives_start_with_the_last_rank():
    rec = recording(ranks=4, iterations=2, warmup=1)
    rows = rec.collectives()
    reduce = rows[rows["kind"] == 0]
    assert len(reduce) == 3 and set(reduce["iteration"]) == {-1, 0, 1}
    assert (reduce["time_ns"] == 101_000).all() and (reduce["ranks"] == 4).all()
    assert reduce["busbw"] == pytest.approx(1.5 * 1_000_000 / 101_000)
    gather = rows[rows["kind"] == KINDS.index("all_gather")]
    assert (gather["time_ns"] == 200_000).all()
    sends = rows[rows["kind"] == KINDS.index("send")]
    assert len(sends) == 3 and (sends["time_ns"] == 10_000).all()


def test_collective_of_a_missing_rank_is_not_timed():
    rec = recording()
    keep = ~((rec.ops["rank"] == 2) & (rec.ops["kind"] == 0) & (rec.ops["iteration"] == 0))
    part = Recording({"ops": rec.ops[keep]}, rec.manifest, rec.labels)
    rows = part.collectives()
    mine = rows[(rows["kind"] == 0) & (rows["iteration"] == 0)]
    assert mine["time_ns"].tolist() == [-1] and np.isnan(mine["algbw"]).all()
    assert "1 of 2" in part.summary()


def test_steps():
    rec = recording(ranks=4, iterations=2, warmup=0)
    assert rec.steps()["time_ns"].tolist() == [1_203_500] * 2
    rec.ops["end_ns"][5] = -1
    assert rec.steps()["time_ns"].tolist() == [-1, 1_203_500]


def test_summary_lists_every_collective():
    text = recording().summary()
    line = next(x for x in text.splitlines() if x.startswith("all_reduce"))
    assert line.split()[:4] == ["all_reduce", "dp", "4", "976.6"]
    assert "9.901" in line and "14.851" in line
    assert "warm-up" in text and "1.204 ms" in text


def test_round_trip(tmp_path):
    rec = recording()
    rec.save(tmp_path / "run")
    back = Recording.load(tmp_path / "run")
    for name in TABLES:
        for column in TABLES[name]:
            np.testing.assert_array_equal(
                rec.tables[name][column.name], back.tables[name][column.name]
            )
    assert back.labels == rec.labels
    assert {k: back.manifest[k] for k in rec.manifest} == rec.manifest
    assert back.manifest["schema_version"] == 2
    assert back.collectives().tobytes() == rec.collectives().tobytes()


def test_parquet_stands_alone(tmp_path):
    """Any Parquet reader sees strings and units."""
    import pyarrow.parquet as pq

    recording().save(tmp_path / "run")
    table = pq.read_table(tmp_path / "run" / "ops.parquet")
    assert table.column("kind").to_pylist()[:2] == ["comp", "all_reduce"]
    assert table.column("communicator").to_pylist()[:2] == [None, "dp"]
    assert table.schema.field("algbw").metadata[b"unit"] == b"GB/s"


def test_empty_round_trip(tmp_path):
    rec = Recording({}, {"mode": "replay", "complete": False})
    rec.save(tmp_path / "run")
    back = Recording.load(tmp_path / "run")
    assert len(back.ops) == 0 and not back.complete
    assert "INCOMPLETE" in repr(back) and "INCOMPLETE" in back.summary()
    back.plot()


def test_to_pandas():
    frame = recording().to_pandas()
    assert list(frame.columns) == [c.name for c in TABLES["ops"]]
    assert frame.loc[1, "kind"] == "all_reduce" and frame["communicator"].isna().iloc[0]
    assert frame.groupby("kind", observed=True)["nbytes"].max()["all_gather"] == 4_000_000
    with pytest.raises(InputError, match="table is one of ops"):
        recording().to_pandas("nothing")  # type: ignore[arg-type]


def test_overwrite_needs_force(tmp_path):
    target = tmp_path / "run"
    recording().save(target)
    with pytest.raises(RecordError, match="--force"):
        recording(ranks=2).save(target)
    assert len(np.unique(Recording.load(target).ops["rank"])) == 4
    recording(ranks=2).save(target, force=True)
    assert len(np.unique(Recording.load(target).ops["rank"])) == 2
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_foreign_folder_is_never_replaced(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").write_text("years of work")
    for force in (False, True):
        with pytest.raises(RecordError, match="not touched"):
            recording().save(tmp_path / "run", force=force)
    assert (tmp_path / "run" / "thesis.tex").read_text() == "years of work"
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match="in the way"):
        recording().save(tmp_path / "file", force=True)


@pytest.mark.parametrize("table", list(TABLES))
def test_damage_is_reported(tmp_path, table):
    recording().save(tmp_path / "run")
    path = tmp_path / "run" / f"{table}.parquet"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x40
    path.write_bytes(data)
    with pytest.raises(RecordError, match="damaged"):
        Recording.load(tmp_path / "run")
    path.unlink()
    with pytest.raises(RecordError, match="missing"):
        Recording.load(tmp_path / "run")


def test_versions(tmp_path):
    recording().save(tmp_path / "run")
    path = tmp_path / "run" / "manifest.json"
    document = json.loads(path.read_text())
    path.write_text(json.dumps(document | {"schema_version": 99}))
    with pytest.raises(RecordVersionError, match=r"version 99.*knows 2") as caught:
        Recording.load(tmp_path / "run")
    assert (caught.value.found, caught.value.known) == (99, 2)
    for text in ("{", "[]", '{"format": "other"}', '{"format": "genie-recording"}', "\xff"):
        path.write_bytes(text.encode("latin-1"))
        with pytest.raises(RecordError):
            Recording.load(tmp_path / "run")
    with pytest.raises(RecordError, match="no recording here"):
        Recording.load(tmp_path / "nothing")


def test_full_disk_is_one_error(tmp_path):
    """A quota on file size stands for a full disk: the write fails half-way."""
    code = (
        "import resource, signal, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "from runtime.sample import recording\n"
        "from genie.errors import RecordError\n"
        "import pyarrow.parquet\n"
        "rec = recording(ranks=64, iterations=50)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "try:\n"
        "    rec.save(sys.argv[1])\n"
        "except RecordError as exc:\n"
        "    print(exc)\n"
    )
    root = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "run")],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": f"{root}:{root.parent}"},
    )  # fmt: skip
    assert "was not written" in done.stdout, done.stderr
    assert list(tmp_path.iterdir()) == []


def test_labels_in_another_order(tmp_path):
    rec = recording()
    ops = rec.ops.copy()
    ops["kind"] = len(KINDS) - 1 - ops["kind"]
    labels = rec.labels | {("ops", "kind"): tuple(reversed(KINDS))}
    other = Recording({"ops": ops}, rec.manifest, labels)
    np.testing.assert_array_equal(other.ops["kind"], rec.ops["kind"])
    with pytest.raises(RecordError, match="unknown kind"):
        Recording({"ops": ops}, rec.manifest, labels | {("ops", "kind"): ("frobnicate",)})


def test_wrong_tables_are_refused():
    with pytest.raises(RecordError, match="no such table"):
        Recording({"opps": empty("ops")}, {})
    with pytest.raises(RecordError, match="columns"):
        Recording({"ops": empty("messages")}, {})


def test_repr_and_html():
    rec = recording()
    assert repr(rec).startswith("<Recording: replay, 4 ranks, 42 ops (24 collective), 2 messages")
    assert "\n" not in repr(rec)
    rec.labels["ops", "communicator"] = ("<b>", "world")
    assert "<b>" not in rec._repr_html_() and "&lt;b&gt;" in rec._repr_html_()


def test_plots():
    rec = recording()
    ax = rec.plot()
    assert ax.get_xlabel() == "time [ms]" and len(ax.patches) == 4 * 3 + 2
    ax = rec.plot(what="busbw")
    assert ax.get_ylabel() == "bus bandwidth [GB/s]"
    line = next(x for x in ax.lines if x.get_label() == "all_reduce")
    assert line.get_ydata()[0] == pytest.approx(1.5 * 1_000_000 / 101_000)
    with pytest.raises(InputError):
        rec.plot(what="pie")  # type: ignore[arg-type]


def test_health_says_when_the_cpu_was_the_limit():
    rec = recording()
    assert cpu_limits(rec) == [] and "set the pace" not in rec.summary()
    rec.health["host_cpu_busy"] = [0.5, 0.99]
    rec.health["workers_on_host"] = 2
    assert cpu_limits(rec) == []  # as many cores as workers: they spin
    rec.health["workers_on_host"] = 4
    rec.health["timer_error_p99_ns"] = [2_500_000.0, 40.0]
    first, second = cpu_limits(rec)
    assert "worker 0: compute ended up to 2.5 ms late" in first
    assert "worker 1: its host's CPUs were 99 % busy with 4 workers on 2 cores" in second
    assert "health: compute ends late by p99 2.5 ms, host CPU 99 % busy" in rec.summary()
    assert "the CPU, not the network, may have set the pace" in rec.summary()


def test_every_reason_why_the_cpu_was_the_limit():
    """The criterion of `cpu_limits`, each part at both sides of its threshold."""
    for column, below, above, said in (
        ("cpu_wait_ns", 99_000_000, 101_000_000, "had no CPU for 10 % of the run"),
        ("host_cpu_steal", 0.049, 0.06, "a hypervisor kept 6 % of its host's CPUs"),
        ("timer_error_p99_ns", 999_999, 1_000_001, "compute ended up to 1 ms late"),
    ):
        rec = recording()
        rec.health["wall_ns"] = 1_000_000_000
        rec.health[column][0] = below
        assert cpu_limits(rec) == [], column
        rec.health[column][0] = above
        (found,) = cpu_limits(rec)
        assert said in found and found.startswith("worker 0: ")
    rec = recording()
    median = float(np.median(rec.collectives()["time_ns"]))
    assert median < 10_000_000  # so that 1 ms is the larger threshold
    rec.health["poll_gap_p99_ns"][1] = 1_000_001
    (found,) = cpu_limits(rec)
    assert "worker 1: looked at the network up to 1 ms late" in found
    # A collective of 100 ms does not mind gaps of 1 ms.
    rec.ops["end_ns"][rec.ops["kind"] < 10] += 100_000_000
    assert cpu_limits(rec) == []


def test_recordings_of_earlier_releases_load_without_later_columns(tmp_path):
    import json

    import pyarrow.parquet as pq

    from genie.replay.result_io import file_digest

    path = recording().save(tmp_path / "old")
    file = path / "health.parquet"
    table = pq.read_table(file).drop_columns(["cpu_wait_ns", "host_cpu_steal"])
    pq.write_table(table, file)
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["tables"]["health"]["sha256"] = file_digest(file)
    (path / "manifest.json").write_text(json.dumps(manifest))
    old = Recording.load(path)
    assert (old.health["cpu_wait_ns"] == -1).all() and np.isnan(old.health["host_cpu_steal"]).all()
    assert cpu_limits(old) == []
