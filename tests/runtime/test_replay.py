from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import genie
from genie.errors import GenieError, InputError
from genie.replay.recording import Recording
from runtime.steps import steps, write_steps

ROOT = Path(__file__).parents[2]


def test_every_message_of_the_plan_travels_once(tmp_path):
    trace = steps(tmp_path, ranks=4, steps=5)
    cluster = genie.Cluster.local(2, 2)
    plan = genie.plan(trace, cluster)
    rec = genie.replay(trace, "local:2", cluster=cluster, iterations=3, warmup=1, progress=False)
    assert rec.complete and len(rec.failures) == 0
    sends = rec.messages[rec.messages["direction"] == 0]
    receives = rec.messages[rec.messages["direction"] == 1]
    assert len(sends) == len(receives) == 4 * plan.messages
    assert sends["nbytes"].sum() == receives["nbytes"].sum() == 4 * plan.nbytes
    assert (rec.messages["status"] == 0).all()
    per_connection = np.bincount(sends["connection"], sends["nbytes"], len(plan.connections))
    np.testing.assert_array_equal(per_connection, 4 * plan.connection_traffic["nbytes"])
    # Each message belongs to a collective of its own rank, and lies in its time.
    op = rec.ops[rec.messages["op"]]
    assert (op["rank"] == rec.messages["rank"]).all() and (op["kind"] == 0).all()
    assert (rec.messages["posted_ns"] >= op["start_ns"]).all()
    # A message is received after it was sent: one timeline.
    for connection in np.unique(sends["connection"]):
        out = sends[sends["connection"] == connection]
        back = receives[receives["connection"] == connection]
        assert (back["completed_ns"] >= out["posted_ns"]).all()


def test_tables_and_manifest(tmp_path):
    trace = steps(tmp_path, ranks=4, steps=3, comp_ns=2_000_000)
    rec = genie.replay(trace, "local:2", iterations=2, warmup=1, progress=False)
    assert len(rec.ops) == 4 * 6 * 3
    assert sorted(np.unique(rec.ops["iteration"])) == [-1, 0, 1]
    comp = rec.ops[rec.column("ops", "kind") == "comp"]
    late = comp["end_ns"] - comp["start_ns"] - 2_000_000
    assert (late >= 0).all()
    assert (rec.ops["ready_ns"] >= 0).all()
    assert (rec.steps()["time_ns"] >= 3 * 2_000_000).all()
    rows = rec.collectives()
    assert len(rows) == 9 and (rows["ranks"] == 4).all() and (rows["time_ns"] > 0).all()
    assert rec.health["ranks"].tolist() == [2, 2]
    assert (rec.health["wall_ns"] > 18_000_000).all()
    assert (rec.health["timer_error_p50_ns"] >= 0).all()
    assert rec.health["clock_bound_ns"].tolist() == [0, 0]
    manifest = rec.manifest
    assert manifest["mode"] == "replay" and manifest["transport"] == "tcp"
    assert manifest["endpoints"] == ["localhost", "localhost"]
    assert manifest["trace"]["digest"] == trace.digest
    assert [w["status"] for w in manifest["workers"]] == ["done", "done"]
    assert {"plan", "kernel", "genie_version", "nccl_version", "command"} <= set(manifest)
    names = set(rec.column("counters", "name"))
    assert {"tx_bytes", "RetransSegs", "sent_bytes"} <= names
    sent = rec.counters[rec.column("counters", "name") == "sent_bytes"]
    assert sent["delta"].sum() == rec.messages["nbytes"][rec.messages["direction"] == 0].sum()
    rec.save(tmp_path / "run")
    assert Recording.load(tmp_path / "run").summary() == rec.summary()


def test_time_scale_and_log_switch(tmp_path):
    trace = steps(tmp_path, ranks=2, steps=2, comp_ns=1_000_000)
    rec = genie.replay(trace, "local:2", time_scale=20.0, log_messages=False, progress=False)
    assert rec.steps()["time_ns"][0] >= 40_000_000
    assert len(rec.messages) == 0 and len(rec.ops) == 8


def test_one_worker_sends_nothing_and_says_so(tmp_path):
    rec = genie.replay(steps(tmp_path, ranks=2, steps=2), "local:1", progress=False)
    assert rec.complete and len(rec.messages) == 0
    assert any("no network messages" in text for text in rec.manifest["warnings"])


def test_progress_reaches_the_caller(tmp_path):
    seen = []
    trace = steps(tmp_path, ranks=2, steps=8, comp_ns=60_000_000)
    genie.replay(trace, "local:2", progress=lambda done, total: seen.append((done, total)))
    assert len(seen) >= 3 and {total for _, total in seen} == {32}
    assert [d for d, _ in seen] == sorted(d for d, _ in seen)


def test_oversubscription_is_a_warning(tmp_path):
    n = 2 * os.cpu_count()
    rec = genie.replay(steps(tmp_path, ranks=n, steps=2), f"local:{n}", progress=False)
    assert rec.complete
    assert any(f"{n} workers share" in text for text in rec.manifest["warnings"])
    assert (rec.health["workers_on_host"] == n).all()


def test_plan_may_be_given(tmp_path):
    trace = steps(tmp_path, ranks=2, steps=1)
    plan = genie.plan(trace, genie.Cluster.local(2, 1))
    rec = genie.replay(plan, "local:2", progress=False)
    assert rec.manifest["plan"]["digest"] == plan.digest


@pytest.mark.parametrize(
    ("spec", "options", "text"),
    [
        ("local:3", {}, "4 ranks.*3 endpoints"),
        ("local:8", {}, "4 ranks.*8 endpoints"),
        ("local:2", {"cluster": (4, 1)}, "has 4 hosts, there are 2 endpoints"),
        ("local:2", {"cluster": (2, 4)}, "4 ranks.*8"),
        ("local:2", {"transport": "pigeon"}, "pigeon"),
        ("local:2", {"iterations": 0}, "iterations"),
        ("local:2", {"timeout": 0}, "timeout"),
        ("local:2", {"on_error": "ignore"}, "on_error"),
        (["localhost/nope0", "localhost/nope1"], {}, "nope"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path, spec, options, text):
    if "cluster" in options:
        options = {"cluster": genie.Cluster.local(*options["cluster"])}
    with pytest.raises((GenieError, InputError), match=text):
        genie.replay(steps(tmp_path, ranks=4, steps=1), spec, progress=False, **options)


def test_worker_needs_no_home_no_cache_no_light_imports(tmp_path):
    """A worker's imports stay light, and none of its files is written."""
    code = (
        "import sys, genie.replay.worker, genie.replay.transports.tcp, genie._core.engine\n"
        "heavy = {'matplotlib', 'scipy', 'pandas', 'numba', 'pyarrow', 'google.protobuf'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=env, cwd="/"
    )
    assert done.stdout == "[]\n", done.stderr


def python_of_anybody() -> list[str]:
    """Return a command that runs this Python version with our packages as user nobody."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("needs root and setpriv to become another user")
    packages = str(Path(np.__file__).parents[1])
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    # The tests' own Python may lie in a folder that only its owner reads.
    for python in (sys.executable, f"/usr/bin/python{version}"):
        command = [
            "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "env", "-i",
            "PATH=/usr/bin:/bin", "HOME=/nonexistent", "TMPDIR=/nonexistent",
            f"PYTHONPATH={ROOT}:{packages}", python,
        ]  # fmt: skip
        probe = "import genie, sys, subprocess; subprocess.run([sys.executable, '-V'], check=True)"
        if subprocess.run([*command, "-c", probe], cwd="/", capture_output=True).returncode == 0:
            return command
    pytest.skip("no Python here that other users can run with these packages")


def test_runs_with_nothing_writable(tmp_path):
    """As a user without home, cache or temporary folder, from an install that is not theirs."""
    python = python_of_anybody()
    prefix = write_steps(tmp_path / "trace", ranks=2, steps=2)
    for path in (*tmp_path.parents, tmp_path, prefix.parent):
        if str(path).startswith("/tmp/"):
            path.chmod(0o755)
    code = (
        "import genie, sys\n"
        "rec = genie.replay(genie.load(sys.argv[1]), 'local:2', progress=False)\n"
        "print(rec.complete, len(rec.ops))\n"
    )
    done = subprocess.run(
        [*python, "-c", code, str(prefix)], cwd="/", capture_output=True, text=True
    )
    assert done.stdout == "True 8\n", done.stderr
