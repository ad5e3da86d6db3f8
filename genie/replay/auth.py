"""Both ends of a connection prove that they know the run's secret before anything else is read.

A run has one random secret. It travels in the environment of the workers (`GENIE_SECRET`) or in a
file that only its owner reads (`GENIE_SECRET_FILE`), never on a command line, which every user of
a host can see. On a new connection, with `|` for concatenation and role labels against reflection:

    server -> client   MAGIC | nonce_s                                             40 bytes
    client -> server   nonce_c | HMAC-SHA256(secret, purpose|"client"|nonce_s|nonce_c)   64 bytes
    server -> client   HMAC-SHA256(secret, purpose|"server"|nonce_s|nonce_c)             32 bytes

Every length is fixed, so nothing from an unproven peer is ever parsed. The session key
HMAC-SHA256(secret, purpose|"session"|nonce_s|nonce_c) authenticates what follows.
"""

from __future__ import annotations

import hmac
import os
import secrets
import socket
import stat
import time
from pathlib import Path

from genie.errors import LaunchError

MAGIC = b"GENIE\r\n\x01"  # the last byte is the version of this handshake
NONCE = 32
DIGEST = 32
SECRET_VAR = "GENIE_SECRET"
SECRET_FILE_VAR = "GENIE_SECRET_FILE"
MIN_SECRET = 16


class AuthenticationError(LaunchError):
    """A peer that did not prove that it belongs to this run."""


def new_secret() -> bytes:
    """Return a fresh secret of 256 bits."""
    return secrets.token_bytes(32)


def secret_environment(secret: bytes) -> dict[str, str]:
    """Return the environment entry that hands `secret` to a worker."""
    return {SECRET_VAR: secret.hex()}


def write_secret_file(path: Path, secret: bytes) -> None:
    """Write `secret` to a new file that only its owner can read."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(secret.hex() + "\n")


def take_secret(environ: dict[str, str] | os._Environ[str] | None = None) -> bytes:
    """Return the secret this process was started with, and forget it in the environment.

    Raises:
        LaunchError: None was given, or its file can be read by others.
    """
    env = os.environ if environ is None else environ
    text = env.pop(SECRET_VAR, None)
    source = SECRET_VAR
    if text is None:
        name = env.get(SECRET_FILE_VAR)
        if name is None:
            raise LaunchError(
                f"no secret for this run: neither {SECRET_VAR} nor {SECRET_FILE_VAR} is set"
            )
        source = name
        text = _read_secret_file(Path(name))
    try:
        secret = bytes.fromhex(text.strip())
    except ValueError:
        raise LaunchError(f"{source}: the run's secret is not hexadecimal") from None
    if len(secret) < MIN_SECRET:
        raise LaunchError(f"{source}: the run's secret has {len(secret)} bytes, not {MIN_SECRET}")
    return secret


def _read_secret_file(path: Path) -> str:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as exc:
        raise LaunchError(f"{path}: the run's secret cannot be read: {exc.strerror}") from exc
    with os.fdopen(fd) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_uid not in {os.getuid(), 0}:
            raise LaunchError(f"{path}: the run's secret must be a file of this user")
        if status.st_mode & 0o077:
            raise LaunchError(
                f"{path}: others can read the run's secret (mode {status.st_mode & 0o777:o}; "
                "chmod 600)"
            )
        return file.read(4096)


def _mac(secret: bytes, purpose: bytes, role: bytes, nonce_s: bytes, nonce_c: bytes) -> bytes:
    text = len(purpose).to_bytes(2, "big") + purpose + role + nonce_s + nonce_c
    return hmac.digest(secret, text, "sha256")


class ServerHandshake:
    """The accepting side, without a socket: bytes in, bytes out.

    Attributes:
        session_key: 32 bytes once the peer is proven, else None.
        need: Bytes still wanted from the peer.
    """

    def __init__(self, secret: bytes, purpose: bytes = b"data") -> None:
        self._secret = secret
        self._purpose = purpose
        self._nonce = secrets.token_bytes(NONCE)
        self._got = b""
        self.session_key: bytes | None = None

    @property
    def need(self) -> int:
        """Bytes still to come before the peer is proven or refused."""
        return NONCE + DIGEST - len(self._got)

    def greeting(self) -> bytes:
        """Return what is sent first."""
        return MAGIC + self._nonce

    def feed(self, data: bytes) -> bytes:
        """Take at most `need` bytes from the peer; return the answer once it is proven.

        Raises:
            AuthenticationError: The proof is wrong.
        """
        if len(data) > self.need:
            raise AuthenticationError("a peer sent more than the handshake allows")
        self._got += data
        if self.need:
            return b""
        nonce_c, proof = self._got[:NONCE], self._got[NONCE:]
        expected = _mac(self._secret, self._purpose, b"client", self._nonce, nonce_c)
        if not hmac.compare_digest(proof, expected):
            raise AuthenticationError("a peer does not know this run's secret")
        self.session_key = _mac(self._secret, self._purpose, b"session", self._nonce, nonce_c)
        return _mac(self._secret, self._purpose, b"server", self._nonce, nonce_c)


class ClientHandshake:
    """The connecting side, without a socket: bytes in, bytes out."""

    def __init__(self, secret: bytes, purpose: bytes = b"data") -> None:
        self._secret = secret
        self._purpose = purpose
        self._nonce = secrets.token_bytes(NONCE)
        self._nonce_s: bytes | None = None
        self._got = b""
        self.session_key: bytes | None = None

    @property
    def need(self) -> int:
        """Bytes still to come for the current step."""
        step = len(MAGIC) + NONCE if self._nonce_s is None else DIGEST
        return step - len(self._got)

    def feed(self, data: bytes) -> bytes:
        """Take at most `need` bytes from the peer; return what is sent next.

        Raises:
            AuthenticationError: The other side is no GENIE of this version, or of another run.
        """
        if len(data) > self.need:
            raise AuthenticationError("the other side sent more than the handshake allows")
        self._got += data
        if self.need:
            return b""
        got, self._got = self._got, b""
        if self._nonce_s is None:
            if got[: len(MAGIC)] != MAGIC:
                raise AuthenticationError(
                    f"the other side is no genie worker of this version (it said {got[:8]!r}, "
                    f"not {MAGIC!r})"
                )
            self._nonce_s = got[len(MAGIC) :]
            return self._nonce + _mac(
                self._secret, self._purpose, b"client", self._nonce_s, self._nonce
            )
        expected = _mac(self._secret, self._purpose, b"server", self._nonce_s, self._nonce)
        if not hmac.compare_digest(got, expected):
            raise AuthenticationError("the other side does not know this run's secret")
        self.session_key = _mac(self._secret, self._purpose, b"session", self._nonce_s, self._nonce)
        return b""


def authenticate_server(
    sock: socket.socket, secret: bytes, timeout: float, purpose: bytes = b"data"
) -> bytes:
    """Prove both ends of an accepted TCP connection; return the session key (32 bytes).

    Args:
        sock: Connected stream socket; its own timeout is restored afterwards.
        secret: The run's secret.
        timeout: Seconds for the whole handshake, however slowly bytes drip in.
        purpose: What the connection is for; both ends must say the same.

    Raises:
        AuthenticationError: Wrong proof, silence until the timeout, or a closed connection.
            The caller closes the socket and counts the peer.
    """
    shake = ServerHandshake(secret, purpose)
    deadline = time.monotonic() + timeout
    before = sock.gettimeout()
    try:
        _send(sock, shake.greeting(), deadline)
        while shake.session_key is None:
            answer = shake.feed(_receive(sock, shake.need, deadline))
            if answer:
                _send(sock, answer, deadline)
    finally:
        sock.settimeout(before)
    return shake.session_key


def authenticate_client(
    sock: socket.socket, secret: bytes, timeout: float, purpose: bytes = b"data"
) -> bytes:
    """Prove both ends of a TCP connection we opened; return the session key (32 bytes).

    Arguments and errors are those of `authenticate_server`.
    """
    shake = ClientHandshake(secret, purpose)
    deadline = time.monotonic() + timeout
    before = sock.gettimeout()
    try:
        while shake.session_key is None:
            answer = shake.feed(_receive(sock, shake.need, deadline))
            if answer:
                _send(sock, answer, deadline)
    finally:
        sock.settimeout(before)
    return shake.session_key


def _remaining(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise AuthenticationError("a peer did not finish the handshake in time")
    return left


def _send(sock: socket.socket, data: bytes, deadline: float) -> None:
    sock.settimeout(_remaining(deadline))
    try:
        sock.sendall(data)
    except TimeoutError:
        raise AuthenticationError("a peer did not take the handshake in time") from None
    except OSError as exc:
        raise AuthenticationError(f"the connection broke in the handshake: {exc}") from exc


def _receive(sock: socket.socket, most: int, deadline: float) -> bytes:
    sock.settimeout(_remaining(deadline))
    try:
        data = sock.recv(most)
    except TimeoutError:
        raise AuthenticationError("a peer did not finish the handshake in time") from None
    except OSError as exc:
        raise AuthenticationError(f"the connection broke in the handshake: {exc}") from exc
    if not data:
        raise AuthenticationError("the connection was closed in the handshake")
    return data
