"""The event loop that runs every rank of one worker, without the GIL.

Graph nodes, programs (streams of sends and receives), connections, timers, the
simulated network and the log, as docs/architecture.md ("Engine", "Program") and
design.md section 6 define them. One file a job, included below.
"""

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from cpython.exc cimport PyErr_CheckSignals
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid
from libc.errno cimport EAGAIN, EBADMSG, EBUSY, EINTR, EIO, ENOMEM, EPROTO, ETIMEDOUT
from libc.math cimport ceil, llround
from libc.stdint cimport (
    INT64_MAX, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t,
)
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memset
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

from genie._core.transport cimport (
    GENIE_EV_READY, GENIE_EV_RECEIVED, GENIE_EV_SENT, GENIE_TRANSPORT_CAPSULE, genie_event,
    genie_transport,
)

import os

import numpy as np

from genie._core import report as _report
from genie.errors import InputError, ScheduleError, TransportError

cdef extern from * nogil:
    """
    #define _GNU_SOURCE 1
    #include <time.h>
    #include <sys/mman.h>
    #include <sys/prctl.h>
    #include <sys/resource.h>
    #ifndef MADV_POPULATE_WRITE
    #define MADV_POPULATE_WRITE 23
    #endif
    #if defined(__x86_64__) || defined(__i386__)
    #define genie_pause() __builtin_ia32_pause()
    #elif defined(__aarch64__)
    #define genie_pause() __asm__ __volatile__("yield")
    #else
    #define genie_pause() do {} while (0)
    #endif
    """
    int TIMER_ABSTIME
    int clock_nanosleep(int clock, int flags, const timespec* t, timespec* rest)
    void* mmap(void* at, size_t size, int prot, int flags, int fd, long offset)
    int munmap(void* at, size_t size)
    int madvise(void* at, size_t size, int advice)
    void* MAP_FAILED
    int PROT_READ, PROT_WRITE, MAP_PRIVATE, MAP_ANONYMOUS, MAP_NORESERVE
    int MADV_POPULATE_WRITE, MADV_HUGEPAGE, MADV_DONTNEED
    int prctl(int option, unsigned long a)
    int PR_SET_TIMERSLACK, PR_GET_TIMERSLACK
    struct timeval:
        long tv_sec
        long tv_usec
    struct rusage:
        timeval ru_utime
        timeval ru_stime
        long ru_nvcsw
        long ru_nivcsw
    int RUSAGE_THREAD
    int getrusage(int who, rusage* usage)
    int clz64 "__builtin_clzll"(unsigned long long v)
    void pause "genie_pause"()
    void prefetch "__builtin_prefetch"(const void* at)

cdef enum:
    PREFAULT = 128 << 20      # bytes of a log table that are touched before the run
    HUGE = 4 << 20
    OPS_LIMIT = 1 << 27       # rows; 5 GB
    MESSAGES_LIMIT = 1 << 26  # rows; 2 GB

include "structs.pxi"
include "log.pxi"
include "heap.pxi"
include "simnet.pxi"
include "messages.pxi"
include "streams.pxi"
include "joint.pxi"
include "nodes.pxi"
include "loop.pxi"

STREAM = np.dtype([
    ("channel", "u2"), ("group", "u1"), ("lane", "u1"),
    ("phase", "u4"), ("first", "u4"), ("count", "u4"),
])
OP = np.dtype([
    ("peer", "i4"), ("nbytes", "u4"), ("call", "u4"),
    ("kind", "u1"), ("flags", "u1"), ("steps", "u1"), ("conn", "u1"),
])
CONN = np.dtype([
    ("src", "i4"), ("dst", "i4"), ("communicator", "i4"), ("channel", "u2"),
    ("index", "u1"), ("nic_src", "i2"), ("nic_dst", "i2"), ("proxy_src", "i4"),
])
NETWORK_EVENT = np.dtype([("t_ns", "i8"), ("link", "i4"), ("rate", "f8")])
OPS = np.dtype([
    ("rank", "i4"), ("node", "u4"), ("iteration", "i4"), ("status", "i4"),
    ("ready_ns", "i8"), ("start_ns", "i8"), ("end_ns", "i8"),
])
MESSAGES = np.dtype([
    ("op", "u4"), ("connection", "u4"), ("nbytes", "u4"), ("status", "i2"),
    ("direction", "u1"), ("flags", "u1"), ("posted_ns", "i8"), ("completed_ns", "i8"),
])
FAILURE = np.dtype([
    ("t_ns", "i8"), ("status", "i4"), ("id", "i4"), ("rank", "i4"), ("peer", "i4"),
    ("node", "u4"), ("message", "u4"), ("iteration", "i4"), ("connection", "u4"),
])
CONNECTIONS = np.dtype([
    ("id", "i4"), ("communicator", "i4"), ("src", "i4"), ("dst", "i4"), ("channel", "u2"),
    ("index", "u1"), ("kind", "u1"), ("sent", "u8"), ("received", "u8"),
])
BLOCKED = np.dtype([
    ("rank", "i4"), ("node", "u4"), ("iteration", "i4"), ("communicator", "i4"),
    ("channel", "i4"), ("group", "i4"), ("reason", "i4"), ("peer", "i4"), ("connection", "u4"),
    ("id", "i4"), ("message", "u4"), ("nbytes", "u4"), ("last_ns", "i8"),
])

if OPS.itemsize != sizeof(OpRow) or MESSAGES.itemsize != sizeof(MessageRow):
    raise ImportError("genie._core.engine: log rows and their NumPy dtypes differ in size")
if FAILURE.itemsize != sizeof(FailureRow):
    raise ImportError("genie._core.engine: failure rows and their NumPy dtype differ in size")

_STATUS = {DONE: "done", STALLED: "stalled", FAILED: "failed", ABORTED: "aborted"}

include "build.pxi"
include "run.pxi"
