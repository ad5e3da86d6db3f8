"""The commands that make the tables and pictures of docs/workloads.md."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from corpus_data import CORPUS, corpus

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "workloads"))

import gallery  # noqa: E402
import published  # noqa: E402
import stg  # noqa: E402
import tables  # noqa: E402

DOCS = (ROOT / "docs" / "workloads.md").read_text()


def test_page_has_the_table_of_stg(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in stg.CASES:
        corpus(name)
    monkeypatch.setattr(stg, "CORPUS", CORPUS)
    lines = list(stg.table())
    assert "\n".join(lines) in DOCS


def test_a_difference_needs_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "et-stg-dense-fsdp4"
    corpus(name)
    monkeypatch.setattr(stg, "CORPUS", CORPUS)
    monkeypatch.setattr(stg, "CASES", {name: stg.CASES[name]})
    monkeypatch.setattr(stg, "REASONS", {name: {}})
    with pytest.raises(SystemExit, match="unexplained"):
        list(stg.table())


def test_tables_have_their_places() -> None:
    for name in tables.TABLES:
        changed = tables.written(DOCS, name, ["| a |", "|---|"])
        assert f"<!-- table {name} -->\n| a |\n|---|\n<!-- end -->" in changed
        assert tables.written(changed, name, ["x"]).count("<!-- end -->") == DOCS.count(
            "<!-- end -->"
        )
    with pytest.raises(SystemExit, match="no place for the table prices"):
        tables.written(DOCS, "prices", [])


def test_published_seconds() -> None:
    rows = published.rows()
    deepseek = published.prepared("deepseek-v3-2048", rows["deepseek-v3-2048"])
    # 180 K GPU hours a trillion tokens on 2 048 GPUs, 15 360 sequences of 4 096 a step.
    assert published.published_s(rows["deepseek-v3-2048"], deepseek) == pytest.approx(19.907, 1e-4)
    assert deepseek.world_size == 16 and deepseek.layout.world == 2048
    llama = published.prepared("llama3-405b-8192", rows["llama3-405b-8192"])
    whole = published.published_s(rows["llama3-405b-8192"], llama)
    half = published.published_s(rows["llama3-405b-8192"], llama, causal=True)
    # 126 layers x 12 x 16 384 x 8 192 FLOP of attention a token, half of it not computed.
    attention = 126 * 12 * 16384 * 8192
    assert whole / half == pytest.approx(1 + 0.5 * attention / (6 * 403.75e9 + attention / 2), 1e-3)


def test_gallery_is_on_the_page_and_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    shown = re.findall(r"!\[([^\]]+)\]\(img/workloads/([a-z0-9-]+)\.png\)", DOCS)
    assert {name: title for title, name in shown} == {
        name: title for name, (title, _, _) in gallery.JOBS.items()
    }
    assert all((ROOT / "docs/img/workloads" / f"{name}.png").is_file() for _, name in shown)
    monkeypatch.setattr(gallery, "FOLDER", tmp_path)
    picture = gallery.draw("pattern-incast")
    assert picture.read_bytes().startswith(b"\x89PNG")
