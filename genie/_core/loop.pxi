# The loops: virtual clock and wall clock. The GIL is off; it is taken every 100 ms for signals and
# progress.

cdef enum:
    SIGNALS_NS = 100_000_000
    TURN = 256       # ready entries run between two polls
    POLL = 128       # events a poll


cdef inline int64_t monotonic_ns() noexcept nogil:
    cdef timespec t
    clock_gettime(CLOCK_MONOTONIC, &t)
    return <int64_t> t.tv_sec * 1000000000 + t.tv_nsec


cdef inline int64_t read_clock(Core* e) noexcept nogil:
    return monotonic_ns() - e.t0


cdef void out_of_memory(Core* e) noexcept nogil:
    e.pending_error = ENOMEM
    e.status = FAILED


cdef void check_signals(Core* e, void* engine) noexcept nogil:
    with gil:
        (<Engine> engine).tick()


cdef inline Event take_event(Core* e, Event* first, Line* line) noexcept nogil:
    # Removes what `first_event` found; connections of the arrivals behind it are fetched ahead.
    cdef Event v = first[0]
    cdef Conn* c
    if line == NULL:
        return pop_event(e.q)
    line.head += 1
    if line != &e.q.lines[LINE_GPU] and line.tail - line.head > 8:
        c = &e.conns[line.events[(line.head + 8) & line.mask].arg]
        prefetch(c)
        prefetch(<char*> c + 64)
        prefetch(<char*> c + 128)
        c = &e.conns[line.events[(line.head + 3) & line.mask].arg]
        prefetch(&c.sent[c.s_head & c.mask])
        prefetch(&c.recv[c.r_head & c.mask])
        if c.r_wait != NULL:
            prefetch(c.r_wait)
    return v


cdef void handle_event(Core* e, Event* v) noexcept nogil:
    cdef uint64_t kind = v.order & 15
    cdef Conn* c
    cdef NetEvent* n
    if kind == EV_ARRIVE:
        deliver(e, &e.conns[v.arg])
    elif kind == EV_NODE:
        end_node(e, <uint32_t> (v.arg >> 32), <uint32_t> v.arg)
    elif kind == EV_STREAM:
        push_stream(e, <StreamR*> v.arg)
    elif kind == EV_CTS:
        c = &e.conns[v.arg]
        c.cts_armed = 0
        try_post(e, c)
    elif kind == EV_JOINT:
        joint_event(e, v.arg)
    elif kind == EV_GAP:
        e.conns[v.arg].in_gap = 0
        sim_start(e, &e.conns[v.arg])
    elif kind == EV_COLL:
        begin_coll(e, <CollR*> v.arg)
    elif kind == EV_LINK:
        n = &e.net_events[v.arg]
        e.links[n.link].rate = n.rate
        if not e.links[n.link].dirty:
            e.links[n.link].dirty = 1
            e.dirty[e.n_dirty] = <uint32_t> n.link
            e.n_dirty += 1


cdef inline bint finished(Core* e) noexcept nogil:
    return e.nodes_left == 0 and e.outstanding == 0


cdef void loop_virtual(Core* e, void* engine) noexcept nogil:
    cdef int64_t next_check = monotonic_ns() + SIGNALS_NS
    cdef uint64_t turn = 0
    cdef int64_t t
    cdef Event v
    cdef Event* first
    cdef Line* line
    while e.status == RUNNING:
        drain_ready(e, <uint64_t> -1)
        if e.status != RUNNING:
            return
        if e.n_dirty > 0:
            solve(e)
        if finished(e):
            e.status = DONE
            return
        turn += 1
        if turn & 4095 == 0:
            if e.abort_flag:
                e.status = ABORTED
                return
            if monotonic_ns() >= next_check:
                check_signals(e, engine)
                next_check = monotonic_ns() + SIGNALS_NS
        t = INT64_MAX
        first = first_event(e.q, &line)
        if first != NULL:
            t = first.t
        if e.class_heap_n > 0 and e.classes[e.class_heap[0]].due < t:
            t = e.classes[e.class_heap[0]].due
        if t == INT64_MAX:
            if joint_release_all(e) > 0:
                continue
            e.status = STALLED
            return
        e.now = t
        while e.class_heap_n > 0 and e.classes[e.class_heap[0]].due <= t:
            class_finish(e, e.class_heap[0])
            e.events += 1
        while e.status == RUNNING:
            first = first_event(e.q, &line)
            if first == NULL or first.t != t:
                break
            v = take_event(e, first, line)
            e.events += 1
            handle_event(e, &v)
            if e.joint_deferred:
                e.joint_deferred = 0
                break


cdef void handle_net(Core* e, genie_event* v) noexcept nogil:
    cdef Conn* c
    if v.conn >= e.n_ids or e.conn_of_id[v.conn] == NONE32:
        e.pending_error = EPROTO  # an event of a connection that the engine does not have
        e.status = FAILED
        return
    c = &e.conns[e.conn_of_id[v.conn]]
    c.refused = 0
    if v.type == GENIE_EV_READY:
        try_post(e, c)
    elif v.type == GENIE_EV_SENT:
        if c.s_head == c.s_post:
            fail_conn(e, c, -EPROTO, True)
        else:
            sent_complete(e, c)
            if c.s_post != c.s_tail:
                try_post(e, c)
    elif v.type == GENIE_EV_RECEIVED:
        if c.r_head == c.r_tail:
            fail_conn(e, c, -EPROTO, False)
        else:
            arrived(e, c)
    else:
        fail_conn(e, c, v.status if v.status != 0 else -EIO, c.sent_here and c.s_head != c.s_post)


cdef int poll_net(Core* e, genie_event* events) noexcept nogil:
    cdef int n = e.net.poll(e.net.self, events, POLL)
    cdef int i
    if n > 0:
        for i in range(n):
            if events[i].t_ns - e.t0 > e.now:
                e.now = events[i].t_ns - e.t0
            handle_net(e, &events[i])
        e.last_progress = e.now
        e.last_activity = e.now
        e.events += n
    elif n < 0 and n != -EAGAIN and n != -EINTR:
        e.pending_error = -n
        e.status = FAILED
    return n


cdef void sleep_until(Core* e, int64_t t) noexcept nogil:
    cdef timespec at
    t += e.t0
    at.tv_sec = t // 1000000000
    at.tv_nsec = t % 1000000000
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL)


cdef void loop_wall(
    Core* e, void* engine, int64_t watchdog_ns, int64_t spin_ns, int64_t poll_spin_ns
) noexcept nogil:
    cdef genie_event events[POLL]
    cdef int64_t next_check = e.now + SIGNALS_NS
    cdef int64_t deadline, wake, turn_start
    cdef int n
    cdef Event v
    e.last_progress = e.now
    e.last_activity = e.now
    turn_start = e.now
    while e.status == RUNNING:
        if e.streams_head != NULL or e.ready_head != e.ready_tail:
            drain_ready(e, TURN)
            e.now = read_clock(e)
            e.last_progress = e.now
            e.last_activity = e.now
        n = 0
        if e.net != NULL:
            if e.net_dirty:
                e.net_dirty = 0
                n = e.net.flush(e.net.self)
                if n < 0 and n != -EAGAIN and n != -EINTR:
                    e.pending_error = -n
                    e.status = FAILED
                    return
            n = poll_net(e, events)
            if e.n_retry > 0:
                retry_posts(e)
        e.now = read_clock(e)
        e.turns += 1
        add_to_histogram(&e.poll_gap, e.now - turn_start)
        turn_start = e.now
        while e.q.heap_n > 0 and e.q.heap[0].t <= e.now:
            v = pop_event(e.q)
            if v.order & 15 == EV_NODE:
                add_to_histogram(&e.timer_error, e.now - v.t)
            handle_event(e, &v)
            e.events += 1
            n = 1
            e.last_progress = e.now
        if e.now >= next_check:
            if e.abort_flag:
                e.status = ABORTED
                return
            check_signals(e, engine)
            e.now = read_clock(e)
            turn_start = e.now
            next_check = e.now + SIGNALS_NS
        if n > 0 or e.streams_head != NULL or e.ready_head != e.ready_tail or e.net_dirty:
            continue
        if finished(e):
            e.status = DONE
            return
        if e.abort_flag:
            e.status = ABORTED
            return
        # Nothing to do now: wait for the next timer or the network.
        deadline = INT64_MAX
        if e.q.heap_n > 0:
            deadline = e.q.heap[0].t
        elif e.net == NULL:
            e.status = STALLED  # nothing can ever happen
            return
        elif e.now - e.last_progress >= watchdog_ns:
            e.status = STALLED
            return
        if e.net != NULL and e.now - e.last_activity < poll_spin_ns:
            pause()
            continue
        wake = deadline - spin_ns if deadline < INT64_MAX else INT64_MAX
        if wake > next_check:
            wake = next_check
        if wake > e.now:
            if e.net != NULL:
                n = e.net.wait(e.net.self, wake + e.t0)
                if n < 0 and n != -EAGAIN and n != -EINTR and n != -ETIMEDOUT:
                    e.pending_error = -n
                    e.status = FAILED
                    return
            else:
                sleep_until(e, wake)
            e.now = read_clock(e)
            turn_start = e.now
            if e.now < wake and e.net == NULL:
                next_check = e.now  # a signal interrupted the sleep
        else:
            pause()


cdef void wait_for_start(Core* e, void* engine, int64_t spin_ns) noexcept nogil:
    # Until 0 on the timeline, with the GIL taken for signals every 100 ms.
    cdef int64_t now = read_clock(e)
    cdef int64_t wake
    while now < 0 and e.status == RUNNING:
        if e.abort_flag:
            e.status = ABORTED
            return
        if now < -spin_ns:
            wake = -spin_ns
            if wake > now + SIGNALS_NS:
                wake = now + SIGNALS_NS
            sleep_until(e, wake)
            check_signals(e, engine)
        else:
            pause()
        now = read_clock(e)


cdef void drain_failures(Core* e) noexcept nogil:
    # What follows a failure (flushes, other dead connections) is collected for a moment.
    cdef genie_event events[POLL]
    cdef int i
    for i in range(64):
        if poll_net(e, events) <= 0:
            return


cdef dict summary(Histogram* g):
    """Percentiles of a histogram: upper bounds of their buckets, never above the maximum."""
    cdef int i
    cdef int64_t upper
    found = {"count": g.count, "p50": 0, "p90": 0, "p99": 0, "max": g.max, "histogram": []}
    cdef uint64_t seen = 0
    for i in range(BUCKETS):
        if g.bucket[i] == 0:
            continue
        upper = i if i < 8 else (<int64_t> (9 + (i & 7)) << (i // 8 - 1)) - 1
        if upper > g.max:
            upper = g.max
        found["histogram"].append((upper, g.bucket[i]))
        for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
            if seen < share * g.count <= seen + g.bucket[i]:
                found[name] = upper
        seen += g.bucket[i]
    return found
