"""How long a worker may wait for a peer that is only computing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from genie.replay.ranks import RankPlan


def longest_compute_ns(ranks: Iterable[RankPlan]) -> int:
    """Return the longest compute time between two communications of a rank, ns.

    Counted in file order, with the end of an iteration joined to the begin of the next. Compute
    that overlaps counts in full, so the true time is no longer than this where a trace lists its
    nodes in the order in which it issued them. A worker's watchdog waits that much longer.
    """
    longest = 0
    for rank in ranks:
        total = np.concatenate([[0], np.cumsum(np.where(rank.cls == 1, rank.delay_ns, 0))])
        at = total[1:][rank.cls == 2]
        if not len(at):
            continue
        around = int(at[0]) + int(total[-1] - at[-1])
        between = int(np.diff(at).max(initial=0))
        longest = max(longest, around, between)
    return longest
