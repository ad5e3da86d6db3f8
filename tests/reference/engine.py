"""The engine's rules again, slow and plain: one pass over everything until nothing changes.

Exact arithmetic (fractions), every flow by itself, rates by progressive filling over
the whole network each time. It shares no code and no data structure with `genie._core`.
"""

from __future__ import annotations

import math
from fractions import Fraction

SLACK = Fraction(1, 1024)
"""A flow that ends this little after a whole nanosecond ends in it (docs/architecture.md)."""


def whole_ns(x: Fraction) -> int:
    return max(0, math.ceil(x - SLACK))


def fair_rates(flows: dict, capacity: list[Fraction]) -> dict:
    """Max-min fair rates of `flows` (name -> list of links) by progressive filling."""
    rates = {}
    rest = list(capacity)
    open_flows = dict(flows)
    while open_flows:
        use = {}
        for path in open_flows.values():
            for link in path:
                use[link] = use.get(link, 0) + 1
        share, tight = min((rest[link] / n, link) for link, n in use.items())
        for name in [f for f, path in open_flows.items() if tight in path]:
            rates[name] = share
            for link in open_flows[name]:
                rest[link] -= share
            del open_flows[name]
    return rates


class Wire:
    """One connection: its FIFO on both sides."""

    def __init__(self, row, path=None, latency=0, cts_latency=0):
        self.row = row
        self.path = path  # None: inside a host
        self.latency = latency
        self.cts_latency = cts_latency
        self.queue = []  # [nbytes, steps, posted or None, completed or None, not posted before]
        self.posted = 0
        self.onwire = 0
        self.completed = 0
        self.announced = []  # [nbytes, time the sender knows, announced at]
        self.taken = 0
        self.send_steps = 0
        self.recv_steps = 0
        self.recv_count = 0
        self.busy_until = 0
        self.delays = (0, 0, 0, 0)  # send_ns, gap, local latency and rate of who sends
        self.idle_until = 0  # nothing starts on the wire before
        self.remaining = None  # Fraction of the message on the wire


class Stream:
    def __init__(self, ops, call_moves, limit):
        self.limit = limit  # messages in flight on a connection
        self.ops = ops
        self.at = 0
        self.resume = None  # GPU time ends then
        self.gpu_done = False
        self.moves = call_moves
        self.upcoming = {}  # connection key -> ops to announce


def moves_of(ops, gpu, early):
    """For each op: (first op of its move, is last, GPU ns spent before it ends)."""
    call_ns, copy_rate, reduce_rate, receive_rate, move_ns = gpu
    out = [None] * len(ops)
    x = 0
    while x < len(ops):
        y = x
        seen = set()
        while y < len(ops) and y - x < 255:
            op = ops[y]
            if y > x:
                if op["call"] != ops[x]["call"]:
                    break
                if op["kind"] == 1 and ops[y - 1]["kind"] == 0:
                    break
                if (op["kind"], op["peer"], op["conn"]) in seen:
                    break
            if not op["peek"]:
                seen.add((op["kind"], op["peer"], op["conn"]))
            y += 1
        move = [k for k in range(x, y) if not ops[k]["peek"]]
        sends = [k for k in move if ops[k]["kind"] == 0]
        recvs = [k for k in move if ops[k]["kind"] == 1]
        for k in range(x, y):
            out[k] = [x, k == y - 1, 0]
        if move:
            rate = receive_rate if not sends else reduce_rate if recvs else copy_rate
            ns = Fraction(max(ops[k]["nbytes"] for k in move)) / Fraction(rate) if rate else 0
            ns += move_ns
            if x == 0 or ops[x]["call"] != ops[x - 1]["call"]:
                ns += call_ns
            out[y - 1 if early else sends[0] if sends else recvs[-1]][2] = whole_ns(Fraction(ns))
            for k in range(x, y):
                out[k].append(whole_ns(Fraction(ns)))
        x = y
    return out


class Reference:
    """Mirrors the calls of `Engine(clock="virtual")` that tests use, on plain lists."""

    def __init__(self):
        self.gpu = (0, 0, 0, 0, 0)
        self.start_ns = self.send_ns = 0
        self.early = False
        self.gap_ns = 0
        self.local = (0, 0)
        self.members = []
        self.programs = []
        self.ranks = {}
        self.wires = {}
        self.capacity = []
        self.link_events = []

    def set_gpu(
        self,
        *,
        call_ns=0,
        copy_bytes_per_ns=0,
        reduce_bytes_per_ns=0,
        receive_bytes_per_ns=None,
        move_ns=0,
        start_ns=0,
        send_ns=0,
        early=False,
        gap_ns=0,
    ):
        self.early, self.gap_ns = early, gap_ns
        receive = copy_bytes_per_ns if receive_bytes_per_ns is None else receive_bytes_per_ns
        self.gpu = (call_ns, copy_bytes_per_ns, reduce_bytes_per_ns, receive, move_ns)
        self.start_ns, self.send_ns = start_ns, send_ns

    def set_local(self, *, latency_ns=0, bytes_per_ns=0):
        self.local = (latency_ns, bytes_per_ns)

    def add_communicator(self, members):
        self.members.append([int(m) for m in members])
        return len(self.members) - 1

    def add_program(self, streams, ops, window=8, *, windows=None):
        rows = []
        for i, s in enumerate(streams):
            part = [
                {
                    "peer": int(o["peer"]),
                    "nbytes": int(o["nbytes"]),
                    "call": int(o["call"]),
                    "kind": int(o["kind"]),
                    "peek": bool(o["kind"] == 1 and o["flags"] & 1),
                    "steps": int(o["steps"]),
                    "conn": int(o["conn"]),
                }
                for o in ops[s["first"] : s["first"] + s["count"]]
            ]
            limit = 1 << 30 if windows is None else int(windows[i])
            moves = moves_of(part, self.gpu, self.early)
            rows.append((int(s["channel"]), int(s["phase"]), part, moves, limit))
        delays = (self.start_ns, (self.send_ns, self.gap_ns, *self.local), self.early)
        self.programs.append((rows, window, delays))
        return len(self.programs) - 1

    def add_rank(self, rank, kind, delay_ns, program, communicator, dep_indptr, deps, host=0):
        nodes = []
        for i in range(len(kind)):
            parents = [int(d) for d in deps[dep_indptr[i] : dep_indptr[i + 1]]]
            nodes.append(
                (
                    int(kind[i]),
                    int(delay_ns[i]),
                    int(program[i]),
                    int(communicator[i]),
                    set(parents),
                )
            )
        self.ranks[int(rank)] = (nodes, host)

    def set_network(
        self, table, rate, latency_ns, path_indptr, path, cts_latency_ns=-1, events=(), names=None
    ):
        self.capacity = [Fraction(float(r)) for r in rate]
        self.link_events = sorted(
            (int(t), i, int(link), Fraction(float(r))) for i, (t, link, r) in enumerate(events)
        )
        for i, row in enumerate(table):
            key = (
                int(row["communicator"]),
                int(row["channel"]),
                int(row["src"]),
                int(row["dst"]),
                int(row["index"]),
            )
            links = [int(x) for x in path[path_indptr[i] : path_indptr[i + 1]]]
            latency = sum(int(latency_ns[x]) for x in links)
            cts = latency if cts_latency_ns < 0 else cts_latency_ns
            self.wires[key] = Wire(i, links, latency, cts)

    def run(self, iterations=1, warmup=0, time_scale=1.0):
        self.now = 0
        self.time_scale = time_scale
        self.last = iterations - 1
        self.ops = {}
        self.arrivals = []  # (time, connection key)
        self.state = {}
        self.status = "done"
        for rank, (nodes, _) in self.ranks.items():
            self.state[rank] = {"iteration": -warmup, "left": None}
            if nodes:
                self.begin(rank)
        while True:
            self.settle()
            if all(s["left"] is None for s in self.state.values()) and not any(
                len(w.queue) > w.completed for w in self.wires.values()
            ):
                return "done"
            t = self.next_time()
            if t is None:
                return "stalled"
            self.advance(t)

    # -- the graph ------------------------------------------------------------------

    def begin(self, rank):
        nodes, _ = self.ranks[rank]
        s = self.state[rank]
        s["left"] = set(range(len(nodes)))
        s["ended"] = set()
        s["timers"] = {}
        s["collectives"] = {}
        s["started"] = set()

    def node_key(self, rank, node):
        return (rank, node, self.state[rank]["iteration"])

    def start_nodes(self, rank):
        s = self.state[rank]
        changed = False
        for node in sorted(s["left"] - s["started"]):
            kind, delay, program, communicator, parents = self.ranks[rank][0][node]
            if not parents <= s["ended"]:
                continue
            changed = True
            s["started"].add(node)
            self.ops[self.node_key(rank, node)] = [self.now, self.now, -1]
            wait = math.floor(delay * self.time_scale + 0.5)
            if kind == 1 and wait > 0:
                s["timers"][node] = self.now + wait
            elif kind == 2 and program >= 0 and self.programs[program][0]:
                s["collectives"][node] = self.open_collective(program, communicator)
            else:
                self.end(rank, node)
        return changed

    def end(self, rank, node):
        s = self.state[rank]
        self.ops[self.node_key(rank, node)][2] = self.now
        s["left"].discard(node)
        s["ended"].add(node)

    def open_collective(self, program, communicator):
        rows, window, (start_ns, delays, early) = self.programs[program]
        channels = {}
        for channel, phase, part, moves, limit in rows:
            stream = Stream(part, moves, limit)
            channels.setdefault(channel, {}).setdefault(phase, []).append(stream)
        return {
            "communicator": communicator,
            "window": window,
            "from": self.now + start_ns,
            "delays": delays,
            "early": early,
            "channels": {
                c: [[p, streams] for p, streams in sorted(phases.items())]
                for c, phases in channels.items()
            },
            "begun": set(),
        }

    # -- streams ----------------------------------------------------------------------

    def wire(self, rank, communicator, channel, op):
        other = self.members[communicator][op["peer"]]
        ends = (rank, other) if op["kind"] == 0 else (other, rank)
        key = (communicator, channel, *ends, op["conn"])
        if key not in self.wires:
            self.wires[key] = Wire(None)
        return key, self.wires[key]

    def run_collective(self, rank, coll):
        changed = False
        if self.now < coll["from"]:
            return changed
        for channel, phases in coll["channels"].items():
            while phases:
                streams = phases[0][1]
                for s in streams:
                    changed |= self.run_stream(rank, coll, channel, s)
                if all(s.at == len(s.ops) for s in streams):
                    phases.pop(0)
                    changed = True
                else:
                    break
        return changed

    def run_stream(self, rank, coll, channel, s):
        changed = False
        where = (coll["communicator"], channel)
        if id(s) not in coll["begun"]:
            coll["begun"].add(id(s))
            changed = True
            for k, op in enumerate(s.ops):
                key, w = self.wire(rank, *where, op)
                if op["kind"] == 0:
                    w.delays = coll["delays"]
                elif not op["peek"]:
                    s.upcoming.setdefault(key, []).append(k)
        changed |= self.announce(coll, s)
        while s.at < len(s.ops):
            op = s.ops[s.at]
            first, last, gpu_ns, *whole = s.moves[s.at]
            early = coll["early"]
            _, w = self.wire(rank, *where, op)
            if op["kind"] == 0:
                inside = len(w.queue) - w.completed
                full = w.send_steps + op["steps"] > coll["window"] or inside >= s.limit
                if inside and full and not (early and s.resume is not None):
                    return changed
            elif w.completed == w.taken and s.resume is None:
                return changed
            if gpu_ns and not s.gpu_done and not early:
                if s.resume is None:
                    s.resume = self.now + gpu_ns
                    changed = True
                if s.resume > self.now:
                    return changed
                s.gpu_done = True
            if early and s.resume is not None:
                pass  # done before the GPU time
            elif op["kind"] == 0:
                ready = self.now + (0 if w.path is None else coll["delays"][0])
                if early and w.path is not None:
                    ready += whole[0]
                w.queue.append([op["nbytes"], op["steps"], None, None, ready])
                w.send_steps += op["steps"]
            elif not op["peek"]:
                w.taken += 1
            if early and gpu_ns:
                if s.resume is None:
                    s.resume = self.now + gpu_ns
                    changed = True
                if s.resume > self.now:
                    return changed
            s.resume = None
            s.gpu_done = False
            if last:
                for k in range(first, s.at + 1):
                    if s.ops[k]["kind"] == 1 and not s.ops[k]["peek"]:
                        used = self.wire(rank, *where, s.ops[k])[1]
                        used.recv_steps -= s.ops[k]["steps"]
                        used.recv_count -= 1
                self.announce(coll, s)
            s.at += 1
            changed = True
        return changed

    def announce(self, coll, s):
        changed = False
        for key, todo in s.upcoming.items():
            w = self.wires[key]
            while todo:
                op = s.ops[todo[0]]
                full = w.recv_steps + op["steps"] > coll["window"] or w.recv_count >= s.limit
                if w.recv_count and full:
                    break
                w.recv_steps += op["steps"]
                w.recv_count += 1
                w.announced.append([op["nbytes"], self.now + w.cts_latency, self.now])
                todo.pop(0)
                changed = True
        return changed

    # -- the network --------------------------------------------------------------------

    def post(self, key, w):
        changed = False
        while w.posted < len(w.queue) and w.posted < len(w.announced):
            message = w.queue[w.posted]
            if max(w.announced[w.posted][1], message[4]) > self.now:
                break
            assert message[0] == w.announced[w.posted][0]
            message[2] = self.now
            w.posted += 1
            changed = True
            if w.path is None:
                start = max(self.now, w.busy_until)
                _, _, latency, rate = w.delays
                if rate:
                    start += whole_ns(Fraction(message[0]) / Fraction(rate))
                w.busy_until = start
                self.arrivals.append((start + latency, key))
        waits = w.remaining is None and w.onwire < w.posted
        if w.path is not None and waits and self.now >= w.idle_until:
            down = any(self.capacity[x] == 0 for x in w.path)
            w.remaining = Fraction(w.queue[w.onwire][0])
            if w.remaining == 0 and not down:
                self.leave(key, w)
            changed = True
        return changed

    def leave(self, key, w):
        """The message on the wire is out; the next one follows."""
        over = w.remaining
        w.remaining = None
        if w.queue[w.onwire][0]:
            w.idle_until = self.now + w.delays[1]
        w.onwire += 1
        self.arrivals.append((self.now + w.latency, key))
        if w.onwire < w.posted and w.idle_until <= self.now:
            message = w.queue[w.onwire]
            w.remaining = Fraction(message[0]) + (over if message[2] < self.now else 0)

    def rates(self):
        flows = {k: w.path for k, w in self.wires.items() if w.remaining is not None}
        return fair_rates(flows, self.capacity)

    def settle(self):
        """Everything that happens now."""
        while True:
            changed = False
            rates = self.rates()
            for key, rate in rates.items():
                w = self.wires[key]
                while w.remaining is not None and rate and whole_ns(w.remaining / rate) == 0:
                    self.leave(key, w)
                    changed = True
            due = [a for a in self.arrivals if a[0] <= self.now]
            if due:
                changed = True
                self.arrivals = [a for a in self.arrivals if a[0] > self.now]
                for _, key in due:
                    w = self.wires[key]
                    message = w.queue[w.completed]
                    message[3] = self.now
                    w.completed += 1
                    w.send_steps -= message[1]
            for rank, s in self.state.items():
                if s["left"] is None:
                    continue
                for node, t in list(s["timers"].items()):
                    if t <= self.now:
                        del s["timers"][node]
                        self.end(rank, node)
                        changed = True
                changed |= self.start_nodes(rank)
                for node, coll in list(s["collectives"].items()):
                    changed |= self.run_collective(rank, coll)
                    if not any(coll["channels"].values()):
                        del s["collectives"][node]
                        self.end(rank, node)
                        changed = True
                if not s["left"]:
                    if s["iteration"] < self.last:
                        s["iteration"] += 1
                        self.begin(rank)
                    else:
                        s["left"] = None
                    changed = True
            for key, w in self.wires.items():
                changed |= self.post(key, w)
            if not changed:
                return

    def next_time(self):
        times = [a[0] for a in self.arrivals]
        times += [e[0] for e in self.link_events]
        for s in self.state.values():
            if s["left"] is None:
                continue
            times += s["timers"].values()
            for coll in s["collectives"].values():
                if coll["from"] > self.now:
                    times.append(coll["from"])
                    continue
                for phases in coll["channels"].values():
                    for _, streams in phases[:1]:
                        times += [x.resume for x in streams if x.resume is not None]
        for key, rate in self.rates().items():
            if rate:
                times.append(self.now + whole_ns(self.wires[key].remaining / rate))
        for w in self.wires.values():
            if w.posted < min(len(w.queue), len(w.announced)):
                times.append(max(w.announced[w.posted][1], w.queue[w.posted][4]))
            if w.onwire < w.posted and w.remaining is None and w.path is not None:
                times.append(w.idle_until)
        return min(times, default=None)

    def advance(self, t):
        rates = self.rates()
        for key, rate in rates.items():
            self.wires[key].remaining -= rate * (t - self.now)
        self.now = t
        for key, rate in rates.items():  # what is out at t is out before a link changes at t
            w = self.wires[key]
            while w.remaining is not None and rate and whole_ns(w.remaining / rate) == 0:
                self.leave(key, w)
        while self.link_events and self.link_events[0][0] <= t:
            _, _, link, rate = self.link_events.pop(0)
            self.capacity[link] = rate
