# The part of the engine around a run: preparation, the run itself, results.

@cython.final
cdef class Engine(_Setup):
    """Runs graphs and programs of the ranks of one worker, or of all ranks on a virtual clock.

    Args:
        clock: "wall" (replay) or "virtual" (simulate).
    """

    cdef int prepare(
        self, int iterations, int warmup, object ops_limit, object messages_limit, bint joint,
        object logged,
    ) except -1:
        cdef Core* e = self.e
        cdef uint32_t i, j, n, slot
        cdef RankS* r
        cdef BindT* b
        cdef ProgramT* p
        cdef Conn* c
        cdef const int64_t[::1] pairs
        cdef const uint8_t[::1] kinds
        cdef const int64_t[::1] delays
        cdef uint32_t[::1] of_node
        cdef uint32_t window = 8
        cdef uint64_t messages = 0
        e.n_ranks = len(self.ranks_in)
        e.ranks = <RankS*> self.alloc(e.n_ranks * sizeof(RankS))
        self.take_table()
        # Bindings: one for each (rank, program, communicator) in use.
        binds = []
        for i in range(e.n_ranks):
            rank, n_nodes, kind, delay, pair, degree, child_ptr, children = self.ranks_in[i]
            n = n_nodes
            r = &e.ranks[i]
            r.rank = rank
            r.host = self.hosts[i]
            r.n = n
            r.degree = <uint32_t*> <uint64_t> degree
            r.child_ptr = <int64_t*> <uint64_t> child_ptr
            r.children = <uint32_t*> <uint64_t> children
            r.pending = <uint32_t*> self.alloc(n * sizeof(uint32_t))
            r.row = <uint32_t*> self.alloc(n * sizeof(uint32_t))
            r.iteration = -warmup
            r.logged = logged is None or rank in logged
            if n == 0:
                continue
            kinds = kind
            delays = delay
            r.kind = <uint8_t*> &kinds[0]
            r.delay = <int64_t*> &delays[0]
            unique, inverse, uses = np.unique(pair, return_inverse=True, return_counts=True)
            numbers = np.full(len(unique), NONE32, dtype=np.uint32)
            for j in range(len(unique)):
                if unique[j] >= 0:
                    numbers[j] = len(binds)
                    program = int(unique[j]) & 0xFFFFFFFF
                    binds.append((i, program, int(unique[j]) >> 32))
                    messages += <uint64_t> uses[j] * self.e.programs[program].n_messages
            node_binds = numbers[inverse.reshape(-1)]
            self.keep.append(node_binds)
            of_node = node_binds
            r.bind = &of_node[0]
        e.binds = <BindT*> self.alloc(len(binds) * sizeof(BindT))
        for i in range(len(binds)):
            rank_i, program, communicator = binds[i]
            b = &e.binds[i]
            b.program = program
            b.communicator = communicator
            p = &e.programs[b.program]
            if p.window > window:
                window = p.window
            b.conns = <uint32_t*> self.alloc(p.n_slots * sizeof(uint32_t))
            self.bind(b, <uint32_t> rank_i)
        self.make_rings(window)
        self.make_network()
        for i in range(len(binds)):
            e.binds[i].joint = NONE32
        if joint:
            self.make_joints(binds)
        # The graph and the log.
        cdef uint64_t nodes = 0
        cdef uint64_t rows = 0
        for i in range(e.n_ranks):
            nodes += e.ranks[i].n
            rows += e.ranks[i].n if e.ranks[i].logged else 0
        self.total_nodes = nodes * (iterations + warmup)
        rows *= iterations + warmup
        e.nodes_left = self.total_nodes
        e.last_iteration = iterations - 1
        e.warmup = warmup
        e.steps = <Step*> self.alloc((iterations + warmup) * sizeof(Step))
        for i in range(<uint32_t> (iterations + warmup)):
            e.steps[i].start_ns = -1
            e.steps[i].end_ns = -1
        e.ready_mask = 1023
        e.ready = <uint64_t*> malloc(1024 * sizeof(uint64_t))
        if e.ready == NULL:
            raise MemoryError()
        messages *= iterations + warmup
        e.ops_cap = min(rows, OPS_LIMIT if ops_limit is None else max(0, ops_limit))
        e.ops_cap = min(e.ops_cap, <uint64_t> NONE32)
        e.messages_cap = min(
            messages, MESSAGES_LIMIT if messages_limit is None else max(0, messages_limit)
        )
        e.messages_cap = min(e.messages_cap, <uint64_t> NONE32)
        self.ops_area = _LogArea(e.ops_cap * sizeof(OpRow))
        self.messages_area = _LogArea(e.messages_cap * sizeof(MessageRow))
        e.ops = <OpRow*> self.ops_area.data
        e.messages = <MessageRow*> self.messages_area.data
        return 0

    cdef int make_joints(self, list binds) except -1:
        """Sets up the joint communicators whose messages stay inside hosts."""
        cdef Core* e = self.e
        cdef JointC* j
        cdef BindT* b
        cdef ProgramT* p
        cdef uint32_t i, n, slot
        use = {}
        for i in range(len(binds)):
            if self.joint[binds[i][2]][0]:
                use.setdefault(binds[i][2], []).append(i)
        e.joints = <JointC*> self.alloc(len(use) * sizeof(JointC))
        for communicator, rows in use.items():
            members = self.members[communicator]
            place = {int(rank): i for i, rank in enumerate(members)}
            local = len({binds[i][0] for i in rows}) == len(members) > 1
            for i in rows:
                b = &e.binds[i]
                p = &e.programs[b.program]
                local = local and p.n_slots > 0
                for slot in range(p.n_slots):
                    local = local and e.conns[b.conns[slot]].kind == LOCAL
            together = not local and self.joint[communicator][1] and len(members) > 1
            if not (local or together):
                continue
            if together and len({binds[i][0] for i in rows}) < len(members):
                raise InputError(f"communicator {communicator}: a rank of it does nothing on it")
            for i in rows:
                e.binds[i].joint = e.n_joints
                e.binds[i].member = place[e.ranks[<uint32_t> binds[i][0]].rank]
            j = &e.joints[e.n_joints]
            e.n_joints += 1
            n = len(members)
            j.n = n
            j.together = together
            j.here = <uint8_t*> self.alloc(n)
            j.sequence = <uint32_t*> self.alloc(n * sizeof(uint32_t))
            self.make_set(&j.now, n)
            self.make_set(&j.before, n)
        return 0

    cdef int make_set(self, JointSet* s, uint32_t n) except -1:
        s.binds = <BindT**> self.alloc(n * sizeof(BindT*))
        s.ranks = <uint32_t*> self.alloc(n * sizeof(uint32_t))
        s.nodes = <uint32_t*> self.alloc(n * sizeof(uint32_t))
        s.rows = <uint32_t*> self.alloc(n * sizeof(uint32_t))
        s.starts = <int64_t*> self.alloc(n * sizeof(int64_t))
        s.ends = <int64_t*> self.alloc(n * sizeof(int64_t))
        return 0

    cdef int take_table(self) except -1:
        """Makes a Conn of each row of the table; `rank_of` is -1 for ranks elsewhere."""
        cdef Core* e = self.e
        cdef uint32_t i
        cdef int32_t top = -1
        cdef int32_t low = 0
        cdef int32_t[::1] rank_of
        cdef const int32_t[::1] src, dst, communicator
        cdef const uint16_t[::1] channel
        cdef const uint8_t[::1] index
        cdef const uint32_t[::1] ids
        for m in self.members:
            top, low = max(top, m.max()), min(low, m.min())
        t = np.zeros(0, CONN) if self.table is None else self.table
        for name in ("src", "dst"):
            if len(t):
                top, low = max(top, t[name].max()), min(low, t[name].min())
        for rank in self.rank_index:
            top, low = max(top, rank), min(low, rank)
        if low < 0:
            raise InputError(f"rank {low} is negative")
        self.rank_of = np.full(top + 1, -1, dtype=np.int32)
        self.rank_of[list(self.rank_index)] = list(self.rank_index.values())
        rank_of = self.rank_of
        src = np.ascontiguousarray(t["src"])
        dst = np.ascontiguousarray(t["dst"])
        communicator = np.ascontiguousarray(t["communicator"])
        channel = np.ascontiguousarray(t["channel"])
        index = np.ascontiguousarray(t["index"])
        ids = np.zeros(0, np.uint32) if self.ids is None else self.ids
        self.hash_size = 64
        while self.hash_size < 4 * <uint64_t> len(t):
            self.hash_size *= 2
        self.hash = <uint32_t*> malloc(self.hash_size * sizeof(uint32_t))
        if self.hash == NULL:
            raise MemoryError()
        memset(self.hash, 0xFF, self.hash_size * sizeof(uint32_t))
        for i in range(len(t)):
            if rank_of[src[i]] < 0 and rank_of[dst[i]] < 0:
                raise InputError(f"connection {i}: neither rank {src[i]} nor {dst[i]} is here")
            if self.find(communicator[i], channel[i], src[i], dst[i], index[i]) != NONE32:
                raise InputError(
                    f"connections {self.found} and {i} are the same: rank {src[i]} to {dst[i]}, "
                    f"communicator {communicator[i]}, channel {channel[i]}, index {index[i]}"
                )
            self.add_conn(
                <int32_t> ids[i], communicator[i], channel[i], src[i], dst[i], index[i]
            )
        return 0

    cdef uint64_t place(
        self, int32_t communicator, uint32_t channel, int32_t src, int32_t dst, uint32_t index
    ) noexcept:
        """Where a key is, or would go, in the hash."""
        cdef uint64_t at = (<uint64_t> <uint32_t> communicator << 32) ^ (channel << 8) ^ index
        cdef Conn* c
        at = (at ^ (at >> 29)) * <uint64_t> 0xBF58476D1CE4E5B9
        at += (<uint64_t> <uint32_t> src << 32) | <uint32_t> dst
        at = (at ^ (at >> 30)) * <uint64_t> 0x94D049BB133111EB
        at ^= at >> 31
        while True:
            at &= self.hash_size - 1
            if self.hash[at] == NONE32:
                return at
            c = &self.e.conns[self.hash[at]]
            if (
                c.src == src and c.dst == dst and c.communicator == communicator
                and c.channel == channel and c.index == index
            ):
                return at
            at += 1

    cdef uint32_t find(
        self, int32_t communicator, uint32_t channel, int32_t src, int32_t dst, uint32_t index
    ) noexcept:
        self.found = self.hash[self.place(communicator, channel, src, dst, index)]
        return self.found

    cdef uint32_t add_conn(
        self, int32_t ident, int32_t communicator, uint32_t channel, int32_t src, int32_t dst,
        uint32_t index,
    ) except? 0xFFFFFFFF:
        cdef Core* e = self.e
        cdef Conn* c
        cdef void* grown
        cdef uint32_t i
        if e.n_conns == self.conns_cap:
            self.conns_cap = 2 * self.conns_cap + 64
            grown = realloc(e.conns, self.conns_cap * sizeof(Conn))
            if grown == NULL:
                raise MemoryError()
            e.conns = <Conn*> grown
        c = &e.conns[e.n_conns]
        memset(c, 0, sizeof(Conn))
        c.id = ident
        c.communicator = communicator
        c.channel = <uint16_t> channel
        c.src = src
        c.dst = dst
        c.index = <uint8_t> index
        c.r_next = NONE32
        c.cls = NONE32
        c.last_ns = -1
        e.n_conns += 1
        if 2 * <uint64_t> e.n_conns > self.hash_size:
            self.hash_size *= 2
            grown = realloc(self.hash, self.hash_size * sizeof(uint32_t))
            if grown == NULL:
                raise MemoryError()
            self.hash = <uint32_t*> grown
            memset(self.hash, 0xFF, self.hash_size * sizeof(uint32_t))
            for i in range(e.n_conns - 1):
                c = &e.conns[i]
                self.hash[self.place(c.communicator, c.channel, c.src, c.dst, c.index)] = i
        self.hash[self.place(communicator, channel, src, dst, index)] = e.n_conns - 1
        return e.n_conns - 1

    cdef int bind(self, BindT* b, uint32_t rank_index) except -1:
        """Finds the connection of each slot of a program on a rank; makes local ones."""
        cdef Core* e = self.e
        cdef ProgramT* p = &e.programs[b.program]
        cdef RankS* r = &e.ranks[rank_index]
        cdef const int32_t[::1] members = self.members[b.communicator]
        cdef const int32_t[::1] rank_of = self.rank_of
        cdef uint32_t slot, row
        cdef int32_t src, dst, other, here
        cdef SlotT* k
        cdef uint32_t n = len(members)
        where = f"rank {r.rank}, program {b.program} on communicator {b.communicator}"
        if r.rank not in self.members[b.communicator]:
            raise ScheduleError(f"{where}: the rank is not in the communicator")
        b.conns = <uint32_t*> self.alloc(p.n_slots * sizeof(uint32_t))
        for slot in range(p.n_slots):
            k = &p.slots[slot]
            if k.peer < 0 or <uint32_t> k.peer >= n:
                raise ScheduleError(f"{where}: peer {k.peer} of {n}")
            other = members[k.peer]
            src = other if k.receives else r.rank
            dst = r.rank if k.receives else other
            row = self.find(b.communicator, k.channel, src, dst, k.index)
            if row == NONE32:
                here = rank_of[other]
                if here < 0 or e.ranks[here].host != r.host:
                    raise ScheduleError(
                        f"{where}: no connection from rank {src} to rank {dst} on channel "
                        f"{k.channel}, index {k.index}"
                    )
                row = self.add_conn(-1, b.communicator, k.channel, src, dst, k.index)
            b.conns[slot] = row
        return 0

    cdef int make_rings(self, uint32_t window) except -1:
        """FIFO rings of all connections, in two pieces of memory, touched as they are used."""
        cdef Core* e = self.e
        cdef uint32_t i
        cdef uint64_t cap = 1
        cdef Conn* c
        cdef SentM* sent
        cdef RecvM* recv
        cdef const int32_t[::1] rank_of = self.rank_of
        cdef const uint32_t[::1] ids
        cdef uint64_t n_sent = 0
        cdef uint64_t n_recv = 0
        while cap < window:
            cap *= 2
        for i in range(e.n_conns):
            c = &e.conns[i]
            c.mask = <uint32_t> (cap - 1)
            c.sent_here = rank_of[c.src] >= 0
            c.recv_here = rank_of[c.dst] >= 0
            n_sent += c.sent_here
            n_recv += c.recv_here
            if c.id < 0:
                c.kind = LOCAL
            elif e.virtual_clock:
                c.kind = SIMULATED
                if not (c.sent_here and c.recv_here):
                    raise InputError(
                        f"connection {c.id}: ranks {c.src} and {c.dst} must both be simulated"
                    )
            else:
                c.kind = TRANSPORT
                if e.net == NULL:
                    raise InputError(f"connection {c.id} needs a transport and none is set")
        sent = <SentM*> self.alloc(n_sent * cap * sizeof(SentM))
        recv = <RecvM*> self.alloc(n_recv * cap * sizeof(RecvM))
        for i in range(e.n_conns):
            c = &e.conns[i]
            if c.sent_here:
                c.sent = sent
                sent += cap
            if c.recv_here:
                c.recv = recv
                recv += cap
        e.retry = <uint32_t*> self.alloc(e.n_conns * sizeof(uint32_t))
        if self.ids is not None and len(self.ids):
            ids = self.ids
            e.n_ids = int(self.ids.max()) + 1
            e.conn_of_id = <uint32_t*> self.alloc(e.n_ids * sizeof(uint32_t))
            memset(e.conn_of_id, 0xFF, e.n_ids * sizeof(uint32_t))
            for i in range(len(self.ids)):
                e.conn_of_id[ids[i]] = i
        return 0

    cdef int make_network(self) except -1:
        cdef Core* e = self.e
        cdef uint32_t i, j
        cdef ClassS* k
        if not e.virtual_clock or self.table is None or len(self.table) == 0:
            return 0
        if self.network is None:
            raise InputError("connections between hosts need a network: call set_network")
        rate, latency, ptr, path, cts_latency, events = self.network
        e.n_links = len(rate)
        e.links = <LinkS*> self.alloc(e.n_links * sizeof(LinkS))
        for i in range(e.n_links):
            e.links[i].rate = rate[i]
        which, paths, counts = _path_classes(ptr, path)
        cdef const int64_t[::1] of_row = which
        for i in range(len(self.table)):
            e.conns[i].cls = <uint32_t> of_row[i]
        e.n_classes = len(paths)
        e.classes = <ClassS*> self.alloc(e.n_classes * sizeof(ClassS))
        total = sum(len(part) for part in paths)
        cdef int32_t* links = <int32_t*> self.alloc((<uint64_t> total) * sizeof(int32_t))
        cdef uint32_t* spots = <uint32_t*> self.alloc((<uint64_t> total) * sizeof(uint32_t))
        cdef Flow* flows = <Flow*> self.alloc(len(self.table) * sizeof(Flow))
        use = np.zeros(e.n_links, dtype=np.int64)
        for i in range(e.n_classes):
            part = paths[i]
            k = &e.classes[i]
            k.n_links = len(part)
            k.links = links
            k.link_pos = spots
            k.flows = flows
            links += k.n_links
            spots += k.n_links
            flows += <int64_t> counts[i]
            k.bottleneck = -1
            k.heap_pos = NONE32
            k.latency = 0
            for j in range(k.n_links):
                k.links[j] = part[j]
                k.latency += <int64_t> latency[part[j]]
                use[part[j]] += 1
            k.cts_latency = k.latency if cts_latency < 0 else cts_latency
        for i in range(e.n_links):
            e.links[i].classes = <uint32_t*> self.alloc((<uint64_t> use[i]) * sizeof(uint32_t))
        e.class_heap = <uint32_t*> self.alloc(e.n_classes * sizeof(uint32_t))
        e.dirty = <uint32_t*> self.alloc(e.n_links * sizeof(uint32_t))
        e.set_a = <uint32_t*> self.alloc(e.n_links * sizeof(uint32_t))
        e.set_l = <uint32_t*> self.alloc(e.n_links * sizeof(uint32_t))
        e.set_h = <uint32_t*> self.alloc(e.n_links * sizeof(uint32_t))
        e.set_v = <uint32_t*> self.alloc(e.n_classes * sizeof(uint32_t))
        e.n_net_events = len(events)
        e.net_events = <NetEvent*> self.alloc(e.n_net_events * sizeof(NetEvent))
        for i in range(e.n_net_events):
            e.net_events[i].t = events[i]["t_ns"]
            e.net_events[i].link = events[i]["link"]
            e.net_events[i].rate = events[i]["rate"]
        return 0

    def run(
        self, *, iterations=1, warmup=0, time_scale=1.0, watchdog_s=60.0, start_ns=None,
        spin_ns=60_000, poll_spin_ns=60_000, progress=None, ops_limit=None, messages_limit=None,
        log_messages="network", log_receives=True, log_ranks=None,
    ):
        """Runs everything once, with the GIL off.

        Args:
            iterations: How often each rank runs its graph.
            warmup: Iterations before those; logged as iterations -warmup..-1.
            time_scale: Factor on the delays.
            watchdog_s: Wall clock: seconds without progress, while nothing is due, after which the
                run is "stalled".
            start_ns: CLOCK_MONOTONIC instant that is 0 on the timeline; `run` waits for it.
            spin_ns: Last part of a wait that is spent spinning; 0 when ranks outnumber cores.
            poll_spin_ns: How long the network is polled after the last event before sleeping.
            progress: Called about every 100 ms as `progress(nodes_done, nodes_total)`.
            ops_limit: Most rows of `ops()`; rows beyond are counted in `dropped`.
            messages_limit: Most rows of `messages()`.
            log_messages: "network", "all" (local ones too) or "none".
            log_receives: Whether receives get rows too.
            log_ranks: Ranks whose nodes and messages get rows; None = all.

        Returns:
            "done", "stalled", "failed" or "aborted".

        Raises:
            InputError: Parts that do not fit together.
            ScheduleError: A program that does not fit its communicator.
            KeyboardInterrupt: Or whatever a signal handler or `progress` raised; the log is kept.
        """
        self.open()
        if iterations < 1 or warmup < 0 or not 0 <= time_scale <= 1e6:
            raise InputError("iterations >= 1, warmup >= 0 and time_scale 0 to 1e6, please")
        if log_messages not in ("network", "all", "none"):
            raise InputError(f'log_messages is "network", "all" or "none", not {log_messages!r}')
        cdef Core* e = self.e
        cdef int64_t watchdog = <int64_t> min(watchdog_s * 1e9, 9e18)
        cdef int64_t spin = spin_ns
        cdef int64_t poll_spin = poll_spin_ns
        cdef uint32_t i
        cdef int slack
        cdef rusage before, after
        cdef void* me = <void*> self
        # Messages that are logged are run one by one.
        self.prepare(
            iterations, warmup, ops_limit, messages_limit,
            e.virtual_clock and log_messages != "all",
            None if log_ranks is None else {int(rank) for rank in log_ranks},
        )
        self.started = True
        self.progress = progress
        e.time_scale = time_scale
        e.log_receives = log_receives
        e.log_some = log_ranks is not None
        for i in range(e.n_conns):
            e.conns[i].logged = log_messages == "all" or (
                log_messages == "network" and e.conns[i].kind != LOCAL
            )
        with nogil:
            slack = prctl(PR_GET_TIMERSLACK, 0)
            prctl(PR_SET_TIMERSLACK, 1)
            getrusage(RUSAGE_THREAD, &before)
        e.t0 = monotonic_ns()
        if not e.virtual_clock and start_ns is not None:
            e.t0 = start_ns
        cdef int64_t began = monotonic_ns()
        with nogil:
            if not e.virtual_clock:
                wait_for_start(e, me, spin)
            e.now = 0 if e.virtual_clock else read_clock(e)
            for i in range(e.n_net_events):
                push_event(e, e.net_events[i].t, EV_LINK, i)
            for i in range(e.n_ranks):
                if e.ranks[i].n > 0:
                    start_iteration(e, i)
            if e.status == RUNNING:
                if e.virtual_clock:
                    loop_virtual(e, me)
                else:
                    loop_wall(e, me, watchdog, spin, poll_spin)
                    if e.status == FAILED and e.net != NULL:
                        drain_failures(e)
            e.wall_ns = monotonic_ns() - began
            getrusage(RUSAGE_THREAD, &after)
            if slack > 0:
                prctl(PR_SET_TIMERSLACK, slack)
        e.cpu_user_ns = (after.ru_utime.tv_sec - before.ru_utime.tv_sec) * 1000000000
        e.cpu_user_ns += (after.ru_utime.tv_usec - before.ru_utime.tv_usec) * 1000
        e.cpu_system_ns = (after.ru_stime.tv_sec - before.ru_stime.tv_sec) * 1000000000
        e.cpu_system_ns += (after.ru_stime.tv_usec - before.ru_stime.tv_usec) * 1000
        e.voluntary = after.ru_nvcsw - before.ru_nvcsw
        e.involuntary = after.ru_nivcsw - before.ru_nivcsw
        self.finished_run = True
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        if e.joint_error:
            raise ScheduleError(
                "a collective of a joint communicator ended on a rank before all ranks started it"
            )
        if e.pending_error == ENOMEM:
            raise MemoryError("the engine ran out of memory")
        if e.pending_error != 0:
            raise TransportError(
                f"the transport failed: [Errno {e.pending_error}] {os.strerror(e.pending_error)}",
                errno=e.pending_error,
            )
        return _STATUS[e.status]

    cdef int tick(self) noexcept:
        """Every 100 ms, with the GIL: signals and progress; an exception ends the run."""
        try:
            PyErr_CheckSignals()
            if self.progress is not None:
                self.progress(self.e.nodes_done, self.total_nodes)
        except BaseException as error:  # kept for run(), which raises it
            self.error = error
            self.e.status = INTERRUPTED
        return 0

    def abort(self):
        """Ends a run from another thread; it returns "aborted" within about 100 ms."""
        self.e.abort_flag = 1

    def ops(self):
        """Rows of every node that became ready, in that order; see `OPS`."""
        return self.view(self.ops_area, self.e.ops_n, OPS)

    def messages(self):
        """Rows of every message posted or announced, in that order; see `MESSAGES`."""
        return self.view(self.messages_area, self.e.messages_n, MESSAGES)

    def steps(self):
        """Rows (iteration, start_ns, end_ns) of the iterations, all ranks; -1 = did not happen."""
        cdef int32_t i
        cdef uint64_t busy = 0
        rows = []
        if self.e.steps == NULL:
            return rows
        for i in range(<int32_t> self.e.n_ranks):
            busy += self.e.ranks[i].n > 0
        for i in range(self.e.last_iteration + 1 + self.e.warmup):
            s = &self.e.steps[i]
            end = s.end_ns if s.done == busy else -1
            rows.append((i - self.e.warmup, s.start_ns, end))
        return rows

    def forget_messages(self, uint64_t rows):
        """Gives the memory of the first rows of `messages()` back; they must not be read again."""
        if self.messages_area is not None and self.finished_run:
            self.messages_area.forget(min(rows, self.e.messages_n) * sizeof(MessageRow))

    cdef object view(self, _LogArea area, uint64_t n, object dtype):
        if area is None or n == 0:
            return np.zeros(0, dtype=dtype)
        area.used = <Py_ssize_t> (n * <uint64_t> dtype.itemsize)
        return np.frombuffer(area, dtype=dtype)

    def failures(self):
        """Failed connections, the first failure of each; see `FAILURE`."""
        table = np.zeros(self.e.n_failures, dtype=FAILURE)
        cdef uint32_t i
        for i in range(self.e.n_failures):
            f = &self.e.failures[i]
            table[i] = (
                f.t_ns, f.status, f.id, f.rank, f.peer, f.node, f.message, f.iteration, f.conn,
            )
        return table

    def connections(self):
        """Every connection, those of the table first; `sent` and `received` count messages."""
        table = np.zeros(self.e.n_conns, dtype=CONNECTIONS)
        cdef uint32_t i
        cdef Conn* c
        for i in range(self.e.n_conns):
            c = &self.e.conns[i]
            table[i] = (c.id, c.communicator, c.src, c.dst, c.channel, c.index, c.kind, c.s_head,
                        c.r_head)
        return table

    @property
    def start_ns(self):
        """CLOCK_MONOTONIC of 0 on the timeline."""
        return self.e.t0

    @property
    def now_ns(self):
        """Where the timeline stands: after a run, its end."""
        return self.e.now

    @property
    def nodes_done(self):
        """Nodes that have ended, over all iterations."""
        return self.e.nodes_done

    @property
    def nodes_total(self):
        """Nodes of all ranks, times the iterations."""
        return self.total_nodes

    @property
    def dropped(self):
        """Log rows beyond the limits: (ops, messages)."""
        return (self.e.ops_dropped, self.e.messages_dropped)

    @property
    def failures_more(self):
        """Errors after the first of their connection (flushes), counted only."""
        return self.e.failures_more

    def health(self):
        """How well the run kept time; all in ns, on the thread that ran.

        Returns:
            `timer_error` and `poll_gap` (count, p50, p90, p99, max, histogram of
            (upper bound, count)), `turns`, `events`, `wall_ns`, `cpu_user_ns`, `cpu_system_ns`,
            `voluntary_switches`, `involuntary_switches`; `joint_runs` and `joint_hits`:
            collectives of joint communicators that were run, and that took their times from one.
        """
        return {
            "timer_error": summary(&self.e.timer_error),
            "poll_gap": summary(&self.e.poll_gap),
            "turns": self.e.turns,
            "events": self.e.events,
            "wall_ns": self.e.wall_ns,
            "cpu_user_ns": self.e.cpu_user_ns,
            "cpu_system_ns": self.e.cpu_system_ns,
            "voluntary_switches": self.e.voluntary,
            "involuntary_switches": self.e.involuntary,
            "joint_runs": self.e.joint_runs,
            "joint_hits": self.e.joint_hits,
        }

    def blocked(self):
        """Who waits for whom right now, a row for each wait; see `BLOCKED`."""
        rows = []
        cdef CollR* coll = self.e.running
        cdef uint32_t i
        cdef Conn* c
        cdef StreamR* s
        cdef StreamT* t
        cdef ProgramT* p
        cdef OpT* o
        while coll != NULL:
            p = &self.e.programs[coll.bind.program]
            for i in range(p.n_streams):
                s = &coll.streams[i]
                if s.state != S_WAITING_MESSAGE and s.state != S_WAITING_ROOM:
                    continue
                t = &p.streams[i]
                o = &p.ops[s.op]
                c = &self.e.conns[coll.bind.conns[o.slot]]
                if s.state == S_WAITING_MESSAGE:
                    reason, peer, number = _report.MESSAGE, c.src, c.r_taken
                elif c.s_head == c.s_post:
                    reason, peer, number = _report.ANNOUNCEMENT, c.dst, c.s_post
                else:
                    reason, peer, number = _report.COMPLETION, c.dst, c.s_head
                rows.append((
                    self.e.ranks[coll.rank].rank, coll.node, self.e.ranks[coll.rank].iteration,
                    coll.bind.communicator, c.channel, t.group, reason, peer,
                    <uint32_t> (c - self.e.conns), c.id, number, o.nbytes, c.last_ns,
                ))
            coll = coll.next
        # Messages that their stream left behind.
        for i in range(self.e.n_conns):
            c = &self.e.conns[i]
            if not c.sent_here or c.s_head == c.s_tail or c.s_wait != NULL:
                continue
            reason = _report.ANNOUNCEMENT if c.s_head == c.s_post else _report.COMPLETION
            index = self.rank_index[c.src]
            rows.append((
                c.src, c.sent[c.s_head & c.mask].node, self.e.ranks[<uint32_t> index].iteration,
                c.communicator, c.channel, -1, reason, c.dst, i, c.id, c.s_head,
                c.sent[c.s_head & c.mask].nbytes, c.last_ns,
            ))
        return np.array(rows, dtype=BLOCKED)

    def explain(self, node_name=None):
        """The state of an unfinished run in words: who waits for whom, and who is to blame.

        Args:
            node_name: Called as `node_name(rank, node)` for what to call a node.
        """
        cdef Core* e = self.e
        last = None
        if e.last_completion >= 0:
            c = &e.conns[e.last_completion_conn]
            last = (e.last_completion, c.src, c.dst, c.id, c.channel)
        waiting = []
        cdef uint32_t i, node
        for i in range(e.n_ranks):
            if e.ranks[i].left > 0:
                stuck = []
                for node in range(e.ranks[i].n):
                    if e.ranks[i].pending[node] > 0 and len(stuck) < 4:
                        stuck.append(node)
                waiting.append((e.ranks[i].rank, e.ranks[i].iteration, e.ranks[i].left, stuck))
        failed_links = []
        for i in range(e.n_links):
            if e.links[i].rate <= 0:
                failed_links.append(self.names[i] if self.names is not None else f"link {i}")
        return _report.explain(
            status=_STATUS.get(e.status, "running"), now_ns=e.now, blocked=self.blocked(),
            failures=self.failures(), failures_more=e.failures_more, last=last, waiting=waiting,
            failed_links=failed_links, here=set(self.rank_index), node_name=node_name,
        )


def _path_classes(indptr, path):
    """Connections by path: (class of each row, links of each class, rows of each class)."""
    lengths = np.diff(indptr)
    which = np.empty(len(lengths), dtype=np.int64)
    paths = []
    counts = []
    for length in np.unique(lengths).tolist():
        rows = np.flatnonzero(lengths == length)
        table = path[indptr[rows][:, None] + np.arange(length)]
        ordered = np.sort(table, axis=1)
        if (ordered[:, 1:] == ordered[:, :-1]).any():
            bad = int(rows[np.argmax((ordered[:, 1:] == ordered[:, :-1]).any(axis=1))])
            raise InputError(f"connection row {bad}: its path uses a link twice")
        unique, inverse, count = np.unique(
            table, axis=0, return_inverse=True, return_counts=True
        )
        which[rows] = inverse.reshape(-1) + len(paths)
        paths.extend(unique.tolist())
        counts.extend(count.tolist())
    return which, paths, counts
