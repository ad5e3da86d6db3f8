"""The verbs transport beside C and Python peers: in a Soft-RoCE guest, and in instructions.

In the guest (`qemu -icount shift=0`) one virtual microsecond is 1000 guest instructions, user and
kernel, so numbers repeat to about 0.1 % on any host and all peers run in one boot. On fakeverbs,
a loopback libibverbs, callgrind counts instructions of user space alone. Neither is a NIC's time.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
PEERS = ROOT / ".cache/peers"


def _load(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _prepare() -> tuple[ModuleType, ModuleType]:
    driver = _load("verbs_driver", ROOT / "tests/verbs/driver.py")
    guest = _load("rig_guest", ROOT / "tests/rig/guest.py")
    if not (PEERS / "ibverbs").exists():
        subprocess.run(
            [sys.executable, "-m", "pip", "install", "-q", "--target", str(PEERS), "ibverbs"],
            check=False,
        )
    return driver, guest


def _guest_rows(driver: ModuleType, guest: ModuleType) -> list[dict[str, Any]]:
    why = guest.missing()
    if why:
        raise RuntimeError(f"no guest: {why}")
    import genie._core.verbs as core

    package = Path(core.__file__).parents[2]
    loop = driver.compile_c(HERE / "verbs_loop.c", "-libverbs")
    driver.compile_c(ROOT / "tests/verbs/driver.c", "-shared", "-fPIC")
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "rows.json"
        words = [sys.executable, HERE / "guest_verbs.py", package, loop, PEERS, result]
        done = guest.run(
            f". tests/rig/devices.sh; devices 2; {' '.join(map(str, words))}",
            shares=[folder], icount="shift=0,sleep=on", cwd=str(ROOT), timeout=900.0,
        )  # fmt: skip
        if done.status:
            raise RuntimeError(done.output)
        return list(json.loads(result.read_text()))


def _compare(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    goals = {
        "C loop": "0.99",
        "C loop, list posting": "0.99",
        "perftest ib_write_bw": "0.99",
        "PyPI ibverbs": "1",
        "pyverbs": "1",
    }
    found = []
    for own in (row for row in rows if row["who"] == "ours"):
        case = (own["mode"], own["size"], own["depth"])
        what = {"write": "RDMA_WRITE", "imm": "WRITE_WITH_IMM", "cts": "receive + CTS + IMM"}
        label = f"guest: {what[own['mode']]} {own['size']} B, depth {own['depth']}"
        # The first repeat warms translation caches and page tables.
        value = statistics.median(own["ns"][1:]) / 1000
        for peer in rows:
            if (peer["mode"], peer["size"], peer["depth"]) != case or peer["who"] == "ours":
                continue
            if not peer["ns"]:
                continue
            times = peer["ns"][1:] or peer["ns"]
            theirs = statistics.median(times) / 1000
            goal = "0.91" if own["mode"] == "cts" else goals[peer["who"]]
            found.append(
                {
                    "area": label,
                    "peer": peer["who"],
                    "peer_value": theirs,
                    "ours": value,
                    "unit": "virtual us/message",
                    "ratio": theirs / value,
                    "goal": goal,
                    "spread": (max(own["ns"][1:]) - min(own["ns"][1:])) / 1000 / value,
                }
            )
    return found


_COUNT = """
import sys, types
for name in ("genie", "genie._core"):
    module = types.ModuleType(name)
    module.__path__ = [sys.argv[1] + "/" + name.replace(".", "/")]
    sys.modules[name] = module
sys.path.insert(0, sys.argv[2])
from genie._core import verbs
import driver
verbs.load(sys.argv[3])
mode, count, depth = sys.argv[4], int(sys.argv[5]), 8
ends = [verbs.Verbs(1, 1, [[(f"fake{i}", 1, 3)]], cts=mode == "cts", imm=mode != "write",
                    depth=64) for i in (0, 1)]
ends[0].add(0, True, 0, "b")
ends[1].add(0, False, 0, "a")
for end in ends: end.allocate()
infos = [end.create(0) for end in ends]
ends[1].connect(0, infos[0], ends[0].ports)
ends[0].connect(0, infos[1], ends[1].ports)
assert driver.blast(ends[0], 0, 8, count, depth, ends[1] if mode != "write" else None) == 0
"""


_ENGINE = """
import sys, types
for name in ("genie", "genie._core"):
    module = types.ModuleType(name)
    module.__path__ = [sys.argv[1] + "/" + name.replace(".", "/")]
    sys.modules[name] = module
sys.path.insert(0, sys.argv[2])
import numpy as np
from genie._core import verbs
from genie._core.engine import Engine
import driver
verbs.load(sys.argv[3])
count, per = int(sys.argv[4]), 1000
OP = np.dtype([("peer", "i4"), ("nbytes", "u4"), ("call", "u4"), ("kind", "u1"), ("flags", "u1"),
               ("steps", "u1"), ("conn", "u1")])
STREAM = np.dtype([("channel", "u2"), ("group", "u1"), ("lane", "u1"), ("phase", "u4"),
                   ("first", "u4"), ("count", "u4")])
CONN = np.dtype([("src", "i4"), ("dst", "i4"), ("communicator", "i4"), ("channel", "u2"),
                 ("index", "u1"), ("nic_src", "i2"), ("nic_dst", "i2"), ("proxy_src", "i4")])
ends = [verbs.Verbs(1, 1, [[(f"fake{i}", 1, 3)]]) for i in (0, 1)]
ends[0].add(0, True, 0, "b")
ends[1].add(0, False, 0, "a")
for end in ends: end.allocate()
infos = [end.create(0) for end in ends]
ends[1].connect(0, infos[0], ends[0].ports)
ends[0].connect(0, infos[1], ends[1].ports)
engine = Engine(clock="wall")
both = engine.add_communicator(np.arange(2))
nodes = count // per
for rank in (0, 1):
    ops = np.zeros(per, OP)
    ops["peer"], ops["kind"], ops["nbytes"], ops["steps"] = 1 - rank, rank, 8, 1
    ops["call"] = np.arange(per)
    program = engine.add_program(np.array([(0, 0, 0, 0, 0, per)], STREAM), ops)
    engine.add_rank(rank, np.full(nodes, 2), np.zeros(nodes), np.full(nodes, program),
                    np.full(nodes, both), np.concatenate([[0], np.arange(nodes)]),
                    np.arange(nodes - 1), host=rank)
engine.add_connections(np.array([(0, 1, both, 0, 0, 0, 0, -1)], CONN))
engine.set_transport(driver.joined(*ends))
assert engine.run() == "done"
assert ends[1].connections()[0]["complete"] == count
"""


def _instructions(command: list[str], env: dict[str, str]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            ["valgrind", "--tool=callgrind", f"--callgrind-out-file={folder}/out", *command],
            capture_output=True, text=True, env=env, check=True,
        )  # fmt: skip
    match = re.search(r"Collected : (\d+)", done.stderr)
    assert match is not None
    return int(match[1])


def _fake_rows(driver: ModuleType) -> list[dict[str, Any]]:
    import os

    import genie._core.verbs as core

    if shutil.which("valgrind") is None:
        return []
    package = str(Path(core.__file__).parents[2])
    fake = driver.fake_library()
    loop = driver.compile_c(HERE / "verbs_loop.c", "-libverbs")
    env = {**os.environ, "FAKEVERBS": "copy=0;check=0", "OPENBLAS_NUM_THREADS": "1"}
    found = []
    c_cts = 0.0
    for mode in ("write", "imm", "cts"):
        ours, theirs = [], []
        for count in (1000, 11000):
            words = [package, str(ROOT / "tests/verbs"), str(fake), mode, str(count)]
            ours.append(_instructions([sys.executable, "-c", _COUNT, *words], env))
            own_env = {**env, "LD_LIBRARY_PATH": str(fake.parent)}
            peer = [str(loop), mode, "fake0", "fake1", "8", str(count), "8"]
            theirs.append(_instructions(peer, own_env))
        own, peer_value = ((pair[1] - pair[0]) / 10000 for pair in (ours, theirs))
        found.append(
            {
                "area": f"fakeverbs: {mode}, 8 B, transport and its driver",
                "peer": "C loop",
                "peer_value": peer_value,
                "ours": own,
                "unit": "instructions/message",
                "ratio": peer_value / own,
                "goal": "",
            }
        )
        c_cts = peer_value
    words = [package, str(ROOT / "tests/verbs"), str(fake)]
    whole = [
        _instructions([sys.executable, "-c", _ENGINE, *words, str(count)], env)
        for count in (1000, 51000)
    ]
    own = (whole[1] - whole[0]) / 50000
    found.append(
        {
            "area": "fakeverbs: engine, log and transport, both ends, 8 B",
            "peer": "C loop posting the same work requests",
            "peer_value": c_cts,
            "ours": own,
            "unit": "instructions/message",
            "ratio": c_cts / own,
            "goal": "0.5",
            "note": "with a shim of about 25 instructions that joins the two transports",
        }
    )
    return found


def run() -> list[dict[str, Any]]:
    """Return the rows of all comparisons."""
    driver, guest = _prepare()
    return _fake_rows(driver) + _compare(_guest_rows(driver, guest))


if __name__ == "__main__":
    print(json.dumps(run(), indent=1))
