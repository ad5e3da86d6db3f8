# The part of the engine that takes the plan in: programs, communicators, ranks, connections,
# network.

cdef class _Setup:
    """What an engine is given before it runs."""

    cdef Core* e
    cdef void** blocks
    cdef size_t n_blocks
    cdef size_t blocks_cap
    cdef object keep
    cdef list members
    cdef list joint
    cdef dict graphs
    cdef list ranks_in
    cdef dict rank_index
    cdef list hosts
    cdef list bound
    cdef object table
    cdef object ids
    cdef object network
    cdef object transport
    cdef object progress
    cdef object error
    cdef list programs_in
    cdef _LogArea ops_area
    cdef _LogArea messages_area
    cdef bint started
    cdef bint finished_run
    cdef object gpu
    cdef object delays
    cdef object local
    cdef uint64_t total_nodes
    cdef uint64_t programs_cap
    cdef object names
    cdef object rank_of
    cdef uint32_t* hash
    cdef uint64_t hash_size
    cdef uint64_t conns_cap
    cdef uint32_t found

    def __cinit__(self, *, str clock="wall"):
        self.e = NULL
        self.blocks = NULL
        self.hash = NULL
        if clock not in ("wall", "virtual"):
            raise InputError(f'clock is "wall" or "virtual", not {clock!r}')
        self.e = <Core*> calloc(1, sizeof(Core))
        if self.e == NULL:
            raise MemoryError()
        self.e.virtual_clock = clock == "virtual"
        self.e.last_completion = -1
        self.e.q = &self.e.events_all
        self.keep = []
        self.members = []
        self.joint = []
        self.graphs = {}
        self.ranks_in = []
        self.rank_index = {}
        self.hosts = []
        self.bound = []
        self.programs_in = []
        self.gpu = (0, 0.0, 0.0, 0.0, 0)
        self.delays = (0, 0, False, 0)
        self.local = (0, 0.0)

    def __dealloc__(self):
        cdef size_t i
        cdef CollR* coll
        cdef CollR* following
        cdef Core* e = self.e
        if e != NULL:
            for i in range(len(self.programs_in) if self.programs_in is not None else 0):
                coll = <CollR*> e.programs[i].free
                while coll != NULL:
                    following = coll.next
                    free(coll)
                    coll = following
            coll = e.running
            while coll != NULL:
                following = coll.next
                free(coll)
                coll = following
            free(e.programs)
            free(e.ready)
            free(e.events_all.heap)
            free(e.events_joint.heap)
            for i in range(<size_t> LINES):
                free(e.events_all.lines[i].events)
                free(e.events_joint.lines[i].events)
            for i in range(e.memo_size):
                free(e.memo[i])
            free(e.memo)
            free(e.conns)
            free(self.hash)
            free(e)
        for i in range(self.n_blocks):
            free(self.blocks[i])
        free(self.blocks)

    cdef void* alloc(self, size_t n) except NULL:
        """Zeroed memory that lives as long as the engine."""
        cdef void** grown
        cdef void* p
        if self.n_blocks == self.blocks_cap:
            self.blocks_cap = 2 * self.blocks_cap + 64
            grown = <void**> realloc(self.blocks, self.blocks_cap * sizeof(void*))
            if grown == NULL:
                raise MemoryError()
            self.blocks = grown
        p = calloc(1, n if n > 0 else 1)
        if p == NULL:
            raise MemoryError()
        self.blocks[self.n_blocks] = p
        self.n_blocks += 1
        return p

    cdef int open(self) except -1:
        if self.started:
            raise InputError("this engine has already run: make a new one")
        return 0

    def set_gpu(
        self, *, call_ns=0, copy_bytes_per_ns=0.0, reduce_bytes_per_ns=0.0,
        receive_bytes_per_ns=None, move_ns=0, start_ns=0, send_ns=0, early=False, gap_ns=0,
    ):
        """Sets the GPU-time model of the programs added after this call.

        Args:
            call_ns: Fixed ns of each primitive call.
            copy_bytes_per_ns: Bytes/ns at which one channel sends its own; 0 = takes no time.
            reduce_bytes_per_ns: Bytes/ns at which a channel receives, reduces and sends; 0 = none.
            receive_bytes_per_ns: Bytes/ns of a move that only receives; None = as it copies.
            move_ns: Fixed ns of each move.
            start_ns: From the start of a collective to its first move, ns.
            send_ns: From the end of a SEND to another host until its message can be posted, ns;
                the stream goes on meanwhile.
            early: Messages inside a host leave before the GPU time of their move instead of after
                it: their receiver works on the first bytes while the last are still being made.
            gap_ns: From the end of a message on a simulated connection to the start of the next,
                ns.
        """
        receive = copy_bytes_per_ns if receive_bytes_per_ns is None else receive_bytes_per_ns
        given = (
            call_ns, copy_bytes_per_ns, reduce_bytes_per_ns, receive, move_ns, start_ns, send_ns,
            gap_ns,
        )
        if min(given) < 0:
            raise InputError("the GPU-time model takes no negative numbers")
        self.gpu = (
            int(call_ns), float(copy_bytes_per_ns), float(reduce_bytes_per_ns), float(receive),
            int(move_ns),
        )
        self.delays = (int(start_ns), int(send_ns), bool(early), int(gap_ns))

    def set_local(self, *, latency_ns=0, bytes_per_ns=0.0):
        """Sets how messages of the programs added after this call travel inside a host.

        Args:
            latency_ns: Fixed ns of a message.
            bytes_per_ns: Bytes/ns of a connection, message after message; 0 = takes no time.
        """
        self.open()
        if latency_ns < 0 or bytes_per_ns < 0:
            raise InputError("the local model takes no negative numbers")
        self.local = (int(latency_ns), float(bytes_per_ns))

    def add_communicator(self, members, *, joint=False, together=False):
        """Adds a communicator and returns its id.

        Args:
            members: Global ranks in communicator order, int32[n].
            joint: All ranks run the same collectives on it one after the other, and none of them
                ends anywhere before all ranks have started it. On the virtual clock collectives
                of joint communicators inside one host are timed once for each pattern of starts.
            together: With `joint`: where it leaves the host, starts are held until all ranks are
                there, and then all start (virtual clock).

        Returns:
            Ids count from 0.
        """
        self.open()
        m = np.ascontiguousarray(members, dtype=np.int32)
        if m.ndim != 1 or len(m) == 0:
            raise InputError("a communicator is a list of ranks, and not an empty one")
        if len(np.unique(m)) != len(m):
            raise InputError(f"communicator {len(self.members)} names a rank twice")
        self.members.append(m)
        self.joint.append((bool(joint), bool(together)))
        return len(self.members) - 1

    def add_program(self, streams, ops, window=8, *, windows=None, tail_ns=0):
        """Adds a program template and returns its id.

        Args:
            streams: `STREAM` array (docs/architecture.md, "Program").
            ops: `OP` array.
            window: FIFO steps a connection may have in flight.
            windows: Messages a connection of each stream may have in flight, one a stream;
                None = as many as `window` allows.
            tail_ns: Time between the end of the last stream and the end of the node.

        Returns:
            Ids count from 0.

        Raises:
            ScheduleError: Ranges outside `ops`, unknown kinds, no steps, or two streams of
                one phase that use the same direction of one connection.
        """
        self.open()
        st = np.ascontiguousarray(streams, dtype=STREAM)
        op = np.ascontiguousarray(ops, dtype=OP)
        if not 1 <= window <= 1 << 16:
            raise ScheduleError(f"a window is 1 to 65536 steps, not {window}")
        if len(op) >= 1 << 31:
            raise ScheduleError(f"a program of {len(op)} ops is too long")
        ident = len(self.programs_in)
        limits = np.full(len(st), 0xFFFF) if windows is None else np.asarray(windows)
        if len(limits) != len(st):
            raise ScheduleError(f"program {ident}: {len(st)} streams and {len(limits)} windows")
        if len(st) and not 1 <= limits.min() <= limits.max() <= 0xFFFF:
            raise ScheduleError(f"program {ident}: a window of {limits.min()} messages")
        if len(st):
            ends = st["first"].astype(np.int64) + st["count"]
            if ends.max() > len(op):
                raise ScheduleError(
                    f"program {ident}: a stream ends at op {ends.max()} of {len(op)}"
                )
            order = np.lexsort((np.arange(len(st)), st["phase"], st["channel"]))
            st = st[order]
            limits = limits[order]
        if len(op):
            if op["kind"].max() > 1:
                raise ScheduleError(f"program {ident}: op kind {op['kind'].max()} is not 0 or 1")
            if op["steps"].min() < 1:
                raise ScheduleError(f"program {ident}: an op takes no FIFO step")
            if ((op["kind"] == 0) & (op["flags"] & 1 != 0)).any():
                raise ScheduleError(f"program {ident}: a SEND has the PEEK flag")
        self.make_program(st, op, np.ascontiguousarray(limits, np.uint16), ident, window)
        self.e.programs[ident].tail_ns = max(0, int(tail_ns))
        self.programs_in.append(None)
        return ident

    cdef int make_program(
        self, object st, object op, const uint16_t[::1] limits, uint32_t ident, uint32_t window
    ) except -1:
        cdef ProgramT* p
        cdef ProgramT* grown
        if ident == self.programs_cap:
            self.programs_cap = 2 * self.programs_cap + 16
            grown = <ProgramT*> realloc(self.e.programs, self.programs_cap * sizeof(ProgramT))
            if grown == NULL:
                raise MemoryError()
            self.e.programs = grown
        p = &self.e.programs[ident]
        memset(p, 0, sizeof(ProgramT))
        cdef uint32_t n_streams = len(st)
        cdef uint32_t n_ops = len(op)
        cdef uint32_t i, j, x, first, count, n_local, hit, start
        cdef uint32_t n_touch = 0
        cdef uint32_t n_phases = 0
        cdef uint32_t n_channels = 0
        cdef uint32_t local_cap = 16
        cdef uint8_t is_recv
        cdef OpT* o
        cdef StreamT* t
        cdef const uint32_t[::1] s_first, s_count, s_phase, o_nbytes, o_call
        cdef const uint16_t[::1] s_channel
        cdef const uint8_t[::1] s_group, s_lane, o_kind, o_flags, o_steps, o_conn
        cdef const int32_t[::1] o_peer
        s_first = np.ascontiguousarray(st["first"])
        s_count = np.ascontiguousarray(st["count"])
        s_phase = np.ascontiguousarray(st["phase"])
        s_channel = np.ascontiguousarray(st["channel"])
        s_group = np.ascontiguousarray(st["group"])
        s_lane = np.ascontiguousarray(st["lane"])
        o_nbytes = np.ascontiguousarray(op["nbytes"])
        o_call = np.ascontiguousarray(op["call"])
        o_kind = np.ascontiguousarray(op["kind"])
        o_flags = np.ascontiguousarray(op["flags"])
        o_steps = np.ascontiguousarray(op["steps"])
        o_conn = np.ascontiguousarray(op["conn"])
        o_peer = np.ascontiguousarray(op["peer"])
        cdef dict slots = {}
        cdef list slot_rows = []
        cdef list touch_rows = []
        # Ops are laid out stream after stream, so that streams may share a range of the input.
        cdef uint64_t total = 0
        for i in range(n_streams):
            total += s_count[i]
        if total >= (<uint64_t> 1 << 31):
            raise ScheduleError(f"program {ident}: {total} ops in its streams are too many")
        p.ops = <OpT*> self.alloc(total * sizeof(OpT))
        p.streams = <StreamT*> self.alloc(n_streams * sizeof(StreamT))
        p.phases = <PhaseT*> self.alloc(n_streams * sizeof(PhaseT))
        p.channels = <ChannelT*> self.alloc(n_streams * sizeof(ChannelT))
        p.window = window
        p.start_ns, p.send_ns, p.early, p.gap_ns = self.delays
        p.local_ns, p.local_rate = self.local
        p.n_ops = <uint32_t> total
        p.n_streams = n_streams
        # Slots a stream uses, looked up by the last one used, then linearly: a stream has few.
        cdef SlotT* local = <SlotT*> malloc(local_cap * sizeof(SlotT))
        cdef uint32_t* local_id = <uint32_t*> malloc(local_cap * sizeof(uint32_t))
        cdef uint32_t* local_next = <uint32_t*> malloc(local_cap * sizeof(uint32_t))
        cdef uint32_t* of_op = <uint32_t*> malloc((total + 1) * sizeof(uint32_t))
        start = 0
        try:
            if local == NULL or local_id == NULL or local_next == NULL or of_op == NULL:
                raise MemoryError()
            for i in range(n_streams):
                t = &p.streams[i]
                first = s_first[i]
                count = s_count[i]
                t.first = start
                t.end = start + count
                t.channel_id = s_channel[i]
                t.messages = limits[i]
                t.group = s_group[i]
                t.lane = s_lane[i]
                if i == 0 or s_channel[i] != s_channel[i - 1]:
                    p.channels[n_channels].first = n_phases
                    p.channels[n_channels].end = n_phases
                    n_channels += 1
                if i == 0 or s_channel[i] != s_channel[i - 1] or s_phase[i] != s_phase[i - 1]:
                    p.phases[n_phases].first = i
                    n_phases += 1
                    p.channels[n_channels - 1].end = n_phases
                p.phases[n_phases - 1].end = i + 1
                t.channel = n_channels - 1
                n_local = 0
                hit = 0
                for j in range(count):
                    x = first + j
                    is_recv = o_kind[x] == 1
                    if not (
                        hit < n_local and local[hit].peer == o_peer[x]
                        and local[hit].index == o_conn[x] and local[hit].receives == is_recv
                    ):
                        hit = 0
                        while hit < n_local and not (
                            local[hit].peer == o_peer[x] and local[hit].index == o_conn[x]
                            and local[hit].receives == is_recv
                        ):
                            hit += 1
                        if hit == n_local:
                            if n_local == local_cap:
                                local_cap *= 2
                                local = <SlotT*> realloc(local, local_cap * sizeof(SlotT))
                                local_id = <uint32_t*> realloc(
                                    local_id, local_cap * sizeof(uint32_t)
                                )
                                local_next = <uint32_t*> realloc(
                                    local_next, local_cap * sizeof(uint32_t)
                                )
                                if local == NULL or local_id == NULL or local_next == NULL:
                                    raise MemoryError()
                            local[hit].peer = o_peer[x]
                            local[hit].index = o_conn[x]
                            local[hit].receives = is_recv
                            local[hit].channel = s_channel[i]
                            key = (o_peer[x], s_channel[i], o_conn[x], is_recv)
                            slot = slots.get(key)
                            if slot is None:
                                slot = len(slot_rows)
                                slots[key] = slot
                                slot_rows.append(key)
                            local_id[hit] = slot
                            n_local += 1
                    of_op[start + j] = hit
                    o = &p.ops[start + j]
                    o.slot = local_id[hit]
                    o.nbytes = o_nbytes[x]
                    o.steps = o_steps[x]
                    o.kind = OP_SEND if not is_recv else (OP_PEEK if o_flags[x] & 1 else OP_RECV)
                    if o.kind != OP_PEEK:
                        p.n_messages += 1
                for x in range(n_local):
                    local_next[x] = NONE32
                for j in range(count):
                    o = &p.ops[t.end - 1 - j]
                    o.next = NONE32
                    if o.kind == OP_RECV:
                        x = of_op[t.end - 1 - j]
                        o.next = local_next[x]
                        local_next[x] = t.end - 1 - j
                t.touch = n_touch
                for x in range(n_local):
                    if not local[x].receives:
                        touch_rows.append((local_id[x], NONE32))
                    elif local_next[x] != NONE32:
                        touch_rows.append((local_id[x], local_next[x]))
                    else:
                        raise ScheduleError(
                            f"program {ident}, channel {s_channel[i]}: a stream looks at the next "
                            f"message of rank {local[x].peer} and never receives it"
                        )
                    n_touch += 1
                t.touch_end = n_touch
                start += count
            p.n_phases = n_phases
            p.n_channels = n_channels
            p.n_touches = n_touch
            p.n_slots = len(slot_rows)
            p.touches = <TouchT*> self.alloc(n_touch * sizeof(TouchT))
            for i in range(n_touch):
                row = touch_rows[i]
                p.touches[i].slot = row[0]
                p.touches[i].first = row[1]
            p.slots = <SlotT*> self.alloc(p.n_slots * sizeof(SlotT))
            for i in range(p.n_slots):
                row = slot_rows[i]
                p.slots[i].peer = row[0]
                p.slots[i].channel = row[1]
                p.slots[i].index = row[2]
                p.slots[i].receives = row[3]
            for x in range(start):
                if p.ops[x].kind != OP_PEEK:
                    p.slots[p.ops[x].slot].messages += 1
            self.check_claims(p, ident)
            self.make_moves(p, s_first, o_call)
        finally:
            free(local)
            free(local_id)
            free(local_next)
            free(of_op)
        return 0

    cdef int check_claims(self, ProgramT* p, uint32_t ident) except -1:
        """Two streams of one phase must not share a direction of a connection."""
        cdef uint32_t i, j, x
        cdef uint32_t* seen = <uint32_t*> malloc((p.n_slots + 1) * sizeof(uint32_t))
        if seen == NULL:
            raise MemoryError()
        memset(seen, 0xFF, (p.n_slots + 1) * sizeof(uint32_t))
        try:
            for i in range(p.n_phases):
                for j in range(p.phases[i].first, p.phases[i].end):
                    for x in range(p.streams[j].touch, p.streams[j].touch_end):
                        slot = p.touches[x].slot
                        if seen[slot] == i:
                            raise ScheduleError(
                                f"program {ident}: two streams of one phase of channel "
                                f"{p.slots[slot].channel} both "
                                f"{'receive from' if p.slots[slot].receives else 'send to'} "
                                f"rank {p.slots[slot].peer} on connection {p.slots[slot].index}"
                            )
                        seen[slot] = i
        finally:
            free(seen)
        return 0

    cdef int make_moves(
        self, ProgramT* p, const uint32_t[::1] s_first, const uint32_t[::1] o_call
    ) except -1:
        """Cuts streams into moves (see docs/architecture.md) and gives them their GPU time."""
        cdef double call_ns = self.gpu[0]
        cdef double copy_rate = self.gpu[1]
        cdef double reduce_rate = self.gpu[2]
        cdef double receive_rate = self.gpu[3]
        cdef double move_ns = self.gpu[4]
        cdef uint32_t i, x, y, z, at, largest
        cdef const uint32_t* call
        cdef StreamT* t
        cdef OpT* o
        cdef bint cut, receives, sends
        cdef double rate, ns
        if call_ns > 0 or copy_rate > 0 or reduce_rate > 0 or receive_rate > 0 or move_ns > 0:
            p.gpu_ns = <uint32_t*> self.alloc(p.n_ops * sizeof(uint32_t))
        else:
            p.early = 0  # no GPU time to be early for
        for i in range(p.n_streams):
            t = &p.streams[i]
            if t.end == t.first:
                continue
            call = &o_call[s_first[i]]
            x = t.first
            while x < t.end:
                receives = False
                sends = False
                largest = 0
                at = NONE32
                y = x
                while y < t.end:
                    o = &p.ops[y]
                    if y > x:
                        cut = call[y - t.first] != call[x - t.first] or y - x == 255
                        cut = cut or (o.kind != OP_SEND and p.ops[y - 1].kind == OP_SEND)
                        z = x
                        while not cut and z < y:
                            cut = p.ops[z].slot == o.slot and p.ops[z].kind != OP_PEEK
                            z += 1
                        if cut:
                            break
                    o.back = <uint8_t> (y - x)
                    if o.kind != OP_PEEK:
                        if o.nbytes > largest:
                            largest = o.nbytes
                        if not sends:
                            at = y  # the first send, or the last receive if nothing is sent
                        receives |= o.kind == OP_RECV
                        sends |= o.kind == OP_SEND
                    y += 1
                p.ops[y - 1].flags |= OPF_END
                if p.gpu_ns != NULL and at != NONE32:
                    rate = (reduce_rate if receives else copy_rate) if sends else receive_rate
                    ns = (largest / rate if rate > 0 else 0.0) + move_ns
                    if x == t.first or call[x - t.first] != call[x - 1 - t.first]:
                        ns += call_ns
                    if ns > 4e9:
                        raise ScheduleError(f"the GPU-time model gives {ns:.0f} ns for one message")
                    if p.early:
                        at = y - 1
                        for z in range(x, y):
                            p.gpu_ns[z] = <uint32_t> ceil_ns(ns)
                    p.gpu_ns[at] = <uint32_t> ceil_ns(ns)
                    if p.gpu_ns[at] > 0:
                        p.ops[at].flags |= OPF_GPU
                x = y
        return 0

    def add_rank(self, rank, kind, delay_ns, program, communicator, dep_indptr, deps, *, host=0):
        """Adds the graph of one rank.

        Args:
            rank: Global rank.
            kind: uint8[n]: 0 instant, 1 delay, 2 communication.
            delay_ns: int64[n], used by delays.
            program: int32[n], used by communications; -1 = no messages, ends at once.
            communicator: int32[n], used by communications with a program.
            dep_indptr: int64[n+1]; node i waits for `deps[dep_indptr[i]:dep_indptr[i+1]]`.
            deps: uint32[m]: positions of nodes of this rank.
            host: Number of the host that the rank is on.

        Raises:
            InputError: Arrays that do not fit together; the text names rank and node.
        """
        self.open()
        cdef uint32_t n = len(kind)
        if rank in self.rank_index:
            raise InputError(f"rank {rank} is added twice")
        k = np.ascontiguousarray(kind, dtype=np.uint8)
        d = np.ascontiguousarray(delay_ns, dtype=np.int64)
        p = np.ascontiguousarray(program, dtype=np.int32)
        c = np.ascontiguousarray(communicator, dtype=np.int32)
        ptr = np.ascontiguousarray(dep_indptr, dtype=np.int64)
        dep = np.ascontiguousarray(deps, dtype=np.uint32)
        if not len(d) == len(p) == len(c) == n or len(ptr) != n + 1:
            raise InputError(f"rank {rank}: the node columns differ in length")
        if ptr[0] != 0 or ptr[n] != len(dep) or (n and (np.diff(ptr) < 0).any()):
            raise InputError(f"rank {rank}: dep_indptr does not run from 0 to {len(dep)}")
        if len(dep) and dep.max() >= n:
            raise InputError(f"rank {rank}: a dependency on node {dep.max()} of {n}")
        if n and k.max() > 2:
            node = int(np.argmax(k > 2))
            raise InputError(f"rank {rank}, node {node}: kind {k[node]} is not 0, 1 or 2")
        bad = (k == 1) & (d < 0)
        if bad.any():
            node = int(np.argmax(bad))
            raise InputError(f"rank {rank}, node {node}: a delay of {d[node]} ns")
        comm = (k == 2) & (p >= 0)
        if comm.any():
            if p[comm].max() >= len(self.programs_in):
                raise InputError(
                    f"rank {rank}: program {p[comm].max()} of {len(self.programs_in)}"
                )
            if c[comm].min() < 0 or c[comm].max() >= len(self.members):
                raise InputError(
                    f"rank {rank}: communicator {c[comm].min()}..{c[comm].max()} "
                    f"of {len(self.members)}"
                )
        self.rank_index[int(rank)] = len(self.ranks_in)
        self.hosts.append(int(host))
        self.ranks_in.append(self.make_rank(int(rank), n, k, d, p, c, comm, ptr, dep))

    cdef object make_rank(
        self, int32_t rank, uint32_t n, object kind, object delay, object program,
        object communicator, object comm, object indptr, object deps,
    ):
        """Builds degree and children in C; returns what `prepare` still needs.

        Ranks that are given the same arrays share what is made of them.
        """
        shared = (id(kind), id(delay), id(indptr), id(deps))
        pair = np.where(comm, (communicator.astype(np.int64) << 32) | program, -1)
        if shared in self.graphs:
            return (rank, n, kind, delay, pair, *self.graphs[shared])
        cdef uint32_t* degree = <uint32_t*> self.alloc(n * sizeof(uint32_t))
        cdef int64_t* child_ptr = <int64_t*> self.alloc((n + 2) * sizeof(int64_t))
        cdef uint32_t* children = <uint32_t*> self.alloc(len(deps) * sizeof(uint32_t))
        cdef const int64_t[::1] ptr = indptr
        cdef const uint32_t[::1] dep = deps
        cdef int64_t i, j
        cdef uint32_t node
        with nogil:
            for node in range(n):
                degree[node] = <uint32_t> (ptr[node + 1] - ptr[node])
                for i in range(ptr[node], ptr[node + 1]):
                    child_ptr[dep[i] + 2] += 1
            for node in range(n):
                child_ptr[node + 2] += child_ptr[node + 1]
            for node in range(n):
                for i in range(ptr[node], ptr[node + 1]):
                    j = child_ptr[dep[i] + 1]
                    children[j] = node
                    child_ptr[dep[i] + 1] = j + 1
        # Kept: an id is that of one object only as long as the object lives.
        self.keep.append((kind, delay, indptr, deps))
        made = (<uint64_t> degree, <uint64_t> child_ptr, <uint64_t> children)
        self.graphs[shared] = made
        return (rank, n, kind, delay, pair, *made)

    def add_connections(self, table, ids=None):
        """Adds the connections that leave a host.

        Args:
            table: `CONN` array; rows without a rank of this engine are refused.
            ids: uint32[n]: the numbers that the transport knows them by; default 0, 1, ...
        """
        self.open()
        if self.table is not None:
            raise InputError("connections are added once, in one table")
        t = np.ascontiguousarray(table, dtype=CONN)
        ids = np.arange(len(t), dtype=np.uint32) if ids is None else (
            np.ascontiguousarray(ids, dtype=np.uint32)
        )
        if len(ids) != len(t):
            raise InputError(f"{len(t)} connections and {len(ids)} ids")
        if len(np.unique(ids)) != len(ids):
            raise InputError("two connections have one id")
        if len(ids) and int(ids.max()) >= 1 << 28:
            raise InputError(f"connection id {ids.max()} is too large")
        self.table = t
        self.ids = ids

    def set_transport(self, capsule):
        """Gives the engine its transport (wall clock).

        Args:
            capsule: PyCapsule named "genie.transport"; it is kept alive.
        """
        self.open()
        if self.e.virtual_clock:
            raise InputError("an engine on the virtual clock has no transport")
        if not PyCapsule_IsValid(capsule, GENIE_TRANSPORT_CAPSULE):
            raise InputError('a transport is a PyCapsule named "genie.transport"')
        self.transport = capsule
        self.e.net = <genie_transport*> PyCapsule_GetPointer(capsule, GENIE_TRANSPORT_CAPSULE)

    def set_network(
        self, rate, latency_ns, path_indptr, path, *, names=None, cts_latency_ns=-1, events=None
    ):
        """Gives the engine its simulated network (virtual clock).

        Args:
            rate: float64[L]: bytes per ns (GB/s) of each link.
            latency_ns: int64[L].
            path_indptr: int64[n+1]; connection row i uses `path[path_indptr[i]:path_indptr[i+1]]`.
            path: int32[m]: links; each connection has at least one.
            names: Names of the links for reports.
            cts_latency_ns: What an announcement takes; -1 = the latency of its connection's path.
            events: `NETWORK_EVENT` array; a rate of 0 is a failed link.
        """
        self.open()
        if not self.e.virtual_clock:
            raise InputError("a simulated network needs the virtual clock")
        if self.table is None:
            raise InputError("add the connections before the network")
        rate = np.ascontiguousarray(rate, dtype=np.float64)
        latency = np.ascontiguousarray(latency_ns, dtype=np.int64)
        ptr = np.ascontiguousarray(path_indptr, dtype=np.int64)
        path = np.ascontiguousarray(path, dtype=np.int32)
        events = np.zeros(0, NETWORK_EVENT) if events is None else (
            np.ascontiguousarray(events, dtype=NETWORK_EVENT)
        )
        if len(rate) != len(latency):
            raise InputError(f"{len(rate)} link rates and {len(latency)} latencies")
        if len(rate) and not (np.isfinite(rate).all() and rate.min() >= 0 and latency.min() >= 0):
            raise InputError("a link has a negative or infinite rate or latency")
        if len(ptr) != len(self.table) + 1 or ptr[0] != 0 or ptr[len(self.table)] != len(path):
            raise InputError("path_indptr does not fit the connections")
        if (np.diff(ptr) < 1).any():
            raise InputError("a connection has a path without a link")
        if len(path) and (path.min() < 0 or path.max() >= len(rate)):
            raise InputError(f"a path uses link {path.min()}..{path.max()} of {len(rate)}")
        if names is not None and len(names) != len(rate):
            raise InputError(f"{len(rate)} links and {len(names)} names")
        if len(events) and (
            events["link"].min() < 0 or events["link"].max() >= len(rate)
            or events["rate"].min() < 0 or events["t_ns"].min() < 0
        ):
            raise InputError("a network event has an unknown link, or a negative time or rate")
        self.names = None if names is None else [str(name) for name in names]
        self.network = (rate, latency, ptr, path, int(cts_latency_ns), events)
