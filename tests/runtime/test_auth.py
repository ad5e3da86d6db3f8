from __future__ import annotations

import os
import socket
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genie.errors import LaunchError
from genie.replay.auth import (
    MAGIC,
    AuthenticationError,
    ClientHandshake,
    ServerHandshake,
    authenticate_client,
    authenticate_server,
    new_secret,
    secret_environment,
    take_secret,
    write_secret_file,
)

SECRET = bytes(range(32))


def both(server_secret, client_secret, server_purpose=b"data", client_purpose=b"data"):
    """Run both ends over a real TCP connection; each result is a key or the error."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        results = {}

        def client():
            with socket.create_connection(listener.getsockname()) as sock:
                try:
                    results["client"] = authenticate_client(sock, client_secret, 5, client_purpose)
                except AuthenticationError as exc:
                    results["client"] = exc

        thread = threading.Thread(target=client)
        thread.start()
        sock, _ = listener.accept()
        with sock:
            try:
                results["server"] = authenticate_server(sock, server_secret, 5, server_purpose)
            except AuthenticationError as exc:
                results["server"] = exc
        thread.join()
    return results["server"], results["client"]


def test_both_ends_prove_themselves():
    server, client = both(SECRET, SECRET)
    assert server == client and len(server) == 32
    assert server != both(SECRET, SECRET)[0]


@pytest.mark.parametrize(
    "args",
    [(SECRET, new_secret()), (SECRET, SECRET, b"data", b"rendezvous"), (SECRET, SECRET[:-1])],
)
def test_wrong_secret_or_purpose(args):
    server, client = both(*args)
    assert isinstance(server, AuthenticationError) and isinstance(client, AuthenticationError)


def test_server_with_a_wrong_secret_is_found_out():
    """A server that lets everyone in still has to prove itself to the client."""
    client, server = ClientHandshake(SECRET), ServerHandshake(SECRET)
    client.feed(server.greeting())
    with pytest.raises(AuthenticationError, match="secret"):
        client.feed(bytes(32))


def test_reflection_does_not_pass():
    """A client's own proof sent back is not the server's proof."""
    client, server = ClientHandshake(SECRET), ServerHandshake(SECRET)
    proof = client.feed(server.greeting())
    with pytest.raises(AuthenticationError):
        client.feed(proof[32:])


def test_replay_does_not_pass():
    first = ServerHandshake(SECRET)
    proof = ClientHandshake(SECRET).feed(first.greeting())
    assert first.feed(proof)
    with pytest.raises(AuthenticationError):
        ServerHandshake(SECRET).feed(proof)


def test_something_else_listens_there():
    client = ClientHandshake(SECRET)
    with pytest.raises(AuthenticationError, match=r"no genie worker.*SSH-2\.0"):
        client.feed((b"SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3\r\n")[: client.need])
    assert len(MAGIC) == 8


@settings(max_examples=300)
@given(st.binary(min_size=64, max_size=64))
def test_no_bytes_get_in(data):
    with pytest.raises(AuthenticationError):
        ServerHandshake(SECRET).feed(data)


@given(st.lists(st.integers(1, 64), min_size=1, max_size=64))
def test_bytes_may_drip(cuts):
    server, client = ServerHandshake(SECRET), ClientHandshake(SECRET)
    data, answer = server.greeting(), b""
    for cut in [*cuts, *[1] * 40]:
        if data:
            answer += client.feed(data[: min(cut, client.need)])
            data = data[cut:]
    out = b""
    for cut in [*cuts, *[1] * 64]:
        if answer:
            out += server.feed(answer[: min(cut, server.need)])
            answer = answer[cut:]
    assert server.session_key is not None
    client.feed(out)
    assert client.session_key == server.session_key


@pytest.mark.parametrize("drip", [False, True])
def test_silent_or_dripping_peer_times_out(drip):
    ours, theirs = socket.socketpair()
    stop = threading.Event()

    def feed():
        while drip and not stop.wait(0.05):
            theirs.send(b"x")

    thread = threading.Thread(target=feed)
    thread.start()
    begin = time.monotonic()
    with ours, theirs:
        with pytest.raises(AuthenticationError, match="in time"):
            authenticate_server(ours, SECRET, 0.4)
        assert 0.3 < time.monotonic() - begin < 2
        stop.set()
        thread.join()


def test_closed_connection():
    ours, theirs = socket.socketpair()
    theirs.close()
    with ours, pytest.raises(AuthenticationError):
        authenticate_server(ours, SECRET, 5)


def test_secret_travels_in_the_environment_once():
    env = secret_environment(SECRET)
    assert take_secret(env) == SECRET
    assert env == {}
    with pytest.raises(LaunchError, match="GENIE_SECRET"):
        take_secret(env)
    with pytest.raises(LaunchError, match="hexadecimal"):
        take_secret({"GENIE_SECRET": "zz"})
    with pytest.raises(LaunchError, match="4 bytes"):
        take_secret({"GENIE_SECRET": "00112233"})


def test_secret_file(tmp_path):
    path = tmp_path / "secret"
    write_secret_file(path, SECRET)
    assert path.stat().st_mode & 0o777 == 0o600
    assert take_secret({"GENIE_SECRET_FILE": str(path)}) == SECRET
    with pytest.raises(FileExistsError):
        write_secret_file(path, SECRET)
    path.chmod(0o640)
    with pytest.raises(LaunchError, match=r"mode 640.*chmod 600"):
        take_secret({"GENIE_SECRET_FILE": str(path)})
    os.symlink(path, tmp_path / "link")
    for name in ("link", "nothing"):
        with pytest.raises(LaunchError, match="cannot be read"):
            take_secret({"GENIE_SECRET_FILE": str(tmp_path / name)})
