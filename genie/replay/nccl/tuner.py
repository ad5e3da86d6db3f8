"""Every algorithm and protocol NCCL weighs for a collective, with its predicted time.

`tune()` is the table behind a choice: the same model and enabling as `choice`, with everything
that is off and why.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from genie import checks
from genie.errors import ScheduleError
from genie.replay.nccl.choice import (
    Choice,
    check_types,
    choose,
    model_bytes,
)
from genie.replay.nccl.context import check_setting, context, type_reason
from genie.replay.nccl.env import Nccl
from genie.replay.nccl.names import (
    ALGORITHMS,
    PROTOCOLS,
    dtype_name,
    dtype_size,
    function_code,
    op_name,
)
from genie.replay.nccl.results import TuningResult
from genie.replay.nccl.versions import rules_at

if TYPE_CHECKING:
    import pandas as pd

    from genie.replay.cluster import Cluster

#: One candidate; times and bandwidths are NaN where NCCL has no such kernel.
CANDIDATE = np.dtype(
    [
        ("algorithm", "U14"),
        ("protocol", "U6"),
        ("latency_us", "f8"),
        ("bandwidth_gbps", "f8"),
        ("time_us", "f8"),
        ("enabled", "?"),
        ("chosen", "?"),
        ("reason", "U200"),
    ]
)


def candidates(
    kind: str, count: int, dtype: str, op: str, cluster: Cluster, nccl: Nccl
) -> npt.NDArray[np.void]:
    """Return one row of `CANDIDATE` per algorithm and protocol, in NCCL's order.

    Args:
        kind: collective, as the trace spells it.
        count: as NCCL's call counts.
        dtype: element type.
        op: reduction.
        cluster: with the environment applied.
        nccl: release, environment, choices.

    Returns:
        Record array (`rows.time_us` and `rows["time_us"]`); `enabled` rows compete, `reason`
        says why another does not.
    """
    function, name, operation = function_code(kind), dtype_name(dtype), op_name(op)
    nbytes = model_bytes(function, count, dtype_size(name), cluster.n_ranks)
    known = context(cluster, nccl)
    model, prices = known.model, known.prices(function, cluster, nccl)
    times = prices.times_us(nbytes, name, cluster.n_ranks)
    rows = np.zeros(len(ALGORITHMS) * len(PROTOCOLS), dtype=CANDIDATE).view(np.recarray)
    for a, algorithm in enumerate(ALGORITHMS):
        for p, protocol in enumerate(PROTOCOLS):
            row = rows[a * len(PROTOCOLS) + p]
            row.algorithm, row.protocol = algorithm, protocol
            row.latency_us = row.bandwidth_gbps = row.time_us = np.nan
            reason = model.reasons[function][a][p] or type_reason(function, a, name, operation)
            entry = model.entries[function][a][p]
            if cluster.n_ranks == 1:
                reason, entry = "one rank: NCCL copies inside the GPU", None
            if entry is not None:
                row.latency_us, row.bandwidth_gbps = entry
                if (a, p) in prices.position:
                    row.time_us = times[prices.position[a, p]]
            row.enabled = not reason
            row.reason = reason
    return rows


class Tuning(TuningResult):
    """The candidates of one collective, and the one NCCL takes.

    Iterates over rows with `algorithm`, `protocol`, `latency_us`, `bandwidth_gbps`, `time_us`,
    `enabled`, `chosen`, `reason`; `tuning["time_us"]` and `tuning.time_us` are columns.

    Attributes:
        kind: the collective.
        count: as NCCL's call counts.
        dtype: element type.
        op: reduction.
        cluster: the communicator, environment applied.
        nccl: release, environment, choices.
        rows: record array of `CANDIDATE`.
        choice: what NCCL takes; None where nothing is left.
        why_none: the reason where nothing is left.
    """

    def __init__(
        self, kind: str, count: int, dtype: str, op: str, cluster: Cluster, nccl: Nccl
    ) -> None:
        self.kind, self.count, self.dtype, self.op = kind, count, dtype_name(dtype), op_name(op)
        self.cluster, self.nccl = cluster, nccl
        function = function_code(kind)
        check_types(function, self.dtype, self.op, cluster, nccl)
        self.nbytes = model_bytes(function, count, dtype_size(dtype), cluster.n_ranks)
        self.rows: Any = candidates(kind, count, dtype, op, cluster, nccl)
        self.choice: Choice | None = None
        self.why_none = ""
        try:
            self.choice = choose(kind, count, dtype, op, cluster, nccl)
        except ScheduleError as error:
            self.why_none = str(error)
        if self.choice is not None and self.choice.channels:
            self.rows["chosen"] = (self.rows["algorithm"] == self.choice.algorithm) & (
                self.rows["protocol"] == self.choice.protocol
            )
        self.rows.setflags(write=False)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.rows)

    def __getitem__(self, key: Any) -> Any:
        return self.rows[key]

    def __getattr__(self, name: str) -> Any:
        if name in (CANDIDATE.names or ()):
            return self.__dict__["rows"][name]
        raise AttributeError(name)

    def __repr__(self) -> str:
        if self.choice is None:
            taken = "no candidate left"
        elif not self.choice.channels:
            taken = "one rank, nothing to choose"
        else:
            taken = (
                f"{self.choice.algorithm} {self.choice.protocol}, {self.choice.channels} channels, "
                f"{self.choice.time_us:.6g} us"
            )
        return (
            f"<Tuning {self.kind} of {self.count} {self.dtype} over {self.cluster.n_ranks} ranks, "
            f"NCCL {self.nccl.version_text}: {taken}>"
        )

    def _repr_html_(self) -> str:
        return f"<p>{self._heading()}</p>{self.to_pandas().to_html(index=False)}"

    def to_pandas(self) -> pd.DataFrame:
        """Return the candidates as a DataFrame."""
        import pandas as pd

        return pd.DataFrame({name: self.rows[name] for name in CANDIDATE.names or ()})

    def table(self, rules: bool = True) -> str:
        """Return the cost table as text: latency, bandwidth, time, winner, and the rules used.

        Args:
            rules: also list the release that brought each rule in force.
        """
        lines = [self._heading()]
        lines.append(
            f"{'':1} {'algorithm':<14} {'protocol':<8} {'latency us':>11} "
            f"{'GB/s':>9} {'time us':>11}"
        )
        for row in self.rows:
            if np.isnan(row.latency_us):
                continue
            mark = ">" if row.chosen else " "
            numbers = f"{row.latency_us:>11.6g} {row.bandwidth_gbps:>9.6g} {row.time_us:>11.6g}"
            line = f"{mark} {row.algorithm:<14} {row.protocol:<8} {numbers}  {row.reason}"
            lines.append(line.rstrip())
        missing: dict[str, list[str]] = {}
        for algorithm in ALGORITHMS:
            mine = self.rows[self.rows.algorithm == algorithm]
            if np.isnan(mine.latency_us).all():
                # The Simple protocol's reason is the algorithm's own.
                missing.setdefault(str(mine.reason[-1]), []).append(algorithm)
        for reason, names in missing.items():
            lines.append(f"  {', '.join(names)}: {reason}")
        lines.append(self._verdict())
        if rules:
            lines += self._rules()
        return "\n".join(lines)

    def _heading(self) -> str:
        held = (
            "held to golden data"
            if self.nccl.held_to_golden
            else "no golden data of this release: rules by the releases that changed them"
        )
        return (
            f"{self.kind} of {self.count} {self.dtype} ({self.nbytes} B in the model) on "
            f"{self.cluster.name}, {self.cluster.n_ranks} ranks, {self.cluster.n_hosts} hosts; "
            f"NCCL {self.nccl.version_text} ({held})"
        )

    def _verdict(self) -> str:
        if self.choice is None:
            return f"  nothing can run: {self.why_none}"
        if not self.choice.channels:
            return "  one rank: NCCL copies inside the GPU"
        where = "" if self.choice.source == "model" else f" (given by {self.choice.source})"
        plural = "s" if self.choice.channels > 1 else ""
        return (
            f"  takes {self.choice.algorithm} {self.choice.protocol}, at most "
            f"{self.choice.channels} channel{plural} of {self.choice.warps} warps, "
            f"{self.choice.time_us:.6g} us{where}"
        )

    def _rules(self) -> list[str]:
        since: dict[str, list[str]] = {}
        for name, (_, release) in rules_at(self.nccl.version).items():
            since.setdefault(release, []).append(name)
        lines = ["  rules in force, by the release that brought them:"]
        for release in sorted(since, key=lambda text: [int(part) for part in text.split(".")]):
            text = f"{release}: {'; '.join(since[release])}"
            lines += textwrap.wrap(text, 96, initial_indent="    ", subsequent_indent="      ")
        return lines


def tune(
    kind: str,
    *,
    count: int | None = None,
    dtype: str = "float32",
    cluster: Cluster,
    op: str = "sum",
    nccl: Nccl | None = None,
) -> Tuning:
    """Weigh every algorithm and protocol for one collective, as NCCL's tuner does.

    Args:
        kind: all_reduce, all_gather, reduce_scatter, broadcast, reduce, barrier.
        count: as NCCL's call counts (per rank for all_gather and reduce_scatter); a barrier
            needs none.
        dtype: element type.
        cluster: the communicator.
        op: reduction.
        nccl: release, environment, choices; 2.30 with its defaults if not given.

    Returns:
        The candidates with latency, bandwidth, predicted time, and the choice; a collective
        without a candidate left has `choice` None.

    Raises:
        UnsupportedCollectiveError: not one of NCCL's collective kernels.
        InputError: unknown dtype or op, no count.
    """
    barrier = checks.text("kind", kind) == "barrier"
    count = checks.whole("count", 1 if barrier and count is None else count, 0, 1 << 62)
    nccl = check_setting(nccl, cluster)
    return Tuning(kind, 1 if barrier else count, dtype, op, cluster.with_nccl(nccl), nccl)


__all__ = ["CANDIDATE", "Tuning", "candidates", "tune"]
