"""A trace set on disk: one file a rank, made one after the other, and the groups beside them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from genie.trace import Builder


class Job(Protocol):
    """What can be written: ranks made on demand, and the groups they name."""

    @property
    def name(self) -> str:
        """Prefix of the files."""

    @property
    def world_size(self) -> int:
        """Number of ranks."""

    def rank(self, rank: int) -> Builder:
        """Return the nodes of one rank."""

    def groups(self) -> Mapping[str, Sequence[int]]:
        """Return group name → global ranks."""


def write_set(
    job: Job, folder: str | os.PathLike[str], progress: Callable[[int, int], None] | None = None
) -> Path:
    """Write every rank of `job` and its groups into `folder`, and return the folder.

    Args:
        job: What to write.
        folder: Created if it is not there.
        progress: Called with (ranks done, ranks in all).
    """
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    for rank in range(job.world_size):
        (target / f"{job.name}.{rank}.et").write_bytes(job.rank(rank).to_bytes())
        if progress:
            progress(rank + 1, job.world_size)
    groups = {name: list(members) for name, members in job.groups().items()}
    if groups:
        (target / f"{job.name}.groups.json").write_text(json.dumps(groups) + "\n")
    return target
