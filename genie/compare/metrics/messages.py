"""L0: the messages themselves: channel, peer, bytes, order, equal or not."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from genie.errors import CompareError

if TYPE_CHECKING:
    from genie.compare.truth.model import Truth


@dataclass(frozen=True)
class MessageMatch:
    """How far two runs' messages agree.

    Attributes:
        compared: Messages of the truth's streams that the replay was held against.
        equal: Of these, equal in bytes at the same place of their stream.
        streams: (rank, peer, channel, direction) streams of the truth.
        equal_streams: Streams equal in number, bytes and order.
        replay_only: Streams that only the replay has.
        first_difference: Words for the first difference, "" if there is none.
        bytes_error: Largest |replay / truth - 1| of bytes of a rank and direction.
    """

    compared: int
    equal: int
    streams: int
    equal_streams: int
    replay_only: int
    first_difference: str
    bytes_error: float

    @property
    def rate(self) -> float:
        """Fraction of messages that are equal."""
        return self.equal / self.compared if self.compared else float("nan")


def match_messages(replay: Truth, truth: Truth) -> MessageMatch:
    """Compare the messages of two runs stream by stream.

    One iteration of each side is taken, the first measured one. A stream is what one rank sent to
    (or received from) one peer on one channel; unknown peers or channels (-1 on either side) are
    taken together on both. Order is that of posting.

    Raises:
        CompareError: One side has no messages.
    """
    for side, name in ((replay, "replay"), (truth, "truth")):
        if side.messages is None or not len(side.messages):
            raise CompareError(f"the {name} ({side.source}) has no messages to compare")
    assert replay.messages is not None and truth.messages is not None
    ignore = tuple(
        name
        for name in ("peer", "channel")
        if (replay.messages[name] < 0).any() or (truth.messages[name] < 0).any()
    )
    ours, other = _streams(replay, ignore), _streams(truth, ignore)
    compared = equal = equal_streams = 0
    first = ""
    for key, theirs in other.items():
        mine = ours.get(key, [])
        n = max(len(mine), len(theirs))
        same = sum(a == b for a, b in zip(mine, theirs, strict=False))
        compared += n
        equal += same
        if same == n:
            equal_streams += 1
        elif not first:
            first = _difference(key, mine, theirs)
    extra = [key for key in ours if key not in other]
    compared += sum(len(ours[key]) for key in extra)
    if extra and not first:
        first = f"{_words(extra[0])}: only the replay has these messages"
    return MessageMatch(
        compared, equal, len(other), equal_streams, len(extra), first, _bytes_error(ours, other)
    )


def first_iteration(side: Truth) -> npt.NDArray[np.void]:
    """Return the messages of the first measured iteration, all where that is not known."""
    rows = side.messages
    assert rows is not None
    if len(side.ops):
        known = rows["op"] >= 0
        iteration = np.where(known, side.ops["iteration"][np.maximum(rows["op"], 0)], -1)
        if (iteration >= 0).any():
            chosen: npt.NDArray[np.void] = rows[iteration == iteration[iteration >= 0].min()]
            return chosen
    return rows


def _streams(side: Truth, ignore: tuple[str, ...]) -> dict[tuple[int, ...], list[int]]:
    rows = first_iteration(side)
    order = np.lexsort((np.arange(len(rows)), rows["start_ns"]))
    found: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for row in rows[order]:
        key = (
            int(row["rank"]),
            -1 if "peer" in ignore else int(row["peer"]),
            -1 if "channel" in ignore else int(row["channel"]),
            int(row["direction"]),
        )
        found[key].append(int(row["nbytes"]))
    return found


def _words(key: tuple[int, ...]) -> str:
    rank, peer, channel, direction = key
    way = ("to", "from")[direction]
    return f"rank {rank} {way} {peer if peer >= 0 else 'any'}, channel " + (
        str(channel) if channel >= 0 else "any"
    )


def _difference(key: tuple[int, ...], mine: list[int], theirs: list[int]) -> str:
    for i, (a, b) in enumerate(zip(mine, theirs, strict=False)):
        if a != b:
            return f"{_words(key)}: message {i} is {a} B here and {b} B in the truth"
    return f"{_words(key)}: {len(mine)} messages here, {len(theirs)} in the truth"


def _bytes_error(
    ours: dict[tuple[int, ...], list[int]], other: dict[tuple[int, ...], list[int]]
) -> float:
    totals: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0])
    for which, side in enumerate((ours, other)):
        for key, sizes in side.items():
            totals[key[0], key[3]][which] += sum(sizes)
    errors = [abs(a / b - 1) if b else float("inf") for a, b in totals.values() if a or b]
    return max(errors, default=float("nan"))
