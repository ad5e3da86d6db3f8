"""Bytes that no sender or receiver of ours would send, after authentication."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tcp_pair import ERROR, READY, RECEIVED, SENT

from genie._core._drive import Drive
from genie._core.tcp import Tcp

EBADMSG, ECONNRESET = 74, 104


@contextlib.contextmanager
def one(sender: bool, **options: Any) -> Iterator[tuple[Tcp, Drive, socket.socket]]:
    """A transport with connection 0, and the bare socket at its other end."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
    ours.setblocking(False)
    tcp = Tcp(1, 1, **options)
    tcp.add(0, sender, [ours.detach()])
    with theirs:
        yield tcp, Drive(tcp.capsule), theirs
    tcp.close()


def drain(drive: Drive) -> list[tuple[int, int, int, int]]:
    events = []
    for _ in range(20):
        drive.flush()
        events += drive.poll()
        if any(kind == ERROR for kind, *_ in events):
            break
        drive.wait(500_000)
    return events


@settings(max_examples=300, deadline=None)
@given(
    data=st.binary(max_size=200),
    sizes=st.lists(st.integers(0, 60), min_size=1, max_size=5),
    spin=st.booleans(),
)
def test_garbage_to_a_receiver(data, sizes, spin):
    """Exactly the valid prefix is received; the first wrong header is one error, never a crash."""
    with one(False, spin_ns=-1 if spin else 0) as (tcp, drive, theirs):
        for n in sizes:
            assert drive.post_recv(0, n) == 0
        theirs.sendall(data)
        theirs.shutdown(socket.SHUT_WR)
        events = drain(drive)
        good, at, wrong = 0, 0, None
        while good < len(sizes) and at + 4 <= len(data):
            (found,) = struct.unpack_from("!I", data, at)
            if found != sizes[good]:
                wrong = found
                break
            if at + 4 + found > len(data):
                break
            at += 4 + found
            good += 1
        assert [kind for kind, *_ in events if kind == RECEIVED] == [RECEIVED] * good
        errors = [status for kind, _, status, _ in events if kind == ERROR]
        if wrong is not None:
            assert errors == [-EBADMSG]
            assert tcp.failures() == [(0, -EBADMSG, sizes[good], wrong)]
        elif good < len(sizes):
            assert errors == [-ECONNRESET]
        else:
            assert errors == []


@settings(max_examples=200, deadline=None)
@given(
    messages=st.lists(st.tuples(st.integers(0, 50), st.integers(0, 1 << 32 - 1)), max_size=4),
)
def test_valid_looking_headers_with_other_sizes(messages):
    with one(False) as (_, drive, theirs):
        for expected, sent in messages:
            assert drive.post_recv(0, expected) == 0
            theirs.sendall(struct.pack("!I", sent % (1 << 32)) + bytes(min(sent, 100)))
        events = drain(drive)
        differs = [i for i, (expected, sent) in enumerate(messages) if expected != sent % (1 << 32)]
        received = sum(kind == RECEIVED for kind, *_ in events)
        assert received == (differs[0] if differs else len(messages))
        assert any(kind == ERROR for kind, *_ in events) == bool(differs)


@settings(max_examples=200, deadline=None)
@given(credits=st.binary(max_size=400), sends=st.integers(0, 30))
def test_garbage_credits(credits, sends):
    with one(True, run_ahead=4) as (_, drive, theirs):
        theirs.sendall(credits)
        posted = 0
        for _ in range(sends):
            posted += drive.post_send(0, 10) == 0
        events = drain(drive)
        kinds = {kind for kind, *_ in events}
        assert kinds <= {READY, SENT, ERROR}
        if 0 not in credits:
            assert ERROR not in kinds
            assert posted >= min(sends, 4)
        assert posted <= 4 + sum(credits)


@pytest.mark.parametrize("cut", range(9))
def test_the_end_at_every_byte(cut):
    """A stream that stops in the middle of a message is an error, wherever it stops."""
    with one(False) as (_, drive, theirs):
        assert drive.post_recv(0, 5) == 0
        theirs.sendall((struct.pack("!I", 5) + b"12345")[:cut])
        theirs.close()
        events = drain(drive)
        assert [(kind, status) for kind, _, status, _ in events] == [(ERROR, -ECONNRESET)]


def test_the_end_of_one_lane_is_not_the_end_of_the_others():
    """A lane that has carried all its part may end before the others have."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = [socket.create_connection(server.getsockname()) for _ in range(2)]
        theirs = [server.accept()[0] for _ in range(2)]
    for sock in ours:
        sock.setblocking(False)
    tcp = Tcp(1, 1, sockets=2, stripe_min=2)
    tcp.add(0, False, [sock.detach() for sock in ours])
    drive = Drive(tcp.capsule)
    assert drive.post_recv(0, 10) == 0
    theirs[1].sendall(struct.pack("!I", 10) + b"12345")
    assert drain(drive) == []
    theirs[1].shutdown(socket.SHUT_WR)
    assert drain(drive) == []
    theirs[0].sendall(struct.pack("!I", 10) + b"12345")
    theirs[0].shutdown(socket.SHUT_WR)
    assert [kind for kind, *_ in drain(drive)] == [RECEIVED]
    for sock in theirs:
        sock.close()
    tcp.close()


def test_add_refuses_what_does_not_fit():
    tcp = Tcp(2, 2, sockets=2)
    with pytest.raises(ValueError, match="1 sockets, expected 2"):
        tcp.add(0, True, [0])
    with pytest.raises(ValueError, match="not below 2"):
        tcp.add(2, True, [0, 0])
    with pytest.raises(ValueError, match="sockets per connection"):
        Tcp(1, 1, sockets=17)
    tcp.close()
    tcp.close()
    with pytest.raises(RuntimeError, match="closed"):
        tcp.add(0, True, [0, 0])
