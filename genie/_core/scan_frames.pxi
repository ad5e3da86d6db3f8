# Frames (varint length, record), and from ids to positions.

cdef bint is_metadata_v4(const uint8_t *p, const uint8_t *e) noexcept nogil:
    # GlobalMetadata: 1 version text, 2 attributes. A Node differs by its type (3), by an id that
    # is a number (1), or by a name (2) that does not read as an attribute.
    cdef Cursor c
    cdef uint64_t tag
    cdef uint32_t length
    cdef const uint8_t *text
    c.p = p
    c.e = e
    c.bad = 0
    while c.p < c.e:
        tag = read_tag(&c)
        if tag == 0x0a:
            span(&c, &length)
        elif tag == 0x12:
            text = span(&c, &length)
            if c.bad or not attr_mask(text, text + length) & (W4 | W4X):
                return False
        else:
            return False
    return not c.bad


cdef bint is_metadata_v3(const uint8_t *p, const uint8_t *e) noexcept nogil:
    cdef Cursor c
    cdef uint32_t length
    cdef const uint8_t *text
    c.p = p
    c.e = e
    c.bad = 0
    while c.p < c.e:
        if read_tag(&c) != 0x0a:
            return False
        text = span(&c, &length)
        if c.bad or not attr_mask(text, text + length) & (W2 | W3):
            return False
    return not c.bad


cdef inline uint64_t record_id(const uint8_t *p, const uint8_t *e) noexcept nogil:
    # Field 1 of a node, 0 when it is absent; the last one counts, as in protobuf.
    cdef Cursor c
    cdef uint64_t tag, found = 0
    c.p = p
    c.e = e
    c.bad = 0
    if genie_likely(p < e and p[0] == 0x08):
        c.p += 1
        return varint(&c)
    while c.p < c.e:
        tag = read_tag(&c)
        if tag == 0x08:
            found = varint(&c)
        else:
            skip(&c, tag)
    return found


cdef bint next_frame(State *s) noexcept nogil:
    # Append the next record; False at the end of what can be read.
    cdef const uint8_t *start
    cdef Cursor c
    cdef uint64_t length, id
    c.p = s.base + s.at
    c.e = s.base + s.size
    c.bad = 0
    while c.p < c.e:
        start = c.p
        length = varint(&c)
        if c.bad:
            s.error = E_LENGTH_CUT if c.e - start < 10 else E_TOO_LONG
            s.error_at = start - s.base
            return False
        if length > LAST_RECORD_BYTES:
            s.error = E_TOO_LONG
        elif length > <uint64_t>(c.e - c.p):
            s.error = E_RECORD_CUT
        elif s.n == UINT32_MAX - 1:
            s.error = E_TOO_MANY
        if s.error:
            s.error_at = start - s.base
            s.error_want = length
            return False
        fetch_ahead(c.p, length)
        if start == s.base and (
            s.version == W4 and is_metadata_v4(c.p, c.p + length)
            or s.version == W3 and is_metadata_v3(c.p, c.p + length)
        ):
            s.has_meta = 1
            s.meta_at = c.p - s.base
            s.meta_length = length
            c.p += length
            continue
        if s.n == s.rows and not grow_rows(s):
            return False
        id = record_id(c.p, c.p + length)
        if s.n == 0:
            s.first_id = id
        elif id != s.first_id + s.n:
            s.sequential = 0
        s.id[s.n] = id
        s.offset[s.n] = c.p - s.base
        s.length[s.n] = <uint32_t>length
        s.n += 1
        s.at = s.reached = c.p + length - s.base
        return True
    return False


cdef void complete(State *s) noexcept nogil:
    # Read all frames that are left, so that every id is known, and index them.
    s.complete = 1
    while next_frame(s):
        pass
    s.known = s.n
    if not s.memory and not s.sequential and not index_ids(s):
        s.memory = 1


cdef inline uint64_t slot_of(State *s, uint64_t id) noexcept nogil:
    return (id * s.multiplier) >> s.shift


cdef bint index_ids(State *s) noexcept nogil:
    cdef size_t i, size
    cdef uint64_t low, high, slot, at
    low = high = s.id[0]
    for i in range(s.n):
        if s.id[i] < low:
            low = s.id[i]
        if s.id[i] > high:
            high = s.id[i]
    if high - low < 4 * s.n + 1024:
        s.first_id = low
        s.span = high - low + 1
        s.table = <uint32_t *>malloc(s.span * 4)
        if s.table == NULL:
            return False
        memset(s.table, 255, s.span * 4)
        for i in range(s.n):
            at = s.id[i] - low
            if s.table[at] == NOWHERE:
                s.table[at] = <uint32_t>i
            else:
                note(s, i, N_DUPLICATE, s.table[at])
        return True
    size = 16
    s.shift = 60
    while size < 2 * s.n:
        size *= 2
        s.shift -= 1
    s.mask = size - 1
    s.table = <uint32_t *>malloc(size * 4)
    if s.table == NULL:
        return False
    memset(s.table, 255, size * 4)
    for i in range(s.n):
        slot = slot_of(s, s.id[i])
        while s.table[slot] != NOWHERE and s.id[s.table[slot]] != s.id[i]:
            slot = (slot + 1) & s.mask
        if s.table[slot] == NOWHERE:
            s.table[slot] = <uint32_t>i
        else:
            note(s, i, N_DUPLICATE, s.table[slot])
    return True


cdef inline uint32_t position(State *s, uint64_t id) noexcept nogil:
    cdef uint64_t at
    if s.sequential:
        at = id - s.first_id
        return <uint32_t>at if at < s.n else NOWHERE
    if s.mask == 0:
        at = id - s.first_id
        return s.table[at] if at < s.span else NOWHERE
    at = slot_of(s, id)
    while s.table[at] != NOWHERE and s.id[s.table[at]] != id:
        at = (at + 1) & s.mask
    return s.table[at]
