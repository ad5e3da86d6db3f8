"""Two workers on fakeverbs in this process."""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from genie._core import verbs
from genie.errors import VerbsError
from genie.replay.connections import CONN
from genie.replay.transports.verbs import VerbsTransport
from genie.replay.transports.verbs_config import VerbsConfig

from .driver import fake_library

SECRET = bytes(range(32))
KINDS = ("device lists", "contexts", "pds", "mrs", "channels", "cqs", "qps")


class _Logged(ctypes.Structure):
    _fields_ = (
        ("qp", ctypes.c_uint32),
        ("opcode", ctypes.c_uint32),
        ("bytes", ctypes.c_uint32),
        ("imm", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("rkey", ctypes.c_uint32),
        ("remote", ctypes.c_uint64),
    )


@functools.cache
def library() -> ctypes.CDLL:
    """The fake library, as the extension has it loaded."""
    path = str(fake_library())
    verbs.load(path)
    return ctypes.CDLL(path)


def configure(**settings: object) -> None:
    """Set fakeverbs up (see fakeverbs.c); what is not named has its default."""
    text = ";".join(f"{name}={value}" for name, value in settings.items())
    library().fakeverbs_configure(text.encode())


def live() -> dict[str, int]:
    """Live objects as the fake library counts them."""
    return {kind: int(library().fakeverbs_live(i)) for i, kind in enumerate(KINDS)}


def log() -> list[_Logged]:
    """The posted work requests since `configure(log=1)`."""
    rows = ctypes.POINTER(_Logged)()
    n = library().fakeverbs_log(ctypes.byref(rows))
    return [_Logged.from_buffer_copy(rows[i]) for i in range(n)]


def table(*pairs: tuple[int, int], nics: Sequence[tuple[int, int]] = ()) -> np.ndarray:
    """CONN rows of (source rank, destination rank), and their NICs."""
    rows = np.zeros(len(pairs), CONN)
    for i, (src, dst) in enumerate(pairs):
        rows[i]["src"], rows[i]["dst"], rows[i]["channel"] = src, dst, i
        if nics:
            rows[i]["nic_src"], rows[i]["nic_dst"] = nics[i]
    return rows


def together(*calls: Any) -> list[Any]:
    """Run calls in threads; return their results or raise the first error."""
    results: list[Any] = [None] * len(calls)
    errors: list[BaseException] = []

    def run(i: int) -> None:
        try:
            results[i] = calls[i]()
        except BaseException as exc:
            errors.append(exc)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        # What failed here counts more than what its peer found out.
        raise next((e for e in errors if isinstance(e, VerbsError)), errors[0])
    return results


def _connect(transport: VerbsTransport, where: Any, timeout: float) -> None:
    try:
        transport.connect(where, SECRET, timeout=timeout)
    except BaseException:
        transport.close(0.1)
        raise


@contextmanager
def workers(
    rows: np.ndarray,
    *,
    devices: Sequence[Sequence[str]] = (("fake0",), ("fake1",)),
    config: VerbsConfig | None = None,
    timeout: float = 10.0,
    **options: Any,
) -> Iterator[list[VerbsTransport]]:
    """Connected transports of workers 0..n-1, rank = worker."""
    library()
    ranks = range(len(devices))
    made: list[VerbsTransport] = []
    try:
        for worker in ranks:
            mine = [i for i, row in enumerate(rows) if worker in (row["src"], row["dst"])]
            made.append(
                VerbsTransport(
                    worker,
                    rows[mine],
                    mine,
                    list(ranks),
                    devices=devices[worker],
                    config=config,
                    bind="127.0.0.1",
                    **options,
                )
            )
        where = {t.worker: t.listen() for t in made}
        together(*[lambda t=t: _connect(t, where, timeout) for t in made])
        yield made
    finally:
        together(*[lambda t=t: t.close(0.2) for t in made])
