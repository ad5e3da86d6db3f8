"""Counters read before, during and after a run, by a thread of their own."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

#: A value that was read: index of its series, CLOCK_MONOTONIC, the counter.
SAMPLE = np.dtype([("series", "u4"), ("t_ns", "i8"), ("value", "i8")])
#: Samples kept; beyond it only the last reading is added.
MAX_SAMPLES = 4 << 20
_INT64_MAX = (1 << 63) - 1
Reading = Mapping[tuple[str, str], int]


class Sampler:
    """What counters said over time: everything at first and last, changes in between.

    Args:
        read_all: Returns (device, counter) → value, for before and after the run.
        read: Returns those that are to be read during it.
        interval_s: Seconds between two readings of the thread; 0 reads only at first and last.
        start_ns: CLOCK_MONOTONIC at which readings begin, so that those of all workers fall
            together; the thread sleeps until then.
        cores: Where the thread may run; None leaves it with the cores of its maker, which a
            polling worker may have to itself.
    """

    def __init__(
        self,
        read_all: Callable[[], Reading],
        read: Callable[[], Reading],
        interval_s: float = 0.0,
        start_ns: int = 0,
        cores: set[int] | None = None,
    ) -> None:
        self._read_all, self._read = read_all, read
        self._interval_ns = round(interval_s * 1e9)
        self._cores = cores
        self._series: dict[tuple[str, str], int] = {}
        self._last: list[int] = []
        self._rows: list[tuple[int, int, int]] = []
        self._full = False
        self._take(everything=True)
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        if self._interval_ns > 0:
            self._next_ns = max(start_ns, time.monotonic_ns()) + self._interval_ns
            self._thread = threading.Thread(target=self._run, name="genie-counters", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        if self._cores:
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, self._cores)
        while not self._ended.wait((self._next_ns - time.monotonic_ns()) / 1e9):
            self._take(everything=False)
            # Readings that were missed (a stopped process, a busy core) are not made up for.
            late = max(time.monotonic_ns() - self._next_ns, 0)
            self._next_ns += (late // self._interval_ns + 1) * self._interval_ns

    def _take(self, everything: bool) -> None:
        # Taken first: what was done by then is in the values.
        now = time.monotonic_ns()
        found = self._read_all() if everything else self._read()
        for key, raw in found.items():
            value = min(raw, _INT64_MAX)  # the kernel counts in 64 bits without a sign
            number = self._series.setdefault(key, len(self._series))
            if number == len(self._last):
                self._last.append(value)
            elif not everything and self._last[number] == value:
                continue
            if not everything and len(self._rows) >= MAX_SAMPLES:
                self._full = True
                return
            self._last[number] = value
            self._rows.append((number, now, value))

    def stop(self) -> None:
        """End the thread and add the reading of the end, whole."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        self._take(everything=True)

    @property
    def full(self) -> bool:
        """Whether there were more changes than are kept."""
        return self._full

    @property
    def series(self) -> tuple[tuple[str, str], ...]:
        """(device, counter) of each series number."""
        return tuple(self._series)

    def samples(self) -> npt.NDArray[np.void]:
        """Return rows of SAMPLE in the order of reading."""
        return np.array(self._rows, dtype=SAMPLE)
