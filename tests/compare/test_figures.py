"""Figures by what they draw, their files, and two pictures against themselves with tolerance."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import genie
from compare.build import truth
from compare.runs import simulated
from compare.test_align import run
from genie.cli import main
from genie.compare.figures import comparison as draw
from genie.compare.figures.catalogue import comparison_figures, run_figure, run_names
from genie.compare.figures.style import COLOURS, new_figure, save, style
from genie.compare.figures.traffic import draw_matrix
from genie.compare.metrics.path import PARTS, critical_path, path_parts
from genie.compare.truth.recording import from_recording
from genie.errors import InputError


def test_busbw_draws_a_line_a_side() -> None:
    ax = new_figure().subplots()
    draw.draw_busbw({"replay": truth(run([1024, 4096])), "truth": truth(run([1024]))}, ax)
    assert [line.get_label() for line in ax.lines] == ["replay", "truth"]
    assert ax.lines[0].get_xdata().tolist() == [1024, 4096]
    # 1 B a ns, factor 2 (n - 1) / n = 1.
    assert ax.lines[0].get_ydata().tolist() == [1, 1]
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    assert "GB/s" in ax.get_ylabel()


def test_cdf_goes_from_0_to_1() -> None:
    ax = new_figure().subplots()
    draw.draw_cdf({"replay": truth(run([1000, 2000, 3000, 4000]))}, ax)
    assert ax.lines[0].get_ydata().tolist() == [0, 0.25, 0.5, 0.75, 1]
    assert ax.lines[0].get_xdata().tolist() == [1, 1, 2, 3, 4]


def test_runs_mark_the_anomaly() -> None:
    rows = run([1000] * 9)
    for rank in range(2):
        rows[9 * rank + 5]["end_ns"] += 4000
    ax = new_figure().subplots()
    draw.draw_runs({"replay": truth(rows), "simulate": truth(run([1000]))}, ax)
    marked = next(line for line in ax.lines if "anomaly" in str(line.get_label()))
    assert marked.get_xdata().tolist() == [6]
    assert not draw.anomalies(np.array([10.0, 10.1, 9.9, 10.05])).any()


def test_matrix_by_rank_host_and_rail() -> None:
    side = from_recording(simulated())
    totals = {}
    for by, n in (("rank", 8), ("host", 2), ("rail", 4)):
        ax = new_figure().subplots()
        draw_matrix(side, ax, by)
        shown = np.nan_to_num(np.asarray(ax.images[0].get_array()))
        assert shown.shape == (n, n)
        totals[by] = shown.sum()
    assert totals["rank"] == pytest.approx(totals["host"])
    assert totals["rank"] == pytest.approx(totals["rail"])
    with pytest.raises(InputError, match="which ranks share a host"):
        message = {"rank": 0, "peer": 1, "nbytes": 8, "start_ns": 0, "end_ns": 1}
        draw_matrix(truth(run([8]), messages=[message]), new_figure().subplots(), "host")


def test_critical_path_by_hand() -> None:
    # Rank 1 computes until 60 and holds up the all_reduce [60, 100); then rank 0 idles 10 and
    # computes to 150.
    rows = [
        {"rank": 0, "seq": 0, "start_ns": 20, "end_ns": 100},
        {"rank": 1, "seq": 0, "start_ns": 60, "end_ns": 98},
    ]
    compute = [
        {"rank": 0, "kind": "comp", "start_ns": 0, "end_ns": 20},
        {"rank": 1, "kind": "comp", "start_ns": 0, "end_ns": 60},
        {"rank": 0, "kind": "comp", "start_ns": 110, "end_ns": 150},
    ]
    pieces = critical_path(truth(rows, compute))
    assert [
        (int(p["rank"]), PARTS[p["part"]], int(p["start_ns"]), int(p["end_ns"])) for p in pieces
    ] == [
        (1, "compute", 0, 60), (1, "communication", 60, 100), (0, "idle", 100, 110),
        (0, "compute", 110, 150),
    ]  # fmt: skip


def test_critical_path_adds_up_to_the_step() -> None:
    side = from_recording(simulated(0.5))
    first = side.ops[side.ops["iteration"] == 0]
    begin = min(int(first["start_ns"].min()), int(side.compute["start_ns"].min()))
    later = side.compute[side.compute["iteration"] == 0]
    end = max(int(first["end_ns"].max()), int(later["end_ns"].max()))
    assert sum(path_parts(side).values()) == end - begin


def test_every_figure_of_a_comparison() -> None:
    found = genie.compare(simulated(0.5), simulated())
    names = [name for name, title, caption, _ in comparison_figures(found) if title and caption]
    assert names == [*run_names(), "errors"]


def test_runs_without_the_data_are_refused() -> None:
    with pytest.raises(InputError, match="no figure 'nonsense'"):
        run_figure("nonsense", {})
    for name in ("rate", "bursts", "concurrency", "matrix"):
        with pytest.raises(InputError):
            run_figure(name, {"replay": truth(run([8]))})


def test_saved_twice_is_equal_and_fonts_are_embedded(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save(run_figure("cdf", {"replay": truth(run([1000, 2000]))}), tmp_path / name, "test")
    for suffix in ("pdf", "svg", "png"):
        one, other = (tmp_path / f"{name}.{suffix}" for name in ("a", "b"))
        assert one.read_bytes() == other.read_bytes()
    assert b"FontFile2" in (tmp_path / "a.pdf").read_bytes()
    assert b"<image" not in (tmp_path / "a.svg").read_bytes()


def pixels(name: str, **sides: genie.Recording) -> np.ndarray:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure = run_figure(name, {n: from_recording(side) for n, side in sides.items()})
    with style():
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].astype(float)


@pytest.mark.parametrize("name", ["timeline", "path"])
def test_picture_has_the_colours_it_promises(name: str) -> None:
    image = pixels(name, replay=simulated(0.5))
    for part in ("compute", "communication"):
        colour = [int(COLOURS[part][i : i + 2], 16) for i in (1, 3, 5)]
        close = (abs(image - colour).max(axis=2) < 12).mean()
        assert close > 0.004, f"{part} hardly shows"
    # The frame is not clipped: the outermost pixels are white.
    edge = np.concatenate([image[0], image[-1], image[:, 0], image[:, -1]])
    assert (edge > 245).all()


def test_figure_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    simulated().save(tmp_path / "a")
    simulated(0.5).save(tmp_path / "b")
    data = [f"simulate={tmp_path / 'a'}", f"degraded={tmp_path / 'b'}"]
    out = str(tmp_path / "out")
    assert main(["figure", "all", *data, "-o", out, "--formats", "svg"]) == 0
    written = {path.stem for path in (tmp_path / "out").iterdir()}
    assert written == {*run_names(), "errors"}
    capsys.readouterr()
    for bad in (
        ["figure", "nonsense", *data, "-o", out],
        ["figure", "cdf", "-o", out],
        ["figure", "errors", data[0], "-o", out],
        ["figure", "cdf", data[0], data[0], "-o", out],
        ["figure", "cdf", data[0], "-o", out, "--formats", "gif"],
        ["figure", "schedule", "-o", out],
    ):
        assert main(bad) == 1


def test_figures_by_name_from_python() -> None:
    from matplotlib.figure import Figure

    one = simulated()
    found = genie.compare(simulated(0.5), one)
    assert genie.figure("timeline", one).axes[0].get_title() == "simulate"
    assert len(genie.figure("matrix-rail", {"a": one, "b": found.replay}).axes) == 4
    assert genie.figure("errors", found, column="double").get_size_inches()[0] == 7
    ax = Figure().subplots()
    assert genie.draw("busbw", {"a": one}, ax, kind="all_reduce") is ax
    assert [line.get_label() for line in ax.lines] == ["a"]
    genie.draw("nics", one, Figure().subplots())
    genie.draw("errors", found, Figure().subplots())
    for name, data, why in (
        ("errors", one, "takes a comparison"),
        ("sensitivity", found, "no fault was tried"),
        ("nonsense", one, "no figure 'nonsense'"),
        ("timeline", 5, "a figure takes runs or a comparison, not int"),
        ("timeline", {"a": 5}, "a: a run is a Recording or Truth, not int"),
    ):
        with pytest.raises(InputError, match=why):
            genie.figure(name, data)
    for name, data, why in (
        ("timeline", {"a": one, "b": one}, "has axes for one run, got 2"),
        ("errors", one, "takes a comparison"),
        ("nonsense", one, "no figure 'nonsense' to draw into axes"),
    ):
        with pytest.raises(InputError, match=why):
            genie.draw(name, data, Figure().subplots())
    with pytest.raises(InputError, match="takes no kind"):
        genie.figure("cdf", one, kind="x")
