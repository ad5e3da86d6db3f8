"""A transport inside one process that records every post: two engines in two threads.

For tests: it proves the transport interface without a network, and lets a test assert
that the bytes, order and steps that a transport sees are those of the schedule. A
message completes at once; nothing moves before `flush`, as batching transports do.
"""

cimport cython
from cpython.pycapsule cimport PyCapsule_GetContext, PyCapsule_New, PyCapsule_SetContext
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.errno cimport EAGAIN, EBADMSG, EINVAL, ENOMEM
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

from genie._core.transport cimport (
    GENIE_EV_ERROR, GENIE_EV_READY, GENIE_EV_RECEIVED, GENIE_EV_SENT, GENIE_TRANSPORT_CAPSULE,
    genie_event, genie_transport,
)

import numpy as np

from genie.errors import InputError

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_mutex_t:
        pass
    ctypedef struct pthread_cond_t:
        pass
    ctypedef struct pthread_condattr_t:
        pass
    int pthread_mutex_init(pthread_mutex_t* m, void* attr)
    int pthread_mutex_lock(pthread_mutex_t* m)
    int pthread_mutex_unlock(pthread_mutex_t* m)
    int pthread_mutex_destroy(pthread_mutex_t* m)
    int pthread_condattr_init(pthread_condattr_t* a)
    int pthread_condattr_setclock(pthread_condattr_t* a, int clock)
    int pthread_cond_init(pthread_cond_t* c, pthread_condattr_t* a)
    int pthread_cond_signal(pthread_cond_t* c)
    int pthread_cond_timedwait(pthread_cond_t* c, pthread_mutex_t* m, const timespec* t)
    int pthread_cond_destroy(pthread_cond_t* c)

POST = np.dtype([
    ("endpoint", "i4"), ("kind", "i4"), ("connection", "u4"), ("step", "u4"), ("nbytes", "u8"),
    ("t_ns", "i8"),
])
"""A row of `posts()`; kind 0 = send, 1 = receive announced."""

cdef enum:
    UNLIMITED = -1

cdef struct Post:
    int32_t endpoint
    int32_t kind
    uint32_t conn
    uint32_t step
    uint64_t nbytes
    int64_t t_ns

cdef struct Queue:
    genie_event* events
    uint64_t head
    uint64_t tail
    uint64_t cap

cdef struct Endpoint:
    Shared* shared
    int32_t index
    pthread_cond_t cond
    Queue queue        # what poll() gives
    Post* batch        # posted, not flushed
    uint64_t n_batch
    uint64_t cap_batch

cdef struct Link:
    int32_t sender
    int32_t receiver
    uint64_t* sizes    # announced and not yet sent to, a ring
    uint64_t announced
    uint64_t posted    # accepted by post_send
    uint64_t cap
    int64_t fail_after
    int32_t fail_status
    int64_t lose_after
    uint64_t delivered
    uint64_t refuse    # post_send calls to refuse with -EAGAIN
    uint8_t waiting    # a post_send was refused: owe a READY

cdef struct Shared:
    pthread_mutex_t lock
    Endpoint* endpoints
    Link* links
    int32_t n_endpoints
    uint32_t n_links
    Post* posts
    uint64_t n_posts
    uint64_t cap_posts


cdef int64_t now_ns() noexcept nogil:
    cdef timespec t
    clock_gettime(CLOCK_MONOTONIC, &t)
    return <int64_t> t.tv_sec * 1000000000 + t.tv_nsec


cdef int put(Endpoint* to, uint8_t type, uint32_t conn, int32_t status) noexcept nogil:
    # Adds an event for an endpoint; the lock is held.
    cdef Queue* q = &to.queue
    cdef genie_event* grown
    cdef genie_event* v
    if q.tail == q.cap:
        grown = <genie_event*> realloc(q.events, (2 * q.cap + 64) * sizeof(genie_event))
        if grown == NULL:
            return -ENOMEM
        q.events = grown
        q.cap = 2 * q.cap + 64
    v = &q.events[q.tail]
    v.t_ns = now_ns()
    v.conn = conn
    v.status = status
    v.type = type
    q.tail += 1
    pthread_cond_signal(&to.cond)
    return 0


cdef int remember(Endpoint* me, int32_t kind, uint32_t conn, uint64_t nbytes, uint32_t step) \
        noexcept nogil:
    cdef Shared* s = me.shared
    cdef Post* grown
    cdef Post* p
    if s.n_posts == s.cap_posts:
        grown = <Post*> realloc(s.posts, (2 * s.cap_posts + 256) * sizeof(Post))
        if grown == NULL:
            return -ENOMEM
        s.posts = grown
        s.cap_posts = 2 * s.cap_posts + 256
    if me.n_batch == me.cap_batch:
        grown = <Post*> realloc(me.batch, (2 * me.cap_batch + 64) * sizeof(Post))
        if grown == NULL:
            return -ENOMEM
        me.batch = grown
        me.cap_batch = 2 * me.cap_batch + 64
    p = &s.posts[s.n_posts]
    s.n_posts += 1
    p.endpoint = me.index
    p.kind = kind
    p.conn = conn
    p.step = step
    p.nbytes = nbytes
    p.t_ns = now_ns()
    me.batch[me.n_batch] = p[0]
    me.n_batch += 1
    return 0


cdef int do_post_recv(void* self, uint32_t conn, uint64_t nbytes, uint32_t step) noexcept nogil:
    cdef Endpoint* me = <Endpoint*> self
    cdef Shared* s = me.shared
    cdef int rc
    if conn >= s.n_links or s.links[conn].receiver != me.index:
        return -EINVAL
    pthread_mutex_lock(&s.lock)
    rc = remember(me, 1, conn, nbytes, step)
    pthread_mutex_unlock(&s.lock)
    return rc


cdef int do_post_send(void* self, uint32_t conn, uint64_t nbytes, uint32_t step) noexcept nogil:
    cdef Endpoint* me = <Endpoint*> self
    cdef Shared* s = me.shared
    cdef Link* link
    cdef int rc
    if conn >= s.n_links or s.links[conn].sender != me.index:
        return -EINVAL
    link = &s.links[conn]
    pthread_mutex_lock(&s.lock)
    if link.refuse > 0:
        link.refuse -= 1
        put(me, GENIE_EV_READY, conn, 0)
        rc = -EAGAIN
    elif link.posted == link.announced:
        link.waiting = 1
        rc = -EAGAIN
    elif link.sizes[link.posted % link.cap] != nbytes:
        rc = -EBADMSG
    else:
        link.posted += 1
        rc = remember(me, 0, conn, nbytes, step)
    pthread_mutex_unlock(&s.lock)
    return rc


cdef int deliver(Shared* s, Post* p) noexcept nogil:
    # One flushed post takes effect; the lock is held.
    cdef Link* link = &s.links[p.conn]
    cdef uint64_t* grown
    cdef uint64_t i
    if p.kind == 1:
        if link.announced - link.posted == link.cap:
            grown = <uint64_t*> calloc(2 * link.cap + 16, sizeof(uint64_t))
            if grown == NULL:
                return -ENOMEM
            for i in range(link.posted, link.announced):
                grown[i % (2 * link.cap + 16)] = link.sizes[i % link.cap]
            free(link.sizes)
            link.sizes = grown
            link.cap = 2 * link.cap + 16
        link.sizes[link.announced % link.cap] = p.nbytes
        link.announced += 1
        if not link.waiting:
            return 0
        link.waiting = 0
        return put(&s.endpoints[link.sender], GENIE_EV_READY, p.conn, 0)
    if link.fail_after >= 0 and link.delivered >= <uint64_t> link.fail_after:
        put(&s.endpoints[link.sender], GENIE_EV_ERROR, p.conn, link.fail_status)
        return put(&s.endpoints[link.receiver], GENIE_EV_ERROR, p.conn, link.fail_status)
    if link.lose_after >= 0 and link.delivered >= <uint64_t> link.lose_after:
        return 0
    link.delivered += 1
    put(&s.endpoints[link.sender], GENIE_EV_SENT, p.conn, 0)
    return put(&s.endpoints[link.receiver], GENIE_EV_RECEIVED, p.conn, 0)


cdef int do_flush(void* self) noexcept nogil:
    cdef Endpoint* me = <Endpoint*> self
    cdef Shared* s = me.shared
    cdef int rc = 0
    cdef uint64_t i
    pthread_mutex_lock(&s.lock)
    for i in range(me.n_batch):
        if deliver(s, &me.batch[i]) != 0:
            rc = -ENOMEM
    me.n_batch = 0
    pthread_mutex_unlock(&s.lock)
    return rc


cdef int do_poll(void* self, genie_event* events, int max) noexcept nogil:
    cdef Endpoint* me = <Endpoint*> self
    cdef Queue* q = &me.queue
    cdef int n = 0
    pthread_mutex_lock(&me.shared.lock)
    while n < max and q.head < q.tail:
        events[n] = q.events[q.head]
        q.head += 1
        n += 1
    if q.head == q.tail:
        q.head = 0
        q.tail = 0
    pthread_mutex_unlock(&me.shared.lock)
    return n


cdef int do_wait(void* self, int64_t deadline_ns) noexcept nogil:
    cdef Endpoint* me = <Endpoint*> self
    cdef timespec t
    t.tv_sec = deadline_ns // 1000000000
    t.tv_nsec = deadline_ns % 1000000000
    pthread_mutex_lock(&me.shared.lock)
    if me.queue.head == me.queue.tail:
        pthread_cond_timedwait(&me.cond, &me.shared.lock, &t)
    pthread_mutex_unlock(&me.shared.lock)
    return 0


cdef void release(object capsule) noexcept:
    Py_DECREF(<object> PyCapsule_GetContext(capsule))


@cython.final
cdef class Loopback:
    """Connections between endpoints of one process.

    Args:
        senders: Endpoint that sends on each connection id.
        receivers: Endpoint that receives on it.
    """

    cdef Shared* s
    cdef genie_transport* tables

    def __cinit__(self, senders, receivers):
        cdef int32_t i
        cdef uint32_t k
        cdef pthread_condattr_t attr
        cdef genie_transport* t
        if len(senders) != len(receivers):
            raise InputError("a connection has one sender and one receiver")
        self.s = <Shared*> calloc(1, sizeof(Shared))
        if self.s == NULL:
            raise MemoryError()
        self.s.n_endpoints = 1 + max([*senders, *receivers], default=0)
        self.s.n_links = len(senders)
        self.s.endpoints = <Endpoint*> calloc(self.s.n_endpoints, sizeof(Endpoint))
        self.s.links = <Link*> calloc(self.s.n_links + 1, sizeof(Link))
        self.tables = <genie_transport*> calloc(self.s.n_endpoints, sizeof(genie_transport))
        if self.s.endpoints == NULL or self.s.links == NULL or self.tables == NULL:
            raise MemoryError()
        pthread_mutex_init(&self.s.lock, NULL)
        pthread_condattr_init(&attr)
        pthread_condattr_setclock(&attr, CLOCK_MONOTONIC)
        for i in range(self.s.n_endpoints):
            self.s.endpoints[i].shared = self.s
            self.s.endpoints[i].index = i
            pthread_cond_init(&self.s.endpoints[i].cond, &attr)
            t = &self.tables[i]
            t.self = &self.s.endpoints[i]
            t.post_recv = do_post_recv
            t.post_send = do_post_send
            t.flush = do_flush
            t.poll = do_poll
            t.wait = do_wait
        for k in range(self.s.n_links):
            self.s.links[k].sender = senders[k]
            self.s.links[k].receiver = receivers[k]
            self.s.links[k].fail_after = UNLIMITED
            self.s.links[k].lose_after = UNLIMITED

    def __dealloc__(self):
        cdef int32_t i
        cdef uint32_t k
        if self.s != NULL:
            if self.s.endpoints != NULL:
                for i in range(self.s.n_endpoints):
                    free(self.s.endpoints[i].queue.events)
                    free(self.s.endpoints[i].batch)
                    pthread_cond_destroy(&self.s.endpoints[i].cond)
                pthread_mutex_destroy(&self.s.lock)
            if self.s.links != NULL:
                for k in range(self.s.n_links):
                    free(self.s.links[k].sizes)
            free(self.s.endpoints)
            free(self.s.links)
            free(self.s.posts)
            free(self.s)
        free(self.tables)

    def capsule(self, int32_t endpoint):
        """The transport of one endpoint, for `Engine.set_transport`; it keeps this object."""
        if not 0 <= endpoint < self.s.n_endpoints:
            raise InputError(f"endpoint {endpoint} of {self.s.n_endpoints}")
        capsule = PyCapsule_New(&self.tables[endpoint], GENIE_TRANSPORT_CAPSULE, release)
        PyCapsule_SetContext(capsule, <void*> self)
        Py_INCREF(self)
        return capsule

    def fail(self, uint32_t connection, int64_t after, int32_t status):
        """Lets message number `after` (from 0) and all later ones of a connection fail."""
        self.link(connection).fail_after = after
        self.link(connection).fail_status = status

    def lose(self, uint32_t connection, int64_t after):
        """Lets message number `after` and all later ones vanish, as on a dead link."""
        self.link(connection).lose_after = after

    def refuse(self, uint32_t connection, uint64_t calls):
        """Lets the next sends of a connection be refused with -EAGAIN, as a full queue does."""
        self.link(connection).refuse = calls

    cdef Link* link(self, uint32_t connection) except NULL:
        if connection >= self.s.n_links:
            raise InputError(f"connection {connection} of {self.s.n_links}")
        return &self.s.links[connection]

    def posts(self):
        """Every accepted post of every endpoint in order; see `POST`."""
        cdef uint64_t i
        cdef Post* p
        with nogil:
            pthread_mutex_lock(&self.s.lock)
        try:
            table = np.zeros(self.s.n_posts, dtype=POST)
            for i in range(self.s.n_posts):
                p = &self.s.posts[i]
                table[i] = (p.endpoint, p.kind, p.conn, p.step, p.nbytes, p.t_ns)
        finally:
            pthread_mutex_unlock(&self.s.lock)
        return table
