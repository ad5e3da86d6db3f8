"""NCCL releases GENIE knows, and values that depend on the release.

A rule that changed is a `Switch`: the values it had, each with the first release that has it
(spec/nccl-versions.md). The switches stand beside the code that uses them, so a difference
between releases is a row of data, never a second copy of the code.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping
from typing import Any, ClassVar, Generic, TypeVar

from genie.errors import InputError

Version = tuple[int, int, int]
T = TypeVar("T")

#: Every release between the first and the last that GENIE plans for, oldest first.
RELEASES: tuple[Version, ...] = (
    (2, 20, 5),
    (2, 21, 5),
    (2, 22, 3),
    (2, 23, 4),
    (2, 24, 3),
    (2, 25, 1),
    (2, 26, 2),
    (2, 26, 3),
    (2, 26, 5),
    (2, 26, 6),
    (2, 27, 3),
    (2, 27, 5),
    (2, 27, 6),
    (2, 27, 7),
    (2, 28, 3),
    (2, 28, 7),
    (2, 28, 9),
    (2, 29, 2),
    (2, 29, 3),
    (2, 29, 7),
    (2, 30, 3),
    (2, 30, 4),
    (2, 30, 7),
)

#: Short names, and the releases whose every number is held to golden data.
HELD_TO_GOLDEN: dict[str, Version] = {"2.21": (2, 21, 5), "2.27": (2, 27, 7), "2.30": (2, 30, 7)}

_PATTERN = re.compile(r"v?(\d+)\.(\d+)(?:\.(\d+))?(?:-\d+)?(?:\+\S+)?")


def version_text(version: Version) -> str:
    """Return `version` as NCCL writes it ("2.30.7")."""
    return ".".join(map(str, version))


def held_to_golden(version: Version) -> bool:
    """Whether golden data out of this very release exist."""
    return version in HELD_TO_GOLDEN.values()


def parse_version(text: str) -> Version:
    """Return the release that `text` names.

    Args:
        text: "2.21", "2.27" or "2.30" (the releases held to golden data), or a full release
            from 2.20.5 to 2.30.7; "v2.21.5-1" and "2.21.5+cuda12.4" are read too.

    Raises:
        InputError: not a release GENIE knows; the nearest one is named.
    """
    if not isinstance(text, str):
        raise InputError(f"an NCCL version is text such as '2.30' or '2.21.5', not {text!r}")
    match = _PATTERN.fullmatch(text.strip())
    if match is None:
        raise InputError(f"not an NCCL version: {text!r} (examples: 2.30, 2.27, 2.21.5)")
    major, minor, patch = match[1], match[2], match[3]
    if patch is None:
        short = f"{int(major)}.{int(minor)}"
        if short in HELD_TO_GOLDEN:
            return HELD_TO_GOLDEN[short]
        wanted = (int(major), int(minor), 0)
    else:
        wanted = (int(major), int(minor), int(patch))
        if wanted in RELEASES:
            return wanted
    near = version_text(_nearest(wanted))
    raise InputError(
        f"NCCL {text.strip()} is not a release GENIE plans for; the nearest one is {near} "
        f"(known: {', '.join(HELD_TO_GOLDEN)} and the full releases "
        f"{version_text(RELEASES[0])} to {version_text(RELEASES[-1])})"
    )


def _nearest(wanted: Version) -> Version:
    # One of the two releases `wanted` would stand between, by the first number that differs.
    after = bisect_left(RELEASES, wanted)
    around = RELEASES[max(after - 1, 0) : after + 1]
    return min(around, key=lambda r: [abs(a - b) for a, b in zip(r, wanted, strict=True)])


class Switch(Generic[T]):
    """A value with the releases at which it changed; `switch.at((2, 27, 7))` is its value there.

    Args:
        name: what the value is, as `genie plan --tuning` prints it.
        values: first release that has it -> value; the oldest entry also serves releases
            before it, as the rules start at 2.20.5.
    """

    registry: ClassVar[dict[str, Switch[Any]]] = {}

    def __init__(self, name: str, values: Mapping[str, T]) -> None:
        self.name = name
        rows = sorted((tuple(map(int, text.split("."))), value) for text, value in values.items())
        self.since = [row[0] for row in rows]
        self.values = [row[1] for row in rows]
        self._known: dict[Version, T] = {}
        Switch.registry[name] = self

    def at(self, version: Version) -> T:
        """Return the value that `version` uses."""
        if version not in self._known:
            self._known[version] = self.values[self._index(version)]
        return self._known[version]

    def since_at(self, version: Version) -> str:
        """Return the release that brought the value `version` uses ("2.29.2")."""
        return ".".join(map(str, self.since[self._index(version)]))

    def _index(self, version: Version) -> int:
        index = 0
        for i, since in enumerate(self.since):
            if since <= version:
                index = i
        return index

    def __repr__(self) -> str:
        changes = ", ".join(
            f"{'.'.join(map(str, s))}: {v!r}" for s, v in zip(self.since, self.values, strict=True)
        )
        return f"Switch({self.name!r}, {changes})"


def rules_at(version: Version) -> dict[str, tuple[object, str]]:
    """Return every registered switch at `version`: name -> (value, release that brought it)."""
    return {
        name: (switch.at(version), switch.since_at(version))
        for name, switch in sorted(Switch.registry.items())
    }
