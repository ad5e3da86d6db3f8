# Parents of a node: ids to positions, each parent once.

cdef uint32_t find(State *s, uint64_t id) noexcept nogil:
    # The position of an id that is not among the records read so far in the order of their ids.
    if not s.complete:
        complete(s)
    return NOWHERE if s.memory else position(s, id)


cdef bint stamps(State *s) noexcept nogil:
    # A stamp for every row there is room for.
    cdef size_t before = s.stamps
    if not grow(s, <void **>&s.stamp, &s.stamps, before, s.rows - before, 4):
        return False
    memset(s.stamp + before, 0, (s.stamps - before) * 4)
    return True


cdef inline bint again(State *s, size_t i, size_t first, size_t n, uint32_t at) noexcept nogil:
    # Whether `at` is among the parents of node i that s.deps has from `first` to n; now it counts
    # as one. Few are compared, many leave a stamp at each parent.
    cdef size_t k
    cdef uint64_t bit
    if n - first < FEW:
        bit = <uint64_t>1 << (at & 63)
        if s.seen & bit:
            for k in range(first, n):
                if s.deps[k] == at:
                    return True
        s.seen |= bit
        return False
    if s.stamps < s.known and not stamps(s):
        return True
    if n - first == FEW:
        for k in range(first, n):
            s.stamp[s.deps[k]] = <uint32_t>(i + 1)
    if s.stamp[at] == i + 1:
        return True
    s.stamp[at] = <uint32_t>(i + 1)
    return False


cdef void parent(State *s, size_t i, size_t first, uint64_t id) noexcept nogil:
    # Add one parent of node i.
    cdef uint32_t at
    cdef uint64_t near = id - s.first_id
    if s.n_deps == s.deps_cap and not grow(s, <void **>&s.deps, &s.deps_cap, s.n_deps, 1, 4):
        return
    at = <uint32_t>near if s.sequential and near < s.known else find(s, id)
    if s.memory:
        return
    if at == NOWHERE:
        note(s, i, N_DANGLING, id)
    elif again(s, i, first, s.n_deps, at):
        s.repeated += 1
    else:
        s.deps[s.n_deps] = at
        s.n_deps += 1


cdef void parents(
    State *s, Cursor *c, size_t i, size_t first, const uint8_t *p, const uint8_t *e
) noexcept nogil:
    # Add the parents of the packed list from p to e, which ends where a number ends.
    cdef uint64_t id, near
    cdef uint32_t *deps
    cdef size_t n = s.n_deps
    cdef uint32_t at
    cdef Cursor inner
    if s.deps_cap - n < <size_t>(e - p):
        if not grow(s, <void **>&s.deps, &s.deps_cap, n, e - p, 4):
            return
    deps = s.deps
    while p < e:
        id = p[0]
        if id < 128:
            p += 1
        elif p[1] < 128:
            id = (id & 127) | <uint64_t>p[1] << 7
            p += 2
        elif p[2] < 128:
            id = (id & 127) | (<uint64_t>p[1] & 127) << 7 | <uint64_t>p[2] << 14
            p += 3
        else:
            inner.p = p
            inner.e = e
            inner.bad = 0
            id = varint(&inner)
            if inner.bad:
                s.n_deps = n
                fail(c, F_VARINT, inner.at)
                return
            p = inner.p
        near = id - s.first_id
        if genie_likely(s.sequential and near < s.known):
            at = <uint32_t>near
        else:
            at = find(s, id)
            if s.memory:
                return
            if at == NOWHERE:
                note(s, i, N_DANGLING, id)
                continue
        if again(s, i, first, n, at):
            s.repeated += 1
        else:
            deps[n] = at
            n += 1
    s.n_deps = n


cdef void parents_in(State *s, Cursor *c, size_t i, size_t first) noexcept nogil:
    # A packed list of parents, whatever it holds.
    cdef uint32_t length
    cdef Cursor inner
    cdef uint64_t id
    cdef const uint8_t *start = span(c, &length)
    if c.bad or length == 0:
        return
    if start[length - 1] < 128:
        parents(s, c, i, first, start, start + length)
        return
    inner.p = start
    inner.e = start + length
    inner.bad = 0
    while inner.p < inner.e and not s.memory:
        id = varint(&inner)
        if not inner.bad:
            parent(s, i, first, id)
    if inner.bad:
        fail(c, F_VARINT, inner.at)


cdef inline void parent_in(State *s, Cursor *c, size_t i, size_t first) noexcept nogil:
    cdef uint64_t id = varint(c)
    if not c.bad:
        parent(s, i, first, id)
