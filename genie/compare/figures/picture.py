"""The figure that GENIE hands out. Imports matplotlib: itself imported inside functions only."""

from __future__ import annotations

import io
import os
from pathlib import Path

from matplotlib.figure import Figure

from genie.compare.figures.style import FORMATS, save, style


class Picture(Figure):
    """A figure that shows itself in a notebook and saves itself."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        with style():
            self.savefig(buffer, format="png", dpi=150)
        return buffer.getvalue()

    def save(
        self, path: str | os.PathLike[str], provenance: str = "", formats: tuple[str, ...] = FORMATS
    ) -> list[Path]:
        """Write the figure in every format and return the files.

        Args:
            path: Where, without a suffix.
            provenance: One line for the files' metadata, such as the runs shown.
            formats: Of "pdf", "svg" and "png".
        """
        save(self, Path(path), provenance, formats)
        return [Path(f"{path}.{suffix}") for suffix in formats]
