# The graph: nodes become ready when their last dependency ends, then run by class.

cdef int push_ready(Core* e, uint32_t rank, uint32_t node) noexcept nogil:
    cdef uint64_t size = e.ready_mask + 1
    cdef uint64_t i
    cdef uint64_t* grown
    if e.ready_tail - e.ready_head == size:
        grown = <uint64_t*> malloc(2 * size * sizeof(uint64_t))
        if grown == NULL:
            out_of_memory(e)
            return -1
        for i in range(size):
            grown[i] = e.ready[(e.ready_head + i) & e.ready_mask]
        free(e.ready)
        e.ready = grown
        e.ready_head = 0
        e.ready_tail = size
        e.ready_mask = 2 * size - 1
    e.ready[e.ready_tail & e.ready_mask] = (<uint64_t> rank << 32) | node
    e.ready_tail += 1
    return 0


cdef inline void node_ready(Core* e, uint32_t rank, uint32_t node) noexcept nogil:
    cdef RankS* r = &e.ranks[rank]
    cdef OpRow* row
    cdef uint64_t i = e.ops_n
    if not r.logged:
        r.row[node] = NONE32
    elif i < e.ops_cap:
        e.ops_n = i + 1
        row = &e.ops[i]
        row.rank = r.rank
        row.node = node
        row.iteration = r.iteration
        row.status = 0
        row.ready_ns = e.now
        row.start_ns = -1
        row.end_ns = -1
        r.row[node] = <uint32_t> i
    else:
        e.ops_dropped += 1
        r.row[node] = NONE32
    push_ready(e, rank, node)


cdef void start_iteration(Core* e, uint32_t rank) noexcept nogil:
    cdef RankS* r = &e.ranks[rank]
    cdef Step* step = &e.steps[r.iteration + e.warmup]
    cdef uint32_t node
    if step.start_ns < 0:
        step.start_ns = e.now
    memcpy(r.pending, r.degree, r.n * sizeof(uint32_t))
    r.left = r.n
    for node in range(r.n):
        if r.degree[node] == 0:
            node_ready(e, rank, node)


cdef void end_node(Core* e, uint32_t rank, uint32_t node) noexcept nogil:
    cdef RankS* r = &e.ranks[rank]
    cdef int64_t i
    cdef uint32_t child
    cdef uint32_t row = r.row[node]
    if row != NONE32:
        e.ops[row].end_ns = e.now
    e.nodes_left -= 1
    e.nodes_done += 1
    for i in range(r.child_ptr[node], r.child_ptr[node + 1]):
        child = r.children[i]
        r.pending[child] -= 1
        if r.pending[child] == 0:
            node_ready(e, rank, child)
    r.left -= 1
    if r.left == 0:
        r.done_ns = e.now
        e.steps[r.iteration + e.warmup].end_ns = e.now
        e.steps[r.iteration + e.warmup].done += 1
        if r.iteration < e.last_iteration:
            r.iteration += 1
            start_iteration(e, rank)


cdef void start_node(Core* e, uint32_t rank, uint32_t node) noexcept nogil:
    cdef RankS* r = &e.ranks[rank]
    cdef uint32_t row = r.row[node]
    cdef uint8_t kind = r.kind[node]
    cdef int64_t delay
    if not e.virtual_clock:
        e.now = read_clock(e)
    if row != NONE32:
        e.ops[row].start_ns = e.now
    if kind == 1:
        delay = r.delay[node]
        if e.time_scale != 1.0:
            delay = llround(<double> delay * e.time_scale)
        if delay > 0:
            push_event(e, e.now + delay, EV_NODE, (<uint64_t> rank << 32) | node)
            return
    elif kind == 2 and r.bind[node] != NONE32:
        if (
            e.programs[e.binds[r.bind[node]].program].n_streams > 0
            or e.programs[e.binds[r.bind[node]].program].tail_ns > 0
        ):
            if e.binds[r.bind[node]].joint != NONE32:
                joint_arrive(e, rank, node, &e.binds[r.bind[node]], row)
            else:
                start_coll(e, rank, node, &e.binds[r.bind[node]], row, NULL, NULL)
            return
    end_node(e, rank, node)


cdef inline void drain_ready(Core* e, uint64_t limit) noexcept nogil:
    # Runs everything that can run now: streams first, they feed the network.
    cdef StreamR* s
    cdef uint64_t entry
    while limit > 0 and e.status == RUNNING:
        if e.streams_head != NULL:
            s = e.streams_head
            e.streams_head = s.next
            if e.streams_head == NULL:
                e.streams_tail = NULL
            if not e.virtual_clock and limit & 3 == 0:
                e.now = read_clock(e)
            run_stream(e, s)
        elif e.ready_head != e.ready_tail:
            entry = e.ready[e.ready_head & e.ready_mask]
            e.ready_head += 1
            start_node(e, <uint32_t> (entry >> 32), <uint32_t> entry)
        else:
            return
        limit -= 1
