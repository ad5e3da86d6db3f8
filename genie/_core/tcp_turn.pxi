# The functions of the vtable, and one turn over the sockets.

cdef inline conn_t *find(tcp_t *t, uint32_t conn) noexcept nogil:
    if conn >= t.n_ids or t.index[conn] < 0:
        return NULL
    return &t.conns[t.index[conn]]


cdef inline void list_lane(tcp_t *t, lane_t *l) noexcept nogil:
    if not l.listed:
        l.listed = 1
        t.todo[t.n_todo] = <uint32_t>(l - t.lanes)
        t.n_todo += 1


cdef int tcp_post_recv(void *self, uint32_t conn, uint64_t nbytes, uint32_t step) noexcept nogil:
    cdef tcp_t *t = <tcp_t *>self
    cdef conn_t *c = find(t, conn)
    cdef int i
    if c == NULL or c.sender:
        return -EINVAL
    if c.error:
        c.failed = 1
        return c.error
    if nbytes > UINT32_MAX:
        return -EMSGSIZE
    if enqueue(t, c, nbytes):
        return -ENOMEM
    awake(t, c)
    if not c.shared and c.tail - c.credit >= t.run_ahead // 2:
        owe(t, c)
    for i in range(t.n_lanes):
        if t.lanes[c.lanes + i].readable:
            list_lane(t, &t.lanes[c.lanes + i])
    return 0


cdef int tcp_post_send(void *self, uint32_t conn, uint64_t nbytes, uint32_t step) noexcept nogil:
    cdef tcp_t *t = <tcp_t *>self
    cdef conn_t *c = find(t, conn)
    if c == NULL or not c.sender:
        return -EINVAL
    if nbytes > UINT32_MAX:
        return -EMSGSIZE
    if not c.error and c.tail >= c.credit:
        take_credits(t, c)
    if c.error:
        c.failed = 1
        return c.error
    if c.tail >= c.credit or c.tail - c.head >= SEND_QUEUE:
        c.waiting = 1
        awake(t, c)
        return -EAGAIN
    if c.waiting:
        c.waiting = 0
        sleepy(t, c)
    if enqueue(t, c, nbytes):
        return -ENOMEM
    if not c.dirty:
        c.dirty = 1
        t.dirty[t.n_dirty] = <uint32_t>(c - t.conns)
        t.n_dirty += 1
    return 0


cdef int tcp_flush(void *self) noexcept nogil:
    cdef tcp_t *t = <tcp_t *>self
    cdef uint32_t i
    for i in range(t.n_dirty):
        t.conns[t.dirty[i]].dirty = 0
        push_all(t, &t.conns[t.dirty[i]])
    t.n_dirty = 0
    if t.n_owing:
        report_all(t, t.run_ahead - t.run_ahead // 4)
    return 0


cdef void mark(tcp_t *t, epoll_event *events, int n) noexcept nogil:
    """List the lanes on which the kernel reported something."""
    cdef int i
    cdef lane_t *lane
    for i in range(n):
        lane = &t.lanes[events[i].data.u64]
        if events[i].events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR):
            lane.readable = 1
            if events[i].events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR):
                lane.readable = GONE
        if events[i].events & (EPOLLOUT | EPOLLHUP | EPOLLERR) and not lane.writable:
            lane.writable = 1
            t.blocked -= 1
        list_lane(t, lane)


cdef void look(tcp_t *t, lane_t *l) noexcept nogil:
    """Do what l's flags allow."""
    cdef conn_t *c = &t.conns[l.conn]
    cdef ssize_t r
    if c.error:
        return
    if c.sender:
        # Credits wait in the kernel until they are needed; an end of file does not. On a shared
        # socket what can be read is the other connection's, and sending finds a dead peer.
        if l.readable and not c.shared and (c.waiting or l.readable == GONE):
            if l.number == 0:
                take_credits(t, c)
                while l.readable == GONE and not c.error:
                    take_credits(t, c)
            elif genie_peek(l.fd) == 0 or errno != EAGAIN:
                fail(t, c, -ECONNRESET)
        if l.writable and l.at < c.tail:
            push(t, c, l)
            ready(t, c)
        return
    if l.readable:
        if seek(t, c, l):
            pull(t, c, l)
        elif l.readable == GONE and c.head == c.tail:
            # The peer is gone and nothing is announced: keep bytes that came early. (While other
            # lanes have work, the end of this one means nothing.)
            r = genie_peek(l.fd)
            if r == 0 or (r < 0 and errno != EAGAIN and errno != EINTR):
                fail(t, c, -ECONNRESET if r == 0 else -errno)


cdef void work(tcp_t *t) noexcept nogil:
    """Look at the listed lanes."""
    cdef uint32_t i
    cdef uint32_t n = t.n_todo
    for i in range(n):
        t.lanes[t.todo[i]].listed = 0
        look(t, &t.lanes[t.todo[i]])
    t.n_todo = 0


cdef int watch_lane(tcp_t *t, uint32_t i) noexcept nogil:
    """Have epoll report lane i, on a shared socket only its direction; 0 or -errno."""
    cdef conn_t *c = &t.conns[t.lanes[i].conn]
    cdef bint reads = not (c.shared and c.sender)
    cdef bint writes = c.sender or not c.shared
    return -errno if genie_epoll_add(t.epoll, t.lanes[i].fd, i, reads, writes) < 0 else 0


cdef void unwatch(tcp_t *t) noexcept nogil:
    """Take all lanes from epoll: each message costs it a call, and its peer, who makes it."""
    cdef uint32_t i
    for i in range(t.n_sockets):
        genie_epoll_del(t.epoll, t.lanes[i].fd)
    t.watched = 0


cdef int ask(tcp_t *t, int64_t ns) noexcept nogil:
    """Ask the kernel which sockets changed, for at most ns; their number or -errno."""
    cdef epoll_event events[EVENTS]
    cdef uint32_t i
    cdef int n
    t.flowing = 0
    if not t.watched:
        # What happened meanwhile is reported as if it happened now.
        t.watched = 1
        for i in range(t.n_sockets):
            if not t.conns[t.lanes[i].conn].error:
                n = watch_lane(t, i)
                if n < 0:
                    return n
    t.c_epoll += 1
    n = genie_epoll(t.epoll, events, EVENTS, ns)
    if n < 0:
        return 0 if errno == EINTR else -errno
    mark(t, events, n)
    return n


cdef int progress(tcp_t *t) noexcept nogil:
    """Move bytes without blocking; 0 or -errno."""
    cdef uint32_t i, k
    cdef conn_t *c
    cdef int r
    if t.n_todo:
        work(t)
        if t.first != t.last:
            return 0
    if t.spin_ns and t.n_active * t.n_lanes <= <uint32_t>t.direct_max and not t.blocked:
        # Few sockets: asking each one is cheaper than asking epoll and then the socket.
        i = 0
        while i < t.n_active:
            k = t.active[i]
            c = &t.conns[k]
            if c.sender:
                take_credits(t, c)
            else:
                for r in range(t.n_lanes):
                    pull(t, c, &t.lanes[c.lanes + r])
            if i < t.n_active and t.active[i] == k:
                i += 1
        if t.first != t.last:
            t.empty = 0
            t.flowing += 1
            if t.flowing == FLOWING and t.n_sockets <= WATCHED:
                unwatch(t)
            return 0
        # Whoever shares this core, perhaps the very peer, should not pay for our waiting.
        t.empty += 1
        if t.empty >= YIELD_AFTER:
            sched_yield()
        if t.empty % CHECK_EVERY:
            if t.n_owing:
                report_all(t, 1)
            return 0
    r = ask(t, 0)
    if r < 0:
        return r
    work(t)
    if t.first != t.last:
        t.empty = 0
    elif t.spin_ns:
        t.empty += 1
        if t.empty >= YIELD_AFTER:
            sched_yield()
    if t.n_owing and t.first == t.last:
        report_all(t, 1)
    return 0


cdef int tcp_poll(void *self, genie_event *events, int max) noexcept nogil:
    cdef tcp_t *t = <tcp_t *>self
    cdef uint32_t n
    cdef int r
    if t.first == t.last:
        t.first = t.last = 0
    if t.first == t.last or (t.spin_ns and t.last - t.first < 8 and t.n_active):
        # While polling, what just arrived is worth a look even if a SENT is due already.
        r = progress(t)
        if r < 0:
            return r
    n = t.last - t.first
    if n > <uint32_t>max:
        n = <uint32_t>max
    if n:
        memcpy(events, &t.events[t.first], n * sizeof(genie_event))
        t.first += n
        t.idle_since = 0
    return <int>n


cdef int tcp_wait(void *self, int64_t deadline_ns) noexcept nogil:
    cdef tcp_t *t = <tcp_t *>self
    cdef int64_t now = genie_now()
    cdef int64_t left
    cdef int r
    t.c_wait += 1
    if t.idle_since == 0:
        t.idle_since = now
    while t.first == t.last and t.n_todo == 0:
        if now >= deadline_ns:
            return 0
        if t.spin_ns > now - t.idle_since:
            t.first = t.last = 0
            r = progress(t)
            if r < 0:
                return r
            now = genie_now()
            continue
        if t.n_owing:
            report_all(t, 1)
        t.first = t.last = 0
        left = INT64_MAX if deadline_ns == INT64_MAX else deadline_ns - now
        r = ask(t, left)
        if r < 0:
            return r
        work(t)
        now = genie_now()
    return 0
