"""Make the tables of docs/workloads.md, all of them or those named.

Usage: python workloads/tables.py [NAME ...]         prints them
       python workloads/tables.py --write [NAME ...] writes them into docs/workloads.md

A table stands there between `<!-- table NAME -->` and `<!-- end -->`. The corpus of real traces and
measurements is the folder that GENIE_CORPUS names (default ../shared/corpus).
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterable
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs" / "workloads.md"
sys.path.insert(0, str(Path(__file__).resolve().parent))

#: Table: (module of this folder, function that yields its lines, what it is given).
TABLES: dict[str, tuple[str, str, list[list[str]]]] = {
    "published": ("published", "table", [[]]),
    "alternatives": ("published", "alternatives", [[]]),
    "sensitivity": (
        "published",
        "sensitivity",
        [["megatron-22b", "megatron-175b", "llama3-8b-fp8-8", "llama3-70b-fp8-64"]],
    ),
    "stg": ("stg", "table", []),
}


def lines(name: str) -> list[str]:
    """Return a table, line by line."""
    module, function, arguments = TABLES[name]
    made: Iterable[str] = getattr(importlib.import_module(module), function)(*arguments)
    return list(made)


def written(text: str, name: str, table: list[str]) -> str:
    """Return the document with one table replaced.

    Raises:
        SystemExit: It has no place for the table.
    """
    place = re.compile(rf"(<!-- table {re.escape(name)} -->\n).*?(<!-- end -->)", re.DOTALL)
    if not place.search(text):
        raise SystemExit(f"{DOCS}: no place for the table {name}")
    body = "\n".join(table) + "\n"
    return place.sub(lambda found: f"{found[1]}{body}{found[2]}", text)


def main() -> None:
    """Make the tables asked for."""
    arguments = sys.argv[1:]
    write = "--write" in arguments
    for name in [word for word in arguments if word != "--write"] or TABLES:
        if name not in TABLES:
            raise SystemExit(f"no table {name} (known: {', '.join(TABLES)})")
        table = lines(name)
        if write:
            DOCS.write_text(written(DOCS.read_text(), name, table))
        else:
            print(f"\n{name}\n\n" + "\n".join(table), flush=True)


if __name__ == "__main__":
    main()
