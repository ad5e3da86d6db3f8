"""`Nccl`: releases, variables, lists, and the user's own choices."""

from __future__ import annotations

import pickle

import pytest

from genie.errors import InputError, ScheduleError, UnsupportedCollectiveError
from genie.replay.cluster import Cluster
from genie.replay.nccl.choice import choose
from genie.replay.nccl.env import Nccl
from genie.replay.nccl.schedule import schedule
from genie.replay.nccl.versions import RELEASES, Switch, rules_at, version_text

ALL = (True,) * 7


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("2.30", (2, 30, 7)),
        ("2.27", (2, 27, 7)),
        ("2.21", (2, 21, 5)),
        ("2.20.5", (2, 20, 5)),
        ("2.29.3", (2, 29, 3)),
        ("v2.28.9-1", (2, 28, 9)),
        ("2.21.5+cuda12.4", (2, 21, 5)),
    ],
)
def test_a_release_is_read(text, version):
    assert Nccl(text).version == version


def test_every_release_between_the_ends_is_taken():
    assert len(RELEASES) == 23
    for release in RELEASES:
        nccl = Nccl(version_text(release))
        assert nccl.held_to_golden == (release in ((2, 21, 5), (2, 27, 7), (2, 30, 7)))


@pytest.mark.parametrize(
    ("text", "near"),
    [
        ("2.19.4", "2.20.5"),
        ("2.20.3", "2.20.5"),
        ("2.26", "2.26.2"),
        ("2.28.8", "2.28.7"),
        ("2.30.8", "2.30.7"),
        ("2.31.0", "2.30.7"),
        ("2.31", "2.30.7"),
        ("2.22", "2.22.3"),
        ("3.0.1", "2.30.7"),
        ("1.9.9", "2.20.5"),
    ],
)
def test_other_releases_are_refused_with_the_nearest_named(text, near):
    with pytest.raises(InputError, match=rf"{text} is not a release .* nearest one is {near} "):
        Nccl(text)


@pytest.mark.parametrize(
    ("name", "least"),
    [("NCCL_BUFFSIZE", 4096), ("NCCL_LL_BUFFSIZE", 256), ("NCCL_LL128_BUFFSIZE", 16384)],
)
@pytest.mark.parametrize("version", ["2.21", "2.27", "2.30"])
@pytest.mark.parametrize("algorithm", ["Ring", "Tree"])
def test_a_buffer_too_small_for_any_chunk_is_refused(name, least, version, algorithm):
    with pytest.raises(InputError, match=rf"{name}={least - 1}: expected {least} to"):
        Nccl(version, env={name: least - 1})
    protocol = {"NCCL_LL_BUFFSIZE": "LL", "NCCL_LL128_BUFFSIZE": "LL128"}.get(name, "Simple")
    nccl = Nccl(version, env={name: least, "NCCL_PROTO": protocol, "NCCL_ALGO": algorithm})
    one = schedule("all_reduce", count=9000, cluster=Cluster.preset("h100x8", hosts=2), nccl=nccl)
    sent = [(rank, one.messages(rank)) for rank in range(16)]
    assert sum(rows["nbytes"][rows["direction"] == 0].sum() for _, rows in sent) >= 36000


@pytest.mark.parametrize("text", ["", "latest", "2", "2.30.7.1", 2.30, None])
def test_nonsense_is_no_release(text):
    with pytest.raises(InputError, match="NCCL version"):
        Nccl(text)


def test_variables_are_kept_as_text():
    nccl = Nccl(env={"NCCL_NTHREADS": 256, "NCCL_P2P_DISABLE": True, "NCCL_ALGO": None,
                     "NCCL_PROTO": ""})  # fmt: skip
    assert nccl.env == {"NCCL_NTHREADS": "256", "NCCL_P2P_DISABLE": "1"}
    assert nccl.get("NCCL_NTHREADS") == nccl.get("NTHREADS") == "256"
    assert nccl.get("NCCL_ALGO", "none") == "none"
    assert nccl.get_int("NTHREADS", 1) == 256
    assert nccl.get_int("NCCL_BUFFSIZE", 4194304) == 4194304


def test_numbers_are_read_as_c_reads_them():
    assert Nccl(env={"NCCL_BUFFSIZE": "0x100000"}).get_int("BUFFSIZE", 0) == 1 << 20
    assert Nccl(env={"NCCL_IB_TIMEOUT": "010"}).get_int("IB_TIMEOUT", 0) == 8
    assert Nccl(env={"NCCL_IB_TC": "-1"}).get_int("IB_TC", 0) == -1


def test_unknown_variables_are_kept_and_listed():
    nccl = Nccl(env={"NCCL_WHATEVER": "7", "NCCL_DEBUG": "INFO", "NCCL_ALGO": "Ring"})
    assert nccl.unknown == ("NCCL_WHATEVER",)
    assert nccl.get("NCCL_WHATEVER") == "7"


def test_a_variable_newer_than_the_release_changes_nothing():
    nccl = Nccl("2.21", env={"NCCL_PAT_ENABLE": "0", "NCCL_ALGO": "Ring"})
    assert nccl.ineffective == ("NCCL_PAT_ENABLE",)
    assert nccl.get_int("NCCL_PAT_ENABLE", 2) == 2
    assert Nccl("2.27", env={"NCCL_PAT_ENABLE": "0"}).ineffective == ()


def test_notes_say_what_may_mislead():
    env = {"NCCL_WHATEVER": "7", "NCCL_PAT_ENABLE": "1", "NCCL_TUNER_PLUGIN": "x.so",
           "NCCL_NET_PLUGIN": "aws-ofi"}  # fmt: skip
    unknown, late, tuner, net = Nccl("2.21", env=env).notes
    assert "NCCL_WHATEVER" in unknown and "before NCCL 2.23.4" in late
    assert "`choices`" in tuner and "NCCL_NET_PLUGIN" in net
    assert Nccl(env={"NCCL_ALGO": "Ring", "NCCL_DEBUG": "INFO"}).notes == ()


@pytest.mark.parametrize(
    ("env", "text"),
    [
        ({"NCCL_NTHREADS": "many"}, "NCCL_NTHREADS='many' is not a whole number"),
        ({"NCCL_IB_TIMEOUT": "09"}, "not a whole number"),
        ({"NCCL_NTHREADS": "100"}, "multiple of 32"),
        ({"NCCL_CROSS_NIC": "3"}, "NCCL_CROSS_NIC=3: expected 0 to 2"),
        ({"NCCL_BUFFSIZE": "0"}, "NCCL_BUFFSIZE=0"),
        ({"NCCL_MIN_NCHANNELS": "8", "NCCL_MAX_NCHANNELS": "4"}, "contradicts"),
        ({"NCCL_MIN_CTAS": "8", "NCCL_MAX_CTAS": "4"}, "contradicts"),
        ({"NCCL_MIN_P2P_NCHANNELS": "8", "NCCL_MAX_P2P_NCHANNELS": "4"}, "contradicts"),
        ({"NCCL_MAX_NRINGS": "8", "NCCL_MAX_NCHANNELS": "4"}, "same setting"),
        ({"ALGO": "Ring"}, "names start with NCCL_"),
        ({"NCCL_ALGO": 1.5}, "expected text or a number"),
        ({"NCCL_ALGO": "Rings"}, "'Rings' is not known"),
        ({"NCCL_ALGO": "alltoall:Ring"}, "'alltoall' is not a function"),
        ({"NCCL_ALGO": "allreduce:tree;ring"}, "only the first entry may lack a function"),
        ({"NCCL_PROTO": "LL,,Simple"}, "'' is not known"),
        ({"NCCL_PROTO": ";"}, "empty"),
        ({"NCCL_THREAD_THRESHOLDS": "8 8 x"}, "'x' is not a number"),
        ({"NCCL_THREAD_THRESHOLDS": "1 2 3 4 5 6 7"}, "six numbers"),
    ],
)
def test_bad_or_contradictory_settings_are_errors(env, text):
    with pytest.raises(InputError, match=text):
        Nccl(env=env)


def test_lists_hold_for_one_function_or_for_all():
    chosen = Nccl(env={"NCCL_ALGO": "ring;allreduce:^PAT,nvls;ReduceScatter:TREE"}).algorithms
    ring = tuple(a == 1 for a in range(7))
    assert chosen[0] == chosen[1] == chosen[2] == ring
    assert chosen[3] == tuple(a == 0 for a in range(7))
    assert chosen[4] == tuple(a not in (4, 6) for a in range(7))
    only = Nccl(env={"NCCL_PROTO": "allreduce:LL"}).protocols
    assert only == (None, None, None, None, (True, False, False))
    assert Nccl().algorithms == (None,) * 5


def test_releases_before_2_24_have_one_list_and_ignore_unknown_names():
    assert Nccl("2.21", env={"NCCL_ALGO": "Ring,Whatever"}).algorithms[4] == tuple(
        a == 1 for a in range(7)
    )
    # The newer syntax is one unknown name there; nothing is listed.
    assert not any(Nccl("2.21", env={"NCCL_ALGO": "allreduce:ring"}).algorithms[0])
    with pytest.raises(InputError, match="Whatever"):
        Nccl("2.24.3", env={"NCCL_ALGO": "Ring,Whatever"})


def test_environ_is_read_on_request_only(monkeypatch):
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    monkeypatch.setenv("NOT_NCCL", "1")
    assert Nccl().env == {}
    assert Nccl.from_environ("2.27").env["NCCL_ALGO"] == "Tree"
    assert "NOT_NCCL" not in Nccl.from_environ().env


def test_equal_settings_are_equal_and_travel():
    a, b = Nccl(env={"NCCL_ALGO": "Ring"}), Nccl(env={"NCCL_ALGO": "Ring"})
    assert a == b and hash(a) == hash(b) and a != Nccl()
    again = pickle.loads(pickle.dumps(a))
    assert again == a and again.algorithms == a.algorithms
    assert "2.30.7" in repr(a) and "Ring" in repr(a)


# --------------------------------------------------------------------------- choices

CSV = """# colltype,minbytes,maxbytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff
colltype,minbytes,maxbytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff
allreduce,0,65536,ring,ll,4,-1,-1,-1,-1

allreduce,65537,1048576,tree,ll128,-1,2,-1,-1,-1
allgather,0,-1,ring,simple,8
"""


@pytest.fixture
def cluster():
    return Cluster.preset("h100x8", hosts=2)


def test_choices_from_a_csv_override_the_model(tmp_path, cluster):
    path = tmp_path / "tuner.conf"
    path.write_text(CSV)
    nccl = Nccl(choices=path)
    assert len(nccl.choices) == 3
    made = choose("all_reduce", 1024, "float32", "sum", cluster, nccl)
    assert (made.algorithm, made.protocol, made.channels) == ("ring", "ll", 4)
    assert made.source == f"{path}:3"
    made = choose("all_reduce", 20000, "float32", "sum", cluster, nccl)
    model = choose("all_reduce", 20000, "float32", "sum", cluster, Nccl())
    assert (made.algorithm, made.protocol) == ("tree", "ll128")
    assert (model.algorithm, model.protocol) == ("tree", "ll")
    # The size is the model's: times ranks for all_gather. Nothing listed: the model decides.
    made = choose("all_gather", 1, "float32", "sum", cluster, nccl)
    assert (made.algorithm, made.protocol, made.channels) == ("ring", "simple", 8)
    big = choose("all_reduce", 1 << 20, "float32", "sum", cluster, nccl)
    assert big.source == "model"
    assert Nccl(choices=str(path)) == nccl


def test_choices_as_dicts_and_what_they_match(cluster):
    row = {"kind": "all_reduce", "min_bytes": 0, "max_bytes": -1, "algorithm": "NVLSTree",
           "protocol": "Simple", "hosts": 3}  # fmt: skip
    small = ("all_reduce", 1, "float32", "sum")
    assert choose(*small, cluster, Nccl(choices=[row])).algorithm == "tree"
    made = choose(*small, cluster, Nccl(choices=[{**row, "hosts": 2}]))
    assert made.algorithm == "nvls_tree" and made.channels == 16
    made = choose(*small, cluster, Nccl(choices=[{**row, "hosts": -1, "nRanks": 16}]))
    assert made.source == "choices[0]"
    first = {**row, "hosts": -1, "algorithm": "ring", "protocol": "ll", "channels": 2}
    assert choose(*small, cluster, Nccl(choices=[first, row])).channels == 2


def test_a_choice_that_cannot_run_is_an_error(cluster):
    row = {"kind": "all_gather", "min_bytes": 0, "max_bytes": -1, "algorithm": "tree",
           "protocol": "ll"}  # fmt: skip
    with pytest.raises(ScheduleError, match=r"choices\[0\] asks for tree ll for all_gather"):
        choose("all_gather", 1, "float32", "sum", cluster, Nccl(choices=[row]))
    row = {**row, "algorithm": "ring", "protocol": "simple"}
    nccl = Nccl(choices=[row], env={"NCCL_PROTO": "LL"})
    with pytest.raises(ScheduleError, match="off by NCCL_PROTO=LL"):
        choose("all_gather", 1, "float32", "sum", cluster, nccl)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("allreduce,0,10,ring", r":1: missing protocol"),
        ("allreduce,0,10,rings,ll", r":1: no such algorithm"),
        ("allreduce,0,10,ring,ll256", r":1: no such protocol"),
        ("allreduce,x,10,ring,ll", r":1: min_bytes is not a number"),
        ("allreduce,20,10,ring,ll", "larger than max_bytes"),
        ("allreduce,-1,10,ring,ll", "min_bytes is -1"),
        ("allreduce,0,10,ring,ll,0", "channels must be 1 to 64"),
        ("allreduce,0,10,ring,ll,1,1,1,1,1,1", "11 columns"),
        ("# nothing", "holds no choices"),
    ],
)
def test_a_bad_csv_names_its_line(tmp_path, line, text):
    path = tmp_path / "tuner.conf"
    path.write_text(line + "\n")
    with pytest.raises(InputError, match=text):
        Nccl(choices=path)


def test_other_bad_choices(tmp_path):
    with pytest.raises(InputError, match="cannot read the choices"):
        Nccl(choices=tmp_path / "missing.csv")
    with pytest.raises(InputError, match="no such column"):
        Nccl(choices=[{"kind": "all_reduce", "size": 1}])
    with pytest.raises(InputError, match="is a dict, not"):
        Nccl(choices=["all_reduce"])
    with pytest.raises(UnsupportedCollectiveError, match="all_to_all"):
        Nccl(choices=[{"kind": "all_to_all", "min_bytes": 0, "max_bytes": 1,
                       "algorithm": "ring", "protocol": "ll"}])  # fmt: skip


# --------------------------------------------------------------------------- switches


def test_a_switch_holds_from_its_release_on():
    switch = Switch("test only", {"2.20.5": 1, "2.27.5": 2, "2.29.2": 3})
    assert [switch.at(v) for v in ((2, 20, 5), (2, 27, 3), (2, 27, 5), (2, 29, 2), (2, 30, 7))] == [
        1, 1, 2, 3, 3,
    ]  # fmt: skip
    assert switch.since_at((2, 28, 3)) == "2.27.5"
    assert "2.27.5: 2" in repr(switch)
    assert rules_at((2, 30, 7))["test only"] == (3, "2.29.2")
    del Switch.registry["test only"]


def test_every_switch_changes_at_a_release_of_nccl():
    import genie.replay.nccl.schedule
    import genie.replay.nccl.tuner  # noqa: F401

    assert len(Switch.registry) >= 20
    for name, switch in Switch.registry.items():
        assert switch.since == sorted(set(switch.since)), name
        for since in switch.since[1:]:
            assert since in RELEASES, (name, since)
        for before, after in zip(switch.values, switch.values[1:], strict=False):
            assert before != after, name
