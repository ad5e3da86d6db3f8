"""`load_truth()`: find out what a file or folder is, and read it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from genie.errors import CompareError

if TYPE_CHECKING:
    from genie.compare.truth.model import Truth


def load_truth(path: str | os.PathLike[str]) -> Truth:
    """Read ground truth; the format is found by content.

    Args:
        path: A file or folder.

    Raises:
        CompareError: Missing, of no known format, or without anything usable.
    """
    target = Path(path)
    if not target.exists():
        raise CompareError(f"no such file or folder: {target}", path=str(target))
    if (target / "manifest.json").is_file():
        from genie.compare.truth.recording import from_recording
        from genie.replay.recording import Recording

        return from_recording(Recording.load(target), str(target))
    raise CompareError(f"{target}: not a format GENIE reads as ground truth", path=str(target))
