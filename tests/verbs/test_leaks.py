"""Memory of the data path under valgrind: no invalid access, nothing lost by the extension."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from genie._core import verbs

from .driver import HERE, fake_library

SCRIPT = """
import sys, types
for name in ("genie", "genie._core"):
    module = types.ModuleType(name)
    module.__path__ = [sys.argv[1] + "/" + name.replace(".", "/")]
    sys.modules[name] = module
sys.path.insert(0, sys.argv[2])
from genie._core import verbs
from driver import Flow, drive
verbs.load(sys.argv[3])
for options in ({}, {"qps": 3, "split": True, "adaptive_routing": 1}, {"use_inline": True}):
    ends = [verbs.Verbs(8, 8, [[(f"fake{i}", 1, 3)]], **options) for i in (0, 1)]
    for conn in range(4):
        ends[0].add(conn, True, 0, "b")
        ends[1].add(conn, False, 0, "a")
    for end in ends: end.allocate()
    for conn in range(4):
        infos = [end.create(conn) for end in ends]
        ends[1].connect(conn, infos[0], ends[0].ports)
        ends[0].connect(conn, infos[1], ends[1].ports)
    flows = [[Flow(c, sender, [0, 8, 9000, 1 << 20], count=40) for c in range(4)]
             for sender in (True, False)]
    assert drive(list(zip(ends, flows)), timeout=100, sleep=False) == 0
    half = verbs.Verbs(1, 1, [[("fake0", 1, 3)]], **options)
    half.add(0, True, 0, "nobody")
    half.allocate()
    half.create(0)
    ends[0].failures(), ends[0].counters(), ends[0].memory()
    ends[0].close()
    del half, ends, end
import gc
gc.collect()
assert not any(verbs.live().values()), verbs.live()
"""


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not installed")
def test_valgrind_finds_nothing(tmp_path: Path) -> None:
    log = tmp_path / "valgrind.log"
    command = [
        "valgrind", "--leak-check=full", "--show-leak-kinds=definite", f"--log-file={log}",
        "--num-callers=12", sys.executable, "-c", SCRIPT,
        str(Path(verbs.__file__).parents[2]), str(HERE), str(fake_library()),
    ]  # fmt: skip
    env = {**os.environ, "PYTHONMALLOC": "malloc"}
    subprocess.run(command, env=env, check=True, timeout=250)
    # Reports are separated by lines that hold only the process number.
    reports = re.split(r"^==\d+== *$", log.read_text(), flags=re.M)
    mine = [report for report in reports if re.search(r"verbs(\.pyx|\.c|\.cpython|_)", report)]
    bad = [report for report in mine if re.search(r"Invalid|definitely lost|uninitialised", report)]
    assert not bad, "\n".join(bad)
