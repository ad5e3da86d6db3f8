"""Programs and cases for the engine's tests, made from plain descriptions."""

from __future__ import annotations

import random

import numpy as np

from genie._core.engine import CONN, NETWORK_EVENT, OP, STREAM, Engine
from genie._core.links import nic_links

SEND, RECV, PEEK = 0, 1, 2


def program(streams):
    """`STREAM` and `OP` arrays from [(channel, group, phase, [op, ...])].

    An op is (kind, peer, nbytes[, call[, steps[, conn]]]) with kind SEND, RECV or PEEK.
    """
    rows, ops = [], []
    for channel, group, phase, part in streams:
        rows.append((channel, group, 0, phase, len(ops), len(part)))
        for kind, peer, nbytes, *more in part:
            call, steps, conn = (*more, *(0, 1, 0)[len(more) :])
            ops.append((peer, nbytes, call, kind > 0, kind == PEEK, steps, conn))
    return np.array(rows, dtype=STREAM), np.array(ops, dtype=OP)


def ring_all_reduce(n, index, nbytes, loops=1, channels=(0,), steps=1):
    """The ops of rank `index` of a ring of n (spec 3.3), one message a call."""
    following, previous = (index + 1) % n, (index - 1) % n
    streams = []
    for channel in channels:
        part, call = [], 0
        for _ in range(loops):
            part.append((SEND, following, nbytes, call, steps))
            for _ in range(2 * (n - 1) - 1):
                call += 1
                part.append((RECV, previous, nbytes, call, steps))
                part.append((SEND, following, nbytes, call, steps))
            part.append((RECV, previous, nbytes, call + 1, steps))
            call += 2
        streams.append((channel, 0, 0, part))
    return program(streams)


def add_graph(target, rank, nodes, host=0):
    """Adds a rank from [(kind, delay_ns, program, communicator, [parents])]."""
    indptr = np.zeros(len(nodes) + 1, np.int64)
    indptr[1:] = np.cumsum([len(n[4]) for n in nodes])
    deps = [d for n in nodes for d in n[4]]
    columns = [[n[k] for n in nodes] for k in range(4)]
    target.add_rank(
        rank,
        np.array(columns[0], np.uint8),
        np.array(columns[1], np.int64),
        np.array(columns[2], np.int32),
        np.array(columns[3], np.int32),
        indptr,
        np.array(deps, np.uint32),
        host=host,
    )


def chain(n):
    """Dependencies of a chain: each node waits for the one before it."""
    return [[] if i == 0 else [i - 1] for i in range(n)]


def ring_engine(
    n,
    nbytes,
    *,
    loops=1,
    channels=(0,),
    window=8,
    nodes=1,
    rate=50.0,
    latency_ns=1000,
    steps=1,
    prepare=lambda net: None,
    events=None,
):
    """n ranks on n hosts, `nodes` ring all_reduces one after the other, virtual clock."""
    e = Engine(clock="virtual")
    c = e.add_communicator(np.arange(n))
    for r in range(n):
        p = e.add_program(*ring_all_reduce(n, r, nbytes, loops, channels, steps), window=window)
        add_graph(e, r, [(2, 0, p, c, d) for d in chain(nodes)], host=r)
    table = np.array(
        [(r, (r + 1) % n, c, ch, 0, 0, 0, -1) for ch in channels for r in range(n)], dtype=CONN
    )
    e.add_connections(table)
    net = nic_links(table, list(range(n)), rate, latency_ns)
    prepare(net)
    e.set_network(**net, events=events)
    return e


class Case:
    """A random case: graphs and programs that fit together and cannot deadlock.

    All messages of a collective have one global order, all collectives of the run
    too; each rank does its part of both in that order, so somebody can always go on.
    """

    def __init__(self, seed, *, failures=False):
        r = self.random = random.Random(seed)
        self.n = r.randint(2, 5)
        self.hosts = [r.randrange(r.randint(1, self.n)) for _ in range(self.n)]
        self.gpu = r.choice([(0, 0, 0), (0, 0, 0), (7, 3.0, 2.5), (0, 4.0, 0), (100, 0, 0)])
        self.delays = r.choice(
            [(0, 0, 0), (0, 0, 0), (11, 0, 0), (0, 70, 0), (0, 0, 900), (3, 40, 25)]
        )
        self.early = r.random() < 0.3
        self.receive = r.choice([None, None, 0, 5.0])
        self.gap = r.choice([0, 0, 64, 1001])
        self.local = r.choice([(0, 0), (0, 0), (50, 0), (300, 8.0), (0, 2.0)])
        self.iterations = r.choice([1, 1, 2])
        self.warmup = r.choice([0, 0, 1])
        self.time_scale = r.choice([1.0, 1.0, 0.5, 3.0])
        self.communicators = [list(range(self.n))]
        for _ in range(r.randint(0, 2)):
            members = r.sample(range(self.n), r.randint(2, self.n))
            self.communicators.append(members)
        self.collectives = []  # (communicator, {rank: program or None})
        self.programs = []  # (streams, ops, window)
        self.used = set()
        for _ in range(r.randint(1, 3)):
            self.collectives.append(self.collective())
        self.order = [r.randrange(len(self.collectives)) for _ in range(r.randint(1, 6))]
        self.graphs = {rank: self.graph(rank) for rank in range(self.n)}
        self.network(failures)

    def collective(self):
        r = self.random
        communicator = r.randrange(len(self.communicators))
        members = self.communicators[communicator]
        window = r.choice([1, 2, 3, 8])
        parts = {rank: {} for rank in members}
        calls = {rank: 0 for rank in members}
        phases = r.choice([1, 1, 2, 3])
        for channel in r.sample(range(4), r.randint(1, 2)):
            groups = {}
            for phase in range(phases):
                for _ in range(r.randint(0, 14)):
                    src, dst = r.sample(range(len(members)), 2)
                    group = groups.setdefault((src, dst), r.randrange(2))
                    nbytes = r.choice([0, 1, 7, 512, 4096, 65536, r.randint(0, 300_000)])
                    steps = r.choice([1, 1, 2])
                    for kind, me, peer in ((SEND, src, dst), (RECV, dst, src)):
                        rank = members[me]
                        calls[rank] += r.random() < 0.6
                        part = parts[rank].setdefault((channel, group, phase), [])
                        if kind == RECV and r.random() < 0.2:
                            part.append((PEEK, peer, 0, calls[rank]))
                        part.append((kind, peer, nbytes, calls[rank], steps))
                    self.used.add((communicator, channel, members[src], members[dst]))
        programs = {}
        for rank in members:
            streams = [(c, g, p, part) for (c, g, p), part in parts[rank].items()]
            r.shuffle(streams)
            programs[rank] = len(self.programs)
            arrays = program(streams)
            windows = [r.choice([1, 2, 3, 8]) for _ in streams] if r.random() < 0.3 else None
            self.programs.append((*arrays, window, windows))
        return communicator, programs

    def graph(self, rank):
        r = self.random
        nodes, last = [], {}
        for c in self.order:
            for _ in range(r.randint(0, 4)):
                parents = r.sample(range(len(nodes)), min(len(nodes), r.randint(0, 3)))
                if parents and r.random() < 0.2:
                    parents.append(parents[0])  # a duplicate counts once
                delay = r.choice([0, 1, 250, 10_000, r.randint(0, 100_000)])
                nodes.append((r.randint(0, 1), delay, -1, -1, parents))
            communicator, programs = self.collectives[c]
            if rank not in programs:
                continue
            parents = set(r.sample(range(len(nodes)), min(len(nodes), r.randint(0, 2))))
            if communicator in last:
                parents.add(last[communicator])
            last[communicator] = len(nodes)
            nodes.append((2, 0, programs[rank], communicator, sorted(parents)))
        return self.shuffled(nodes)

    def shuffled(self, nodes):
        """The same graph with its nodes in another order: children before parents too."""
        order = list(range(len(nodes)))
        if self.random.random() < 0.5:
            self.random.shuffle(order)
        place = {old: new for new, old in enumerate(order)}
        return [(*nodes[old][:4], [place[d] for d in nodes[old][4]]) for old in order]

    def network(self, failures):
        r = self.random
        rows = [
            (s, d, c, ch, 0, r.randrange(2), r.randrange(2), -1)
            for c, ch, s, d in sorted(self.used)
            if self.hosts[s] != self.hosts[d]
        ]
        self.table = np.array(rows, dtype=CONN)
        net = nic_links(self.table, self.hosts, 12.5, 500)
        n_links = len(net["rate"])
        net["rate"][:] = [r.choice([0.5, 1.0, 3.0, 12.5, 25.0, 50.0]) for _ in range(n_links)]
        net["latency_ns"][:] = [r.choice([0, 0, 10, 999, 5000]) for _ in range(n_links)]
        # One more link that some of the paths share.
        shared = [r.random() < 0.3 for _ in rows]
        path, indptr = [], [0]
        for i in range(len(rows)):
            path += [int(x) for x in net["path"][2 * i : 2 * i + 2]] + [n_links] * shared[i]
            indptr.append(len(path))
        net["rate"] = np.append(net["rate"], r.choice([1.0, 7.0, 40.0]))
        net["latency_ns"] = np.append(net["latency_ns"], r.choice([0, 77]))
        net["path"] = np.array(path, np.int32)
        net["path_indptr"] = np.array(indptr, np.int64)
        net["names"].append("spine")
        net["cts_latency_ns"] = r.choice([-1, -1, 0, 1234])
        events = [
            (
                r.randint(0, 300_000),
                r.randrange(n_links + 1),
                0.0 if failures and r.random() < 0.5 else r.choice([0.25, 2.0, 30.0]),
            )
            for _ in range(r.choice([0, 0, 1, 3]) + failures)
        ]
        net["events"] = np.array(sorted(events), dtype=NETWORK_EVENT)
        self.net = net

    def fill(self, target, *, network=True):
        """Gives the case to an Engine or to the reference."""
        for members in self.communicators:
            target.add_communicator(members)
        call_ns, copy, reduce = self.gpu
        move_ns, start_ns, send_ns = self.delays
        for i, (streams, ops, window, windows) in enumerate(self.programs):
            # Every other program has other delays, so that connections change theirs.
            target.set_gpu(
                call_ns=call_ns, copy_bytes_per_ns=copy, reduce_bytes_per_ns=reduce,
                receive_bytes_per_ns=self.receive, move_ns=move_ns, start_ns=start_ns,
                send_ns=send_ns * (i % 2), early=self.early, gap_ns=self.gap * (i % 2),
            )  # fmt: skip
            target.set_local(latency_ns=self.local[0] + i % 2, bytes_per_ns=self.local[1])
            target.add_program(streams, ops, window, windows=windows)
        for rank, nodes in self.graphs.items():
            add_graph(target, rank, nodes, host=self.hosts[rank])
        return target

    def engine(self):
        e = Engine(clock="virtual")
        self.fill(e)
        e.add_connections(self.table)
        e.set_network(**self.net)
        return e
