"""L1: the time and bus bandwidth of collectives, by kind, communicator and size band."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from genie.compare.align import Alignment
from genie.compare.truth.model import KINDS

#: Size bands, bytes: lower edge and name; a size belongs to the last band it reaches.
BANDS: tuple[tuple[int, str], ...] = (
    (0, "< 64 KiB"),
    (64 << 10, "64 KiB - 1 MiB"),
    (1 << 20, "1 - 64 MiB"),
    (64 << 20, ">= 64 MiB"),
)

ERRORS = np.dtype(
    [
        ("kind", "i4"),
        ("communicator", "i4"),  # the replay's label, -1 all
        ("band", "i4"),  # index into BANDS, -1 all
        ("count", "i8"),
        ("median_error", "f8"),  # median of replay / truth - 1
        ("low", "f8"),  # 95 % bootstrap interval of the median
        ("high", "f8"),
        ("geomean_ratio", "f8"),  # geometric mean of replay / truth
        ("p99_abs_error", "f8"),  # 99th percentile of |error|
        ("worst_error", "f8"),  # the error of largest magnitude, signed
        ("p99_ratio", "f8"),  # p99 of replay times / p99 of truth times
    ]
)

RESAMPLES = 1000


def band_of(nbytes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the band index of each size."""
    edges = np.array([edge for edge, _ in BANDS])
    return np.searchsorted(edges, np.maximum(nbytes, 0), side="right") - 1


def bootstrap_median(values: npt.NDArray[np.float64], seed: int = 0) -> tuple[float, float]:
    """Return the 95 % percentile-bootstrap interval of the median (Efron 1979).

    Resamples are drawn from a seeded generator, so that equal data give an equal interval.
    """
    if values.size < 2:
        return (float("nan"), float("nan"))
    random = np.random.default_rng(seed)
    out = np.empty(RESAMPLES)
    # In parts, so that memory stays bounded whatever the number of pairs.
    rows = max(1, min(RESAMPLES, (1 << 22) // values.size))
    for at in range(0, RESAMPLES, rows):
        part = out[at : at + rows]
        picks = random.integers(0, values.size, (len(part), values.size))
        part[:] = np.median(values[picks], axis=1)
    low, high = np.percentile(out, (2.5, 97.5))
    return float(low), float(high)


def _row(pairs: npt.NDArray[np.void], key: tuple[int, int, int]) -> tuple[Any, ...]:
    error = pairs["error"]
    ratio = error + 1
    low, high = bootstrap_median(error)
    positive = ratio[ratio > 0]
    p99 = np.percentile(pairs["truth_ns"], 99)
    return (
        *key,
        len(pairs),
        float(np.median(error)),
        low,
        high,
        float(np.exp(np.log(positive).mean())) if positive.size else float("nan"),
        float(np.percentile(np.abs(error), 99)),
        float(error[np.argmax(np.abs(error))]),
        float(np.percentile(pairs["replay_ns"], 99) / p99) if p99 > 0 else float("nan"),
    )


def usable(alignment: Alignment) -> npt.NDArray[np.void]:
    """Return the pairs that have a time on both sides and a size."""
    pairs = alignment.pairs
    found: npt.NDArray[np.void] = pairs[np.isfinite(pairs["error"]) & (pairs["nbytes"] > 0)]
    return found


def collective_errors(alignment: Alignment, per_communicator: bool = True) -> npt.NDArray[np.void]:
    """Return `ERRORS` rows: one a (kind, communicator, band) that has pairs."""
    pairs = usable(alignment)
    band = band_of(pairs["nbytes"])
    communicator = pairs["communicator"] if per_communicator else np.full(len(pairs), -1)
    keys = np.stack([pairs["kind"], communicator, band], axis=1).astype(np.int64)
    unique, inverse = np.unique(keys, axis=0, return_inverse=True)
    inverse = inverse.reshape(-1)
    rows = [
        _row(pairs[inverse == i], (int(k), int(c), int(b))) for i, (k, c, b) in enumerate(unique)
    ]
    return np.array(rows, ERRORS)


def _geomean(values: npt.NDArray[np.float64]) -> float:
    """Return the geometric mean of positive values, 0 of none."""
    return float(np.exp(np.log(values).mean())) if values.size else 0.0


def overall(alignment: Alignment) -> dict[str, float]:
    """Return the errors over all pairs, in GENIE's and in other papers' definitions.

    `geomean_abs_error` is ASTRA-sim 2's (geometric mean of |replay - truth| / truth, zeros left
    out), `alignment` SimAI's (1 - mean relative error, NSDI'25), `mean_abs_error` the plain mean.
    """
    pairs = usable(alignment)
    error = pairs["error"]
    magnitude = np.abs(error)
    nonzero = magnitude[magnitude > 0]
    ratio = error + 1
    return {
        "pairs": float(len(pairs)),
        "median_error": float(np.median(error)) if len(pairs) else float("nan"),
        "geomean_ratio": float(np.exp(np.log(ratio[ratio > 0]).mean()))
        if (ratio > 0).any()
        else float("nan"),
        "p99_abs_error": float(np.percentile(magnitude, 99)) if len(pairs) else float("nan"),
        "mean_abs_error": float(magnitude.mean()) if len(pairs) else float("nan"),
        "geomean_abs_error": _geomean(nonzero) if len(pairs) else float("nan"),
        "alignment": float(1 - magnitude.mean()) if len(pairs) else float("nan"),
    }


def label(row: np.void, communicators: tuple[str, ...]) -> str:
    """Return the words for an `ERRORS` row."""
    parts = [KINDS[row["kind"]]]
    if row["communicator"] >= 0:
        parts.append(communicators[row["communicator"]])
    if row["band"] >= 0:
        parts.append(BANDS[row["band"]][1])
    return ", ".join(parts)
