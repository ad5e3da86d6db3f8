"""What an experiment says, and what that comes to: runs, order, links, intervals."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from genie.cli import main
from genie.errors import GenieError, InputError
from genie.experiment.conditions import (
    base_states,
    check_changes,
    expand,
    nccl_of,
    options_of,
    order,
    states_of,
)
from genie.experiment.links import LinkState, bucket_bytes, parse_rate, parse_share, select
from genie.experiment.result import ExperimentResult, RunResult
from genie.experiment.spec import (
    BUNDLED,
    Change,
    Condition,
    Experiment,
    LinkSpec,
    Testbed,
    Workload,
    bundled,
    experiment_of,
    load_spec,
    override,
    to_fields,
)
from genie.experiment.statistics import interval
from genie.experiment.testbeds.namespaces import Namespaces
from genie.experiment.testbeds.rxe import SoftRoce

MBIT = 1e6


def test_toml_and_python_say_the_same(tmp_path):
    text = """
name = "two"
seed = 3
repetitions = 4
[testbed]
network = "star:4"
rate = "50mbit"
[workload]
collective = "all_gather"
sizes = ["1M"]
[sweep]
delay = ["0", "1ms"]
[[conditions]]
name = "slow"
links = { h1 = { rate = "10mbit" } }
changes = [{ from_run = 2, loss = "1%" }]
"""
    (tmp_path / "two.toml").write_text(text)
    found, folder = load_spec(tmp_path / "two.toml")
    assert folder == tmp_path
    assert found == Experiment(
        name="two",
        seed=3,
        repetitions=4,
        testbed=Testbed(network="star:4", rate="50mbit"),
        workload=Workload(collective="all_gather", sizes=("1M",)),
        sweep={"delay": ("0", "1ms")},
        conditions=(
            Condition(
                name="slow",
                links={"h1": LinkSpec(rate="10mbit")},
                changes=(Change(from_run=2, loss="1%"),),
            ),
        ),
    )
    assert experiment_of(to_fields(found), "again") == found
    changed = experiment_of(override(to_fields(found), {"testbed.rate": "1gbit", "seed": 9}), "x")
    assert (changed.testbed.rate, changed.seed) == ("1gbit", 9)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("repetition = 3", "unknown field `repetition`"),
        ("[testbed]\nrate = 100", r"Expected `str.*testbed\.rate"),
        ("[[conditions]]\nchanges = [{rate = '1mbit'}]", "missing required field `from_run`"),
        ("name = ", "not readable as TOML"),
        ("on_cpu_limit = 'ask'", "Invalid enum value 'ask'"),
    ],
)
def test_bad_specifications_are_named(tmp_path, text, message):
    (tmp_path / "bad.toml").write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        load_spec(tmp_path / "bad.toml")
    assert "bad.toml" in str(caught.value)


def test_bundled_experiments_are_whole():
    assert bundled() == [path.stem for path in sorted(BUNDLED.glob("*.toml"))] and bundled()
    for name in bundled():
        spec, _ = load_spec(name)
        check_changes(expand(spec), spec.repetitions)
    with pytest.raises(InputError, match=r"figure9.*figure1"):
        load_spec("figure9")


def test_sweep_is_every_combination():
    spec = Experiment(
        conditions=(Condition(name="a", env={"NCCL_BUFFSIZE": "1048576"}), Condition(name="b")),
        sweep={"qps": (1, 4), "env.NCCL_ALGO": ("Ring", "Tree")},
    )
    found = expand(spec)
    assert len(found) == 8 and len({c.name for c in found}) == 8
    assert found[1].name == "a, qps=1, NCCL_ALGO=Tree" and found[1].qps == 1
    assert found[1].env == {"NCCL_BUFFSIZE": "1048576", "NCCL_ALGO": "Tree"}
    with pytest.raises(InputError, match=r"sweep\.speed.*rate"):
        expand(Experiment(sweep={"speed": (1,)}))
    with pytest.raises(InputError, match="two conditions are called 'x'"):
        expand(Experiment(conditions=(Condition(name="x"), Condition(name="x"))))
    with pytest.raises(InputError, match="sweep of qps"):
        expand(Experiment(sweep={"qps": ("many",)}))


def test_order_is_the_seeds_and_repetitions_count_up():
    conditions = tuple(Condition(name=n) for n in "abc")
    spec = Experiment(repetitions=5, seed=11)
    runs = order(spec, conditions)
    assert runs == order(spec, conditions) and [r.number for r in runs] == list(range(1, 16))
    assert Counter(r.condition.name for r in runs) == dict.fromkeys("abc", 5)
    for name in "abc":
        assert [r.repetition for r in runs if r.condition.name == name] == [1, 2, 3, 4, 5]
    other = order(Experiment(repetitions=5, seed=12), conditions)
    assert [r.condition.name for r in runs] != [r.condition.name for r in other]
    assert [r.condition.name for r in runs] != sorted(r.condition.name for r in runs)


@pytest.fixture(scope="module")
def fabric():
    try:
        return Namespaces("leaf-spine:2x3x2")
    except GenieError as exc:
        pytest.skip(str(exc))


def test_links_are_selected_by_name_direction_and_group(fabric):
    assert [link.name for link in fabric.links if link.group == "hosts"] == ["h0", "h1", "h2", "h3"]
    assert len(fabric.links) == 4 + 2 * 3
    assert select(fabric.links, "h1") == [("h1", "tx"), ("h1", "rx")]
    assert select(fabric.links, "l1s2.rx") == [("l1s2", "rx")]
    assert len(select(fabric.links, "uplinks.tx")) == 6
    with pytest.raises(InputError, match=r"no link 'h4'.*h0"):
        select(fabric.links, "h4")
    with pytest.raises(InputError, match=r"tx .* or rx"):
        select(fabric.links, "h1.up")


def test_what_links_do_in_a_run(fabric):
    testbed = Testbed(rate="100mbit", delay="1ms", uplink=LinkSpec(rate="200mbit"))
    condition = Condition(
        name="c",
        rate="50mbit",
        links={"h1": LinkSpec(loss="1%"), "hosts": LinkSpec(delay="2ms")},
        changes=(
            Change(from_run=2, links={"h2.rx": LinkSpec(rate="5mbit")}),
            Change(from_run=3, loss="10%"),
        ),
    )
    base = base_states(fabric.links, testbed, condition)
    assert base["h0", "tx"] == LinkState(50 * MBIT, 2_000_000, 0.0)
    assert base["h1", "rx"] == LinkState(50 * MBIT, 2_000_000, 0.01)
    assert base["l0s0", "tx"] == LinkState(200 * MBIT, 1_000_000, 0.0)
    runs = order(Experiment(repetitions=3), (condition,))
    states = [states_of(fabric.links, testbed, run) for run in runs]
    assert states[0] == base
    assert {k for k in base if states[1][k] != base[k]} == {("h2", "rx")}
    assert states[1]["h2", "rx"].bits_per_s == 5 * MBIT
    # Both changes are in force in the third run.
    assert states[2]["h2", "rx"] == LinkState(5 * MBIT, 2_000_000, 0.1)
    assert states[2]["h1", "tx"].loss == 0.1 and states[2]["l0s0", "tx"] == base["l0s0", "tx"]
    assert [run.phase for run in runs] == ["", "from run 2", "from run 3"]
    with pytest.raises(InputError, match="a change from run 4 on, of 3 runs"):
        check_changes((Condition(name="c", changes=(Change(from_run=4),)),), 3)


def test_rates_shares_and_buckets():
    assert parse_rate("2.5gbit") == 2.5e9 and parse_rate("0") == 0 and parse_rate("8kbit") == 8000
    assert parse_share("5%") == 0.05 and parse_share("0.25") == 0.25
    for text in ("fast", "10", "0mbit", "-1mbit"):
        with pytest.raises(InputError, match="not a rate"):
            parse_rate(text)
    for text in ("101%", "lots"):
        with pytest.raises(InputError, match="not a share"):
            parse_share(text)
    assert bucket_bytes(100 * MBIT) == 20_000  # holds a segment of 16 kB
    assert bucket_bytes(5e9) == 625_000


def test_settings_of_nccl_and_of_the_transport():
    condition = Condition(name="c", qps=4, traffic_class=106, algorithm="Ring", protocol="Simple")
    env = nccl_of(Experiment(), condition).env
    assert env == {
        "NCCL_ALGO": "Ring",
        "NCCL_PROTO": "Simple",
        "NCCL_IB_QPS_PER_CONNECTION": "4",
        "NCCL_IB_TC": "106",
    }
    assert options_of(condition, "tcp", "cubic") == {
        "congestion": "cubic", "sockets": 4, "traffic_class": 106,
    }  # fmt: skip
    assert options_of(condition, "verbs", None) == {}
    twice = Condition(name="c", algorithm="Ring", env={"NCCL_ALGO": "Tree"})
    with pytest.raises(InputError, match="gives NCCL_ALGO twice"):
        nccl_of(Experiment(), twice)


@pytest.mark.parametrize(
    ("make", "network", "message"),
    [
        (Namespaces, "star:1", "2 to 1000 hosts"),
        (Namespaces, "ring:4", "no network 'ring:4'"),
        (Namespaces, "leaf-spine:1x2x3", "2 to 60 leaves"),
        (SoftRoce, "rxe:1", "2 to 32"),
    ],
)
def test_networks_that_cannot_be(make, network, message):
    with pytest.raises(GenieError, match=f"{message}|needs root"):
        make(network)


def test_interval_holds_the_mean_about_as_often_as_it_says():
    rng = np.random.default_rng(5)
    hits = 0
    for i in range(60):
        low, high = interval(rng.normal(10, 1, 12), 0.9, i)
        hits += low <= 10 <= high
    # Binomial(60, 0.9): fewer than 45 or more than 60 has a probability below 1e-3.
    assert 45 <= hits <= 60
    assert interval([3.0, 3.0, 3.0], 0.95, 0) == (3.0, 3.0)
    assert np.isnan(interval([3.0], 0.95, 0)).all()
    assert interval([1.0, 2.0, 4.0], 0.95, 7) == interval([1.0, 2.0, 4.0], 0.95, 7)


def test_rows_leave_refused_runs_out():
    spec = Experiment(repetitions=4, workload=Workload(collective="all_reduce"))
    result = ExperimentResult(spec, planned=4, simulated={"a": {"x": 2.0}})
    for number, (value, status) in enumerate(
        [(1.0, "ok"), (1.5, "ok"), (9.0, "cpu-limited"), (2.0, "failed")], 1
    ):
        result.runs.append(
            RunResult(number, "a", number, "", status=status, values={"x": [0, value, value]})
        )
    (row,) = result.rows()
    assert (row.runs, row.mean, row.simulated, row.error) == (2, 1.25, 2.0, -0.375)
    assert (row.smallest, row.largest, row.unit) == (1.0, 1.5, "GB/s")
    document = result.to_json()
    json.dumps(document, allow_nan=False)
    assert [run["status"] for run in document["runs"]] == ["ok", "ok", "cpu-limited", "failed"]


def test_dry_run_prints_the_order(capsys):
    assert main(["experiment", "figure1", "--dry-run", "--repetitions", "12", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["run"] for row in rows] == list(range(1, 13))
    assert rows[9]["phase"] == "" and rows[11]["phase"] == "from run 11"
    assert main(["experiment", "figure1", "--testbed", "star:2", "--set", "seed"]) == 1
    assert "expected FIELD=VALUE" in capsys.readouterr().err
    assert main(["experiment", str(Path("no/such.toml"))]) == 1
    assert "no experiment" in capsys.readouterr().err
