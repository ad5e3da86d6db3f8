"""`check_fabric()`: every endpoint with every other, before a run needs them all."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from genie.errors import InputError, RendezvousTimeoutError
from genie.replay.endpoints import Endpoint, parse_endpoints
from genie.replay.preflight.pairs import Link, bandwidth, rounds
from genie.replay.preflight.probe import SILENCE
from genie.replay.preflight.verdict import report_of
from genie.replay.protocol import Bye, Failed, Hello, ProbeAnswer, ProbeSetup, ProbeStep
from genie.replay.rendezvous import Coordinator

if TYPE_CHECKING:
    from genie.replay.launchers.base import Launcher
    from genie.replay.nccl.env import Nccl
    from genie.replay.preflight.report import Report

#: Round trips of a ping, after as many as a tenth of them to warm up.
PINGS = 200
PING_BYTES = 8
#: Messages by which the rate is estimated before the timed stream.
BURST = 64
MOST_MESSAGES = 1 << 20
#: Seconds for an answer, beside what a step itself takes.
SLACK = 5.0


def check_fabric(
    endpoints: str | os.PathLike[str] | Endpoint | Sequence[str | Endpoint],
    *,
    transport: str = "auto",
    nccl: Nccl | None = None,
    seconds: float = 1.0,
    nbytes: int = 65536,
    timeout: float = 60.0,
    limit: float = 300.0,
    connect: float = 3.0,
    progress: Callable[[str], None] | None = None,
) -> Report:
    """Start a worker on each endpoint and probe every pair of their NICs.

    Pairs of different workers go on at once, each worker in one. NICs of the same rail (the same
    position in their endpoints) are pinged and then send for `seconds` each way; across rails they
    are pinged only.

    Args:
        endpoints: As for `replay`; two or more.
        transport: "auto", "tcp" or "verbs".
        nccl: NCCL's environment (GID, traffic class, ... of verbs).
        seconds: Length of each bandwidth probe; 0 leaves them out.
        nbytes: Size of its messages; perftest's default.
        timeout: Seconds for the workers to start.
        limit: Seconds for all probes; what is left then is reported as not probed.
        connect: Seconds in which a pair must connect, else it counts as cut.
        progress: Called with a line of text a round.

    Returns:
        Findings and the tables `pairs` (perftest's columns, a row a direction), `reachable`
        (half a round trip in microseconds, or "no") and `hosts` (every host's own findings).

    Raises:
        InputError: Fewer than two endpoints, or numbers that make no sense.
        GenieError: Workers cannot be started at all.
    """
    from genie.replay.launchers.choose import choose, listen_address
    from genie.replay.launchers.join import JoinedLauncher, coordinator_address, role, serve
    from genie.replay.run import settings_of

    ends = parse_endpoints(endpoints)
    if len(ends) < 2:
        raise InputError("a fabric is checked between two endpoints or more")
    if not 0 <= seconds <= 600 or not 1 <= nbytes <= 1 << 26 or not timeout > 0 or not limit > 0:
        raise InputError("seconds 0 to 600, nbytes 1 to 67108864, timeout > 0, limit > 0, please")
    settings = settings_of(transport, ends, nccl)
    who = role()
    if who is not None and who.size != len(ends):
        raise InputError(
            f"{who.launcher} started {who.size} processes, there are {len(ends)} endpoints"
        )
    if who is not None and who.rank > 0:
        raise SystemExit(serve(who, timeout))
    from genie.replay.auth import new_secret, take_secret

    if who is None:
        launcher: Launcher = choose(ends)
        host, port, secret = listen_address(ends), 0, new_secret()
    else:
        launcher = JoinedLauncher()
        host, port = coordinator_address(who)
        secret = take_secret()
    fabric = _Fabric(ends, launcher, (host, port), secret, progress or _quiet)
    try:
        fabric.start(settings.transport, settings.options, timeout)
        fabric.probe(seconds, nbytes, limit, connect)
    finally:
        fabric.close()
    return report_of(fabric.names, fabric.hosts, fabric.missing, fabric.links)


def _quiet(text: str) -> None:
    pass


class _Fabric:
    """The coordinator of one check."""

    def __init__(
        self,
        ends: Sequence[Endpoint],
        launcher: Launcher,
        listen: tuple[str, int],
        secret: bytes,
        progress: Callable[[str], None],
    ) -> None:
        from genie.version import __version__

        self.ends = list(ends)
        self.names = [f"{i} {end}" for i, end in enumerate(ends)]
        self.hosts: dict[int, dict[str, Any]] = {}
        self.missing: dict[int, str] = {}
        self.links: list[Link] = []
        self._launcher = launcher
        self._secret = secret
        self._progress = progress
        self._coord = Coordinator(
            secret, [f"worker {n}" for n in self.names],
            host=listen[0], port=listen[1], version=__version__,
        )  # fmt: skip

    def close(self) -> None:
        """Have every worker gone."""
        self._coord.finished.update(range(len(self.ends)))
        self._coord.broadcast(Bye())
        deadline = time.monotonic() + 1.0
        while self._coord.unsent and time.monotonic() < deadline:
            self._coord.pump(0.05)
        self._launcher.stop(1.0)
        self._coord.close()

    def start(self, transport: str, options: dict[str, Any], timeout: float) -> None:
        """Start the workers; those that do not come are missing, and the others go on."""
        everyone = range(len(self.ends))
        self._launcher.start([self._coord.address], self._secret, timeout)
        deadline = time.monotonic() + timeout
        while len(self._coord.hellos) + len(self.missing) < len(self.ends):
            if time.monotonic() > deadline:
                break
            self._coord.pump(0.05)
            self._coord.raise_trouble(())
            for worker, how in self._launcher.exited().items():
                if worker >= 0 and worker not in self._coord.hellos:
                    self.missing[worker] = how
        for worker in everyone:
            if worker not in self._coord.hellos:
                self.missing.setdefault(worker, f"did not start within {timeout:g} s")
        if not self._coord.hellos:
            raise RendezvousTimeoutError(
                f"no worker started: {next(iter(self.missing.values()))}", missing=self.names
            )
        hellos = {w: h for w, h in self._coord.hellos.items() if w not in self.missing}
        together = Counter(_where(hello) for hello in hellos.values())
        for worker, hello in hellos.items():
            self._coord.send(
                worker,
                ProbeSetup(
                    transport=transport,
                    nics=tuple((nic.name, nic.port or 0) for nic in self.ends[worker].nics),
                    address="",
                    spin=together[_where(hello)] <= hello.cores,
                    options=options,
                ),
            )
        for worker, answer in self._gather(hellos, timeout).items():
            if answer.error:
                self.missing[worker] = answer.error
            else:
                self.hosts[worker] = answer.values

    def probe(self, seconds: float, nbytes: int, limit: float, connect: float) -> None:
        """Probe every pair of NICs of every pair of workers."""
        deadline = time.monotonic() + limit
        nics = {w: len(host["nics"]) for w, host in self.hosts.items()}
        most = max(nics.values(), default=0)
        for number, pairs in enumerate(rounds(sorted(nics))):
            self._progress(f"round {number + 1}: {len(pairs)} pairs")
            for shift in range(most):
                for i in range(most):
                    links = [
                        Link(a, b, i, (i + shift) % most)
                        for a, b in pairs
                        if i < nics[a] and (i + shift) % most < nics[b]
                    ]
                    self.links += links
                    self._links(links, seconds, nbytes, deadline, connect)

    def _links(
        self, links: list[Link], seconds: float, nbytes: int, deadline: float, connect: float
    ) -> None:
        """Probe links of different workers at once."""
        for link in links:
            for worker in (link.a, link.b):
                if worker not in self.hosts:
                    link.error = f"worker {self.names[worker]}: {self.missing[worker]}"
        if time.monotonic() > deadline:
            for link in links:
                link.error = link.error or "not probed: the time limit was reached"
            return
        listens = self._step(
            links, "open",
            lambda link, w: {"peer": link.b if w == link.a else link.a, "nic": self._nic(link, w)},
        )  # fmt: skip
        self._step(
            links, "connect",
            lambda link, w: {
                "peer": link.b if w == link.a else link.a,
                "listen": listens[link.b if w == link.a else link.a]["listen"],
                "timeout": connect,
            },
            connect + SLACK,
        )  # fmt: skip
        found = self._step(
            links, "ping",
            lambda link, w: {
                "peer": link.b if w == link.a else link.a,
                "nbytes": PING_BYTES,
                "count": PINGS + PINGS // 10,
            },
        )  # fmt: skip
        for link in links:
            if not link.error:
                link.ping_ns = found[link.a]["took"][PINGS // 10 :]
        if seconds:
            timed = [link for link in links if link.same_rail]
            for way in (0, 1):
                self._bandwidth(timed, way, seconds, nbytes, deadline)
        self._ask(
            {w: ProbeStep("close") for link in links for w in (link.a, link.b) if w in self.hosts},
            SLACK,
        )

    def _nic(self, link: Link, worker: int) -> str:
        index = link.nic_a if worker == link.a else link.nic_b
        return str(self.hosts[worker]["nics"][index]["name"])

    def _bandwidth(
        self, links: list[Link], way: int, seconds: float, nbytes: int, deadline: float
    ) -> None:
        """One direction of each link, first a burst for the rate, then the timed stream."""
        live = [link for link in links if not link.error and not link.slow]
        counts = {id(link): BURST for link in live}
        for timed in (False, True):
            if time.monotonic() > deadline:
                for link in live:
                    link.slow = "not measured: the time limit was reached"
                return

            def values(link: Link, worker: int) -> dict[str, Any]:
                ends = (link.a, link.b) if way == 0 else (link.b, link.a)
                return {
                    "sender": ends[0], "receiver": ends[1], "nbytes": nbytes,
                    "count": counts[id(link)],
                }  # fmt: skip

            longest = SLACK + 4 * SILENCE + (3 * seconds if timed else 0)
            found = self._step(live, "stream", values, longest, slow=True)
            live = [link for link in live if not link.slow]
            for link in live:
                sender, receiver = (link.a, link.b) if way == 0 else (link.b, link.a)
                row = bandwidth(nbytes, found[receiver]["marks"], found[receiver]["times"])
                per_second = row["average_mbs"] * (1 << 20) / nbytes
                counts[id(link)] = int(min(max(seconds * per_second, BURST), MOST_MESSAGES))
                if timed:
                    link.ways[sender, receiver] = row

    def _step(
        self,
        links: Iterable[Link],
        what: str,
        values: Callable[[Link, int], dict[str, Any]],
        timeout: float = SLACK + 4 * SILENCE,
        slow: bool = False,
    ) -> dict[int, dict[str, Any]]:
        """Have both ends of each link that is well take a step; note what went wrong."""
        live = [link for link in links if not link.error]
        asked = {
            worker: ProbeStep(what, values(link, worker))
            for link in live
            for worker in (link.a, link.b)
        }
        answers = self._ask(asked, timeout)
        for link in live:
            errors = [
                f"worker {w}: {answers[w].error}" for w in (link.a, link.b) if answers[w].error
            ]
            if errors and slow:
                link.slow = f"{what}: {'; '.join(errors)}"
            elif errors:
                link.error = f"{what}: {'; '.join(errors)}"
        return {worker: answer.values for worker, answer in answers.items()}

    def _ask(self, steps: Mapping[int, ProbeStep], timeout: float) -> dict[int, ProbeAnswer]:
        for worker, step in steps.items():
            self._coord.send(worker, step)
        return self._gather(steps, timeout)

    def _gather(self, workers: Iterable[int], timeout: float) -> dict[int, ProbeAnswer]:
        """Return an answer of each worker; the lost and the silent get one with an error."""
        found: dict[int, ProbeAnswer] = {}
        missing = set(workers)
        deadline = time.monotonic() + timeout
        while missing and time.monotonic() < deadline:
            self._coord.pump(0.05)
            for worker in sorted(missing):
                got = self._coord.take(worker, ProbeAnswer)
                if got is not None:
                    found[worker] = got[0]
                elif (failure := self._coord.take(worker, Failed)) is not None:
                    found[worker] = ProbeAnswer("", failure[0].message)
                    self._forget(worker, f"{failure[0].error}: {failure[0].message}")
                elif worker in self._coord.lost:
                    found[worker] = ProbeAnswer("", self._coord.lost[worker])
                    self._forget(worker, self._coord.lost[worker])
            missing -= set(found)
        for worker in missing:
            why = f"did not answer within {timeout:g} s"
            found[worker] = ProbeAnswer("", why)
            self._forget(worker, why)
        return found

    def _forget(self, worker: int, why: str) -> None:
        self.hosts.pop(worker, None)
        self.missing[worker] = why


def _where(hello: Hello) -> str:
    return hello.clock or hello.host
