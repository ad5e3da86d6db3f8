"""`bench()`: nccl-tests' measurement loop, over GENIE's own replay."""

from __future__ import annotations

import html
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from genie import checks
from genie.errors import InputError, RecordError
from genie.replay.bandwidth import WHOLE_BUFFER_KINDS, bus_factor, bus_formula
from genie.trace.kinds import Coll, Kind, dtype_bytes

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from genie.replay.cluster import Cluster
    from genie.replay.nccl.env import Nccl
    from genie.replay.recording import Recording


_MOST_BYTES = 1 << 50


@dataclass(frozen=True)
class BenchRow:
    """One line of the table.

    Attributes:
        nbytes: nccl-tests' size, bytes.
        count: NCCL's count, elements.
        time_us: Mean over ranks of the time of one iteration, us.
        algbw: GB/s.
        busbw: GB/s.
    """

    nbytes: int
    count: int
    time_us: float
    algbw: float
    busbw: float


@dataclass(frozen=True)
class BenchResult:
    """What `bench` measured, and the Recording behind it."""

    kind: str
    dtype: str
    root: int
    n_ranks: int
    iterations: int
    warmup: int
    rows: list[BenchRow]
    recording: Recording

    def __repr__(self) -> str:
        return f"<BenchResult: {self.kind}, {len(self.rows)} sizes, {self.n_ranks} ranks>"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(render(self))}</pre>"

    def to_pandas(self) -> pd.DataFrame:
        """Return the table as a DataFrame: nbytes, count, time_us, algbw, busbw (GB/s)."""
        import pandas as pd

        names = [column.name for column in fields(BenchRow)]
        return pd.DataFrame(
            [[getattr(row, name) for name in names] for row in self.rows], columns=names
        )

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw bus bandwidth against size.

        Args:
            ax: Axes to draw into; a new figure's when None.
        """
        from genie.replay.result_io import new_axes

        ax = new_axes() if ax is None else ax
        rows = [row for row in self.rows if row.nbytes]
        ax.plot(
            [row.nbytes for row in rows], [row.busbw for row in rows], marker="o", label=self.kind
        )
        ax.set_xscale("log", base=2)
        ax.set_xlabel("size [B]")
        ax.set_ylabel("bus bandwidth [GB/s]")
        ax.set_title(bus_formula(self.kind))
        ax.legend()
        return ax

    def save(self, path: str | os.PathLike[str], force: bool = False) -> Path:
        """Write the recording as folder `path`, with the table in its manifest.

        Raises:
            RecordError: Something is in the way, or the disk refused.
        """
        self.recording.manifest["bench"] = {"root": self.root, **rows_as_json(self)}
        return self.recording.save(path, force)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> BenchResult:
        """Read what `save` (or `genie bench -o`) wrote.

        Raises:
            RecordError: Missing, damaged, or not of a bench.
        """
        from genie.replay.recording import Recording

        recording = Recording.load(path)
        try:
            said = recording.manifest["bench"]
            rows = [BenchRow(**row) for row in said["rows"]]
            return cls(
                kind=said["kind"],
                dtype=said["dtype"],
                root=said["root"],
                n_ranks=said["ranks"],
                iterations=said["iterations"],
                warmup=said["warmup"],
                rows=rows,
                recording=recording,
            )
        except (KeyError, TypeError) as error:
            raise RecordError(f"{path}: a recording, but not of a bench", path=str(path)) from error


def sizes(begin: int, end: int, factor: float = 2.0) -> list[int]:
    """Return the sizes from `begin` to `end` bytes, each `factor` times the one before."""
    if begin < 0 or end < begin:
        raise InputError(f"sizes from {begin} to {end} bytes: the end must not be below the begin")
    if factor <= 1:
        raise InputError(f"the factor between sizes must be above 1, got {factor}")
    found = []
    size = float(begin)
    while size <= end:
        found.append(int(size))
        size = size * factor if size else 1.0
    return found


def bench(
    kind: str,
    endpoints: str | Sequence[str] = "local:2",
    *,
    begin: int = 8,
    end: int = 64 << 20,
    factor: float = 2.0,
    iterations: int = 20,
    warmup: int = 5,
    dtype: str = "float32",
    root: int = 0,
    gpus: int = 1,
    cluster: Cluster | None = None,
    nccl: Nccl | None = None,
    transport: str = "auto",
    timeout: float = 60.0,
    progress: Callable[[int, int], None] | None = None,
) -> BenchResult:
    """Time one collective over a range of sizes, as nccl-tests does, without any arithmetic.

    Every size runs `warmup` + `iterations` times back to back; the time of a size is what the
    measured iterations took divided by their number, averaged over ranks. The GPU-time model is
    off: the network and this machine are what is measured.

    Args:
        kind: Collective, such as "all_reduce".
        endpoints: Where workers run.
        begin: Smallest size, bytes.
        end: Largest size, bytes.
        factor: From one size to the next.
        iterations: Measured runs of a size.
        warmup: Runs before them.
        dtype: Element type.
        root: Root of rooted collectives.
        gpus: Ranks of each endpoint, when no cluster is given.
        cluster: A cluster instead.
        nccl: NCCL version and environment.
        transport: "auto", "tcp" or "verbs".
        timeout: Give up after so many seconds without progress.
        progress: Called with (nodes done, nodes in all).
    """
    from genie.replay.cluster import Cluster
    from genie.replay.endpoints import parse_endpoints
    from genie.replay.gpu import GpuModel
    from genie.replay.nccl.context import check_setting
    from genie.replay.run import replay
    from genie.trace import load

    checks.one_of("kind", kind, [coll.name.lower() for coll in Coll])
    checks.whole("begin", begin, 0, _MOST_BYTES)
    checks.whole("end", end, 0, _MOST_BYTES)
    checks.real("factor", factor, above=1)
    checks.whole("iterations", iterations, 1, 1 << 30)
    checks.whole("warmup", warmup, 0, 1 << 30)
    checks.whole("gpus", gpus, 1)
    checks.text("dtype", dtype)
    checks.callback("progress", progress)
    check_setting(nccl, cluster if cluster is not None else Cluster.local(1))
    if cluster is None:
        cluster = Cluster.local(len(parse_endpoints(endpoints)), gpus)
    n = cluster.n_ranks
    checks.whole("root", root, 0, n - 1)
    element = dtype_bytes(dtype)
    plan: list[tuple[int, int]] = []
    for size in sizes(begin, end, factor):
        count = size // element // (n if kind in WHOLE_BUFFER_KINDS else 1)
        row = (count * element * (n if kind in WHOLE_BUFFER_KINDS else 1), count)
        if not plan or plan[-1] != row:
            plan.append(row)
    with tempfile.TemporaryDirectory(prefix="genie-bench-") as folder:
        _write(Path(folder), kind, n, [c * element for _, c in plan], dtype, root,
               warmup + iterations)  # fmt: skip
        recording = replay(
            load(Path(folder) / "bench"),
            endpoints,
            cluster=cluster,
            nccl=nccl,
            transport=transport,
            gpu=GpuModel.off(),
            timeout=timeout,
            progress=progress,
            log_messages=False,
            quiet=True,
        )
    rows = []
    times = _times(recording, n, len(plan), warmup, iterations)
    for (nbytes, count), time_us in zip(plan, times, strict=True):
        algbw = nbytes / time_us / 1e3 if time_us else 0.0
        rows.append(BenchRow(nbytes, count, time_us, algbw, algbw * bus_factor(kind, n)))
    return BenchResult(kind, dtype, root, n, iterations, warmup, rows, recording)


def _write(
    folder: Path, kind: str, n: int, call_bytes: list[int], dtype: str, root: int, repeat: int
) -> None:
    """Write the trace: every size `repeat` times, one after the other on every rank."""
    from genie.trace import Builder, write

    # comm_size counts a rank's input (design: whole input for reduce_scatter and all_to_all).
    scale = n if kind in ("reduce_scatter", "reduce_scatter_block", "all_to_all", "scatter") else 1
    ranks = []
    for _ in range(n):
        made = Builder()
        last: list[int] = []
        for size in call_bytes:
            for i in range(repeat):
                node = made.node(
                    Kind.COMM_COLL, f"{kind} {size} B #{i}", deps=last, coll=Coll[kind.upper()],
                    nbytes=size * scale, dtype=dtype, root=root,
                )  # fmt: skip
                last = [node]
        ranks.append(made)
    write(folder, "bench", ranks)


def _times(recording: Recording, n: int, n_sizes: int, warmup: int, iterations: int) -> list[float]:
    """Return the mean time of one iteration of each size, us."""
    ops = recording.ops
    per_size = warmup + iterations
    total = np.zeros(n_sizes)
    for rank in range(n):
        rows = ops[ops["rank"] == rank]
        rows = rows[np.argsort(rows["seq"], kind="stable")]
        start = rows["start_ns"].reshape(n_sizes, per_size)[:, warmup]
        end = rows["end_ns"].reshape(n_sizes, per_size)[:, -1]
        total += (end - start) / iterations / 1e3
    return [float(value) for value in total / n]


def render(result: BenchResult) -> str:
    """Return nccl-tests' table; one run fills both halves, `#wrong` is N/A."""
    lines = [
        f"# genie bench {result.kind}: {result.n_ranks} ranks, warmup {result.warmup}, "
        f"iters {result.iterations}; bytes only, no arithmetic; both halves are one run",
        f"# {bus_formula(result.kind)}",
        "#",
        f"#{'':>56}out-of-place{'':>24}in-place",
        f"#{'size':>11}{'count':>14}{'type':>10}{'redop':>8}{'root':>8}"
        + f"{'time':>11}{'algbw':>8}{'busbw':>8}{'#wrong':>8}" * 2,
        f"#{'(B)':>11}{'(elements)':>14}{'':>26}"
        + f"{'(us)':>11}{'(GB/s)':>8}{'(GB/s)':>8}{'':>8}" * 2,
    ]
    reduces = result.kind in ("all_reduce", "reduce", "reduce_scatter", "reduce_scatter_block")
    rooted = result.kind in ("broadcast", "reduce", "gather", "scatter")
    redop = "sum" if reduces else "none"
    root = result.root if rooted else -1
    short = {"float32": "float", "float64": "double", "float16": "half"}
    dtype = short.get(result.dtype, result.dtype)
    for row in result.rows:
        half = f"{_digits(row.time_us, 11)}{row.algbw:>8.2f}{row.busbw:>8.2f}{'N/A':>8}"
        lines.append(f"{row.nbytes:>12}{row.count:>14}{dtype:>10}{redop:>8}{root:>8}" + half + half)
    mean = float(np.mean([row.busbw for row in result.rows])) if result.rows else 0.0
    lines.append(f"# Avg bus bandwidth    : {mean:.6g}")
    return "\n".join(lines)


def _digits(value: float, width: int) -> str:
    """Return a time with at most seven digits, as nccl-tests prints it."""
    for decimals in (2, 1, 0):
        text = f"{value:.{decimals}f}"
        if len(text) <= 7:
            break
    return text.rjust(width)


def rows_as_json(result: BenchResult) -> dict[str, Any]:
    """Return the table as one JSON-like document."""
    return {
        "kind": result.kind,
        "dtype": result.dtype,
        "ranks": result.n_ranks,
        "iterations": result.iterations,
        "warmup": result.warmup,
        "rows": [vars(row) for row in result.rows],
    }
