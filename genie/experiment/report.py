"""The report of an experiment: text for the terminal, Markdown, and one HTML page."""

from __future__ import annotations

import base64
import html
import math
from pathlib import Path
from typing import TYPE_CHECKING

from genie.experiment.result import CPU_LIMITED, FAILED
from genie.replay.plan_text import table
from genie.units import format_time

if TYPE_CHECKING:
    from genie.experiment.result import ExperimentResult, Row

HEADER = ["condition", "runs", "measured", "mean", "interval", "simulated", "difference"]
RUN_HEADER = [
    "run", "condition", "repetition", "status", "value", "poll gap p99", "waited for a CPU",
    "host CPU", "dropped",
]  # fmt: skip
Drawn = list[tuple[str, str]]


def _value(value: float, unit: str) -> str:
    if not math.isfinite(value):
        return "-"
    if unit == "ns":
        return format_time(value)
    return f"{value:.4g} GB/s" if abs(value) >= 0.1 else f"{1e3 * value:.4g} MB/s"


def _cells(row: Row) -> list[str]:
    interval = f"{_value(row.low, row.unit)} … {_value(row.high, row.unit)}"
    return [
        row.condition + (f", {row.phase}" if row.phase else ""),
        str(row.runs),
        row.what,
        _value(row.mean, row.unit),
        interval if math.isfinite(row.low) else "-",
        _value(row.simulated, row.unit),
        f"{row.error:+.1%}" if math.isfinite(row.error) else "-",
    ]


def _run_cells(result: ExperimentResult) -> list[list[str]]:
    out = []
    for run in result.runs:
        values = "; ".join(_value(run.value(what), result.unit) for what in run.values)
        drops = sum(v for k, v in run.counters.items() if k.endswith(" drops"))
        out.append(
            [
                str(run.number),
                run.condition + (f", {run.phase}" if run.phase else ""),
                str(run.repetition),
                run.status,
                values or "-",
                _value(run.health.get("poll_gap_p99_ns", math.nan), "ns"),
                _share(run.health.get("cpu_wait", math.nan)),
                _share(run.health.get("host_cpu_busy", math.nan)),
                str(drops) if run.counters else "-",
            ]
        )
    return out


def _share(value: float) -> str:
    return f"{value:.1%}" if math.isfinite(value) else "-"


def _lines(result: ExperimentResult) -> list[str]:
    """Return what must be known to read the numbers."""
    spec = result.spec
    counted = len(result.counted())
    where = f"{spec.testbed.network}, host links {spec.testbed.rate or 'as they are'}"
    out = [
        f"{len(result.runs)} of {result.planned} runs made, {counted} counted; testbed {where}; "
        f"random order of seed {spec.seed}",
        f"intervals: {spec.confidence:.0%}, bootstrap (BCa) of the mean over runs; a run's value "
        "is the median of its iterations",
    ]
    for status, text in (
        (CPU_LIMITED, "limited by the CPU, not the network"),
        (FAILED, "failed"),
    ):
        found = [run for run in result.runs if run.status == status]
        if found:
            first = found[0].limits[0] if found[0].limits else found[0].error
            out.append(f"{len(found)} runs {text}, the first is run {found[0].number}: {first}")
    if result.simulated:
        out.append("simulated: the condition as specified, without what is changed half-way")
    if result.stopped:
        out.append(f"STOPPED: {result.stopped}")
    return out


def text(result: ExperimentResult) -> str:
    """Return the summary for a terminal."""
    rows = [_cells(row) for row in result.rows()]
    head = result.spec.title or result.spec.name
    return "\n".join([head, "", table(HEADER, rows, left=1), "", *_lines(result)])


def markdown(result: ExperimentResult, drawn: Drawn) -> str:
    """Return the summary as Markdown."""
    parts = [f"# {result.spec.title or result.spec.name}", ""]
    parts += [_markdown_table(HEADER, [_cells(row) for row in result.rows()]), ""]
    parts += [f"- {line}" for line in _lines(result)]
    for name, caption in drawn:
        parts += ["", f"![{name}](figures/{name}.png)", "", caption]
    parts += ["", "## Runs", "", _markdown_table(RUN_HEADER, _run_cells(result)), ""]
    return "\n".join(parts)


def _markdown_table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(
        "| " + " | ".join(c.replace("|", "\\|") for c in line) + " |" for line in lines
    )


_STYLE = """
:root { color-scheme: light dark; --line: #8884; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 72rem; padding: 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
.scroll { overflow-x: auto; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid var(--line); text-align: right; }
th:first-child, td:first-child { text-align: left; }
figure { margin: 1rem 0; } figure img { max-width: 100%; width: 40rem; background: #fff; }
figcaption { font-size: .9rem; opacity: .8; }
pre { overflow-x: auto; font-size: .85rem; }
"""


def page(result: ExperimentResult, drawn: Drawn, folder: Path) -> str:
    """Return the report as one HTML page that needs nothing else.

    Args:
        result: An experiment.
        drawn: (name, caption) of the figures in `folder`/figures.
        folder: Where the experiment is kept.
    """
    title = html.escape(result.spec.title or result.spec.name)
    parts = [f"<h1>{title}</h1>", _html_table(HEADER, [_cells(row) for row in result.rows()])]
    parts += ["<ul>", *(f"<li>{html.escape(line)}</li>" for line in _lines(result)), "</ul>"]
    for name, caption in drawn:
        data = base64.b64encode((folder / "figures" / f"{name}.png").read_bytes()).decode()
        parts.append(
            f"<figure><img alt='{html.escape(name)}' src='data:image/png;base64,{data}'>"
            f"<figcaption>{html.escape(caption)}</figcaption></figure>"
        )
    parts += ["<h2>Runs, in the order they were made</h2>"]
    parts += [_html_table(RUN_HEADER, _run_cells(result))]
    parts += ["<h2>Provenance</h2>", f"<pre>{html.escape(result.command)}\n{result.began}</pre>"]
    return (
        f"<!doctype html><html lang='en'><head><meta charset='utf-8'><title>{title}</title>"
        f"<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<style>{_STYLE}</style></head><body>{''.join(parts)}</body></html>\n"
    )


def _html_table(header: list[str], rows: list[list[str]]) -> str:
    head = "".join(f"<th scope='col'>{html.escape(text)}</th>" for text in header)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return (
        f"<div class='scroll'><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        "</div>"
    )
