"""Small generated traces: steps of compute and collectives on every rank."""

from __future__ import annotations

from pathlib import Path

from genie.trace import Builder, load, write
from genie.trace.kinds import Coll, Kind


def write_steps(
    folder: Path, ranks: int = 4, steps: int = 20, comp_ns: int = 1_000_000, nbytes: int = 65536
) -> Path:
    """Write a trace of `steps` times (compute, all_reduce) and return its prefix."""
    made = []
    for _ in range(ranks):
        builder = Builder()
        last: list[int] = []
        for step in range(steps):
            comp = builder.node(Kind.COMP, f"fwd {step}", deps=last, duration_ns=comp_ns)
            last = [
                builder.node(
                    Kind.COMM_COLL, f"grads {step}", deps=[comp], coll=Coll.ALL_REDUCE,
                    nbytes=nbytes, dtype="float32",
                )
            ]  # fmt: skip
        made.append(builder)
    write(folder, "steps", made)
    return folder / "steps"


def steps(folder: Path, **options: int):
    """Return such a trace, loaded."""
    return load(write_steps(folder, **options))
