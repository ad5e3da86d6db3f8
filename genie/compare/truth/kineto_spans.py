"""Annotations, profiler steps and launches of one Kineto file: a kernel's surroundings."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from genie.compare.truth.kineto_file import Event, Profile, as_int, correlation_of

#: Categories of calls into the GPU's runtime.
RUNTIME = ("cuda_runtime", "cuda_driver", "hip_runtime", "runtime", "Runtime")


class _Nested:
    """Intervals of one thread or stream that may lie within each other."""

    def __init__(self) -> None:
        self._spans: list[tuple[float, float, str]] = []
        self._starts: list[float] = []
        self._reach: list[float] = []

    def add(self, start: float, end: float, name: str) -> None:
        """Add an interval."""
        self._spans.append((start, end, name))
        self._starts.clear()

    def around(self, at: float) -> str | None:
        """Return the name of the shortest interval that contains a time."""
        if not self._starts:
            self._spans.sort(key=lambda span: span[0])
            self._starts = [span[0] for span in self._spans]
            reach = -np.inf
            self._reach = [reach := max(reach, span[1]) for span in self._spans]
        found: tuple[float, str] | None = None
        i = bisect_right(self._starts, at) - 1
        # Nothing before a place that no earlier interval reaches can contain the time.
        while i >= 0 and self._reach[i] >= at:
            start, end, name = self._spans[i]
            if end >= at and (found is None or end - start <= found[0]):
                found = (end - start, name)
            i -= 1
        return None if found is None else found[1]


class Spans:
    """Where PyTorch's "nccl:…" and "ProfilerStep#…" annotations are, on device and CPU."""

    def __init__(self) -> None:
        self._device: dict[int, _Nested] = defaultdict(_Nested)
        self.host: dict[int, _Nested] = defaultdict(_Nested)
        self._device_steps: set[float] = set()
        self._host_steps: set[float] = set()

    def add(self, event: Event) -> None:
        """Take an annotation; others are passed over."""
        on_device = event.cat == "gpu_user_annotation"
        if event.name.startswith("nccl:"):
            where = self._device if on_device else self.host
            where[as_int(event.tid)].add(
                float(event.ts), float(event.ts + (event.dur or 0)), event.name
            )
        elif event.name.startswith("ProfilerStep"):
            (self._device_steps if on_device else self._host_steps).add(float(event.ts))

    @property
    def by_launch(self) -> bool:
        """Whether a kernel's step is that of its launch: several steps, none on the device."""
        return not self._device_steps and len(self._host_steps) > 1

    def on_device(self, event: Event) -> str | None:
        """Return the innermost annotation on the device around a kernel's start."""
        spans = self._device.get(as_int(event.tid))
        return None if spans is None else spans.around(float(event.ts))

    def on_host(self, thread: int, at: float) -> str | None:
        """Return the innermost annotation around a call of a thread."""
        spans = self.host.get(thread)
        return None if spans is None else spans.around(at)

    def iterations(self, at: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        """Return the step of each time (us), -1 before the first or where there is none."""
        steps = np.array(sorted(self._device_steps or self._host_steps))
        found: npt.NDArray[np.int64] = np.searchsorted(steps, at, side="right") - 1
        return found


def launches(profile: Profile, wanted: set[int]) -> dict[int, tuple[int, float]]:
    """Return correlation id → (thread, time in us) of the calls with these ids."""
    found = {}
    for events in profile.pick({"cat": RUNTIME}):
        for event in events:
            correlation = correlation_of(event)
            if correlation in wanted:
                found[correlation] = (as_int(event.tid), float(event.ts))
    return found


def launches_of(
    profile: Profile, device: tuple[str, ...], counts: Callable[[Event], bool]
) -> npt.NDArray[np.float64]:
    """Return when each device event was launched, us, in the file's order; NaN if unknown.

    Args:
        profile: The file.
        device: Categories of device events.
        counts: Which of them count.
    """
    called: list[int] = []
    at: list[float] = []
    ran: list[int] = []
    for events in profile.pick({"cat": (*RUNTIME, *device)}):
        for event in events:
            if event.cat in RUNTIME:
                correlation = correlation_of(event)
                if correlation >= 0:
                    called.append(correlation)
                    at.append(float(event.ts))
            elif counts(event):
                ran.append(correlation_of(event))
    ids, times = np.array(called, np.int64), np.array(at)
    order = np.argsort(ids, kind="stable")
    ids, times = ids[order], times[order]
    wanted = np.array(ran, np.int64)
    # Of several calls with one id the last counts.
    place = np.searchsorted(ids, wanted, side="right") - 1
    out = np.full(len(wanted), np.nan)
    known = place >= 0
    known[known] = ids[place[known]] == wanted[known]
    out[known] = times[place[known]]
    return out
