"""The examples of docs/clusters.md print what the page says."""

from __future__ import annotations

import doctest
from pathlib import Path

from genie.replay.cluster import Cluster

PAGE = Path(__file__).parents[2] / "docs" / "clusters.md"


def test_examples():
    result = doctest.testfile(str(PAGE), module_relative=False)
    assert result.attempted >= 8
    assert result.failed == 0


def test_every_preset_is_listed():
    text = PAGE.read_text().replace("`use2`", "`h100x8use2`").replace("`use4`", "`h100x8use4`")
    for name in Cluster.presets():
        assert f"`{name}`" in text, name
