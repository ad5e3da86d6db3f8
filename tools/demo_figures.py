"""Draw the demo's two pictures from its recordings. Usage: demo_figures.py OUT."""

from __future__ import annotations

import sys
from pathlib import Path

from matplotlib.figure import Figure

from genie.replay.recording import Recording


def draw(run: Path, what: str, target: Path) -> None:
    """Write one picture as PNG and SVG."""
    figure = Figure(figsize=(9, 5), layout="constrained")
    Recording.load(run).plot(figure.subplots(), what=what)
    for suffix in (".png", ".svg"):
        figure.savefig(target.with_suffix(suffix), dpi=150)


def main() -> None:
    """Draw both."""
    out = Path(sys.argv[1])
    draw(out / "run", "timeline", out / "timeline")
    draw(out / "bench", "busbw", out / "busbw")


if __name__ == "__main__":
    main()
