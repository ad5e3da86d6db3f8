# Records: the fields of one node, in each wire version.

cdef inline void attr_v4(State *s, size_t i, Cursor *c, Row *r) noexcept nogil:
    cdef Attr a
    cdef Cursor inner
    cdef uint32_t length
    cdef const uint8_t *start = span(c, &length)
    if c.bad:
        return
    inner.p = start
    inner.e = start + length
    inner.bad = 0
    read_attr_v4(&inner, &a)
    if inner.bad:
        fail(c, inner.bad, inner.at)
        return
    apply(s, i, &a, r)


cdef inline bint quick_attr(
    State *s, size_t i, Row *r, const uint8_t *p, const uint8_t *e
) noexcept nogil:
    # An attribute of the usual form, name then number, text or truth value, from p to e;
    # False: of another form. Only what has a column is looked at closely.
    cdef Attr a
    cdef const uint8_t *value
    cdef const uint8_t *end
    cdef const uint8_t *text = NULL
    cdef uint64_t word = 0
    cdef uint64_t length = p[1]
    cdef int size
    if p[0] != 0x0a or length > 127:
        return False
    value = p + 2 + length
    if e - value < 2:
        return False
    if value[0] == 0x48:
        word = genie_load64(value + 1)
        size = genie_ends(word)
        if size == 0 or value + 1 + size != e:
            return False
    elif value[1] != 1:
        return False
    elif value[0] == 0xea:
        text = delimited(value + 2, e, &end)
        if text == NULL or end != e:
            return False
    elif value[0] != 0xd8 or value[2] > 127 or value + 3 != e:
        return False
    if length > 15 or not s.wanted[length] >> (p[2] & 31) & 1:
        return True
    a.name = p + 2
    a.name_length = <uint32_t>length
    if value[0] == 0x48:
        a.arm = ARM_INT
        a.raw = genie_joined(word)
    elif value[0] == 0xea:
        a.arm = ARM_TEXT
        a.text = text
        a.text_length = <uint32_t>(e - text)
    else:
        a.arm = ARM_BOOL
        a.raw = value[2] != 0
    apply(s, i, &a, r)
    return True


cdef void read_v4(State *s, size_t i, Cursor *c, Row *r) noexcept nogil:
    # The usual form of each field; field_v4 takes any other.
    cdef const uint8_t *record = c.p
    cdef const uint8_t *p = c.p
    cdef const uint8_t *e = c.e
    cdef const uint8_t *start
    cdef const uint8_t *end
    cdef size_t first = s.n_deps
    cdef uint64_t word
    cdef int size
    cdef uint8_t tag
    cdef bint quick = e + SLACK <= s.base + s.size
    while p < e:
        tag = p[0]
        if not quick:
            pass
        elif tag == 0x52:
            start = delimited(p + 1, e, &end)
            if genie_likely(start != NULL and end - start > 3):
                if genie_likely(quick_attr(s, i, r, start, end)):
                    p = end
                    continue
        elif tag == 0x42 or tag == 0x4a:
            start = delimited(p + 1, e, &end)
            if start != NULL:
                p = end
                continue
        elif tag == 0x22 or tag == 0x2a:
            start = delimited(p + 1, e, &end)
            if start != NULL and (start == end or (end - 1)[0] < 128):
                parents(s, c, i, first, start, end)
                if c.bad or s.memory:
                    return
                p = end
                continue
        elif tag == 0x12:
            start = delimited(p + 1, e, &end)
            if start != NULL:
                r.name_at = <uint32_t>(start - record)
                r.name_length = <uint32_t>(end - start)
                p = end
                continue
        elif tag == 0x08 or tag == 0x18 or tag == 0x30 or tag == 0x38:
            word = genie_load64(p + 1)
            size = genie_ends(word)
            if size and p + 1 + size <= e:
                p += 1 + size
                word = genie_joined(word)
                if tag == 0x08:
                    r.id = word
                elif tag == 0x18:
                    r.type = word
                elif tag == 0x38:
                    micros_in(s, i, word, A_DURATION, &r.duration)
                else:
                    micros_in(s, i, word, A_START, &r.start)
                continue
        c.p = p
        field_v4(s, i, c, r, record, first)
        if c.bad or s.memory:
            return
        p = c.p
    c.p = p


cdef void field_v4(
    State *s, size_t i, Cursor *c, Row *r, const uint8_t *record, size_t first
) noexcept nogil:
    # One field of any form.
    cdef const uint8_t *text
    cdef uint64_t field
    cdef uint64_t tag = read_tag(c)
    if tag == 0x52:
        attr_v4(s, i, c, r)
    elif tag == 0x08:
        r.id = varint(c)
    elif tag == 0x12:
        text = span(c, &r.name_length)
        r.name_at = <uint32_t>(text - record)
    elif tag == 0x18:
        r.type = varint(c)
    elif tag == 0x22 or tag == 0x2a:
        parents_in(s, c, i, first)
    elif tag == 0x20 or tag == 0x28:
        parent_in(s, c, i, first)
    elif tag == 0x30:
        micros_in(s, i, varint(c), A_START, &r.start)
    elif tag == 0x38:
        # An attribute duration_ns says the same more exactly, and comes later.
        micros_in(s, i, varint(c), A_DURATION, &r.duration)
    elif tag == 0x42 or tag == 0x4a:
        skip(c, tag)
    else:
        field = tag >> 3
        skip(c, tag)
        if not c.bad:
            s.unknown[field if field < 32 else 32] += 1


cdef void read_v3(State *s, size_t i, Cursor *c, Row *r) noexcept nogil:
    # v0.0.2 and v0.0.3.
    cdef const uint8_t *record = c.p
    cdef const uint8_t *text
    cdef const uint8_t *start
    cdef size_t first = s.n_deps
    cdef uint64_t tag, field
    cdef uint32_t length
    cdef Attr a
    cdef Cursor inner
    while c.p < c.e:
        tag = read_tag(c)
        if tag == 0x5a:
            start = span(c, &length)
            if c.bad:
                return
            inner.p = start
            inner.e = start + length
            inner.bad = 0
            read_attr_v3(&inner, &a, s.version)
            if inner.bad:
                fail(c, inner.bad, inner.at)
                return
            apply(s, i, &a, r)
        elif tag == 0x08:
            r.id = varint(c)
        elif tag == 0x12:
            text = span(c, &r.name_length)
            r.name_at = <uint32_t>(text - record)
        elif tag == 0x18:
            r.type = varint(c)
        elif tag == 0x22:
            parents_in(s, c, i, first)
        elif tag == 0x20:
            parent_in(s, c, i, first)
        else:
            field = tag >> 3
            skip(c, tag)
            if not c.bad and not 5 <= field <= 10:
                s.unknown[field if field < 32 else 32] += 1


cdef void read_v1(State *s, size_t i, Cursor *c, Row *r) noexcept nogil:
    cdef const uint8_t *record = c.p
    cdef const uint8_t *text
    cdef size_t first = s.n_deps
    cdef uint64_t tag, value, field
    cdef Attr a
    a.arm = ARM_UINT
    while c.p < c.e:
        tag = read_tag(c)
        if tag == 0x12:
            text = span(c, &r.name_length)
            r.name_at = <uint32_t>(text - record)
            continue
        if tag == 0x22:
            parents_in(s, c, i, first)
            continue
        if tag & 7 or tag > 0xa0 or tag < 8:
            field = tag >> 3
            skip(c, tag)
            if not c.bad and field != 14:
                s.unknown[field if field < 32 else 32] += 1
            continue
        field = tag >> 3
        if field == 4:
            parent_in(s, c, i, first)
            continue
        value = varint(c)
        if c.bad:
            return
        a.raw = value
        if field == 1:
            r.id = value
        elif field == 3:
            r.type = value
        elif field == 6:
            large(s, i, &a, A_TENSOR, &r.tensor_size)
        elif field == 7:
            micros_in(s, i, value, A_DURATION, &r.duration)
        elif field == 12:
            large(s, i, &a, A_OPS, &r.num_ops)
        elif field == 13:
            r.comm_type = value
            r.type_status = S_INT
        elif field == 15:
            r.group = group_of(s, <uint32_t>value, NOWHERE)
        elif field == 16:
            r.src = <uint32_t>value
            r.src_status = S_INT
        elif field == 17:
            r.dst = <uint32_t>value
            r.dst_status = S_INT
        elif field == 18:
            r.size_status = number(&a, &r.size)
        elif field == 19:
            small(s, i, &a, A_TAG, &r.tag)
