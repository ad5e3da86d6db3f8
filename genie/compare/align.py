"""Which operation of a replay is which operation of the truth.

First by identity: communicator (its ranks where both sides know them, else its name), position in
the communicator's order, kind and size. What is left is matched by kind and size in order of
time. Tables without ranks or times (nccl-tests) are matched by kind, size and number of ranks.
Nothing is matched by force: what has no partner is listed with the reason.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from genie.compare.instances import instances
from genie.compare.truth.model import KINDS, UNKNOWN
from genie.errors import NothingMatchedError

if TYPE_CHECKING:
    from genie.compare.truth.model import Truth

#: One matched pair; times in ns, errors relative (replay / truth - 1).
PAIR = np.dtype(
    [
        ("replay", "i8"),  # row of Alignment.replay
        ("truth", "i8"),  # row of Alignment.truth
        ("kind", "i4"),
        ("communicator", "i4"),  # code of the replay's labels
        ("nbytes", "i8"),
        ("iteration", "i4"),
        ("seq", "i4"),
        ("replay_ns", "f8"),
        ("truth_ns", "f8"),
        ("replay_busbw", "f8"),
        ("truth_busbw", "f8"),
        ("error", "f8"),
        ("how", "u1"),  # index into HOW
    ]
)
#: Differences of algorithms that are listed one by one.
MOST_NOTES = 8
HOW = ("identity", "order", "table")


@dataclass(frozen=True, eq=False)
class Alignment:
    """The matched operations of two runs, and what has no partner.

    Attributes:
        pairs: `PAIR` rows in the replay's order.
        replay: `instances.INSTANCE` rows of the replay.
        truth: `instances.INSTANCE` rows of the truth.
        only_replay: Reason → rows of `replay` without a partner.
        only_truth: Reason → rows of `truth` without a partner.
        notes: What differs otherwise: ranks absent, iterations, algorithms.
    """

    pairs: npt.NDArray[np.void]
    replay: npt.NDArray[np.void]
    truth: npt.NDArray[np.void]
    only_replay: dict[str, list[int]] = field(default_factory=dict)
    only_truth: dict[str, list[int]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def _ranks_of(truth: Truth) -> dict[int, Hashable]:
    """Return communicator code → what identifies it on the other side too."""
    found: dict[int, Hashable] = {}
    for code, name in enumerate(truth.labels.get("communicator", ())):
        ranks = truth.communicators.get(name)
        found[code] = ranks if ranks else name
    return found


def _is_table(rows: npt.NDArray[np.void], truth: Truth) -> bool:
    """Return whether a source is a table of sizes rather than a run with ranks and times."""
    return bool((truth.ops["rank"] < 0).all() or (rows["first_start_ns"] < 0).all())


def align(replay: Truth, truth: Truth) -> Alignment:
    """Match the communications of two runs.

    Args:
        replay: Ours.
        truth: The other side.

    Raises:
        NothingMatchedError: Not one operation is common to both; kinds and sizes of each are
            named.
    """
    mine, theirs = instances(replay), instances(truth)
    notes = list(_rank_notes(replay, truth))
    # Warm-up iterations are not measured.
    measured = (
        np.flatnonzero(mine["iteration"] >= 0)
        if (mine["iteration"] >= 0).any()
        else (np.arange(len(mine)))
    )
    theirs_rows = (
        np.flatnonzero(theirs["iteration"] >= 0)
        if ((theirs["iteration"] >= 0).any())
        else np.arange(len(theirs))
    )
    if _is_table(theirs, truth) or _is_table(mine, replay):
        matched = _by_table(mine, measured, theirs, theirs_rows)
    else:
        matched = _by_identity(replay, truth, mine, measured, theirs, theirs_rows)
        done_mine = {a for a, _, _ in matched}
        done_theirs = {b for _, b, _ in matched}
        matched += _by_order(
            mine,
            [i for i in measured.tolist() if i not in done_mine],
            theirs,
            [i for i in theirs_rows.tolist() if i not in done_theirs],
        )
    if not matched and not (len(mine) and len(theirs)) and _messages(replay, truth):
        # Messages without operations, as a verbs interceptor has: only L0 can be judged.
        notes.append("one side has messages but no operations: only messages are compared")
        return Alignment(np.zeros(0, PAIR), mine, theirs, notes=tuple(notes))
    if not matched:
        raise NothingMatchedError(
            f"no operation is common to both runs: {_kinds(mine)} against {_kinds(theirs)}"
        )
    pairs = _pairs(mine, theirs, sorted(matched))
    used_mine, used_theirs = {a for a, _, _ in matched}, {b for _, b, _ in matched}
    notes += _choice_notes(replay, truth, mine[pairs["replay"]], theirs[pairs["truth"]])
    return Alignment(
        pairs,
        mine,
        theirs,
        _unmatched(mine, measured.tolist(), used_mine, theirs),
        _unmatched(theirs, theirs_rows.tolist(), used_theirs, mine),
        tuple(notes),
    )


def _messages(replay: Truth, truth: Truth) -> bool:
    return all(side.messages is not None and len(side.messages) for side in (replay, truth))


def _key(row: np.void, identity: dict[int, Hashable], iteration: int) -> tuple[Hashable, ...]:
    code = int(row["communicator"])
    return (identity.get(code), iteration, int(row["seq"]), int(row["kind"]), int(row["nbytes"]),
            int(row["peer"]))  # fmt: skip


def _dense_iterations(rows: npt.NDArray[np.void], keep: npt.NDArray[np.int64]) -> dict[int, int]:
    """Return iteration number → 0, 1, … as the other side counts them."""
    return {int(it): i for i, it in enumerate(np.unique(rows["iteration"][keep]))}


def _by_identity(
    replay: Truth,
    truth: Truth,
    mine: npt.NDArray[np.void],
    measured: npt.NDArray[np.int64],
    theirs: npt.NDArray[np.void],
    theirs_rows: npt.NDArray[np.int64],
) -> list[tuple[int, int, int]]:
    """Match by communicator, sequence, kind, size; an iteration against the same iteration.

    A truth of one iteration is compared with every iteration of the replay.
    """
    ours, other = _ranks_of(replay), _ranks_of(truth)
    ours = _same_naming(ours, other, replay, truth)
    my_iterations = _dense_iterations(mine, measured)
    their_iterations = _dense_iterations(theirs, theirs_rows)
    several = len(their_iterations) > 1
    table: dict[tuple[Hashable, ...], list[int]] = defaultdict(list)
    for i in theirs_rows.tolist():
        row = theirs[i]
        it = their_iterations[int(row["iteration"])] if several else 0
        table[_key(row, other, it)].append(i)
    matched = []
    for i in measured.tolist():
        row = mine[i]
        it = my_iterations[int(row["iteration"])] if several else 0
        found = table.get(_key(row, ours, it))
        if found:
            matched.append((i, found.pop(0) if several else found[0], 0))
    return matched


def _same_naming(
    ours: dict[int, Hashable],
    other: dict[int, Hashable],
    replay: Truth,
    truth: Truth,
) -> dict[int, Hashable]:
    """Return our communicators' identities in the other side's terms.

    Where only one side knows the ranks of a communicator, names decide; a lone communicator on
    each side is the same one.
    """
    known = set(other.values())
    named = {name: other[code] for code, name in enumerate(truth.labels.get("communicator", ()))}
    out = {}
    labels = replay.labels.get("communicator", ())
    for code, identity in ours.items():
        if identity not in known and labels[code] in named:
            out[code] = named[labels[code]]
        elif identity not in known and len(ours) == 1 and len(known) == 1:
            out[code] = next(iter(known))
        else:
            out[code] = identity
    if not other:
        return dict.fromkeys(out)
    return out


def _by_order(
    mine: npt.NDArray[np.void], left: list[int], theirs: npt.NDArray[np.void], right: list[int]
) -> list[tuple[int, int, int]]:
    """Match what is left by kind, size and number of ranks, first come first served."""
    waiting: dict[tuple[int, int, int], deque[int]] = defaultdict(deque)
    for i in right:
        row = theirs[i]
        if row["nbytes"] >= 0 and row["kind"] != UNKNOWN:
            size = int(row["group_size"]) if row["group_size"] > 0 else int(row["ranks"])
            waiting[int(row["kind"]), int(row["nbytes"]), size].append(i)
    matched = []
    for i in left:
        row = mine[i]
        size = int(row["group_size"]) if row["group_size"] > 0 else int(row["ranks"])
        queue = waiting.get((int(row["kind"]), int(row["nbytes"]), size))
        if queue:
            matched.append((i, queue.popleft(), 1))
    return matched


def _by_table(
    mine: npt.NDArray[np.void],
    measured: npt.NDArray[np.int64],
    theirs: npt.NDArray[np.void],
    theirs_rows: npt.NDArray[np.int64],
) -> list[tuple[int, int, int]]:
    """Match every operation of ours with the table row of its kind and size.

    A row of unknown kind matches any; sizes printed twice are matched in turn.
    """
    rows: dict[tuple[int, int], list[int]] = defaultdict(list)
    for i in theirs_rows.tolist():
        rows[int(theirs[i]["kind"]), int(theirs[i]["nbytes"])].append(i)
    turn: dict[tuple[int, int], int] = defaultdict(int)
    matched = []
    for i in measured.tolist():
        row = mine[i]
        for kind in (int(row["kind"]), UNKNOWN):
            key = (kind, int(row["nbytes"]))
            found = rows.get(key)
            if found:
                matched.append((i, found[turn[key] % len(found)], 2))
                turn[key] += 1
                break
    return matched


def _pairs(
    mine: npt.NDArray[np.void],
    theirs: npt.NDArray[np.void],
    matched: list[tuple[int, int, int]],
) -> npt.NDArray[np.void]:
    out = np.zeros(len(matched), PAIR)
    out["replay"], out["truth"], out["how"] = np.array(matched, np.int64).T
    ours, other = mine[out["replay"]], theirs[out["truth"]]
    for name in ("kind", "communicator", "nbytes", "iteration", "seq"):
        out[name] = ours[name]
    out["replay_ns"], out["truth_ns"] = ours["transfer_ns"], other["transfer_ns"]
    out["replay_busbw"], out["truth_busbw"] = ours["busbw"], other["busbw"]
    with np.errstate(divide="ignore", invalid="ignore"):
        out["error"] = np.where(out["truth_ns"] > 0, out["replay_ns"] / out["truth_ns"] - 1, np.nan)
    return out


def _unmatched(
    rows: npt.NDArray[np.void], keep: list[int], used: set[int], other: npt.NDArray[np.void]
) -> dict[str, list[int]]:
    """Return reason → rows that have no partner."""
    kinds = set(other["kind"].tolist())
    sizes = set(zip(other["kind"].tolist(), other["nbytes"].tolist(), strict=True))
    found: dict[str, list[int]] = defaultdict(list)
    for i in keep:
        if i in used:
            continue
        row = rows[i]
        kind = KINDS[row["kind"]]
        if row["nbytes"] < 0:
            found[f"{kind} without a size (coalesced, or no metadata)"].append(i)
        elif row["kind"] not in kinds:
            found[f"{kind}: the other side has none"].append(i)
        elif (int(row["kind"]), int(row["nbytes"])) not in sizes:
            found[f"{kind} of {int(row['nbytes'])} B: the other side has none"].append(i)
        else:
            found[f"{kind} of {int(row['nbytes'])} B: the other side has fewer"].append(i)
    return dict(found)


def _rank_notes(replay: Truth, truth: Truth) -> list[str]:
    """Say which ranks one side lacks, and what then cannot be judged."""
    ours = set(replay.ops["rank"].tolist()) - {-1}
    other = set(truth.ops["rank"].tolist()) - {-1}
    notes = []
    if ours and other:
        for name, absent in (("truth", ours - other), ("replay", other - ours)):
            if absent:
                shown = ", ".join(map(str, sorted(absent)[:16])) + (
                    " …" if len(absent) > 16 else ""
                )
                notes.append(
                    f"the {name} lacks ranks {shown}: waiting and step time of those ranks are "
                    "not judged, a collective's time is that of the ranks present"
                )
    return notes


def _choice_notes(
    replay: Truth, truth: Truth, mine: npt.NDArray[np.void], theirs: npt.NDArray[np.void]
) -> list[str]:
    """Say for which calls the two sides used another algorithm or protocol."""
    found: dict[str, int] = defaultdict(int)
    for row, other in zip(mine, theirs, strict=True):
        here, there = _choice(replay, row), _choice(truth, other)
        # What one side does not say is no difference.
        known = [(a, b) for a, b in zip(here, there, strict=True) if a and b]
        if any(a != b for a, b in known):
            ours, truths = ("/".join(part) for part in zip(*known, strict=True))
            found[
                f"{KINDS[row['kind']]} of {int(row['nbytes'])} B: {ours} here, {truths} in the "
                "truth"
            ] += 1
    notes = [f"{what} ({n} of the pairs)" for what, n in found.items()]
    if len(notes) > MOST_NOTES:
        notes[MOST_NOTES:] = [f"{len(notes) - MOST_NOTES} more differences of algorithms"]
    return notes


def _choice(side: Truth, row: np.void) -> tuple[str, str]:
    """Return (algorithm, protocol) of an instance, "" where the side does not say."""
    op = side.ops[int(row["first_row"])]
    words = []
    for column in ("algorithm", "protocol"):
        code = int(op[column])
        words.append(side.labels[column][code].lower() if code >= 0 else "")
    return words[0], words[1]


def _kinds(rows: npt.NDArray[np.void]) -> str:
    """Return a short list of kinds and sizes for an error."""
    pairs, counts = np.unique(
        np.stack([rows["kind"], rows["nbytes"]], axis=1), axis=0, return_counts=True
    )
    shown = [
        f"{n} x {KINDS[kind]} of {size} B"
        for (kind, size), n in zip(pairs[:4].tolist(), counts[:4].tolist(), strict=True)
    ]
    return (", ".join(shown) or "nothing") + (" …" if len(pairs) > 4 else "")
