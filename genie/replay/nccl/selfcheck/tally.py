"""What one check compared, how much was equal, and the first differences."""

from __future__ import annotations

from dataclasses import dataclass, field

_KEPT = 5


@dataclass
class Tally:
    """Counts of one golden file; `same` is the only way to add to them."""

    file: str
    version: str
    compared: int = 0
    equal: int = 0
    differences: list[str] = field(default_factory=list)

    def same(self, got: object, want: object, *where: object) -> bool:
        """Count one comparison; keep the first few that differ as text."""
        self.compared += 1
        if got == want:
            self.equal += 1
            return True
        if len(self.differences) < _KEPT:
            place = " ".join(map(str, where))
            self.differences.append(f"{place}: found {_short(got)}, expected {_short(want)}")
        return False

    def row(self) -> dict[str, object]:
        """Return the counts as a plain dict."""
        return {
            "file": self.file,
            "version": self.version,
            "compared": self.compared,
            "equal": self.equal,
            "differences": list(self.differences),
        }


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 300 else text[:300] + "..."
