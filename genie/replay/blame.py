"""Who holds up a run that stands still, from what all workers say they wait for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence


def culprits(waits: Iterable[tuple[int, int]]) -> list[int]:
    """Return the ranks that others wait for and that wait for nobody themselves.

    Args:
        waits: (rank that waits, rank it waits for), of all workers that answered.

    Returns:
        Those ranks; empty when ranks wait for each other in a circle.
    """
    pairs = list(waits)
    waiting = {rank for rank, _ in pairs}
    return sorted({peer for _, peer in pairs} - waiting)


def describe(
    waits: Mapping[int, Sequence[tuple[int, int]]],
    explanations: Mapping[int, str],
    names: Sequence[str],
    worker_of: Mapping[int, int],
    silent: Iterable[int],
) -> str:
    """Return the report of a run that stands still.

    Args:
        waits: Worker → its waits.
        explanations: Worker → what its engine says.
        names: What to call each worker.
        worker_of: Rank → worker.
        silent: Workers that do not answer any more.
    """
    found = culprits(pair for pairs in waits.values() for pair in pairs)
    quiet = set(silent)
    lines = []
    for rank in found[:8]:
        worker = worker_of[rank]
        waiters = sorted({a for pairs in waits.values() for a, b in pairs if b == rank})
        text = ", ".join(map(str, waiters[:8])) + (", ..." if len(waiters) > 8 else "")
        state = "which does not answer any more" if worker in quiet else "which waits for nobody"
        lines.append(
            f"rank {rank} of {names[worker]}, {state}, is waited for by rank"
            f"{'s'[: len(waiters) > 1]} {text}"
        )
    if len(found) > 8:
        lines.append(f"and {len(found) - 8} ranks more are waited for")
    for worker in sorted(quiet - {worker_of[rank] for rank in found}):
        lines.append(f"{names[worker]} does not answer any more")
    if not lines:
        lines.append("ranks wait for each other in a circle")
    # The worker next to a culprit saw it best.
    near = [w for w, pairs in waits.items() if any(b in found for _, b in pairs)]
    for worker in (near or list(explanations))[:1]:
        if explanations.get(worker):
            lines.append(f"{names[worker]}: {explanations[worker]}")
    return "\n".join(lines)
