"""Every printed number has a definition, in the report and in the documentation."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import genie
from compare.runs import simulated
from corpus_data import ROOT
from genie.compare.definitions import METRICS
from genie.compare.report import render
from genie.compare.text import WORDS
from genie.replay import tables

NAMES = {metric.name for metric in METRICS}
KEYS = {key for metric in METRICS for key in metric.keys}
#: Headers and labels that are no numbers' names.
LABELS = {
    "collective", "replay", "truth", "error", "part of the step", "NIC", "distribution",
    "the replay's own", "worst worker", "step: fault", "collectives: fault", "slowdown, replay",
}  # fmt: skip


def compared() -> genie.compare.__class__:
    return genie.compare(
        simulated(0.5), simulated(), faults={"slow": (simulated(0.25), simulated(0.3))}
    )


def test_documentation_defines_each_with_an_example() -> None:
    text = (ROOT / "docs" / "compare.md").read_text()
    parts = re.split(r"^#### (.+)\n", text, flags=re.M)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    assert set(sections) == NAMES
    for name, body in sections.items():
        assert "Example" in body.split("\n### ")[0], name


def leaves(value: Any) -> set[str]:
    """Return the keys that have numbers under them."""
    found: set[str] = set()
    for key, item in value.items():
        if isinstance(item, dict):
            found |= leaves(item)
        elif isinstance(item, list) and item and isinstance(item[0], dict):
            found |= set().union(*map(leaves, item))
        else:
            found.add(key)
    return found


def test_every_key_of_the_json_belongs_to_a_metric() -> None:
    document = compared().to_json()
    keys = set()
    for level in ("L0", "L1", "L2", "L3", "shape", "health"):
        keys |= leaves(document[level])
    assert keys - {"kind", "communicator", "band"} - KEYS == set()
    assert set(document["critical_path_ns"]["replay"]) == {"compute", "communication", "idle"}


def test_every_column_of_health_that_is_compared_belongs_to_a_metric() -> None:
    names = [name for name in tables.HEALTH.names if name.endswith("_ns") or "host_cpu" in name]
    assert set(names) <= KEYS
    assert len(names) > 8


class Tables(HTMLParser):
    """Texts of headers and of first cells."""

    def __init__(self) -> None:
        super().__init__()
        self.headers: list[str] = []
        self.firsts: list[str] = []
        self._tag, self._cell = "", 0

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self._cell = 0 if tag == "tr" else self._cell + (tag == "td")
        self._tag = tag

    def handle_data(self, data: str) -> None:
        if self._tag == "button":
            self.headers.append(data)
        elif self._tag == "td" and self._cell == 1:
            self.firsts.append(data)
        self._tag = ""


def test_every_header_of_the_report_is_defined() -> None:
    page = Tables()
    page.feed(render(compared(), []))
    assert set(page.headers) <= NAMES | LABELS
    assert {"step", "run time", "exposed"} <= set(page.firsts)
    assert set(WORDS.values()) <= NAMES
    text = render(compared(), [])
    for metric in METRICS:
        assert f"<dt><b>{metric.name}</b></dt><dd>{metric.text}</dd>".replace("'", "&#x27;") in (
            text.replace("&lt;", "<")
        )
