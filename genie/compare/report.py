"""The report of a comparison: one HTML file that needs nothing else, and its JSON and figures."""

from __future__ import annotations

import base64
import html
import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from genie.compare.definitions import METRICS
from genie.compare.figures.catalogue import comparison_figures
from genie.compare.figures.style import save as save_figure
from genie.compare.metrics.collective import label
from genie.compare.text import WORDS, percent
from genie.errors import RecordError
from genie.units import format_time

if TYPE_CHECKING:
    from genie.compare.comparison import Comparison

_MARK = "report.json"

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --accent: #0072B2; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 72rem; padding: 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
.scroll { overflow-x: auto; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid var(--line); text-align: right; }
th:first-child, td:first-child { text-align: left; }
td + td { white-space: nowrap; }
th button { all: unset; cursor: pointer; font-weight: 600; }
th button:focus-visible { outline: 2px solid var(--accent); }
figure { margin: 1rem 0; } figure img { max-width: 100%; height: auto; background: #fff; }
figcaption, .small { font-size: .9rem; opacity: .8; }
.cards { display: flex; flex-wrap: wrap; gap: .75rem; padding: 0; list-style: none; }
.cards li { border: 1px solid var(--line); border-radius: .4rem; padding: .5rem .9rem; }
.cards b { display: block; font-size: 1.3rem; }
pre { overflow-x: auto; font-size: .85rem; }
"""

_SCRIPT = """
for (const button of document.querySelectorAll('th button')) {
  button.addEventListener('click', () => {
    const th = button.closest('th'), table = th.closest('table'), body = table.tBodies[0];
    const column = [...th.parentNode.children].indexOf(th);
    const up = th.getAttribute('aria-sort') !== 'ascending';
    for (const other of th.parentNode.children) other.removeAttribute('aria-sort');
    th.setAttribute('aria-sort', up ? 'ascending' : 'descending');
    const value = row => {
      const cell = row.cells[column];
      return cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value);
    };
    const rows = [...body.rows].sort((a, b) => {
      const x = value(a), y = value(b);
      return (x < y ? -1 : x > y ? 1 : 0) * (up ? 1 : -1);
    });
    body.append(...rows);
  });
}
"""


def _table(header: list[str], rows: list[list[tuple[str, float | None]]]) -> str:
    """Return a sortable table; a cell is its text and the number it sorts by (None: its text)."""
    head = "".join(f"<th scope='col'><button>{html.escape(h)}</button></th>" for h in header)
    lines = []
    for row in rows:
        cells = "".join(
            f"<td>{html.escape(text)}</td>"
            if number is None or not np.isfinite(number)
            else f"<td data-value='{number!r}'>{html.escape(text)}</td>"
            for text, number in row
        )
        lines.append(f"<tr>{cells}</tr>")
    return (
        f"<div class='scroll'><table><thead><tr>{head}</tr></thead>"
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def _cards(comparison: Comparison) -> str:
    overall, step, match = comparison.overall, comparison.step, comparison.messages
    cards = [
        ("pairs compared", str(len(comparison.pairs))),
        ("L1: median error of collective time", percent(overall["median_error"])),
        ("L1: mean |error|", percent(overall["mean_abs_error"])),
    ]
    if match is not None:
        cards.insert(1, ("L0: messages equal", f"{match.rate:.2%}"))
    if step:
        cards.append(("L2: error of step time", percent(step["step_error"])))
    items = "".join(f"<li>{html.escape(name)}<b>{html.escape(v)}</b></li>" for name, v in cards)
    return f"<ul class='cards'>{items}</ul>"


def _collectives(comparison: Comparison) -> str:
    names = comparison.replay.labels.get("communicator", ())
    rows: list[list[tuple[str, float | None]]] = []
    for row in comparison.collectives:
        rows.append(
            [
                (label(row, names), None),
                (str(row["count"]), float(row["count"])),
                (percent(row["median_error"]), float(row["median_error"])),
                (f"{percent(row['low'])} … {percent(row['high'])}", float(row["low"])),
                (f"{row['geomean_ratio']:.3f}", float(row["geomean_ratio"])),
                (percent(row["p99_abs_error"]), float(row["p99_abs_error"])),
                (percent(row["worst_error"]), float(row["worst_error"])),
            ]
        )
    header = [
        "collective", "pairs", "median error", "95 % interval", "geomean ratio", "p99 |error|",
        "worst error",
    ]  # fmt: skip
    return _table(header, rows)


def _step(comparison: Comparison) -> str:
    found = comparison.step
    if not found:
        return "<p>One side has no times of ranks, so there is no step to compare.</p>"
    rows: list[list[tuple[str, float | None]]] = [
        [
            (name, None),
            (format_time(found[f"{name}_replay_ns"]), found[f"{name}_replay_ns"]),
            (format_time(found[f"{name}_truth_ns"]), found[f"{name}_truth_ns"]),
            (percent(found[f"{name}_error"]), found[f"{name}_error"]),
        ]
        for name in ("step", "compute", "communication", "exposed", "overlap", "runtime")
    ]
    rows[-1][0] = ("run time", None)
    ours, other = comparison.path["replay"], comparison.path["truth"]
    for name in sorted(set(ours) & set(other)):
        a, b = ours[name], other[name]
        error = a / b - 1 if b > 0 else float("nan")
        rows.append(
            [
                (f"critical path: {name}", None),
                (format_time(a), a),
                (format_time(b), b),
                (percent(error), error),
            ]
        )
    return _table(["part of the step", "replay", "truth", "error"], rows)


def _sensitivity(comparison: Comparison) -> str:
    parts = []
    for quantity, found in comparison.sensitivity.items():
        rows: list[list[tuple[str, float | None]]] = [
            [(name, None), (f"{a:.3f}", a), (f"{b:.3f}", b), (percent(error), error)]
            for name, a, b, error in zip(
                found.faults, found.replay, found.truth, found.errors, strict=True
            )
        ]
        parts.append(_table([f"{quantity}: fault", "slowdown, replay", "truth", "error"], rows))
        rho = found.rank_correlation
        parts.append(
            f"<p>Rank correlation over {len(found.faults)} faults: {rho:.3f}.</p>"
            if np.isfinite(rho)
            else "<p>Fewer than 3 different faults: no rank correlation.</p>"
        )
    return "".join(parts) or "<p>No fault was tried in both worlds (--fault).</p>"


def _shape(comparison: Comparison) -> str:
    if not comparison.shape:
        return "<p>One side has no timed messages.</p>"
    rows: list[list[tuple[str, float | None]]] = [
        [(nic, None), (WORDS[name], None), (f"{v['ks']:.3f}", v["ks"]), (f"{v['p']:.2g}", v["p"]),
         (f"{v['wasserstein']:.3f}", v["wasserstein"])]
        for nic, found in comparison.shape.items()
        for name, v in found.items()
    ]  # fmt: skip
    return _table(["NIC", "distribution", "KS", "p", "Wasserstein / mean"], rows)


def _left_out(comparison: Comparison) -> str:
    lines = []
    for side, reasons in (
        ("replay", comparison.alignment.only_replay),
        ("truth", comparison.alignment.only_truth),
    ):
        lines += [f"only in the {side}: {len(rows)} × {why}" for why, rows in reasons.items()]
    lines += [f"not used of the truth: {n} × {why}" for why, n in comparison.truth.unused.items()]
    lines += [*comparison.alignment.notes, *comparison.truth.notes]
    if not lines:
        return "<p>Nothing: every operation of both sides has its partner.</p>"
    return "<ul>" + "".join(f"<li>{html.escape(line)}</li>" for line in lines) + "</ul>"


def render(comparison: Comparison, figures: list[tuple[str, str, bytes]]) -> str:
    """Return the HTML text.

    Args:
        comparison: What to show.
        figures: (title, caption, SVG) of each figure.
    """
    pictures = "".join(
        f"<figure><img alt='{html.escape(title)}' src='data:image/svg+xml;base64,"
        f"{base64.b64encode(svg).decode()}'><figcaption><b>{html.escape(title)}.</b> "
        f"{html.escape(caption)}</figcaption></figure>"
        for title, caption, svg in figures
    )
    terms = "".join(f"<dt><b>{html.escape(m.name)}</b></dt><dd>{html.escape(m.text)}</dd>"
                    for m in METRICS)  # fmt: skip
    match = comparison.messages
    level0 = (
        "<p>One side has no messages, so they cannot be compared.</p>"
        if match is None
        else f"<p>{match.equal} of {match.compared} messages equal ({match.rate:.2%}), "
        f"{match.equal_streams} of {match.streams} streams. "
        f"{html.escape(match.first_difference or 'No difference.')}</p>"
    )
    health = _table(
        ["the replay's own", "worst worker"],
        [
            [(name, None), (format_time(v) if name.endswith("_ns") else f"{v:.2f}", v)]
            for name, v in comparison.health.items()
        ],
    )
    provenance = html.escape(json.dumps(comparison.provenance, indent=1, default=str))
    title = html.escape(f"{comparison.replay.source} against {comparison.truth.source}")
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,"><title>GENIE comparison: {title}</title>
<style>{_STYLE}</style></head><body>
<h1>GENIE comparison</h1><p>{title}</p>
{_cards(comparison)}
<h2>L0: messages</h2>{level0}
<h2>L1: collectives</h2>{_collectives(comparison)}
<h2>L2: the step</h2>{_step(comparison)}
<h2>L3: sensitivity to faults</h2>{_sensitivity(comparison)}
<h2>Traffic shape</h2>{_shape(comparison)}
<h2>What was left out</h2>{_left_out(comparison)}
<h2>Figures</h2>{pictures}
<h2>How far the replay can be trusted by itself</h2>{
        health if comparison.health else "<p>No health table: this side is not a replay.</p>"
    }
<h2>Definitions</h2><dl>{terms}</dl>
<h2>Provenance</h2><pre>{provenance}</pre>
<script>{_SCRIPT}</script></body></html>
"""


def write(comparison: Comparison, path: str | os.PathLike[str], force: bool = False) -> Path:
    """Write report.html, report.json and figures/ into `path`.

    Raises:
        RecordError: `path` exists and is no report, or is one and `force` is not set.
    """
    target = Path(path)
    if target.exists():
        if not (target / _MARK).exists():
            raise RecordError(f"{target} exists and is not a report; it is left alone", path=target)
        if not force:
            raise RecordError(f"{target} exists; force replaces it", path=target)
    document: dict[str, Any] = comparison.to_json()
    target.mkdir(parents=True, exist_ok=True)
    provenance = f"{comparison.replay.source} against {comparison.truth.source}"
    figures = []
    for name, title, caption, figure in comparison_figures(comparison):
        save_figure(figure, target / "figures" / name, provenance)
        svg = (target / "figures" / f"{name}.svg").read_bytes()
        figures.append((title, caption, svg))
    _put(target / "report.html", render(comparison, figures))
    _put(target / _MARK, json.dumps(document, indent=1) + "\n")
    return target


def _put(path: Path, text: str) -> None:
    """Write a file so that a reader never sees half of it."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        file.write(text)
    os.chmod(file.name, 0o644)
    os.replace(file.name, path)
