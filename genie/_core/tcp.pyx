"""The TCP transport: non-blocking sockets behind the vtable of transport.pxd.

What is on the wire. A connection has one socket (or `sockets` of them, its *lanes*),
as NCCL's socket transport. The sender's direction carries, for each message, its size as
four bytes in network order and then that many bytes (on each lane: the whole size, then the
lane's share); a 0-byte message is its four bytes. NCCL's socket transport sends the size of
every message too (an int, net_socket.cc). The other direction carries *credits*: every byte
is a number of receives that were announced since the last one.

Credits. A sender may be `run_ahead` messages beyond what the receiver has announced: their
bytes wait in the receiver's socket, unread, so early data needs no memory here, and the kernel's
buffers bound it. (NCCL's socket transport has no announcements at all: net_socket.cc sends
whatever the GPU has ready. A window of 8 instead of 64 costs 2 us of an 18 us 1 KB all_reduce.)
The receiver reports announcements half a window at a time, when it has nothing better to do, or
at once when three quarters are due. A sender that has no room therefore always has more than
run_ahead / 2 messages in flight that nobody announced yet.

Shared sockets. Two opposite connections may share their sockets, each direction carrying the
messages of one and nothing else. Then there are no credits, the kernel's buffers alone bound what
is sent early, as in NCCL's socket transport, and acknowledgements ride on the other direction's
messages: a quarter less time for small messages that go to and fro.

Bytes. No message has a buffer. Sent bytes come from a few hot pages: by sendfile(2) from a
memfd, which lends pages to the socket without a copy, or, below `file_min`, from a buffer
together with other messages in one send. Received bytes above `copy_max` are dropped in
the kernel (MSG_TRUNC); smaller ones are read, many at a time, into one hot buffer.
"""

cimport cython
from cpython.pycapsule cimport PyCapsule_GetContext, PyCapsule_New, PyCapsule_SetContext
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from libc.errno cimport EAGAIN, EBADMSG, ECONNRESET, EINTR, EINVAL, EMSGSIZE, ENOMEM, errno
from libc.stdint cimport (
    INT64_MAX, UINT32_MAX, int32_t, int64_t, uint8_t, uint32_t, uint64_t,
)
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memset

from genie._core.transport cimport (
    GENIE_EV_ERROR, GENIE_EV_READY, GENIE_EV_RECEIVED, GENIE_EV_SENT, GENIE_TRANSPORT_CAPSULE,
    genie_event, genie_transport,
)

from genie.errors import InputError, TransportError

cdef extern from * nogil:
    """
    #include <sys/epoll.h>
    #include <sys/ioctl.h>
    #include <sys/mman.h>
    #include <sys/sendfile.h>
    #include <sys/socket.h>
    #include <sys/syscall.h>
    #include <linux/sockios.h>
    #include <arpa/inet.h>
    #include <errno.h>
    #include <sched.h>
    #include <time.h>
    #include <unistd.h>
    static inline int64_t genie_now(void) {
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
    }
    /* epoll_wait with nanoseconds; kernels before 5.11 get whole milliseconds, rounded up. */
    static int genie_epoll(int ep, struct epoll_event *events, int max, int64_t ns) {
        if (ns <= 0) return epoll_wait(ep, events, max, 0);
    #ifdef SYS_epoll_pwait2
        struct timespec t = {ns / 1000000000, ns % 1000000000};
        int n = (int)syscall(SYS_epoll_pwait2, ep, events, max, &t, NULL, 0);
        if (n >= 0 || errno != ENOSYS) return n;
    #endif
        int64_t ms = ns / 1000000 + (ns % 1000000 != 0);
        return epoll_wait(ep, events, max, ms > 1000000 ? 1000000 : (int)ms);
    }
    static int genie_epoll_add(int ep, int fd, uint64_t data, int in, int out) {
        struct epoll_event e;
        e.events = EPOLLET | (in ? EPOLLIN | EPOLLRDHUP : 0) | (out ? EPOLLOUT : 0);
        e.data.u64 = data;
        return epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e);
    }
    static void genie_epoll_del(int ep, int fd) {
        struct epoll_event e;
        epoll_ctl(ep, EPOLL_CTL_DEL, fd, &e);
    }
    static ssize_t genie_send(int fd, const void *from, size_t n, int more) {
        return send(fd, from, n, MSG_DONTWAIT | MSG_NOSIGNAL | (more ? MSG_MORE : 0));
    }
    static ssize_t genie_sendfile(int fd, int file, size_t n) {
        off_t at = 0;
        return sendfile(fd, file, &at, n);
    }
    static ssize_t genie_recv(int fd, void *to, size_t n) {
        return recv(fd, to, n, MSG_DONTWAIT);
    }
    static ssize_t genie_peek(int fd) {
        char byte;
        return recv(fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK);
    }
    /* Linux's TCP drops n bytes without copying them (tcp(7)). */
    static ssize_t genie_drop(int fd, size_t n) {
        return recv(fd, NULL, n, MSG_DONTWAIT | MSG_TRUNC);
    }
    static void genie_end(int fd) { shutdown(fd, SHUT_WR); }
    /* Bytes the peer has not acknowledged yet. What it sent is dropped: closing a socket with
       unread bytes makes the kernel throw away what is still to be sent. */
    static int genie_unsent(int fd) {
        int n = 0;
        while (recv(fd, NULL, 1 << 20, MSG_DONTWAIT | MSG_TRUNC) > 0) {}
        return ioctl(fd, SIOCOUTQ, &n) < 0 ? 0 : n;
    }
    static int genie_memfd(size_t n) {
        int fd = (int)syscall(SYS_memfd_create, "genie", 1U /* MFD_CLOEXEC */);
        if (fd < 0) return -1;
        if (ftruncate(fd, (off_t)n) == 0) {
            void *at = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
            if (at != MAP_FAILED) {
                for (size_t i = 0; i < n; i += 4096) ((volatile char *)at)[i] = 1;
                munmap(at, n);
                return fd;
            }
        }
        close(fd);
        return -1;
    }
    """
    ctypedef Py_ssize_t ssize_t
    ctypedef union epoll_data_t:
        uint64_t u64
    cdef struct epoll_event:
        uint32_t events
        epoll_data_t data
    uint32_t EPOLLIN
    uint32_t EPOLLOUT
    uint32_t EPOLLRDHUP
    uint32_t EPOLLHUP
    uint32_t EPOLLERR
    int EPOLL_CLOEXEC
    int epoll_create1(int flags)
    int close(int fd)
    int sched_yield()
    uint32_t htonl(uint32_t x)
    uint32_t ntohl(uint32_t x)
    int64_t genie_now()
    int genie_epoll(int ep, epoll_event *events, int max, int64_t ns)
    int genie_epoll_add(int ep, int fd, uint64_t data, int in_, int out)
    void genie_epoll_del(int ep, int fd)
    ssize_t genie_send(int fd, const void *from_, size_t n, int more)
    ssize_t genie_sendfile(int fd, int file, size_t n)
    ssize_t genie_recv(int fd, void *to, size_t n)
    ssize_t genie_peek(int fd)
    ssize_t genie_drop(int fd, size_t n)
    int genie_memfd(size_t n)
    int genie_unsent(int fd)
    void genie_end(int fd)

cdef enum:
    HEADER = 4                # bytes that carry a message's size
    COPY_BYTES = 1 << 16      # hot buffer of small receives and small sends
    FILE_BYTES = 1 << 20      # hot pages of large sends
    EVENTS = 256              # socket events taken from the kernel at once
    RING = 16                 # first capacity of a connection's message ring
    SEND_QUEUE = 1024         # messages a connection accepts before -EAGAIN
    MAX_LANES = 16            # NCCL's limit of sockets per connection is 64
    CHECK_EVERY = 512         # empty direct rounds between two looks at all sockets
    YIELD_AFTER = 32          # empty rounds, 10 to 20 us, after which spinning yields the core
    MAX_CREDITS = 1 << 20     # announced receives a sender believes
    GONE = 2                  # lane_t.readable: an end of file or an error follows the bytes

ctypedef struct lane_t:
    int fd
    uint32_t conn             # index of its connection
    uint8_t number            # 0 carries small messages, all share striped ones
    uint8_t readable          # 1: the kernel may have bytes for us; or GONE
    uint8_t writable          # the kernel may have room for us
    uint8_t listed            # is in tcp_t.todo
    uint64_t at               # message (counted from 0) it works on
    uint64_t off              # bytes of it done on this lane, header included
    uint8_t header[4]

ctypedef struct conn_t:
    uint32_t id
    int32_t error             # 0 or -errno; a peer that ended in peace is -ECONNRESET too
    uint8_t failed            # the engine was told of the error
    uint8_t sender
    uint8_t shared            # its sockets carry the opposite connection too: no credits
    uint8_t waiting           # a post_send got -EAGAIN: owe a READY
    uint8_t dirty             # is in tcp_t.dirty
    uint8_t owing             # is in tcp_t.owing: announcements to report
    int32_t active            # place in tcp_t.active, -1 none
    uint32_t lanes            # first lane, n_lanes of them
    uint64_t head             # messages complete
    uint64_t tail             # messages posted
    uint64_t credit           # sender: may post up to here; receiver: announcements reported
    uint64_t expected         # of a size mismatch
    uint64_t found
    uint32_t mask
    uint64_t *size
    uint8_t *left             # lanes on which a message is not complete
    uint64_t nbytes
    uint64_t credits
    uint64_t syscalls

ctypedef struct tcp_t:
    genie_transport vtable
    int epoll
    int file
    int n_lanes
    int direct_max
    int blocked               # lanes that wait for room in the kernel
    int empty                 # direct rounds without a byte
    int64_t spin_ns
    int64_t stamp             # when the last system call returned, 0 not asked yet
    int64_t idle_since        # start of the present wait, 0 none
    uint64_t run_ahead
    uint64_t stripe_min
    uint64_t copy_max
    uint64_t file_min
    uint32_t n_ids
    int32_t *index            # connection id -> index, -1 none
    uint32_t n_conns
    conn_t *conns
    uint32_t n_sockets
    lane_t *lanes
    uint32_t n_dirty
    uint32_t *dirty           # connections with sends to push
    uint32_t n_owing
    uint32_t *owing           # connections with announcements to report
    uint32_t n_active
    uint32_t *active          # connections that wait for bytes
    uint32_t n_todo
    uint32_t *todo            # lanes to look at
    genie_event *events       # what poll() has yet to hand out
    uint32_t first
    uint32_t last
    uint32_t capacity
    char *hot
    uint64_t c_send
    uint64_t c_sendfile
    uint64_t c_recv
    uint64_t c_drop
    uint64_t c_epoll
    uint64_t c_wait
    uint64_t c_credit
    uint64_t b_copied
    uint64_t b_dropped
    uint64_t b_lent
    uint64_t b_sent


# Events ------------------------------------------------------------------------------------


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


# Messages of a connection ------------------------------------------------------------------


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


# Sending -----------------------------------------------------------------------------------


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


# Receiving ---------------------------------------------------------------------------------


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


# The vtable --------------------------------------------------------------------------------


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


cdef int ask(tcp_t *t, int64_t ns) noexcept nogil:
    """Ask the kernel which sockets changed, for at most ns; their number or -errno."""
    cdef epoll_event events[EVENTS]
    cdef int n
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


# Python ------------------------------------------------------------------------------------

cdef int live_transports = 0
cdef int live_sockets = 0


def live() -> dict[str, int]:
    """Return how many transports and sockets are open in this process."""
    return {"transports": live_transports, "sockets": live_sockets}


cdef void capsule_gone(object capsule) noexcept:
    cdef PyObject *owner = <PyObject *>PyCapsule_GetContext(capsule)
    if owner != NULL:
        Py_DECREF(<object>owner)


@cython.final
cdef class Tcp:
    """The sockets of one worker and the C functions that move their bytes.

    Args:
        n_ids: Connection ids are below this.
        n_conns: Connections that `add` may bring.
        sockets: Sockets (lanes) per connection, 1 to 16.
        spin_ns: Nanoseconds that `wait` polls before it sleeps; -1 for always.
        run_ahead: Messages a sender may be ahead of the receiver's announcements.
        stripe_min: Messages of this many bytes or more use all lanes.
        copy_max: Received messages up to this size are read, larger ones dropped in the kernel.
        file_min: Messages from this size are sent with sendfile, smaller ones gathered.
        direct_max: With at most this many waiting sockets, poll asks them without epoll.

    Raises:
        TransportError: The kernel gives no epoll descriptor.
        MemoryError: There is no memory for the tables.
    """

    cdef tcp_t *t

    def __cinit__(
        self,
        int n_ids,
        int n_conns,
        *,
        int sockets = 1,
        int64_t spin_ns = 0,
        int run_ahead = 64,
        int64_t stripe_min = 1 << 20,
        int64_t copy_max = 2048,
        int64_t file_min = 32768,
        int direct_max = 4,
    ):
        global live_transports
        cdef tcp_t *t
        self.t = NULL
        if not 1 <= sockets <= MAX_LANES:
            raise InputError(f"sockets per connection: {sockets}, expected 1 to {MAX_LANES}")
        if run_ahead < 2 or n_ids < 0 or n_conns < 0:
            raise InputError(f"run_ahead: {run_ahead}, expected 2 or more")
        if not 0 <= copy_max <= COPY_BYTES - HEADER:
            raise InputError(f"copy_max: {copy_max}, expected at most {COPY_BYTES - HEADER}")
        t = <tcp_t *>calloc(1, sizeof(tcp_t))
        if t == NULL:
            raise MemoryError
        self.t = t
        t.epoll = t.file = -1
        live_transports += 1
        t.n_lanes = sockets
        t.spin_ns = INT64_MAX if spin_ns < 0 else spin_ns
        t.run_ahead = run_ahead
        t.stripe_min = stripe_min if sockets > 1 else <uint64_t>-1
        t.copy_max = copy_max
        t.file_min = file_min
        t.direct_max = direct_max
        t.n_ids = n_ids
        t.capacity = 256
        t.index = <int32_t *>malloc((n_ids + 1) * sizeof(int32_t))
        t.conns = <conn_t *>calloc(n_conns + 1, sizeof(conn_t))
        t.lanes = <lane_t *>calloc(n_conns * sockets + 1, sizeof(lane_t))
        t.dirty = <uint32_t *>malloc((n_conns + 1) * sizeof(uint32_t))
        t.owing = <uint32_t *>malloc((n_conns + 1) * sizeof(uint32_t))
        t.active = <uint32_t *>malloc((n_conns + 1) * sizeof(uint32_t))
        t.todo = <uint32_t *>malloc((n_conns * sockets + 1) * sizeof(uint32_t))
        t.events = <genie_event *>malloc(t.capacity * sizeof(genie_event))
        t.hot = <char *>calloc(1, COPY_BYTES)
        if (
            t.index == NULL or t.conns == NULL or t.lanes == NULL or t.dirty == NULL
            or t.owing == NULL or t.active == NULL or t.todo == NULL or t.events == NULL
            or t.hot == NULL
        ):
            raise MemoryError
        memset(t.index, 0xff, n_ids * sizeof(int32_t))
        t.epoll = epoll_create1(EPOLL_CLOEXEC)
        if t.epoll < 0:
            raise TransportError(f"epoll_create1: errno {errno}")
        t.file = genie_memfd(FILE_BYTES)
        t.vtable.self = t
        t.vtable.post_recv = tcp_post_recv
        t.vtable.post_send = tcp_post_send
        t.vtable.flush = tcp_flush
        t.vtable.poll = tcp_poll
        t.vtable.wait = tcp_wait

    def __dealloc__(self):
        global live_transports
        cdef tcp_t *t = self.t
        cdef uint32_t i
        if t == NULL:
            return
        self.release()
        if t.conns != NULL:
            for i in range(t.n_conns):
                free(t.conns[i].size)
                free(t.conns[i].left)
        free(t.index)
        free(t.conns)
        free(t.lanes)
        free(t.dirty)
        free(t.owing)
        free(t.active)
        free(t.todo)
        free(t.events)
        free(t.hot)
        free(t)
        self.t = NULL
        live_transports -= 1

    cdef void release(self) noexcept:
        """Close what the kernel gave."""
        global live_sockets
        cdef tcp_t *t = self.t
        cdef uint32_t i
        if t.lanes != NULL:
            for i in range(t.n_sockets):
                if t.lanes[i].fd >= 0:
                    close(t.lanes[i].fd)
                    t.lanes[i].fd = -1
                    live_sockets -= 1
        if t.epoll >= 0:
            close(t.epoll)
        if t.file >= 0:
            close(t.file)
        t.epoll = t.file = -1

    @property
    def capsule(self) -> object:
        """The vtable as a PyCapsule "genie.transport"; it keeps this object alive."""
        if self.t.epoll < 0:
            raise TransportError("the TCP transport is closed")
        capsule = PyCapsule_New(&self.t.vtable, GENIE_TRANSPORT_CAPSULE, capsule_gone)
        Py_INCREF(self)
        PyCapsule_SetContext(capsule, <void *>self)
        return capsule

    def add(self, uint32_t conn, bint sender, fds: list[int], *, bint shared = False) -> None:
        """Take over the connected sockets `fds` (lane 0 first) as connection `conn`.

        Args:
            conn: The connection's id.
            sender: Whether this end sends.
            fds: As many descriptors as `sockets`; this object closes them.
            shared: The opposite connection uses the same sockets, through descriptors of its own
                (dup): this one keeps to its direction, and there are no credits.

        Raises:
            InputError: The id is out of range or taken, or the number of sockets is wrong.
            TransportError: epoll does not take a socket.
        """
        global live_sockets
        cdef tcp_t *t = self.t
        cdef conn_t *c
        cdef lane_t *lane
        cdef uint32_t k = t.n_conns
        cdef int i
        if t.epoll < 0:
            raise TransportError("the TCP transport is closed")
        if conn >= t.n_ids or t.index[conn] >= 0:
            raise InputError(f"connection {conn}: the id is taken or not below {t.n_ids}")
        if len(fds) != t.n_lanes:
            raise InputError(f"connection {conn}: {len(fds)} sockets, expected {t.n_lanes}")
        if <uint64_t>t.n_sockets // t.n_lanes != k:
            raise TransportError("an earlier connection failed to register")
        c = &t.conns[k]
        c.id = conn
        c.sender = sender
        c.shared = shared
        c.active = -1
        c.mask = RING - 1
        c.lanes = t.n_sockets
        c.credit = t.run_ahead if sender else 0
        if shared:
            c.credit = INT64_MAX if sender else 0
        c.size = <uint64_t *>malloc(RING * sizeof(uint64_t))
        c.left = <uint8_t *>malloc(RING)
        t.n_conns += 1
        if c.size == NULL or c.left == NULL:
            raise MemoryError
        for i in range(t.n_lanes):
            lane = &t.lanes[t.n_sockets]
            lane.fd = fds[i]
            lane.conn = k
            lane.number = <uint8_t>i
            lane.writable = 1
            t.n_sockets += 1
            live_sockets += 1
            if genie_epoll_add(
                t.epoll, lane.fd, t.n_sockets - 1, not (shared and sender), sender or not shared
            ) < 0:
                raise TransportError(f"epoll_ctl: errno {errno}")
        t.index[conn] = <int32_t>k

    def counters(self) -> dict[str, int]:
        """Return what was moved and what it cost, over all connections."""
        cdef tcp_t *t = self.t
        cdef uint64_t sent_bytes = 0
        cdef uint64_t sent_messages = 0
        cdef uint64_t received_bytes = 0
        cdef uint64_t received_messages = 0
        cdef uint32_t i
        for i in range(t.n_conns):
            if t.conns[i].sender:
                sent_bytes += t.conns[i].nbytes
                sent_messages += t.conns[i].head
            else:
                received_bytes += t.conns[i].nbytes
                received_messages += t.conns[i].head
        return {
            "sent_bytes": sent_bytes,
            "sent_messages": sent_messages,
            "received_bytes": received_bytes,
            "received_messages": received_messages,
            "wire_bytes_sent": t.b_sent,
            "bytes_lent": t.b_lent,
            "bytes_dropped": t.b_dropped,
            "bytes_copied": t.b_copied,
            "send_calls": t.c_send,
            "sendfile_calls": t.c_sendfile,
            "recv_calls": t.c_recv,
            "drop_calls": t.c_drop,
            "credit_calls": t.c_credit,
            "epoll_calls": t.c_epoll,
            "wait_calls": t.c_wait,
        }

    def connections(self) -> list[tuple[int, bool, int, int, int, int, int, int, int]]:
        """Return a row for each connection.

        Returns:
            Rows (id, sender, messages complete, messages posted, payload bytes, credits,
            system calls, error as -errno or 0, credit limit).
        """
        cdef uint32_t i
        cdef conn_t *c
        rows = []
        for i in range(self.t.n_conns):
            c = &self.t.conns[i]
            rows.append((
                c.id, bool(c.sender), c.head, c.tail, c.nbytes, c.credits, c.syscalls, c.error,
                c.credit,
            ))
        return rows

    def failures(self) -> list[tuple[int, int, int, int]]:
        """Return (id, -errno, expected, found) of each failed connection, sizes in bytes."""
        cdef uint32_t i
        cdef conn_t *c
        rows = []
        for i in range(self.t.n_conns):
            c = &self.t.conns[i]
            if c.failed:
                rows.append((c.id, c.error, c.expected, c.found))
        return rows

    def end(self) -> None:
        """Say to all peers that nothing more comes; nothing may be posted after this."""
        cdef uint32_t i
        if self.t.epoll >= 0:
            for i in range(self.t.n_sockets):
                genie_end(self.t.lanes[i].fd)

    def unsent(self) -> int:
        """Return the bytes that peers have not acknowledged; bytes from them are dropped."""
        cdef tcp_t *t = self.t
        cdef uint32_t i
        cdef int64_t total = 0
        if t.epoll >= 0:
            for i in range(t.n_sockets):
                if not t.conns[t.lanes[i].conn].error:
                    total += genie_unsent(t.lanes[i].fd)
        return total

    @property
    def closed(self) -> bool:
        """Whether the sockets are gone."""
        return self.t.epoll < 0

    def close(self) -> None:
        """Close every socket; a second call does nothing."""
        self.release()
