# Connections, their sockets (lanes), and the transport.

cdef enum:
    HEADER = 4                # bytes that carry a message's size
    COPY_BYTES = 1 << 16      # hot buffer of small receives and small sends
    FILE_BYTES = 1 << 20      # hot pages of large sends
    EVENTS = 256              # socket events taken from the kernel at once
    RING = 16                 # first capacity of a connection's message ring
    SEND_QUEUE = 1024         # messages a connection accepts before -EAGAIN
    MAX_LANES = 16            # NCCL's limit of sockets per connection is 64
    CHECK_EVERY = 512         # empty direct rounds between two looks at all sockets
    FLOWING = 256             # direct rounds with a byte until epoll is left
    WATCHED = 16              # with more lanes, epoll is not left: coming back would take long
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
    int watched               # epoll has the lanes
    int flowing               # direct rounds with a byte since epoll was asked
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
