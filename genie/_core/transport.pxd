"""The C interface between the engine and a transport (one struct of functions).

A *connection* carries messages one way, from one sender to one receiver, in
order. The engine owns windows and schedules; a transport owns bytes and credits.
Ids of connections are small integers chosen by the engine's caller, the same
table on both ends (see docs/architecture.md, "Connections").
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

cdef extern from *:
    """
    #ifndef GENIE_TRANSPORT_H
    #define GENIE_TRANSPORT_H
    #include <stdint.h>
    /* Kinds of events that poll() reports. */
    #define GENIE_EV_READY 1    /* after a post_send that got -EAGAIN: it may succeed now
                                   (always sent then) */
    #define GENIE_EV_SENT 2     /* the oldest send of conn is complete; its FIFO slot is free */
    #define GENIE_EV_RECEIVED 3 /* the oldest announced receive of conn is complete */
    #define GENIE_EV_ERROR 4    /* conn failed; status is -errno or a positive ibv_wc_status */
    typedef struct genie_event {
        int64_t t_ns;     /* CLOCK_MONOTONIC when the transport saw it */
        uint32_t conn;
        int32_t status;
        uint8_t type;
    } genie_event;
    typedef struct genie_transport {
        void *self;
        /* Announce room for the next message of conn (NCCL: receive WR + CTS). 0 or -errno. */
        int (*post_recv)(void *self, uint32_t conn, uint64_t nbytes, uint32_t step);
        /* Send the next message. 0 accepted; -EAGAIN no room announced or queue full (an
           event will follow); any other -errno is fatal for conn. */
        int (*post_send)(void *self, uint32_t conn, uint64_t nbytes, uint32_t step);
        /* Push out what post_* batched (one call per engine turn). 0 or -errno. */
        int (*flush)(void *self);
        /* Fill up to max events without blocking; their number or -errno. */
        int (*poll)(void *self, genie_event *events, int max);
        /* Sleep until an event may be there or CLOCK_MONOTONIC reaches deadline_ns. 0 or -errno. */
        int (*wait)(void *self, int64_t deadline_ns);
    } genie_transport;
    #define GENIE_TRANSPORT_CAPSULE "genie.transport"
    #endif
    """
    int GENIE_EV_READY
    int GENIE_EV_SENT
    int GENIE_EV_RECEIVED
    int GENIE_EV_ERROR
    const char* GENIE_TRANSPORT_CAPSULE
    ctypedef struct genie_event:
        int64_t t_ns
        uint32_t conn
        int32_t status
        uint8_t type
    ctypedef struct genie_transport:
        void *self
        int (*post_recv)(void *self, uint32_t conn, uint64_t nbytes, uint32_t step) noexcept nogil
        int (*post_send)(void *self, uint32_t conn, uint64_t nbytes, uint32_t step) noexcept nogil
        int (*flush)(void *self) noexcept nogil
        int (*poll)(void *self, genie_event *events, int max) noexcept nogil
        int (*wait)(void *self, int64_t deadline_ns) noexcept nogil
