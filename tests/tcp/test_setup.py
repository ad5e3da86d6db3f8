"""Opening connections: many at once, strangers, wrong secrets, missing peers, limits."""

from __future__ import annotations

import resource
import socket
import threading
import time

import numpy as np
import pytest
from tcp_pair import RECEIVED, SECRET, connect_all, kinds, pair, pump, table, transport

from genie._core._drive import Drive
from genie.errors import InputError, RendezvousTimeoutError, TransportError
from genie.replay.auth import AuthenticationError
from genie.replay.transports.interfaces import address_of, allow_descriptors
from genie.replay.transports.tcp import TcpTransport


def test_five_hundred_connections():
    pairs = [(0, 1), (1, 0)] * 250
    start = time.monotonic()
    with pair(pairs) as (a, b, left, right):
        assert time.monotonic() - start < 30
        drives = (left, right)
        seen = [[], []]
        for conn, (src, dst) in enumerate(pairs):
            assert drives[dst].post_recv(conn, 1000) == 0
            assert drives[src].post_send(conn, 1000) == 0
        pump(
            list(drives),
            lambda: all(kinds(events).count(RECEIVED) == 250 for events in seen),
            seen,
        )
        assert {conn for kind, conn, *_ in seen[0] if kind == RECEIVED} == set(range(1, 500, 2))
        assert a.stats()["received_bytes"] == b.stats()["received_bytes"] == 250_000


def test_eight_workers_each_with_each():
    pairs = [(i, j) for i in range(8) for j in range(8) if i != j]
    transports = [transport(w, table(pairs), list(range(8)), sockets=2) for w in range(8)]
    try:
        connect_all(transports)
        drives = [Drive(t.capsule) for t in transports]
        seen = [[] for _ in range(8)]
        for conn, (src, dst) in enumerate(pairs):
            assert drives[dst].post_recv(conn, src * 10 + dst) == 0
            assert drives[src].post_send(conn, src * 10 + dst) == 0
        pump(drives, lambda: all(kinds(s).count(RECEIVED) == 7 for s in seen), seen)
        assert all(set(t.stats()["peers"]) == set(range(8)) - {t.worker} for t in transports)
    finally:
        for t in transports:
            t.close(0.0)


def test_ranks_of_one_worker_share_it():
    rows = table([(0, 2), (1, 3), (3, 0)])
    a, b = (transport(w, rows, [0, 0, 1, 1]) for w in (0, 1))
    try:
        connect_all([a, b])
        assert a.stats()["peers"].keys() == {1}
    finally:
        a.close()
        b.close()


def test_a_connection_inside_a_worker_is_refused():
    with pytest.raises(InputError, match="from worker 0 to 0"):
        TcpTransport(0, table([(0, 1)]), [0], [0, 0])


def test_strangers_cannot_get_in_or_stop_the_others():
    """Garbage, silence and early closes before and while the true peer comes."""
    rows = table([(0, 1)])
    a, b = (transport(w, rows, [0, 1]) for w in (0, 1))
    strangers = []
    try:
        (where,) = b.listen()
        rng = np.random.default_rng(7)
        for i in range(40):
            stranger = socket.create_connection(where)
            strangers.append(stranger)
            if i % 4:
                stranger.sendall(rng.bytes(int(rng.integers(1, 300))))
            if i % 4 == 2:
                stranger.close()
        addresses = {0: a.listen(), 1: (where,)}
        threads = [
            threading.Thread(target=t.connect, args=(addresses, SECRET)) for t in (a, b)
        ]  # fmt: skip
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert Drive(a.capsule).post_send(0, 1) == 0
        assert b.refused > 0
    finally:
        for stranger in strangers:
            stranger.close()
        a.close(0.0)
        b.close(0.0)


def test_another_secret_is_refused_at_both_ends():
    rows = table([(0, 1)])
    a, b = (transport(w, rows, [0, 1]) for w in (0, 1))
    try:
        addresses = {0: a.listen(), 1: b.listen()}
        errors = []

        def run(t, secret):
            try:
                t.connect(addresses, secret, timeout=2.0)
            except Exception as exc:
                errors.append(exc)

        threads = [
            threading.Thread(target=run, args=(t, s)) for t, s in ((a, b"x" * 32), (b, b"y" * 32))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        kinds_ = {type(e) for e in errors}
        assert kinds_ <= {AuthenticationError, RendezvousTimeoutError, TransportError}
        assert len(errors) == 2
    finally:
        a.close(0.0)
        b.close(0.0)


def test_a_missing_peer_is_named():
    rows = table([(0, 1), (2, 0)])
    a = transport(0, rows, [0, 1, 2])
    silent = socket.create_server(("127.0.0.1", 0))
    try:
        with pytest.raises(RendezvousTimeoutError) as caught:
            a.connect({1: silent.getsockname()}, SECRET, timeout=0.5)
        assert caught.value.missing == [1, 2]
        assert "worker 2 did not open 1 of its sockets" in str(caught.value)
        assert f"worker 1 at 127.0.0.1:{silent.getsockname()[1]} did not take 1" in str(
            caught.value
        )
    finally:
        silent.close()
        a.close()


def test_a_peer_that_listens_nowhere_is_named():
    a = transport(0, table([(0, 1)]), [0, 1])
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    with pytest.raises(RendezvousTimeoutError, match=r"worker 1 at .*refused"):
        a.connect({1: ("127.0.0.1", port)}, SECRET, timeout=0.4)
    a.close()


def test_another_plan_is_refused():
    mine, other = table([(0, 1)]), table([(0, 1)])
    other["channel"] = 5
    a, b = transport(0, mine, [0, 1]), transport(1, other, [0, 1])
    try:
        addresses = {0: a.listen(), 1: b.listen()}
        errors = {}

        def run(t):
            try:
                t.connect(addresses, SECRET, timeout=5.0)
            except TransportError as exc:
                errors[t.worker] = str(exc)

        threads = [threading.Thread(target=run, args=(t,)) for t in (a, b)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert "runs another plan" in errors[1]
        assert "refused connection 0" in errors[0]
    finally:
        a.close(0.0)
        b.close(0.0)


def test_listens_only_where_it_was_told_to():
    t = transport(0, table([(0, 1)]), [0, 1], bind="lo")
    try:
        ((address, port),) = t.listen()
        assert address == "127.0.0.1"
        others = [
            info[4][0]
            for info in socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)
            if not info[4][0].startswith("127.") and ":" not in info[4][0]
        ]
        for other in others:
            with pytest.raises(OSError):
                socket.create_connection((other, port), timeout=1).close()
    finally:
        t.close()


def test_names_of_interfaces_and_addresses():
    assert address_of("127.0.0.1") == "127.0.0.1"
    assert address_of("lo") == "127.0.0.1"
    assert address_of("::1") == "::1"
    with pytest.raises(InputError, match="interfaces: lo"):
        address_of("no-such-interface0")


def test_ipv6():
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as exc:
        pytest.skip(f"no IPv6 here: {exc}")
    with pair(bind="::1") as (_, _, left, right):
        seen = [[], []]
        assert (right.post_recv(0, 9), left.post_send(0, 9)) == (0, 0)
        pump([left, right], lambda: len(seen[1]) == 1, seen)


def test_several_addresses_by_nic():
    rows = table([(0, 1), (1, 0)])
    rows["nic_src"] = rows["nic_dst"] = [0, 1]
    a, b = (
        transport(w, rows, [0, 1], bind=[f"127.0.0.{2 * w + 2}", f"127.0.0.{2 * w + 3}"])
        for w in (0, 1)
    )
    try:
        connect_all([a, b])
        assert len(a.stats()["peers"]) == 1
    finally:
        a.close()
        b.close()


def test_too_few_descriptors_is_one_clear_error():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 300), hard))
    try:
        allow_descriptors(500)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= 500
        with pytest.raises(TransportError, match=r"ulimit -n \d+"):
            allow_descriptors(1 << 31)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_unknown_congestion_control():
    with pytest.raises(InputError, match="no-such-cc"):
        transport(0, table([(0, 1)]), [0, 1], congestion="no-such-cc").listen()


def test_a_worker_without_connections():
    t = TcpTransport(3, table([]), [], [])
    t.connect({}, SECRET)
    drive = Drive(t.capsule)
    assert drive.poll() == []
    assert drive.wait(1000) == 0
    t.close()
