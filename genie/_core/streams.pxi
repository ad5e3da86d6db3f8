# Programs: streams of sends and receives, phases of a channel, start and end of a collective.

cdef inline uint32_t up4(uint32_t step) noexcept nogil:
    return (step + 3) & ~(<uint32_t> 3)


cdef int start_stream(Core* e, CollR* coll, uint32_t index) noexcept nogil:
    # Claims the stream's connections and announces its first receives.
    cdef BindT* b = coll.bind
    cdef ProgramT* p = &e.programs[b.program]
    cdef StreamT* t = &p.streams[index]
    cdef StreamR* s = &coll.streams[index]
    cdef TouchT* touch
    cdef Conn* c
    cdef uint32_t i
    cdef bint slices = False
    s.coll = coll
    s.op = t.first
    s.end = t.end
    s.index = index
    s.gpu_done = 0
    # Ring Simple (2 steps a message) starts at a multiple of its 4 steps a chunk, on both ends.
    if t.end > t.first:
        slices = p.ops[t.first].steps == 2
    for i in range(t.touch, t.touch_end):
        touch = &p.touches[i]
        c = &e.conns[b.conns[touch.slot]]
        if touch.first == NONE32:
            if c.s_owner != NULL:
                fail_conn(e, c, -EBUSY, True)
                return -1
            c.s_owner = s
            c.s_program = b.program
            c.s_window = p.window
            c.s_limit = t.messages
            if slices:
                c.s_step = up4(c.s_step)
        else:
            if c.r_owner != NULL:
                fail_conn(e, c, -EBUSY, False)
                return -1
            c.r_owner = s
            c.r_window = p.window
            c.r_limit = t.messages
            if slices:
                c.r_step = up4(c.r_step)
            c.r_next = touch.first
            announce(e, c)
    push_stream(e, s)
    return 0


cdef int start_phase(Core* e, CollR* coll, uint32_t channel) noexcept nogil:
    cdef ProgramT* p = &e.programs[coll.bind.program]
    cdef ChannelR* run = &coll.channels[channel]
    cdef PhaseT* phase = &p.phases[run.phase]
    cdef uint32_t i
    run.left = phase.end - phase.first
    for i in range(phase.first, phase.end):
        if start_stream(e, coll, i) != 0:
            return -1
    return 0


cdef int begin_coll(Core* e, CollR* coll) noexcept nogil:
    cdef uint32_t i
    for i in range(e.programs[coll.bind.program].n_channels):
        if start_phase(e, coll, i) != 0:
            return -1
    return 0


cdef int start_coll(
    Core* e, uint32_t rank, uint32_t node, BindT* b, uint32_t row, int64_t* ended, JointC* joint
) noexcept nogil:
    cdef ProgramT* p = &e.programs[b.program]
    cdef CollR* coll = <CollR*> p.free
    cdef uint32_t i
    cdef size_t size
    if p.n_streams == 0:  # it only takes its time
        push_event(e, e.now + p.tail_ns, EV_NODE, (<uint64_t> rank << 32) | node)
        return 0
    if coll != NULL:
        p.free = coll.next
    else:
        size = sizeof(CollR) + p.n_streams * sizeof(StreamR) + p.n_channels * sizeof(ChannelR)
        coll = <CollR*> malloc(size)
        if coll == NULL:
            out_of_memory(e)
            return -1
        coll.streams = <StreamR*> (coll + 1)
        coll.channels = <ChannelR*> (coll.streams + p.n_streams)
    coll.bind = b
    coll.ops = p.ops
    coll.rank = rank
    coll.node = node
    coll.row = row
    coll.ended = ended
    coll.joint = joint
    coll.left = p.n_streams
    coll.prev = NULL
    coll.next = e.running
    if e.running != NULL:
        e.running.prev = coll
    e.running = coll
    for i in range(p.n_streams):
        coll.streams[i].state = S_WAITING_PHASE
        coll.streams[i].coll = coll
        coll.streams[i].index = i
        coll.streams[i].op = p.streams[i].first
    for i in range(p.n_channels):
        coll.channels[i].phase = p.channels[i].first
    if p.start_ns > 0:
        push_event(e, e.now + p.start_ns, EV_COLL, <uint64_t> coll)
        return 0
    return begin_coll(e, coll)


cdef void end_stream(Core* e, StreamR* s) noexcept nogil:
    cdef CollR* coll = s.coll
    cdef ProgramT* p = &e.programs[coll.bind.program]
    cdef StreamT* t = &p.streams[s.index]
    cdef ChannelR* run = &coll.channels[t.channel]
    cdef TouchT* touch
    cdef Conn* c
    cdef uint32_t i
    s.state = S_ENDED
    for i in range(t.touch, t.touch_end):
        touch = &p.touches[i]
        c = &e.conns[coll.bind.conns[touch.slot]]
        if touch.first == NONE32:
            c.s_owner = NULL
        else:
            c.r_owner = NULL
    coll.left -= 1
    run.left -= 1
    if run.left == 0:
        run.phase += 1
        if run.phase < p.channels[t.channel].end:
            start_phase(e, coll, t.channel)
            return
    if coll.left > 0:
        return
    if coll.prev != NULL:
        coll.prev.next = coll.next
    else:
        e.running = coll.next
    if coll.next != NULL:
        coll.next.prev = coll.prev
    coll.next = <CollR*> p.free
    p.free = coll
    if coll.ended != NULL:
        coll.ended[0] = e.now + p.tail_ns
        return
    if coll.joint != NULL:
        coll.joint.running -= 1
    if p.tail_ns > 0:
        push_event(e, e.now + p.tail_ns, EV_NODE, (<uint64_t> coll.rank << 32) | coll.node)
    else:
        end_node(e, coll.rank, coll.node)


cdef inline void end_move(Core* e, StreamR* s, uint32_t op) noexcept nogil:
    # The GPU is done with what the receives of this move brought: their FIFO steps are free.
    cdef OpT* o = &s.coll.ops[op]
    cdef OpT* first = o - o.back
    cdef Conn* c
    while first <= o:
        if first.kind == OP_RECV:
            c = &e.conns[s.coll.bind.conns[first.slot]]
            c.r_steps -= first.steps
            c.r_count -= 1
            if c.r_next != NONE32:
                announce(e, c)
        first += 1


cdef void run_stream(Core* e, StreamR* s) noexcept nogil:
    # Runs the ops of a stream until one has to wait.
    cdef CollR* coll = s.coll
    cdef uint32_t* conns = coll.bind.conns
    cdef OpT* ops = coll.ops
    cdef ProgramT* p = &e.programs[coll.bind.program]
    cdef OpT* o
    cdef Conn* c
    cdef SentM* m
    while s.op < s.end:
        o = &ops[s.op]
        c = &e.conns[conns[o.slot]]
        if s.gpu_done == 2:
            # Early messages: the op was done before the GPU time of its move, which is over.
            s.gpu_done = 0
            if o.flags & OPF_END:
                end_move(e, s, s.op)
            s.op += 1
            continue
        if o.kind == OP_SEND:
            if c.s_head != c.s_tail and (
                c.s_steps + o.steps > c.s_window or c.s_tail - c.s_head >= c.s_limit
            ):
                s.state = S_WAITING_ROOM
                c.s_wait = s
                return
        elif c.r_head == c.r_taken:
            s.state = S_WAITING_MESSAGE
            c.r_wait = s
            return
        if o.flags & OPF_GPU and not s.gpu_done and not p.early:
            s.gpu_done = 1
            s.state = S_GPU
            push_in_line(e, LINE_GPU, e.now + p.gpu_ns[s.op], EV_STREAM, <uint64_t> s)
            return
        s.gpu_done = 0
        if o.kind == OP_SEND:
            m = &c.sent[c.s_tail & c.mask]
            m.nbytes = o.nbytes
            m.steps = o.steps
            m.step = c.s_step
            m.oprow = coll.row
            m.node = coll.node
            m.row = NONE32
            m.ready_ns = e.now
            if c.kind != LOCAL:
                m.ready_ns += p.send_ns
                if p.early:
                    m.ready_ns += p.gpu_ns[s.op]
            c.s_tail += 1
            c.s_steps += o.steps
            c.s_step += o.steps
            e.outstanding += 1
            try_post(e, c)
        elif o.kind == OP_RECV:
            c.r_taken += 1
        if e.status != RUNNING:
            return
        if o.flags & OPF_GPU and p.early:
            s.gpu_done = 2
            s.state = S_GPU
            push_in_line(e, LINE_GPU, e.now + p.gpu_ns[s.op], EV_STREAM, <uint64_t> s)
            return
        if o.flags & OPF_END:
            end_move(e, s, s.op)
        s.op += 1
    end_stream(e, s)
