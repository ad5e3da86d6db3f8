"""Two opposite connections on the same sockets: each keeps to its direction."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tcp_pair import ERROR, RECEIVED, SENT, connect_all, kinds, pump, table, transport

from genie._core import tcp
from genie._core._drive import Drive
from genie.errors import TransportError
from genie.replay.transports.tcp import TcpTransport

EBADMSG = 74


@contextlib.contextmanager
def both_ways(
    **options: Any,
) -> Iterator[tuple[TcpTransport, TcpTransport, Drive, Drive]]:
    """Connection 0 from worker 0 to 1, connection 1 back, on one channel."""
    rows = table([(0, 1), (1, 0)])
    rows["channel"] = 0
    a, b = (transport(w, rows, [0, 1], **options) for w in (0, 1))
    try:
        connect_all([a, b])
        yield a, b, Drive(a.capsule), Drive(b.capsule)
    finally:
        a.close(0.0)
        b.close(0.0)


@pytest.mark.parametrize("spin", [True, False], ids=["spin", "blocking"])
@pytest.mark.parametrize("sockets", [1, 3])
def test_both_directions_at_once(spin, sockets):
    sizes = [0, 1, 512, 70_000, 3 << 20, 5]
    with both_ways(spin=spin, sockets=sockets) as (a, b, left, right):
        seen = [[], []]
        for n in sizes:
            assert (right.post_recv(0, n), left.post_send(0, n)) == (0, 0)
            assert (left.post_recv(1, n + 1), right.post_send(1, n + 1)) == (0, 0)
        everything = 2 * len(sizes)
        pump([left, right], lambda: min(map(len, seen)) == everything, seen)
        for events, mine in zip(seen, (0, 1), strict=True):
            order = [(kind, conn) for kind, conn, *_ in events]
            assert order.count((SENT, mine)) == order.count((RECEIVED, 1 - mine)) == len(sizes)
        assert a.stats()["sent_bytes"] == b.stats()["received_bytes"] == sum(sizes)
        assert b.stats()["sent_bytes"] == a.stats()["received_bytes"] == sum(sizes) + len(sizes)
        assert a.stats()["credit_calls"] == b.stats()["credit_calls"] == 0


def test_what_was_not_announced_waits_in_the_kernel():
    with both_ways(run_ahead=2) as (_, b, left, right):
        for _ in range(200):  # far beyond run_ahead: the socket's buffers bound it
            assert left.post_send(0, 1000) == 0
        assert left.flush() == 0
        assert right.poll() == []
        assert b.stats()["recv_calls"] == 0
        # The other direction is not held up by it.
        seen = [[], []]
        assert (left.post_recv(1, 7), right.post_send(1, 7)) == (0, 0)
        pump([left, right], lambda: RECEIVED in kinds(seen[0]), seen)
        for _ in range(200):
            assert right.post_recv(0, 1000) == 0
        pump([left, right], lambda: kinds(seen[1]).count(RECEIVED) == 200, seen)


def test_wrong_size_ends_one_direction():
    with both_ways() as (_, b, left, right):
        seen = [[], []]
        assert (right.post_recv(0, 100), left.post_send(0, 99)) == (0, 0)
        pump([left, right], lambda: ERROR in kinds(seen[1]), seen)
        failure = b.failures()[0]
        assert (failure.connection, failure.status) == (0, -EBADMSG)
        assert (failure.expected, failure.found) == (100, 99)
        assert (left.post_recv(1, 5), right.post_send(1, 5)) == (0, 0)
        pump([left, right], lambda: RECEIVED in kinds(seen[0]), seen)


def test_a_peer_that_is_done_may_still_be_sent_to():
    with both_ways() as (a, b, left, right):
        seen = [[], []]
        a._tcp.end()  # nothing more from a
        for _ in range(10):
            right.poll()
            right.wait(1_000_000)
        assert (left.post_recv(1, 5000), right.post_send(1, 5000)) == (0, 0)
        pump([left, right], lambda: RECEIVED in kinds(seen[0]), seen)
        assert b.failures() == a.failures() == []


def test_a_dead_peer_is_an_error_in_both_directions():
    with both_ways() as (a, _, _left, right):
        seen = [[], []]
        assert right.post_recv(0, 10) == 0
        a.close(0.0)
        assert right.post_send(1, 64 << 20) == 0
        pump([right], lambda: kinds(seen[0]).count(ERROR) == 2, seen[:1])
        assert {conn for kind, conn, *_ in seen[0] if kind == ERROR} == {0, 1}


def test_sockets_are_closed_once():
    before = tcp.live()["sockets"]
    with both_ways(sockets=2):
        assert tcp.live()["sockets"] == before + 8
    assert tcp.live()["sockets"] == before


@pytest.mark.parametrize(
    ("channel", "shared", "expected"), [(0, None, True), (1, None, False), (0, False, False)]
)
def test_only_opposite_connections_over_loopback_share(channel, shared, expected):
    rows = table([(0, 1), (1, 0)])
    rows["channel"] = (0, channel)
    t = transport(0, rows, [0, 1], shared=shared)
    assert bool(t._opposite({1: ("127.0.0.1", 1)})) is expected
    assert not t._opposite({1: ("192.0.2.1", 1)})
    t.close()


def test_ends_that_disagree_refuse_each_other():
    rows = table([(0, 1), (1, 0)])
    rows["channel"] = 0
    a = transport(0, rows, [0, 1], shared=True)
    b = transport(1, rows, [0, 1], shared=False)
    with pytest.raises(TransportError, match=r"plan|expect"):
        connect_all([a, b], timeout=5.0)
    a.close()
    b.close()


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 200_000)), max_size=40),
    st.booleans(),
)
def test_random_sequences(moves, spin):
    with both_ways(spin=spin) as (_, _, left, right):
        drives, seen, expected = [left, right], [[], []], [0, 0]
        for forward, n in moves:
            conn, source = (0, 0) if forward else (1, 1)
            assert drives[1 - source].post_recv(conn, n) == 0
            assert drives[source].post_send(conn, n) == 0
            expected[1 - source] += 1
            for drive, events in zip(drives, seen, strict=True):
                assert drive.flush() == 0
                events.extend(drive.poll())
        pump(
            drives,
            lambda: [kinds(events).count(RECEIVED) for events in seen] == expected,
            seen,
        )
        assert ERROR not in kinds(seen[0]) + kinds(seen[1])


@pytest.mark.parametrize("channel", [0, 1], ids=["shared", "apart"])
def test_polling_leaves_epoll_and_comes_back(channel):
    rows = table([(0, 1), (1, 0)])
    rows["channel"] = (0, channel)
    a, b = (transport(w, rows, [0, 1], spin=True) for w in (0, 1))
    try:
        connect_all([a, b])
        left, right = drives = [Drive(a.capsule), Drive(b.capsule)]
        seen = [[], []]
        for turn in range(2):
            for k in range(400):  # as many without a pause as it takes to leave epoll
                assert (right.post_recv(0, 9), left.post_send(0, 9)) == (0, 0)
                done = 401 * turn + k + 1
                pump(drives, lambda done=done: kinds(seen[1]).count(RECEIVED) == done, seen)
            for _ in range(2000):  # and a pause that asks it again
                right.poll()
            # More than the sockets hold: the sender must hear of room.
            assert (right.post_recv(0, 64 << 20), left.post_send(0, 64 << 20)) == (0, 0)
            pump(drives, lambda done=done: kinds(seen[1]).count(RECEIVED) == done + 1, seen)
        for k in range(400):
            assert (right.post_recv(0, 9), left.post_send(0, 9)) == (0, 0)
            pump(drives, lambda k=k: kinds(seen[1]).count(RECEIVED) == 803 + k, seen)
        assert right.post_recv(0, 9) == 0
        a.close(0.0)
        pump([right], lambda: ERROR in kinds(seen[1]), seen[1:])
    finally:
        a.close(0.0)
        b.close(0.0)
