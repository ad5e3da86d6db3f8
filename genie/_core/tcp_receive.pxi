# Receiving: announced messages from the kernel, credits to the sender.

cdef void owe(tcp_t *t, conn_t *c) noexcept nogil:
    if not c.owing:
        c.owing = 1
        t.owing[t.n_owing] = <uint32_t>(c - t.conns)
        t.n_owing += 1


cdef void report(tcp_t *t, conn_t *c) noexcept nogil:
    """Tell the sender how many receives were announced since the last report."""
    cdef uint8_t counts[64]
    cdef uint64_t due = c.tail - c.credit
    cdef int n = 0
    cdef ssize_t r, i
    if c.error or due == 0 or t.lanes[c.lanes].readable == GONE:
        return
    while due and n < 64:
        counts[n] = <uint8_t>(due if due < 255 else 255)
        due -= counts[n]
        n += 1
    t.c_credit += 1
    c.syscalls += 1
    r = genie_send(t.lanes[c.lanes].fd, counts, n, 0)
    if r < 0:
        # A full socket: the sender has thousands of reports to read first. Try again later.
        # A closed one: reading finds out, and what had arrived before still counts.
        return
    for i in range(r):
        c.credit += counts[i]
        c.credits += counts[i]


cdef void report_all(tcp_t *t, uint64_t at_least) noexcept nogil:
    cdef uint32_t i = 0
    cdef conn_t *c
    while i < t.n_owing:
        c = &t.conns[t.owing[i]]
        if c.tail - c.credit >= at_least:
            report(t, c)
        if c.error or c.tail - c.credit < t.run_ahead // 2 or c.tail == c.credit:
            t.n_owing -= 1
            t.owing[i] = t.owing[t.n_owing]
            c.owing = 0
        else:
            i += 1


cdef int received(tcp_t *t, conn_t *c, lane_t *l, const char *data, uint64_t n) noexcept nogil:
    """Account n bytes read (data) or dropped (data is NULL: payload of one message); 0 or -1."""
    cdef uint64_t part, k
    cdef uint32_t size
    while True:
        if not seek(t, c, l):
            return 0
        part = share(t, l, c.size[l.at & c.mask])
        if l.off < HEADER:
            k = HEADER - l.off
            if k > n:
                k = n
            memcpy(&l.header[l.off], data, k)
            data += k
            n -= k
            l.off += k
            if l.off < HEADER:
                return 0
            memcpy(&size, l.header, HEADER)
            size = ntohl(size)
            if size != c.size[l.at & c.mask]:
                c.expected = c.size[l.at & c.mask]
                c.found = size
                fail(t, c, -EBADMSG)
                return -1
        k = HEADER + part - l.off
        if k > n:
            l.off += n
            return 0
        n -= k
        if data != NULL:
            data += k
        finish(t, c, l)
        if n == 0:
            return 0


cdef void pull(tcp_t *t, conn_t *c, lane_t *l) noexcept nogil:
    """Read posted messages until they or the kernel's bytes end; no byte that is not posted."""
    cdef uint64_t at, off, part, want
    cdef ssize_t r
    cdef bint dropping
    while not c.error and seek(t, c, l):
        part = share(t, l, c.size[l.at & c.mask])
        dropping = False
        if l.off >= HEADER and HEADER + part - l.off > t.copy_max:
            dropping = True
            want = HEADER + part - l.off
            t.c_drop += 1
            r = genie_drop(l.fd, want)
            t.stamp = 0
        else:
            want = 0
            at = l.at
            off = l.off
            while at < c.tail:
                part = c.size[at & c.mask]
                if not takes_part(t, l, part):
                    at += 1
                    continue
                part = share(t, l, part)
                if part > t.copy_max and off < HEADER:
                    want += HEADER - off
                    break
                part += HEADER - off
                if want + part > COPY_BYTES:
                    break
                want += part
                at += 1
                off = 0
            if want == 0:
                want = COPY_BYTES
            t.c_recv += 1
            r = genie_recv(l.fd, t.hot, want)
            t.stamp = 0
        c.syscalls += 1
        if r <= 0:
            if r < 0 and errno == EINTR:
                continue
            l.readable = 0
            if r == 0:
                fail(t, c, -ECONNRESET)
            elif errno != EAGAIN:
                fail(t, c, -errno)
            return
        if dropping:
            t.b_dropped += r
        else:
            t.b_copied += r
        if received(t, c, l, NULL if dropping else t.hot, r):
            return
        if <uint64_t>r < want:
            # A short read emptied the socket; the next bytes raise a new edge. An end of file
            # that came with these bytes does not.
            if l.readable != GONE:
                l.readable = 0
                return
