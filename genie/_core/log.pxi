# The log: one reserved piece of memory a table, touched as it fills, seen by NumPy without a copy.

@cython.final
cdef class _LogArea:
    """Memory of one log table, read-only for Python."""

    cdef void* data
    cdef size_t size
    cdef Py_ssize_t used

    def __cinit__(self, size_t size):
        self.data = NULL
        self.size = size if size > 0 else 1
        self.used = 0
        cdef void* p = mmap(
            NULL, self.size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
            -1, 0,
        )
        if p == MAP_FAILED:
            raise MemoryError(f"cannot reserve {size} bytes for the log")
        self.data = p
        # Pages of the first rows are made now, so that the run meets no page fault there; huge
        # ones where the kernel has them, as the rest of a long log is made while it fills.
        if self.size >= HUGE:
            madvise(p, self.size, MADV_HUGEPAGE)
        madvise(p, min(self.size, <size_t> PREFAULT), MADV_POPULATE_WRITE)

    def __dealloc__(self):
        if self.data != NULL:
            munmap(self.data, self.size)

    cdef int forget(self, size_t size) noexcept:
        # Whole huge pages only: parts of one would be read again as zeros.
        size &= ~(<size_t> HUGE - 1)
        if size > 0:
            madvise(self.data, size, MADV_DONTNEED)
        return 0

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.data, self.used, 1, flags)
