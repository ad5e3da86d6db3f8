# Sending: queued messages to the kernel, credits from the receiver.

cdef void sent(tcp_t *t, conn_t *c, lane_t *l, uint64_t n) noexcept nogil:
    """Account n bytes that the kernel took."""
    cdef uint64_t need
    t.b_sent += n
    while seek(t, c, l):
        need = HEADER + share(t, l, c.size[l.at & c.mask]) - l.off
        if n < need:
            l.off += n
            return
        n -= need
        finish(t, c, l)
        if n == 0:
            return


cdef void push(tcp_t *t, conn_t *c, lane_t *l) noexcept nogil:
    """Hand queued messages to the kernel until they or its room end."""
    cdef uint32_t header
    cdef uint64_t at, off, size, part, total, lend
    cdef ssize_t r
    while not c.error and l.writable and seek(t, c, l):
        # Payload is whatever the hot buffer holds: only the sizes are written into it.
        total = lend = 0
        at = l.at
        off = l.off
        while at < c.tail and total + HEADER < COPY_BYTES:
            size = c.size[at & c.mask]
            if not takes_part(t, l, size):
                at += 1
                continue
            part = HEADER + share(t, l, size) - off
            if off < HEADER:
                header = htonl(<uint32_t>size)
                memcpy(t.hot + total, <char *>&header + off, HEADER - off)
                total += HEADER - off
                part -= HEADER - off
            if part >= t.file_min and t.file >= 0:
                lend = part
                break
            if part > COPY_BYTES - total:
                total = COPY_BYTES
                break
            total += part
            at += 1
            off = 0
        r = 0
        if total:
            t.c_send += 1
            c.syscalls += 1
            r = genie_send(l.fd, t.hot, total, lend != 0)
            t.stamp = 0
            if r > 0:
                sent(t, c, l, r)
                if <uint64_t>r < total:
                    continue
        if lend and (total == 0 or r > 0):
            t.c_sendfile += 1
            c.syscalls += 1
            r = genie_sendfile(l.fd, t.file, lend if lend < FILE_BYTES else FILE_BYTES)
            t.stamp = 0
            if r > 0:
                t.b_lent += r
                sent(t, c, l, r)
        if r < 0:
            if errno == EINTR:
                continue
            if errno == EAGAIN:
                l.writable = 0
                t.blocked += 1
                return
            fail(t, c, -errno)
        elif r == 0:
            fail(t, c, -ECONNRESET)


cdef void push_all(tcp_t *t, conn_t *c) noexcept nogil:
    cdef int i
    for i in range(t.n_lanes):
        push(t, c, &t.lanes[c.lanes + i])
    ready(t, c)


cdef void take_credits(tcp_t *t, conn_t *c) noexcept nogil:
    """Read what the receiver reported."""
    cdef uint8_t counts[256]
    cdef ssize_t r, i
    cdef lane_t *lane = &t.lanes[c.lanes]
    if c.error or c.shared:
        return
    t.c_recv += 1
    c.syscalls += 1
    r = genie_recv(lane.fd, counts, sizeof(counts))
    t.stamp = 0
    if r < 0:
        if errno != EAGAIN and errno != EINTR:
            fail(t, c, -errno)
        elif errno == EAGAIN:
            lane.readable = 0
        return
    if r == 0:
        fail(t, c, -ECONNRESET)
        return
    if lane.readable != GONE:
        lane.readable = r == sizeof(counts)
    for i in range(r):
        if counts[i] == 0:
            c.expected = 1
            c.found = 0
            fail(t, c, -EBADMSG)
            return
        c.credit += counts[i]
        c.credits += counts[i]
    if c.credit > c.tail + MAX_CREDITS:
        c.expected = MAX_CREDITS
        c.found = c.credit - c.tail
        fail(t, c, -EBADMSG)
        return
    ready(t, c)
