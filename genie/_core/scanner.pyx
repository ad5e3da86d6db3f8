"""Scanner of Chakra execution traces: from protobuf wire bytes straight to columns and a CSR.

Two passes over the bytes. The first walks the frames (varint length, record) and takes each
record's id; the second reads every field, resolving parents to positions as it meets them. No
Python object is made per node, and the GIL is off in both. Every read is checked against the end
of its record, so that no bytes can make it read elsewhere; what does not fit becomes a note.
"""

from typing import NamedTuple

import os

import numpy as np

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport (
    INT32_MAX, INT64_MAX, UINT32_MAX, int8_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t,
)
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset

cdef extern from *:
    """
    #define genie_prefetch(address) __builtin_prefetch(address)
    #define genie_likely(x) __builtin_expect(!!(x), 1)
    """
    void genie_prefetch(const void *) noexcept nogil
    bint genie_likely(bint) noexcept nogil

# Wire versions, as the bits of a mask.
V1 = 1  # v0.0.1: flat fields
V2 = 2  # v0.0.2: attributes in field 11
V3 = 4  # v0.0.3: as v0.0.2, METADATA_NODE inserted, other value fields
V4 = 8  # v0.0.4: attributes in field 10
V4_EXTENDED = 16  # v0.0.4 with fields or node types that v0.0.4 does not have
cdef enum:
    W1 = 1
    W2 = 2
    W3 = 4
    W4 = 8
    W4X = 16
    W_ALL = 31

# What a note says about the node at its position; `value` depends on the code.
NOTE_DANGLING = 1  # value: the id that no node has
NOTE_DUPLICATE = 2  # value: the position of the first node with this id
NOTE_KIND = 3  # value: the node type that the version does not have
NOTE_COLL = 4  # value: the collective type that the version does not have
NOTE_VALUE = 5  # value: attribute code << 8 | status
NOTE_IN_SPLITS = 6  # value: offset << 32 | length of the attribute in the record
NOTE_OUT_SPLITS = 7
NOTE_CORRUPT = 8  # value: offset in the record << 8 | fault
NOTE_TWO_IDS = 9  # value: the other id
cdef enum:
    N_DANGLING = 1
    N_DUPLICATE = 2
    N_KIND = 3
    N_COLL = 4
    N_VALUE = 5
    N_IN_SPLITS = 6
    N_OUT_SPLITS = 7
    N_CORRUPT = 8
    N_TWO_IDS = 9

# Faults of bytes.
FAULTS = {
    1: "a number is cut short or longer than 10 bytes",
    2: "a length runs past the end of its record",
    3: "a wire type that protobuf 3 does not have",
    4: "field number 0",
}
cdef enum:
    F_VARINT = 1
    F_LENGTH = 2
    F_WIRE = 3
    F_FIELD = 4

# Status of an attribute's value where an integer belongs.
STATUS_NONE, STATUS_INT, STATUS_FRACTION, STATUS_RANGE, STATUS_TEXT = range(5)
cdef enum:
    S_NONE = 0
    S_INT = 1
    S_FRACTION = 2
    S_RANGE = 3
    S_TEXT = 4

# Attributes with a column, index = the attribute code in NOTE_VALUE.
ATTRIBUTES = (
    "", "comm_size", "comm_type", "comm_src", "comm_dst", "comm_tag", "comm_root", "comm_dtype",
    "pg_name", "tensor_size", "num_ops", "duration", "start", "stream", "tid", "is_cpu_op",
)
cdef enum:
    A_SIZE = 1
    A_TYPE = 2
    A_SRC = 3
    A_DST = 4
    A_TAG = 5
    A_ROOT = 6
    A_DTYPE = 7
    A_GROUP = 8
    A_TENSOR = 9
    A_OPS = 10
    A_DURATION = 11
    A_START = 12
    A_STREAM = 13
    A_TID = 14
    A_CPU = 15

# Errors of the framing.
FRAME_OK, FRAME_LENGTH_CUT, FRAME_RECORD_CUT, FRAME_TOO_LONG, FRAME_TOO_MANY = range(5)
cdef enum:
    E_OK = 0
    E_LENGTH_CUT = 1
    E_RECORD_CUT = 2
    E_TOO_LONG = 3
    E_TOO_MANY = 4
    E_MEMORY = 5

cdef enum:
    LAST_RECORD_BYTES = 0x7fffffff  # protobuf's own limit of a message
    AHEAD = 2048  # prefetch distance in bytes
    LINES = 16  # cache lines fetched ahead for one record, at most
    FEW = 12  # up to so many parents, duplicates are found by comparing
    NOWHERE = 0xffffffff

# Kinds of arms of an attribute's value.
cdef enum:
    ARM_NONE = 0
    ARM_INT = 1
    ARM_UINT = 2
    ARM_FLOAT = 3
    ARM_DOUBLE = 4
    ARM_TEXT = 5
    ARM_LIST = 6


class Scan(NamedTuple):
    """What the scanner found in one file; positions are record numbers after the metadata."""

    columns: dict
    dep_indptr: np.ndarray
    deps: np.ndarray
    offset: np.ndarray
    length: np.ndarray
    name_at: np.ndarray
    name_length: np.ndarray
    notes: np.ndarray
    groups: list
    metadata: tuple
    error: tuple
    unknown: dict
    repeated: int


cdef struct Cursor:
    const uint8_t *p
    const uint8_t *e
    const uint8_t *at
    int bad


cdef struct Attr:
    const uint8_t *name
    const uint8_t *text
    uint64_t raw
    uint32_t name_length
    uint32_t text_length
    int arm


cdef struct Note:
    uint64_t value
    uint32_t node
    uint32_t code


cdef struct Row:
    uint64_t id
    uint64_t type
    uint64_t comm_type
    int64_t duration
    int64_t start
    int64_t size
    int64_t src
    int64_t dst
    int64_t num_ops
    int64_t tensor_size
    int32_t tag
    int32_t root
    int32_t stream
    int32_t thread
    int32_t group
    uint32_t name_at
    uint32_t name_length
    int8_t dtype
    uint8_t is_cpu
    uint8_t size_status
    uint8_t type_status
    uint8_t src_status
    uint8_t dst_status


cdef struct State:
    const uint8_t *base
    size_t size
    size_t n
    size_t n_cap
    uint64_t *offset
    uint32_t *length
    uint64_t *id
    # frames
    int error
    uint64_t error_at
    uint64_t error_want
    uint64_t meta_at
    uint64_t meta_length
    int has_meta
    # id -> position
    int sequential
    uint64_t first_id
    uint64_t span
    uint32_t *table
    uint64_t mask
    uint64_t multiplier
    int shift
    # parents
    uint32_t *deps
    size_t n_deps
    size_t deps_cap
    uint32_t *stamp
    uint64_t repeated
    # notes
    Note *notes
    size_t n_notes
    size_t notes_cap
    # groups
    uint64_t *group_at
    uint32_t *group_length
    size_t n_groups
    size_t groups_cap
    uint32_t *group_table
    size_t group_mask
    int32_t last_group
    # others
    uint64_t unknown[33]
    int memory
    int version


# ------------------------------------------------------------------------------ reading bytes

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


# ---------------------------------------------------------------------------- growing memory

cdef bint grow(void **memory, size_t *capacity, size_t needed, size_t item) noexcept nogil:
    cdef size_t wanted = capacity[0] * 2
    cdef void *moved
    if wanted < needed:
        wanted = needed
    if wanted < 64:
        wanted = 64
    moved = realloc(memory[0], wanted * item)
    if moved == NULL:
        return False
    memory[0] = moved
    capacity[0] = wanted
    return True


cdef void note(State *s, size_t node, uint32_t code, uint64_t value) noexcept nogil:
    if s.n_notes == s.notes_cap:
        if not grow(<void **>&s.notes, &s.notes_cap, s.n_notes + 1, sizeof(Note)):
            s.memory = 1
            return
    s.notes[s.n_notes].node = <uint32_t>node
    s.notes[s.n_notes].code = code
    s.notes[s.n_notes].value = value
    s.n_notes += 1


@cython.final
cdef class Memory:
    """A block that the scanner grew, given to NumPy without a copy."""

    cdef void *block
    cdef Py_ssize_t size

    def __cinit__(self):
        self.block = NULL

    def __dealloc__(self):
        free(self.block)

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.block, self.size, False, flags)


cdef take(void **block, size_t count, str dtype):
    # Trim `block` to `count` items and hand it over as an array.
    cdef Memory memory = Memory()
    cdef size_t size = count * np.dtype(dtype).itemsize
    cdef void *trimmed
    if count == 0:
        return np.empty(0, dtype)
    trimmed = realloc(block[0], size)
    memory.block = block[0] if trimmed == NULL else trimmed
    memory.size = size
    block[0] = NULL
    return np.frombuffer(memory, dtype)


# ------------------------------------------------------------------------------- first pass

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


cdef void frames(State *s) noexcept nogil:
    cdef const uint8_t *end = s.base + s.size
    cdef const uint8_t *start
    cdef const uint8_t *ahead
    cdef Cursor c
    cdef uint64_t length
    cdef size_t k
    cdef size_t id_cap = 0, length_cap = 0
    cdef bint first = True
    c.p = s.base
    c.e = end
    c.bad = 0
    s.sequential = 1
    # Room that is not touched costs nothing, and growing from little can mean copying.
    k = s.size // 64 + 64
    if not (
        grow(<void **>&s.offset, &s.n_cap, k, 8)
        and grow(<void **>&s.id, &id_cap, k, 8)
        and grow(<void **>&s.length, &length_cap, k, 4)
    ):
        s.error = E_MEMORY
        return
    while c.p < end:
        start = c.p
        length = varint(&c)
        if c.bad:
            s.error = E_LENGTH_CUT if end - start < 10 else E_TOO_LONG
            s.error_at = start - s.base
            return
        if length > LAST_RECORD_BYTES:
            s.error = E_TOO_LONG
            s.error_at = start - s.base
            s.error_want = length
            return
        if length > <uint64_t>(end - c.p):
            s.error = E_RECORD_CUT
            s.error_at = start - s.base
            s.error_want = length
            return
        ahead = c.p + AHEAD
        k = (length >> 6) + 1
        if k > LINES:
            k = LINES
        while k:
            genie_prefetch(ahead)
            ahead += 64
            k -= 1
        if first:
            first = False
            if (
                s.version == W4 and is_metadata_v4(c.p, c.p + length)
                or s.version == W3 and is_metadata_v3(c.p, c.p + length)
            ):
                s.has_meta = 1
                s.meta_at = c.p - s.base
                s.meta_length = length
                c.p += length
                continue
        if s.n == s.n_cap:
            if not (
                grow(<void **>&s.offset, &s.n_cap, s.n + 1, 8)
                and grow(<void **>&s.id, &id_cap, s.n_cap, 8)
                and grow(<void **>&s.length, &length_cap, s.n_cap, 4)
            ):
                s.error = E_MEMORY
                return
            if id_cap < s.n_cap or length_cap < s.n_cap:
                s.error = E_MEMORY
                return
        if s.n == UINT32_MAX - 1:
            s.error = E_TOO_MANY
            return
        s.offset[s.n] = c.p - s.base
        s.length[s.n] = <uint32_t>length
        s.id[s.n] = record_id(c.p, c.p + length)
        if s.id[s.n] != s.id[0] + s.n:
            s.sequential = 0
        s.n += 1
        c.p += length


cdef inline uint64_t slot_of(State *s, uint64_t id) noexcept nogil:
    return (id * s.multiplier) >> s.shift


cdef bint index_ids(State *s) noexcept nogil:
    cdef size_t i, size
    cdef uint64_t low, high, slot, at
    if s.n == 0:
        return True
    if s.sequential:
        s.first_id = s.id[0]
        return True
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


# ------------------------------------------------------------------------------ second pass

cdef inline void parent(State *s, size_t i, size_t first, uint64_t id) noexcept nogil:
    # Add a parent of node i once; s.deps has room.
    cdef uint32_t at = position(s, id)
    cdef size_t k, count = s.n_deps - first
    if at == NOWHERE:
        note(s, i, N_DANGLING, id)
        return
    if count < FEW:
        for k in range(first, s.n_deps):
            if s.deps[k] == at:
                s.repeated += 1
                return
    else:
        if s.stamp == NULL:
            s.stamp = <uint32_t *>calloc(s.n, 4)
            if s.stamp == NULL:
                s.memory = 1
                return
        if count == FEW:
            for k in range(first, s.n_deps):
                s.stamp[s.deps[k]] = <uint32_t>(i + 1)
        if s.stamp[at] == i + 1:
            s.repeated += 1
            return
        s.stamp[at] = <uint32_t>(i + 1)
    s.deps[s.n_deps] = at
    s.n_deps += 1


cdef inline bint room(State *s, size_t more) noexcept nogil:
    if s.n_deps + more > s.deps_cap:
        if not grow(<void **>&s.deps, &s.deps_cap, s.n_deps + more, 4):
            s.memory = 1
            return False
    return True


cdef inline void parents(State *s, Cursor *c, size_t i, size_t first) noexcept nogil:
    # A packed list of parents.
    cdef uint32_t length
    cdef Cursor inner
    cdef const uint8_t *start = span(c, &length)
    if c.bad or not room(s, length):
        return
    inner.p = start
    inner.e = start + length
    inner.bad = 0
    while inner.p < inner.e:
        parent_from(s, &inner, i, first)
    if inner.bad:
        fail(c, F_VARINT, inner.at)


cdef inline void parent_from(State *s, Cursor *c, size_t i, size_t first) noexcept nogil:
    cdef uint64_t id = varint(c)
    if not c.bad:
        parent(s, i, first, id)


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
            a.arm = ARM_UINT
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
    # The attribute as an integer, whatever arm holds it.
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
            slot = hash_group(s, s.group_at[k], s.group_length[k]) & s.group_mask
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
        # Both arrays grow in step, from the same capacity.
        size = s.groups_cap
        if not grow(<void **>&s.group_length, &size, s.n_groups + 1, 4) or not grow(
            <void **>&s.group_at, &s.groups_cap, s.n_groups + 1, 8
        ):
            s.memory = 1
            return -1
    s.group_at[s.n_groups] = at
    s.group_length[s.n_groups] = length
    s.group_table[slot] = <uint32_t>s.n_groups
    s.last_group = <int32_t>s.n_groups
    s.n_groups += 1
    return s.last_group


cdef inline bint same_group(State *s, int32_t k, uint64_t at, uint32_t length) noexcept nogil:
    if s.group_length[k] != length:
        return False
    if length == NOWHERE:
        return s.group_at[k] == at
    return memcmp(s.base + s.group_at[k], s.base + at, length) == 0


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


cdef inline void apply(State *s, size_t i, Attr *a, Row *r, const uint8_t *record,
                       const uint8_t *start, const uint8_t *end) noexcept nogil:
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
            status = number(a, &wide)
            if status == S_INT:
                r.is_cpu = wide != 0
            elif status != S_NONE:
                note(s, i, N_VALUE, A_CPU << 8 | status)
        elif initial != b"c":
            return
        elif named(a, b"comm_size", 9):
            status = number(a, &r.size)
            if status == S_INT and r.size < 0:
                status = S_RANGE
            r.size_status = status
        elif named(a, b"comm_type", 9):
            r.type_status = number(a, &wide)
            r.comm_type = <uint64_t>wide
        elif named(a, b"comm_root", 9):
            small(s, i, a, A_ROOT, &r.root)
    elif length == 3:
        if named(a, b"tid", 3):
            status = number(a, &wide)
            if status == S_INT:
                r.thread = fold(wide)
            elif status != S_NONE:
                note(s, i, N_VALUE, A_TID << 8 | status)
        elif s.version != W4:
            if named(a, b"src", 3):
                r.src_status = number(a, &r.src)
            elif named(a, b"dst", 3):
                r.dst_status = number(a, &r.dst)
            elif named(a, b"tag", 3):
                small(s, i, a, A_TAG, &r.tag)
    elif length == 6:
        if named(a, b"stream", 6):
            status = number(a, &wide)
            if status == S_INT:
                r.stream = fold(wide)
            elif status != S_NONE:
                note(s, i, N_VALUE, A_STREAM << 8 | status)
    elif length == 7:
        if named(a, b"pg_name", 7):
            group_value(s, i, a, r)
        elif named(a, b"num_ops", 7):
            large(s, i, a, A_OPS, &r.num_ops)
        elif s.version != W4 and named(a, b"runtime", 7):
            micros(s, i, a, A_DURATION, &r.duration)
    elif length == 8:
        if named(a, b"comm_src", 8):
            r.src_status = number(a, &r.src)
        elif named(a, b"comm_dst", 8):
            r.dst_status = number(a, &r.dst)
        elif named(a, b"comm_tag", 8):
            small(s, i, a, A_TAG, &r.tag)
    elif length == 10:
        if named(a, b"comm_group", 10):
            group_value(s, i, a, r)
        elif named(a, b"comm_dtype", 10):
            r.dtype = dtype_of(a.text, a.text_length) if a.arm == ARM_TEXT else -1
            if r.dtype < 0:
                note(s, i, N_VALUE, A_DTYPE << 8 | S_TEXT)
    elif length == 11:
        if named(a, b"tensor_size", 11):
            large(s, i, a, A_TENSOR, &r.tensor_size)
        elif named(a, b"duration_ns", 11):
            large(s, i, a, A_DURATION, &r.duration)
    elif length == 14:
        if named(a, b"comm_in_splits", 14) and a.arm == ARM_LIST:
            note(s, i, N_IN_SPLITS, <uint64_t>(start - record) << 32 | <uint64_t>(end - start))
    elif length == 15:
        if named(a, b"comm_out_splits", 15) and a.arm == ARM_LIST:
            note(s, i, N_OUT_SPLITS, <uint64_t>(start - record) << 32 | <uint64_t>(end - start))


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


cdef inline void attr_v4(
    State *s, size_t i, Cursor *c, Row *r, const uint8_t *record
) noexcept nogil:
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
    apply(s, i, &a, r, record, start, start + length)


cdef void read_v4(State *s, size_t i, Cursor *c, Row *r) noexcept nogil:
    cdef const uint8_t *record = c.p
    cdef const uint8_t *text
    cdef size_t first = s.n_deps
    cdef uint64_t tag, field
    while c.p < c.e:
        tag = read_tag(c)
        if tag == 0x52:
            attr_v4(s, i, c, r, record)
        elif tag == 0x08:
            r.id = varint(c)
        elif tag == 0x12:
            text = span(c, &r.name_length)
            r.name_at = <uint32_t>(text - record)
        elif tag == 0x18:
            r.type = varint(c)
        elif tag == 0x22 or tag == 0x2a:
            parents(s, c, i, first)
        elif tag == 0x20 or tag == 0x28:
            if room(s, 1):
                parent_from(s, c, i, first)
            else:
                return
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
            apply(s, i, &a, r, record, start, start + length)
        elif tag == 0x08:
            r.id = varint(c)
        elif tag == 0x12:
            text = span(c, &r.name_length)
            r.name_at = <uint32_t>(text - record)
        elif tag == 0x18:
            r.type = varint(c)
        elif tag == 0x22:
            parents(s, c, i, first)
        elif tag == 0x20:
            if not room(s, 1):
                return
            parent_from(s, c, i, first)
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
            parents(s, c, i, first)
            continue
        if tag & 7 or tag > 0xa0 or tag < 8:
            field = tag >> 3
            skip(c, tag)
            if not c.bad and field != 14:
                s.unknown[field if field < 32 else 32] += 1
            continue
        field = tag >> 3
        if field == 4:
            if not room(s, 1):
                return
            parent_from(s, c, i, first)
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


cdef void rows(State *s, Out *out, bint names) noexcept nogil:
    cdef size_t i, k
    cdef Row r
    cdef Cursor c
    cdef int kind
    cdef const uint8_t *ahead
    out.indptr[0] = 0
    if not room(s, s.size // 8 + 64):
        return
    for i in range(s.n):
        c.p = s.base + s.offset[i]
        c.e = c.p + s.length[i]
        c.bad = 0
        ahead = c.p + AHEAD
        k = (s.length[i] >> 6) + 1
        if k > LINES:
            k = LINES
        while k:
            genie_prefetch(ahead)
            ahead += 64
            k -= 1
        clear(&r)
        if genie_likely(s.version == W4):
            read_v4(s, i, &c, &r)
        elif s.version == W1:
            read_v1(s, i, &c, &r)
        else:
            read_v3(s, i, &c, &r)
        if s.memory:
            return
        if c.bad:
            note(s, i, N_CORRUPT, <uint64_t>(c.at - s.base) << 8 | c.bad)
            clear(&r)
            r.id = s.id[i]
            s.n_deps = out.indptr[i]
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
        if names:
            out.name_at[i] = r.name_at
            out.name_length[i] = r.name_length
        out.indptr[i + 1] = s.n_deps


# ------------------------------------------------------------------------- version detection

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


# -------------------------------------------------------------------------------- the scan

cdef void release(State *s) noexcept nogil:
    free(s.offset)
    free(s.length)
    free(s.id)
    free(s.table)
    free(s.deps)
    free(s.stamp)
    free(s.notes)
    free(s.group_at)
    free(s.group_length)
    free(s.group_table)


def scan(data, int version, bint names=True):
    """Return the columns of a trace file.

    Args:
        data: The file's bytes (anything with a buffer; a mapped file is read in place).
        version: `V1`, `V2`, `V3` or `V4`.
        names: Whether to note where names are.

    Raises:
        MemoryError: The columns do not fit into memory.
    """
    cdef Py_buffer view
    cdef State s
    cdef Out out
    cdef size_t n
    if version not in (W1, W2, W3, W4):
        raise ValueError(f"not a wire version: {version}")
    memset(&s, 0, sizeof(State))
    s.version = version
    s.last_group = -1
    # Odd and not to be guessed, so that no file can be made to fill one chain of the table.
    s.multiplier = int.from_bytes(os.urandom(8), "little") | 1
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        s.base = <const uint8_t *>view.buf
        s.size = view.len
        with nogil:
            frames(&s)
            if s.error != E_MEMORY and not index_ids(&s):
                s.error = E_MEMORY
        if s.error == E_MEMORY or s.memory:
            raise MemoryError("the trace's frames do not fit into memory")
        n = s.n
        # One more row than needed keeps the addresses valid for a file without nodes.
        kind = np.empty(n + 1, np.uint8)
        coll = np.empty(n + 1, np.int8)
        dtype = np.empty(n + 1, np.int8)
        is_cpu = np.empty(n + 1, np.uint8)
        wide = {
            name: np.empty(n + 1, np.int64)
            for name in ("duration_ns", "start_ns", "nbytes", "num_ops", "tensor_size")
        }
        narrow = {
            name: np.empty(n + 1, np.int32)
            for name in ("group", "peer", "tag", "root", "stream", "thread")
        }
        indptr = np.empty(n + 1, np.int64)
        name_at = np.empty(n + 1 if names else 1, np.uint32)
        name_length = np.empty(n + 1 if names else 1, np.uint32)
        out.kind = u1(kind)
        out.is_cpu = u1(is_cpu)
        out.coll = i1(coll)
        out.dtype = i1(dtype)
        out.duration = i8(wide["duration_ns"])
        out.start = i8(wide["start_ns"])
        out.nbytes = i8(wide["nbytes"])
        out.num_ops = i8(wide["num_ops"])
        out.tensor_size = i8(wide["tensor_size"])
        out.group = i4(narrow["group"])
        out.peer = i4(narrow["peer"])
        out.tag = i4(narrow["tag"])
        out.root = i4(narrow["root"])
        out.stream = i4(narrow["stream"])
        out.thread = i4(narrow["thread"])
        out.indptr = i8(indptr)
        out.name_at = u4(name_at)
        out.name_length = u4(name_length)
        with nogil:
            rows(&s, &out, names)
        if s.memory:
            raise MemoryError("the trace's columns do not fit into memory")
        columns = {"kind": kind[:n], "coll": coll[:n], "dtype": dtype[:n], "is_cpu": is_cpu[:n]}
        for name, array in (*wide.items(), *narrow.items()):
            columns[name] = array[:n]
        columns["id"] = take(<void **>&s.id, n, "u8")
        groups = []
        for k in range(s.n_groups):
            if s.group_length[k] == NOWHERE:
                groups.append(<int64_t>s.group_at[k])
            else:
                groups.append((<const char *>(s.base + s.group_at[k]))[:s.group_length[k]])
        unknown = {k: s.unknown[k] for k in range(33) if s.unknown[k]}
        return Scan(
            columns=columns,
            dep_indptr=indptr,
            deps=take(<void **>&s.deps, s.n_deps, "u4"),
            offset=take(<void **>&s.offset, n, "u8"),
            length=take(<void **>&s.length, n, "u4"),
            name_at=name_at[:n] if names else name_at[:0],
            name_length=name_length[:n] if names else name_length[:0],
            notes=take(<void **>&s.notes, s.n_notes, NOTE_DTYPE),
            groups=groups,
            metadata=(s.meta_at, s.meta_length) if s.has_meta else (),
            error=(s.error, s.error_at, s.error_want) if s.error else (),
            unknown=unknown,
            repeated=s.repeated,
        )
    finally:
        release(&s)
        PyBuffer_Release(&view)


NOTE_DTYPE = "u8,u4,u4"


cdef uint8_t *u1(uint8_t[::1] a):
    return &a[0]


cdef int8_t *i1(int8_t[::1] a):
    return &a[0]


cdef int32_t *i4(int32_t[::1] a):
    return &a[0]


cdef uint32_t *u4(uint32_t[::1] a):
    return &a[0]


cdef int64_t *i8(int64_t[::1] a):
    return &a[0]
