"""Counters: which are read, what they are called, and how they are kept over time."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest

import genie
from genie.errors import InputError
from genie.replay import nic_counters
from genie.replay.nic_counters import MEANINGS, counters
from genie.replay.recording import Recording
from genie.replay.sampler import Sampler
from genie.replay.tables import TABLES, empty
from runtime.steps import steps


def test_counters_of_the_loopback():
    found = counters(("lo", "nope0"))
    assert found["lo", "rx_packets"] >= 0 and found["tcp", "RetransSegs"] >= 0
    assert not any(device == "nope0" for device, _ in found)


def test_counters_of_an_rdma_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """counters, hw_counters of the port and of the device; settings and text are left out."""
    monkeypatch.setattr(nic_counters, "_RDMA", tmp_path)
    files = {
        "ports/2/counters/port_xmit_data": "12\n",
        "ports/2/hw_counters/np_cnp_sent": "7\n",
        "ports/2/hw_counters/lifespan": "10\n",
        "ports/2/hw_counters/state": "N/A (no PMA)\n",
        "ports/1/hw_counters/np_cnp_sent": "99\n",
        "hw_counters/rnr_nak_retry_err": "3\n",
    }
    for name, text in files.items():
        path = tmp_path / "mlx5_0" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found = {k: v for k, v in counters(("mlx5_0:2",)).items() if k[0] != "tcp"}
    assert found == {
        ("mlx5_0:2", "port_xmit_data"): 12,
        ("mlx5_0:2", "np_cnp_sent"): 7,
        ("mlx5_0:2", "rnr_nak_retry_err"): 3,
    }


@pytest.mark.parametrize(
    ("name", "meaning"),
    [
        ("rcvd_seq_err", "out_of_sequence"),  # rxe
        ("duplicate_request", "retransmit"),  # rxe, mlx5
        ("rnr_nak_retry_err", "rnr"),  # mlx5
        ("np_ecn_marked_roce_packets", "ecn"),
        ("rp_cnp_handled", "cnp"),
        ("to_retransmits", "retransmit"),  # bnxt_re
        ("cnpHandled", "cnp"),  # irdma
        ("RetransSegs", "retransmit"),  # TCP
    ],
)
def test_each_vendors_names_mean_the_same(name: str, meaning: str):
    assert MEANINGS[name] == meaning


def test_a_sampler_keeps_all_of_first_and_last_and_only_changes_between():
    values = {("nic", "busy"): 0, ("nic", "still"): 5}
    changed = threading.Event()

    def read() -> dict[tuple[str, str], int]:
        values["nic", "busy"] += 10
        if values["nic", "busy"] >= 30:
            values["nic", "late"] = 1  # a counter that appears later
            changed.set()
        return values

    whole = [dict(values), {("nic", "busy"): 1000, ("nic", "still"): 5, ("nic", "late"): 1}]
    sampler = Sampler(lambda: whole.pop(0), read, 0.001)
    assert changed.wait(10)
    sampler.stop()
    rows = sampler.samples()
    by = {
        name: rows[rows["series"] == i]["value"].tolist()
        for i, (_, name) in enumerate(sampler.series)
    }
    assert by["still"] == [5, 5]
    assert by["busy"][:4] == [0, 10, 20, 30] and by["busy"][-1] == 1000
    assert by["late"] == [1, 1]
    assert (np.diff(rows["t_ns"]) >= 0).all() and rows["t_ns"][-1] <= time.monotonic_ns()
    assert not sampler.full


def test_without_an_interval_nothing_is_read_between():
    def read() -> dict[tuple[str, str], int]:
        raise AssertionError("read during the run")

    whole = [{("a", "b"): 1}, {("a", "b"): 1 << 63}]
    sampler = Sampler(lambda: whole.pop(0), read, 0.0)
    sampler.stop()
    assert sampler.samples()["value"].tolist() == [1, (1 << 63) - 1]


def test_samples_of_a_real_run_show_its_bytes_arriving(tmp_path: Path):
    """Two workers over loopback: what tx_bytes says grows with the messages recorded until then."""
    trace = steps(tmp_path, ranks=2, steps=12, comp_ns=10_000_000, nbytes=4 << 20)
    rec = genie.replay(trace, "local:2", counter_interval=0.005, progress=False)
    assert rec.complete
    table = rec.counters[rec.column("counters", "name") == "tx_bytes"]
    mine = table[table["worker"] == 0]
    sent, got = (rec.messages[rec.messages["direction"] == way] for way in (0, 1))
    assert (got["completed_ns"] >= 0).all()
    assert (np.diff(mine["time_ns"]) > 0).all() and mine["time_ns"][0] < 0
    assert mine["time_ns"][-1] >= rec.ops["end_ns"][rec.ops["rank"] == 0].max()
    assert (mine["delta"][1:] == np.diff(mine["value"])).all() and mine["delta"][0] == 0
    inside = mine[(mine["time_ns"] > 0) & (mine["time_ns"] < rec.ops["end_ns"].max())]
    assert len(inside) >= 5
    for row in inside:
        arrived = got["nbytes"][got["completed_ns"] < row["time_ns"]].sum()
        # All goes through one loopback (others' bytes too): what had arrived is counted.
        assert arrived <= row["value"] - mine["value"][0]
    so_far = (inside["value"] - mine["value"][0]) / (mine["value"][-1] - mine["value"][0])
    assert ((so_far > 0.1) & (so_far < 0.9)).any()
    changes = rec.counter_changes()
    names = rec.labels["counters", "name"]
    total = changes[changes["name"] == names.index("tx_bytes")]["delta"]
    assert total[0] == mine["delta"].sum() >= sent["nbytes"].sum()


def test_a_run_shorter_than_the_interval_has_before_and_after(tmp_path: Path):
    trace = steps(tmp_path, ranks=2, steps=2)
    rec = genie.replay(trace, "local:2", progress=False)
    key = np.stack([rec.counters["worker"], rec.counters["device"], rec.counters["name"]], axis=1)
    assert (np.unique(key, axis=0, return_counts=True)[1] == 2).all()


def test_too_short_an_interval_is_refused(tmp_path: Path):
    trace = steps(tmp_path, ranks=2, steps=1)
    with pytest.raises(InputError, match="counter_interval"):
        genie.replay(trace, "local:2", counter_interval=1e-5, progress=False)


def test_the_summary_tells_of_losses():
    table = empty("counters", 8)
    rows = [
        (0, 0, 0, 0, -5, 10, 0), (0, 0, 0, 0, 50, 22, 12),  # retransmits of rxe0
        (0, 0, 1, 1, -5, 100, 0), (0, 0, 1, 1, 50, 200, 100),  # packets: not of interest
        (0, 1, 2, 0, -5, 1, 0), (0, 1, 2, 0, 50, 4, 3),  # of TCP
        (1, 1, 2, 0, -5, 1, 0), (1, 1, 2, 0, 50, 4, 3),  # the same host's, seen by worker 1
    ]  # fmt: skip
    for out, row in zip(table, rows, strict=True):
        for column, value in zip(TABLES["counters"], row, strict=True):
            out[column.name] = value
    rec = Recording(
        {"counters": table},
        {"complete": True, "workers": [{"host": "n1"}, {"host": "n1"}]},
        {
            ("counters", "device"): ("rxe0", "tcp"),
            ("counters", "name"): ("completer_retry_err", "sent_pkts", "RetransSegs"),
            ("counters", "meaning"): ("retransmit", ""),
        },
    )
    line = "counters: retransmit 12 (rxe0 completer_retry_err on n1, and 1 more)"
    assert line in rec.summary()
    assert rec.counter_changes()["delta"].tolist() == [12, 100, 3, 3]
