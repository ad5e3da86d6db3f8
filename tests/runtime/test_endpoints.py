from __future__ import annotations

import re
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genie.errors import GenieError, InputError
from genie.replay.endpoints import Endpoint, Nic, deal_ranks, parse_endpoints


def test_local():
    assert parse_endpoints("local:3") == (Endpoint("localhost"),) * 3
    assert len(parse_endpoints("local")) == 2
    assert parse_endpoints(["local:2"]) == parse_endpoints("local:2")


@pytest.mark.parametrize(
    "text", ["local:", "local:0", "local:-1", "local:x", "local:2.5", "local:9999999"]
)
def test_bad_local(text):
    with pytest.raises(InputError, match=re.escape(text)):
        parse_endpoints(text)


def test_forms():
    got = parse_endpoints(
        ["n1/mlx5_0:1,mlx5_1:2", "user@n2.example.com/eth0", "[fe80::1%eth0]/e", "10.0.0.1"]
    )
    assert got == (
        Endpoint("n1", (Nic("mlx5_0", 1), Nic("mlx5_1", 2))),
        Endpoint("user@n2.example.com", (Nic("eth0"),)),
        Endpoint("[fe80::1%eth0]", (Nic("e"),)),
        Endpoint("10.0.0.1"),
    )
    assert [e.address for e in got] == ["n1", "n2.example.com", "fe80::1%eth0", "10.0.0.1"]
    assert [str(e) for e in got][:2] == ["n1/mlx5_0:1,mlx5_1:2", "user@n2.example.com/eth0"]


def test_same_host_twice_is_two_workers():
    got = parse_endpoints(["localhost/rxe0", "localhost/rxe1"])
    assert len(got) == 2 and all(e.is_local for e in got)
    assert Endpoint(socket.gethostname()).is_local
    assert not Endpoint("n1.example.com").is_local


def test_one_string():
    assert parse_endpoints("n1/eth0,eth1") == (Endpoint("n1", (Nic("eth0"), Nic("eth1"))),)
    assert parse_endpoints("n1,n2") == (Endpoint("n1"), Endpoint("n2"))


def test_file(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("# my cluster\nn1/mlx5_0:1\n\n  n2/mlx5_0  # second\n")
    want = (Endpoint("n1", (Nic("mlx5_0", 1),)), Endpoint("n2", (Nic("mlx5_0"),)))
    assert (
        parse_endpoints(path) == parse_endpoints(str(path)) == parse_endpoints([str(path)]) == want
    )
    path.write_text("w-0 slots=2\nw-1 slots=1 max_slots=4\n")
    assert [e.host for e in parse_endpoints(path)] == ["w-0", "w-0", "w-1"]
    path.write_text("n1\nn 2\n")
    with pytest.raises(InputError, match=r"hosts:2 is 'n 2'"):
        parse_endpoints(path)
    path.write_text("# nothing\n")
    with pytest.raises(InputError, match="no endpoint"):
        parse_endpoints(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="not readable"):
        parse_endpoints(path)
    with pytest.raises(InputError, match="no such file"):
        parse_endpoints(str(tmp_path / "nothing"))


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ([], "no endpoint"),
        ("", "not a host"),
        (["n1", "local:2"], "endpoint 1 is 'local:2'"),
        (["n1/"], "is not nic"),
        (["n1", "n2/eth0:0"], r"endpoint 1 .*port 0"),
        (["n1/eth0:256", "n2"], "port 256"),
        (["n1/eth0:x", "n2"], "eth0:x"),
        (["n1/eth0,eth0", "n2"], "named twice"),
        (["n1", 5], "endpoint 1 is 5"),
        (["-oProxyCommand=x", "n2"], "not a host"),
        (["n1;rm", "n2"], "not a host"),
        (["n1 n2", "n3"], "not a host"),
    ],
)
def test_errors_name_the_endpoint(spec, text):
    with pytest.raises(InputError, match=text):
        parse_endpoints(spec)


@given(st.one_of(st.text(), st.lists(st.text(max_size=20), max_size=4)))
def test_anything_parses_or_is_refused(spec):
    try:
        for e in parse_endpoints(spec):
            assert parse_endpoints([str(e), "x"])[0] == e
    except GenieError:
        pass


def test_ranks_are_dealt_in_blocks():
    ends = parse_endpoints("local:4")
    assert deal_ranks(8, ends) == [range(0, 2), range(2, 4), range(4, 6), range(6, 8)]
    for ranks, n in ((8, 3), (4, 5), (4, 3)):
        with pytest.raises(InputError, match=f"{ranks} ranks.*{n} endpoints"):
            deal_ranks(ranks, parse_endpoints(f"local:{n}"))
