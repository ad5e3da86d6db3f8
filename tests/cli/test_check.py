"""`genie check` on this very host, and its GID rules on made-up sysfs tables."""

import json
import subprocess
import sys

import pytest

from genie.replay.preflight import Report, check
from genie.replay.preflight.rdma import gid_table


def test_every_finding_that_is_not_ok_says_what_to_do():
    report = check()
    assert report.findings
    for finding in report.findings:
        assert finding.found
        if finding.level != "ok":
            assert finding.fix, finding


def test_json_is_one_document_and_exit_code_follows_failures():
    done = subprocess.run(
        [sys.executable, "-m", "genie.cli", "check", "--json"],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    document = json.loads(done.stdout)
    assert done.returncode == (0 if document["ok"] else 1)


def test_unknown_device_fails_and_names_what_there_is():
    report = check(["nosuch0"])
    assert not report.ok


def test_report_prints_a_fix():
    report = Report()
    report.add("memlock", "warn", "64 KiB", "ulimit -l unlimited")
    assert "ulimit" in str(report)


@pytest.fixture
def port(tmp_path):
    gids = {
        0: ("fe80:0000:0000:0000:0202:c9ff:fe00:0001", "IB/RoCE v1"),
        1: ("fe80:0000:0000:0000:0202:c9ff:fe00:0001", "RoCE v2"),
        2: ("0000:0000:0000:0000:0000:ffff:0a00:0001", "IB/RoCE v1"),
        3: ("0000:0000:0000:0000:0000:ffff:0a00:0001", "RoCE v2"),
        4: ("0000:0000:0000:0000:0000:0000:0000:0000", "RoCE v2"),
    }
    for folder in ("gids", "gid_attrs/types", "gid_attrs/ndevs"):
        (tmp_path / folder).mkdir(parents=True)
    for index, (gid, kind) in gids.items():
        (tmp_path / "gids" / str(index)).write_text(gid + "\n")
        (tmp_path / "gid_attrs/types" / str(index)).write_text(kind + "\n")
        (tmp_path / "gid_attrs/ndevs" / str(index)).write_text("eth0\n")
    return tmp_path


def test_gid_table_leaves_out_empty_slots_and_marks_link_local(port):
    rows = list(gid_table(port))
    assert [row["index"] for row in rows] == [0, 1, 2, 3]
    assert [row["link_local"] for row in rows] == [True, True, False, False]
    assert rows[3]["gid"] == "10.0.0.1"
    assert rows[3]["ipv4"]
