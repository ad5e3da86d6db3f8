"""The coordinator's steps of one run: start, hand out, connect, clocks, run, gather; or give up."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from genie.errors import GenieError, LaunchError, ReplayTimeoutError, TransportError
from genie.replay import mapping
from genie.replay.auth import new_secret
from genie.replay.blame import describe
from genie.replay.clocks import SHARED, ClockFit, Exchange, clock_identity, fit
from genie.replay.patience import longest_compute_ns
from genie.replay.protocol import (
    Abort,
    Bye,
    Connected,
    Done,
    Failed,
    Hello,
    Peers,
    Ping,
    Pong,
    Progress,
    Ready,
    Setup,
    Start,
    error_of,
)
from genie.replay.rendezvous import MAX_PENDING, Coordinator, WorkerLostError
from genie.replay.transports.interfaces import allow_descriptors

if TYPE_CHECKING:
    from genie.replay.endpoints import Endpoint
    from genie.replay.launchers.base import Launcher
    from genie.replay.plan import Plan

#: Clock exchanges before and after a run, and seconds between those during it.
CLOCK_ROUNDS = 24
CLOCK_EVERY = 1.0
CLOCK_VAR = "GENIE_CLOCK_SYNC"
#: Seconds for workers to hand over what they recorded after a failure, and then to be gone.
GRACE = 3.0
LAST = 1.0
#: Seconds of silence from all workers after which nothing more is expected of them.
SILENCE = 1.5
#: Seconds in which the cause of a failure may show itself behind its first symptom.
SETTLE = 0.4
#: Shards on their way at a time, so that memory does not grow with the number of workers.
SHARDS_AT_ONCE = 8
NEVER = 1e9


class InterruptedRunError(LaunchError):
    """Ctrl-C or SIGTERM ended the run: `signal`."""


@dataclass
class Settings:
    """How a run is done."""

    transport: str = "tcp"
    iterations: int = 1
    warmup: int = 0
    time_scale: float = 1.0
    timeout: float = 60.0
    log_messages: str = "network"
    counter_interval: float = 0.0
    options: dict[str, Any] = field(default_factory=dict)
    keep: str = ""
    """Folder of each host where a worker's tables stay; "": they come home."""
    quiet: bool = True
    """Whether the mapping is not shown."""
    address: str = ""
    """Where workers without a nic listen for each other; "": where they reach the coordinator."""


@dataclass
class WorkerResult:
    """What came back from one worker."""

    hello: Hello | None = None
    ready: Ready | None = None
    connected: Connected | None = None
    done: Done | None = None
    blobs: dict[str, bytes] = field(default_factory=dict)
    clock: ClockFit = SHARED

    @property
    def whole(self) -> bool:
        """Whether all that was promised is here."""
        return self.done is not None and set(self.done.blobs) <= set(self.blobs)


@dataclass
class Outcome:
    """How a run went."""

    results: list[WorkerResult]
    started_ns: int = -1
    error: GenieError | None = None
    causes: list[tuple[int, GenieError]] = field(default_factory=list)
    rejected: dict[str, int] = field(default_factory=dict)
    workers_on_host: dict[int, int] = field(default_factory=dict)
    place_on_host: dict[int, int] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)


class _Signals:
    """Counts SIGINT, SIGTERM and SIGHUP instead of letting them strike anywhere."""

    def __init__(self) -> None:
        self.count = 0
        self.name = ""
        self._before: dict[int, Any] = {}

    def __enter__(self) -> _Signals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                # What nohup or a shell's background told us to ignore stays ignored.
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._note)
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        self.name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


class Control:
    """One run of a plan on workers.

    Args:
        plan: What is done.
        endpoints: Where, in the order of the plan's hosts.
        launcher: Starts the workers.
        settings: How.
        address: Where to listen for workers.
        progress: Called with (nodes done, nodes in all).
    """

    def __init__(
        self,
        plan: Plan,
        endpoints: Sequence[Endpoint],
        launcher: Launcher,
        settings: Settings,
        *,
        address: str = "127.0.0.1",
        port: int = 0,
        secret: bytes | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self.plan = plan
        self.endpoints = list(endpoints)
        self.launcher = launcher
        self.settings = settings
        self.progress = progress
        self.n = len(self.endpoints)
        self.secret = new_secret() if secret is None else secret
        self.names = [self._name(w) for w in range(self.n)]
        self.outcome = Outcome([WorkerResult() for _ in range(self.n)])
        #: Not the secret nor made of it: it is in the names of files.
        self.run_name = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(4).hex()}"
        self._listen = (address, port)
        self._coord: Coordinator
        self._signals = _Signals()
        self._exchanges: dict[int, list[Exchange]] = {w: [] for w in range(self.n)}
        self._asked: dict[tuple[int, int], int] = {}
        self._round = 0
        self._progress: dict[int, tuple[int, int]] = {}
        longest = longest_compute_ns(plan.ranks) * settings.time_scale / 1e9
        self.watchdog = settings.timeout + longest

    def _name(self, worker: int) -> str:
        ranks = self.plan.ranks_of(worker)
        text = f"{ranks[0]}-{ranks[-1]}" if len(ranks) > 1 else str(ranks[0])
        return f"worker {worker} ({self.endpoints[worker]}, rank{'s'[: len(ranks) > 1]} {text})"

    def _called(self, worker: int) -> str:
        """Return the worker's name and a blank; nothing for the launcher itself (-1)."""
        return f"{self.names[worker]} " if worker >= 0 else ""

    def run(self) -> Outcome:
        """Do the run; the outcome says how it went. Workers are gone when this returns."""
        from genie.version import __version__

        allow_descriptors(self.n + 2 * MAX_PENDING)
        with _Signals() as self._signals:
            self._coord = Coordinator(
                self.secret,
                self.names,
                host=self._listen[0],
                port=self._listen[1],
                version=__version__,
            )
            try:
                self._timed("launch", self._launch)
                self._timed("shards", self._hand_out)
                self._timed("connect", self._connect)
                self._timed("clocks", lambda: self._clocks(CLOCK_ROUNDS))
                self._start()
                self._timed("run", self._wait)
                self._clocks(CLOCK_ROUNDS)
                self._coord.finished.update(range(self.n))
                self._bye(LAST + 4)
            except GenieError as exc:
                self._give_up(exc)
            finally:
                self.outcome.rejected = dict(self._coord.rejected)
                self.launcher.stop(0.0)
                self._coord.close()
        self._fit()
        return self.outcome

    def _timed(self, name: str, step: Callable[[], None]) -> None:
        began = time.monotonic()
        step()
        self.outcome.seconds[name] = time.monotonic() - began

    # ---- steps

    def _check(self) -> None:
        """Raise when the user or a dead child ends the run."""
        if self._signals.count:
            raise InterruptedRunError(f"interrupted by {self._signals.name}")
        for worker, how in self.launcher.exited().items():
            if worker not in self._coord.finished and len(self._coord.finished) < self.n:
                raise WorkerLostError(f"{self._called(worker)}{how}", worker=worker)

    def _launch(self) -> None:
        timeout = self.settings.timeout
        self.launcher.start([self._coord.address], self.secret, timeout)
        self._coord.gather(Hello, timeout, "starting", check=self._check)
        hosts: dict[str, list[int]] = {}
        for worker, hello in self._coord.hellos.items():
            self.outcome.results[worker].hello = hello
            hosts.setdefault(hello.clock or hello.host, []).append(worker)
        for workers in hosts.values():
            for place, worker in enumerate(workers):
                self.outcome.workers_on_host[worker] = len(workers)
                self.outcome.place_on_host[worker] = place
            first = self._coord.hellos[workers[0]]
            if len(workers) > first.cores:
                self.outcome.warnings.append(
                    f"{len(workers)} workers share {first.cores} CPU cores of host {first.host}: "
                    "they wait without spinning, and timing is disturbed (see health)"
                )

    def _hand_out(self) -> None:
        for worker in range(self.n):
            while self._coord.unsent >= SHARDS_AT_ONCE:
                self._pump()
            endpoint = self.endpoints[worker]
            hello = self._coord.hellos[worker]
            self._coord.send(
                worker,
                Setup(
                    workers=self.n,
                    transport=self.settings.transport,
                    nics=tuple((nic.name, nic.port or 0) for nic in endpoint.nics),
                    address=self.settings.address,
                    iterations=self.settings.iterations,
                    warmup=self.settings.warmup,
                    time_scale=self.settings.time_scale,
                    timeout=self.settings.timeout,
                    watchdog=self.watchdog,
                    spin=self.outcome.workers_on_host[worker] <= hello.cores,
                    log_messages=self.settings.log_messages,
                    place=(
                        self.outcome.place_on_host[worker],
                        self.outcome.workers_on_host[worker],
                    ),
                    compress=hello.clock != clock_identity(),
                    options=self.settings.options,
                    counter_interval=self.settings.counter_interval,
                    keep=self.settings.keep,
                    run=self.run_name,
                ),
            )
            shard = self.plan.shard(worker).to_bytes()
            self._coord.send_blob(worker, "shard", shard, hello.clock != clock_identity())
            self._pump(0)
        while self._coord.unsent:
            self._pump()

    def _connect(self) -> None:
        coord, timeout = self._coord, self.settings.timeout
        ready = coord.gather(Ready, timeout + 60, "reading their part", check=self._check)
        for worker, message in ready.items():
            self.outcome.results[worker].ready = message
        for worker, peers in enumerate(self._peers()):
            coord.send(worker, Peers({p: ready[p].listen for p in sorted(peers)}))
        # The worker's own timeout names the peer that is missing: let it speak first.
        met = coord.gather(Connected, timeout + 5, "connecting to each other", check=self._check)
        for worker, connected in met.items():
            self.outcome.results[worker].connected = connected
        if not self.settings.quiet:
            self._show_mapping()

    def _show_mapping(self) -> None:
        """Say on stderr who runs where."""
        results = self.outcome.results
        for line in mapping.describe(
            self.plan,
            self.endpoints,
            [r.hello.host if r.hello else "" for r in results],
            [r.ready.devices if r.ready else () for r in results],
            [r.connected.pinned if r.connected else "" for r in results],
        ):
            print(f"genie: {line}", file=sys.stderr)

    def _peers(self) -> list[set[int]]:
        """Return the workers that each worker exchanges messages with."""
        peers: list[set[int]] = [set() for _ in range(self.n)]
        table = self.plan.connections
        for src, dst in {*zip(table["src"].tolist(), table["dst"].tolist(), strict=True)}:
            a, b = self.plan.host_of(src), self.plan.host_of(dst)
            peers[a].add(b)
            peers[b].add(a)
        return peers

    def _start(self) -> None:
        rtt = max(
            (e.after_ns - e.before_ns for found in self._exchanges.values() for e in found),
            default=0,
        )
        zero = time.monotonic_ns() + 30_000_000 + 2 * rtt + 50_000 * self.n
        for worker in range(self.n):
            clock = self._fit_one(worker, zero, zero)
            self._coord.send(worker, Start(zero + round(clock.offset_at(zero))))
        self.outcome.started_ns = zero

    def _pump(self, timeout: float = 0.05) -> None:
        self._coord.pump(timeout)
        self._check()
        self._coord.raise_trouble(range(self.n))

    def _wait(self) -> None:
        """Wait until every worker is done and its tables are here."""
        next_clock = time.monotonic() + CLOCK_EVERY
        while not all(result.whole for result in self.outcome.results):
            self._pump()
            self._collect()
            for worker, result in enumerate(self.outcome.results):
                if result.done is not None and result.done.status != "done":
                    raise self._unfinished(worker, result.done)
            if time.monotonic() >= next_clock:
                self._ask_clocks()
                next_clock += CLOCK_EVERY

    def _collect(self) -> None:
        """Take what has come from the workers."""
        for worker, result in enumerate(self.outcome.results):
            while (found := self._coord.take(worker, Progress)) is not None:
                self._progress[worker] = (found[0].done, found[0].total)
            if (done := self._coord.take(worker, Done)) is not None:
                result.done = done[0]
            if result.done is not None:
                for name in result.done.blobs:
                    if name not in result.blobs:
                        blob = self._coord.take_blob(worker, name)
                        if blob is not None:
                            result.blobs[name] = blob
            self._take_pongs(worker)
        if self.progress is not None and self._progress:
            total = self.settings.iterations + self.settings.warmup
            nodes = sum(rank.n for rank in self.plan.ranks) * total
            self.progress(min(sum(done for done, _ in self._progress.values()), nodes), nodes)

    def _bye(self, grace: float) -> None:
        self._coord.broadcast(Bye())
        deadline = time.monotonic() + grace
        while self._coord.unsent and time.monotonic() < deadline:
            self._coord.pump(0.02)
        self.launcher.stop(max(0.0, deadline - time.monotonic()))

    # ---- clocks

    def _shares_clock(self, worker: int) -> bool:
        hello = self._coord.hellos.get(worker)
        own = clock_identity()
        return (
            hello is not None
            and own != ""
            and hello.clock == own
            and os.environ.get(CLOCK_VAR) != "always"
        )

    def _ask_clocks(self) -> None:
        self._round += 1
        for worker in range(self.n):
            if not self._shares_clock(worker):
                self._asked[worker, self._round] = time.monotonic_ns()
                self._coord.send(worker, Ping(self._round))

    def _take_pongs(self, worker: int) -> None:
        while (found := self._coord.take(worker, Pong)) is not None:
            pong, at = found
            asked = self._asked.pop((worker, pong.number), None)
            if asked is not None:
                self._exchanges[worker].append(Exchange(asked, at, pong.t_ns))

    def _clocks(self, rounds: int) -> None:
        """Ask every worker for its clock, `rounds` times one after the other."""
        if all(self._shares_clock(worker) for worker in range(self.n)):
            return
        for _ in range(rounds):
            self._ask_clocks()
            deadline = time.monotonic() + 2.0
            while self._asked and time.monotonic() < deadline:
                self._pump(0.01)
                for worker in range(self.n):
                    self._take_pongs(worker)
            self._asked.clear()

    def _fit_one(self, worker: int, start: int, end: int) -> ClockFit:
        if self._shares_clock(worker) or not self._exchanges[worker]:
            return SHARED
        return fit(self._exchanges[worker], start, end)

    def _fit(self) -> None:
        start = self.outcome.started_ns
        if start < 0:
            return
        for worker, result in enumerate(self.outcome.results):
            end = start
            if result.done is not None:
                end += result.done.end_ns - result.done.start_ns
            result.clock = self._fit_one(worker, start, max(start, end))
            if not result.clock.steady:
                self.outcome.warnings.append(
                    f"{self.names[worker]}: its clock stepped or changed its rate during the run; "
                    f"times across workers are only good to {result.clock.bound_ns / 1e6:.3f} ms"
                )

    # ---- giving up

    def _unfinished(self, worker: int, done: Done) -> GenieError:
        name = self.names[worker]
        if done.status == "stalled":
            return ReplayTimeoutError(
                f"{name}: nothing moved for {self.watchdog:.3g} s:\n{done.explanation}",
                worker=worker,
            )
        first = done.failures[0]["message"] if done.failures else done.explanation
        return TransportError(f"{name}: {first}", worker=worker)

    def _give_up(self, first: GenieError) -> None:
        """Find the cause, stop everyone, keep what was recorded."""
        self.outcome.causes.append((getattr(first, "worker", -1), first))
        if not isinstance(first, InterruptedRunError):
            self._settle()
        cause = min(self.outcome.causes, key=lambda c: _precedence(c[1]))[1]
        self.outcome.error = cause
        coord = self._coord
        coord.broadcast(Abort(cause.message[:2000]))
        begin = time.monotonic()
        stop = begin + GRACE
        interrupts = self._signals.count
        # Whoever has not even been told to start has recorded nothing.
        while self.outcome.started_ns >= 0 and time.monotonic() < stop:
            coord.pump(0.02)
            self._collect()
            self._note_causes()
            silent = time.monotonic() - max(coord.last_read, begin) > SILENCE
            if (
                self._signals.count > interrupts
                or silent
                or not any(
                    not result.whole and worker not in coord.lost
                    for worker, result in enumerate(self.outcome.results)
                )
            ):
                break
        if isinstance(cause, ReplayTimeoutError):
            self.outcome.error = self._blame()
        coord.finished.update(range(self.n))
        self._bye(LAST if self._signals.count <= interrupts else 0.0)

    def _blame(self) -> ReplayTimeoutError:
        """Return the error of a run that stands still, with who is waited for."""
        answered = {w: r.done for w, r in enumerate(self.outcome.results) if r.done is not None}
        worker_of = {r.rank: self.plan.host_of(r.rank) for r in self.plan.ranks}
        silent = [w for w in range(self.n) if w not in answered]
        waits = {w: done.waits for w, done in answered.items()}
        said = {w: done.explanation for w, done in answered.items() if done.explanation}
        report = describe(waits, said, self.names, worker_of, silent)
        return ReplayTimeoutError(
            f"nothing moved for {self.watchdog:.3g} s: {report}",
            pending=sum(len(pairs) for pairs in waits.values()),
        )

    def _settle(self) -> None:
        stop = time.monotonic() + SETTLE
        while time.monotonic() < stop:
            self._coord.pump(0.02)
            self._collect()
            self._note_causes()

    def _note_causes(self) -> None:
        """Add what else went wrong, each worker's trouble of a kind once."""
        known = {(worker, type(exc)) for worker, exc in self.outcome.causes}
        found: list[tuple[int, GenieError]] = []
        for worker, how in self.launcher.exited().items():
            found.append((worker, WorkerLostError(f"{self._called(worker)}{how}", worker=worker)))
        for worker, reason in self._coord.lost.items():
            found.append(
                (worker, WorkerLostError(f"{self.names[worker]}: {reason}", worker=worker))
            )
        for worker, result in enumerate(self.outcome.results):
            if (failed := self._coord.take(worker, Failed)) is not None:
                found.append((worker, error_of(failed[0], self.names[worker])))
            if result.done is not None and result.done.status in ("stalled", "failed"):
                found.append((worker, self._unfinished(worker, result.done)))
        for worker, exc in found:
            if (worker, type(exc)) in known:
                # A process's end says more than that its connection closed.
                if "was killed" in exc.message or "exit code" in exc.message:
                    self.outcome.causes = [
                        (w, exc if w == worker and type(e) is type(exc) else e)
                        for w, e in self.outcome.causes
                    ]
                continue
            known.add((worker, type(exc)))
            self.outcome.causes.append((worker, exc))


def _precedence(exc: GenieError) -> float:
    """Causes before symptoms: a dead process breaks connections, and those stall others."""
    if isinstance(exc, InterruptedRunError):
        return 0
    if isinstance(exc, WorkerLostError):
        # A launcher that ended names no worker; a lost connection does.
        return 1 if getattr(exc, "worker", -1) >= 0 else 1.5
    if not isinstance(exc, TransportError):
        return 2
    return 4 if isinstance(exc, ReplayTimeoutError) else 3
