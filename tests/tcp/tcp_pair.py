"""Two or more TCP transports joined over loopback, in one process or in several."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import threading
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from genie._core._drive import Drive
from genie.replay.connections import CONN
from genie.replay.transports.tcp import TcpTransport

SECRET = b"a secret of thirty-two bytes....."
READY, SENT, RECEIVED, ERROR = 1, 2, 3, 4


def table(pairs: list[tuple[int, int]]) -> np.ndarray:
    """A CONN table with one row for each (source rank, destination rank)."""
    rows = np.zeros(len(pairs), CONN)
    for i, (src, dst) in enumerate(pairs):
        rows[i] = (src, dst, 0, i, 0, 0, 0, src)
    return rows


def transport(worker: int, rows: np.ndarray, worker_of: list[int], **options: Any) -> TcpTransport:
    """The transport of one worker, with the rows that concern it."""
    mine = [
        i
        for i, row in enumerate(rows)
        if (worker_of[row["src"]] == worker) != (worker_of[row["dst"]] == worker)
    ]
    return TcpTransport(worker, rows[mine], mine, worker_of, **{"spin": False, **options})


def connect_all(transports: list[TcpTransport], timeout: float = 20.0) -> None:
    """Connect transports of this process with each other, side by side."""
    where = {t.worker: t.listen() for t in transports}
    errors: list[BaseException] = []

    def run(t: TcpTransport) -> None:
        try:
            t.connect({w: a for w, a in where.items() if w != t.worker}, SECRET, timeout=timeout)
        except BaseException as exc:
            errors.append(exc)

    threads = [threading.Thread(target=run, args=(t,)) for t in transports]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@contextlib.contextmanager
def pair(
    pairs: list[tuple[int, int]] | None = None, **options: Any
) -> Iterator[tuple[TcpTransport, TcpTransport, Drive, Drive]]:
    """Two connected workers, ranks 0 and 1; default one connection from 0 to 1, id 0."""
    rows = table([(0, 1)] if pairs is None else pairs)
    a, b = (transport(w, rows, [0, 1], **options) for w in (0, 1))
    try:
        connect_all([a, b])
        yield a, b, Drive(a.capsule), Drive(b.capsule)
    finally:
        a.close(0.0)
        b.close(0.0)


def pump(drives: list[Drive], until: Callable[[], bool], seen: list[list[Any]]) -> None:
    """Poll all drives, appending events to `seen`, until the condition holds or 20 s passed."""
    from time import monotonic

    deadline = monotonic() + 20.0
    while not until():
        assert monotonic() < deadline, "nothing more happened for 20 s"
        for drive, events in zip(drives, seen, strict=True):
            assert drive.flush() == 0
            got = drive.poll()
            events.extend(got)
            if not got:
                drive.wait(100_000)


def kinds(events: list[tuple[int, int, int, int]]) -> list[int]:
    return [kind for kind, *_ in events]


def _child(job: Callable[..., Any], pipe: Connection, args: tuple[Any, ...]) -> None:
    try:
        pipe.send(("ok", job(pipe, *args)))
    except BaseException:
        pipe.send(("error", traceback.format_exc()))
        os._exit(1)


class Workers:
    """Jobs in processes of their own: job(pipe, *args) may exchange messages over its pipe."""

    def __init__(self) -> None:
        self.context = multiprocessing.get_context("spawn")
        self.pipes: list[Connection] = []
        self.processes: list[Any] = []

    def start(self, job: Callable[..., Any], *args: Any) -> None:
        here, there = self.context.Pipe()
        process = self.context.Process(target=_child, args=(job, there, args), daemon=True)
        process.start()
        there.close()
        self.pipes.append(here)
        self.processes.append(process)

    def hear(self, i: int, timeout: float = 60.0) -> Any:
        assert self.pipes[i].poll(timeout), f"worker {i} is silent"
        return self.pipes[i].recv()

    def result(self, i: int, timeout: float = 60.0) -> Any:
        state, value = self.hear(i, timeout)
        assert state == "ok", value
        return value

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *exc: object) -> None:
        for process, pipe in zip(self.processes, self.pipes, strict=True):
            process.kill()
            process.join()
            process.close()
            pipe.close()


def join(pipe: Connection, t: TcpTransport) -> None:
    """Connect a worker process: tell where it listens, hear where the others do."""
    pipe.send(t.listen())
    t.connect(pipe.recv(), SECRET, timeout=30.0)


def exchange_job(
    pipe: Connection,
    worker: int,
    pairs: list[tuple[int, int]],
    sizes: list[int],
    rounds: int,
    dependent: bool,
    options: dict[str, Any],
) -> dict[str, Any]:
    """Both ways of all connections in `pairs`, then the counters."""
    rows = table(pairs)
    with transport(worker, rows, [0, 1], **options) as t:
        join(pipe, t)
        sends = [i for i, (src, _) in enumerate(pairs) if src == worker]
        recvs = [i for i, (_, dst) in enumerate(pairs) if dst == worker]
        Drive(t.capsule).exchange(sends, recvs, sizes, rounds, dependent=dependent)
        assert t.failures() == []
        stats = t.stats()
    return stats
