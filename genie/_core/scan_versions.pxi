# In which wire versions bytes can be read.

cdef int attr_mask(const uint8_t *p, const uint8_t *e) noexcept nogil:
    # The versions in which these bytes are an attribute.
    cdef Cursor c
    cdef uint64_t tag, field, wire
    cdef int mask = W2 | W3 | W4 | W4X
    cdef bint typed = False
    c.p = p
    c.e = e
    c.bad = 0
    while c.p < c.e and mask:
        tag = read_tag(&c)
        field = tag >> 3
        wire = tag & 7
        skip(&c, tag)
        if field == 1:
            if wire != 2:
                return 0
        elif field == 2:
            if wire == 2:
                mask &= W4 | W4X
            elif wire == 0:
                typed = True
                mask &= W2 | W3
            else:
                return 0
        elif field == 3:
            mask &= W2 | W3 if wire == 2 else (W4 | W4X if wire == 1 else 0)
        else:
            mask &= arm_mask(field, wire)
    if c.bad:
        return 0
    if not typed:
        mask &= W4 | W4X
    return mask


cdef int arm_mask(uint64_t field, uint64_t wire) noexcept nogil:
    cdef int mask = W4X if field > 32 else 0
    if field <= 32:
        if not field & 1:
            mask |= W4 | W4X if wire == 2 else 0
        elif field == 29 or field == 31:
            mask |= W4 | W4X if wire == 2 else 0
        elif field == 21 or field == 25:
            mask |= W4 | W4X if wire == 1 else 0
        elif field == 5 or field == 19 or field == 23:
            mask |= W4 | W4X if wire == 5 else 0
        else:
            mask |= W4 | W4X if wire == 0 else 0
    # v0.0.2: float int text, and their lists, which proto2 does not pack.
    if field <= 9:
        if (wire == 5 and (field == 4 or field == 7)) or (
            wire == 0 and (field == 5 or field == 8)
        ) or (wire == 2 and (field == 6 or field == 9)):
            mask |= W2
    if wire == 0 and (field == 4 or 6 <= field <= 12):
        mask |= W3
    elif wire == 5 and (field == 5 or field == 9 or field == 10):
        mask |= W3
    elif wire == 2 and (field == 7 or field == 8 or field == 11 or field == 13):
        mask |= W3
    return mask


cdef bint packed(const uint8_t *p, const uint8_t *e) noexcept nogil:
    cdef Cursor c
    c.p = p
    c.e = e
    c.bad = 0
    while c.p < c.e:
        varint(&c)
    return not c.bad


cdef int io_mask(const uint8_t *p, const uint8_t *e) noexcept nogil:
    cdef Cursor c
    cdef uint64_t tag
    cdef int mask = W4 | W4X
    c.p = p
    c.e = e
    c.bad = 0
    while c.p < c.e:
        tag = read_tag(&c)
        skip(&c, tag)
        if tag != 0x0a and tag != 0x12 and tag != 0x1a:
            mask = W4X
    return 0 if c.bad else mask


cdef int node_mask(const uint8_t *p, const uint8_t *e) noexcept nogil:
    # The versions in which these bytes are a node.
    cdef Cursor c
    cdef uint64_t tag, field, wire, value
    cdef const uint8_t *text
    cdef uint32_t length
    cdef int mask = W_ALL
    cdef bint has_id = False, has_name = False, has_type = False
    c.p = p
    c.e = e
    c.bad = 0
    while c.p < c.e and mask:
        tag = read_tag(&c)
        field = tag >> 3
        wire = tag & 7
        if wire == 0 and tag >= 8:
            value = varint(&c)
            if field == 1:
                has_id = True
            elif field == 3:
                has_type = True
                if value > 6:
                    mask &= ~(W1 | W2)
                if value > 7:
                    mask &= W4X
            elif field == 4:
                pass
            elif field == 5:
                mask &= W1 | W4 | W4X
            elif field == 6 or field == 7:
                mask &= W1 | W4 | W4X
            elif 8 <= field <= 10 or 12 <= field <= 20:
                mask &= W1 | W4X if field > 11 else W1
            elif field == 11:
                mask &= W1 | W4X
            elif field > 20:
                mask &= W4X
            else:
                mask = 0
        elif wire == 2:
            text = span(&c, &length)
            if c.bad:
                return 0
            if field == 2:
                has_name = True
            elif field == 4:
                if not packed(text, text + length):
                    return 0
            elif field == 5:
                mask &= W2 | W3 | (W4 | W4X if packed(text, text + length) else 0)
            elif field == 6 or field == 7:
                mask &= W2 | W3
            elif field == 8 or field == 9:
                mask &= W2 | W3 | io_mask(text, text + length)
            elif field == 10:
                mask &= W2 | W3 | (attr_mask(text, text + length) & (W4 | W4X))
            elif field == 11:
                mask &= W4X | (attr_mask(text, text + length) & (W2 | W3))
            elif field == 14:
                mask &= W4X | (W1 if packed(text, text + length) else 0)
            elif field > 11:
                mask &= W4X
            else:
                mask = 0
        else:
            skip(&c, tag)
            mask &= W4X if field > 10 else 0
    if c.bad:
        return 0
    # proto2 writes what it requires, also when it is 0.
    if not (has_id and has_name):
        mask &= W4 | W4X
    if not has_type:
        mask &= W1 | W4 | W4X
    return mask


cdef int metadata_mask(const uint8_t *p, const uint8_t *e) noexcept nogil:
    cdef int mask = 0
    if is_metadata_v4(p, e):
        mask |= W4 | W4X
    if e > p and is_metadata_v3(p, e):
        mask |= W3
    return mask


def probe(data, Py_ssize_t most=256):
    """Return in which wire versions the first records can be read.

    Args:
        data: The file's bytes.
        most: Records to look at; fewer are once a single version is left.

    Returns:
        (mask of `V1`, `V2`, `V3`, `V4`, `V4_EXTENDED`; records looked at; offset of the record
        that left no version, or -1). `V4_EXTENDED` is set wherever `V4` is.
    """
    cdef Py_buffer view
    cdef Cursor c
    cdef uint64_t length
    cdef const uint8_t *end
    cdef const uint8_t *start
    cdef int mask = W_ALL, here
    cdef Py_ssize_t seen = 0, at = -1
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        with nogil:
            c.p = <const uint8_t *>view.buf
            c.bad = 0
            end = c.p + view.len
            while c.p < end and seen < most:
                start = c.p
                c.e = end
                length = varint(&c)
                if c.bad or length > <uint64_t>(end - c.p):
                    break
                here = node_mask(c.p, c.p + length)
                if seen == 0:
                    here |= metadata_mask(c.p, c.p + length)
                mask &= here
                if not mask:
                    at = start - <const uint8_t *>view.buf
                    break
                c.p += length
                seen += 1
                if mask == W1 or mask == W2 or mask == W3 or not mask & ~(W4 | W4X):
                    if seen > 1:
                        break
    finally:
        PyBuffer_Release(&view)
    return mask, seen, at
