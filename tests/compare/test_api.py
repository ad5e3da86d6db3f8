"""The names users see: light to import, functions where packages of the same name exist."""

from __future__ import annotations

import subprocess
import sys

import pytest

import genie
from genie.compare.truth.model import Truth
from genie.errors import CompareError


def test_import_is_light_and_compare_is_a_function() -> None:
    code = (
        "import genie, sys\n"
        "heavy = {'scipy', 'numba', 'matplotlib', 'pandas', 'pyarrow', 'msgspec'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
        "from genie.compare.report import write\n"
        "import genie.compare.figures.catalogue\n"
        "assert callable(genie.compare) and callable(genie.load_truth)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_truth_is_never_empty_without_an_error() -> None:
    from genie.compare.truth.model import empty_ops

    with pytest.raises(CompareError, match=r"nothing usable.*3 x broken"):
        Truth(ops=empty_ops(0), source="x", format="kineto", unused={"broken": 3})


def test_names_are_public() -> None:
    assert {"compare", "load_truth"} <= set(genie.__all__)
