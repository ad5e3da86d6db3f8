"""The `genie` command as a user types it: output, exit codes, one clear error."""

import json
import subprocess
import sys

import pytest

from corpus_data import ROOT, corpus
from genie.trace import Builder, Coll, Kind, write

DEMO = ROOT / "workloads" / "demo"
PERFETTO = "a folder with a Perfetto file"


def genie(*args, timeout=120, cwd=ROOT):
    return subprocess.run(
        [sys.executable, "-m", "genie.cli", *map(str, args)],
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=cwd,
        check=False,
    )


def test_version():
    done = genie("--version")
    assert done.returncode == 0
    assert done.stdout.startswith("genie ")


def test_unknown_verb_is_argparse_exit_2():
    assert genie("fly").returncode == 2


def test_inspect_json_is_one_document():
    done = genie("inspect", corpus("et-resnet50-dp64"), "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert len(document["ranks"]) == 64


def test_inspect_refuses_cycles_and_names_the_shortest():
    done = genie("inspect", corpus("et-resnet50-1rank-cycles"))
    assert done.returncode == 1
    assert "cycle" in done.stderr


def test_missing_trace_is_one_error():
    done = genie("inspect", "no-such-trace")
    assert done.returncode == 1
    assert "no-such-trace" in done.stderr
    assert "Traceback" not in done.stderr


def test_plan_shows_traffic():
    done = genie("plan", DEMO, "--cluster", "local:2x4")
    assert done.returncode == 0, done.stderr
    assert "host 0 nic" in done.stdout


def test_plan_json():
    done = genie("plan", DEMO, "--cluster", "local:2x4", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["ranks"] == 8
    assert document["nbytes"] == sum(row["nbytes"] for row in document["traffic"])


def test_plan_tuning_table_names_the_winner():
    done = genie(
        "plan", "--collective", "all_reduce", "--count", 1000, "--cluster", "h100x8:4", "--tuning"
    )
    assert done.returncode == 0, done.stderr
    assert "tree" in done.stdout.lower()


@pytest.mark.parametrize(
    ("cluster", "what"),
    [("h100x8", "PRESET:HOSTS"), ("nope:2", "nope"), ("h100x8:x", "whole number")],
)
def test_bad_cluster_is_named(cluster, what):
    done = genie("plan", DEMO, "--cluster", cluster)
    assert done.returncode == 1
    assert what in done.stderr


def test_wrong_cluster_size_names_both_numbers():
    done = genie("plan", DEMO, "--cluster", "h100x8:4")
    assert done.returncode == 1
    assert "8 ranks" in done.stderr
    assert "32" in done.stderr


def test_simulate_stg_trace(tmp_path):
    trace = corpus("et-stg-dense-dp2tp2pp2")
    refused = genie("simulate", trace, "--cluster", "h100x8use4:2")
    assert refused.returncode == 1
    assert "--elements" in refused.stderr
    out = tmp_path / "sim"
    done = genie("simulate", trace, "--elements", "float32", "--cluster", "h100x8use4:2", "-o", out)
    assert done.returncode == 0, done.stderr
    assert (out / "manifest.json").exists()
    again = genie(
        "simulate", trace, "--elements", "float32", "--cluster", "h100x8use4:2", "-o", out
    )
    assert again.returncode == 1
    assert "--force" in again.stderr


def test_replay_and_bench_over_tcp(tmp_path):
    out = tmp_path / "run"
    done = genie("replay", corpus("et-t3d8"), "--endpoints", "local:2", "-o", out)
    assert done.returncode == 0, done.stderr
    assert "all_reduce" in done.stdout
    assert (out / "ops.parquet").exists()
    table = genie("bench", "all_reduce", "-b", "8", "-e", "64K", "-f", "8", "-n", "3", "-w", "1")
    assert table.returncode == 0, table.stderr
    rows = [line for line in table.stdout.splitlines() if line and not line.startswith("#")]
    assert [int(row.split()[0]) for row in rows] == [8, 64, 512, 4096, 32768]
    assert all(row.split()[8] == "N/A" for row in rows)


def test_ranks_must_be_a_multiple_of_endpoints():
    done = genie("replay", corpus("et-t3d8"), "--endpoints", "local:3")
    assert done.returncode == 1
    assert "8" in done.stderr
    assert "3" in done.stderr


def test_plan_json_holds_what_was_asked_for(tmp_path):
    asked = ("--tuning", "--parts", "--channels", "--messages", "1", "--json")
    done = genie("plan", DEMO, "--cluster", "local:2x4", *asked)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    call = document["calls"][0]
    assert sum(row["chosen"] for row in call["tuning"]) == 1
    assert sum(part["count"] for part in call["parts"]) == call["count"]
    assert sum(len(call.get("messages", ())) for call in document["calls"]) > 0
    assert sorted(document["channels"][0]["ring"]) == list(range(8))
    one = genie("plan", "--collective", "all_reduce", "--cluster", "h100x8:2", *asked)
    document = json.loads(one.stdout)
    (chosen,) = [row for row in document["tuning"] if row["chosen"]]
    assert chosen["algorithm"] == document["choice"]["algorithm"]
    assert document["messages"][0]["direction"] in (0, 1)
    assert document["channels"][0]["tree_up"].count(-1) == 1


def test_plan_tuning_passes_over_groups_of_sends(tmp_path):
    ranks = []
    for _ in range(2):
        made = Builder()
        made.node(Kind.COMM_COLL, "a", coll=Coll.ALL_TO_ALL, nbytes=4096)
        made.node(Kind.COMM_COLL, "b", coll=Coll.ALL_REDUCE, nbytes=4096)
        ranks.append(made)
    write(tmp_path, "t", ranks)
    done = genie("plan", tmp_path, "--cluster", "local:2", "--tuning")
    assert done.returncode == 0, done.stderr
    assert "all_reduce of 1024 float32" in done.stdout


def test_plan_warns_on_stderr_of_machines_without_a_single_host_choice():
    done = genie("plan", "--collective", "all_reduce", "--cluster", "b200x8:1")
    assert done.returncode == 0
    assert "warning" in done.stderr
    done = genie("plan", DEMO, "--cluster", "b200x8:1")
    assert "exact=False" in done.stderr
    assert "warning" not in done.stdout


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (("bench", "all_reduce", "-n", "0"), "iterations is a whole number"),
        (("bench", "broadcast", "-r", "2", "-e", "8"), "root is a whole number from 0 to 1, not 2"),
        (("plan", "--collective", "all_reduce", "--cluster", "."), "is a folder"),
        (("plan", "--collective", "all_reduce", "--cluster", "h100x8:²"), "whole number"),
        (("plan", "--collective", "all_reduce", "--cluster", "Makefile"), "Makefile"),
        (("replay", DEMO, "--transport", "tcp", "--perfetto", PERFETTO), "--force replaces it"),
    ],
)
def test_bad_options_are_one_clear_error(options, names, tmp_path):
    (tmp_path / "rank0.pt.trace.json.gz").touch()
    done = genie(*[tmp_path if option == PERFETTO else option for option in options])
    assert done.returncode == 1
    assert done.stdout == ""
    assert names in done.stderr
    assert len(done.stderr.splitlines()) == 1
