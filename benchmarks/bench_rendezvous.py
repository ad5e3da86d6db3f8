"""How time and memory of the rendezvous grow with the number of workers (issue: linear at most).

Members connect from four processes over loopback, say Hello, take a 4 KiB shard each, answer
Ready, and are sent Peers and Bye: the whole conversation but the run itself.
"""

from __future__ import annotations

import multiprocessing
import statistics
import threading
import time
from pathlib import Path

SIZES = (125, 250, 500, 1000)
PROCESSES = 4
REPEATS = 3


def _rss_kib() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1])
    return 0


def _members(address: tuple[str, int], secret: bytes, workers: range) -> None:
    from genie.replay.member import Member
    from genie.replay.protocol import PROTOCOL, Bye, Hello, Peers, Ready
    from genie.replay.transports.interfaces import allow_descriptors

    allow_descriptors(len(workers) + 16)

    def one(worker: int) -> None:
        member = Member.connect([address], secret, 60, lambda _: None, hard_exit=False)
        member.send(Hello(worker, PROTOCOL, "bench", "h", 1, 1, "k", "p", "c"))
        member.receive_blob("shard", 120)
        member.send(Ready(b"\x91\x92\xa9127.0.0.1\x01"))
        member.receive(Peers, 120)
        member.receive(Bye, 120)
        member.close()

    threads = [threading.Thread(target=one, args=(worker,)) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _once(n: int) -> tuple[float, float]:
    """Return seconds of CPU of the coordinator and KiB it grew by, for n workers."""
    from genie.replay.protocol import Bye, Hello, Peers, Ready
    from genie.replay.rendezvous import Coordinator
    from genie.replay.transports.interfaces import allow_descriptors

    allow_descriptors(n + 512)
    secret = bytes(32)
    before = _rss_kib()
    coord = Coordinator(secret, [f"worker {i}" for i in range(n)], version="bench")
    step = -(-n // PROCESSES)
    fork = multiprocessing.get_context("spawn")
    children = [
        fork.Process(target=_members, args=(coord.address, secret, range(i, min(i + step, n))))
        for i in range(0, n, step)
    ]
    for child in children:
        child.start()
    coord.gather(Hello, 120, "starting", workers=[0])
    cpu = time.process_time()
    coord.gather(Hello, 120, "starting", workers=range(1, n))
    for worker in range(n):
        coord.send_blob(worker, "shard", bytes(4096), False)
    ready = coord.gather(Ready, 120, "ready")
    for worker in range(n):
        coord.send(worker, Peers({p: ready[p % n].listen for p in range(worker, worker + 8)}))
    while coord.unsent:
        coord.pump(0.01)
    grown = _rss_kib() - before
    seconds = time.process_time() - cpu
    coord.finished.update(range(n))
    coord.broadcast(Bye())
    while any(child.is_alive() for child in children):
        coord.pump(0.01)
    coord.close()
    return seconds, float(grown)


def run() -> list[dict[str, object]]:
    """Measure every size; ratios are per worker, against the smallest size."""
    rows: list[dict[str, object]] = []
    seconds: dict[int, float] = {}
    for n in SIZES:
        times, memory = zip(*(_once(n) for _ in range(REPEATS)), strict=True)
        seconds[n] = statistics.median(times)
        rows.append(
            {
                "area": f"rendezvous of {n} workers, CPU of the coordinator",
                "ours": seconds[n] / n * 1e6,
                "unit": "us/worker",
                "peer": f"{SIZES[0]} workers",
                "peer_value": seconds[SIZES[0]] / SIZES[0] * 1e6,
                "ratio": (seconds[SIZES[0]] / SIZES[0]) / (seconds[n] / n),
                "goal": "no less than 0.67: linear at most",
                "spread": (max(times) - min(times)) / seconds[n],
                "note": f"memory of the coordinator grew by {max(memory) / n:.1f} KiB/worker",
            }
        )
    return rows


if __name__ == "__main__":
    for row in run():
        print(row)
