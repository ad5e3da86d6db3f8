# The memory of a NIC: one mapping whose data slots are the same few pages over and over.

cdef extern from * nogil:
    """
    /* RLIMIT_MEMLOCK in bytes, -1 for none. */
    static int64_t genie_memlock(void) {
        struct rlimit r;
        if (getrlimit(RLIMIT_MEMLOCK, &r) || r.rlim_cur == RLIM_INFINITY) return -1;
        return (int64_t)r.rlim_cur;
    }
    static void genie_clear_errno(void) { errno = 0; }
    static void genie_no_block(int fd) { fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK); }
    /* `control` bytes of memory, then `slots` bytes that are the same `hot` bytes over and over. */
    static char *genie_map(size_t control, size_t slots, size_t hot, int *file) {
        size_t at;
        char *base = mmap(NULL, control + slots, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (base == MAP_FAILED) return NULL;
        *file = -1;
        if (mmap(base, control, PROT_READ | PROT_WRITE,
                 MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED) goto failed;
        *file = (int)syscall(SYS_memfd_create, "genie", 1U /* MFD_CLOEXEC */);
        if (*file >= 0 && ftruncate(*file, (off_t)hot)) { close(*file); *file = -1; }
        if (*file < 0) { /* no memfd here: real pages */
            if (slots && mmap(base + control, slots, PROT_READ | PROT_WRITE,
                     MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED) goto failed;
            return base;
        }
        for (at = 0; at < slots; at += hot) {
            size_t n = slots - at < hot ? slots - at : hot;
            if (mmap(base + control + at, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                     *file, 0) == MAP_FAILED) goto failed;
        }
        return base;
    failed:
        if (*file >= 0) close(*file);
        *file = -1;
        munmap(base, control + slots);
        return NULL;
    }
    static void genie_unmap(char *base, size_t n, int file) {
        munmap(base, n);
        if (file >= 0) close(file);
    }
    """
    int64_t genie_memlock()
    void genie_clear_errno()
    void genie_no_block(int fd)
    char *genie_map(size_t control, size_t slots, size_t hot, int *file)
    void genie_unmap(char *base, size_t n, int file)
