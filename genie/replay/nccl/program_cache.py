"""Programs kept between calls, oldest dropped when they take too much memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from weakref import ref

from genie.replay.nccl.program import Program

LIMIT_BYTES = 128 << 20


class ProgramCache:
    """Programs by (schedule, rank).

    Args:
        limit: bytes of arrays kept.
    """

    def __init__(self, limit: int = LIMIT_BYTES) -> None:
        self._limit = limit
        self._held = 0
        self._programs: OrderedDict[tuple[ref[object], int], Program] = OrderedDict()

    def get(self, owner: object, rank: int, make: Callable[[int], Program]) -> Program:
        """The program, made if it is not kept."""
        key = (ref(owner), rank)
        found = self._programs.get(key)
        if found is not None:
            self._programs.move_to_end(key)
            return found
        made = make(rank)
        if made.nbytes <= self._limit // 2:
            self._programs[key] = made
            self._held += made.nbytes
            while self._held > self._limit:
                _, old = self._programs.popitem(last=False)
                self._held -= old.nbytes
        return made

    def clear(self) -> None:
        """Forgets all programs."""
        self._programs.clear()
        self._held = 0


PROGRAMS = ProgramCache()
