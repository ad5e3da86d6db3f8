"""Work requests against golden ib.json of three releases, and how a rank's messages become them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genie.errors import InputError
from genie.replay.cluster import Cluster
from genie.replay.nccl.env import Nccl
from genie.replay.nccl.schedule import p2p_group, schedule
from genie.replay.nccl.versions import parse_version
from genie.replay.nccl.wire import MULTI_SEND_IMM, Connection, multi_send, receives, sends
from golden_data import VERSIONS, load

#: (sends, receives, grouped sends) compared.
COUNTS = {"2.30": (840, 84, 6), "2.27": (840, 84, 6), "2.21": (540, 84, 6)}


def rows(table):
    return [list(row)[1:] for row in table.tolist()]


def connection(entry, version):
    return Connection(
        devices=entry["ndevs"],
        qps=entry["ndevs"] * entry["qps_per_connection"],
        split=bool(entry.get("split_data_on_qps", 0)),
        adaptive=bool(entry.get("ar", 0)),
        first_size_imm=MULTI_SEND_IMM.at(parse_version(version)),
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_sends_equal_golden(version):
    compared = 0
    for entry in load("ib", version)["sends"]:
        sizes, requests, expected = zip(*entry["messages"], strict=True)
        table = sends(
            np.arange(len(sizes)), np.array(requests), np.array(sizes), connection(entry, version)
        )
        for i, wrs in enumerate(expected):
            assert rows(table[table["message"] == i]) == wrs, (entry["ndevs"], sizes[i])
            compared += 1
    assert compared >= COUNTS[version][0]


@pytest.mark.parametrize("version", VERSIONS)
def test_receives_equal_golden(version):
    compared = 0
    for entry in load("ib", version)["recv_posts"]:
        requests, expected = zip(*entry["ops"], strict=True)
        table = receives(
            np.arange(len(requests)),
            np.array(requests),
            connection(entry, version),
            entry["n_recvs"],
        )
        for i, wrs in enumerate(expected):
            assert rows(table[table["message"] == i]) == wrs
            compared += 1
    assert compared >= COUNTS[version][1]


@pytest.mark.parametrize("version", VERSIONS)
def test_grouped_sends_equal_golden(version):
    entries = load("ib", version)["multi_sends"]
    for entry in entries:
        sizes = np.array(entry["sizes"])
        table = multi_send(np.arange(len(sizes)), 0, sizes, connection(entry, version))
        assert rows(table) == entry["wrs"]
    assert len(entries) >= COUNTS[version][2]


@given(
    sizes=st.lists(st.integers(0, 1 << 21), min_size=1, max_size=20),
    devices=st.integers(1, 4),
    qps=st.integers(1, 4),
    split=st.booleans(),
    adaptive=st.booleans(),
)
def test_parts_cover_the_message(sizes, devices, qps, split, adaptive):
    """The parts of a message are its bytes, in order, each on a queue pair of its device."""
    conn = Connection(devices, devices * qps, split, adaptive)
    number = np.arange(len(sizes))
    table = sends(number, number, np.array(sizes), conn)
    for i, size in enumerate(sizes):
        mine = table[table["message"] == i]
        data = mine[mine["remote_offset"] >= 0]
        assert data["nbytes"].sum() == mine["nbytes"].sum() == size
        ends = data["remote_offset"] + data["nbytes"]
        assert (data["remote_offset"][1:] == ends[:-1]).all()
        assert (mine["device"] == mine["qp"] % devices).all()
        # The receiver counts immediates: one a queue pair used, whatever the size.
        told = mine[mine["opcode"] == "WRITE_IMM"]
        assert len(told) == conn.used == len(np.unique(told["qp"]))
        assert (told["imm"] == size).all() and told["signaled"].all()


def test_a_rank_s_messages_become_requests():
    cluster = Cluster.preset("h100x1", hosts=4)
    nccl = Nccl(env={"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple", "NCCL_IB_QPS_PER_CONNECTION": 2})
    ring = schedule("all_reduce", count=1 << 20, cluster=cluster, nccl=nccl)
    messages = ring.messages(1)
    table = ring.work_requests(1)
    assert table["message"].tolist() == sorted(table["message"].tolist())
    for i, message in enumerate(messages):
        mine = table[table["message"] == i]
        if message["direction"] == 0:
            assert mine["opcode"].tolist() == ["WRITE_IMM"]
            assert mine["imm"][0] == message["nbytes"]
            # Requests of a connection alternate between its queue pairs.
            assert mine["qp"][0] == message["step"] // 2 % 2
        else:
            assert mine["opcode"].tolist() == ["RECV_WR", "CTS_WRITE"]
            assert mine["nbytes"].tolist() == [0, 64]
    routed = ring.work_requests(1, link_layer="infiniband")
    large = messages[(messages["direction"] == 0) & (messages["nbytes"] > 8192)]
    assert (routed["opcode"] == "WRITE").sum() == len(large) > 0


@pytest.mark.parametrize(("version", "most"), [("2.21", 2), ("2.27", 4), ("2.30", 8)])
def test_more_devices_than_the_release_merges_are_refused(version, most):
    made = schedule(
        "barrier", cluster=Cluster.preset("h100x1", hosts=2), nccl=Nccl(version=version)
    )
    assert len(made.work_requests(0, devices=most))
    with pytest.raises(InputError, match=f"1 to {most} NIC ports, not {most + 1}"):
        made.work_requests(0, devices=most + 1)
    with pytest.raises(InputError, match="ethernet or infiniband"):
        made.work_requests(0, link_layer="token ring")


@pytest.mark.parametrize(
    ("env", "announced"),
    [
        # With PXN eight senders come through one proxy: one CTS announces eight buffers. The
        # long message has four parts of four messages; those beyond the first go alone.
        ({}, [64] * 15 + [512]),
        ({"NCCL_NET_SHARED_COMMS": 0}, [64] * 23),
        ({"NCCL_PXN_DISABLE": 1}, [64] * 23),
    ],
)
def test_shared_connections_of_an_exchange(env, announced):
    """Requests of all senders of a host and of their receiver match, one by one."""
    splits = np.full((16, 16), 5000)
    splits[3, 8] = 200_000
    made = schedule(
        "all_to_all",
        splits=splits,
        dtype="float32",
        cluster=Cluster.preset("h100x8", hosts=2),
        nccl=Nccl(env=env),
    )
    received = made.work_requests(8)
    assert sorted(received["nbytes"][received["opcode"] == "CTS_WRITE"]) == announced
    told = 0
    for rank in range(8):
        messages, table = made.messages(rank), made.work_requests(rank)
        to_8 = (messages["peer"] == 8) & (messages["direction"] == 0)
        rows = table[np.isin(table["message"], np.flatnonzero(to_8))]
        told += int((rows["opcode"] == "WRITE_IMM").sum())
        for i in np.flatnonzero(to_8):
            assert rows["nbytes"][rows["message"] == i][0] == messages["nbytes"][i]
    # Each receive work request is used up by one immediate.
    assert told == len(announced) == (received["opcode"] == "RECV_WR").sum()


def test_a_group_of_one_rank():
    """Its receives share a connection (both come through rank 8); its send stays single."""
    group = p2p_group([(8, 100)], [(8, 100), (9, 50)], Cluster.preset("h100x8", hosts=2))
    table = group.work_requests(0)
    found = sorted(zip(table["opcode"].tolist(), table["nbytes"].tolist(), strict=True))
    assert found == [("CTS_WRITE", 128), ("RECV_WR", 0), ("WRITE_IMM", 100)]
