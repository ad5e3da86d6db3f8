# The event queue: a 4-ary heap ordered by (time, order of insertion): equal times are first come,
# first served.

cdef int push_event(Core* e, int64_t t, uint64_t kind, uint64_t arg) noexcept nogil:
    cdef uint64_t i, parent
    cdef Event* grown
    cdef Event* h
    cdef uint64_t order
    if e.heap_n == e.heap_cap:
        grown = <Event*> realloc(e.heap, 2 * e.heap_cap * sizeof(Event))
        if grown == NULL:
            out_of_memory(e)
            return -1
        e.heap = grown
        e.heap_cap *= 2
    e.sequence += 1
    order = (e.sequence << 4) | kind
    h = e.heap
    i = e.heap_n
    e.heap_n += 1
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


cdef Event pop_event(Core* e) noexcept nogil:
    cdef Event* h = e.heap
    cdef Event top = h[0]
    cdef Event last
    cdef uint64_t n, i, child, best, stop
    e.heap_n -= 1
    n = e.heap_n
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
