"""The flow level of `simulate`: a collective as one flow a channel and peer, not its messages.

A model, for jobs of 10 000 ranks and more. What it keeps and what it leaves out:

* Bytes of every flow are the sums of the exact schedule's messages on that channel to that peer.
* Flows share NICs max-min fair, with whatever other collectives use them at that time.
* A collective's flows start when its last rank starts it (sends and receives: both ends).
* Everything else a collective costs (steps that wait for each other, windows, announcements,
  GPU time, hops inside hosts) is one number a rank, its *tail*: what the exact messages take
  longer than the flows when the call has the network for itself. It is measured by running both,
  once for each distinct call. Calls of more than `ISOLATED_LIMIT` messages, and uneven all_to_all
  (each a call of its own), get an estimate instead: rounds x (latency + announcement + GPU time).
* A rank that only sends does not wait for its flows, its receivers do.
* Collectives inside a host are exact (`genie._core`, joint communicators).

So an undisturbed collective with equal starts takes exactly its message-level time; the error
comes from collectives that share NICs, or whose ranks start apart (docs/simulate.md: measured).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from genie.errors import InputError
from genie.replay.communicators import Communicator
from genie.replay.connections import connect
from genie.replay.gpu import ProgramTimes
from genie.replay.nccl.program import INTRA, OP, PEEK, RECV, STREAM, Program
from genie.replay.shard import ShardProgram, program_times

if TYPE_CHECKING:
    from genie.replay.gpu import GpuModel
    from genie.replay.network import Network
    from genie.replay.plan import Plan
    from genie.replay.templates import CallKey, Template

#: Bytes of one message of a flow; an engine message counts them in 32 bits.
_LARGEST = 1 << 31

#: Messages, inside hosts included, up to which a call is run by itself to find its tail.
ISOLATED_LIMIT = 20_000_000


@dataclass(frozen=True)
class FlowProgram:
    """What one rank does in a call at the flow level.

    Attributes:
        program: One stream a flow; empty where a rank has none.
        tail_ns: Time between its last flow's end and its own end, ns.
    """

    program: Program
    tail_ns: int


def flow_program(program: Program) -> Program:
    """Return the flows of a program: each (channel, peer, connection, way) as one stream.

    Args:
        program: The exact program; messages inside the host are left out.
    """
    ops, streams = program.ops, program.streams
    channel = np.repeat(streams["channel"].astype(np.int64), streams["count"])
    used = ((ops["flags"] & INTRA) == 0) & ~((ops["kind"] == RECV) & (ops["flags"] & PEEK != 0))
    key = (
        (ops["peer"].astype(np.int64) << 32)
        | (channel << 16)
        | (ops["conn"].astype(np.int64) << 8)
        | ops["kind"]
    )[used]
    keys, inverse = np.unique(key, return_inverse=True)
    nbytes = np.bincount(inverse, ops["nbytes"][used].astype(np.float64), keys.size)
    pieces = np.maximum(1, -(-nbytes.astype(np.int64) // _LARGEST))
    made = np.zeros(int(pieces.sum()), OP)
    rows = np.zeros(keys.size, STREAM)
    rows["count"] = pieces
    rows["first"] = np.cumsum(pieces) - pieces
    rows["channel"] = (keys >> 16) & 0xFFFF
    flow = np.repeat(np.arange(keys.size), pieces)
    made["peer"], made["kind"] = (keys >> 32)[flow], (keys & 0xFF)[flow]
    made["conn"], made["steps"] = ((keys >> 8) & 0xFF)[flow], 1
    made["nbytes"] = _LARGEST
    last = np.cumsum(pieces) - 1
    made["nbytes"][last] = nbytes.astype(np.int64) - (pieces - 1) * _LARGEST
    # Streams of one channel and group must not be told apart by more than their peers.
    order = np.argsort(rows["channel"], kind="stable")
    return Program(rows[order], made)


def flow_programs(
    plan: Plan, network: Network, progress: Callable[[int, int], None] | None = None
) -> list[FlowProgram | None]:
    """Return the flow-level program of every template of a plan, None where messages are kept.

    Messages are kept inside hosts.

    Args:
        plan: The plan.
        network: Rates and latencies; changes over time are left out of the calls' own times.
        progress: Called with (calls done, calls).
    """
    of_key: dict[CallKey, list[Template]] = {}
    for template in plan.templates:
        of_key.setdefault(template.key, []).append(template)
    where = {key: communicator for key, communicator, _ in plan.schedules}
    out: list[FlowProgram | None] = [None] * len(plan.templates)
    done: set[CallKey] = set()
    for i, key in enumerate(of_key):
        if progress is not None:
            progress(i, len(of_key))
        if key in done:
            continue
        communicator = where[key]
        keys = [key]
        if key.peer >= 0:  # both ends of a send and its receive
            other = "recv" if key.kind == "send" else "send"
            mirror = next(
                (
                    k
                    for k in of_key
                    if (k.kind, k.count, k.root, k.peer, k.shape)
                    == (other, key.count, key.peer, key.root, key.shape)
                ),
                None,
            )
            keys += [mirror] if mirror is not None else []
        done.update(keys)
        templates = [t for k in keys for t in of_key[k]]
        if not _leaves_hosts(communicator, templates):
            continue
        flows = {t.index: flow_program(t.program) for t in templates}
        tails = _tails(plan, network, communicator, templates, flows)
        for t in templates:
            out[t.index] = FlowProgram(flows[t.index], tails[t.index])
    return out


def _leaves_hosts(communicator: Communicator, templates: list[Template]) -> bool:
    hosts = np.unique(np.asarray(communicator.cluster.host_of)[[t.rank for t in templates]])
    return hosts.size > 1


def _tails(
    plan: Plan,
    network: Network,
    communicator: Communicator,
    templates: list[Template],
    flows: dict[int, Program],
) -> dict[int, int]:
    """Return the tail of each template's rank, ns."""
    messages = sum(int(t.program.ops.size) for t in templates) // 2
    if templates[0].key.splits or messages > ISOLATED_LIMIT:
        return {t.index: _estimate(plan.gpu, network, t) for t in templates}
    alone = replace(communicator, index=0)
    exact = _alone(plan, network, alone, templates, None)
    fluid = _alone(plan, network, alone, templates, flows)
    return {t.index: max(0, exact[t.rank] - fluid[t.rank]) for t in templates}


def _estimate(gpu: GpuModel, network: Network, template: Template) -> int:
    """Return rounds x (latency + announcement + GPU time) of one rank, ns.

    Rounds are batches of a channel for sends and receives; else the longest stream's messages.
    """
    streams = template.program.streams
    if not streams.size:
        return 0
    p2p = template.algorithm == "p2p"
    rounds = int(streams["phase"].max()) + 1 if p2p else int(streams["count"].max()) // 2
    times = program_times(gpu, template)
    each = network.latency_ns + network.cts_latency_ns + times.move_ns + times.send_ns
    return times.start_ns + rounds * each


def _alone(
    plan: Plan,
    network: Network,
    communicator: Communicator,
    templates: list[Template],
    flows: dict[int, Program] | None,
) -> dict[int, int]:
    """Return when each rank ends one call that has the network for itself, by rank, ns."""
    from genie._core.engine import Engine
    from genie.replay.simulate import set_links

    table, _ = connect({(0, t.index): 1 for t in templates}, [communicator], plan.templates)
    engine = Engine(clock="virtual")
    engine.add_communicator(communicator.ranks)
    host_of = np.asarray(plan.cluster.host_of, np.int32)
    for t in templates:
        p = flows[t.index] if flows else t.program
        times = ProgramTimes() if flows else program_times(plan.gpu, t)
        number = ShardProgram(p.streams, p.ops, p.window, p.windows, times).add_to(engine)
        rank = int(communicator.ranks[t.rank])
        engine.add_rank(
            rank, [2], [0], [number], [0], [0, 0], np.empty(0, np.uint32), host=int(host_of[rank])
        )
    engine.add_connections(table)
    set_links(engine, table, plan, network, events=False)
    if engine.run(log_messages="none") != "done":
        key = templates[0].key
        raise InputError(f"{key.kind} of {key.count} {key.dtype} does not end by itself")
    ops = engine.ops()
    return {communicator.rank_of[int(o["rank"])]: int(o["end_ns"]) for o in ops}
