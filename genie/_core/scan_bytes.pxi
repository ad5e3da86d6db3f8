# Reading wire bytes. `Cursor` checks every read against the end of its record; the quick readers
# need bytes behind the field to be readable, and leave what they do not know to the cursor.

cdef extern from *:
    """
    #include <string.h>
    #define genie_prefetch(address) __builtin_prefetch(address)
    #define genie_likely(x) __builtin_expect(!!(x), 1)
    static inline uint64_t genie_load64(const uint8_t *p) {
        uint64_t x;
        memcpy(&x, p, 8);
    #if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
        x = __builtin_bswap64(x);
    #endif
        return x;
    }
    /* Bytes of the varint that `word` starts with; 0: more than 8. */
    static inline int genie_ends(uint64_t word) {
        uint64_t last = ~word & 0x8080808080808080u;
        return last ? (__builtin_ctzll(last) >> 3) + 1 : 0;
    }
    /* The value of that varint, without a branch. */
    static inline uint64_t genie_joined(uint64_t word) {
        uint64_t last = ~word & 0x8080808080808080u;
        word &= (last ^ (last - 1)) & 0x7f7f7f7f7f7f7f7fu;
        word = ((word & 0x7f007f007f007f00u) >> 1) | (word & 0x007f007f007f007fu);
        word = ((word & 0x3fff00003fff0000u) >> 2) | (word & 0x00003fff00003fffu);
        return ((word & 0x0fffffff00000000u) >> 4) | (word & 0x000000000fffffffu);
    }
    """
    void genie_prefetch(const void *) noexcept nogil
    bint genie_likely(bint) noexcept nogil
    uint64_t genie_load64(const uint8_t *) noexcept nogil
    int genie_ends(uint64_t word) noexcept nogil
    uint64_t genie_joined(uint64_t word) noexcept nogil

cdef enum:
    AHEAD = 2048  # prefetch distance in bytes
    LINES = 16  # cache lines fetched ahead for one record, at most
    SLACK = 16  # bytes behind a record that the quick readers may look at

cdef struct Cursor:
    const uint8_t *p
    const uint8_t *e
    const uint8_t *at
    int bad


cdef inline void fail(Cursor *c, int fault, const uint8_t *at) noexcept nogil:
    if not c.bad:
        c.bad = fault
        c.at = at
    c.p = c.e


cdef inline uint64_t varint(Cursor *c) noexcept nogil:
    cdef const uint8_t *p = c.p
    cdef uint64_t value, byte
    cdef int shift
    if genie_likely(p < c.e and p[0] < 128):
        c.p = p + 1
        return p[0]
    value = 0
    shift = 0
    while p < c.e and shift < 70:
        byte = p[0]
        p += 1
        value |= (byte & 127) << shift
        if byte < 128:
            c.p = p
            return value
        shift += 7
    fail(c, F_VARINT, c.p)
    return 0


cdef inline uint32_t read32(Cursor *c) noexcept nogil:
    cdef uint32_t value
    if c.e - c.p < 4:
        fail(c, F_LENGTH, c.p)
        return 0
    memcpy(&value, c.p, 4)
    c.p += 4
    return value


cdef inline uint64_t read64(Cursor *c) noexcept nogil:
    cdef uint64_t value
    if c.e - c.p < 8:
        fail(c, F_LENGTH, c.p)
        return 0
    memcpy(&value, c.p, 8)
    c.p += 8
    return value


cdef inline const uint8_t *span(Cursor *c, uint32_t *length) noexcept nogil:
    # A length-delimited field: its first byte, and its length in `length`.
    cdef const uint8_t *start = c.p
    cdef uint64_t size = varint(c)
    if c.bad or size > <uint64_t>(c.e - c.p):
        fail(c, F_LENGTH, start)
        length[0] = 0
        return c.e
    start = c.p
    c.p += size
    length[0] = <uint32_t>size
    return start


cdef inline void skip(Cursor *c, uint64_t tag) noexcept nogil:
    cdef uint32_t length
    cdef uint64_t wire = tag & 7
    if tag < 8:
        fail(c, F_FIELD, c.p)
    elif wire == 0:
        varint(c)
    elif wire == 1:
        read64(c)
    elif wire == 2:
        span(c, &length)
    elif wire == 5:
        read32(c)
    else:
        fail(c, F_WIRE, c.p)


cdef inline uint64_t read_tag(Cursor *c) noexcept nogil:
    cdef const uint8_t *start = c.p
    cdef uint64_t tag = varint(c)
    if tag > UINT32_MAX:
        fail(c, F_FIELD, start)
        return 0
    return tag


cdef inline void fetch_ahead(const uint8_t *p, uint64_t length) noexcept nogil:
    # Ask for the bytes behind this record: frames jump, so the processor cannot guess them.
    cdef const uint8_t *ahead = p + AHEAD
    cdef uint64_t k = (length >> 6) + 1
    if k > LINES:
        k = LINES
    while k:
        genie_prefetch(ahead)
        ahead += 64
        k -= 1


cdef inline const uint8_t *delimited(
    const uint8_t *p, const uint8_t *e, const uint8_t **end
) noexcept nogil:
    # First byte and end of a field whose length, below 16 KiB, is at p; NULL: none such before e.
    cdef uint64_t first = p[0]
    cdef uint64_t two = first >> 7
    cdef uint64_t second = (0 - two) & p[1]
    p += 1 + two
    first = (first & 127) | second << 7
    if second > 127 or <int64_t>first > e - p:
        return NULL
    end[0] = p + first
    return p
