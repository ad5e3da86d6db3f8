"""The messages between the coordinator (the process that called `replay`) and its workers.

MessagePack through msgspec: a message of an unknown kind, with a missing field or one of a wrong
type is refused as a whole. In the order of a run:

    worker                         coordinator
    Hello            ->
                                   <-  Setup, Blob "shard" + Chunk...     (or Refuse)
    Ready            ->            <-  Peers
    Connected        ->
                     (Ping/Pong: clocks, now and until the end)
                                   <-  Start
    Progress ...     ->            <-  Abort (when another worker failed, Ctrl-C)
    Done             ->
    Blob + Chunk ... ->            the tables
                                   <-  Bye
    Failed           ->            at any time: an error; the worker ends

`genie check --endpoints` has the worker answer step by step instead:

    Hello            ->            <-  ProbeSetup
    ProbeAnswer      ->            <-  ProbeStep, any number of times, then Bye
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from genie.errors import GenieError, LaunchError

#: Raised when the messages change; compared before anything else.
PROTOCOL = 2
#: Payload bytes of one Chunk, below frames.MAX_FRAME.
CHUNK = 256 << 10


class Message(msgspec.Struct, tag=True, frozen=True, forbid_unknown_fields=True):
    """Base of every control message."""


class Hello(Message, frozen=True):
    """A worker's first words: who it is and what it runs on."""

    worker: int
    protocol: int
    genie_version: str
    host: str
    pid: int
    cores: int
    kernel: str
    python: str
    clock: str
    """Identity of CLOCK_MONOTONIC: equal on workers that share one clock."""


class Refuse(Message, frozen=True):
    """The coordinator will not have this worker."""

    reason: str


class Setup(Message, frozen=True):
    """What the worker shall do, beside its shard."""

    workers: int
    transport: str
    nics: tuple[tuple[str, int], ...]
    """(name, port) of the endpoint's devices; port 0: the first active."""
    address: str
    """Where to listen for other workers when no nic is named ("" = the transport decides)."""
    iterations: int
    warmup: int
    time_scale: float
    timeout: float
    """Seconds for connecting to the other workers."""
    watchdog: float
    """Seconds without progress, while nothing is due here, after which a run stands still."""
    spin: bool
    log_messages: str
    place: tuple[int, int] = (0, 1)
    """This worker's number among the workers of its host, and how many they are."""
    compress: bool = False
    """Whether tables are compressed on their way back (not on one host)."""
    options: dict[str, Any] = {}
    counter_interval: float = 0.0
    """Seconds between readings of the counters during the run; 0: before and after it only."""
    keep: str = ""
    """Folder of the worker's host where its tables stay, "" for none: they are sent home."""
    run: str = ""
    """Name of the run, for files that stay."""


class Blob(Message, frozen=True):
    """`size` bytes follow in Chunks, zlib-compressed when `raw_size` differs."""

    name: str
    size: int
    raw_size: int
    sha256: bytes
    """Of the bytes before compression."""


class Chunk(Message, frozen=True):
    """The next bytes of the Blob under way."""

    data: bytes


class Ready(Message, frozen=True):
    """Listening for the other workers; `listen` is what the transport tells its peers."""

    listen: bytes
    devices: tuple[str, ...] = ()
    seconds: float = 0.0


class Peers(Message, frozen=True):
    """What every worker listens on, by worker."""

    listen: dict[int, bytes]


class Connected(Message, frozen=True):
    """All connections to other workers stand."""

    seconds: float = 0.0
    pinned: str = ""
    """Cores that the worker keeps its thread on, "" when any."""


class Ping(Message, frozen=True):
    """Asks for the worker's clock."""

    number: int


class Pong(Message, frozen=True):
    """The worker's CLOCK_MONOTONIC when it read the Ping."""

    number: int
    t_ns: int


class Start(Message, frozen=True):
    """The start barrier: CLOCK_MONOTONIC of the worker that becomes 0."""

    t_ns: int


class Progress(Message, frozen=True):
    """Nodes done of nodes in all iterations."""

    done: int
    total: int


class Done(Message, frozen=True):
    """The engine returned; its logs follow as blobs."""

    status: str
    """What `Engine.run` returned."""
    start_ns: int
    """CLOCK_MONOTONIC of the worker that is 0 in its logs."""
    end_ns: int
    """CLOCK_MONOTONIC of the worker when it was over."""
    blobs: tuple[str, ...]
    explanation: str = ""
    dropped: tuple[int, int] = (0, 0)
    """Rows of ops and of messages beyond the limits."""
    health: dict[str, float] = {}
    """Columns of table health."""
    series: tuple[tuple[str, str], ...] = ()
    """(device, counter) of each series number in blob "counters"."""
    counters_full: bool = False
    """Whether there were more changes of counters than are kept."""
    failures: tuple[dict[str, Any], ...] = ()
    """Columns of table failures, text as text."""
    failures_more: int = 0
    """Failures beyond those listed."""
    waits: tuple[tuple[int, int], ...] = ()
    """Of an unfinished run: (rank that waits, rank it waits for)."""
    rejected: int = 0
    """Strangers that the transport refused."""
    pinned: str = ""
    """Cores of the NUMA node of its devices, if it was kept on them."""
    kept: tuple[str, int, str] | None = None
    """Path, bytes and SHA-256 of the tables, where they stayed."""
    not_kept: str = ""
    """Why they could not stay, and are sent home."""


class ProbeSetup(Message, frozen=True):
    """Instead of Setup: look at this host, then take steps."""

    transport: str
    nics: tuple[tuple[str, int], ...]
    address: str
    spin: bool = False
    options: dict[str, Any] = {}


class ProbeStep(Message, frozen=True):
    """One thing to do with a peer: "open", "connect", "ping", "stream" or "close"."""

    what: str
    values: dict[str, Any] = {}


class ProbeAnswer(Message, frozen=True):
    """What came of a step ("host" first, of its own accord); `error` is "" when it went well."""

    what: str
    error: str = ""
    values: dict[str, Any] = {}


class Failed(Message, frozen=True):
    """An error in the worker, before or instead of Done."""

    error: str
    message: str
    fields: dict[str, Any]
    traceback: str = ""


class Abort(Message, frozen=True):
    """Stop the engine, send what was recorded."""

    reason: str


class Bye(Message, frozen=True):
    """All is received; the worker may end."""


AnyMessage: TypeAlias = (
    Hello
    | Refuse
    | Setup
    | Blob
    | Chunk
    | Ready
    | Peers
    | Connected
    | Ping
    | Pong
    | Start
    | Progress
    | Done
    | ProbeSetup
    | ProbeStep
    | ProbeAnswer
    | Failed
    | Abort
    | Bye
)


class MessageError(LaunchError):
    """Bytes that are no message of this protocol."""


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[AnyMessage] = msgspec.msgpack.Decoder(AnyMessage)


def encode(message: AnyMessage) -> bytes:
    """Return `message` as MessagePack."""
    return _encoder.encode(message)


def decode(data: bytes) -> AnyMessage:
    """Return the message in `data`.

    Raises:
        MessageError: Not a message of this protocol.
    """
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as exc:
        raise MessageError(f"not a control message: {exc}") from exc


def failed(exc: BaseException, traceback: str = "") -> Failed:
    """Return `exc` as a message; only plain values of its fields travel."""
    fields: dict[str, Any] = {}
    if isinstance(exc, GenieError):
        for name, value in exc.fields.items():
            fields[name] = value if isinstance(value, (str, int, float, bool)) else repr(value)
        return Failed(type(exc).__name__, exc.message, fields, traceback)
    text = str(exc)
    return Failed(type(exc).__name__, text[:4000] or type(exc).__name__, {}, traceback)


def error_of(message: Failed, where: str) -> GenieError:
    """Return the error that a worker reported, as the class of `genie.errors` it was there."""
    from genie import errors

    cls = getattr(errors, message.error, None)
    text = f"{where}: {message.message}"
    fields = {k: v for k, v in message.fields.items() if k.isidentifier() and k != "message"}
    if isinstance(cls, type) and issubclass(cls, GenieError):
        return cls(text, **fields)
    return LaunchError(f"{where}: {message.error}: {message.message}", **fields)
