"""Run every benchmark module and write benchmarks/RESULTS.md.

Usage: python -m benchmarks [NAME ...]; a module is benchmarks/bench_NAME.py with a function
`run() -> list[dict]` whose rows have: area, peer, peer_value, ours, unit, ratio, goal, note.
`ratio` is how many times better ours is; `goal` the ratio or bound aimed at, as text. A module's
`NOTES`, if it has them, say what its rows mean.
"""

from __future__ import annotations

import datetime
import importlib
import json
import os
import platform
import sys
import textwrap
import traceback
from pathlib import Path

HERE = Path(__file__).parent
STORE = HERE / "results.json"


def machine() -> str:
    """Return one line about this machine."""
    model = "unknown CPU"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return (
        f"{os.cpu_count()} x {model}, kernel {platform.release()}, "
        f"Python {platform.python_version()}"
    )


def number(value: object) -> str:
    """Return a value with at most four significant digits."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return "" if value is None else str(value)


def render(store: dict[str, dict]) -> str:
    """Return RESULTS.md."""
    lines = [
        "# Results",
        "",
        "Written by `make bench`. A ratio is between numbers of one run on one machine; above 1 is",
        "better than the peer. Values are medians; `spread` is (max - min) / median of repeats.",
        "Bounds in seconds were set on a faster machine: where a floor was measured in the same",
        "run, the bound for this machine is in brackets.",
        "",
    ]
    for name, entry in sorted(store.items()):
        lines += [f"## {name}", "", f"{entry['machine']}, {entry['date']}", ""]
        if entry.get("notes"):
            lines += [*textwrap.wrap(entry["notes"], 98), ""]
        lines.append("| area | ours | unit | peer | peer's | ratio | goal | spread | note |")
        lines.append("|---|---|---|---|---|---|---|---|---|")
        for row in entry["rows"]:
            cells = [
                row.get("area"), row.get("ours"), row.get("unit"), row.get("peer"),
                row.get("peer_value"), row.get("ratio"), row.get("goal"), row.get("spread"),
                row.get("note"),
            ]  # fmt: skip
            lines.append("| " + " | ".join(number(cell) for cell in cells) + " |")
        lines.append("")
    return "\n".join(lines)


def main() -> int:
    """Run the named benchmarks, or all."""
    known = sorted(path.stem.removeprefix("bench_") for path in HERE.glob("bench_*.py"))
    names = sys.argv[1:] or known
    store = json.loads(STORE.read_text()) if STORE.exists() else {}
    failed = []
    for name in names:
        print(f"== {name}", flush=True)
        try:
            module = importlib.import_module(f"benchmarks.bench_{name}")
            rows = module.run()
        except Exception:
            traceback.print_exc()
            failed.append(name)
            continue
        store[name] = {
            "machine": machine(),
            "date": datetime.date.today().isoformat(),
            "notes": getattr(module, "NOTES", ""),
            "rows": rows,
        }
        STORE.write_text(json.dumps(store, indent=1, default=float) + "\n")
        (HERE / "RESULTS.md").write_text(render(store))
    if failed:
        print(f"benchmarks failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
