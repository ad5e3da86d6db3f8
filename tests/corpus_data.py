"""Where the corpus of real traces and logs is: GENIE_CORPUS, default ../shared/corpus."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CORPUS = Path(os.environ.get("GENIE_CORPUS", ROOT.parent / "shared" / "corpus"))


def corpus(name: str) -> Path:
    """Return a corpus folder; skip the test, saying why, where there is none."""
    folder = CORPUS / name
    if not folder.is_dir():
        pytest.skip(f"corpus folder {folder} is not here (set GENIE_CORPUS)")
    return folder
