"""Extensions only; every other setting is in pyproject.toml.

Each transport is an extension of its own, so that one that cannot be built here
(verbs without libibverbs headers) never stops the others. `GENIE_EXT=engine,tcp`
limits a development build to those; `GENIE_DEBUG=1` turns Cython's checks on.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

DEBUG = os.environ.get("GENIE_DEBUG", "") not in ("", "0")

DIRECTIVES = {
    "language_level": "3",
    "binding": True,
    "embedsignature": True,
    "embedsignature.format": "python",
    "boundscheck": DEBUG,
    "wraparound": False,
    "initializedcheck": DEBUG,
    "cdivision": True,
    "auto_pickle": False,
    "autotestdict": False,
}

ARGS = ["-O2", "-g", "-fno-strict-aliasing", "-ffp-contract=off"] + (
    ["-O0", "-UNDEBUG"] if DEBUG else []
)


def has_header(header: str) -> bool:
    """Whether the C compiler finds `header`."""
    compiler = shutil.which(os.environ.get("CC", "cc").split()[0])
    if compiler is None:
        return False
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "probe.c"
        source.write_text(f"#include <{header}>\nint main(void) {{ return 0; }}\n")
        done = subprocess.run(
            [compiler, "-fsyntax-only", str(source)], capture_output=True, check=False
        )
    return done.returncode == 0


def extensions() -> list[Extension]:
    """The extensions that can be built on this machine."""
    wanted = [name for name in os.environ.get("GENIE_EXT", "").split(",") if name]
    found = []
    for path in sorted(Path("genie/_core").glob("*.pyx")):
        name = path.stem
        if wanted and name not in wanted:
            continue
        if name == "verbs" and not has_header("infiniband/verbs.h"):
            print(
                "genie: the verbs transport is NOT built: infiniband/verbs.h not found "
                "(Debian/Ubuntu: apt install libibverbs-dev)",
                file=sys.stderr,
            )
            continue
        if name == "verbs":
            print("genie: the verbs transport is built", file=sys.stderr)
        found.append(Extension(f"genie._core.{name}", [str(path)], extra_compile_args=ARGS))
    return found


setup(ext_modules=cythonize(extensions(), compiler_directives=DIRECTIVES, annotate=DEBUG))
