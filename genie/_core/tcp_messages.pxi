# Events for the engine, and the queue of messages of a connection.

cdef int emit(tcp_t *t, conn_t *c, int kind, int status) noexcept nogil:
    cdef genie_event *grown
    cdef genie_event *e
    if t.last == t.capacity:
        grown = <genie_event *>realloc(t.events, 2 * t.capacity * sizeof(genie_event))
        if grown == NULL:
            return -ENOMEM
        t.events = grown
        t.capacity *= 2
    e = &t.events[t.last]
    t.last += 1
    if t.stamp == 0:
        t.stamp = genie_now()
    e.t_ns = t.stamp
    e.conn = c.id
    e.status = status
    e.type = <uint8_t>kind
    return 0


cdef void sleepy(tcp_t *t, conn_t *c) noexcept nogil:
    """Take c from the connections that wait for bytes."""
    cdef uint32_t moved
    if c.active < 0:
        return
    t.n_active -= 1
    moved = t.active[t.n_active]
    t.active[c.active] = moved
    t.conns[moved].active = c.active
    c.active = -1


cdef void awake(tcp_t *t, conn_t *c) noexcept nogil:
    if c.active >= 0:
        return
    c.active = <int32_t>t.n_active
    t.active[t.n_active] = <uint32_t>(c - t.conns)
    t.n_active += 1


cdef void fail(tcp_t *t, conn_t *c, int error) noexcept nogil:
    """Mark c failed once; tell the engine if it still wants something from c."""
    cdef uint32_t i
    t.stamp = 0
    if c.error:
        return
    c.error = error
    sleepy(t, c)
    for i in range(<uint32_t>t.n_lanes):
        if not t.lanes[c.lanes + i].writable:
            t.lanes[c.lanes + i].writable = 1
            t.blocked -= 1
        genie_epoll_del(t.epoll, t.lanes[c.lanes + i].fd)
    if c.head < c.tail or c.waiting or error == -EBADMSG:
        c.waiting = 0
        c.failed = 1
        emit(t, c, GENIE_EV_ERROR, error)


cdef inline int takes_part(tcp_t *t, lane_t *l, uint64_t n) noexcept nogil:
    return l.number == 0 or n >= t.stripe_min


cdef inline uint64_t share(tcp_t *t, lane_t *l, uint64_t n) noexcept nogil:
    """The bytes of an n-byte message that lane l carries."""
    if t.n_lanes == 1 or n < t.stripe_min:
        return n
    return n // t.n_lanes + (1 if l.number < n % t.n_lanes else 0)


cdef inline int seek(tcp_t *t, conn_t *c, lane_t *l) noexcept nogil:
    """Move l to the next posted message it carries a part of; 0 if there is none."""
    while l.at < c.tail:
        if takes_part(t, l, c.size[l.at & c.mask]):
            return 1
        l.at += 1
    return 0


cdef int grow(conn_t *c) noexcept nogil:
    cdef uint32_t cap = c.mask + 1
    cdef uint64_t i
    cdef uint64_t *size = <uint64_t *>malloc(2 * cap * sizeof(uint64_t))
    cdef uint8_t *left = <uint8_t *>malloc(2 * cap)
    if size == NULL or left == NULL:
        free(size)
        free(left)
        return -ENOMEM
    for i in range(c.head, c.tail):
        size[i & (2 * cap - 1)] = c.size[i & c.mask]
        left[i & (2 * cap - 1)] = c.left[i & c.mask]
    free(c.size)
    free(c.left)
    c.size = size
    c.left = left
    c.mask = 2 * cap - 1
    return 0


cdef inline int enqueue(tcp_t *t, conn_t *c, uint64_t nbytes) noexcept nogil:
    cdef uint64_t at
    if c.tail - c.head > c.mask and grow(c):
        return -ENOMEM
    at = c.tail & c.mask
    c.size[at] = nbytes
    c.left[at] = <uint8_t>(t.n_lanes if nbytes >= t.stripe_min else 1)
    c.tail += 1
    return 0


cdef void ready(tcp_t *t, conn_t *c) noexcept nogil:
    """Say READY to an engine that was told -EAGAIN, if there is room now."""
    if c.waiting and c.tail < c.credit and c.tail - c.head < SEND_QUEUE:
        c.waiting = 0
        sleepy(t, c)
        emit(t, c, GENIE_EV_READY, 0)


cdef void finish(tcp_t *t, conn_t *c, lane_t *l) noexcept nogil:
    """Lane l is done with its part of the message it is at."""
    c.left[l.at & c.mask] -= 1
    l.at += 1
    l.off = 0
    while c.head < c.tail and c.left[c.head & c.mask] == 0:
        c.nbytes += c.size[c.head & c.mask]
        c.head += 1
        emit(t, c, GENIE_EV_SENT if c.sender else GENIE_EV_RECEIVED, 0)
    if not c.sender and c.head == c.tail:
        sleepy(t, c)
