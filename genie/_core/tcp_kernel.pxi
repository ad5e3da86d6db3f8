# System calls, as inline C.

cdef extern from * nogil:
    """
    #include <sys/epoll.h>
    #include <sys/ioctl.h>
    #include <sys/mman.h>
    #include <sys/sendfile.h>
    #include <sys/socket.h>
    #include <sys/syscall.h>
    #include <linux/sockios.h>
    #include <arpa/inet.h>
    #include <errno.h>
    #include <sched.h>
    #include <time.h>
    #include <unistd.h>
    static inline int64_t genie_now(void) {
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
    }
    /* epoll_wait with nanoseconds; kernels before 5.11 get whole milliseconds, rounded up. */
    static int genie_epoll(int ep, struct epoll_event *events, int max, int64_t ns) {
        if (ns <= 0) return epoll_wait(ep, events, max, 0);
    #ifdef SYS_epoll_pwait2
        struct timespec t = {ns / 1000000000, ns % 1000000000};
        int n = (int)syscall(SYS_epoll_pwait2, ep, events, max, &t, NULL, 0);
        if (n >= 0 || errno != ENOSYS) return n;
    #endif
        int64_t ms = ns / 1000000 + (ns % 1000000 != 0);
        return epoll_wait(ep, events, max, ms > 1000000 ? 1000000 : (int)ms);
    }
    static int genie_epoll_add(int ep, int fd, uint64_t data, int in, int out) {
        struct epoll_event e;
        e.events = EPOLLET | (in ? EPOLLIN | EPOLLRDHUP : 0) | (out ? EPOLLOUT : 0);
        e.data.u64 = data;
        return epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e);
    }
    static void genie_epoll_del(int ep, int fd) {
        struct epoll_event e;
        epoll_ctl(ep, EPOLL_CTL_DEL, fd, &e);
    }
    static ssize_t genie_send(int fd, const void *from, size_t n, int more) {
        return send(fd, from, n, MSG_DONTWAIT | MSG_NOSIGNAL | (more ? MSG_MORE : 0));
    }
    static ssize_t genie_sendfile(int fd, int file, size_t n) {
        off_t at = 0;
        return sendfile(fd, file, &at, n);
    }
    static ssize_t genie_recv(int fd, void *to, size_t n) {
        return recv(fd, to, n, MSG_DONTWAIT);
    }
    static ssize_t genie_peek(int fd) {
        char byte;
        return recv(fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK);
    }
    /* Linux's TCP drops n bytes without copying them (tcp(7)). */
    static ssize_t genie_drop(int fd, size_t n) {
        return recv(fd, NULL, n, MSG_DONTWAIT | MSG_TRUNC);
    }
    static void genie_end(int fd) { shutdown(fd, SHUT_WR); }
    /* Bytes the peer has not acknowledged yet. What it sent is dropped: closing a socket with
       unread bytes makes the kernel throw away what is still to be sent. */
    static int genie_unsent(int fd) {
        int n = 0;
        while (recv(fd, NULL, 1 << 20, MSG_DONTWAIT | MSG_TRUNC) > 0) {}
        return ioctl(fd, SIOCOUTQ, &n) < 0 ? 0 : n;
    }
    static int genie_memfd(size_t n) {
        int fd = (int)syscall(SYS_memfd_create, "genie", 1U /* MFD_CLOEXEC */);
        if (fd < 0) return -1;
        if (ftruncate(fd, (off_t)n) == 0) {
            void *at = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
            if (at != MAP_FAILED) {
                for (size_t i = 0; i < n; i += 4096) ((volatile char *)at)[i] = 1;
                munmap(at, n);
                return fd;
            }
        }
        close(fd);
        return -1;
    }
    """
    ctypedef Py_ssize_t ssize_t
    ctypedef union epoll_data_t:
        uint64_t u64
    cdef struct epoll_event:
        uint32_t events
        epoll_data_t data
    uint32_t EPOLLIN
    uint32_t EPOLLOUT
    uint32_t EPOLLRDHUP
    uint32_t EPOLLHUP
    uint32_t EPOLLERR
    int EPOLL_CLOEXEC
    int epoll_create1(int flags)
    int close(int fd)
    int sched_yield()
    uint32_t htonl(uint32_t x)
    uint32_t ntohl(uint32_t x)
    int64_t genie_now()
    int genie_epoll(int ep, epoll_event *events, int max, int64_t ns)
    int genie_epoll_add(int ep, int fd, uint64_t data, int in_, int out)
    void genie_epoll_del(int ep, int fd)
    ssize_t genie_send(int fd, const void *from_, size_t n, int more)
    ssize_t genie_sendfile(int fd, int file, size_t n)
    ssize_t genie_recv(int fd, void *to, size_t n)
    ssize_t genie_peek(int fd)
    ssize_t genie_drop(int fd, size_t n)
    int genie_memfd(size_t n)
    int genie_unsent(int fd)
    void genie_end(int fd)
