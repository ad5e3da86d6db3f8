"""Every figure as a picture: against a baseline, in both columns, and what a reader has to see.

Baselines are written anew by `GENIE_BASELINE=write pytest tests/compare/test_images.py`: look at
each before it is committed.
"""

from __future__ import annotations

import io
import itertools
import os
import re
import zlib
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from fontTools.ttLib import TTFont
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.testing.compare import compare_images
from matplotlib.text import Text

import genie
from compare.pictures import compared
from genie.compare.comparison import Comparison
from genie.compare.figures.catalogue import COMPARISON_FIGURES, comparison_figure, run_names
from genie.compare.figures.style import COLOURS, WIDTH_INCHES, Column, save, style

BASELINE = Path(__file__).with_name("baseline")
NAMES = [*run_names(), *COMPARISON_FIGURES, "schedule-ring", "schedule-tree", "schedule-p2p"]
#: Root mean square of the difference of pixels (0 to 255) that another renderer may make.
TOLERANCE = 6.0
#: What has no unit: numbers of things, shares, names.
PLAIN = re.compile(
    r"^(rank|run|fault|sender|host\.NIC|(to|from) (rank|host|rail)|fraction of \w+|"
    r"flows at once at a NIC)$"
)
_DATA: list[Comparison] = []


def data() -> Comparison:
    if not _DATA:
        _DATA.append(compared())
    return _DATA[0]


@cache
def drawn(name: str, column: Column | None = None) -> Figure:
    kind, _, way = name.partition("-")
    if kind != "schedule":
        return comparison_figure(name, data(), column)
    if way == "p2p":
        return genie.figure("schedule", kind="all_to_all", nbytes=4096,
                            cluster=genie.Cluster.preset("h100x1", hosts=4))  # fmt: skip
    return genie.figure("schedule", kind="all_reduce", nbytes=4096,
                        cluster=genie.Cluster.preset("h100x1", hosts=4),
                        nccl=genie.Nccl(env={"NCCL_ALGO": way.capitalize()}))  # fmt: skip


def write(figure: Figure, path: Path, dpi: int = 75) -> Path:
    with style():
        figure.savefig(path, dpi=dpi, metadata={"Software": None})
    return path


@pytest.mark.parametrize("name", NAMES)
def test_picture_is_its_baseline(name: str, tmp_path: Path) -> None:
    expected = BASELINE / f"{name}.png"
    if os.environ.get("GENIE_BASELINE") == "write":
        BASELINE.mkdir(exist_ok=True)
        write(drawn(name), expected)
    actual = write(drawn(name), tmp_path / f"{name}.png")
    copy = tmp_path / f"{name}-expected.png"
    copy.write_bytes(expected.read_bytes())
    different = compare_images(str(copy), str(actual), tol=TOLERANCE)
    assert different is None, different


def test_baselines_are_small_and_no_others(tmp_path: Path) -> None:
    files = list(BASELINE.iterdir())
    assert sorted(path.stem for path in files) == sorted(NAMES)
    assert sum(path.stat().st_size for path in files) < 300_000


def test_tolerance_tells_a_lost_line_apart(tmp_path: Path) -> None:
    for name in ("cdf", "busbw", "runs"):
        figure = comparison_figure(name, data())
        figure.axes[0].lines[0].remove()
        copy = tmp_path / f"{name}-expected.png"
        copy.write_bytes((BASELINE / f"{name}.png").read_bytes())
        actual = write(figure, tmp_path / f"{name}.png")
        assert compare_images(str(copy), str(actual), tol=TOLERANCE) is not None, name


@pytest.mark.parametrize("column", ["single", "double"])
@pytest.mark.parametrize("name", [*run_names(), *COMPARISON_FIGURES])
def test_texts_are_whole_and_apart(name: str, column: Column) -> None:
    figure = drawn(name, column)
    assert figure.get_size_inches()[0] == WIDTH_INCHES[column]
    with style():
        canvas = FigureCanvasAgg(figure)
        figure.draw_without_rendering()
    renderer = canvas.get_renderer()
    width, height = canvas.get_width_height()
    hidden = outside(figure)
    texts = [
        (text.get_text(), text.get_window_extent(renderer))
        for text in figure.findobj(Text)
        if text.get_text().strip() and text.get_visible() and id(text) not in hidden
    ]
    assert len(texts) > 6
    for words, box in texts:
        assert box.x0 > -1 and box.y0 > -1, words
        assert box.x1 < width + 1 and box.y1 < height + 1, words
    for (a, one), (b, other) in itertools.combinations(texts, 2):
        across = min(one.x1, other.x1) - max(one.x0, other.x0)
        down = min(one.y1, other.y1) - max(one.y0, other.y0)
        assert across < 1 or down < 1, f"{a!r} lies on {b!r}"


def outside(figure: Figure) -> set[int]:
    """Return the ids of labels of ticks outside their axis' limits: these are not drawn."""
    found = set()
    for ax in figure.axes:
        for axis in (ax.xaxis, ax.yaxis):
            low, high = sorted(axis.get_view_interval())
            for tick in [*axis.majorTicks, *axis.minorTicks]:
                if not low <= tick.get_loc() <= high:
                    found |= {id(tick.label1), id(tick.label2)}
    return found


@pytest.mark.parametrize("name", [*run_names(), *COMPARISON_FIGURES])
def test_every_axis_says_its_unit(name: str) -> None:
    for ax in drawn(name).axes:
        for label in (ax.get_xlabel(), ax.get_ylabel()):
            # A colour bar has one axis, boxes have names below.
            if label:
                assert re.search(r"\[[^]]+\]$|\[MB\] \(", label) or PLAIN.match(label), label
        assert ax.get_ylabel()
        assert ax.get_xlabel() or name == "errors" or ax.get_label() == "<colorbar>"


def test_fonts_are_embedded_in_pdf(tmp_path: Path) -> None:
    for name in ("busbw", "timeline"):
        save(drawn(name), tmp_path / name, "test", ("pdf", "svg"))
        pdf = (tmp_path / f"{name}.pdf").read_bytes()
        objects = {
            int(m[1]): m[2] for m in re.finditer(rb"(?m)^(\d+) 0 obj\r?\n(.*?)endobj", pdf, re.S)
        }
        fonts = [body for body in objects.values() if b"/Type /FontDescriptor" in body]
        assert fonts
        assert not any(b"/Subtype /Type3" in body for body in objects.values())
        for body in fonts:
            found = re.search(rb"/FontFile2 (\d+) 0 R", body)
            assert found, body
            stream = objects[int(found[1])].split(b"stream\n", 1)[1].rsplit(b"\nendstream", 1)[0]
            if b"/FlateDecode" in objects[int(found[1])]:
                stream = zlib.decompress(stream)
            assert TTFont(io.BytesIO(stream))["maxp"].numGlyphs > 5
        # Letters are shapes in SVG, so that no font is needed at all.
        svg = (tmp_path / f"{name}.svg").read_text()
        assert "<text" not in svg
        assert "<image" not in svg


#: Colour vision without one kind of cone (Machado, Oliveira, Fernandes 2009), linear RGB.
VISIONS = {
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
               [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
               [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602],
               [0.004733, 0.691367, 0.303900]],
}  # fmt: skip


def lab(colour: str, vision: list[list[float]]) -> np.ndarray:
    """Return the CIE L*a*b* (D65) of a colour as such eyes see it."""
    rgb = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    linear = np.clip(np.array(vision) @ linear, 0, 1)
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    ratio = xyz @ linear / np.array([0.9505, 1.0, 1.089])
    f = np.where(ratio > 0.008856, np.cbrt(ratio), 7.787 * ratio + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("vision", VISIONS)
def test_colours_that_meet_are_told_apart(vision: str) -> None:
    for group in (("compute", "communication", "wait"), ("replay", "truth", "simulate")):
        for a, b in itertools.combinations(group, 2):
            one, other = (lab(COLOURS[name], VISIONS[vision]) for name in (a, b))
            assert np.linalg.norm(one - other) > 15, (a, b)


def test_a_picture_shows_and_saves_itself(tmp_path: Path) -> None:
    figure = genie.figure("cdf", data(), column="double")
    assert figure._repr_png_()[:8] == b"\x89PNG\r\n\x1a\n"
    written = figure.save(tmp_path / "x.y", "from here", formats=("svg", "pdf"))
    assert written == [tmp_path / "x.y.svg", tmp_path / "x.y.pdf"]
    assert b"from here" in written[0].read_bytes()
