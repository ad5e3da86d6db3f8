"""The comparisons with published nccl-tests tables and with ASTRA-sim: structure, not accuracy."""

from __future__ import annotations

import importlib
import math
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def script(monkeypatch):
    def load(name):
        monkeypatch.syspath_prepend(str(ROOT / "workloads"))
        sys.modules.pop(name, None)
        return importlib.import_module(name)

    return load


def test_tables_say_what_they_are(script):
    tables = script("nccl_tests").TABLES
    uses = [table["use"] for table in tables.values()]
    assert set(uses) == {"setting", "check", "apart"}
    # Parameters come from few tables; the others are left to check them.
    assert uses.count("setting") * 3 <= uses.count("setting") + uses.count("check")
    for name, table in tables.items():
        assert table["source"], name
        assert ("why" in table) == (table["use"] == "apart"), name
        if "times_us" in table:
            assert all(us > 0 for us in table["times_us"]), name


@pytest.mark.parametrize("name", ["a100-1x8", "b200-1x8-alltoall"])
def test_rows_are_the_same_every_time(script, name):
    module = script("nccl_tests")
    table = module.TABLES[name]
    rows = module.rows_of(table, largest=2 << 20)
    assert [row.size for row in rows] == [table["first"] << i for i in range(len(rows))]
    assert [row.measured for row in rows] == table["times_us"][: len(rows)]
    assert rows[-1].size == 2 << 20
    again = module.rows_of(table, largest=2 << 20)
    assert [row.simulated for row in again] == [row.simulated for row in rows]
    assert all(row.simulated > 0 and row.ring > 0 for row in rows)


def test_errors_by_band_are_means_after_the_constant(script):
    module = script("nccl_tests")
    sizes = (1024, 2048, 1 << 20, 2 << 20, 64 << 20)
    times = ((10, 8), (20, 20), (40, 30), (40, 36), (100, 98))
    rows = [
        module.Row(size, measured, simulated, simulated, simulated, algorithm, "simple")
        for size, (measured, simulated), algorithm in zip(
            sizes, times, ("ring", "ring", "ring", "nvls", "ring"), strict=True
        )
    ]
    found = module.band_errors(rows, "simulated", constant=True)
    assert found[0] == pytest.approx(10.0)  # 2 us too much of 20
    assert math.isnan(found[1])
    assert found[2:] == [pytest.approx(20.0), pytest.approx(0.0)]
    assert module.band_errors(rows, "tuner", constant=True, nvls=True)[2] == pytest.approx(5.0)
    raw = module.band_errors(rows, "simulated", constant=False)
    assert raw[0] == pytest.approx((20 + 0) / 2)
    text = module.document({"a100-1x8": rows})
    assert "| a100-1x8 (setting) | 10 / - / 25 / 2 | 10 / - / 20 / 0 |" in text
    assert "NVLS rows" in text
    assert "* tb-gcp-a3high: TCPX" in text


def test_a_section_is_replaced(script, tmp_path):
    module = script("nccl_tests")
    file = tmp_path / "doc.md"
    file.write_text("a\n<!-- x:begin -->\nold\n<!-- x:end -->\nb\n")
    module.replace_section(file, "x", "new")
    assert file.read_text() == "a\n<!-- x:begin -->\nnew\n<!-- x:end -->\nb\n"
    with pytest.raises(SystemExit, match="no markers"):
        module.replace_section(file, "y", "new")


def test_astra_sim_follows_its_formula(script):
    module = script("astra_sim")
    for topology, kind, n, simulated_ns, _ in module.ROWS:
        # It pays the latency once a chunk and step.
        assert module.formula(topology, kind, n) == pytest.approx(simulated_ns, rel=0.055)


def test_ours_on_astra_sims_ring(script):
    module = script("astra_sim")
    # Of 1 MiB a rank each NIC sends 3 MiB at 50 bytes/ns; some of the latency is hidden.
    wire = 3 * (1 << 20) / 50
    time_ns, _ = module.ours("Ring", "all_gather", 4, False)
    assert wire < time_ns <= wire + 3 * 500
    assert module.ours("Ring", "all_gather", 4, False)[0] == time_ns
