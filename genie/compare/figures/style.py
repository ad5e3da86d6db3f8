"""The one look of GENIE's figures: sizes, colours, and how they are saved."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from genie.compare.figures.picture import Picture

Column = Literal["single", "double"]

#: Widths of one and of both columns of a two-column paper, inches (ACM/USENIX: 3.33 and 7).
WIDTH_INCHES = {"single": 3.33, "double": 7.0}

#: What a colour means wherever it appears (Okabe and Ito 2008).
COLOURS = {
    "compute": "#999999",
    "communication": "#0072B2",
    "wait": "#E69F00",
    "replay": "#0072B2",
    "truth": "#D55E00",
    "simulate": "#009E73",
    "send": "#0072B2",
    "receive": "#D55E00",
    "bad": "#D55E00",
}

#: Lines that may lie on each other are told apart without colour as well.
LINES: dict[str, Any] = {"truth": (0, (4, 1.5)), "simulate": (0, (1, 1))}

FORMATS = ("pdf", "svg", "png")


@contextmanager
def style() -> Iterator[None]:
    """Apply GENIE's style sheet to what is drawn inside."""
    import matplotlib as mpl

    with mpl.rc_context(fname=str(Path(__file__).with_name("paper.mplstyle"))):
        yield


def new_figure(column: Column = "single", aspect: float = 0.65) -> Picture:
    """Return an empty figure of a column's width; height = width x `aspect`."""
    from genie.compare.figures.picture import Picture

    width = WIDTH_INCHES[column]
    return Picture(figsize=(width, width * aspect), layout="constrained")


def save(figure: Figure, target: Path, provenance: str, formats: tuple[str, ...] = FORMATS) -> None:
    """Write a figure in every format, with where it comes from in the file's metadata.

    Args:
        figure: What to write.
        target: Path without a suffix.
        provenance: One line, such as the trace and plan digests.
        formats: Suffixes.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    for suffix in formats:
        known: dict[str, dict[str, Any]] = {
            "pdf": {"Subject": provenance, "CreationDate": None},
            "svg": {"Description": provenance, "Date": None},
            "png": {"Description": provenance},
        }
        with style():
            figure.savefig(target.parent / f"{target.name}.{suffix}", metadata=known[suffix])
