"""Scanner of Chakra execution traces: from protobuf wire bytes straight to columns and a CSR.

One pass over the bytes: frame (varint length, record), fields, row. Parents become positions as
they are met, which takes no table as long as ids count up and parents come first, as in most
files; from the first node on that breaks this, all remaining frames are read for their ids before
the pass goes on. No Python object is made per node, and the GIL is off. Every read is checked
against the end of its record, so that no bytes can make it read elsewhere; what does not fit
becomes a note.

scan_bytes.pxi reads wire bytes, scan_memory.pxi grows the columns, scan_frames.pxi finds records
and ids, scan_parents.pxi dependencies, scan_attributes.pxi attributes, scan_records.pxi the fields
of a node in each version, scan_rows.pxi fills the columns, scan_versions.pxi tells versions apart.
"""

from typing import NamedTuple

import os

import numpy as np

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport (
    INT32_MAX, INT64_MAX, UINT32_MAX, int8_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t,
)
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset

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
NOTE_IN_SPLITS = 6
NOTE_OUT_SPLITS = 7
NOTE_CORRUPT = 8  # value: offset in the record << 8 | fault
NOTE_TWO_IDS = 9  # value: the other id
NOTE_TWICE = 10  # value: attribute code
NOTE_COUNTS = 11  # splits as PyTorch has them, in elements
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
    N_TWICE = 10
    N_COUNTS = 11

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
    "comm_group", "runtime", "duration_ns", "comm_in_splits", "comm_out_splits", "in_split_size",
    "out_split_size",
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
    A_COMM_GROUP = 16
    A_RUNTIME = 17
    A_EXACT = 18
    A_IN = 19
    A_OUT = 20
    A_IN_COUNTS = 21
    A_OUT_COUNTS = 22

# Errors of the framing.
FRAME_OK, FRAME_LENGTH_CUT, FRAME_RECORD_CUT, FRAME_TOO_LONG, FRAME_TOO_MANY = range(5)
cdef enum:
    E_OK = 0
    E_LENGTH_CUT = 1
    E_RECORD_CUT = 2
    E_TOO_LONG = 3
    E_TOO_MANY = 4

cdef enum:
    LAST_RECORD_BYTES = 0x7fffffff  # protobuf's own limit of a message
    FEW = 12  # up to so many parents, duplicates are found by comparing
    NOWHERE = 0xffffffff

# What is kept of each node; the last two only with names.
_COLUMNS = (
    ("id", "u8"), ("offset", "u8"), ("length", "u4"), ("dep_indptr", "i8"), ("kind", "u1"),
    ("duration_ns", "i8"), ("start_ns", "i8"), ("coll", "i1"), ("nbytes", "i8"), ("group", "i4"),
    ("peer", "i4"), ("tag", "i4"), ("root", "i4"), ("stream", "i4"), ("thread", "i4"),
    ("dtype", "i1"), ("num_ops", "i8"), ("tensor_size", "i8"), ("is_cpu", "u1"),
    ("name_at", "u4"), ("name_length", "u4"),
)
cdef enum:
    C_ID = 0
    C_OFFSET = 1
    C_LENGTH = 2
    C_INDPTR = 3
    C_KIND = 4
    C_DURATION = 5
    C_START = 6
    C_COLL = 7
    C_NBYTES = 8
    C_GROUP = 9
    C_PEER = 10
    C_TAG = 11
    C_ROOT = 12
    C_STREAM = 13
    C_THREAD = 14
    C_DTYPE = 15
    C_OPS = 16
    C_TENSOR = 17
    C_CPU = 18
    C_NAME_AT = 19
    C_NAME_LENGTH = 20
    COLUMNS = 21

# Names of attributes that have a column, in any version.
_WANTED = (
    *(name for name in ATTRIBUTES if name.startswith("comm_")), "pg_name", "comm_group",
    "tensor_size", "num_ops", "duration_ns", "runtime", "stream", "tid", "is_cpu_op", "src", "dst",
    "tag", "comm_in_splits", "comm_out_splits", "in_split_size", "out_split_size",
)


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
    uint32_t seen  # attributes that came, as bits
    uint32_t name_at
    uint32_t name_length
    int8_t dtype
    uint8_t is_cpu
    uint8_t size_status
    uint8_t type_status
    uint8_t src_status
    uint8_t dst_status


cdef struct Group:
    uint64_t at  # offset of its name in the file; the number itself if `length` is NOWHERE
    uint32_t length


cdef struct State:
    const uint8_t *base
    size_t size
    size_t reached  # bytes read so far
    int version
    int memory  # it ran out
    # columns
    size_t n  # records found
    size_t rows  # room
    void *column[COLUMNS]
    uint8_t item[COLUMNS]  # bytes of a value; 0: not wanted
    uint64_t *offset
    uint32_t *length
    uint64_t *id
    # frames
    size_t at  # the next one
    int complete  # all are known
    int error
    uint64_t error_at
    uint64_t error_want
    uint64_t meta_at
    uint64_t meta_length
    int has_meta
    # id -> position
    int sequential
    uint64_t first_id
    uint64_t known  # positions that ids can have
    uint64_t span
    uint32_t *table
    uint64_t mask
    uint64_t multiplier
    int shift
    # parents
    uint32_t *deps
    size_t n_deps
    size_t deps_cap
    uint64_t seen  # a bit of each parent of this node
    uint32_t *stamp
    size_t stamps
    uint64_t repeated
    # notes
    Note *notes
    size_t n_notes
    size_t notes_cap
    # groups
    Group *groups
    size_t n_groups
    size_t groups_cap
    uint32_t *group_table
    size_t group_mask
    int32_t last_group
    # others
    uint32_t wanted[16]  # first letters of the attributes that have a column, by length of the name
    uint64_t unknown[33]


include "scan_bytes.pxi"
include "scan_memory.pxi"
include "scan_frames.pxi"
include "scan_parents.pxi"
include "scan_attributes.pxi"
include "scan_records.pxi"
include "scan_rows.pxi"
include "scan_versions.pxi"


cdef void release(State *s) noexcept nogil:
    cdef int k
    for k in range(COLUMNS):
        free(s.column[k])
    free(s.table)
    free(s.deps)
    free(s.stamp)
    free(s.notes)
    free(s.groups)
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
    if version not in (W1, W2, W3, W4):
        raise ValueError(f"not a wire version: {version}")
    memset(&s, 0, sizeof(State))
    s.version = version
    s.last_group = -1
    s.sequential = 1
    # Odd and not to be guessed, so that no file can be made to fill one chain of the table.
    s.multiplier = int.from_bytes(os.urandom(8), "little") | 1
    for k, (_, dtype) in enumerate(_COLUMNS if names else _COLUMNS[:C_NAME_AT]):
        s.item[k] = np.dtype(dtype).itemsize
    for name in _WANTED:
        # The low five bits tell lower-case letters apart.
        s.wanted[len(name)] |= 1 << (ord(name[0]) & 31)
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        s.base = <const uint8_t *>view.buf
        s.size = view.len
        with nogil:
            rows(&s)
        if s.memory:
            raise MemoryError("the trace's columns do not fit into memory")
        columns = {
            name: take(&s.column[k], s.n + (k == C_INDPTR) if s.item[k] else 0, dtype)
            for k, (name, dtype) in enumerate(_COLUMNS)
        }
        groups = []
        for k in range(s.n_groups):
            if s.groups[k].length == NOWHERE:
                groups.append(<int64_t>s.groups[k].at)
            else:
                groups.append((<const char *>(s.base + s.groups[k].at))[:s.groups[k].length])
        unknown = {k: s.unknown[k] for k in range(33) if s.unknown[k]}
        return Scan(
            dep_indptr=columns.pop("dep_indptr"),
            deps=take(<void **>&s.deps, s.n_deps, "u4"),
            offset=columns.pop("offset"),
            length=columns.pop("length"),
            name_at=columns.pop("name_at"),
            name_length=columns.pop("name_length"),
            columns=columns,
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
