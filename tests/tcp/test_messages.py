"""Messages between two transports of one process: sizes, order, credits, lanes."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tcp_pair import ERROR, READY, RECEIVED, SENT, kinds, pair, pump

EAGAIN, EBADMSG, EINVAL, EMSGSIZE, ECONNRESET = 11, 74, 22, 90, 104

SIZES = [0, 1, 3, 4, 5, 512, 16383, 16384, 16385, 32768, 65532, 65536, 65537, 1 << 20, 8 << 20]


@pytest.mark.parametrize("spin", [True, False], ids=["spin", "blocking"])
@pytest.mark.parametrize("sockets", [1, 3])
def test_every_size_arrives_once_and_in_order(spin, sockets):
    with pair(spin=spin, sockets=sockets) as (a, b, left, right):
        seen = [[], []]
        for i in range(0, len(SIZES), 8):
            batch = SIZES[i : i + 8]
            done = len(seen[1]) + len(batch)
            for step, n in enumerate(batch):
                assert right.post_recv(0, n, step) == 0
                assert left.post_send(0, n, step) == 0
            pump([left, right], lambda done=done: len(seen[1]) >= done, seen)
        assert kinds(seen[0]) == [SENT] * len(SIZES)
        assert kinds(seen[1]) == [RECEIVED] * len(SIZES)
        assert [t for *_, t in seen[1]] == sorted(t for *_, t in seen[1])
        assert a.stats()["sent_bytes"] == b.stats()["received_bytes"] == sum(SIZES)
        assert a.stats()["peers"][1]["sent_messages"] == len(SIZES)
        assert b.stats()["peers"][0]["received_messages"] == len(SIZES)


def test_the_wire_carries_four_bytes_a_message_more():
    with pair() as (a, _, left, right):
        seen = [[], []]
        sizes = [0, 0, 100, 0, 70000]
        for n in sizes:
            assert (right.post_recv(0, n), left.post_send(0, n)) == (0, 0)
        pump([left, right], lambda: len(seen[1]) == len(sizes), seen)
        assert a.stats()["wire_bytes_sent"] == sum(sizes) + 4 * len(sizes)


def test_small_messages_share_a_system_call():
    with pair() as (a, b, left, right):
        seen = [[], []]
        for _ in range(8):
            assert (right.post_recv(0, 100), left.post_send(0, 100)) == (0, 0)
        pump([left, right], lambda: len(seen[1]) == 8, seen)
        assert a.stats()["send_calls"] == 1
        assert b.stats()["bytes_copied"] == 8 * 104
        assert b.stats()["recv_calls"] <= 3


def test_large_payload_is_not_copied():
    with pair() as (a, b, left, right):
        seen = [[], []]
        for _ in range(4):
            assert (right.post_recv(0, 1 << 20), left.post_send(0, 1 << 20)) == (0, 0)
        pump([left, right], lambda: len(seen[1]) == 4, seen)
        assert b.stats()["bytes_dropped"] > 0.9 * (4 << 20)
        assert b.stats()["bytes_dropped"] + b.stats()["bytes_copied"] == (4 << 20) + 16
        assert b.stats()["bytes_copied"] <= 4 * (2048 + 4)
        assert a.stats()["bytes_lent"] > 0.9 * (4 << 20)


def test_a_send_runs_ahead_of_its_receiver_by_one_window():
    with pair(run_ahead=8) as (_, b, left, right):
        for _ in range(8):
            assert left.post_send(0, 1000) == 0
        assert left.post_send(0, 1000) == -EAGAIN
        assert left.flush() == 0
        assert kinds(left.poll()) == [SENT] * 8  # accepted by the kernel
        assert right.poll() == []  # nothing was announced, so nothing is received
        assert b.stats()["recv_calls"] == 0
        seen = [[], []]
        for _ in range(4):
            assert right.post_recv(0, 1000) == 0
        pump([left, right], lambda: READY in kinds(seen[0]), seen)
        assert kinds(seen[1]) == [RECEIVED] * 4
        for _ in range(4):
            assert left.post_send(0, 1000) == 0
        assert left.post_send(0, 1000) == -EAGAIN


@pytest.mark.parametrize("window", [2, 3, 8])
def test_an_announced_message_can_always_be_sent(window):
    """However many receives are announced at once, that many messages go."""
    with pair(run_ahead=window) as (_, _, left, right):
        for _ in range(1000):
            assert right.post_recv(0, 3) == 0
        seen = [[], []]
        sent = 0
        while sent < 1000:
            code = left.post_send(0, 3)
            assert code in (0, -EAGAIN)
            sent += code == 0
            if code:
                ready = kinds(seen[0]).count(READY)
                pump(
                    [left, right],
                    lambda ready=ready: kinds(seen[0]).count(READY) > ready,
                    seen,
                )
        pump([left, right], lambda: len(seen[1]) == 1000, seen)


def test_credits_are_few():
    with pair([(0, 1), (1, 0)], run_ahead=8) as (a, b, left, right):
        seen = [[], []]
        for i in range(64):
            assert (right.post_recv(0, 10), left.post_send(0, 10)) == (0, 0)
            pump([left, right], lambda i=i: len(seen[1]) == i + 1, seen)
        credits = b.stats()["credit_calls"]
        assert 64 / 8 - 1 <= credits <= 64 / 4
        assert a.stats()["peers"][1]["credits"] <= 64


def test_wrong_size_names_both_numbers():
    with pair() as (_, b, left, right):
        assert (right.post_recv(0, 100), left.post_send(0, 200)) == (0, 0)
        seen = [[], []]
        pump([left, right], lambda: ERROR in kinds(seen[1]), seen)
        assert seen[1][-1][:3] == (ERROR, 0, -EBADMSG)
        (failure,) = b.failures()
        assert (failure.expected, failure.found, failure.peer) == (100, 200, 0)
        assert "200 bytes" in failure.reason
        assert "100" in failure.reason
        assert "rank 0 to rank 1" in failure.reason
        assert right.post_recv(0, 1) == -EBADMSG


def test_partial_writes():
    """A send buffer far smaller than the message: writing stops and goes on many times."""
    with pair(buffer_bytes=4096) as (_, b, left, right):
        seen = [[], []]
        sizes = [300_000, 5, 20_000, 0, 1_000_000]
        for n in sizes:
            assert (right.post_recv(0, n), left.post_send(0, n)) == (0, 0)
        left.flush()
        assert len(left.poll()) < len(sizes)
        pump([left, right], lambda: len(seen[1]) == len(sizes), seen)
        assert b.stats()["received_bytes"] == sum(sizes)


def test_without_a_memfd_large_messages_go_from_the_buffer():
    with pair(tuning={"file_min": 1 << 40}) as (a, b, left, right):
        seen = [[], []]
        for n in (9 << 20, 70_000, 65_536):
            assert (right.post_recv(0, n), left.post_send(0, n)) == (0, 0)
        pump([left, right], lambda: len(seen[1]) == 3, seen)
        assert a.stats()["bytes_lent"] == 0
        assert b.stats()["received_bytes"] == (9 << 20) + 70_000 + 65_536


def test_posts_that_make_no_sense():
    with pair() as (_, _, left, right):
        assert left.post_recv(0, 1) == -EINVAL  # this end sends
        assert right.post_send(0, 1) == -EINVAL
        assert left.post_send(1, 1) == -EINVAL  # no such connection
        assert left.post_send(0, 1 << 32) == -EMSGSIZE
        assert right.post_recv(0, 1 << 32) == -EMSGSIZE


def test_wait_ends_at_its_deadline():
    from genie._core._drive import now

    for spin in (True, False):
        with pair(spin=spin) as (_, _, left, _):
            start = now()
            assert left.wait(5_000_000) == 0
            took = now() - start
            assert took >= 5_000_000
            assert took < 1_000_000_000


@pytest.mark.parametrize("nbytes", [1000, 500_000])
def test_a_graceful_end_is_no_failure_and_loses_nothing(nbytes):
    """The sender closes while its last messages, and credits to it, are on their way."""
    with pair() as (a, _, left, right):
        for _ in range(8):
            assert left.post_send(0, nbytes) == 0
        sent = [[]]
        while len(sent[0]) < 8 and nbytes == 1000:
            left.flush()
            sent[0] += left.poll()
        for _ in range(8):
            assert right.post_recv(0, nbytes) == 0
        seen = [[], []]
        if nbytes > 1000:
            pump([left, right], lambda: len(seen[0]) == 8, seen)
        closing = threading.Thread(target=a.close, args=(5.0,))
        closing.start()
        pump([right], lambda: len(seen[1]) == 8, [seen[1]])
        assert kinds(seen[1]) == [RECEIVED] * 8
        closing.join(1.0)
        assert not closing.is_alive()
        right.wait(1_000_000)
        assert right.poll() == []
        assert right.post_recv(0, 1) in (0, -ECONNRESET)


def test_a_closed_peer_with_work_left_is_an_error():
    for spin in (True, False):
        with pair(spin=spin) as (a, b, _, right):
            assert right.post_recv(0, 10) == 0
            a.close()
            seen = [[]]
            pump([right], lambda seen=seen: ERROR in kinds(seen[0]), seen)
            assert seen[0][-1][:3] == (ERROR, 0, -ECONNRESET)
            assert "worker 0 closed" in b.failures()[0].reason


def test_use_after_close():
    with pair() as (a, _, left, _):
        a.close()
        a.close()
        assert left.post_send(0, 1) in (0, -9)
        left.flush()
        assert all(kind == ERROR for kind in kinds(left.poll()))
        with pytest.raises(Exception, match="closed"):
            _ = a.capsule


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(
        st.one_of(st.integers(0, 40), st.integers(0, 70_000), st.integers(0, 1_500_000)),
        min_size=1,
        max_size=30,
    ),
    sockets=st.integers(1, 4),
    stripe_min=st.sampled_from([1, 1000, 1 << 20]),
    copy_max=st.sampled_from([0, 100, 16384, 65532]),
    file_min=st.sampled_from([1, 5000, 32768, 1 << 40]),
    run_ahead=st.integers(2, 9),
    spin=st.booleans(),
    ahead=st.integers(0, 5),
)
def test_random_sequences(sizes, sockets, stripe_min, copy_max, file_min, run_ahead, spin, ahead):
    """Whatever the sizes, thresholds, lanes and order of posts: all arrive, none twice."""
    tuning = {"stripe_min": stripe_min, "copy_max": copy_max, "file_min": file_min}
    options = {"sockets": sockets, "run_ahead": run_ahead, "spin": spin, "tuning": tuning}
    with pair([(0, 1), (1, 0)], **options) as (a, b, left, right):
        seen = [[], []]
        sent = {0: 0, 1: 0}
        announced = {0: 0, 1: 0}
        ends = {0: (left, right), 1: (right, left)}

        def turn() -> bool:
            for conn, (sender, receiver) in ends.items():
                while announced[conn] < min(len(sizes), sent[conn] + ahead + 1):
                    assert receiver.post_recv(conn, sizes[announced[conn]]) == 0
                    announced[conn] += 1
                while sent[conn] < len(sizes):
                    if sender.post_send(conn, sizes[sent[conn]]):
                        break
                    sent[conn] += 1
            return all(kinds(s).count(RECEIVED) == len(sizes) for s in seen) and all(
                kinds(s).count(SENT) == len(sizes) for s in seen
            )

        pump([left, right], turn, seen)
        assert ERROR not in kinds(seen[0]) + kinds(seen[1])
        for t in (a, b):
            assert t.stats()["sent_bytes"] == t.stats()["received_bytes"] == sum(sizes)
