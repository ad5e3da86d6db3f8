"""Malformed openings and frames thrown at a live coordinator; the run goes on.

A short run by default (GENIE_FUZZ_FRAMES sets how many), a million under `make soak`.
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import socket
import threading

import msgspec
import pytest

from genie.replay.auth import MAGIC, ClientHandshake
from genie.replay.frames import MAX_FRAME, FrameWriter
from genie.replay.protocol import Blob, Chunk, Done, Hello, Ping, Progress, Ready, encode
from genie.replay.rendezvous import MAX_REASONS, PURPOSE, TO_COORDINATOR, Coordinator
from runtime.test_rendezvous import SECRET, Joined, hello, joined

FRAMES = int(os.environ.get("GENIE_FUZZ_FRAMES", "6000"))


def opening(rng: random.Random) -> bytes:
    """Bytes of someone without the secret."""
    kind = rng.randrange(5)
    if kind == 0:
        return rng.randbytes(rng.randrange(1, 65))
    if kind == 1:
        return MAGIC + rng.randbytes(56)
    if kind == 2:
        return rng.randbytes(rng.randrange(65, 400))
    if kind == 3:
        shake = ClientHandshake(bytes(32), PURPOSE)
        return shake.feed(MAGIC + rng.randbytes(32))
    return b"GET / HTTP/1.0\r\n\r\n" + bytes(64)


def mutated(rng: random.Random, data: bytes) -> bytes:
    out = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        kind = rng.randrange(3)
        at = rng.randrange(len(out) + 1)
        if kind == 0 and at < len(out):
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            out[at:at] = rng.randbytes(rng.randrange(1, 9))
        else:
            del out[at : at + rng.randrange(1, 9)]
    return bytes(out)


MESSAGES = [
    hello(0),
    hello(5),
    Ready(b"x" * 50, ("e0",), 0.1),
    Progress(1, 2),
    Ping(1),
    Blob("ops", 1 << 30, 1 << 40, bytes(32)),
    Blob("ops", 10, 10, bytes(32)),
    Chunk(b"12345"),
    Done("done", 0, 1, ("ops",)),
]


def frames(rng: random.Random, key: bytes) -> bytes:
    """Bytes of someone who has the secret and sends what no genie sends."""
    writer = FrameWriter(key, TO_COORDINATOR)
    kind = rng.randrange(6)
    if kind == 0:
        return rng.randbytes(rng.randrange(20, 300))
    if kind == 1:
        return rng.randrange(MAX_FRAME + 1, 1 << 32).to_bytes(4, "big") + bytes(16)
    if kind == 2:
        return writer.frame(rng.randbytes(rng.randrange(0, 200)))
    if kind == 3:
        return writer.frame(mutated(rng, encode(rng.choice(MESSAGES))))
    if kind == 4:
        # A list nested as deep as fits: no recursion may end the process.
        return writer.frame(b"\x91" * rng.randrange(100, 100_000))
    return b"".join(writer.frame(encode(m)) for m in rng.sample(MESSAGES, 4))


@pytest.mark.parametrize(
    "frames_wanted",
    [
        FRAMES,
        pytest.param(1_000_000, marks=[pytest.mark.slow, pytest.mark.timeout(4 * 3600)]),
    ],
)
def test_malformed_peers_never_stop_the_run(frames_wanted):
    rng = random.Random(2026)
    coord = Coordinator(SECRET, ["worker 0"], version="1.0", handshake_timeout=2.0)
    thread = threading.Thread(target=lambda: Joined(coord, 0))
    thread.start()
    coord.gather(Hello, 10, "joining")
    thread.join()
    before = None
    try:
        for i in range(frames_wanted):
            ours, theirs = socket.socketpair()
            coord.adopt(ours, "fuzz")
            if i % 2:
                theirs.send(opening(rng))
            else:
                shake = ClientHandshake(SECRET, PURPOSE)
                theirs.send(shake.feed(theirs.recv(40)))
                coord.pump(0)
                shake.feed(theirs.recv(32))
                data = frames(rng, shake.session_key)
                theirs.setblocking(False)
                # On a busy machine this peer may have been too late already.
                with contextlib.suppress(OSError):
                    theirs.send(data[:100_000])
            coord.pump(0)
            theirs.close()
            coord.pump(0)
            if i == min(2000, frames_wanted // 2):
                before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(60):
            coord.pump(0.05)
        assert sum(coord.rejected.values()) >= frames_wanted
        # A Hello of another version is the one thing that a peer with the secret may end a run by.
        coord._version_error = None
        assert not coord._pending and list(coord._peers) == [0] and coord.lost == {}
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert grown < 30_000, f"{grown} KiB more after {frames_wanted} malformed peers"
        # The real worker is still there and heard.
        joined[0].member.send(Ready(b"me"))
        assert coord.gather(Ready, 5, "still there")[0].listen == b"me"
        assert len(coord.rejected) <= MAX_REASONS + 1
    finally:
        coord.close()
        joined.pop().member.close()


@pytest.mark.parametrize("size", [1000, 100_000])
def test_compressed_bomb_is_refused_before_it_grows(size):
    from genie.replay.blobs import BlobReader
    from genie.replay.protocol import MessageError

    with pytest.raises(MessageError, match="cannot hold"):
        BlobReader(Blob("x", size, size * 2000, bytes(32)))
    assert msgspec.msgpack.decode(encode(Ping(1)))["type"] == "Ping"
