"""What an experiment found: its runs, and a row for each condition, phase and size."""

from __future__ import annotations

import html
import math
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from genie.experiment.spec import to_fields
from genie.experiment.statistics import interval

if TYPE_CHECKING:
    from genie.experiment.spec import Experiment
    from genie.replay.recording import Recording

#: What a run can be: all well; the CPU was its limit; it did not end.
OK, CPU_LIMITED, FAILED = "ok", "cpu-limited", "failed"


@dataclass
class RunResult:
    """One run.

    Attributes:
        number: Place in the order, from 1.
        condition: Its name.
        repetition: Which run of its condition, from 1.
        phase: "" or "from run K", where a change is in force.
        status: "ok", "cpu-limited" or "failed".
        values: What was measured ("all_reduce 4 MiB", "step") → one value an iteration.
        limits: Why the CPU may have been the limit.
        error: Why it failed.
        folder: Of its recording, from the experiment's; "" when nothing is kept.
        began: UTC, ISO 8601.
        seconds: From the start of the workers to their end.
        health: Worst worker's poll gap p99, timer error p99, CPU shares.
        counters: Of the testbed's links: how much each counted in this run.
        recording: The recording, when no folder is kept.
    """

    number: int
    condition: str
    repetition: int
    phase: str
    status: str = OK
    values: dict[str, list[float]] = field(default_factory=dict)
    limits: list[str] = field(default_factory=list)
    error: str = ""
    folder: str = ""
    began: str = ""
    seconds: float = 0.0
    health: dict[str, float] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    recording: Recording | None = None

    def value(self, what: str) -> float:
        """Return the run's one number of `what`: the median over its iterations."""
        found = self.values.get(what)
        return float(np.median(found)) if found else float("nan")

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        plain = {k: v for k, v in vars(self).items() if k != "recording"}
        plain["health"] = {k: v for k, v in self.health.items() if math.isfinite(v)}
        return plain


@dataclass(frozen=True)
class Row:
    """The runs of one condition and phase, of one thing measured.

    Attributes:
        condition: Name.
        phase: "" or "from run K".
        what: Such as "all_reduce 4 MiB".
        unit: "GB/s" (bus bandwidth) or "ns".
        runs: How many were counted.
        mean, low, high: Mean of the runs' values and its confidence interval.
        smallest, largest: Of the runs' values.
        simulated: What `simulate` says of the condition without its changes; NaN: not simulated.
        error: mean / simulated - 1.
    """

    condition: str
    phase: str
    what: str
    unit: str
    runs: int
    mean: float
    low: float
    high: float
    smallest: float
    largest: float
    simulated: float
    error: float


@dataclass
class ExperimentResult:
    """An experiment's outcome.

    Attributes:
        spec: What was asked for.
        runs: In the order they were made.
        simulated: Condition → what → value.
        planned: Runs that were to be made.
        stopped: Why it ended early, "" if it did not.
        network: What the simulation was told, by condition.
        began: UTC, ISO 8601.
        command: The command line.
    """

    spec: Experiment
    runs: list[RunResult] = field(default_factory=list)
    simulated: dict[str, dict[str, float]] = field(default_factory=dict)
    planned: int = 0
    stopped: str = ""
    network: dict[str, dict[str, Any]] = field(default_factory=dict)
    began: str = ""
    command: str = ""

    @property
    def complete(self) -> bool:
        """Whether every run was made and none was refused."""
        return not self.stopped and len(self.runs) == self.planned

    @property
    def unit(self) -> str:
        """Unit of what is measured."""
        return "ns" if self.spec.workload.trace else "GB/s"

    def counted(self) -> list[RunResult]:
        """Return the runs that count: those that ended, and were not refused."""
        kept = (OK, CPU_LIMITED) if self.spec.on_cpu_limit == "keep" else (OK,)
        return [run for run in self.runs if run.status in kept]

    def rows(self) -> list[Row]:
        """Return the summary."""
        out = []
        keys = dict.fromkeys(
            (run.condition, run.phase, what) for run in self.counted() for what in run.values
        )
        names = {c: i for i, c in enumerate(dict.fromkeys(run.condition for run in self.runs))}
        for condition, phase, what in sorted(
            keys, key=lambda k: (names[k[0]], _number(k[1]), list(keys).index(k))
        ):
            values = [
                run.value(what)
                for run in self.counted()
                if (run.condition, run.phase) == (condition, phase) and what in run.values
            ]
            low, high = interval(values, self.spec.confidence, self.spec.seed)
            mean = float(np.mean(values))
            model = self.simulated.get(condition, {}).get(what, float("nan"))
            out.append(
                Row(
                    condition=condition,
                    phase=phase,
                    what=what,
                    unit=self.unit,
                    runs=len(values),
                    mean=mean,
                    low=low,
                    high=high,
                    smallest=min(values),
                    largest=max(values),
                    simulated=model,
                    error=mean / model - 1,
                )
            )
        return out

    def to_json(self) -> dict[str, Any]:
        """Return all of it as plain values; what is not known is null."""
        return {
            "format": "genie-experiment",
            "complete": self.complete,
            "stopped": self.stopped,
            "began": self.began,
            "command": self.command,
            "planned": self.planned,
            "experiment": to_fields(self.spec),
            "network": self.network,
            "summary": [
                {k: None if isinstance(v, float) and not math.isfinite(v) else v
                 for k, v in asdict(row).items()}
                for row in self.rows()
            ],
            "simulated": self.simulated,
            "runs": [run.to_json() for run in self.runs],
        }  # fmt: skip

    def summary(self) -> str:
        """Return the summary as text."""
        from genie.experiment.report import text

        return text(self)

    def __repr__(self) -> str:
        state = "" if self.complete else ", INCOMPLETE"
        return f"<Experiment {self.spec.name}: {len(self.runs)} of {self.planned} runs{state}>"

    def _repr_html_(self) -> str:
        """Return the summary for a notebook."""
        return f"<pre>{html.escape(self.summary())}</pre>"


def _number(phase: str) -> int:
    return int(phase.rpartition(" ")[2]) if phase else 0
