"""The tables of a Recording: every column, its type, its unit and its meaning, in one place.

Text columns are stored as int32 codes in the NumPy tables, with their labels beside them
(`Recording.labels[table, column]`), and as dictionary-encoded strings in Parquet.
Times are int64 nanoseconds on one timeline, 0 = the start barrier of the run; -1 = did not happen.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

#: Version of the folder format; raised when a reader of the older version would misread it.
SCHEMA_VERSION = 2

#: Labels of `ops.kind`; the first ten are the codes of `genie.trace.Coll`.
KINDS: tuple[str, ...] = (
    "all_reduce",
    "reduce",
    "all_gather",
    "gather",
    "scatter",
    "broadcast",
    "all_to_all",
    "reduce_scatter",
    "reduce_scatter_block",
    "barrier",
    "send",
    "recv",
    "comp",
    "mem_load",
    "mem_store",
    "metadata",
)
N_COLLECTIVES = 10  # KINDS[:N_COLLECTIVES] are collectives
N_COMM = 12  # KINDS[:N_COMM] use the network


@dataclass(frozen=True)
class Column:
    """One column: NumPy type (int32 codes for text), unit ("" for none) and meaning.

    `absent` is the value in recordings written before there was the column; None: it must be there.
    """

    name: str
    dtype: str
    unit: str
    doc: str
    text: bool = False
    absent: float | None = None


def _text(name: str, doc: str) -> Column:
    return Column(name, "i4", "", doc, text=True)


TABLES: dict[str, tuple[Column, ...]] = {
    "ops": (
        Column("rank", "i4", "", "global rank"),
        Column("node", "u8", "", "node id in the rank's trace file"),
        _text("name", "node name"),
        _text("kind", "collective, send, recv, comp, mem_load, mem_store or metadata"),
        Column("iteration", "i4", "", "0, 1, ...; warm-up iterations are -warmup ... -1"),
        Column("ready_ns", "i8", "ns", "every dependency was done"),
        Column("start_ns", "i8", "ns", "issued: its stream, thread or communicator was free"),
        Column("end_ns", "i8", "ns", "complete on this rank"),
        Column("nbytes", "i8", "B", "size as nccl-tests prints it (algbw = nbytes / time)"),
        _text("communicator", "process group; its ranks are in manifest['communicators']"),
        Column("algbw", "f8", "GB/s", "nbytes / (end_ns - start_ns) of this rank; NaN: none"),
        Column("busbw", "f8", "GB/s", "algbw times nccl-tests' factor of the kind"),
        Column("seq", "i4", "", "position in its communicator's issue order, per iteration; -1"),
        Column("peer", "i4", "", "send: destination, recv: source, global rank; -1"),
        Column("stream", "i4", "", "GPU stream of the trace; -1"),
        _text("dtype", "element type of a communication, '' for none"),
    ),
    "messages": (
        Column("op", "i8", "", "row of the operation in ops; -1: not known"),
        Column("rank", "i4", "", "global rank whose message this is"),
        Column("peer", "i4", "", "the other rank, global"),
        Column("channel", "u2", "", "NCCL channel"),
        Column("nbytes", "i8", "B", "bytes on the wire"),
        Column("posted_ns", "i8", "ns", "given to the transport"),
        Column("completed_ns", "i8", "ns", "completion seen"),
        Column("status", "i4", "", "0 complete, -errno or ibv_wc_status failed, -115 in flight"),
        Column("direction", "u1", "", "0 send, 1 receive"),
        Column("connection", "i4", "", "row of the plan's connections; -1: inside one worker"),
        Column("nic", "i2", "", "NIC of the rank's host that carries it; -1: none", absent=-1),
    ),
    "health": (
        Column("worker", "i4", "", "index of the endpoint"),
        Column("ranks", "i4", "", "ranks this worker runs"),
        Column("cores", "i4", "", "CPU cores this worker may use"),
        Column("workers_on_host", "i4", "", "workers of the run sharing this host's cores"),
        Column("wall_ns", "i8", "ns", "time from start barrier to the worker's last event"),
        Column("cpu_user_ns", "i8", "ns", "CPU time of the worker meanwhile, user"),
        Column("cpu_system_ns", "i8", "ns", "CPU time of the worker meanwhile, kernel"),
        Column("cpu_wait_ns", "i8", "ns", "time the worker could run and had no CPU", absent=-1),
        Column("host_cpu_busy", "f8", "", "share of the host's CPU time that was busy, 0 to 1"),
        Column("host_cpu_steal", "f8", "", "share of it that a hypervisor kept", absent=math.nan),
        Column("timer_error_p50_ns", "f8", "ns", "lateness of compute ends, median"),
        Column("timer_error_p99_ns", "f8", "ns", "lateness of compute ends, 99th percentile"),
        Column("timer_error_max_ns", "f8", "ns", "lateness of compute ends, worst"),
        Column("poll_gap_p50_ns", "f8", "ns", "time between two polls while busy, median"),
        Column("poll_gap_p99_ns", "f8", "ns", "time between two polls while busy, 99th percentile"),
        Column("poll_gap_max_ns", "f8", "ns", "time between two polls while busy, worst"),
        Column("context_switches", "i8", "", "involuntary context switches"),
        Column("clock_offset_ns", "f8", "ns", "this clock minus worker 0's at the start barrier"),
        Column("clock_drift", "f8", "", "its rate minus worker 0's, per second of run (s/s)"),
        Column("clock_bound_ns", "f8", "ns", "bound on the error of the correction"),
    ),
    "counters": (
        Column("worker", "i4", "", "index of the endpoint"),
        _text("device", "network interface, RDMA device, 'tcp' (whole host), or the transport"),
        _text("name", "counter, as the kernel names it"),
        _text("meaning", "retransmit, timeout, out_of_sequence, rnr, cnp, ecn, drop, pause, ''"),
        Column("time_ns", "i8", "ns", "when it was read; before the start barrier: below 0"),
        Column("value", "i8", "", "what it said; between first and last only changes have a row"),
        Column("delta", "i8", "", "value minus that of the row before; 0 in the first"),
    ),
    "failures": (
        Column("worker", "i4", "", "index of the endpoint"),
        Column("rank", "i4", "", "global rank; -1: not known"),
        Column("peer", "i4", "", "the other rank, global; -1: not known"),
        Column("time_ns", "i8", "ns", "when it was seen"),
        Column("node", "i8", "", "node id of the operation; -1: not known"),
        Column("status", "i4", "", "-errno or ibv_wc_status; 0: none"),
        _text("error", "class of the error"),
        _text("message", "what happened"),
    ),
}


def dtype_of(table: str) -> np.dtype[np.void]:
    """Return the structured dtype of `table`."""
    return np.dtype([(column.name, column.dtype) for column in TABLES[table]])


OPS = dtype_of("ops")
MESSAGES = dtype_of("messages")
HEALTH = dtype_of("health")
COUNTERS = dtype_of("counters")
FAILURES = dtype_of("failures")

#: Status of a message whose completion was never seen (-EINPROGRESS).
IN_FLIGHT = -115

#: One row an executed collective, send or recv, all its ranks together (`Recording.collectives`).
COLLECTIVES = np.dtype(
    [
        ("kind", "i4"),
        ("communicator", "i4"),
        ("seq", "i4"),
        ("iteration", "i4"),
        ("nbytes", "i8"),
        ("ranks", "i4"),
        ("first_start_ns", "i8"),
        ("last_start_ns", "i8"),
        ("end_ns", "i8"),
        ("time_ns", "i8"),
        ("algbw", "f8"),
        ("busbw", "f8"),
    ]
)


def text_columns(table: str) -> tuple[str, ...]:
    """Return the names of the text columns of `table`."""
    return tuple(column.name for column in TABLES[table] if column.text)


def empty(table: str, rows: int = 0) -> npt.NDArray[np.void]:
    """Return `rows` rows of `table`, every time, id and reference set to -1 or NaN."""
    out = np.zeros(rows, dtype=dtype_of(table))
    for column in TABLES[table]:
        if column.dtype == "f8":
            out[column.name] = np.nan
        elif column.unit == "ns" or column.name in {"op", "seq", "peer", "stream", "connection"}:
            out[column.name] = -1
    return out
