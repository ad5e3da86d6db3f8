"""Drives a transport's vtable from Python: preflight probes, tests and benchmarks."""

cimport cython
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.errno cimport EAGAIN, EIO, ETIMEDOUT
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc

from genie._core.transport cimport (
    GENIE_EV_ERROR, GENIE_EV_RECEIVED, GENIE_EV_SENT, GENIE_TRANSPORT_CAPSULE, genie_event,
    genie_transport,
)

cdef extern from * nogil:
    """
    #include <time.h>
    static inline int64_t drive_now(void) {
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
    }
    """
    int64_t drive_now()

cdef enum:
    EVENTS = 64


def now() -> int:
    """Return CLOCK_MONOTONIC in nanoseconds."""
    return drive_now()


cdef int await_events(genie_transport *t, int64_t *quiet, int64_t timeout_ns, genie_event *events
                      ) noexcept nogil:
    """Up to EVENTS events; 0 after a sleep that brought none, -errno, an event's error as it is.

    `quiet` is when nothing was last heard for the first time, 0 when something was.
    """
    cdef int i, n, r
    r = t.flush(t.self)
    if r < 0:
        return r
    n = t.poll(t.self, events, EVENTS)
    if n < 0:
        return n
    for i in range(n):
        if events[i].type == GENIE_EV_ERROR:
            return -EIO if events[i].status >= 0 else events[i].status
    if n:
        quiet[0] = 0
        return n
    if quiet[0] == 0:
        quiet[0] = drive_now()
    elif drive_now() - quiet[0] > timeout_ns:
        return -ETIMEDOUT
    r = t.wait(t.self, quiet[0] + timeout_ns + 1)
    return r if r < 0 else 0


@cython.final
cdef class Drive:
    """The functions of a transport capsule as methods, and loops over them at C speed.

    Args:
        capsule: A PyCapsule "genie.transport".
    """

    cdef genie_transport *t
    cdef object capsule

    def __cinit__(self, capsule: object):
        self.t = <genie_transport *>PyCapsule_GetPointer(capsule, GENIE_TRANSPORT_CAPSULE)
        self.capsule = capsule

    def post_recv(self, uint32_t conn, uint64_t nbytes, uint32_t step = 0) -> int:
        """Announce the next receive of `conn`; 0 or -errno."""
        return self.t.post_recv(self.t.self, conn, nbytes, step)

    def post_send(self, uint32_t conn, uint64_t nbytes, uint32_t step = 0) -> int:
        """Send the next message of `conn`; 0 or -errno."""
        return self.t.post_send(self.t.self, conn, nbytes, step)

    def flush(self) -> int:
        """Push out what was posted; 0 or -errno."""
        return self.t.flush(self.t.self)

    def poll(self, int most = EVENTS) -> list[tuple[int, int, int, int]]:
        """Return events as (type, connection, status, time in ns)."""
        cdef genie_event events[EVENTS]
        cdef int n = self.t.poll(self.t.self, events, min(most, EVENTS))
        if n < 0:
            raise OSError(-n, "poll")
        return [(events[i].type, events[i].conn, events[i].status, events[i].t_ns)
                for i in range(n)]

    def wait(self, int64_t ns) -> int:
        """Sleep until an event may be there, for at most `ns` nanoseconds; 0 or -errno."""
        cdef int r
        with nogil:
            r = self.t.wait(self.t.self, drive_now() + ns)
        return r

    def exchange(
        self,
        sends: list[int],
        recvs: list[int],
        sizes: list[int],
        int rounds,
        *,
        bint dependent = True,
        int64_t timeout_ns = 60_000_000_000,
    ) -> list[int]:
        """Run rounds of messages between two workers, as a ring of two ranks does.

        In each round and for each message size of `sizes`, every connection of `sends` sends and
        every one of `recvs` receives. If `dependent`, the next size starts when all receives of
        this one are complete (a ring's steps); else all are posted as room allows.

        Returns:
            Nanoseconds of each round.

        Raises:
            OSError: A connection failed, or `timeout_ns` passed without an event.
        """
        cdef int n_sends = len(sends)
        cdef int n_recvs = len(recvs)
        cdef int n_sizes = len(sizes)
        cdef int i, k, n, r = 0
        cdef int phases = n_sizes if dependent else 1
        cdef int64_t start, quiet
        cdef int64_t to_send, to_receive, unsent
        cdef genie_event events[EVENTS]
        cdef uint32_t *conns = <uint32_t *>malloc((n_sends + n_recvs + 1) * sizeof(uint32_t))
        cdef uint64_t *bytes_ = <uint64_t *>malloc((n_sizes + 1) * sizeof(uint64_t))
        cdef int *at = <int *>malloc((n_sends + 1) * sizeof(int))
        cdef int64_t *took = <int64_t *>malloc((rounds + 1) * sizeof(int64_t))
        cdef genie_transport *t = self.t
        cdef int first, last, round_, phase
        try:
            if conns == NULL or bytes_ == NULL or took == NULL or at == NULL:
                raise MemoryError
            for i in range(n_sends):
                conns[i] = sends[i]
            for i in range(n_recvs):
                conns[n_sends + i] = recvs[i]
            for i in range(n_sizes):
                bytes_[i] = sizes[i]
            with nogil:
                for round_ in range(rounds):
                    start = drive_now()
                    to_send = 0
                    for phase in range(phases):
                        first = phase if dependent else 0
                        last = phase + 1 if dependent else n_sizes
                        to_receive = <int64_t>n_recvs * (last - first)
                        unsent = <int64_t>n_sends * (last - first)
                        to_send += unsent
                        for i in range(n_sends):
                            at[i] = first
                        for i in range(n_recvs):
                            for k in range(first, last):
                                r = t.post_recv(t.self, conns[n_sends + i], bytes_[k], k)
                                if r < 0:
                                    break
                        quiet = 0
                        while r >= 0 and (
                            to_receive or unsent or (phase == phases - 1 and to_send)
                        ):
                            for i in range(n_sends):
                                while at[i] < last:
                                    r = t.post_send(t.self, conns[i], bytes_[at[i]], at[i])
                                    if r < 0:
                                        if r == -EAGAIN:
                                            r = 0
                                        break
                                    at[i] += 1
                                    unsent -= 1
                            if r >= 0:
                                r = t.flush(t.self)
                            if r < 0:
                                break
                            n = t.poll(t.self, events, EVENTS)
                            if n < 0:
                                r = n
                                break
                            for i in range(n):
                                if events[i].type == GENIE_EV_RECEIVED:
                                    to_receive -= 1
                                elif events[i].type == GENIE_EV_SENT:
                                    to_send -= 1
                                elif events[i].type == GENIE_EV_ERROR:
                                    r = events[i].status
                            if r < 0:
                                break
                            if n == 0:
                                if quiet == 0:
                                    quiet = drive_now()
                                elif drive_now() - quiet > timeout_ns:
                                    r = -ETIMEDOUT
                                    break
                                r = t.wait(t.self, quiet + timeout_ns + 1)
                                if r < 0:
                                    break
                            else:
                                quiet = 0
                        if r < 0:
                            break
                    if r < 0:
                        break
                    took[round_] = drive_now() - start
            if r < 0:
                raise OSError(-r, "exchange failed")
            return [took[i] for i in range(rounds)]
        finally:
            free(conns)
            free(bytes_)
            free(at)
            free(took)

    def ping(
        self, uint32_t send, uint32_t recv, uint64_t nbytes, int count, bint first,
        int64_t timeout_ns = 5_000_000_000,
    ) -> list[int]:
        """Send a message back and forth.

        Args:
            send, recv: Connections.
            nbytes: Its size.
            count: Round trips.
            first: Whether this end sends first.
            timeout_ns: Longest silence.

        Returns:
            Nanoseconds of each round trip; of the end that is not first, from send to receive.

        Raises:
            OSError: A connection failed, or nothing came for `timeout_ns`.
        """
        cdef genie_transport *t = self.t
        cdef genie_event events[EVENTS]
        cdef int64_t *took = <int64_t *>malloc((count + 1) * sizeof(int64_t))
        cdef int64_t begin = 0, quiet = 0
        cdef int i, n, k, r = 0
        cdef int unsent = 0, unreceived = 0, came
        if took == NULL:
            raise MemoryError
        try:
            with nogil:
                begin = drive_now()
                for k in range(count):
                    r = t.post_recv(t.self, recv, nbytes, k)
                    if r < 0:
                        break
                    came = 0
                    unsent += 1
                    if first:
                        begin = drive_now()
                    while True:
                        if unsent and (first or came):
                            r = t.post_send(t.self, send, nbytes, k)
                            if r == 0:
                                unsent -= 1
                                unreceived += 1
                            elif r != -EAGAIN:
                                break
                        if came and not unsent:
                            r = 0
                            break
                        r = n = await_events(t, &quiet, timeout_ns, events)
                        if r < 0:
                            break
                        for i in range(n):
                            if events[i].type == GENIE_EV_RECEIVED:
                                came = 1
                            elif events[i].type == GENIE_EV_SENT:
                                unreceived -= 1
                    if r < 0:
                        break
                    took[k] = drive_now() - begin
                    begin = drive_now()
                while r >= 0 and unreceived:
                    r = n = await_events(t, &quiet, timeout_ns, events)
                    for i in range(n):
                        unreceived -= events[i].type == GENIE_EV_SENT
            if r < 0:
                raise OSError(-r, "ping failed")
            return [took[k] for k in range(count)]
        finally:
            free(took)

    def stream(
        self, uint32_t conn, bint sender, uint64_t nbytes, int64_t count, *, int depth = 32,
        int64_t timeout_ns = 5_000_000_000,
    ) -> list[int]:
        """Send or receive messages back to back.

        Args:
            conn: Connection.
            sender: Which of the two.
            nbytes: Size of each.
            count: How many.
            depth: Messages outstanding.
            timeout_ns: Longest silence.

        Returns:
            CLOCK_MONOTONIC when it began, and when each completed.

        Raises:
            OSError: The connection failed, or nothing came for `timeout_ns`.
        """
        cdef genie_transport *t = self.t
        cdef genie_event events[EVENTS]
        cdef int64_t *at = <int64_t *>malloc((count + 1) * sizeof(int64_t))
        cdef int64_t posted = 0, done = 0, quiet = 0
        cdef int kind = GENIE_EV_SENT if sender else GENIE_EV_RECEIVED
        cdef int i, n, r = 0
        if at == NULL:
            raise MemoryError
        try:
            with nogil:
                at[0] = drive_now()
                while done < count:
                    while posted < count and posted - done < depth:
                        if sender:
                            r = t.post_send(t.self, conn, nbytes, <uint32_t>posted)
                        else:
                            r = t.post_recv(t.self, conn, nbytes, <uint32_t>posted)
                        if r < 0:
                            break
                        posted += 1
                    if r < 0 and r != -EAGAIN:
                        break
                    r = n = await_events(t, &quiet, timeout_ns, events)
                    if r < 0:
                        break
                    for i in range(n):
                        if events[i].type == kind and done < count:
                            done += 1
                            at[done] = events[i].t_ns
            if r < 0:
                raise OSError(-r, "stream failed")
            return [at[done] for done in range(count + 1)]
        finally:
            free(at)
