# Attributes: a name and one value in any of its arms, and the columns some of them have.

# Kinds of arms of an attribute's value.
cdef enum:
    ARM_NONE = 0
    ARM_INT = 1
    ARM_UINT = 2
    ARM_FLOAT = 3
    ARM_DOUBLE = 4
    ARM_TEXT = 5
    ARM_LIST = 6
    ARM_BOOL = 7


cdef struct Attr:
    const uint8_t *name
    const uint8_t *text
    uint64_t raw
    uint32_t name_length
    uint32_t text_length
    int arm


cdef inline void read_attr_v4(Cursor *c, Attr *a) noexcept nogil:
    cdef uint64_t tag, field, wire
    a.name = c.p
    a.name_length = 0
    a.arm = ARM_NONE
    while c.p < c.e:
        tag = read_tag(c)
        if tag == 0x0a:
            a.name = span(c, &a.name_length)
        elif tag == 0x48 or tag == 0x38:  # int64, int32
            a.raw = varint(c)
            if tag == 0x38:
                a.raw = <uint64_t><int64_t><int32_t>a.raw
            a.arm = ARM_INT
        elif tag == 0xd8:  # bool
            a.raw = varint(c) != 0
            a.arm = ARM_BOOL
        elif tag == 0xea or tag == 0xfa:  # string, bytes
            a.text = span(c, &a.text_length)
            a.arm = ARM_TEXT
        else:
            field = tag >> 3
            wire = tag & 7
            if wire == 0 and (field == 11 or field == 13):  # uint32, uint64
                a.raw = varint(c)
                if field == 11:
                    a.raw = <uint32_t>a.raw
                a.arm = ARM_UINT
            elif wire == 0 and (field == 15 or field == 17):  # sint32, sint64
                a.raw = varint(c)
                if field == 15:
                    a.raw = <uint32_t>a.raw
                a.raw = (a.raw >> 1) ^ (0 - (a.raw & 1))
                a.arm = ARM_INT
            elif wire == 5 and (field == 19 or field == 23):  # fixed32, sfixed32
                a.raw = read32(c)
                a.arm = ARM_UINT
                if field == 23:
                    a.raw = <uint64_t><int64_t><int32_t>a.raw
                    a.arm = ARM_INT
            elif wire == 1 and (field == 21 or field == 25):  # fixed64, sfixed64
                a.raw = read64(c)
                a.arm = ARM_UINT if field == 21 else ARM_INT
            elif wire == 1 and field == 3:
                a.raw = read64(c)
                a.arm = ARM_DOUBLE
            elif wire == 5 and field == 5:
                a.raw = read32(c)
                a.arm = ARM_FLOAT
            elif wire == 2 and 4 <= field <= 32 and not field & 1:
                a.text = span(c, &a.text_length)
                a.arm = ARM_LIST
            else:
                skip(c, tag)


cdef inline void read_attr_v3(Cursor *c, Attr *a, int version) noexcept nogil:
    # v0.0.2: 4 f 5 i 6 s 7 floats 8 ints 9 strings. v0.0.3: 4 b 5 f 6 i 7 s 8 bools 9 floats
    # 10 ints 11 strings, and from Aug 2023: 4 b 5 f 6 u 7 i 8 s 9 bools 10 floats 11 uints
    # 12 ints 13 strings. Number and wire type together tell all of them apart.
    cdef uint64_t tag, field, wire
    cdef uint64_t last_single = 6 if version == W2 else 8
    a.name = c.p
    a.name_length = 0
    a.arm = ARM_NONE
    while c.p < c.e:
        tag = read_tag(c)
        field = tag >> 3
        wire = tag & 7
        if tag == 0x0a:
            a.name = span(c, &a.name_length)
        elif 4 <= field <= last_single:
            if wire == 0:
                a.raw = varint(c)
                a.arm = ARM_LIST if version == W3 and field == 8 else ARM_INT
                if version == W3 and field == 4:
                    a.arm = ARM_BOOL
            elif wire == 5:
                a.raw = read32(c)
                a.arm = ARM_FLOAT
            elif wire == 2:
                a.text = span(c, &a.text_length)
                a.arm = ARM_TEXT
            else:
                skip(c, tag)
        else:
            skip(c, tag)
            if last_single < field <= 13:
                a.arm = ARM_LIST


cdef inline int number(Attr *a, int64_t *value) noexcept nogil:
    # The attribute as an integer, whatever arm of numbers holds it; a truth value is none.
    cdef double real
    cdef float narrow
    cdef uint32_t bits
    if genie_likely(a.arm == ARM_INT):
        value[0] = <int64_t>a.raw
        return S_INT
    if a.arm == ARM_UINT:
        if a.raw > <uint64_t>INT64_MAX:
            return S_RANGE
        value[0] = <int64_t>a.raw
        return S_INT
    if a.arm == ARM_NONE:
        return S_NONE
    if a.arm == ARM_DOUBLE:
        memcpy(&real, &a.raw, 8)
    elif a.arm == ARM_FLOAT:
        bits = <uint32_t>a.raw
        memcpy(&narrow, &bits, 4)
        real = narrow
    else:
        return S_TEXT
    if not (-9.2e18 < real < 9.2e18):
        return S_RANGE
    value[0] = <int64_t>real
    return S_INT if <double>value[0] == real else S_FRACTION


cdef inline void once(State *s, size_t i, Row *r, int code) noexcept nogil:
    # Of two attributes with one name, nobody can say which is meant.
    if r.seen >> code & 1:
        note(s, i, N_TWICE, code)
    r.seen |= 1 << code


cdef inline bint named(Attr *a, const char *text, size_t length) noexcept nogil:
    return memcmp(a.name, text, length) == 0


cdef int32_t group_of(State *s, uint64_t at, uint32_t length) noexcept nogil:
    # Number of a group: text at an offset of the file, or (length NOWHERE) the integer `at`.
    cdef uint64_t k, slot
    cdef uint32_t found
    cdef size_t size
    cdef uint32_t *table
    if s.last_group >= 0 and same_group(s, s.last_group, at, length):
        return s.last_group
    if 2 * s.n_groups >= s.group_mask:
        size = 64 if s.group_mask == 0 else 2 * (s.group_mask + 1)
        table = <uint32_t *>malloc(size * 4)
        if table == NULL:
            s.memory = 1
            return -1
        memset(table, 255, size * 4)
        free(s.group_table)
        s.group_table = table
        s.group_mask = size - 1
        for k in range(s.n_groups):
            slot = hash_group(s, s.groups[k].at, s.groups[k].length) & s.group_mask
            while table[slot] != NOWHERE:
                slot = (slot + 1) & s.group_mask
            table[slot] = <uint32_t>k
    slot = hash_group(s, at, length) & s.group_mask
    while True:
        found = s.group_table[slot]
        if found == NOWHERE:
            break
        if same_group(s, <int32_t>found, at, length):
            s.last_group = <int32_t>found
            return s.last_group
        slot = (slot + 1) & s.group_mask
    if s.n_groups == s.groups_cap:
        if not grow(s, <void **>&s.groups, &s.groups_cap, s.n_groups, 1, sizeof(Group)):
            return -1
    s.groups[s.n_groups].at = at
    s.groups[s.n_groups].length = length
    s.group_table[slot] = <uint32_t>s.n_groups
    s.last_group = <int32_t>s.n_groups
    s.n_groups += 1
    return s.last_group


cdef inline bint same_group(State *s, int32_t k, uint64_t at, uint32_t length) noexcept nogil:
    if s.groups[k].length != length:
        return False
    if length == NOWHERE:
        return s.groups[k].at == at
    return memcmp(s.base + s.groups[k].at, s.base + at, length) == 0


cdef uint64_t hash_group(State *s, uint64_t at, uint32_t length) noexcept nogil:
    cdef uint64_t value = s.multiplier
    cdef uint32_t k
    if length == NOWHERE:
        value = at * s.multiplier
        return value ^ (value >> 32)
    for k in range(length):
        value = (value ^ s.base[at + k]) * s.multiplier
        value ^= value >> 32
    return value


cdef inline int32_t fold(int64_t value) noexcept nogil:
    # Thread and stream handles may be wider than a column: keep them apart as well as 31 bits can.
    if value < 0:
        return -1
    return <int32_t>((value ^ (value >> 31)) & INT32_MAX)


cdef inline int small(State *s, size_t i, Attr *a, int code, int32_t *value) noexcept nogil:
    cdef int64_t wide = 0
    cdef int status = number(a, &wide)
    if status == S_INT and (wide < 0 or wide > INT32_MAX):
        status = S_RANGE
    if status == S_INT:
        value[0] = <int32_t>wide
    elif status != S_NONE:
        note(s, i, N_VALUE, code << 8 | status)
    return status


cdef inline int large(State *s, size_t i, Attr *a, int code, int64_t *value) noexcept nogil:
    cdef int64_t wide = 0
    cdef int status = number(a, &wide)
    if status == S_INT and wide < 0:
        status = S_RANGE
    if status == S_INT:
        value[0] = wide
    elif status != S_NONE:
        note(s, i, N_VALUE, code << 8 | status)
    return status


cdef int8_t dtype_of(const uint8_t *text, uint32_t length) noexcept nogil:
    # The names of genie.trace.DTYPES, in its order.
    if length == 4 and memcmp(text, b"int8", 4) == 0:
        return 0
    if length == 5:
        if memcmp(text, b"uint8", 5) == 0:
            return 1
        if memcmp(text, b"int32", 5) == 0:
            return 2
        if memcmp(text, b"int64", 5) == 0:
            return 4
    if length == 6:
        if memcmp(text, b"uint32", 6) == 0:
            return 3
        if memcmp(text, b"uint64", 6) == 0:
            return 5
    if length == 7:
        if memcmp(text, b"float16", 7) == 0:
            return 6
        if memcmp(text, b"float32", 7) == 0:
            return 7
        if memcmp(text, b"float64", 7) == 0:
            return 8
    if length == 8 and memcmp(text, b"bfloat16", 8) == 0:
        return 9
    if length == 11:
        if memcmp(text, b"float8_e4m3", 11) == 0:
            return 10
        if memcmp(text, b"float8_e5m2", 11) == 0:
            return 11
    return -1


cdef inline void group_value(State *s, size_t i, Attr *a, Row *r) noexcept nogil:
    cdef int64_t wide = 0
    cdef int status
    if a.arm == ARM_TEXT:
        # An empty name names no group: the world, as when the attribute is absent.
        r.group = -1
        if a.text_length:
            r.group = group_of(s, a.text - s.base, a.text_length)
        return
    status = number(a, &wide)
    if status == S_INT:
        r.group = group_of(s, <uint64_t>wide, NOWHERE)
    elif status != S_NONE:
        note(s, i, N_VALUE, A_GROUP << 8 | status)


cdef inline void apply(State *s, size_t i, Attr *a, Row *r) noexcept nogil:
    # Put an attribute into the row, if it has a column.
    cdef uint32_t length = a.name_length
    cdef uint8_t initial
    cdef int64_t wide = 0
    cdef int status
    if length < 3:
        return
    initial = a.name[0]
    if length == 9:
        if initial == b"i":
            if not named(a, b"is_cpu_op", 9):
                return
            once(s, i, r, A_CPU)
            if a.arm == ARM_BOOL:
                a.arm = ARM_UINT
            status = number(a, &wide)
            if status == S_INT:
                r.is_cpu = wide != 0
            elif status != S_NONE:
                note(s, i, N_VALUE, A_CPU << 8 | status)
        elif initial != b"c":
            return
        elif named(a, b"comm_size", 9):
            once(s, i, r, A_SIZE)
            status = number(a, &r.size)
            if status == S_INT and r.size < 0:
                status = S_RANGE
            r.size_status = status
        elif named(a, b"comm_type", 9):
            once(s, i, r, A_TYPE)
            r.type_status = number(a, &wide)
            r.comm_type = <uint64_t>wide
        elif named(a, b"comm_root", 9):
            once(s, i, r, A_ROOT)
            small(s, i, a, A_ROOT, &r.root)
    elif length == 3:
        if named(a, b"tid", 3):
            once(s, i, r, A_TID)
            status = number(a, &wide)
            if status == S_INT:
                r.thread = fold(wide)
            elif status != S_NONE:
                note(s, i, N_VALUE, A_TID << 8 | status)
        elif s.version != W4:
            if named(a, b"src", 3):
                once(s, i, r, A_SRC)
                r.src_status = number(a, &r.src)
            elif named(a, b"dst", 3):
                once(s, i, r, A_DST)
                r.dst_status = number(a, &r.dst)
            elif named(a, b"tag", 3):
                once(s, i, r, A_TAG)
                small(s, i, a, A_TAG, &r.tag)
    elif length == 6:
        if named(a, b"stream", 6):
            once(s, i, r, A_STREAM)
            status = number(a, &wide)
            if status == S_INT:
                r.stream = fold(wide)
            elif status != S_NONE:
                note(s, i, N_VALUE, A_STREAM << 8 | status)
    elif length == 7:
        if named(a, b"pg_name", 7):
            once(s, i, r, A_GROUP)
            group_value(s, i, a, r)
        elif named(a, b"num_ops", 7):
            once(s, i, r, A_OPS)
            large(s, i, a, A_OPS, &r.num_ops)
        elif s.version != W4 and named(a, b"runtime", 7):
            once(s, i, r, A_RUNTIME)
            micros(s, i, a, A_DURATION, &r.duration)
    elif length == 8:
        if named(a, b"comm_src", 8):
            once(s, i, r, A_SRC)
            r.src_status = number(a, &r.src)
        elif named(a, b"comm_dst", 8):
            once(s, i, r, A_DST)
            r.dst_status = number(a, &r.dst)
        elif named(a, b"comm_tag", 8):
            once(s, i, r, A_TAG)
            small(s, i, a, A_TAG, &r.tag)
    elif length == 10:
        if named(a, b"comm_group", 10):
            once(s, i, r, A_COMM_GROUP)
            # pg_name says the same and is the newer name.
            if not r.seen >> A_GROUP & 1:
                group_value(s, i, a, r)
        elif named(a, b"comm_dtype", 10):
            once(s, i, r, A_DTYPE)
            r.dtype = dtype_of(a.text, a.text_length) if a.arm == ARM_TEXT else -1
            if r.dtype < 0:
                note(s, i, N_VALUE, A_DTYPE << 8 | S_TEXT)
    elif length == 11:
        if named(a, b"tensor_size", 11):
            once(s, i, r, A_TENSOR)
            large(s, i, a, A_TENSOR, &r.tensor_size)
        elif named(a, b"duration_ns", 11):
            once(s, i, r, A_EXACT)
            large(s, i, a, A_DURATION, &r.duration)
    elif length == 13:
        if named(a, b"in_split_size", 13):
            once(s, i, r, A_IN_COUNTS)
            counts(s, i, a)
    elif length == 14:
        if named(a, b"comm_in_splits", 14):
            once(s, i, r, A_IN)
            note(s, i, N_IN_SPLITS, 0)
        elif named(a, b"out_split_size", 14):
            once(s, i, r, A_OUT_COUNTS)
            counts(s, i, a)
    elif length == 15:
        if named(a, b"comm_out_splits", 15):
            once(s, i, r, A_OUT)
            note(s, i, N_OUT_SPLITS, 0)


cdef inline void counts(State *s, size_t i, Attr *a) noexcept nogil:
    # The text "[]", which every collective has, says nothing.
    if a.arm != ARM_TEXT or a.text_length > 2:
        note(s, i, N_COUNTS, 0)


cdef inline void micros(State *s, size_t i, Attr *a, int code, int64_t *value) noexcept nogil:
    cdef int64_t wide = -1
    if large(s, i, a, code, &wide) == S_INT:
        micros_in(s, i, <uint64_t>wide, code, value)


cdef inline void micros_in(
    State *s, size_t i, uint64_t wide, int code, int64_t *value
) noexcept nogil:
    if wide > <uint64_t>INT64_MAX // 1000:
        note(s, i, N_VALUE, code << 8 | S_RANGE)
    else:
        value[0] = <int64_t>wide * 1000
