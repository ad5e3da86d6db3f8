"""In the guest: the verbs transport's post and poll loop beside its peers, alternating, one boot.

    guest_verbs.py PACKAGE LOOP_BINARY PEERS RESULT

Prints nothing; RESULT gets JSON rows (what, size, depth, who, ns a message, a list of repeats).
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
package, loop_binary, peers, result = sys.argv[1:5]
# Only errors and the extension: importing all of genie takes seconds here and changes nothing.
for name in ("genie", "genie._core"):
    module = types.ModuleType(name)
    module.__path__ = [str(Path(package, *name.split(".")))]
    sys.modules[name] = module
sys.path.insert(0, str(ROOT / "tests"))

from genie._core import verbs  # noqa: E402
from verbs.driver import blast  # noqa: E402
from verbs.guest_virtual import gid_index  # noqa: E402

REPEATS = 4
CASES = (
    ("write", 8, 400, 64),
    ("imm", 8, 400, 64),
    ("cts", 8, 400, 8),
    ("imm", 65536, 48, 8),
    ("imm", 1 << 20, 8, 1),
)


def ours(mode: str, size: int, count: int, depth: int) -> list[float]:
    ends = [
        verbs.Verbs(
            1, 1, [[(name, 1, gid_index(name))]],
            cts=mode == "cts", imm=mode != "write", depth=max(depth, 8),
        )
        for name in ("rxe0", "rxe1")
    ]  # fmt: skip
    ends[0].add(0, True, 0, "rxe1")
    ends[1].add(0, False, 0, "rxe0")
    for end in ends:
        end.allocate()
    infos = [end.create(0) for end in ends]
    ends[1].connect(0, infos[0], ends[0].ports)
    ends[0].connect(0, infos[1], ends[1].ports)
    import time

    found = []
    for _ in range(REPEATS):
        began = time.perf_counter_ns()
        rc = blast(ends[0], 0, size, count, depth, ends[1] if mode != "write" else None)
        found.append((time.perf_counter_ns() - began) / count)
        assert rc == 0, rc
    for end in ends:
        end.close()
    return found


def run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def c_loop(mode: str, size: int, count: int, depth: int) -> list[float]:
    words = (mode, "rxe0", "rxe1", str(size), str(count), str(depth), str(REPEATS))
    return [float(line) for line in run(loop_binary, *words).split()]


def perftest(size: int, count: int, depth: int) -> list[float]:
    """ib_write_bw, plain RDMA_WRITE in all cases (this version has no other), two processes."""
    words = ["ib_write_bw", "-x", "1", "-s", str(size), "-n", str(count), "-t", str(depth), "-F"]
    words += ["-u", "18"]
    found = []
    for port in range(18600, 18600 + 2):
        server = subprocess.Popen([*words, "-p", str(port), "-d", "rxe1"], stdout=subprocess.PIPE)
        listening = f":{port:04X} "
        while (
            listening not in Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
        ):
            if server.poll() is not None:
                return []
        out = run(*words, "-p", str(port), "-d", "rxe0", "127.0.0.1")
        server.wait()
        line = re.search(rf"^\s*{size}\s+\d+\s+[\d.]+\s+[\d.]+\s+([\d.]+)", out, re.M)
        if line:
            found.append(1e3 / float(line[1]))  # Mpps
    return found


def binding(script: str, mode: str, size: int, count: int, depth: int, **env: str) -> list[float]:
    python = "/usr/bin/python3" if script == "pyverbs" else sys.executable
    path = str(ROOT / "benchmarks/verbs_peers.py")
    command = [python, path, script, mode, str(size), str(count), str(depth), str(REPEATS), peers]
    environment = {"PATH": "/usr/bin", **env}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    return [float(line) for line in done.stdout.split()] if done.returncode == 0 else []


def main() -> None:
    rows: list[dict[str, Any]] = []
    for mode, size, count, depth in CASES:

        def row(who: str, times: list[float], case: tuple[Any, ...] = (mode, size, depth)) -> None:
            rows.append(
                {"mode": case[0], "size": case[1], "depth": case[2], "who": who, "ns": times}
            )

        row("ours", ours(mode, size, count, depth))
        row("C loop", c_loop(mode, size, count, depth))
        if mode == "write":
            row("C loop, list posting", c_loop("list", size, count, depth))
        if mode != "cts":
            row("perftest ib_write_bw", perftest(size, count, depth))
        if size == 8 and mode != "cts":
            row("PyPI ibverbs", binding("ibverbs", mode, size, count, depth))
            row("pyverbs", binding("pyverbs", mode, size, count, depth))
    Path(result).write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
