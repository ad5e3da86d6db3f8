"""The packaged numbers out of compiled NCCL that `genie selftest` and the tests hold GENIE to.

The files lie in `genie/data/golden/` (2.30.7), with `2.27/`, `2.21/` and `sub/` beside them;
`README.md` there explains every field. `GENIE_GOLDEN` names another folder of the same shape.
"""

from __future__ import annotations

import gzip
import json
import os
from functools import lru_cache
from pathlib import Path
from typing import Any

from genie.errors import InputError

#: Release name -> folder below the root.
FOLDERS = {"2.30": "", "2.27": "2.27", "2.21": "2.21"}


def root() -> Path:
    """Return the folder of golden data: `GENIE_GOLDEN`, else the copy in this package."""
    override = os.environ.get("GENIE_GOLDEN")
    return Path(override) if override else Path(__file__).parents[2] / "data" / "golden"


def path(name: str, version: str = "2.30") -> Path:
    """Return the file of `name` ("tuning", "sub/subcomm") for one of the three releases."""
    if version not in FOLDERS:
        raise InputError(f"no golden data for NCCL {version} (there is {', '.join(FOLDERS)})")
    return root() / FOLDERS[version] / f"{name}.json.gz"


def exists(name: str, version: str = "2.30") -> bool:
    """Whether that file is there (2.21 has no PAT, only 2.30 has `sub/`)."""
    return path(name, version).is_file()


@lru_cache(maxsize=4)
def _read(file: Path) -> Any:
    with gzip.open(file, "rt", encoding="utf-8") as stream:
        return json.load(stream)


def load(name: str, version: str = "2.30") -> Any:
    """Return the parsed JSON of one golden file; do not change it, it is cached.

    Args:
        name: file name without `.json.gz`, "sub/subcomm" for those in `sub/`.
        version: "2.30", "2.27" or "2.21".

    Raises:
        InputError: no such file.
    """
    file = path(name, version)
    if not file.is_file():
        raise InputError(f"golden file not found: {file}")
    return _read(file)
