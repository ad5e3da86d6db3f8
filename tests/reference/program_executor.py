"""Runs the programs of all ranks in plain Python: bounded queues, streams and phases."""

from __future__ import annotations

from collections import deque

PEEK, INTRA = 1, 2


class Deadlock(AssertionError):
    pass


class _Stream:
    def __init__(self, rank, row, ops, window):
        self.rank, self.channel, self.phase = rank, int(row["channel"]), int(row["phase"])
        self.ops = deque(ops[row["first"] : row["first"] + row["count"]].tolist())
        self.window = int(window)


def run_programs(programs, *, fifo_steps=None):
    """Executes one program a rank until all have ended.

    Args:
        programs: program of each rank.
        fifo_steps: steps that a connection holds; each program's own window if not given.

    Returns:
        {(channel, source, destination, connection index): [(bytes, steps), ...]} as received.

    Raises:
        Deadlock: streams that wait for each other, or messages nobody receives.
    """
    waiting = {}  # (rank, channel) -> phases, each a list of streams
    for rank, program in enumerate(programs):
        for row, window in zip(program.streams, program.windows, strict=True):
            stream = _Stream(rank, row, program.ops, window)
            phases = waiting.setdefault((rank, stream.channel), {})
            phases.setdefault(stream.phase, []).append(stream)
    active = {key: deque(sorted(phases.items())) for key, phases in waiting.items()}
    queues, received = {}, {}
    moved = True
    while moved:
        moved = False
        for (rank, _), phases in active.items():
            while phases:
                streams = phases[0][1]
                for stream in streams:
                    limit = fifo_steps or programs[rank].window
                    while stream.ops and _step(stream, queues, received, limit):
                        stream.ops.popleft()
                        moved = True
                if any(stream.ops for stream in streams):
                    break
                phases.popleft()
    stuck = {key: phases[0][1] for key, phases in active.items() if phases}
    if stuck:
        (rank, channel), streams = next(iter(stuck.items()))
        op = next(stream.ops[0] for stream in streams if stream.ops)
        raise Deadlock(f"{len(stuck)} wait; rank {rank} channel {channel} at {op}")
    left = {key: len(queue) for key, queue in queues.items() if queue}
    if left:
        raise Deadlock(f"never received: {left}")
    return received


def _step(stream, queues, received, limit):
    peer, nbytes, _, kind, flags, steps, conn = stream.ops[0]
    if kind == 0:
        key = (stream.channel, stream.rank, peer, conn)
        queue = queues.setdefault(key, deque())
        if len(queue) >= stream.window or sum(s for _, s in queue) + steps > limit:
            return False
        queue.append((nbytes, steps))
        return True
    key = (stream.channel, peer, stream.rank, conn)
    queue = queues.get(key)
    if not queue:
        return False
    if queue[0] != (nbytes, steps):
        raise Deadlock(f"{key}: expects {(nbytes, steps)}, the next message is {queue[0]}")
    if not flags & PEEK:
        received.setdefault(key, []).append(queue.popleft())
    return True
