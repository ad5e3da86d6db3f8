# Messages on connections: windows, announcements (CTS), posting, completion, the log.

cdef inline void push_stream(Core* e, StreamR* s) noexcept nogil:
    s.state = S_READY
    s.next = NULL
    if e.streams_tail == NULL:
        e.streams_head = s
    else:
        e.streams_tail.next = s
    e.streams_tail = s


cdef inline uint32_t log_message(
    Core* e, Conn* c, uint32_t oprow, uint32_t nbytes, uint8_t direction
) noexcept nogil:
    cdef MessageRow* row
    cdef uint64_t i = e.messages_n
    if oprow == NONE32 and e.log_some:
        return NONE32
    if i >= e.messages_cap:
        e.messages_dropped += 1
        return NONE32
    e.messages_n = i + 1
    row = &e.messages[i]
    row.op = oprow
    row.conn = <uint32_t> (c - e.conns)
    row.nbytes = nbytes
    row.status = 0
    row.direction = direction
    row.flags = c.kind == LOCAL
    row.posted_ns = e.now
    row.completed_ns = -1
    return <uint32_t> i


cdef void fail_conn(Core* e, Conn* c, int32_t status, bint sending) noexcept nogil:
    # The first failure of a connection is data; what follows it (flushes) is counted.
    cdef FailureRow* f
    cdef RankS* r
    cdef uint32_t node = NONE32
    cdef uint32_t i
    if e.status == RUNNING:
        e.status = FAILED
    if c.failed or e.n_failures == MAX_FAILURES:
        e.failures_more += 1
        return
    c.failed = 1
    f = &e.failures[e.n_failures]
    e.n_failures += 1
    f.t_ns = e.now
    f.status = status
    f.id = c.id
    f.conn = <uint32_t> (c - e.conns)
    if sending:
        f.rank = c.src
        f.peer = c.dst
        f.message = c.s_head
        if c.s_head != c.s_tail:
            node = c.sent[c.s_head & c.mask].node
        elif c.s_owner != NULL:
            node = c.s_owner.coll.node
    else:
        f.rank = c.dst
        f.peer = c.src
        f.message = c.r_head
        if c.r_head != c.r_tail:
            node = c.recv[c.r_head & c.mask].node
        elif c.r_owner != NULL:
            node = c.r_owner.coll.node
    f.node = node
    f.iteration = -1
    for i in range(e.n_ranks):
        r = &e.ranks[i]
        if r.rank == f.rank:
            f.iteration = r.iteration
    # The rows of its open messages carry the status.
    if c.sent != NULL:
        i = c.s_head
        while i != c.s_post:
            if c.sent[i & c.mask].row != NONE32:
                e.messages[c.sent[i & c.mask].row].status = <int16_t> status
            i += 1
    if c.recv != NULL:
        i = c.r_head
        while i != c.r_tail:
            if c.recv[i & c.mask].row != NONE32:
                e.messages[c.recv[i & c.mask].row].status = <int16_t> status
            i += 1


cdef inline void sent_complete(Core* e, Conn* c) noexcept nogil:
    # The oldest message of c is done: its FIFO steps are free.
    cdef SentM* m = &c.sent[c.s_head & c.mask]
    cdef StreamR* s
    c.s_head += 1
    c.s_steps -= m.steps
    c.last_ns = e.now
    e.outstanding -= 1
    if m.row != NONE32:
        e.messages[m.row].completed_ns = e.now
    if c.s_wait != NULL:
        s = c.s_wait
        c.s_wait = NULL
        push_stream(e, s)
    e.last_completion = e.now
    e.last_completion_conn = <uint32_t> (c - e.conns)


cdef inline void arrived(Core* e, Conn* c) noexcept nogil:
    # The oldest announced message of c is here.
    cdef RecvM* m = &c.recv[c.r_head & c.mask]
    cdef StreamR* s
    c.r_head += 1
    c.last_ns = e.now
    if m.row != NONE32:
        e.messages[m.row].completed_ns = e.now
    if c.r_wait != NULL:
        s = c.r_wait
        c.r_wait = NULL
        push_stream(e, s)
    e.last_completion = e.now
    e.last_completion_conn = <uint32_t> (c - e.conns)


cdef inline void deliver(Core* e, Conn* c) noexcept nogil:
    # Both ends are in this engine: one event completes the send and the receive.
    if c.sent[c.s_head & c.mask].nbytes != c.recv[c.r_head & c.mask].nbytes:
        fail_conn(e, c, -EBADMSG, True)
        return
    sent_complete(e, c)
    arrived(e, c)


cdef void post_local(Core* e, Conn* c, uint32_t nbytes) noexcept nogil:
    # A hop inside a host: one copy engine a connection, then a fixed latency.
    cdef ProgramT* p = &e.programs[c.s_program]
    cdef int64_t start, end
    if p.local_rate == 0 and p.local_ns == 0:
        deliver(e, c)
        return
    start = e.now if e.now > c.busy_until else c.busy_until
    end = start
    if p.local_rate > 0:
        end += ceil_ns(<double> nbytes / p.local_rate)
    c.busy_until = end
    push_in_line(e, LINE_LOCAL, end + p.local_ns, EV_ARRIVE, c - e.conns)


cdef void retry_later(Core* e, Conn* c) noexcept nogil:
    if not c.in_retry:
        c.in_retry = 1
        e.retry[e.n_retry] = <uint32_t> (c - e.conns)
        e.n_retry += 1


cdef void try_post(Core* e, Conn* c) noexcept nogil:
    # Posts queued messages while the receiver has announced room, in order.
    cdef SentM* m
    cdef RecvM* room
    cdef int rc
    while c.s_post != c.s_tail:
        m = &c.sent[c.s_post & c.mask]
        if m.ready_ns > e.now:
            if not c.cts_armed:
                c.cts_armed = 1
                push_event(e, m.ready_ns, EV_CTS, c - e.conns)
            return
        if c.kind == TRANSPORT:
            # A transport counts announcements itself: -EAGAIN, then READY when there is room.
            if c.refused or c.failed:
                return
            rc = e.net.post_send(e.net.self, <uint32_t> c.id, m.nbytes, m.step)
            if rc != 0:
                if rc == -EAGAIN:
                    c.refused = 1
                else:
                    fail_conn(e, c, rc, True)
                return
            e.net_dirty = 1
        else:
            if c.s_post == c.credits:
                return
            room = &c.recv[c.s_post & c.mask]
            if room.cts_ns > e.now:
                if not c.cts_armed:
                    c.cts_armed = 1
                    push_event(e, room.cts_ns, EV_CTS, c - e.conns)
                return
        m.posted_ns = e.now
        m.row = log_message(e, c, m.oprow, m.nbytes, 0) if c.logged else NONE32
        c.s_post += 1
        if c.kind == LOCAL:
            post_local(e, c, m.nbytes)
        elif c.kind == SIMULATED:
            sim_post(e, c)


cdef void announce(Core* e, Conn* c) noexcept nogil:
    # Announces upcoming receives of the owning stream, in order, up to the window.
    cdef StreamR* s = c.r_owner
    cdef OpT* o
    cdef RecvM* m
    cdef int rc
    while c.r_next != NONE32:
        o = &s.coll.ops[c.r_next]
        if c.r_count > 0 and (c.r_steps + o.steps > c.r_window or c.r_count >= c.r_limit):
            break
        m = &c.recv[c.r_tail & c.mask]
        if c.kind == TRANSPORT:
            if c.failed:
                return
            rc = e.net.post_recv(e.net.self, <uint32_t> c.id, o.nbytes, c.r_step)
            if rc != 0:
                if rc == -EAGAIN:
                    retry_later(e, c)
                else:
                    fail_conn(e, c, rc, False)
                return
            e.net_dirty = 1
        elif c.kind == SIMULATED:
            m.cts_ns = e.now + e.classes[c.cls].cts_latency
            c.credits += 1
        else:
            m.cts_ns = e.now
            c.credits += 1
        m.nbytes = o.nbytes
        m.node = s.coll.node
        m.row = NONE32
        if c.logged and e.log_receives:
            m.row = log_message(e, c, s.coll.row, o.nbytes, 1)
        c.r_tail += 1
        c.r_steps += o.steps
        c.r_count += 1
        c.r_step += o.steps
        c.r_next = o.next
    if c.kind != TRANSPORT and c.s_post != c.s_tail:
        try_post(e, c)


cdef void retry_posts(Core* e) noexcept nogil:
    # The transport had no room for announcements: they are tried again once.
    cdef uint32_t i
    cdef uint32_t n = e.n_retry
    cdef Conn* c
    e.n_retry = 0
    for i in range(n):
        c = &e.conns[e.retry[i]]
        c.in_retry = 0
        if c.r_owner != NULL:
            announce(e, c)
