# The data path: what happens per message, without the GIL and without a Python object.

cdef extern from * nogil:
    """
    #include <arpa/inet.h>
    #include <fcntl.h>
    #include <poll.h>
    #include <sched.h>
    #include <signal.h>
    #include <sys/mman.h>
    #include <sys/resource.h>
    #include <sys/syscall.h>
    #include <time.h>
    #include <unistd.h>
    static inline int64_t genie_verbs_now(void) {
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
    }
    /* The peer's NIC or kernel writes *p. */
    #define genie_load_acquire(p) __atomic_load_n((p), __ATOMIC_ACQUIRE)
    static int genie_ppoll(struct pollfd *fds, int n, int64_t ns) {
        struct timespec t = {ns / 1000000000, ns % 1000000000};
        return ppoll(fds, (nfds_t)n, &t, NULL);
    }
    """
    cdef struct pollfd:
        int fd
        short events
        short revents
    short POLLIN
    int64_t genie_verbs_now()
    uint64_t genie_load_acquire(uint64_t *p)
    int genie_ppoll(pollfd *fds, int n, int64_t ns)
    uint32_t htonl(uint32_t x)
    uint32_t ntohl(uint32_t x)
    int sched_yield()

cdef enum:
    ROWS = 256          # rows of a sender's CTS FIFO: NCCL's MAX_REQUESTS (spec 4.3)
    ENTRY_BYTES = 64    # one CTS entry
    ROW_BYTES = 512     # a row has room for 8 entries, NCCL's grouped receives
    MAX_DEVS = 4        # devices of one NIC: NCCL_IB_MAX_DEVS_PER_NIC
    MAX_QPS = 128       # NCCL_IB_QPS_PER_CONNECTION ends there
    POOL = 512          # work requests gathered between two flushes
    BATCH = 32          # completions taken at once
    # Kinds of work requests, in the low bits of wr_id. Unsignaled ones have one too: a failure
    # completes them all the same.
    WR_SEND = 1         # the WRITE_WITH_IMM that ends a part of a message
    WR_RECV = 2         # a receive without a buffer
    WR_CTS = 3          # clear to send, signaled once per round of the FIFO
    WR_PIECE = 4        # a piece of a long message, signaled to learn of room

# A CTS entry as the receiver writes it and the sender reads it (spec 4.3): the layout of NCCL.
ctypedef struct entry_t:
    uint64_t address
    uint64_t size
    uint32_t rkeys[MAX_DEVS]
    uint32_t nreqs
    uint32_t tag
    uint64_t id         # 1 + the number of the message on this connection
    uint8_t pad[16]

ctypedef struct qp_t:
    ibv_qp *qp
    ibv_send_wr *head   # gathered, not posted
    ibv_send_wr *tail
    ibv_recv_wr *recv_head
    ibv_recv_wr *recv_tail
    uint32_t used       # work requests in the send queue, gathered ones included
    uint32_t room       # entries of the send queue
    uint32_t covered    # of those, the ones after the last signaled one
    uint32_t receives   # posted receives
    uint32_t lkey
    uint32_t rkey       # of a receiver: the key of the sender's FIFO
    uint32_t conn       # index of its connection
    uint16_t port       # index of the port
    uint8_t remote_dev  # device of the peer, index into CTS rkeys
    uint8_t dirty       # listed for flush
    uint64_t name       # its part of wr_id: connection and number
    uint64_t bytes      # payload posted

ctypedef struct conn_t:
    uint32_t id
    uint32_t first_qp
    uint8_t sender
    uint8_t n_qps
    uint8_t uses        # QPs a message is spread over (spec 4.2: U)
    uint8_t n_devs      # own devices
    uint8_t remote_devs
    uint8_t state       # 0 declared, 1 created, 2 connected
    uint8_t waiting     # a post_send got -EAGAIN: owe a READY
    uint8_t split       # WRITE then 0-byte WRITE_WITH_IMM above the threshold
    int32_t error
    qp_t *qps
    uint16_t nic
    uint16_t cq[MAX_DEVS]
    uint64_t next       # messages posted
    uint64_t head       # messages complete, in order
    uint64_t at         # sender: its FIFO; receiver: its slots
    uint64_t slot       # bytes of a slot
    uint64_t length     # bytes of the slots together
    uint64_t remote     # sender: the peer's slots; receiver: the peer's FIFO
    uint64_t remote_length
    uint64_t source     # sender: the hot pages it sends from
    uint64_t source_length
    uint64_t piece      # most bytes of one work request
    entry_t *entries    # receiver: the CTS entries it writes from
    uint8_t *left       # parts of a message not complete
    uint32_t *expected  # receiver: announced bytes
    uint64_t nbytes     # payload of complete messages
    # A long message (parts above `piece`), while its pieces are being posted.
    uint8_t long_active
    uint8_t long_part
    uint64_t long_offset
    uint64_t long_size
    uint64_t long_target
    uint32_t long_rkeys[MAX_DEVS]
    # The first failure, and how many completions followed it.
    int32_t status
    uint32_t vendor_error
    uint32_t failed_qp
    uint64_t failed_wr
    uint64_t failed_message
    uint32_t found      # bytes that came where others were announced
    uint64_t flushed
    uint64_t later

ctypedef struct cq_t:
    ibv_cq *cq
    uint32_t entries
    uint16_t port
    uint8_t armed

ctypedef struct port_t:
    ibv_context *context
    ibv_pd *pd
    ibv_mr *mr
    ibv_comp_channel *channel
    ibv_port_attr attr
    ibv_gid gid
    int gid_index
    uint16_t nic
    uint8_t number
    int max_cqe
    int max_qp_wr
    int max_inline
    uint64_t registered

ctypedef struct nic_t:
    uint32_t first_port
    uint32_t n_ports
    char *at            # one mapping: FIFOs and CTS entries, then the data slots
    uint64_t length
    uint64_t control    # bytes before the data slots
    uint64_t source     # offset of the pages sent from
    uint64_t source_length
    int file            # the hot pages, mapped again and again

ctypedef struct verbs_t:
    genie_transport vtable
    uint32_t n_ids
    int32_t *index      # connection id -> index, -1 none
    uint32_t n_conns
    conn_t *conns
    uint32_t n_qps
    qp_t *qps
    uint32_t n_cqs
    cq_t *cqs
    uint32_t n_ports
    port_t *ports
    uint32_t n_nics
    nic_t *nics
    # Behaviour.
    int cts             # 0: open loop, no CTS (benchmarks)
    int imm             # 0: plain WRITEs, no notice to the receiver (benchmarks)
    int inline_max
    uint64_t ar_threshold
    uint32_t depth      # messages outstanding on a connection
    int64_t spin_ns
    int64_t tick_ns     # longest sleep while a sender waits for a CTS
    # Gathered work requests.
    ibv_send_wr *wrs
    ibv_sge *sges
    uint32_t n_wrs
    ibv_recv_wr *recvs
    uint32_t n_recvs
    uint32_t n_dirty
    uint32_t *dirty     # QPs with something gathered
    int stuck           # a provider's send queue was fuller than ours: retry
    # Connections to look at.
    uint32_t n_waiting
    uint32_t *waiting   # senders that were refused
    uint32_t n_longs
    uint32_t *longs     # senders in a long message
    # Events: straight to the caller while it has room, else here.
    genie_event *out
    genie_event *out_end
    genie_event *events
    uint32_t first
    uint32_t last
    uint32_t capacity
    int64_t now
    int64_t idle_since
    int64_t tick
    pollfd *fds
    # Counters.
    uint64_t c_post_send
    uint64_t c_post_recv
    uint64_t c_wrs
    uint64_t c_poll
    uint64_t c_empty
    uint64_t c_wc
    uint64_t c_arm
    uint64_t c_sleep
    uint64_t c_refused
    uint64_t c_async
    int last_async


cdef int keep(verbs_t *t, conn_t *c, int kind, int status) noexcept nogil:
    """An event for which the caller of poll has no room, or that happened outside of it."""
    cdef genie_event *e
    cdef genie_event *grown
    if t.first == t.last:
        t.first = t.last = 0
    if t.last == t.capacity:
        grown = <genie_event *>realloc(t.events, 2 * t.capacity * sizeof(genie_event))
        if grown == NULL:
            return -ENOMEM
        t.events = grown
        t.capacity *= 2
    e = &t.events[t.last]
    t.last += 1
    e.t_ns = t.now
    e.conn = c.id
    e.status = status
    e.type = <uint8_t>kind
    return 0


cdef inline int emit(verbs_t *t, conn_t *c, int kind, int status) noexcept nogil:
    cdef genie_event *e = t.out
    if e == t.out_end:
        return keep(t, c, kind, status)
    t.out = e + 1
    e.t_ns = t.now
    e.conn = c.id
    e.status = status
    e.type = <uint8_t>kind
    return 0


cdef void fail(verbs_t *t, conn_t *c, int status) noexcept nogil:
    """Mark c failed once and tell the engine."""
    if c.error:
        return
    c.error = status if status else -EIO
    c.waiting = 0
    t.now = genie_verbs_now()
    emit(t, c, GENIE_EV_ERROR, c.error)


# Gathering and posting ---------------------------------------------------------------------


cdef inline void list_qp(verbs_t *t, qp_t *q) noexcept nogil:
    if not q.dirty:
        q.dirty = 1
        t.dirty[t.n_dirty] = <uint32_t>(q - t.qps)
        t.n_dirty += 1


cdef inline ibv_send_wr *gather(verbs_t *t, qp_t *q) noexcept nogil:
    """The next work request of q; the caller made sure that the pool has one."""
    cdef ibv_send_wr *w = &t.wrs[t.n_wrs]
    t.n_wrs += 1
    w.next = NULL
    if q.head == NULL:
        q.head = w
        list_qp(t, q)
    else:
        q.tail.next = w
    q.tail = w
    q.used += 1
    return w


cdef inline uint64_t wr_name(qp_t *q, uint64_t message, uint64_t kind, uint32_t covers
                             ) noexcept nogil:
    """What wr_id says: connection, work requests it covers, QP, slot of the message, kind."""
    return q.name | <uint64_t>covers << 20 | (message & (ROWS - 1)) << 4 | kind


cdef inline void gather_write(verbs_t *t, conn_t *c, qp_t *q, uint64_t message, uint64_t from_,
                              uint64_t target, uint32_t rkey, uint32_t n) noexcept nogil:
    """An unsignaled RDMA WRITE; it completes only when it fails, and says then whose it was."""
    cdef ibv_send_wr *w = gather(t, q)
    w.wr_id = wr_name(q, message, WR_PIECE, q.covered + 1)
    w.sg_list.addr = from_
    w.sg_list.length = n
    w.sg_list.lkey = q.lkey
    w.num_sge = 1 if n else 0
    w.opcode = IBV_WR_RDMA_WRITE
    w.send_flags = IBV_SEND_INLINE if n and n <= <uint32_t>t.inline_max else 0
    genie_ibv_target(w, target, rkey)
    q.covered += 1
    q.bytes += n


cdef inline void gather_last(verbs_t *t, conn_t *c, qp_t *q, uint64_t message, uint64_t from_,
                             uint64_t target, uint32_t rkey, uint32_t n, uint32_t total
                             ) noexcept nogil:
    """The signaled WRITE_WITH_IMM that ends a part; imm is the size of the whole message."""
    cdef ibv_send_wr *w = gather(t, q)
    w.wr_id = wr_name(q, message, WR_SEND, q.covered + 1)
    q.covered = 0
    w.sg_list.addr = from_
    w.sg_list.length = n
    w.sg_list.lkey = q.lkey
    w.num_sge = 1 if n else 0
    w.opcode = IBV_WR_RDMA_WRITE_WITH_IMM if t.imm else IBV_WR_RDMA_WRITE
    w.send_flags = IBV_SEND_SIGNALED
    if n and n <= <uint32_t>t.inline_max:
        w.send_flags |= IBV_SEND_INLINE
    w.imm_data = htonl(total)
    genie_ibv_target(w, target, rkey)
    q.bytes += n


cdef void post_receives(verbs_t *t, qp_t *q) noexcept nogil:
    cdef ibv_recv_wr *bad = NULL
    cdef int rc
    if q.recv_head == NULL:
        return
    t.c_post_recv += 1
    rc = ibv_post_recv(q.qp, q.recv_head, &bad)
    q.recv_head = NULL
    if rc:
        fail(t, &t.conns[q.conn], -(rc if rc > 0 else EIO))


cdef int v_flush(void *self) noexcept nogil:
    """Post what was gathered: all receives first, as a CTS promises them."""
    cdef verbs_t *t = <verbs_t *>self
    cdef uint32_t i
    cdef uint32_t kept = 0
    cdef qp_t *q
    cdef ibv_send_wr *bad
    cdef int rc
    if t.n_recvs:
        for i in range(t.n_dirty):
            post_receives(t, &t.qps[t.dirty[i]])
        t.n_recvs = 0
    for i in range(t.n_dirty):
        q = &t.qps[t.dirty[i]]
        if q.head == NULL:
            q.dirty = 0
            continue
        bad = NULL
        t.c_post_send += 1
        rc = ibv_post_send(q.qp, q.head, &bad)
        if rc == ENOMEM and bad != NULL:
            # The provider's queue is full before ours: keep the rest, completions make room.
            q.head = bad
            t.dirty[kept] = t.dirty[i]
            kept += 1
            continue
        q.head = NULL
        q.dirty = 0
        if rc:
            fail(t, &t.conns[q.conn], -(rc if rc > 0 else EIO))
    t.n_dirty = kept
    t.stuck = kept != 0
    if not kept:
        t.c_wrs += t.n_wrs
        t.n_wrs = 0
    return 0


cdef inline bint pool_has(verbs_t *t, uint32_t n) noexcept nogil:
    if t.n_wrs + n > POOL:
        v_flush(t)
        return t.n_wrs + n <= POOL
    return True


# Sending -----------------------------------------------------------------------------------


cdef inline entry_t *fifo_entry(conn_t *c, uint64_t message) noexcept nogil:
    return <entry_t *>(c.at + (message & (ROWS - 1)) * ROW_BYTES)


cdef inline qp_t *qp_of(conn_t *c, uint64_t message, uint32_t part) noexcept nogil:
    """The QP of a part (spec 4.2): consecutive messages rotate over the QPs."""
    if c.n_qps == 1:
        return c.qps
    return &c.qps[(message * c.uses + part) % c.n_qps]


cdef inline uint64_t part_size(conn_t *c, uint64_t n) noexcept nogil:
    """Bytes of each part but the last ones (spec 4.2): a multiple of 128."""
    if c.uses == 1:
        return n
    return ((n + c.uses - 1) // c.uses + 127) // 128 * 128


cdef bint may_send(verbs_t *t, conn_t *c) noexcept nogil:
    """Whether the next message can be posted now."""
    cdef uint32_t j
    cdef qp_t *q
    if c.next - c.head >= t.depth or c.long_active:
        return False
    if t.cts and genie_load_acquire(&fifo_entry(c, c.next).id) != c.next + 1:
        return False
    if c.n_qps == 1:
        q = c.qps
        if q.used + 2 > q.room:
            return False
        return t.n_wrs + 2 <= POOL or pool_has(t, 2)
    for j in range(c.uses):
        q = qp_of(c, c.next, j)
        if q.used + 2 > q.room:
            return False
    return pool_has(t, 2 * c.uses)


cdef void long_send(verbs_t *t, conn_t *c) noexcept nogil:
    """Post pieces of a long message while the send queues have room."""
    cdef uint64_t message = c.next - 1
    cdef uint64_t size = part_size(c, c.long_size)
    cdef uint64_t begin, end, n, target, from_
    cdef qp_t *q
    cdef bint last
    while c.long_part < c.uses:
        q = qp_of(c, message, c.long_part)
        if q.used + 2 > q.room or not pool_has(t, 2):
            return
        begin = c.long_part * size
        end = begin + size
        if begin > c.long_size:
            begin = c.long_size
        if end > c.long_size:
            end = c.long_size
        n = end - begin - c.long_offset
        last = n <= c.piece
        if not last:
            n = c.piece
        target = c.long_target + begin + c.long_offset
        if target + n > c.remote + c.remote_length:
            target = c.remote
        from_ = c.source + begin + c.long_offset
        if from_ + n > c.source + c.source_length:
            from_ = c.source
        if not last:
            gather_write(t, c, q, message, from_, target, c.long_rkeys[q.remote_dev], <uint32_t>n)
            if q.covered >= q.room // 4:
                q.tail.send_flags |= <unsigned int>IBV_SEND_SIGNALED
                q.covered = 0
            c.long_offset += n
            continue
        if c.split and c.long_size > t.ar_threshold:
            gather_write(t, c, q, message, from_, target, c.long_rkeys[q.remote_dev], <uint32_t>n)
            n = 0
        gather_last(t, c, q, message, from_, target, c.long_rkeys[q.remote_dev], <uint32_t>n,
                    <uint32_t>c.long_size)
        c.long_part += 1
        c.long_offset = 0
    c.long_active = 0


cdef int v_post_send(void *self, uint32_t conn, uint64_t nbytes, uint32_t step) noexcept nogil:
    cdef verbs_t *t = <verbs_t *>self
    cdef conn_t *c
    cdef qp_t *q
    cdef entry_t *e
    cdef entry_t open_loop
    cdef uint64_t message, size, begin, n, target, from_
    cdef uint32_t j
    if conn >= t.n_ids or t.index[conn] < 0:
        return -EINVAL
    c = &t.conns[t.index[conn]]
    if not c.sender:
        return -EINVAL
    if c.error:
        return -EIO
    if nbytes > UINT32_MAX:
        return -EMSGSIZE
    if not may_send(t, c):
        if not c.waiting:
            c.waiting = 1
            t.c_refused += 1
            t.waiting[t.n_waiting] = <uint32_t>(c - t.conns)
            t.n_waiting += 1
        return -EAGAIN
    message = c.next
    e = fifo_entry(c, message)
    if not t.cts:
        e = &open_loop
        e.address = c.remote
        for j in range(<uint32_t>MAX_DEVS):
            e.rkeys[j] = c.long_rkeys[j]
    elif nbytes > e.size:
        c.found = <uint32_t>nbytes
        c.failed_message = message
        fail(t, c, -EBADMSG)
        return -EBADMSG
    c.next += 1
    if c.n_qps == 1 and nbytes <= c.piece and not (c.split and nbytes > t.ar_threshold):
        # The usual case: one WRITE_WITH_IMM.
        gather_last(t, c, c.qps, message, c.source, e.address, e.rkeys[0], <uint32_t>nbytes,
                    <uint32_t>nbytes)
        return 0
    c.left[message & (ROWS - 1)] = c.uses
    size = part_size(c, nbytes)
    if size > c.piece or nbytes > c.remote_length or nbytes > c.source_length:
        c.long_active = 1
        c.long_part = 0
        c.long_offset = 0
        c.long_size = nbytes
        c.long_target = e.address
        for j in range(<uint32_t>MAX_DEVS):
            c.long_rkeys[j] = e.rkeys[j]
        t.longs[t.n_longs] = <uint32_t>(c - t.conns)
        t.n_longs += 1
        long_send(t, c)
        return 0
    for j in range(c.uses):
        q = qp_of(c, message, j)
        begin = j * size
        if begin > nbytes:
            begin = nbytes
        n = nbytes - begin
        if n > size:
            n = size
        target = e.address + begin
        from_ = c.source + begin
        if c.split and nbytes > t.ar_threshold:
            gather_write(t, c, q, message, from_, target, e.rkeys[q.remote_dev], <uint32_t>n)
            n = 0
        gather_last(t, c, q, message, from_, target, e.rkeys[q.remote_dev], <uint32_t>n,
                    <uint32_t>nbytes)
    return 0


# Receiving ---------------------------------------------------------------------------------


cdef inline void gather_receive(verbs_t *t, qp_t *q, uint64_t message) noexcept nogil:
    """A receive without a buffer; the caller made sure that the pool has one."""
    cdef ibv_recv_wr *r = &t.recvs[t.n_recvs]
    t.n_recvs += 1
    r.wr_id = wr_name(q, message, WR_RECV, 0)
    r.next = NULL
    if q.recv_head == NULL:
        q.recv_head = r
        list_qp(t, q)
    else:
        q.recv_tail.next = r
    q.recv_tail = r
    q.receives += 1


cdef int v_post_recv(void *self, uint32_t conn, uint64_t nbytes, uint32_t step) noexcept nogil:
    cdef verbs_t *t = <verbs_t *>self
    cdef conn_t *c
    cdef qp_t *first
    cdef entry_t *e
    cdef ibv_send_wr *w
    cdef uint64_t message, offset
    cdef uint32_t j, row, dev
    if conn >= t.n_ids or t.index[conn] < 0:
        return -EINVAL
    c = &t.conns[t.index[conn]]
    if c.sender:
        return -EINVAL
    if c.error:
        return -EIO
    if nbytes > UINT32_MAX:
        return -EMSGSIZE
    message = c.next
    if message - c.head >= t.depth:
        return -EAGAIN
    row = message & (ROWS - 1)
    if t.n_recvs + c.uses > POOL or t.n_wrs >= POOL:
        v_flush(t)
        if not pool_has(t, 1):
            return -EAGAIN
    # The CTS goes out on the first QP of device (message mod devices) (spec 4.3).
    dev = <uint32_t>(message % c.n_devs) if c.n_devs > 1 else 0
    first = &c.qps[dev]
    if t.cts and first.used >= first.room:
        return -EAGAIN
    c.next = message + 1
    c.expected[row] = <uint32_t>nbytes
    if c.n_qps > 1:
        c.left[row] = c.uses
    if not t.imm:
        return 0
    if c.n_qps == 1:
        gather_receive(t, first, message)
    else:
        for j in range(c.uses):
            gather_receive(t, qp_of(c, message, j), message)
    if not t.cts:
        return 0
    offset = (step & 7) * c.slot
    if offset + nbytes > c.length:
        offset = 0
    e = &c.entries[row]
    e.address = c.at + offset
    e.size = nbytes
    e.id = message + 1
    w = gather(t, first)
    w.sg_list.addr = <uint64_t>e
    w.sg_list.length = ENTRY_BYTES
    w.sg_list.lkey = first.lkey
    w.num_sge = 1
    w.opcode = IBV_WR_RDMA_WRITE
    w.send_flags = IBV_SEND_INLINE if ENTRY_BYTES <= t.inline_max else 0
    genie_ibv_target(w, c.remote + row * ROW_BYTES, first.rkey)
    first.covered += 1
    w.wr_id = wr_name(first, message, WR_CTS, first.covered)
    if row == dev:
        # Once per round of the FIFO, so that the send queue is known to have room again.
        w.send_flags |= IBV_SEND_SIGNALED
        first.covered = 0
    return 0


# Completions -------------------------------------------------------------------------------


cdef void failed(verbs_t *t, conn_t *c, qp_t *q, ibv_wc *w) noexcept nogil:
    """Keep the first failure of a connection, count the rest.

    Of a failed completion only wr_id, status, qp_num and vendor_err mean anything.
    """
    cdef uint64_t slot = (w.wr_id >> 4) & (ROWS - 1)
    if (w.wr_id & 15) == WR_RECV:
        if q.receives:
            q.receives -= 1
    if c.status == 0:
        c.status = w.status
        c.vendor_error = w.vendor_err
        c.failed_qp = w.qp_num
        c.failed_wr = w.wr_id
        c.failed_message = c.head + ((slot - c.head) & (ROWS - 1))
        fail(t, c, w.status)
    elif w.status == IBV_WC_WR_FLUSH_ERR:
        c.flushed += 1
    else:
        c.later += 1


cdef void complete_part(verbs_t *t, conn_t *c, uint32_t slot) noexcept nogil:
    """One part of a message is done, of several QPs; report messages in their order."""
    cdef int kind = GENIE_EV_SENT if c.sender else GENIE_EV_RECEIVED
    c.left[slot] -= 1
    if c.left[slot] or slot != (c.head & (ROWS - 1)):
        return
    while c.head != c.next and c.left[c.head & (ROWS - 1)] == 0:
        c.nbytes += c.expected[c.head & (ROWS - 1)] if not c.sender else 0
        c.head += 1
        emit(t, c, kind, 0)


cdef inline void handle(verbs_t *t, ibv_wc *w) noexcept nogil:
    cdef conn_t *c = &t.conns[w.wr_id >> 32]
    cdef qp_t *q = &c.qps[(w.wr_id >> 12) & 255]
    cdef uint32_t slot = (w.wr_id >> 4) & (ROWS - 1)
    cdef int kind = w.wr_id & 15
    if w.status != IBV_WC_SUCCESS:
        failed(t, c, q, w)
        return
    if kind == WR_RECV:
        q.receives -= 1
        if ntohl(w.imm_data) != c.expected[slot]:
            c.found = ntohl(w.imm_data)
            c.failed_message = c.head + ((slot - c.head) & (ROWS - 1))
            fail(t, c, -EBADMSG)
            return
        if c.error:
            return
        if c.n_qps > 1:
            complete_part(t, c, slot)
            return
        # One QP completes in order.
        c.nbytes += c.expected[slot]
        c.head += 1
        emit(t, c, GENIE_EV_RECEIVED, 0)
        return
    q.used -= <uint32_t>(w.wr_id >> 20) & 4095
    if kind != WR_SEND or c.error:
        return
    if c.n_qps > 1:
        complete_part(t, c, slot)
        return
    c.head += 1
    emit(t, c, GENIE_EV_SENT, 0)


cdef void look_at_waiting(verbs_t *t) noexcept nogil:
    """READY for every refused sender that has room and a CTS now."""
    cdef uint32_t i = 0
    cdef conn_t *c
    while i < t.n_waiting:
        c = &t.conns[t.waiting[i]]
        if c.waiting and not may_send(t, c):
            i += 1
            continue
        t.n_waiting -= 1
        t.waiting[i] = t.waiting[t.n_waiting]
        if c.waiting:
            c.waiting = 0
            t.now = genie_verbs_now()
            emit(t, c, GENIE_EV_READY, 0)


cdef void go_on(verbs_t *t) noexcept nogil:
    """Long messages and refused posts, after completions made room."""
    cdef uint32_t i = 0
    cdef conn_t *c
    while i < t.n_longs:
        c = &t.conns[t.longs[i]]
        if c.long_active and not c.error:
            long_send(t, c)
        if c.long_active and not c.error:
            i += 1
            continue
        t.n_longs -= 1
        t.longs[i] = t.longs[t.n_longs]
    if t.n_wrs:
        v_flush(t)


cdef int progress(verbs_t *t) noexcept nogil:
    """Take what the completion queues hold, one batch of each; the number taken or -errno."""
    cdef ibv_wc wcs[BATCH]
    cdef uint32_t i
    cdef int k, n
    cdef int total = 0
    t.c_poll += 1
    for i in range(t.n_cqs):
        n = ibv_poll_cq(t.cqs[i].cq, BATCH, wcs)
        if n == 0:
            continue
        if n < 0:
            return -EIO
        t.now = genie_verbs_now()
        t.c_wc += n
        total += n
        for k in range(n):
            handle(t, &wcs[k])
    if t.n_longs or t.stuck:
        go_on(t)
    if t.n_waiting:
        look_at_waiting(t)
    if total == 0:
        t.c_empty += 1
    return total


cdef int v_poll(void *self, genie_event *events, int max) noexcept nogil:
    cdef verbs_t *t = <verbs_t *>self
    cdef uint32_t n = 0
    cdef int rc
    if t.first != t.last:
        n = t.last - t.first
        if n > <uint32_t>max:
            n = <uint32_t>max
        memcpy(events, &t.events[t.first], n * sizeof(genie_event))
        t.first += n
        return <int>n
    t.out = events
    t.out_end = events + max
    rc = progress(t)
    n = <uint32_t>(t.out - events)
    t.out = t.out_end = NULL
    if rc < 0:
        return rc
    if n:
        t.idle_since = 0
        t.tick = 0
    return <int>n


# Sleeping ----------------------------------------------------------------------------------


cdef void take_async(verbs_t *t, port_t *p) noexcept nogil:
    """Note what the device says by itself (port down, QP fatal, ...)."""
    cdef ibv_async_event event
    if genie_ibv_get_async_event(p.context, &event) == 0:
        t.c_async += 1
        t.last_async = event.event_type
        genie_ibv_ack_async_event(&event)


cdef void take_notices(verbs_t *t) noexcept nogil:
    """Read the completion channels that fired; their queues are to be armed again."""
    cdef uint32_t i, k
    cdef ibv_cq *cq = NULL
    cdef void *x = NULL
    for i in range(t.n_ports):
        if t.fds[2 * i].revents & POLLIN:
            while genie_ibv_get_cq_event(t.ports[i].channel, &cq, &x) == 0:
                genie_ibv_ack_cq_events(cq, 1)
                for k in range(t.n_cqs):
                    if t.cqs[k].cq == cq:
                        t.cqs[k].armed = 0
        if t.fds[2 * i + 1].revents & POLLIN:
            take_async(t, &t.ports[i])


cdef int v_wait(void *self, int64_t deadline_ns) noexcept nogil:
    """Sleep until a completion is there, a CTS arrived for a refused sender, or the deadline.

    A CTS is a plain RDMA WRITE, as NCCL's, so nothing tells of it: while a refused sender waits
    for one the sleep is cut into ticks that grow to `tick_ns`.
    """
    cdef verbs_t *t = <verbs_t *>self
    cdef int64_t now = genie_verbs_now()
    cdef int64_t left
    cdef uint32_t i
    cdef int rc
    if t.n_wrs or t.n_recvs:
        v_flush(t)
    if t.idle_since == 0:
        t.idle_since = now
    while t.first == t.last:
        if now >= deadline_ns:
            return 0
        if t.spin_ns > now - t.idle_since:
            rc = progress(t)
            if rc < 0:
                return rc
            if now - t.idle_since > 50_000:
                sched_yield()
            now = genie_verbs_now()
            continue
        for i in range(t.n_cqs):
            if not t.cqs[i].armed:
                t.c_arm += 1
                rc = ibv_req_notify_cq(t.cqs[i].cq, 0)
                if rc:
                    return -(rc if rc > 0 else EIO)
                t.cqs[i].armed = 1
        # What came before arming gives no notice.
        rc = progress(t)
        if rc < 0:
            return rc
        if rc or t.first != t.last:
            break
        left = deadline_ns - now
        if left > 1_000_000_000:
            left = 1_000_000_000
        if t.n_waiting or t.stuck:
            t.tick = 20_000 if t.tick == 0 else 2 * t.tick
            if t.tick > t.tick_ns:
                t.tick = t.tick_ns
            if left > t.tick:
                left = t.tick
        t.c_sleep += 1
        rc = genie_ppoll(t.fds, 2 * <int>t.n_ports, left)
        if rc < 0:
            return 0 if errno == EINTR else -errno
        if rc > 0:
            take_notices(t)
            return 0
        now = genie_verbs_now()
    return 0
