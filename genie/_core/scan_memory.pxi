# Memory: blocks that grow while the file is read, and their way to NumPy.

cdef extern from *:
    """
    #include <stdint.h>
    #include <sys/mman.h>
    /* Large pages for a block: fewer page faults, faster clearing. Whole pages at both ends, so
       that a block the allocator mapped stays one mapping, which can grow without a copy. */
    static void genie_large_pages(void *block, size_t bytes) {
    #ifdef MADV_HUGEPAGE
        const uintptr_t page = 4096;
        uintptr_t first = (uintptr_t)block & ~(page - 1);
        uintptr_t last = ((uintptr_t)block + bytes + page - 1) & ~(page - 1);
        madvise((void *)first, last - first, MADV_HUGEPAGE);
    #else
        (void)block; (void)bytes;
    #endif
    }
    """
    void genie_large_pages(void *block, size_t bytes) noexcept nogil

cdef enum:
    LARGE = 1 << 22  # blocks from this size take large pages
    BEGINNING = 4096  # items after which the rest of the file is guessed from its beginning
    GUESS = 256  # a guess multiplies the room by no more than this


cdef void *resize(void *block, size_t bytes) noexcept nogil:
    cdef void *moved = realloc(block, bytes)
    if moved != NULL and bytes >= LARGE:
        genie_large_pages(moved, bytes)
    return moved


cdef size_t roomy(State *s, size_t used, size_t capacity, size_t needed) noexcept nogil:
    # The room that the whole file will take if it goes on as it began, for `used` items now.
    cdef double most = <double>capacity * GUESS
    cdef double guess = 0
    if used >= BEGINNING and s.reached:
        guess = <double>used * (<double>s.size / <double>s.reached) * 1.0625
    if guess > most:
        guess = most
    if guess > needed:
        return <size_t>guess
    return sparing(capacity, needed)


cdef size_t sparing(size_t capacity, size_t needed) noexcept nogil:
    cdef size_t wanted = capacity + (capacity >> 1)
    if wanted < BEGINNING:
        wanted = BEGINNING
    return wanted if wanted > needed else needed


cdef bint grow(
    State *s, void **block, size_t *capacity, size_t used, size_t more, size_t item
) noexcept nogil:
    # Make room for `more` items after the `used` ones.
    cdef size_t wanted = roomy(s, used, capacity[0], used + more)
    cdef void *moved = resize(block[0], wanted * item)
    if moved == NULL:
        wanted = sparing(capacity[0], used + more)
        moved = resize(block[0], wanted * item)
    if moved == NULL:
        s.memory = 1
        return False
    block[0] = moved
    capacity[0] = wanted
    return True


cdef bint grow_columns(State *s, size_t wanted) noexcept nogil:
    cdef void *moved
    cdef int k
    for k in range(COLUMNS):
        if s.item[k]:
            # One more row: dep_indptr has it.
            moved = resize(s.column[k], (wanted + 1) * s.item[k])
            if moved == NULL:
                return False
            s.column[k] = moved
    s.rows = wanted
    s.id = <uint64_t *>s.column[C_ID]
    s.offset = <uint64_t *>s.column[C_OFFSET]
    s.length = <uint32_t *>s.column[C_LENGTH]
    return True


cdef bint grow_rows(State *s) noexcept nogil:
    # Make room for more rows in all columns.
    if not grow_columns(s, roomy(s, s.n, s.rows, s.n + 1)):
        if not grow_columns(s, sparing(s.rows, s.n + 1)):
            s.memory = 1
            return False
    return True


cdef void note(State *s, size_t node, uint32_t code, uint64_t value) noexcept nogil:
    if s.n_notes == s.notes_cap:
        if not grow(s, <void **>&s.notes, &s.notes_cap, s.n_notes, 1, sizeof(Note)):
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
