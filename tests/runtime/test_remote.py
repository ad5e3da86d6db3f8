"""Recordings that stay on the hosts, and the mapping that is shown before a run."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import genie
from genie.cli import main
from genie.errors import InputError, RecordError
from genie.replay.endpoints import parse_endpoints
from genie.replay.mapping import check_nics, describe
from genie.replay.recording import Recording
from runtime.steps import steps, write_steps


def test_recordings_stay_and_are_joined_when_loaded(tmp_path, capsys):
    prefix = write_steps(tmp_path / "trace", ranks=4, steps=3)
    kept = tmp_path / "kept"
    code = main(
        ["replay", str(prefix), "-o", str(tmp_path / "run"), "--keep-remote", str(kept),
         "--timeout", "120s"]
    )  # fmt: skip
    said = capsys.readouterr()
    assert code == 0, said.err
    files = sorted(kept.iterdir())
    assert len(files) == 2 and all(f":{path}" in said.out for path in files)
    assert said.out.count("stays on its host: ") == 2
    assert "genie: worker 0 on localhost" in said.err and "ranks 0-1 by NIC 0" in said.err
    rec = Recording.load(tmp_path / "run")
    plan = genie.plan(genie.load(prefix), genie.Cluster.local(2, 2))
    sends = rec.messages[rec.messages["direction"] == 0]
    assert rec.complete and len(sends) == plan.messages and sends["nbytes"].sum() == plan.nbytes
    assert len(np.unique(rec.ops["rank"])) == 4 and rec.manifest["remote"] == []
    assert len(rec.collectives()) == 3 and (rec.ops["end_ns"] >= rec.ops["start_ns"]).all()
    # What was joined is whole: saved again it needs no files.
    rec.save(tmp_path / "whole")
    shutil.rmtree(kept)
    assert np.array_equal(Recording.load(tmp_path / "whole").ops["end_ns"], rec.ops["end_ns"])
    lost = Recording.load(tmp_path / "run")
    assert len(lost.ops) == 0 and "stays on its host" in lost.summary()
    assert [Path(entry["path"]) for entry in lost.manifest["remote"]] == files


def test_files_brought_home_are_checked(tmp_path):
    trace = steps(tmp_path / "trace", ranks=2, steps=2)
    rec = genie.replay(
        trace, "local:2", keep_remote=tmp_path / "kept", progress=False, quiet=True, timeout=120
    )
    assert len(rec.ops) == 0 and len(rec.health) == 2
    rec.save(tmp_path / "run")
    first, second = sorted((tmp_path / "kept").iterdir())
    home = tmp_path / "run/remote"
    home.mkdir()
    first.rename(home / first.name)
    second.unlink()
    half = Recording.load(tmp_path / "run")
    assert set(half.ops["rank"]) == {0} and len(half.manifest["remote"]) == 1
    data = (home / first.name).read_bytes()
    (home / first.name).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(RecordError, match="damaged, or of another run"):
        Recording.load(tmp_path / "run")


def test_a_disk_that_refuses_sends_them_home(tmp_path):
    trace = steps(tmp_path / "trace", ranks=2, steps=2)
    (tmp_path / "file").write_text("in the way")
    rec = genie.replay(
        trace, "local:2", keep_remote=tmp_path / "file", progress=False, quiet=True, timeout=120
    )
    assert rec.complete and len(np.unique(rec.ops["rank"])) == 2 and "remote" not in rec.manifest
    assert sum("could not stay there" in text for text in rec.manifest["warnings"]) == 2
    with pytest.raises(InputError, match="must be absolute"):
        genie.replay(trace, "local:2", keep_remote="here")


def test_mapping_names_ranks_nics_and_cores(tmp_path):
    trace = steps(tmp_path / "trace", ranks=16, steps=1)
    cluster = genie.Cluster.preset("h100x8", hosts=2)
    plan = genie.plan(trace, cluster)
    ends = parse_endpoints(["n1/mlx5_0,mlx5_1", "n2/mlx5_0,mlx5_1"])
    devices = [["mlx5_0", "mlx5_1"]] * 2
    lines = describe(plan, ends, ["alpha", "n2"], devices, ["0-31", ""])
    assert len(lines) == 2
    assert lines[0].startswith("worker 0 on n1/mlx5_0,mlx5_1 (alpha): ")
    assert lines[0].endswith("; kept on cores 0-31") and lines[1].endswith("; any core")
    # NIC k of the machine is device k modulo their number.
    assert "(mlx5_0)" in lines[0] and "(mlx5_1)" in lines[0]
    assert all(f"{r}" in lines[1] for r in range(8, 16))
    assert check_nics(cluster, ends) == []


def test_mappings_that_cannot_be_are_refused_with_both_numbers(tmp_path):
    cluster = genie.Cluster.preset("h100x8", hosts=2)
    uneven = parse_endpoints(["n1/a,b", "n2/a,b,c"])
    with pytest.raises(InputError, match=r"endpoint 0 .* names 2 NICs and endpoint 1 .* 3"):
        check_nics(cluster, uneven)
    (odd,) = check_nics(genie.Cluster.local(2, 1), parse_endpoints(["n1/a,b", "n2/a,b"]))
    assert "names 2 NICs, a host of cluster" in odd and "has 1: b carry nothing" in odd
    trace = steps(tmp_path / "trace", ranks=4, steps=1)
    with pytest.raises(InputError, match="4 ranks cannot be dealt out evenly to 3 endpoints"):
        genie.replay(trace, "local:3")
    with pytest.raises(InputError, match=r"has 4 hosts, there are 2 endpoints"):
        genie.replay(trace, "local:2", cluster=genie.Cluster.local(4, 1))


def test_endpoints_in_namespaces():
    (end,) = parse_endpoints(["netns:blue/e0,e1"])
    assert end.netns == "blue" and end.is_local and end.address == "localhost"
    assert str(end) == "netns:blue/e0,e1" and [n.name for n in end.nics] == ["e0", "e1"]
    with pytest.raises(InputError, match="name the interface"):
        parse_endpoints(["netns:blue"])
    with pytest.raises(InputError, match="expected netns:NAME/nic"):
        parse_endpoints(["netns:-x/e0", "netns:b/e0"])


@pytest.mark.parametrize("launcher", ["mpirun", "srun"])
def test_namespaces_are_not_for_every_launcher(launcher):
    from genie.replay.launchers.choose import choose

    with pytest.raises(InputError, match="cannot start a worker in netns:blue/e0"):
        choose(parse_endpoints(["netns:blue/e0", "netns:red/e0"]), launcher)
