# The event queue: ordered by (time, order of insertion), so that equal times are first come,
# first served. Events of a kind whose times only grow (a message arrives one latency after it
# left) wait in a line, where both ends cost nothing; the rest is in a 4-ary heap.

cdef int push_event(Core* e, int64_t t, uint64_t kind, uint64_t arg) noexcept nogil:
    cdef Queue* q = e.q
    cdef uint64_t i, parent
    cdef Event* grown
    cdef Event* h
    cdef uint64_t order
    if q.heap_n == q.heap_cap:
        grown = <Event*> realloc(q.heap, (2 * q.heap_cap + 64) * sizeof(Event))
        if grown == NULL:
            out_of_memory(e)
            return -1
        q.heap = grown
        q.heap_cap = 2 * q.heap_cap + 64
    e.sequence += 1
    order = (e.sequence << 4) | kind
    h = q.heap
    i = q.heap_n
    q.heap_n += 1
    while i > 0:
        parent = (i - 1) >> 2
        if h[parent].t <= t:  # the newcomer is the last of its time
            break
        h[i] = h[parent]
        i = parent
    h[i].t = t
    h[i].order = order
    h[i].arg = arg
    return 0


cdef inline bint earlier(Event* a, Event* b) noexcept nogil:
    return a.t < b.t or (a.t == b.t and a.order < b.order)


cdef int line_grow(Core* e, Line* line) noexcept nogil:
    cdef uint64_t size = line.mask + 1 if line.events != NULL else 0
    cdef uint64_t bigger = 2 * size if size > 0 else 256
    cdef uint64_t i
    cdef Event* grown = <Event*> malloc(bigger * sizeof(Event))
    if grown == NULL:
        out_of_memory(e)
        return -1
    for i in range(line.tail - line.head):
        grown[i] = line.events[(line.head + i) & line.mask]
    free(line.events)
    line.events = grown
    line.tail -= line.head
    line.head = 0
    line.mask = bigger - 1
    return 0


cdef inline int push_in_line(
    Core* e, uint32_t number, int64_t t, uint64_t kind, uint64_t arg
) noexcept nogil:
    # An event that most likely is the last of its line; if it is not, the heap takes it.
    cdef Line* line = &e.q.lines[number]
    cdef Event* v
    if not e.virtual_clock:
        return push_event(e, t, kind, arg)
    if line.head != line.tail and line.events[(line.tail - 1) & line.mask].t > t:
        return push_event(e, t, kind, arg)
    if line.events == NULL or line.tail - line.head > line.mask:
        if line_grow(e, line) != 0:
            return -1
    e.sequence += 1
    v = &line.events[line.tail & line.mask]
    line.tail += 1
    v.t = t
    v.order = (e.sequence << 4) | kind
    v.arg = arg
    return 0


cdef inline Event* first_event(Queue* q, Line** line) noexcept nogil:
    # The next event, NULL if there is none; `line` is where it waits, NULL = on the heap.
    cdef Event* best = NULL
    cdef Event* v
    cdef Line* at
    cdef int i
    line[0] = NULL
    if q.heap_n > 0:
        best = &q.heap[0]
    for i in range(LINES):
        at = &q.lines[i]
        if at.head != at.tail:
            v = &at.events[at.head & at.mask]
            if best == NULL or earlier(v, best):
                best = v
                line[0] = at
    return best


cdef Event pop_event(Queue* q) noexcept nogil:
    cdef Event* h = q.heap
    cdef Event top = h[0]
    cdef Event last
    cdef uint64_t n, i, child, best, stop
    q.heap_n -= 1
    n = q.heap_n
    if n == 0:
        return top
    last = h[n]
    i = 0
    while True:
        child = 4 * i + 1
        if child >= n:
            break
        best = child
        stop = child + 4 if child + 4 < n else n
        child += 1
        while child < stop:
            if earlier(&h[child], &h[best]):
                best = child
            child += 1
        if not earlier(&h[best], &last):
            break
        h[i] = h[best]
        i = best
    h[i] = last
    return top


cdef inline void add_to_histogram(Histogram* g, int64_t ns) noexcept nogil:
    # Eight buckets an octave: percentiles are right to 12.5 %, exact below 8 ns.
    cdef int64_t v = ns if ns > 0 else 0
    cdef int index, octave
    g.count += 1
    if v > g.max:
        g.max = v
    if v < 8:
        index = <int> v
    else:
        octave = 63 - clz64(<uint64_t> v)
        index = 8 * (octave - 2) + <int> ((v >> (octave - 3)) & 7)
    if index >= BUCKETS:
        index = BUCKETS - 1
    g.bucket[index] += 1
