"""One worker: `python -m genie.replay.worker --connect HOST:PORT --worker N`.

It has its part of the plan from the coordinator, needs no trace, no writable install, home or
cache, and ends when the coordinator or, if started by it directly, its parent does.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import gc
import os
import platform
import signal
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from genie.errors import GenieError, LaunchError
from genie.replay.auth import take_secret
from genie.replay.carrier import Carrier, check_devices
from genie.replay.clocks import clock_identity
from genie.replay.health import Meter
from genie.replay.hostinfo import pin, usable_cores
from genie.replay.launchers.join import worker_index
from genie.replay.member import Member
from genie.replay.protocol import (
    PROTOCOL,
    Bye,
    Connected,
    Done,
    Hello,
    Peers,
    ProbeSetup,
    Progress,
    Ready,
    Setup,
    Start,
    failed,
)

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from genie._core.engine import Engine
    from genie.replay.shard import Shard

PARENT_VAR = "GENIE_PARENT"
CONNECT_TIMEOUT_VAR = "GENIE_CONNECT_TIMEOUT"
#: Failures of one worker that are listed; more are counted.
MAX_FAILURES = 256
MAX_WAITS = 4096
EMPTY = b"\x90"  # MessagePack of (): a worker that listens nowhere
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class Worker:
    """The life of one worker, from Hello to Bye."""

    def __init__(self, index: int, addresses: Sequence[tuple[str, int]], secret: bytes) -> None:
        self.index = index
        self.secret = secret
        self._engine: Engine | None = None
        self._abort: str | None = None
        self._carrier: Carrier | None = None
        timeout = float(os.environ.get(CONNECT_TIMEOUT_VAR, "60"))
        self._member = Member.connect(addresses, secret, timeout, self._on_abort)

    def _on_abort(self, reason: str) -> None:
        """Stop: called in the control thread."""
        self._abort = reason
        if self._engine is not None:
            self._engine.abort()
        else:
            # Nothing is recorded yet and the main thread may wait for peers that never come.
            os._exit(0)

    def run(self) -> int:
        """Do what the coordinator says; return the exit code."""
        member = self._member
        try:
            member.send(_hello(self.index))
            if self._work():
                member.receive(Bye, 60.0)
            return 0
        except BaseException as exc:
            if self._abort is not None:
                return 0
            try:
                member.send(failed(exc, traceback.format_exc()[-8000:]))
                member.receive(Bye, 5.0)
            except GenieError:
                pass
            if not isinstance(exc, GenieError):
                traceback.print_exc()
            else:
                print(f"genie worker {self.index}: {exc}", file=sys.stderr)
            return 1
        finally:
            # Only now: a peer may still have been reading what this worker sent.
            if self._carrier is not None:
                self._carrier.close()
            member.close()

    def _work(self) -> bool:
        """Do what the coordinator wants; whether its Bye is still to come."""
        from genie.replay.shard import Shard

        member = self._member
        setup = member.receive_either(Setup, ProbeSetup, 120.0)
        if isinstance(setup, ProbeSetup):
            self._probe(setup)
            return False
        if not setup.address:
            setup = msgspec.structs.replace(setup, address=member.local_address)
        shard_bytes = member.receive_blob("shard")
        shard = Shard.from_bytes(shard_bytes)
        began = time.monotonic()
        engine = shard.engine("wall")
        carrier = Carrier(setup, shard, self.index) if shard.connections.size else None
        if carrier is None and setup.nics:
            # Nothing will be sent over them; a name that is wrong is wrong all the same.
            check_devices(setup)
        self._carrier = carrier
        listen = carrier.listen() if carrier else EMPTY
        member.send(Ready(listen, carrier.devices if carrier else (), time.monotonic() - began))
        peers = member.receive(Peers, setup.timeout)
        began = time.monotonic()
        if carrier is not None:
            carrier.connect(peers.listen, self.secret, setup.timeout)
            engine.set_transport(carrier.transport.capsule)
        took = time.monotonic() - began
        cores = os.sched_getaffinity(0)
        pinned = pin(carrier.devices, *setup.place) if carrier and setup.spin else ""
        member.send(Connected(took, pinned))
        start = member.receive(Start, None)
        meter = Meter(carrier, setup.counter_interval, start.t_ns, cores)
        self._engine = engine
        done, blobs = self._drive(engine, shard, setup, start.t_ns, meter, carrier, pinned)
        if setup.keep:
            done, blobs = self._keep(setup, done, shard_bytes, blobs)
        member.send(done)
        for name, table in blobs.items():
            member.send_blob(name, _bytes(table), compress=setup.compress)
        return True

    def _probe(self, setup: ProbeSetup) -> None:
        from genie.replay.preflight.probe import ProbeWorker

        if not setup.address:
            setup = msgspec.structs.replace(setup, address=self._member.local_address)
        probe = ProbeWorker(self._member, self.index, self.secret, setup)
        try:
            probe.run()
        finally:
            probe.close()

    def _drive(
        self,
        engine: Engine,
        shard: Shard,
        setup: Setup,
        start_ns: int,
        meter: Meter,
        carrier: Carrier | None,
        pinned: str,
    ) -> tuple[Done, dict[str, npt.NDArray[np.void]]]:
        gc.collect()
        gc.freeze()
        meter.wait(start_ns)
        status = engine.run(
            iterations=setup.iterations,
            warmup=setup.warmup,
            time_scale=setup.time_scale,
            watchdog_s=setup.watchdog,
            start_ns=start_ns,
            spin_ns=60_000 if setup.spin else 0,
            poll_spin_ns=60_000 if setup.spin else 0,
            progress=self._progress,
            log_messages=setup.log_messages,
        )
        meter.stop()
        blobs = {
            "ops": engine.ops(),
            "messages": engine.messages(),
            "connections": engine.connections(),
            "counters": meter.sampler.samples(),
        }
        names = {rank.rank: rank.names for rank in shard.ranks}
        failures = _failures(engine, carrier, shard)
        done = Done(
            status=status,
            start_ns=engine.start_ns,
            end_ns=meter.end_ns,
            blobs=tuple(blobs),
            explanation=(
                ""
                if status == "done"
                else engine.explain(node_name=lambda rank, node: names[rank][node])
            ),
            dropped=engine.dropped,
            health=meter.row(engine.health()),
            series=meter.sampler.series,
            counters_full=meter.sampler.full,
            failures=tuple(failures[:MAX_FAILURES]),
            failures_more=engine.failures_more + max(0, len(failures) - MAX_FAILURES),
            waits=_waits(engine) if status != "done" else (),
            rejected=carrier.rejected if carrier else 0,
            pinned=pinned,
        )
        return done, blobs

    def _keep(
        self, setup: Setup, done: Done, shard: bytes, blobs: dict[str, npt.NDArray[np.void]]
    ) -> tuple[Done, dict[str, npt.NDArray[np.void]]]:
        """Write what grows with the run here; where the disk refuses it goes home after all."""
        from genie.replay.remote import LOGS, keep

        logs = {name: blobs[name] for name in LOGS}
        try:
            kept = keep(setup.keep, setup.run, self.index, done.start_ns, shard, logs)
        except OSError as exc:
            why = f"{setup.keep}: {exc.strerror or exc}"
            return msgspec.structs.replace(done, not_kept=why), blobs
        rest = {name: table for name, table in blobs.items() if name not in LOGS}
        where = (kept.path, kept.nbytes, kept.sha256)
        return msgspec.structs.replace(done, kept=where, blobs=tuple(rest)), rest

    def _progress(self, done: int, total: int) -> None:
        self._member.send(Progress(done, total))


def _waits(engine: Engine) -> tuple[tuple[int, int], ...]:
    """Return (rank that waits, rank it waits for), each pair once."""
    blocked = engine.blocked()
    pairs = {*zip(blocked["rank"].tolist(), blocked["peer"].tolist(), strict=True)}
    return tuple(sorted(pairs)[:MAX_WAITS])


def _failures(engine: Engine, carrier: Carrier | None, shard: Shard) -> list[dict[str, Any]]:
    """Return the rows of table failures, text as text."""
    from genie._core.report import status_text

    reasons = carrier.reasons() if carrier else {}
    nodes = {rank.rank: rank for rank in shard.ranks}
    rows = []
    for row in engine.failures():
        rank, node = int(row["rank"]), int(row["node"])
        plan = nodes.get(rank)
        known = plan is not None and node < plan.n
        what = f" in {plan.names[node]!r}" if plan is not None and known else ""
        reason = reasons.get(int(row["id"])) or status_text(int(row["status"]))
        rows.append(
            {
                "rank": rank,
                "peer": int(row["peer"]),
                "time_ns": int(row["t_ns"]),
                "node": int(plan.node_id[node]) if plan is not None and known else -1,
                "status": int(row["status"]),
                "error": "CompletionError" if int(row["status"]) > 0 else "TransportError",
                "message": f"rank {rank} with rank {int(row['peer'])}{what}: {reason}",
            }
        )
    return rows


def _bytes(table: npt.NDArray[np.void]) -> memoryview:
    return memoryview(table.view("u1").data) if table.size else memoryview(b"")


def _hello(index: int) -> Hello:
    from genie.version import __version__

    return Hello(
        worker=index,
        protocol=PROTOCOL,
        genie_version=__version__,
        host=socket.gethostname(),
        pid=os.getpid(),
        cores=usable_cores(),
        kernel=platform.release(),
        python=platform.python_version(),
        clock=clock_identity(),
    )


def die_with_parent() -> None:
    """Have the kernel kill this process when the one that started it ends."""
    parent = os.environ.pop(PARENT_VAR, None)
    if parent is None:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(parent):
        # It ended before the request was made.
        os._exit(1)


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of "HOST:PORT" (IPv6 in brackets)."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit():
        raise LaunchError(f"not HOST:PORT: {text!r}")
    return host.strip("[]"), int(port)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one worker."""
    die_with_parent()
    # Ctrl-C in a terminal reaches every process of the job; the coordinator alone decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable()
    parser = argparse.ArgumentParser(prog="python -m genie.replay.worker", description=main.__doc__)
    parser.add_argument("--connect", required=True, help="HOST:PORT[,HOST:PORT...]")
    parser.add_argument("--worker", required=True, help='index of the endpoint, or "env"')
    args = parser.parse_args(argv)
    try:
        addresses = [parse_address(text) for text in args.connect.split(",")]
        index = worker_index() if args.worker == "env" else int(args.worker)
        worker = Worker(index, addresses, take_secret())
    except GenieError as exc:
        print(f"genie worker {args.worker}: {exc}", file=sys.stderr)
        return 1
    return worker.run()


if __name__ == "__main__":
    sys.stdout.flush()
    code = main()
    sys.stderr.flush()
    # Threads of the control connection may be blocked in the kernel.
    os._exit(code)
