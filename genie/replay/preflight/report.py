"""The findings of a preflight and how they print."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    """One line of the preflight.

    Attributes:
        area: What was looked at ("memlock", "rxe0:1 gid", …).
        level: "ok", "warn" (a run works, its numbers may suffer) or "fail" (a run will not work).
        found: What is there.
        fix: What to do about it; empty for "ok".
    """

    area: str
    level: Level
    found: str
    fix: str = ""


@dataclass
class Report:
    """All findings of one host, and tables that go with them.

    Attributes:
        findings: In the order of the checks.
        tables: Name → rows, such as the GIDs of every port.
        more: Tables that are only in the JSON document.
    """

    findings: list[Finding] = field(default_factory=list)
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    more: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def add(self, area: str, level: Level, found: str, fix: str = "") -> None:
        """Append one finding."""
        self.findings.append(Finding(area, level, found, fix))

    @property
    def ok(self) -> bool:
        """Whether nothing failed."""
        return all(finding.level != "fail" for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """Return the report as one JSON-like document."""
        return {
            "ok": self.ok,
            "findings": [asdict(finding) for finding in self.findings],
            "tables": {**self.tables, **self.more},
        }

    def __str__(self) -> str:
        from genie.replay.plan_text import table

        rows = [[f.level, f.area, f.found + (f"  → {f.fix}" if f.fix else "")]
                for f in self.findings]  # fmt: skip
        parts = [table(["", "check", "found"], rows, left=3)]
        for name, entries in self.tables.items():
            if entries:
                header = list(entries[0])
                cells = [
                    ["" if entry[key] is None else str(entry[key]) for key in header]
                    for entry in entries
                ]
                parts.append(f"{name}\n{table(header, cells, left=len(header))}")
        return "\n\n".join(parts)
