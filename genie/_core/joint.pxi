# Collectives inside one host on the virtual clock, each timing worked out once, exactly.
#
# A communicator is joint if every rank runs the same collectives on it, one after the other, and
# none of them ends on any rank before all ranks have started it (all_reduce, all_gather ...: the
# result holds data of everyone). If moreover no message leaves the host, nothing outside the
# communicator touches its connections, so that the ends depend on nothing but the programs and
# on how far apart the ranks started. Starts are therefore held until the last rank is there.
# Then the collective runs by itself, on its own event queue, at the times of its starts; or its
# ends are taken from an earlier run of the same programs with the same differences of starts.
# Both give what running the messages in the common queue gives, to the nanosecond.
#
# That needs idle connections at the first start. Where a rank starts the next collective while
# another is still busy with the last one, the last one is run again up to now, and both go on
# as ordinary collectives until the communicator is idle.
#
# A communicator that is `together` and leaves the host only has its starts held: the flow level
# has no messages between all ranks that would make each wait for each.

cdef enum:
    MEMO_LIMIT = 1 << 20  # timings kept


cdef uint64_t memo_hash(JointC* j) noexcept nogil:
    cdef uint64_t h = <uint64_t> 0x9E3779B97F4A7C15 ^ j.n
    cdef uint32_t i
    for i in range(j.n):
        h ^= j.now.binds[i].program
        h = (h ^ (h >> 29)) * <uint64_t> 0xBF58476D1CE4E5B9
        h += <uint64_t> (j.now.starts[i] - j.first)
        h = (h ^ (h >> 32)) * <uint64_t> 0x94D049BB133111EB
    return h ^ (h >> 31)


cdef inline bint memo_is(JointMemo* m, JointC* j, uint64_t h) noexcept nogil:
    cdef uint32_t i
    if m.hash != h or m.n != j.n:
        return False
    for i in range(j.n):
        if (
            m.programs[i] != j.now.binds[i].program
            or m.offsets[i] != j.now.starts[i] - j.first
        ):
            return False
    return True


cdef JointMemo* memo_find(Core* e, JointC* j, uint64_t h) noexcept nogil:
    cdef uint64_t at = h
    if e.memo_size == 0:
        return NULL
    while True:
        at &= e.memo_size - 1
        if e.memo[at] == NULL or memo_is(e.memo[at], j, h):
            return e.memo[at]
        at += 1


cdef int memo_add(Core* e, JointC* j, uint64_t h) noexcept nogil:
    cdef JointMemo* m
    cdef JointMemo** grown
    cdef uint64_t size, i, at
    if e.memo_n == MEMO_LIMIT:
        return 0
    if 2 * e.memo_n >= e.memo_size:
        size = 2 * e.memo_size if e.memo_size > 0 else 1024
        grown = <JointMemo**> calloc(size, sizeof(JointMemo*))
        if grown == NULL:
            out_of_memory(e)
            return -1
        for i in range(e.memo_size):
            if e.memo[i] != NULL:
                at = e.memo[i].hash
                while grown[at & (size - 1)] != NULL:
                    at += 1
                grown[at & (size - 1)] = e.memo[i]
        free(e.memo)
        e.memo = grown
        e.memo_size = size
    m = <JointMemo*> malloc(
        sizeof(JointMemo) + j.n * (2 * sizeof(int64_t) + sizeof(uint32_t))
    )
    if m == NULL:
        out_of_memory(e)
        return -1
    m.hash = h
    m.n = j.n
    m.offsets = <int64_t*> (m + 1)
    m.ends = m.offsets + j.n
    m.programs = <uint32_t*> (m.ends + j.n)
    for i in range(j.n):
        m.programs[i] = j.now.binds[i].program
        m.offsets[i] = j.now.starts[i] - j.first
        m.ends[i] = j.now.ends[i] - j.first
    at = h
    while e.memo[at & (e.memo_size - 1)] != NULL:
        at += 1
    e.memo[at & (e.memo_size - 1)] = m
    e.memo_n += 1
    return 0


cdef void joint_count(Core* e, JointC* j, JointSet* of, uint32_t factor) noexcept nogil:
    # Adds (factor 1) or takes back (-1) the messages of a collective on all its connections.
    cdef ProgramT* p
    cdef Conn* c
    cdef uint32_t i, slot, n
    for i in range(j.n):
        p = &e.programs[of.binds[i].program]
        for slot in range(p.n_slots):
            n = p.slots[slot].messages * factor
            c = &e.conns[of.binds[i].conns[slot]]
            if p.slots[slot].receives:
                c.r_head += n
                c.r_tail += n
                c.r_taken += n
                c.credits += n
            else:
                c.s_head += n
                c.s_onwire += n
                c.s_post += n
                c.s_tail += n
                c.busy_until = 0


cdef void joint_start(Core* e, JointC* j, JointSet* of, uint32_t i, int64_t* ended) noexcept nogil:
    # Member i starts; `ended` is NULL where the end counts for the graph.
    cdef JointC* live = NULL
    if ended == NULL:
        live = j
    start_coll(e, of.ranks[i], of.nodes[i], of.binds[i], of.rows[i], ended, live)


cdef void joint_event(Core* e, uint64_t arg) noexcept nogil:
    cdef JointC* j = &e.joints[arg >> 32]
    cdef uint32_t i = <uint32_t> arg >> 1
    if arg & 1:
        joint_start(e, j, &j.before, i, &j.before.ends[i])
    elif j.before.ends[i] < 0:
        # It started at the very moment when the one before ended: that comes first.
        push_event(e, e.now, EV_JOINT, arg)
        e.joint_deferred = 1
    elif j.ending != NULL:
        joint_start(e, j, &j.now, i, &j.ending[i])
    else:
        joint_start(e, j, &j.now, i, NULL)


cdef void joint_loop(Core* e, int64_t until) noexcept nogil:
    # Runs the communicator's own queue up to, and without, `until`.
    cdef Event* first
    cdef Line* line
    cdef StreamR* s
    cdef Event v
    while e.status == RUNNING:
        while e.streams_head != NULL and e.status == RUNNING:
            s = e.streams_head
            e.streams_head = s.next
            if e.streams_head == NULL:
                e.streams_tail = NULL
            run_stream(e, s)
        first = first_event(e.q, &line)
        if first == NULL or first.t >= until:
            return
        e.now = first.t
        v = take_event(e, first, line)
        handle_event(e, &v)


cdef int64_t joint_run(Core* e, JointC* j) noexcept nogil:
    # Works out `now.ends` from `now.starts` on idle connections; how many ranks did not end.
    cdef int64_t now = e.now
    cdef Queue* q = e.q
    cdef uint32_t i
    cdef int64_t missing = 0
    e.q = &e.events_joint
    j.ending = j.now.ends
    for i in range(j.n):
        j.now.ends[i] = -1
        push_event(e, j.now.starts[i], EV_JOINT, (<uint64_t> (j - e.joints) << 32) | (i << 1))
    joint_loop(e, INT64_MAX)
    e.q = q
    e.now = now
    e.joint_runs += 1
    for i in range(j.n):
        missing += j.now.ends[i] < 0
    return missing


cdef void joint_release(Core* e, JointC* j) noexcept nogil:
    # What was held becomes ordinary: run, together with the collective before it, up to now.
    cdef int64_t now = e.now
    cdef Queue* q = e.q
    cdef uint32_t i
    cdef Event* first
    cdef Line* line
    cdef Event v
    cdef uint64_t key = <uint64_t> (j - e.joints) << 32
    e.q = &e.events_joint
    if j.first < j.quiet_at:
        joint_count(e, j, &j.before, <uint32_t> -1)
        for i in range(j.n):
            j.before.ends[i] = -1
            push_event(e, j.before.starts[i], EV_JOINT, key | (i << 1) | 1)
    j.ending = NULL
    for i in range(j.n):
        if j.here[i]:
            j.here[i] = 0
            j.sequence[i] += 1
            j.running += 1
            push_event(e, j.now.starts[i], EV_JOINT, key | (i << 1))
    j.live_sequence += 1
    j.live = 1
    j.arrived = 0
    joint_loop(e, now)
    e.q = q
    e.now = now
    while True:
        first = first_event(&e.events_joint, &line)
        if first == NULL:
            return
        e.q = &e.events_joint
        v = take_event(e, first, line)
        e.q = q
        push_event(e, v.t, v.order & 15, v.arg)


cdef int joint_release_all(Core* e) noexcept nogil:
    # Before a run counts as stalled: whoever waits for a start is shown waiting for messages.
    cdef uint32_t i
    cdef int n = 0
    for i in range(e.n_joints):
        if e.joints[i].arrived > 0 and not e.joints[i].together:
            joint_release(e, &e.joints[i])
            n += 1
    return n


cdef void joint_launch(Core* e, JointC* j) noexcept nogil:
    cdef JointMemo* m
    cdef JointSet swap
    cdef uint64_t h
    cdef uint32_t i
    cdef bint known = True
    if j.first < j.quiet_at:
        joint_release(e, j)
        return
    h = memo_hash(j)
    m = memo_find(e, j, h)
    if m != NULL:
        for i in range(j.n):
            j.now.ends[i] = j.first + m.ends[i]
        joint_count(e, j, &j.now, 1)
        e.joint_hits += 1
    else:
        known = joint_run(e, j) == 0 and e.status == RUNNING
        if known:
            memo_add(e, j, h)
    for i in range(j.n):
        j.here[i] = 0
        j.sequence[i] += 1
        if j.now.ends[i] < 0:
            continue
        if j.now.ends[i] < e.now:
            e.joint_error = 1 + <int32_t> (j - e.joints)
            e.status = FAILED
            return
        if j.now.ends[i] > j.quiet_at:
            j.quiet_at = j.now.ends[i]
        push_event(
            e, j.now.ends[i], EV_NODE, (<uint64_t> j.now.ranks[i] << 32) | j.now.nodes[i]
        )
    j.live_sequence += 1
    j.arrived = 0
    swap = j.before
    j.before = j.now
    j.now = swap


cdef void joint_arrive(
    Core* e, uint32_t rank, uint32_t node, BindT* b, uint32_t row
) noexcept nogil:
    # A rank starts its next collective of a joint communicator.
    cdef JointC* j = &e.joints[b.joint]
    cdef uint32_t i = b.member
    if j.here[i] or (not j.live and e.now < j.before.ends[i]):
        # Two at once: the graph lacks an order edge.
        fail_conn(e, &e.conns[b.conns[0]], -EBUSY, not e.programs[b.program].slots[0].receives)
        return
    if j.live:
        if j.running > 0 or j.sequence[i] < j.live_sequence:
            j.sequence[i] += 1
            if j.sequence[i] > j.live_sequence:
                j.live_sequence = j.sequence[i]
            j.running += 1
            start_coll(e, rank, node, b, row, NULL, j)
            return
        j.live = 0  # all have ended, and with them all messages have arrived
        j.quiet_at = e.now
    if j.arrived == 0:
        j.first = e.now
    j.here[i] = 1
    j.now.binds[i] = b
    j.now.ranks[i] = rank
    j.now.nodes[i] = node
    j.now.rows[i] = row
    j.now.starts[i] = e.now
    j.arrived += 1
    if j.arrived < j.n:
        return
    if j.together:
        j.arrived = 0
        for i in range(j.n):
            j.here[i] = 0
            j.now.starts[i] = e.now
            start_coll(e, j.now.ranks[i], j.now.nodes[i], j.now.binds[i], j.now.rows[i], NULL, NULL)
    else:
        joint_launch(e, j)
