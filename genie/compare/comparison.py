"""`compare()`: how far a replay is from the truth, in numbers that say what they measure."""

from __future__ import annotations

import html
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from genie.compare.align import HOW, Alignment
from genie.compare.align import align as align_runs
from genie.compare.clocks import on_one_clock
from genie.compare.metrics import collective, messages, sensitivity, shape, step
from genie.compare.metrics.collective import BANDS
from genie.compare.metrics.path import path_parts
from genie.compare.periods import with_iterations
from genie.compare.truth.model import KINDS, Truth
from genie.errors import CompareError

if TYPE_CHECKING:
    import pandas as pd

    from genie.replay.recording import Recording


@dataclass(frozen=True, eq=False)
class Comparison:
    """Two runs side by side.

    Attributes:
        replay: Ours, as Truth tables.
        truth: The other side.
        alignment: Matched operations and what has no partner.
        health: The replay's own error, by name (empty when the replay is not a Recording).
        provenance: Both sides' origin.
        faults: Fault → replay and truth with it, for L3.
    """

    replay: Truth
    truth: Truth
    alignment: Alignment
    health: dict[str, float] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)
    faults: dict[str, tuple[Truth, Truth]] = field(default_factory=dict)

    @property
    def pairs(self) -> npt.NDArray[np.void]:
        """Matched operations (`align.PAIR`)."""
        return self.alignment.pairs

    @cached_property
    def messages(self) -> messages.MessageMatch | None:
        """L0, None where a side has no messages."""
        if self.replay.messages is None or self.truth.messages is None:
            return None
        return messages.match_messages(self.replay, self.truth)

    @cached_property
    def collectives(self) -> npt.NDArray[np.void]:
        """L1 by kind, communicator and size band (`collective.ERRORS`)."""
        return collective.collective_errors(self.alignment)

    @cached_property
    def overall(self) -> dict[str, float]:
        """L1 over all pairs, in several papers' definitions."""
        return collective.overall(self.alignment)

    @cached_property
    def step(self) -> dict[str, float]:
        """L2, empty where a side has no times of ranks."""
        return step.step_errors(self.replay, self.truth)

    @cached_property
    def path(self) -> dict[str, dict[str, float]]:
        """Parts of the critical path of each side's first measured iteration, ns."""
        return {"replay": path_parts(self.replay), "truth": path_parts(self.truth)}

    @cached_property
    def sensitivity(self) -> dict[str, sensitivity.Sensitivity]:
        """L3 by quantity ("step", "collectives"); empty without faults."""
        return sensitivity.of_runs((self.replay, self.truth), self.faults)

    @cached_property
    def shape(self) -> dict[str, dict[str, dict[str, float]]]:
        """NIC → distances between the shapes of traffic; empty where a side has no messages."""
        return shape.compare_shapes(self.replay, self.truth)

    def worst(self) -> float:
        """Return the largest |median error| over kinds and bands with at least one pair."""
        rows = self.collectives
        return float(np.nanmax(np.abs(rows["median_error"]))) if len(rows) else float("nan")

    def to_pandas(self) -> pd.DataFrame:
        """Return the matched operations as a DataFrame."""
        import pandas as pd

        data = {name: self.pairs[name] for name in self.pairs.dtype.names or ()}
        frame = pd.DataFrame(data)
        frame["kind"] = [KINDS[k] for k in self.pairs["kind"]]
        names = [*self.replay.labels.get("communicator", ()), ""]
        frame["communicator"] = [names[c] for c in self.pairs["communicator"]]
        frame["how"] = [HOW[h] for h in self.pairs["how"]]
        return frame

    def to_json(self) -> dict[str, Any]:
        """Return every number as one JSON-like document; NaN becomes None."""
        names = self.replay.labels.get("communicator", ())
        rows = []
        for row in self.collectives:
            entry = dict(zip(row.dtype.names, row.tolist(), strict=True))
            entry["kind"] = KINDS[row["kind"]]
            entry["communicator"] = names[row["communicator"]] if row["communicator"] >= 0 else ""
            entry["band"] = BANDS[row["band"]][1]
            rows.append(entry)
        match = self.messages
        document = {
            "pairs": len(self.pairs),
            "matched_by": {name: int((self.pairs["how"] == i).sum()) for i, name in enumerate(HOW)},
            "only_replay": {why: len(rows) for why, rows in self.alignment.only_replay.items()},
            "only_truth": {why: len(rows) for why, rows in self.alignment.only_truth.items()},
            "notes": list(self.alignment.notes) + list(self.truth.notes),
            "L0": (asdict(match) | {"rate": match.rate}) if match else None,
            "L1": {"overall": self.overall, "by_band": rows},
            "L2": self.step,
            "critical_path_ns": self.path,
            "L3": {name: asdict(found) for name, found in self.sensitivity.items()},
            "shape": self.shape,
            "health": self.health,
            "provenance": self.provenance,
        }
        found: dict[str, Any] = _no_nan(document)
        return found

    def summary(self) -> str:
        """Return the comparison as text."""
        from genie.compare.text import summary

        return summary(self)

    def save(self, path: str | os.PathLike[str], force: bool = False) -> str:
        """Write report.html, report.json and the figures into folder `path`."""
        from genie.compare.report import write

        return str(write(self, path, force))

    def __repr__(self) -> str:
        o = self.overall
        return (
            f"<Comparison: {len(self.pairs)} pairs, median error {o['median_error']:+.1%}, "
            f"geomean ratio {o['geomean_ratio']:.3f}>"
        )

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self.summary())}</pre>"


def _no_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _no_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_no_nan(item) for item in value]
    if isinstance(value, float) and not np.isfinite(value):
        return None
    if isinstance(value, np.generic):
        return _no_nan(value.item())
    return value


def compare(
    recording: Recording | Truth,
    truth: Truth | Recording,
    *,
    faults: Mapping[str, tuple[Recording | Truth, Recording | Truth]] | None = None,
    align: Callable[[Truth, Truth], Alignment] | None = None,
) -> Comparison:
    """Compare a replay with ground truth, or any two runs.

    Args:
        recording: A `Recording` of a replay or simulation (or Truth tables).
        truth: From `genie.load_truth`, or another `Recording`.
        faults: Fault → (replay, truth) with that fault in both worlds, for L3: the first two
            are then the runs without one.
        align: Another way to match operations.

    Raises:
        NothingMatchedError: The two have no operation in common.
        CompareError: A fault slows nothing that both worlds time.
    """
    sides = [_side(recording, "replay"), _side(truth, "truth")]
    provenance: dict[str, Any] = {
        name: {"source": side.source, "format": side.format, "counts": side.counts,
               "unused": side.unused} | ({"manifest": side.manifest} if side.manifest else {})
        for name, side in zip(("replay", "truth"), sides, strict=True)
    }  # fmt: skip
    # A simulation has no error of its own.
    health = sides[0].health if sides[0].mode == "replay" else {}
    ours, other = _brought_together(*sides)
    tried = {
        name: _brought_together(*(_side(side, name) for side in pair))
        for name, pair in (faults or {}).items()
    }
    for name, pair in tried.items():
        provenance[f"fault {name}"] = [side.source for side in pair]
    found = Comparison(ours, other, (align or align_runs)(ours, other), health, provenance, tried)
    if tried:
        _ = found.sensitivity  # what cannot be judged is said now
    return found


def _side(side: Recording | Truth, name: str) -> Truth:
    from genie.compare.truth.recording import from_recording
    from genie.replay.recording import Recording as RecordingClass

    if isinstance(side, RecordingClass):
        return from_recording(side, name)
    if isinstance(side, Truth):
        return side
    raise CompareError(f"compare takes a Recording or Truth, not {type(side).__name__}")


def _brought_together(replay: Truth, truth: Truth) -> tuple[Truth, Truth]:
    """Return both with their ranks on one clock and iterations numbered."""
    ours, other = on_one_clock(replay), on_one_clock(truth)
    return with_iterations(ours, other), with_iterations(other, ours)
