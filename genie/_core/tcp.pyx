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

tcp_kernel.pxi has the system calls, tcp_structs.pxi the data, tcp_messages.pxi the queues,
tcp_send.pxi and tcp_receive.pxi the two directions, tcp_turn.pxi the functions that the engine
calls.
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

include "tcp_kernel.pxi"
include "tcp_structs.pxi"
include "tcp_messages.pxi"
include "tcp_send.pxi"
include "tcp_receive.pxi"
include "tcp_turn.pxi"


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
        t.watched = 1
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
            if watch_lane(t, t.n_sockets - 1) < 0:
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
