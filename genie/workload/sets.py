"""A trace set through several transformations, one after the other."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from genie.errors import InputError
from genie.trace import load
from genie.workload import transform

if TYPE_CHECKING:
    from genie.trace import Trace


def parse_ranks(text: str) -> list[int]:
    """Return the ranks in "0-3,8" in that order.

    Raises:
        InputError: It is not such a list.
    """
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if match is None or (match[2] and int(match[2]) < int(match[1])):
            raise InputError(f"not a list of ranks: {text!r} (example: 0-3,8)")
        found += range(int(match[1]), int(match[2] or match[1]) + 1)
    return found


def transformed(
    trace: Trace,
    folder: str | os.PathLike[str],
    *,
    merge: Sequence[str | os.PathLike[str]] = (),
    take: Sequence[int] | None = None,
    scale_bytes: float = 1.0,
    scale_compute: float = 1.0,
    steps: int = 1,
    name: str = "job",
) -> Path:
    """Write a set merged with others, then sliced, scaled and repeated, and return the folder.

    Args:
        trace: The set.
        folder: Where to.
        merge: Sets that run beside it, on the ranks that follow.
        take: Ranks to keep.
        scale_bytes: Factor on message sizes.
        scale_compute: Factor on compute times.
        steps: How often it runs.
        name: Prefix of the files.

    Raises:
        GenieError: As the functions of `genie.workload.transform`.
    """
    with tempfile.TemporaryDirectory(prefix="genie-workload-") as scratch:
        stages: list[Trace] = [trace]

        def then(made: Path) -> None:
            stages.append(load(made))

        if merge:
            others = [load(path) for path in merge]
            then(transform.merge([trace, *others], Path(scratch) / "merged"))
        if take is not None:
            then(transform.take(stages[-1], Path(scratch) / "taken", take))
        if scale_bytes != 1 or scale_compute != 1:
            then(
                transform.scale(
                    stages[-1], Path(scratch) / "scaled", nbytes=scale_bytes, compute=scale_compute
                )
            )
        return transform.repeat(stages[-1], folder, steps, name=name)
