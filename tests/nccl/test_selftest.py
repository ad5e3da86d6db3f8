"""Every golden file through the self test's own checks, and the self test itself."""

from __future__ import annotations

import gzip
import json

import pytest

import golden_data
from genie.errors import InputError
from genie.replay.nccl import golden, selftest

#: The least each file must have compared; fewer means cases got lost.
LEAST = {
    "presets": (200, 200, 192),
    "dtree": (2976, 2976, 2976),
    "rings": (2854, 2974, 2672),
    "tuning": (8370, 8369, 8026),
    "chunking": (2906, 2895, 2759),
    "groups": (58, 58, 58),
    "env_variants": (1383, 1383, 1405),
    "wire_1gpu": (8732, 9042, 6656),
    "wire_1gpu_a100": (1476, 1476, 1182),
    "wire_multi": (2017, 2109, 2137),
    "wire_multi_small": (6405, 4354, 5420),
    "wire_pat": (9541, 9661),
    "p2p": (2922, 2109, 2109),
    "ib": (930, 930, 630),
    "sub/subcomm": (54974,),
    "sub/subcomm (choices)": (13156,),
    "sub/subset_graphs": (3666,),
    "sub/sub_wire": (12316,),
    "sub/p2p_uneven": (5370,),
}
CHECKS = selftest.checks()


@pytest.mark.parametrize(
    ("version", "check"),
    [(version, check) for _, version, check in CHECKS],
    ids=[f"{version}-{name}-{i}" for i, (name, version, _) in enumerate(CHECKS)],
)
def test_a_golden_file_is_equal(version, check):
    tally = check(version)
    assert tally.differences == []
    least = LEAST[tally.file][golden_data.VERSIONS.index(version)]
    assert tally.equal == tally.compared >= least


def test_every_golden_file_has_a_check():
    here = {
        (version, path.relative_to(golden.root() / folder).as_posix().removesuffix(".json.gz"))
        for version, folder in golden.FOLDERS.items()
        for path in (golden.root() / folder).rglob("*.json.gz")
        if not (folder == "" and path.parent.name in golden.FOLDERS.values())
    }
    assert {(version, name) for name, version, _ in CHECKS} == here
    assert len(here) == sum(map(len, LEAST.values())) - 1


def test_a_changed_number_is_found(tmp_path, monkeypatch):
    data = json.loads(gzip.decompress(golden.path("groups", "2.27").read_bytes()))
    data["entries"][0]["planOrder"][0]["plan"]["countLo"] += 1
    (tmp_path / "2.27").mkdir()
    (tmp_path / "2.27" / "groups.json.gz").write_bytes(gzip.compress(json.dumps(data).encode()))
    monkeypatch.setenv("GENIE_GOLDEN", str(tmp_path))
    assert [(name, version) for name, version, _ in selftest.checks()] == [("groups", "2.27")]
    told = []
    rows = selftest.run(progress=lambda done, total: told.append((done, total)))
    assert told == [(1, 1)]
    [row] = rows
    assert (row["file"], row["version"]) == ("groups", "2.27")
    assert row["equal"] == row["compared"] - 1 == 57
    text = selftest.render(rows)
    assert "57 of 58 comparisons equal: 1 differ" in text and "found" in text
    with pytest.raises(InputError, match="golden file not found"):
        golden.load("tuning")
    with pytest.raises(InputError, match=r"no golden data for NCCL 2\.29"):
        golden.load("tuning", "2.29")


def test_the_verdict_says_when_all_is_equal():
    row = {"file": "ib", "version": "2.30", "compared": 3, "equal": 3, "differences": []}
    assert selftest.render([row]).endswith("3 of 3 comparisons equal: all equal")
