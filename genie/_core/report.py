"""Words for a run that did not end: who waits for whom, and what happened last."""

from __future__ import annotations

import errno
from collections.abc import Callable, Collection, Sequence

import numpy as np
import numpy.typing as npt

MESSAGE = 0
"""Reason of a wait: the next message has not arrived."""
ANNOUNCEMENT = 1
"""Reason of a wait: the receiver has announced no room (CTS)."""
COMPLETION = 2
"""Reason of a wait: the window is full of messages that are not complete."""

LINES = 20


def _time(ns: int) -> str:
    return f"{ns / 1e6:.6f} ms" if ns >= 0 else "never"


MEANING = {
    errno.EBUSY: "two collectives use the connection at the same time (an order edge is missing)",
    errno.EBADMSG: "sender and receiver disagree on the size of the message",
    errno.EPROTO: "the transport reported a completion that nobody waits for",
}
"""What the engine itself means by an errno."""


def status_text(status: int) -> str:
    """The name of a status: an errno name if negative, a work-completion number if positive."""
    if status < 0:
        name = errno.errorcode.get(-status, f"errno {-status}")
        return f"{name}: {MEANING[-status]}" if -status in MEANING else name
    return f"completion status {status}"


def explain(
    *,
    status: str,
    now_ns: int,
    blocked: npt.NDArray[np.void],
    failures: npt.NDArray[np.void],
    failures_more: int,
    last: tuple[int, int, int, int, int] | None,
    waiting: Sequence[tuple[int, int, int, list[int]]],
    failed_links: Sequence[str],
    here: Collection[int],
    node_name: Callable[[int, int], str] | None = None,
) -> str:
    """Renders the state of a run.

    Args:
        status: What `Engine.run` returned.
        now_ns: Time on the timeline.
        blocked: `BLOCKED` rows.
        failures: `FAILURE` rows.
        failures_more: Errors that are only counted.
        last: Time, source, destination, id and channel of the last completion.
        waiting: (rank, iteration, nodes left, some nodes not ready) of each unfinished rank.
        failed_links: Names of simulated links with rate 0.
        here: Ranks of this engine.
        node_name: What to call a node.
    """

    def node(rank: int, number: int) -> str:
        if number == 0xFFFFFFFF:
            return "no node"
        return node_name(rank, number) if node_name else f"node {number}"

    lines = [f"{status} at {_time(now_ns)}"]
    for f in failures[:LINES]:
        lines.append(
            f"connection {f['id']} failed at {_time(int(f['t_ns']))}: rank {f['rank']}, peer rank "
            f"{f['peer']}, {node(int(f['rank']), int(f['node']))}, iteration {f['iteration']}, "
            f"message {f['message']}: {status_text(int(f['status']))}"
        )
    if failures_more:
        lines.append(f"{failures_more} further errors on failed connections (flushes) not listed")
    for name in failed_links:
        lines.append(f"link {name} is down")
    if last is not None:
        lines.append(
            f"last completion: rank {last[1]} to rank {last[2]}, channel {last[4]}, connection "
            f"{last[3]}, at {_time(last[0])}"
        )
    elif status != "done":
        lines.append("no message has completed")
    for b in blocked[:LINES]:
        verb = {
            MESSAGE: "waits for message {m} ({n} bytes) from rank {p}",
            ANNOUNCEMENT: "waits for rank {p} to announce room for message {m} ({n} bytes)",
            COMPLETION: "waits for message {m} ({n} bytes) to rank {p} to complete",
        }[int(b["reason"])].format(m=b["message"], n=b["nbytes"], p=b["peer"])
        group = f", group {b['group']}" if b["group"] >= 0 else ""
        lines.append(
            f"rank {b['rank']} {verb}: {node(int(b['rank']), int(b['node']))}, iteration "
            f"{b['iteration']}, communicator {b['communicator']}, channel {b['channel']}{group}, "
            f"connection {b['id']}, last completion on it {_time(int(b['last_ns']))}"
        )
    if len(blocked) > LINES:
        lines.append(f"and {len(blocked) - LINES} more waits")
    if len(blocked):
        waiters = {int(r) for r in blocked["rank"]}
        named = sorted({int(p) for p in blocked["peer"]} - waiters)
        if named:
            text = ", ".join(
                f"rank {r}" + ("" if r in here else " (another worker)") for r in named[:LINES]
            )
            lines.append(f"waited for, and itself waiting for nobody here: {text}")
    elif waiting and status in ("stalled", "aborted"):
        for rank, iteration, left, stuck in waiting[:LINES]:
            text = ", ".join(node(rank, n) for n in stuck)
            more = f": {text} wait for their dependencies (a cycle?)" if stuck else ""
            lines.append(f"rank {rank}, iteration {iteration}: {left} nodes left{more}")
    return "\n".join(lines)
