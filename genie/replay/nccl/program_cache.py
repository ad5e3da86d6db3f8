"""Programs kept between calls: those in use anywhere, and the latest ones besides."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from weakref import WeakValueDictionary, ref

from genie.replay.nccl.program import Program

LIMIT_BYTES = 128 << 20

Key = tuple[ref[object], int]


class ProgramCache:
    """Programs by (schedule, rank).

    Equal shapes share one program as long as somebody holds it; up to `limit` bytes are held
    here, the oldest dropped first.

    Args:
        limit: bytes of arrays held.
    """

    def __init__(self, limit: int = LIMIT_BYTES) -> None:
        self._limit = limit
        self._bytes = 0
        self._alive: WeakValueDictionary[Key, Program] = WeakValueDictionary()
        self._held: OrderedDict[Key, Program] = OrderedDict()

    def get(self, owner: object, rank: int, make: Callable[[int], Program]) -> Program:
        """The program, made if nobody has it."""
        key = (ref(owner), rank)
        found = self._alive.get(key)
        if found is not None:
            if key in self._held:
                self._held.move_to_end(key)
            return found
        made = make(rank)
        self._alive[key] = made
        if made.nbytes <= self._limit // 2:
            self._held[key] = made
            self._bytes += made.nbytes
            while self._bytes > self._limit:
                _, old = self._held.popitem(last=False)
                self._bytes -= old.nbytes
        return made

    def clear(self) -> None:
        """Forgets all programs."""
        self._alive.clear()
        self._held.clear()
        self._bytes = 0


PROGRAMS = ProgramCache()
