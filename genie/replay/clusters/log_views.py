"""Which lines of an NCCL log belong to which communicator, and whether it is one job's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from genie.errors import InputError

__all__ = ["COMM", "RANKS", "View", "choose", "lines", "split"]

_PREFIX = re.compile(r"([\w.\-]+):(\d+):(\d+) \[(\d+)\] $")
_LEVEL = re.compile(r"NCCL (?:INFO|WARN|TRACE) ")
_MIDDLE = re.compile(r"->(\d{1,9})->")
_PREFIX_CHARS = 400  # what may stand before "NCCL INFO": launcher's mark, time, host name
_MOST_CHARS = 8192  # NCCL cuts its lines at 1 KiB; longer ones are not NCCL's
COMM = re.compile(r"comm (0x[0-9a-fA-F]+) rank (\d+) n[rR]anks (\d+)")
_COMM_ID = re.compile(r"commId (0x[0-9a-fA-F]+)")
RANKS = re.compile(r"(?:Channel|Ring) (\d+)(?:/(\d+))?\s*:((?:\s+\d+)+)\s*(?:\.\.\.)?\s*$")


@dataclass
class View:
    """One process's lines about one communicator.

    Attributes:
        process: Host name, process id and device; ("",) in a log without prefixes.
        pointer: Address of the communicator in the process.
        identity: Id that all ranks of the communicator share (2.17 and later).
        rank: Rank of the process.
        n_ranks: Ranks of the communicator.
        complete: Whether its set-up is over.
        child: Whether it was made from another communicator of its job (ncclCommSplit).
        lines: Line numbers and texts.
    """

    process: tuple[str, ...]
    pointer: str | None = None
    identity: str | None = None
    rank: int | None = None
    n_ranks: int | None = None
    complete: bool = False
    child: bool = False
    lines: list[tuple[int, str]] = field(default_factory=list)


def lines(text: str) -> Iterator[tuple[int, tuple[str, ...], str]]:
    """Yield line number, process and text of every line that may be NCCL's."""
    for number, line in enumerate(text.splitlines(), 1):
        if len(line) > _MOST_CHARS:
            continue
        level = _LEVEL.search(line) if "NCCL " in line else None
        if level is None:
            yield number, ("",), line.strip()
            continue
        start = level.start()
        match = _PREFIX.search(line[max(0, start - _PREFIX_CHARS) : start])
        process = (match[1], match[2], match[4]) if match else ("",)
        yield number, process, line[level.end() :]


def split(text: str) -> list[View]:
    """Give each line to the communicator its process was setting up when it wrote it."""
    views: list[View] = []
    current: dict[tuple[str, ...], View] = {}
    named: dict[tuple[tuple[str, ...], str], View] = {}
    for number, process, line in lines(text):
        match = COMM.search(line) if "comm 0x" in line else None
        if match:
            pointer, rank, ranks = match[1], int(match[2]), int(match[3])
            key = (process, pointer)
            view = named.get(key)
            if view is None or (view.complete and "Init START" in line):
                view = current.get(process)
                fresh = view is None or view.complete or view.pointer is not None
                if view is None or fresh:
                    view = View(process)
                    views.append(view)
                named[key] = view
            elif _is_another(view, rank, ranks, _COMM_ID.search(line)):
                view = View(process)  # an address used again
                views.append(view)
                named[key] = view
            view.pointer, view.rank, view.n_ranks = pointer, rank, ranks
            identity = _COMM_ID.search(line)
            if identity:
                view.identity = identity[1]
            view.complete = view.complete or "COMPLETE" in line
            view.child = view.child or "ncclCommSplit" in line
            view.lines.append((number, line))
            current[process] = view
            continue
        if not _is_about_channels(line):
            continue
        found = current.get(process)
        if found is None or (found.complete and _starts_setup(line)):
            found = View(process)
            views.append(found)
            current[process] = found
        found.lines.append((number, line))
    return views


def _is_another(view: View, rank: int, ranks: int, identity: re.Match[str] | None) -> bool:
    """Whether a line with a known address is about another communicator at that address."""
    if view.rank is not None and (view.rank, view.n_ranks) != (rank, ranks):
        return True
    return identity is not None and view.identity not in (None, identity[1])


def _is_about_channels(line: str) -> bool:
    return any(
        word in line
        for word in ("Channel ", "Ring ", "Tree", "channels", "P2P Chunksize", "NVLS Head",
                     "Pattern ", "NET/", "GPU/")
    )  # fmt: skip


def _starts_setup(line: str) -> bool:
    """Whether a line belongs to a communicator's set-up and not to later connections."""
    return "via " not in line and any(w in line for w in ("Trees", "Pattern ", "Channel "))


def choose(views: list[View], where: str) -> tuple[list[View], int]:
    """Return the views of the largest communicator, and how many there are; refuse two jobs."""
    if not views:
        raise InputError(
            f"{where}: no NCCL lines about channels (NCCL_DEBUG=INFO prints them)", path=where
        )
    for view in views:
        _infer_rank(view)
    turn: dict[tuple[str, ...], int] = {}
    groups: dict[tuple[object, ...], list[View]] = {}
    for view in views:
        order = turn[view.process] = turn.get(view.process, -1) + 1
        key = (view.identity,) if view.identity else ("turn", order, view.n_ranks)
        groups.setdefault(key, []).append(view)
    _join_anonymous(groups)
    best = max(groups.values(), key=lambda g: (max(v.n_ranks or 0 for v in g), len(g)))
    _refuse_two(best, where)
    _refuse_unknown(best, groups, where)
    inside = {view.process[:2] for view in best}
    for other in groups.values():
        if other is best:
            continue
        if not inside & {view.process[:2] for view in other}:
            raise InputError(
                f"{where}: two jobs in one log: a communicator of "
                f"{best[0].n_ranks or 'unknown'} ranks and one of "
                f"{other[0].n_ranks or 'unknown'} ranks share no process; give the log of one",
                path=where,
            )
    return best, len(groups)


def _infer_rank(view: View) -> None:
    """Take the rank of the one tree row a process prints where no other line names it."""
    if view.rank is None and len(view.process) > 1:
        rows = (line for _, line in view.lines if line.lstrip().startswith("Trees"))
        ranks = {rank for line in rows for rank in _MIDDLE.findall(line)}
        if len(ranks) == 1:
            view.rank = int(ranks.pop())


def _join_anonymous(groups: dict[tuple[object, ...], list[View]]) -> None:
    """Lines without a communicator belong to the named one that lacks those processes."""
    loose = [key for key, group in groups.items() if all(v.n_ranks is None for v in group)]
    named = [key for key in groups if key not in loose]
    if len(named) == 1 and loose:
        processes = {v.process for v in groups[named[0]]}
        for key in loose:
            extra = [v for v in groups[key] if v.process not in processes]
            if len(extra) == len(groups[key]):
                groups[named[0]] += groups.pop(key)


def _refuse_two(group: list[View], where: str) -> None:
    seen: dict[int, tuple[str, ...]] = {}
    for view in group:
        if view.rank is None:
            continue
        if len(view.process) == 1:
            continue  # no prefix, so nothing tells one process from another
        if view.rank in seen and seen[view.rank] != view.process:
            raise InputError(
                f"{where}: two jobs in one log: rank {view.rank} of {view.n_ranks} is "
                f"{_name(seen[view.rank])} and {_name(view.process)}; give the log of one",
                path=where,
                rank=view.rank,
            )
        seen[view.rank] = view.process
    firsts = {
        view.process
        for view in group
        if len(view.process) > 1
        and any("->" not in line and RANKS.search(line) for _, line in view.lines)
    }
    if len(firsts) > 1:
        names = " and ".join(_name(process) for process in sorted(firsts)[:2])
        raise InputError(
            f"{where}: two jobs in one log: only rank 0 lists the rings, and {names} both do",
            path=where,
        )


def _refuse_unknown(
    best: list[View], groups: dict[tuple[object, ...], list[View]], where: str
) -> None:
    """Refuse a second communicator as large where no prefix says whose it is."""
    ranks: dict[tuple[str, ...], set[int]] = {}
    for view in best:
        if view.rank is not None:
            ranks.setdefault(view.process, set()).add(view.rank)
    if all(len(found) == 1 and len(process) > 1 for process, found in ranks.items()):
        return
    for other in groups.values():
        if other is best or any(view.child for view in other):
            continue
        if ranks and best[0].n_ranks == other[0].n_ranks and other[0].identity is not None:
            raise InputError(
                f"{where}: two communicators of {best[0].n_ranks} ranks, perhaps of two jobs in "
                "one log: its lines do not name the processes; give the log of one",
                path=where,
            )


def _name(process: tuple[str, ...]) -> str:
    return f"process {process[1]} on {process[0]}"
