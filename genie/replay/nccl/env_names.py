"""The NCCL environment variables GENIE knows, what they hold and the release that brought them.

Source: spec/nccl-wire-schedule.md section 7 and spec/nccl-versions.md section 10. A variable
set on a release that does not have it yet changes nothing there, as in NCCL itself.
"""

from __future__ import annotations

from typing import NamedTuple


class Variable(NamedTuple):
    """What a variable may hold: "int" (lowest, highest allowed) or "text"; `since` a release."""

    kind: str
    low: int = 0
    high: int = 1 << 62
    since: tuple[int, int, int] = (2, 20, 5)


def _int(low: int = 0, high: int = 1 << 62, since: str = "2.20.5") -> Variable:
    major, minor, patch = (int(part) for part in since.split("."))
    return Variable("int", low, high, (major, minor, patch))


def _flag(since: str = "2.20.5", high: int = 1) -> Variable:
    return _int(0, high, since)


_TEXT = Variable("text")

#: Variables that change what goes on the wire.
WIRE: dict[str, Variable] = {
    "NCCL_ALGO": _TEXT,
    "NCCL_PROTO": _TEXT,
    "NCCL_MIN_NCHANNELS": _int(0, 64),
    "NCCL_MAX_NCHANNELS": _int(1, 1 << 30),
    "NCCL_MIN_NRINGS": _int(0, 64),
    "NCCL_MAX_NRINGS": _int(1, 1 << 30),
    "NCCL_MIN_CTAS": _int(1, 64),
    "NCCL_MAX_CTAS": _int(1, 1 << 30),
    # At least 8 steps of the protocol's smallest chunk (spec section 2.5: 512, 16 and 1920 B of
    # data, LL sends twice its data and LL128 16/15 of it): below that nothing can be sent.
    "NCCL_BUFFSIZE": _int(8 * 512, 1 << 31),
    "NCCL_LL_BUFFSIZE": _int(8 * 2 * 16, 1 << 31),
    "NCCL_LL128_BUFFSIZE": _int(8 * 2048, 1 << 31),
    "NCCL_NTHREADS": _int(1, 1 << 20),
    "NCCL_LL128_NTHREADS": _int(1, 1 << 20),
    "NCCL_THREAD_THRESHOLDS": _TEXT,
    "NCCL_CROSS_NIC": _int(0, 2),
    "NCCL_GRAPH_FILE": _TEXT,
    "NCCL_TOPO_FILE": _TEXT,
    "NCCL_IGNORE_DISABLED_P2P": _int(0, 2),
    "NCCL_P2P_LEVEL": _TEXT,
    "NCCL_P2P_DISABLE": _flag(),
    "NCCL_P2P_DIRECT_DISABLE": _flag(),
    "NCCL_NVB_DISABLE": _flag(),
    "NCCL_NET_GDR_LEVEL": _TEXT,
    "NCCL_NET_GDR_READ": _int(-2, 1),
    "NCCL_NET_GDR_C2C": _flag(),
    "NCCL_PXN_DISABLE": _flag(),
    "NCCL_PXN_C2C": _flag("2.27.3"),
    "NCCL_P2P_PXN_LEVEL": _int(0, 2),
    "NCCL_NETDEVS_POLICY": Variable("text", since=(2, 28, 3)),
    "NCCL_NVLS_ENABLE": _flag(high=2),
    "NCCL_NVLS_NCHANNELS": _int(1, 64),
    "NCCL_NVLS_CHUNKSIZE": _int(1, 1 << 31, "2.21.5"),
    "NCCL_NVLSTREE_MAX_CHUNKSIZE": _int(1, 1 << 31),
    "NCCL_COLLNET_ENABLE": _flag(),
    "NCCL_COLLNET_NODE_THRESHOLD": _int(),
    "NCCL_PAT_ENABLE": _flag("2.23.4", 2),
    "NCCL_LL128_C2C": _flag("2.27.3"),
    "NCCL_NET_OVERHEAD": _int(),
    "NCCL_P2P_NET_CHUNKSIZE": _int(1, 1 << 31),
    "NCCL_P2P_PCI_CHUNKSIZE": _int(1, 1 << 31),
    "NCCL_P2P_NVL_CHUNKSIZE": _int(1, 1 << 31),
    "NCCL_CHUNK_SIZE": _int(0, 1 << 31),
    "NCCL_P2P_LL_THRESHOLD": _int(),
    "NCCL_ALLOC_P2P_NET_LL_BUFFERS": _flag(),
    "NCCL_MIN_P2P_NCHANNELS": _int(1, 64),
    "NCCL_MAX_P2P_NCHANNELS": _int(1, 1 << 30),
    "NCCL_NCHANNELS_PER_NET_PEER": _int(1, 64),
    "NCCL_P2P_PER_CHANNEL_NET_BW": _int(1, 1 << 20, "2.29.2"),
    "NCCL_P2P_MAX_PEERS": _int(1, 1 << 30, "2.30.3"),
    "NCCL_P2P_SCHEDULE_GROUP_SIZE": _int(1, 1 << 20, "2.28.7"),
    "NCCL_P2P_EPOCH_ENABLE": _flag("2.29.2"),
    "NCCL_ALLGATHERV_ENABLE": _flag("2.29.2"),
    "NCCL_LOCAL_REGISTER": _flag(),
    "NCCL_GRAPH_REGISTER": _flag(),
    "NCCL_NET_SHARED_BUFFERS": _int(-2, 1),
    "NCCL_NET_SHARED_COMMS": _flag(),
    "NCCL_NET_OPTIONAL_RECV_COMPLETION": _flag("2.24.3"),
    "NCCL_RUNTIME_CONNECT": _flag("2.22.3"),
    "NCCL_WORK_ARGS_BYTES": _int(1, 1 << 62, "2.22.3"),
    "NCCL_WORK_FIFO_BYTES": _int(2, 1 << 40),
    "NCCL_IB_HCA": _TEXT,
    "NCCL_IB_MERGE_NICS": _flag(),
    "NCCL_IB_MERGE_VFS": _flag(),
    "NCCL_NET_MERGE_LEVEL": Variable("text", since=(2, 24, 3)),
    "NCCL_NET_MERGE_POLICY": Variable("text", since=(2, 24, 3)),
    "NCCL_NET_FORCE_MERGE": Variable("text", since=(2, 24, 3)),
    "NCCL_NET_FORCE_FLUSH": _flag("2.24.3"),
    "NCCL_IB_QPS_PER_CONNECTION": _int(1, 128),
    "NCCL_IB_SPLIT_DATA_ON_QPS": _flag(),
    "NCCL_IB_ADAPTIVE_ROUTING": _int(-2, 1),
    "NCCL_IB_AR_THRESHOLD": _int(-2, 1 << 62),
    "NCCL_IB_OOO_RQ": _flag("2.30.3"),
    "NCCL_IB_RECEIVER_SIDE_MATCHING_SCHEME": _flag("2.29.7"),
    "NCCL_IB_PREPOST_RECEIVE_WORK_REQUESTS": _flag("2.29.7"),
    "NCCL_IB_RESILIENCY_PORT_FAILOVER": _flag("2.29.7"),
    "NCCL_IB_TIMEOUT": _int(0, 31),
    "NCCL_IB_RETRY_CNT": _int(0, 7),
    "NCCL_IB_PKEY": _int(0, 65535),
    "NCCL_IB_SL": _int(-1, 15),
    "NCCL_IB_TC": _int(-1, 255),
    "NCCL_IB_FIFO_TC": _int(-1, 255, "2.22.3"),
    "NCCL_IB_GID_INDEX": _int(-1, 65535),
    "NCCL_IB_ROCE_VERSION_NUM": _int(1, 2),
    "NCCL_IB_ADDR_FAMILY": _TEXT,
    "NCCL_IB_ADDR_RANGE": _TEXT,
    "NCCL_IB_USE_INLINE": _flag(),
    "NCCL_IB_ECE_ENABLE": _flag("2.23.4"),
    "NCCL_IB_PCI_RELAXED_ORDERING": _flag(high=2),
    "NCCL_NET_DISABLE_INTRA": _flag(),
    "NCCL_SHM_DISABLE": _flag(),
    "NCCL_GDR_FLUSH_DISABLE": _flag(),
    "NCCL_MNNVL_ENABLE": _flag(high=2),
    "NCCL_TUNER_PLUGIN": _TEXT,
    "NCCL_TUNER_CONFIG_FILE": _TEXT,
    "NCCL_NET_PLUGIN": _TEXT,
}

#: Variables NCCL reads that leave the bytes on the wire as they are.
_QUIET = """
    ASYNC_ERROR_HANDLING BLOCKING_WAIT BOOTSTRAP_TIMEOUT CGA_CLUSTER_SIZE CHECKS_DISABLE
    CHECK_POINTERS COMM_BLOCKING COMM_ID COMM_SHRINK_SHARE_RESOURCES COMM_SPLIT_SHARE_RESOURCES
    CONF_FILE CREATE_THREAD_CONTEXT CTA_POLICY CUDA_PATH CUMEM_ENABLE CUMEM_HOST_ENABLE DEBUG
    DEBUG_FILE DEBUG_SUBSYS DEBUG_TIMESTAMP_FORMAT DEBUG_TIMESTAMP_LEVELS DESYNC_DEBUG
    DMABUF_ENABLE DUMP_ON_TIMEOUT ENABLE_TIMING GDRCOPY_ENABLE GDRCOPY_FIFO_ENABLE
    GDRCOPY_FLUSH_ENABLE GDRCOPY_SYNC_ENABLE GRAPH_DUMP_FILE GRAPH_DUMP_FILE_RANK
    GRAPH_HELPER_DISABLE GRAPH_MIXING_SUPPORT HOSTID IB_ASYNC_EVENTS IB_CUDA_SUPPORT
    IB_DATA_DIRECT IB_DISABLE IB_IS_GLOBAL IB_MQP_RETRY_ALL IB_MQP_RETRY_CNT
    IB_RETURN_ASYNC_EVENTS IB_WARN_RAIL_LOCAL IGNORE_CPU_AFFINITY LAUNCH_MODE
    LAUNCH_ORDER_IMPLICIT LAUNCH_RACE_FATAL MEM_SYNC_DOMAIN NET NET_SHARED_BUFFERS_SIZE
    NSOCKS_PERTHREAD NVTX_DISABLE OOB_NET_ENABLE OOB_NET_IFNAME PARAM_DUMP_ENABLE
    PROFILER_PLUGIN PROFILE_EVENT_MASK PROGRESS_APPENDOP_FREQ PROXY_APPEND_BATCH_SIZE
    PROXY_CPUSET PROXY_DUMP_SIGNAL RAS_ADDR RAS_ENABLE RAS_TIMEOUT_FACTOR
    REPORT_CONNECT_PROGRESS SET_CPU_STACK_SIZE SET_STACK_SIZE SET_THREAD_NAME
    SHARP_DISABLE SINGLE_RING_THRESHOLD SOCKET_FAMILY SOCKET_IFNAME SOCKET_INLINE
    SOCKET_MIN_TASKSIZE SOCKET_NTHREADS SOCKET_POLL_TIMEOUT_MSEC SOCKET_RETRY_CNT
    SOCKET_RETRY_SLEEP_MSEC SYM_CTAS SYM_KERNEL TOPO_DUMP_FILE TOPO_DUMP_FILE_RANK TRACE_BUFFER_SIZE
    UNIQUE_ID_BOOTSTRAP UNPACK_MODE WARN_ENABLE_DEBUG_INFO WIN_ENABLE WIN_STRIDE CROSS_NIC_WARN
    CONNECT_ROUND_MAX_PEERS
"""
QUIET = frozenset("NCCL_" + name for name in _QUIET.split())
