from __future__ import annotations

import contextlib
import os
import random
import socket
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genie.errors import InputError, LaunchError, RendezvousTimeoutError, TraceError
from genie.replay.auth import MAGIC, authenticate_client, new_secret
from genie.replay.frames import HEADER, MAX_FRAME, FrameError, FrameReader, FrameWriter
from genie.replay.member import Member
from genie.replay.protocol import (
    PROTOCOL,
    Abort,
    Bye,
    Connected,
    Hello,
    MessageError,
    Ping,
    Pong,
    Progress,
    Ready,
    decode,
    encode,
    error_of,
    failed,
)
from genie.replay.rendezvous import PURPOSE, Coordinator, WorkerLostError

SECRET = bytes(range(32))


def hello(worker=0, protocol=PROTOCOL, version="1.0"):
    return Hello(worker, protocol, version, "host", 1, 2, "6.1", "3.11", "clock")


def coordinator(n=2, **options):
    names = [f"worker {i} (host n{i})" for i in range(n)]
    return Coordinator(SECRET, names, version="1.0", **options)


joined: list[Joined] = []


@pytest.fixture(autouse=True)
def _close_members():
    yield
    while joined:
        member = joined.pop().member
        member.close()
        member._thread.join()


class Joined:
    """A Member in this process, with what its on_abort was told."""

    def __init__(self, coord, worker=0, secret=SECRET, message=None):
        self.aborts: list[str] = []
        self.member = Member.connect(
            [coord.address], secret, 5, self.aborts.append, hard_exit=False
        )
        joined.append(self)
        self.member.send(message or hello(worker))


def join(coord, n=2, **kw):
    made: dict[int, Joined] = {}
    threads = [
        threading.Thread(target=lambda i=i: made.__setitem__(i, Joined(coord, i, **kw)))
        for i in range(n)
    ]
    for t in threads:
        t.start()
    coord.gather(Hello, 5, "joining")
    for t in threads:
        t.join()
    return [made[i] for i in range(n)]


def test_frames_hold_order_and_content():
    writer, reader = FrameWriter(SECRET, b"a"), FrameReader(SECRET, b"a")
    frames = [writer.frame(p) for p in (b"", b"one", b"x" * MAX_FRAME)]
    data = b"".join(frames)
    got = []
    for i in range(0, len(data), 70_001):
        got += reader.feed(data[i : i + 70_001])
    assert got == [b"", b"one", b"x" * MAX_FRAME]
    with pytest.raises(FrameError):
        writer.frame(b"x" * (MAX_FRAME + 1))


@pytest.mark.parametrize("how", ["flip", "repeat", "swap", "direction", "key", "long"])
def test_frames_that_were_touched_are_refused(how):
    writer = FrameWriter(SECRET, b"a")
    one, two = writer.frame(b"one"), writer.frame(b"two")
    key, direction, data = SECRET, b"a", one + two
    if how == "flip":
        data = one[:-1] + bytes([one[-1] ^ 1]) + two
    elif how == "repeat":
        data = one + one
    elif how == "swap":
        data = two + one
    elif how == "direction":
        direction = b"b"
    elif how == "key":
        key = new_secret()
    else:
        data = one + (MAX_FRAME + 1).to_bytes(4, "big") + bytes(HEADER)
    with pytest.raises(FrameError):
        list(FrameReader(key, direction).feed(data))


@given(st.binary(max_size=200))
def test_decode_takes_any_bytes(data):
    with contextlib.suppress(MessageError):
        decode(data)


def test_messages_are_strict():
    assert decode(encode(Progress(1, 2))) == Progress(1, 2)
    import msgspec

    for wrong in (
        {"type": "Progress", "done": 1},
        {"type": "Progress", "done": "x", "total": 2},
        {"type": "Progress", "done": 1, "total": 2, "more": 3},
        {"type": "Exec", "code": "x"},
        [1, 2],
        None,
    ):
        with pytest.raises(MessageError):
            decode(msgspec.msgpack.encode(wrong))


def test_errors_travel_as_themselves():
    error = error_of(failed(TraceError("bad node", rank=3, node=7)), "worker 1")
    assert isinstance(error, TraceError) and str(error) == "worker 1: bad node"
    assert (error.rank, error.node) == (3, 7)
    error = error_of(failed(ZeroDivisionError("division by zero")), "worker 1")
    assert isinstance(error, LaunchError) and "ZeroDivisionError: division by zero" in str(error)
    # Nothing but an exception class of genie.errors can be named.
    bad = failed(InputError("x")).__class__("annotations", "text", {}, "")
    assert isinstance(error_of(bad, "w"), LaunchError)


def test_gather_and_broadcast():
    coord = coordinator(3)
    a, b, c = join(coord, 3)
    for i, j in enumerate((a, b, c)):
        j.member.send(Ready(bytes([i])))
    got = coord.gather(Ready, 5, "listening")
    assert {k: v.listen for k, v in got.items()} == {0: b"\0", 1: b"\1", 2: b"\2"}
    coord.broadcast(Connected(1.5))
    coord.pump(0)
    assert [j.member.receive(Connected, 5).seconds for j in (a, b, c)] == [1.5] * 3
    for j in (a, b, c):
        j.member.close()
    coord.close()
    coord.close()


@pytest.mark.parametrize("size", [0, 1, 5_000_000])
@pytest.mark.parametrize("compress", [True, False])
def test_blobs_both_ways(size, compress):
    coord = coordinator(1)
    (j,) = join(coord, 1)
    data = random.Random(1).randbytes(size // 2) + bytes(size - size // 2)
    coord.send_blob(0, "shard", data, compress)
    got = []
    thread = threading.Thread(target=lambda: got.append(j.member.receive_blob("shard", 20)))
    thread.start()
    while thread.is_alive():
        coord.pump(0.01)
    thread.join()
    assert got == [data]
    thread = threading.Thread(target=j.member.send_blob, args=("ops", data, compress))
    thread.start()
    back = None
    deadline = time.monotonic() + 20
    while back is None and time.monotonic() < deadline:
        coord.pump(0.01)
        back = coord.take_blob(0, "ops")
    thread.join()
    assert back == data
    j.member.close()
    coord.close()


def test_missing_workers_are_named():
    coord = coordinator(3)
    thread = threading.Thread(target=lambda: Joined(coord, 1))
    thread.start()
    with pytest.raises(RendezvousTimeoutError) as caught:
        coord.gather(Hello, 0.5, "starting")
    thread.join()
    assert "2 of 3 workers are missing (starting)" in str(caught.value)
    assert caught.value.missing == ["worker 0 (host n0)", "worker 2 (host n2)"]
    coord.close()


def test_version_mismatch_names_both():
    coord = coordinator(2)
    thread = threading.Thread(target=lambda: Joined(coord, 1, message=hello(1, version="0.9")))
    thread.start()
    with pytest.raises(LaunchError, match=r"worker 1 .*runs genie 0\.9 .*this process genie 1\.0"):
        coord.gather(Hello, 5, "starting")
    thread.join()
    coord.close()


def test_refused_worker_is_told_why():
    coord = coordinator(1)
    join(coord, 1)
    told = []

    def late(worker):
        j = Joined(coord, worker)
        try:
            j.member.receive(Ready, 5)
        except LaunchError as exc:
            told.append(str(exc))
        j.member.close()

    for worker, text in ((0, "here already"), (7, "no worker 7"), (-1, "no worker -1")):
        thread = threading.Thread(target=late, args=(worker,))
        thread.start()
        while thread.is_alive():
            coord.pump(0.02)
        assert text in told.pop()
    coord.close()


def test_wrong_secret_never_gets_in():
    coord = coordinator(1)
    errors = []

    def stranger():
        try:
            Joined(coord, 0, secret=new_secret())
        except LaunchError as exc:
            errors.append(exc)

    thread = threading.Thread(target=stranger)
    thread.start()
    deadline = time.monotonic() + 5
    while not coord.rejected and time.monotonic() < deadline:
        coord.pump(0.02)
    assert coord.rejected == {"a peer does not know this run's secret": 1}
    coord.close()
    thread.join()
    assert len(errors) == 1


def test_ping_is_answered_while_the_main_thread_is_busy():
    coord = coordinator(1)
    join(coord, 1)
    before = time.monotonic_ns()
    coord.send(0, Ping(7))
    pong = coord.gather(Pong, 5, "clock")[0]
    assert pong.number == 7 and before <= pong.t_ns <= time.monotonic_ns()
    coord.close()


def test_abort_and_end_reach_the_worker():
    coord = coordinator(1)
    (j,) = join(coord, 1)
    coord.broadcast(Abort("a reason"))
    coord.broadcast(Bye())
    coord.pump(0)
    j.member.receive(Bye, 5)
    assert j.aborts == ["a reason"]
    coord.close()
    with pytest.raises(LaunchError, match="ended"):
        j.member.receive(Bye, 5)
    assert "ended" in j.aborts[1]


def test_lost_worker_is_named():
    coord = coordinator(2)
    _, b = join(coord, 2)
    b.member.close()
    with pytest.raises(WorkerLostError, match=r"worker 1 \(host n1\): the connection was closed"):
        coord.gather(Ready, 5, "listening")
    coord.close()


def test_worker_error_is_raised():
    coord = coordinator(2)
    a, _ = join(coord, 2)
    a.member.send(failed(TraceError("rank 3 has no node 5", rank=3)))
    with pytest.raises(TraceError, match=r"worker 0 \(host n0\): rank 3 has no node 5"):
        coord.gather(Ready, 5, "listening")
    coord.close()


def test_port_in_use():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(LaunchError, match=f"127.0.0.1 port {port}: Address already in use"):
            coordinator(1, port=port)
    with pytest.raises(LaunchError, match=r"cannot listen on 203\.0\.113\.1"):
        coordinator(1, host="203.0.113.1")


def test_listens_on_the_chosen_address_only():
    coord = coordinator(1, host="127.0.0.2")
    assert coord.address[0] == "127.0.0.2"
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", coord.address[1]), timeout=1)
    coord.close()


def test_silent_and_flooding_peers_do_not_stop_the_run():
    """Half-open connections, more than are allowed at a time, while workers join and talk."""
    coord = coordinator(2, handshake_timeout=0.5)
    crowd = [socket.create_connection(coord.address) for _ in range(100)]
    crowd[0].send(b"GET / HTTP/1.1\r\n\r\n" + bytes(200))
    crowd[1].send(b"x")
    a, b = join(coord, 2)
    deadline = time.monotonic() + 3
    while sum(coord.rejected.values()) < 100 and time.monotonic() < deadline:
        coord.pump(0.05)
    assert coord.rejected["silent in the handshake"] >= 98
    assert coord.rejected["a peer does not know this run's secret"] == 1
    a.member.send(Ready(b"a"))
    b.member.send(Ready(b"b"))
    assert len(coord.gather(Ready, 5, "listening")) == 2
    for sock in crowd:
        sock.close()
    coord.close()


def test_too_many_pending_drops_the_oldest():
    coord = coordinator(1, handshake_timeout=30)
    crowd = [socket.create_connection(coord.address) for _ in range(400)]
    for _ in range(40):
        coord.pump(0.01)
    assert coord.rejected["too many at a time"] == 400 - 256
    join(coord, 1)
    for sock in crowd:
        sock.close()
    coord.close()


def test_authenticated_garbage_is_dropped():
    """A peer that knows the secret and then sends nonsense is dropped, the others stay."""
    coord = coordinator(2)
    (a, b) = join(coord, 2)
    done = []

    def liar(payload):
        with socket.create_connection(coord.address) as sock:
            key = authenticate_client(sock, SECRET, 5, PURPOSE)
            if payload is None:
                sock.sendall(b"\xff" * 1000)
            else:
                sock.sendall(FrameWriter(key, b"to coordinator").frame(payload))
            sock.settimeout(5)
            done.append(sock.recv(100))

    for payload in (None, b"junk", encode(Progress(1, 2))):
        thread = threading.Thread(target=liar, args=(payload,))
        thread.start()
        while thread.is_alive():
            coord.pump(0.02)
    assert done == [b""] * 3 and sum(coord.rejected.values()) == 3
    a.member.send(Ready(b""))
    b.member.send(Ready(b""))
    coord.gather(Ready, 5, "listening")
    coord.close()


def test_worker_gives_up_when_nobody_answers():
    with socket.create_server(("127.0.0.1", 0)) as s:
        address = s.getsockname()
    begin = time.monotonic()
    with pytest.raises(
        LaunchError, match=f"did not answer within 0.5 s: 127.0.0.1 port {address[1]}"
    ):
        Member.connect([address], SECRET, 0.5, lambda _: None)
    assert time.monotonic() - begin < 3


def test_worker_refuses_a_server_of_another_run():
    coord = coordinator(1)
    stop = threading.Event()

    def serve():
        while not stop.is_set():
            coord.pump(0.02)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with pytest.raises(LaunchError):
            Member.connect([coord.address], new_secret(), 1.0, lambda _: None)
    finally:
        stop.set()
        thread.join()
        coord.close()


def test_fuzz_short():
    """Malformed openings of every kind; the long version is in test_fuzz_rendezvous."""
    rng = random.Random(7)
    coord = coordinator(1, handshake_timeout=1)
    for i in range(2000):
        with socket.create_connection(coord.address) as sock:
            kind = i % 4
            data = (
                rng.randbytes(rng.randrange(1, 200)),
                MAGIC + rng.randbytes(rng.randrange(0, 100)),
                b"",
                bytes(64),
            )[kind]
            sock.sendall(data)
        coord.pump(0)
    for _ in range(100):
        coord.pump(0.01)
    assert sum(coord.rejected.values()) == 2000
    join(coord, 1)
    coord.close()
    assert len(os.listdir("/proc/self/fd")) < 200
