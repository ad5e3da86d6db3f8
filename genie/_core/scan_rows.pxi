# Rows: what a record says, put into the columns.

cdef inline void clear(Row *r) noexcept nogil:
    r.id = 0
    r.type = 0
    r.comm_type = 0
    r.duration = -1
    r.start = -1
    r.size = 0
    r.src = 0
    r.dst = 0
    r.num_ops = -1
    r.tensor_size = -1
    r.tag = 0
    r.root = 0
    r.stream = -1
    r.thread = -1
    r.group = -1
    r.seen = 0
    r.name_at = 0
    r.name_length = 0
    r.dtype = -1
    r.is_cpu = 0
    r.size_status = 0
    r.type_status = 0
    r.src_status = 0
    r.dst_status = 0


cdef inline int kind_of(State *s, size_t i, uint64_t type) noexcept nogil:
    if s.version == W1 or s.version == W2:
        # Before METADATA_NODE was inserted as 1.
        if type <= 6:
            return <int>type + 1 if type else 0
    elif type <= 7:
        return <int>type
    note(s, i, N_KIND, type)
    return 0


cdef inline int coll_of(State *s, size_t i, uint64_t type) noexcept nogil:
    # Numbers of Chakra v0.0.4: ALL_REDUCE 0, ALL_GATHER 2, BROADCAST 5, ALL_TO_ALL 6,
    # REDUCE_SCATTER 7.
    if s.version == W4:
        if type <= 9:
            return <int>type
    elif s.version == W1:
        if type == 1:
            return 0
        if type == 2:
            return 6
        if type == 3:
            return 2
        if type == 4:
            return 7
        if type == 0:
            return -1
    else:
        if type == 0:
            return 0
        if type == 1:
            return 6
        if type == 2:
            return 2
        if type == 3:
            return 7
        if type == 4:
            return 5
    note(s, i, N_COLL, type)
    return -1


cdef inline int32_t rank_of(
    State *s, size_t i, int code, int status, int64_t value
) noexcept nogil:
    if status == S_INT and 0 <= value <= INT32_MAX:
        return <int32_t>value
    if status != S_NONE:
        note(s, i, N_VALUE, code << 8 | (S_RANGE if status == S_INT else status))
    return -1


cdef struct Out:
    uint8_t *kind
    int64_t *duration
    int64_t *start
    int8_t *coll
    int64_t *nbytes
    int32_t *group
    int32_t *peer
    int32_t *tag
    int32_t *root
    int32_t *stream
    int32_t *thread
    int8_t *dtype
    int64_t *num_ops
    int64_t *tensor_size
    uint8_t *is_cpu
    int64_t *indptr
    uint32_t *name_at
    uint32_t *name_length


cdef void point(State *s, Out *out) noexcept nogil:
    out.kind = <uint8_t *>s.column[C_KIND]
    out.duration = <int64_t *>s.column[C_DURATION]
    out.start = <int64_t *>s.column[C_START]
    out.coll = <int8_t *>s.column[C_COLL]
    out.nbytes = <int64_t *>s.column[C_NBYTES]
    out.group = <int32_t *>s.column[C_GROUP]
    out.peer = <int32_t *>s.column[C_PEER]
    out.tag = <int32_t *>s.column[C_TAG]
    out.root = <int32_t *>s.column[C_ROOT]
    out.stream = <int32_t *>s.column[C_STREAM]
    out.thread = <int32_t *>s.column[C_THREAD]
    out.dtype = <int8_t *>s.column[C_DTYPE]
    out.num_ops = <int64_t *>s.column[C_OPS]
    out.tensor_size = <int64_t *>s.column[C_TENSOR]
    out.is_cpu = <uint8_t *>s.column[C_CPU]
    out.indptr = <int64_t *>s.column[C_INDPTR]
    out.name_at = <uint32_t *>s.column[C_NAME_AT]
    out.name_length = <uint32_t *>s.column[C_NAME_LENGTH]


cdef void rows(State *s) noexcept nogil:
    # Frame after frame, as long as ids count up and parents come first; the first node that
    # breaks this has the remaining frames read before it (`complete`).
    cdef size_t i = 0
    cdef size_t pointed
    cdef Row r
    cdef Cursor c
    cdef Out out
    if not grow_rows(s):
        return
    point(s, &out)
    pointed = s.rows
    out.indptr[0] = 0
    while True:
        if i == s.n:
            if s.complete or not next_frame(s):
                return
            if s.sequential:
                s.known = s.n
            else:
                complete(s)
        c.p = s.base + s.offset[i]
        c.e = c.p + s.length[i]
        c.bad = 0
        if s.complete:
            fetch_ahead(c.p, s.length[i])
            s.reached = c.e - s.base
        clear(&r)
        s.seen = 0
        if genie_likely(s.version == W4):
            read_v4(s, i, &c, &r)
        elif s.version == W1:
            read_v1(s, i, &c, &r)
        else:
            read_v3(s, i, &c, &r)
        if pointed != s.rows:
            point(s, &out)
            pointed = s.rows
        if c.bad:
            note(s, i, N_CORRUPT, <uint64_t>(c.at - s.base) << 8 | c.bad)
            clear(&r)
            r.id = s.id[i]
            s.n_deps = out.indptr[i]
        if s.memory:
            return
        put(s, i, &r, &out)
        i += 1


cdef inline void put(State *s, size_t i, Row *r, Out *out) noexcept nogil:
    cdef int kind
    if r.id != s.id[i]:
        note(s, i, N_TWO_IDS, r.id)
    kind = kind_of(s, i, r.type)
    out.kind[i] = kind
    out.duration[i] = r.duration
    out.start[i] = r.start
    out.num_ops[i] = r.num_ops
    out.tensor_size[i] = r.tensor_size
    out.stream[i] = r.stream
    out.thread[i] = r.thread
    out.is_cpu[i] = r.is_cpu
    out.coll[i] = -1
    out.nbytes[i] = -1
    out.peer[i] = -1
    out.group[i] = r.group
    out.tag[i] = r.tag
    out.root[i] = r.root
    out.dtype[i] = r.dtype
    if kind >= 5:
        if r.size_status == S_INT:
            out.nbytes[i] = r.size
        elif r.size_status != S_NONE:
            note(s, i, N_VALUE, A_SIZE << 8 | r.size_status)
        if kind == 7:
            if r.type_status == S_INT:
                out.coll[i] = coll_of(s, i, r.comm_type)
            elif r.type_status != S_NONE:
                note(s, i, N_VALUE, A_TYPE << 8 | r.type_status)
        else:
            if kind == 5:
                out.peer[i] = rank_of(s, i, A_DST, r.dst_status, r.dst)
            else:
                out.peer[i] = rank_of(s, i, A_SRC, r.src_status, r.src)
            if r.size_status == S_NONE and r.tensor_size >= 0:
                # An old generator puts the size of a send there.
                out.nbytes[i] = r.tensor_size
    if s.item[C_NAME_AT]:
        out.name_at[i] = r.name_at
        out.name_length[i] = r.name_length
    out.indptr[i + 1] = s.n_deps
