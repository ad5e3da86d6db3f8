# The engine's data: plain C structs, no Python object per node, message or completion.
# Sizes matter: an OpT is read for every message, a Conn is touched three times a message.

cdef extern from * nogil:
    """
    #define GENIE_NONE32 0xFFFFFFFFu
    """
    uint32_t NONE32 "GENIE_NONE32"

# Kinds of events on the heap.
cdef enum:
    EV_NODE = 1    # a delay node ends; arg = rank index << 32 | node
    EV_STREAM = 2  # the GPU time of a move is over; arg = StreamR*
    EV_ARRIVE = 3  # the oldest message on its way (local, simulated) arrives; arg = connection
    EV_CTS = 4     # the announced room reaches the sender; arg = connection
    EV_LINK = 5    # a network event; arg = its row
    EV_JOINT = 6   # a held collective starts; arg = joint communicator << 32 | member << 1 | set
    EV_GAP = 7     # the gap after a simulated message is over; arg = connection
    EV_COLL = 8    # a collective begins after its start-up time; arg = CollR*

# Why a run stopped.
cdef enum:
    RUNNING = 0
    DONE = 1
    STALLED = 2
    FAILED = 3
    ABORTED = 4
    INTERRUPTED = 5

# Kinds of connections.
cdef enum:
    LOCAL = 0
    TRANSPORT = 1
    SIMULATED = 2

# Ops as the engine runs them.
cdef enum:
    OP_SEND = 0
    OP_RECV = 1
    OP_PEEK = 2
    OPF_END = 1   # last op of a move: the FIFO steps of its receives are free again
    OPF_GPU = 2   # the modelled GPU time of the move is spent before this op ends

# States of a running stream.
cdef enum:
    S_WAITING_PHASE = 0
    S_READY = 1
    S_WAITING_MESSAGE = 2
    S_WAITING_ROOM = 3
    S_GPU = 4
    S_ENDED = 5

cdef struct OpT:
    uint32_t slot      # index into the slots of the program
    uint32_t nbytes
    uint32_t next      # of a RECV: the next consuming RECV of this slot in this stream
    uint8_t kind
    uint8_t flags
    uint8_t steps
    uint8_t back       # ops of this move before this one

cdef struct TouchT:
    uint32_t slot
    uint32_t first     # first consuming RECV, NONE32 for a slot that is sent on

cdef struct StreamT:
    uint32_t first
    uint32_t end
    uint32_t touch
    uint32_t touch_end
    uint32_t channel   # index into the channels of the program
    uint16_t channel_id
    uint16_t messages  # most messages in flight on a connection of this stream
    uint8_t group
    uint8_t lane

cdef struct PhaseT:
    uint32_t first     # streams are sorted by (channel, phase)
    uint32_t end

cdef struct ChannelT:
    uint32_t first     # phases of this channel
    uint32_t end

cdef struct SlotT:
    int32_t peer
    uint16_t channel
    uint8_t index
    uint8_t receives
    uint32_t messages

cdef struct ProgramT:
    OpT* ops
    uint32_t* gpu_ns   # NULL when the GPU-time model is off
    StreamT* streams
    TouchT* touches
    PhaseT* phases
    ChannelT* channels
    SlotT* slots
    void* free         # finished CollR to use again
    uint32_t n_ops
    uint32_t n_streams
    uint32_t n_touches
    uint32_t n_phases
    uint32_t n_channels
    uint32_t n_slots
    uint32_t n_messages
    uint32_t window
    int64_t start_ns   # of the GPU-time model: before the first move of a collective
    int64_t send_ns    # until a network message can be posted
    int64_t local_ns   # latency of a hop inside a host
    double local_rate  # bytes/ns of such a hop, 0 = no time
    int64_t gap_ns     # between two messages of a simulated connection
    uint8_t early      # messages go on before the GPU time of their move
    int64_t tail_ns    # after the last stream ended

cdef struct BindT:
    # A program bound to a communicator on one rank.
    uint32_t* conns    # by slot
    uint32_t program
    int32_t communicator
    uint32_t joint     # index, NONE32 where the communicator is not joint
    uint32_t member    # of a joint communicator: position in it

cdef struct ChannelR:
    uint32_t phase
    uint32_t left

cdef struct StreamR:
    CollR* coll
    StreamR* next
    uint32_t op
    uint32_t end
    uint32_t index
    uint8_t gpu_done
    uint8_t state

cdef struct CollR:
    # One communication node that runs.
    CollR* prev
    CollR* next
    BindT* bind
    OpT* ops
    StreamR* streams
    ChannelR* channels
    int64_t* ended     # where the end goes instead of the graph (joint.pxi), or NULL
    JointC* joint      # that counts it as running, or NULL
    uint32_t rank      # index
    uint32_t node
    uint32_t row
    uint32_t left

cdef struct JointSet:
    # One collective of a joint communicator: a row a member.
    BindT** binds
    uint32_t* ranks
    uint32_t* nodes
    uint32_t* rows
    int64_t* starts
    int64_t* ends

cdef struct JointC:
    JointSet now       # the one that members arrive for
    JointSet before    # the one that ended last
    int64_t* ending    # where starts of `now` put their end
    uint8_t* here
    uint32_t* sequence  # collectives a member has started
    int64_t first      # first start of `now`
    int64_t quiet_at   # when the last message of `before` is delivered
    uint32_t n
    uint32_t arrived
    uint32_t running   # of the live ones
    uint32_t live_sequence
    uint8_t live       # collectives run in the common queue
    uint8_t together   # messages leave the host: starts are held, nothing else

cdef struct JointMemo:
    uint64_t hash
    int64_t* offsets
    int64_t* ends
    uint32_t* programs
    uint32_t n

cdef struct SentM:
    int64_t posted_ns
    int64_t ready_ns   # not posted before
    uint32_t nbytes
    uint32_t row
    uint32_t oprow
    uint32_t node
    uint32_t step
    uint32_t steps

cdef struct RecvM:
    int64_t cts_ns     # when the sender knows of this room
    uint32_t row
    uint32_t nbytes
    uint32_t node
    uint32_t spare

cdef struct Conn:
    # Sender. Counters run on; entries live at counter & mask.
    SentM* sent
    StreamR* s_wait
    StreamR* s_owner
    uint32_t s_head    # oldest message that is not complete
    uint32_t s_onwire  # simulated: next message to put on the wire
    uint32_t s_post    # next message to post
    uint32_t s_tail    # next to queue
    uint32_t s_steps   # FIFO steps in use
    uint32_t s_step    # FIFO step of the next message
    uint32_t s_window
    uint32_t s_limit   # messages in flight
    uint32_t s_program  # whose delays its messages have
    uint32_t credits   # local, simulated: announcements so far
    # Receiver.
    RecvM* recv
    StreamR* r_wait
    StreamR* r_owner
    uint32_t r_head    # oldest announced message that has not arrived
    uint32_t r_tail    # next to announce
    uint32_t r_taken   # messages taken by RECV ops
    uint32_t r_steps   # FIFO steps announced and not free again
    uint32_t r_step
    uint32_t r_next    # op to announce next
    uint32_t r_window
    uint32_t r_limit
    uint32_t r_count   # messages announced whose steps are not free again
    uint32_t mask
    int64_t busy_until  # local: when the copy engine is free
    int64_t last_ns    # last completion on it
    # Identity.
    int32_t id
    int32_t communicator
    int32_t src
    int32_t dst
    uint32_t cls
    uint16_t channel
    uint8_t index
    uint8_t kind
    uint8_t sent_here
    uint8_t recv_here
    uint8_t failed
    uint8_t cts_armed
    uint8_t in_gap     # simulated: a message has just left, the next may not start yet
    uint8_t refused    # transport: post_send said -EAGAIN, an event will follow
    uint8_t in_retry
    uint8_t logged

cdef struct RankS:
    uint8_t* kind
    int64_t* delay
    uint32_t* bind     # by node, NONE32 for none
    uint32_t* degree
    uint32_t* pending
    uint32_t* row
    int64_t* child_ptr
    uint32_t* children
    int64_t n_edges
    uint32_t n
    uint32_t left
    int32_t rank
    int32_t host
    int32_t iteration
    uint8_t logged     # its nodes get rows
    int64_t done_ns

cdef struct Step:
    int64_t start_ns   # the first rank began, -1 = none has
    int64_t end_ns     # the last rank so far was done
    uint64_t done      # ranks that are

cdef struct Event:
    int64_t t
    uint64_t order     # sequence << 4 | kind
    uint64_t arg

cdef enum:
    LINES = 3
    LINE_LOCAL = 0    # arrivals inside hosts
    LINE_NETWORK = 1  # arrivals over the network
    LINE_GPU = 2      # ends of GPU times

cdef struct Line:
    # A ring of events in order.
    Event* events
    uint64_t head
    uint64_t tail
    uint64_t mask

cdef struct Queue:
    Event* heap
    uint64_t heap_n
    uint64_t heap_cap
    Line lines[LINES]

cdef struct Flow:
    double finish      # in bytes of service of its class
    uint32_t conn

cdef struct ClassS:
    # All connections over one path: their flows have one rate.
    double service     # bytes each of its flows has got
    double rate        # bytes/ns of each flow
    double load        # bytes/ns accounted on its links
    double new_rate    # of the solution in the making
    int64_t t          # service is as of t
    int64_t due        # next transmission that ends
    int64_t latency
    int64_t cts_latency
    int32_t* links
    uint32_t* link_pos
    Flow* flows        # heap by finish
    uint32_t n_flows
    uint32_t n_links
    uint32_t heap_pos
    int32_t bottleneck
    int32_t new_bottleneck
    uint32_t stamp
    uint8_t fixed
    uint8_t joined     # a flow came since the last solution

cdef struct LinkS:
    double rate
    double usage
    double rest
    double share           # of each flow, while filling
    double slowest         # of the classes newly held back here
    double v_load          # v_: of the classes being solved again
    double v_new
    uint32_t* classes
    uint32_t n_classes
    uint32_t bottlenecked  # classes whose bottleneck this is
    uint32_t v_bottlenecked
    int64_t weight
    uint32_t stamp
    uint32_t in_a
    uint32_t dirty
    uint8_t v_changed
    uint8_t v_fell

cdef struct OpRow:
    int32_t rank
    uint32_t node
    int32_t iteration
    int32_t status
    int64_t ready_ns
    int64_t start_ns
    int64_t end_ns

cdef struct MessageRow:
    uint32_t op
    uint32_t conn
    uint32_t nbytes
    int16_t status
    uint8_t direction
    uint8_t flags
    int64_t posted_ns
    int64_t completed_ns

cdef struct FailureRow:
    int64_t t_ns
    int32_t status
    int32_t id
    int32_t rank
    int32_t peer
    uint32_t node
    uint32_t message
    int32_t iteration
    uint32_t conn

cdef struct NetEvent:
    int64_t t
    double rate
    int32_t link

cdef enum:
    MAX_FAILURES = 256
    BUCKETS = 512

cdef struct Histogram:
    uint64_t count
    int64_t max
    uint32_t bucket[BUCKETS]

cdef struct Core:
    # Clock
    int64_t now
    int64_t t0
    int virtual_clock
    int status
    int abort_flag     # set by other threads
    int pending_error
    # Graph
    RankS* ranks
    uint32_t n_ranks
    uint64_t nodes_left
    uint64_t nodes_done
    uint64_t* ready
    uint64_t ready_head
    uint64_t ready_tail
    uint64_t ready_mask
    int32_t last_iteration
    Step* steps        # an iteration each, warm-up first
    int32_t warmup
    double time_scale
    # Communication
    ProgramT* programs
    BindT* binds
    Conn* conns
    uint32_t n_conns
    uint32_t* conn_of_id
    uint32_t n_ids
    StreamR* streams_head
    StreamR* streams_tail
    CollR* running
    uint64_t outstanding   # messages queued or on their way, counted at the sender
    uint32_t* retry
    uint32_t n_retry
    genie_transport* net
    int net_dirty          # posted since the last flush
    # Events
    Queue* q           # the one in use
    Queue events_all
    Queue events_joint
    uint64_t sequence
    # Joint communicators
    JointC* joints
    uint32_t n_joints
    JointMemo** memo
    uint64_t memo_size
    uint64_t memo_n
    uint64_t joint_runs
    uint64_t joint_hits
    int32_t joint_error
    uint8_t joint_deferred  # streams have to run before the events that are left of this moment
    # Simulated network
    ClassS* classes
    LinkS* links
    uint32_t n_classes
    uint32_t n_links
    uint32_t* class_heap
    uint32_t class_heap_n
    uint32_t* dirty
    uint32_t n_dirty
    uint32_t stamp
    uint32_t* set_a
    uint32_t* set_l
    uint32_t* set_v
    uint32_t* set_h
    NetEvent* net_events
    uint32_t n_net_events
    # Log
    OpRow* ops
    MessageRow* messages
    uint64_t ops_n
    uint64_t ops_cap
    uint64_t ops_dropped
    uint64_t messages_n
    uint64_t messages_cap
    uint64_t messages_dropped
    int log_receives
    int log_some       # not all ranks: messages follow their node
    FailureRow failures[MAX_FAILURES]
    uint32_t n_failures
    uint64_t failures_more
    # Health
    Histogram timer_error
    Histogram poll_gap
    uint64_t turns
    uint64_t events
    int64_t last_progress
    int64_t last_activity
    int64_t last_completion
    uint32_t last_completion_conn
    int64_t cpu_user_ns
    int64_t cpu_system_ns
    int64_t voluntary
    int64_t involuntary
    int64_t wall_ns
