"""The verbs transport: RC queue pairs that behave as NCCL's net_ib, behind transport.pxd's vtable.

Per message (spec nccl-wire-schedule 4): the receiver posts a receive without a buffer on every QP
the message will use and writes a 64-byte CTS entry into the sender's FIFO with an RDMA WRITE; the
sender, once the entry is there, writes the data into the announced slot with one
RDMA_WRITE_WITH_IMM a part (or a WRITE and a 0-byte WRITE_WITH_IMM under adaptive routing), imm
being the size of the whole message.

Memory. Each NIC has one mapping, registered once per protection domain: the CTS FIFOs of its
senders, the CTS entries of its receivers, the pages that are sent from, and eight slots for each
receiving connection. Slots and source are the same few physical pages mapped again and again, so
addresses are those of NCCL's buffers while the bytes stay in the cache.

The order of use: `add` every connection, `memory()`, `allocate`, then in rounds `create` and
`connect` with what the peer's `create` returned; `capsule` for the engine; `drain`, `close`.
"""

cimport cython
from cpython.pycapsule cimport PyCapsule_GetContext, PyCapsule_New, PyCapsule_SetContext
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from libc.errno cimport (
    EAGAIN, EBADMSG, EINTR, EINVAL, EIO, EMSGSIZE, ENOMEM, ENOSYS, EOPNOTSUPP, errno,
)
from libc.stdint cimport (
    INT64_MAX, UINT32_MAX, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t,
)
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memset

from genie._core.libibverbs cimport *
from genie._core.transport cimport (
    GENIE_EV_ERROR, GENIE_EV_READY, GENIE_EV_RECEIVED, GENIE_EV_SENT, GENIE_TRANSPORT_CAPSULE,
    genie_event, genie_transport,
)

import os

from genie.errors import DeviceNotFoundError, InputError, TransportError, VerbsError

include "verbs_path.pxi"
include "verbs_memory.pxi"

cdef enum:
    DECLARED = 0
    CREATED = 1
    CONNECTED = 2
    STEP_BYTES = 524288   # a Simple FIFO step (spec 0)
    SLOTS = 8             # NCCL_STEPS
    MAX_GIDS = 1024
    PAGE = 4096

LIBRARY = "libibverbs.so.1"
LIBRARY_VARIABLE = "GENIE_LIBIBVERBS"

cdef int live_transports = 0
cdef int live_contexts = 0
cdef int live_pds = 0
cdef int live_channels = 0
cdef int live_cqs = 0
cdef int live_mrs = 0
cdef int live_qps = 0
cdef int live_mappings = 0


def live() -> dict[str, int]:
    """Return how many verbs objects of each kind this process holds."""
    return {
        "transports": live_transports,
        "contexts": live_contexts,
        "pds": live_pds,
        "channels": live_channels,
        "cqs": live_cqs,
        "mrs": live_mrs,
        "qps": live_qps,
        "mappings": live_mappings,
    }


include "verbs_devices.pxi"
include "verbs_close.pxi"


cdef void capsule_gone(object capsule) noexcept:
    cdef PyObject *owner = <PyObject *>PyCapsule_GetContext(capsule)
    if owner != NULL:
        Py_DECREF(<object>owner)


@cython.final
@cython.no_gc_clear
cdef class Verbs:
    """The RDMA devices of one worker, its connections, and the C functions that run them.

    Args:
        n_ids: Connection ids are below this.
        n_conns: Connections that `add` may bring.
        nics: The worker's NICs; each is its devices as (device, port, GID index), 1 to 4.
        qps: QPs per connection and device (NCCL_IB_QPS_PER_CONNECTION).
        split: Spread each message over all QPs (NCCL_IB_SPLIT_DATA_ON_QPS).
        adaptive_routing: WRITE, then a 0-byte WRITE_WITH_IMM (NCCL_IB_ADAPTIVE_ROUTING): 1, 0,
            or -1 for InfiniBand only.
        ar_threshold: Messages above this many bytes are sent so (NCCL_IB_AR_THRESHOLD).
        timeout, retry, rnr_retry, min_rnr_timer: QP attributes.
        pkey: Index of the partition key.
        sl, tc, fifo_tc: Service level; traffic class of data and of CTS.
        hop_limit: Of the global route.
        ece: Exchange enhanced connection establishment options (NCCL_IB_ECE_ENABLE).
        relaxed_ordering: Ask for PCI relaxed ordering of the registered memory.
        use_inline: Send up to 64 bytes inline (NCCL_IB_USE_INLINE).
        send_wrs, receive_wrs: Queue sizes of a QP.
        depth: Messages outstanding on a connection, at most 256.
        spin_ns: How long `wait` polls before it sleeps; -1 for always.
        tick_ns: Longest sleep while a sender waits for a CTS.
        cts: False posts no CTS and waits for none (open loop, for benchmarks).
        imm: False sends plain WRITEs of which the receiver learns nothing (for benchmarks).

    Raises:
        DeviceNotFoundError: A device or port is not there.
        VerbsError: A call failed; names it, the device and the reason.
        InputError: An argument out of range.
    """

    cdef verbs_t *t
    cdef bint allocated
    cdef bint is_closed
    cdef readonly list names
    cdef list peers
    cdef dict options

    def __cinit__(
        self,
        int n_ids,
        int n_conns,
        nics: list[list[tuple[str, int, int]]],
        *,
        int qps = 1,
        bint split = False,
        int adaptive_routing = -1,
        int64_t ar_threshold = 8192,
        int timeout = 20,
        int retry = 7,
        int rnr_retry = 7,
        int min_rnr_timer = 12,
        int pkey = 0,
        int sl = 0,
        int tc = 0,
        int fifo_tc = -1,
        int hop_limit = 255,
        bint ece = True,
        bint relaxed_ordering = False,
        bint use_inline = False,
        int send_wrs = 512,
        int receive_wrs = 256,
        int depth = 64,
        int64_t spin_ns = 0,
        int64_t tick_ns = 200_000,
        bint cts = True,
        bint imm = True,
    ):
        global live_transports
        cdef verbs_t *t
        cdef int i
        self.t = NULL
        self.allocated = False
        self.is_closed = False
        self.names = []
        self.peers = []
        if not 1 <= qps <= MAX_QPS:
            raise InputError(f"QPs per connection: {qps}, expected 1 to {MAX_QPS}")
        if not 1 <= depth <= ROWS or receive_wrs < depth:
            raise InputError(f"depth {depth} with {receive_wrs} receives: 1 to {ROWS} expected")
        if not 4 <= send_wrs <= 4095:
            raise InputError(f"send queue of {send_wrs}: 4 to 4095 expected")
        if n_ids < 0 or n_conns < 0 or not nics:
            raise InputError("a verbs transport needs a NIC")
        for devices in nics:
            if not 1 <= len(devices) <= MAX_DEVS:
                raise InputError(f"a NIC of {len(devices)} devices: 1 to {MAX_DEVS} expected")
        self.options = {
            "qps": qps, "split": split, "ar": adaptive_routing, "timeout": timeout,
            "retry": retry, "rnr_retry": rnr_retry, "min_rnr_timer": min_rnr_timer, "pkey": pkey,
            "sl": sl, "tc": tc, "fifo_tc": tc if fifo_tc < 0 else fifo_tc, "hop_limit": hop_limit,
            "ece": ece, "relaxed": relaxed_ordering, "inline": use_inline, "send_wrs": send_wrs,
            "receive_wrs": receive_wrs,
        }
        load()
        t = <verbs_t *>calloc(1, sizeof(verbs_t))
        if t == NULL:
            raise MemoryError
        self.t = t
        live_transports += 1
        t.n_ids = n_ids
        t.cts = cts
        t.imm = imm
        t.inline_max = ENTRY_BYTES if use_inline else 0
        t.ar_threshold = ar_threshold if ar_threshold >= 0 else 0
        t.depth = depth
        t.spin_ns = INT64_MAX if spin_ns < 0 else spin_ns
        t.tick_ns = tick_ns if tick_ns > 20_000 else 20_000
        t.capacity = 256
        n_ports = sum(len(devices) for devices in nics)
        t.index = <int32_t *>malloc((n_ids + 1) * sizeof(int32_t))
        t.conns = <conn_t *>calloc(n_conns + 1, sizeof(conn_t))
        t.ports = <port_t *>calloc(n_ports, sizeof(port_t))
        t.nics = <nic_t *>calloc(len(nics), sizeof(nic_t))
        t.fds = <pollfd *>calloc(2 * n_ports, sizeof(pollfd))
        t.events = <genie_event *>malloc(t.capacity * sizeof(genie_event))
        t.waiting = <uint32_t *>malloc((n_conns + 1) * sizeof(uint32_t))
        # A connection is at most once in `longs`, but may be listed again before it is taken out.
        t.longs = <uint32_t *>malloc((2 * n_conns + 2) * sizeof(uint32_t))
        t.wrs = <ibv_send_wr *>calloc(POOL, sizeof(ibv_send_wr))
        t.sges = <ibv_sge *>calloc(POOL, sizeof(ibv_sge))
        t.recvs = <ibv_recv_wr *>calloc(POOL, sizeof(ibv_recv_wr))
        if (
            t.index == NULL or t.conns == NULL or t.ports == NULL or t.nics == NULL
            or t.fds == NULL or t.events == NULL or t.waiting == NULL or t.longs == NULL
            or t.wrs == NULL or t.sges == NULL or t.recvs == NULL
        ):
            raise MemoryError
        memset(t.index, 0xff, n_ids * sizeof(int32_t))
        for i in range(POOL):
            t.wrs[i].sg_list = &t.sges[i]
        t.vtable.self = t
        t.vtable.post_recv = v_post_recv
        t.vtable.post_send = v_post_send
        t.vtable.flush = v_flush
        t.vtable.poll = v_poll
        t.vtable.wait = v_wait
        for devices in nics:
            self.open_nic(devices)

    cdef int open_nic(self, devices) except -1:
        """Open the devices of a NIC: context, protection domain, completion channel."""
        cdef verbs_t *t = self.t
        cdef nic_t *nic = &t.nics[t.n_nics]
        nic.first_port = t.n_ports
        nic.file = -1
        t.n_nics += 1
        for name, number, gid_index in devices:
            self.open_port(name, number, gid_index, t.n_nics - 1)
            nic.n_ports += 1
        return 0

    cdef int open_port(self, str name, int number, int gid_index, uint32_t nic) except -1:
        global live_contexts, live_pds, live_channels
        cdef verbs_t *t = self.t
        cdef port_t *p = &t.ports[t.n_ports]
        cdef ibv_device **found
        cdef ibv_device_attr attr
        cdef int n = 0
        cdef int i
        genie_clear_errno()
        found = genie_ibv_get_device_list(&n)
        if found == NULL or n == 0:
            error = errno if found == NULL else 0
            if found != NULL:
                genie_ibv_free_device_list(found)
            raise no_devices(error)
        names = [text_of(genie_ibv_get_device_name(found[i])) for i in range(n)]
        try:
            if name not in names:
                raise DeviceNotFoundError(
                    f"no RDMA device {name!r} here; there is {', '.join(names)}",
                    name=name, found=names,
                )
            p.context = genie_ibv_open_device(found[names.index(name)])
            error = errno
        finally:
            genie_ibv_free_device_list(found)
        where = f"device {name} port {number}"
        if p.context == NULL:
            raise failure("ibv_open_device", error, where)
        live_contexts += 1
        self.names.append(name)
        t.n_ports += 1
        p.nic = <uint16_t>nic
        p.number = <uint8_t>number
        p.gid_index = gid_index
        if genie_ibv_query_device(p.context, &attr):
            raise failure("ibv_query_device", errno, where)
        if not 1 <= number <= attr.phys_port_cnt:
            raise DeviceNotFoundError(
                f"device {name} has no port {number}; it has {attr.phys_port_cnt}",
                name=f"{name}:{number}", found=list(range(1, attr.phys_port_cnt + 1)),
            )
        p.max_cqe = attr.max_cqe
        p.max_qp_wr = attr.max_qp_wr
        i = genie_ibv_query_port(p.context, p.number, &p.attr)
        if i:
            raise failure("ibv_query_port", i if i > 0 else errno, where)
        if p.attr.state != IBV_PORT_ACTIVE:
            raise TransportError(
                f"{where} is not active (verbs state {p.attr.state}, expected {IBV_PORT_ACTIVE}): "
                "is the cable in and the network interface up?"
            )
        i = genie_ibv_query_gid(p.context, p.number, gid_index, &p.gid)
        if i and p.attr.link_layer == IBV_LINK_LAYER_ETHERNET:
            raise failure("ibv_query_gid", errno, f"{where} GID index {gid_index}")
        p.pd = genie_ibv_alloc_pd(p.context)
        if p.pd == NULL:
            raise failure("ibv_alloc_pd", errno, where)
        live_pds += 1
        p.channel = genie_ibv_create_comp_channel(p.context)
        if p.channel == NULL:
            raise failure("ibv_create_comp_channel", errno, where)
        live_channels += 1
        genie_no_block(p.channel.fd)
        i = 2 * (t.n_ports - 1)
        t.fds[i].fd = p.channel.fd
        t.fds[i].events = POLLIN
        t.fds[i + 1].fd = p.context.async_fd
        t.fds[i + 1].events = POLLIN
        if p.context.async_fd >= 0:
            genie_no_block(p.context.async_fd)
        return 0

    @property
    def ports(self) -> list[dict[str, object]]:
        """The opened ports: what the peer has to know of them, and what was chosen."""
        rows = []
        for i in range(self.t.n_ports):
            rows.append({
                "device": self.names[i],
                "port": self.t.ports[i].number,
                "nic": self.t.ports[i].nic,
                "gid": bytes(self.t.ports[i].gid.raw[:16]),
                "gid_index": self.t.ports[i].gid_index,
                "lid": self.t.ports[i].attr.lid,
                "mtu_code": self.t.ports[i].attr.active_mtu,
                "mtu": 128 << self.t.ports[i].attr.active_mtu,
                "ethernet": self.t.ports[i].attr.link_layer == IBV_LINK_LAYER_ETHERNET,
                "max_msg_bytes": self.t.ports[i].attr.max_msg_sz,
                "registered_bytes": self.t.ports[i].registered,
            })
        return rows

    def add(
        self, uint32_t conn, bint sender, int nic, str peer, int remote_devs = 1,
        int64_t message_bytes = -1, int64_t step_bytes = STEP_BYTES,
    ) -> None:
        """Declare a connection; nothing is created yet.

        Args:
            conn: Its id.
            sender: Whether this end sends.
            nic: Index of the NIC it uses.
            peer: The other end in words, for errors ("rank 3 on n2 (rxe1 port 1)").
            remote_devs: Devices of the peer's NIC.
            message_bytes: The longest message it will carry, -1 unknown: slots are no larger
                than such a message needs.
            step_bytes: Bytes of one of the eight slots (NCCL_BUFFSIZE / 8).

        Raises:
            InputError: The id is taken or out of range, or there is no such NIC.
        """
        cdef verbs_t *t = self.t
        cdef conn_t *c
        self.check_open()
        if self.allocated:
            raise InputError("connections are declared before memory is allocated")
        if conn >= t.n_ids or t.index[conn] >= 0:
            raise InputError(f"connection {conn}: the id is taken or not below {t.n_ids}")
        if not 0 <= nic < <int>t.n_nics or not 1 <= remote_devs <= MAX_DEVS:
            raise InputError(f"connection {conn}: NIC {nic} of {t.n_nics}, {remote_devs} devices")
        c = &t.conns[t.n_conns]
        c.id = conn
        c.sender = sender
        c.nic = <uint16_t>nic
        c.n_devs = <uint8_t>t.nics[nic].n_ports
        c.remote_devs = <uint8_t>remote_devs
        n_qps = self.options["qps"] * max(c.n_devs, remote_devs)
        if n_qps > MAX_QPS:
            raise InputError(f"connection {conn}: {n_qps} QPs, at most {MAX_QPS}")
        c.n_qps = <uint8_t>n_qps
        c.uses = c.n_qps if self.options["split"] else c.n_devs
        slot = step_bytes
        if 0 <= message_bytes < step_bytes:
            slot = message_bytes
        c.slot = max(PAGE, (slot + PAGE - 1) // PAGE * PAGE)
        c.length = SLOTS * c.slot
        t.index[conn] = <int32_t>t.n_conns
        t.n_conns += 1
        self.peers.append(peer)

    def memory(self) -> list[dict[str, object]]:
        """Return what `allocate` will take, a row a device: bytes to pin, QPs, CQ entries."""
        cdef verbs_t *t = self.t
        cdef uint32_t i, k
        cdef conn_t *c
        rows = []
        for i in range(t.n_ports):
            control, source, slots, _ = self.layout(t.ports[i].nic)
            qps = entries = 0
            for k in range(t.n_conns):
                c = &t.conns[k]
                if c.nic == t.ports[i].nic:
                    own = self.own_qps(c, i - t.nics[c.nic].first_port)
                    qps += own
                    entries += self.entries_of(c, own)
            rows.append({
                "device": self.names[i],
                "port": t.ports[i].number,
                "pinned_bytes": control + source + slots,
                "fifo_bytes": control,
                "slot_bytes": slots,
                "qps": qps,
                "cq_entries": entries,
            })
        return rows

    cdef int own_qps(self, conn_t *c, int dev) except -1:
        """QPs of c on its device `dev`: QP i is on device i mod n_devs (spec 4.1)."""
        return (c.n_qps - dev + c.n_devs - 1) // c.n_devs

    cdef int entries_of(self, conn_t *c, int own) except -1:
        """Completions of c that may wait on a device: parts of all messages, and CTS or pieces."""
        return own * (<int>self.t.depth + 8) if own else 0

    cdef tuple layout(self, int nic):
        """(control, source, slots, hot) bytes of a NIC's mapping."""
        cdef verbs_t *t = self.t
        cdef uint32_t k
        cdef conn_t *c
        control = source = slots = 0
        hot = 65536
        for k in range(t.n_conns):
            c = &t.conns[k]
            if c.nic != nic:
                continue
            if c.sender:
                control += ROWS * ROW_BYTES
                source = max(source, c.length)
            else:
                control += ROWS * ENTRY_BYTES
                slots += c.length
            hot = max(hot, min(c.slot, STEP_BYTES))
        # Not more mappings than a quarter of the kernel's limit (vm.max_map_count, 65530).
        while (source + slots) // hot > 16000:
            hot *= 2
        return control, source, slots, hot

    def allocate(self) -> None:
        """Take memory, register it once per device, create the completion queues.

        Raises:
            VerbsError: A call failed; of ENOMEM it says the limit of locked memory, what was asked
                for and what is registered already.
        """
        cdef verbs_t *t = self.t
        cdef uint32_t i, k
        cdef int n
        self.check_open()
        if self.allocated:
            raise InputError("memory is allocated already")
        n = 0
        for k in range(t.n_conns):
            t.conns[k].first_qp = n
            n += t.conns[k].n_qps
        t.n_qps = n
        t.qps = <qp_t *>calloc(n + 1, sizeof(qp_t))
        t.dirty = <uint32_t *>malloc((n + 1) * sizeof(uint32_t))
        # At most one queue a connection and device.
        t.cqs = <cq_t *>calloc(t.n_conns * MAX_DEVS + 1, sizeof(cq_t))
        if t.qps == NULL or t.dirty == NULL or t.cqs == NULL:
            raise MemoryError
        self.allocated = True
        for k in range(t.n_conns):
            t.conns[k].qps = &t.qps[t.conns[k].first_qp]
            for i in range(t.conns[k].n_qps):
                t.conns[k].qps[i].name = <uint64_t>k << 32 | <uint64_t>i << 12
        for i in range(t.n_nics):
            self.map_nic(i)
        for i in range(t.n_ports):
            self.create_cqs(i)

    cdef int map_nic(self, uint32_t number) except -1:
        """Map and register the memory of a NIC and hand it out to its connections."""
        global live_mappings, live_mrs
        cdef verbs_t *t = self.t
        cdef nic_t *nic = &t.nics[number]
        cdef port_t *p
        cdef conn_t *c
        cdef uint32_t i, k
        cdef uint64_t at
        cdef int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ
        control, source, slots, hot = self.layout(number)
        if control == 0:
            return 0
        nic.control = control
        nic.length = control + source + slots
        nic.at = genie_map(control, source + slots, hot, &nic.file)
        if nic.at == NULL:
            raise TransportError(
                f"mapping {nic.length} bytes for {self.names[nic.first_port]}: "
                f"{os.strerror(errno)}"
            )
        live_mappings += 1
        if self.options["relaxed"]:
            access |= IBV_ACCESS_RELAXED_ORDERING
        for i in range(nic.first_port, nic.first_port + nic.n_ports):
            p = &t.ports[i]
            p.mr = genie_ibv_reg_mr(p.pd, nic.at, nic.length, access)
            if p.mr == NULL:
                raise self.no_memory("ibv_reg_mr", errno, i, nic.length)
            live_mrs += 1
            p.registered = nic.length
        nic.source = control
        nic.source_length = source
        at = 0
        for k in range(t.n_conns):
            c = &t.conns[k]
            if c.nic != number:
                continue
            c.left = <uint8_t *>calloc(ROWS, 1)
            c.expected = <uint32_t *>calloc(ROWS, sizeof(uint32_t))
            if c.left == NULL or c.expected == NULL:
                raise MemoryError
            if c.sender:
                c.at = <uint64_t>nic.at + at
                c.source = <uint64_t>nic.at + nic.source
                c.source_length = nic.source_length
                at += ROWS * ROW_BYTES
            else:
                c.entries = <entry_t *>(<uint64_t>nic.at + at)
                at += ROWS * ENTRY_BYTES
        at = control + source
        for k in range(t.n_conns):
            c = &t.conns[k]
            if c.nic == number and not c.sender:
                c.at = <uint64_t>nic.at + at
                at += c.length
                for i in range(ROWS):
                    c.entries[i].nreqs = 1
                    for dev in range(<int>c.n_devs):
                        c.entries[i].rkeys[dev] = t.ports[nic.first_port + dev].mr.rkey
        return 0

    cdef int create_cqs(self, uint32_t port) except -1:
        """The shared completion queues of a port: as few as its limit of entries allows."""
        global live_cqs
        cdef verbs_t *t = self.t
        cdef port_t *p = &t.ports[port]
        cdef conn_t *c
        cdef cq_t *q
        cdef uint32_t k, first
        cdef int dev = <int>(port - t.nics[p.nic].first_port)
        cdef int n, own
        if p.mr == NULL:
            return 0
        first = t.n_cqs
        for k in range(t.n_conns):
            c = &t.conns[k]
            if c.nic != p.nic:
                continue
            own = self.own_qps(c, dev)
            n = self.entries_of(c, own)
            if n > p.max_cqe:
                raise InputError(
                    f"connection {c.id} needs {n} completions on {self.names[port]}, which has "
                    f"{p.max_cqe} a queue: fewer QPs per connection or a smaller depth"
                )
            if t.n_cqs == first or t.cqs[t.n_cqs - 1].entries + n > <uint32_t>p.max_cqe:
                t.cqs[t.n_cqs].port = <uint16_t>port
                t.n_cqs += 1
            t.cqs[t.n_cqs - 1].entries += n
            c.cq[dev] = <uint16_t>(t.n_cqs - 1)
        for k in range(first, t.n_cqs):
            q = &t.cqs[k]
            q.cq = genie_ibv_create_cq(p.context, <int>max(q.entries, 1), NULL, p.channel, 0)
            if q.cq == NULL:
                error = errno
                t.n_cqs = k
                raise self.no_memory("ibv_create_cq", error, port, q.entries * 64)
            live_cqs += 1
        return 0

    cdef conn_t *find(self, uint32_t conn) except NULL:
        if conn >= self.t.n_ids or self.t.index[conn] < 0:
            raise InputError(f"no connection {conn} was added")
        return &self.t.conns[self.t.index[conn]]

    cdef object where(self, conn_t *c, uint32_t port):
        cdef port_t *p = &self.t.ports[port]
        return (
            f"device {self.names[port]} port {p.number} GID {p.gid_index} "
            f"{gid_text(bytes(p.gid.raw[:16]))}, connection {c.id} "
            f"{'to' if c.sender else 'from'} {self.peers[c - self.t.conns]}"
        )

    cdef object no_memory(self, str call, int error, uint32_t port, uint64_t asked):
        """A VerbsError; of ENOMEM with the facts about locked memory."""
        cdef int64_t limit = genie_memlock()
        registered = sum(self.t.ports[i].registered for i in range(self.t.n_ports))
        where = f"device {self.names[port]} port {self.t.ports[port].number}, {asked} bytes asked"
        if error == ENOMEM:
            words = "unlimited" if limit < 0 else f"{limit} bytes"
            where += (
                f", {registered} bytes registered already; the limit of locked memory "
                f"(ulimit -l) is {words}. Raise it (limits.conf: * - memlock unlimited; in Slurm: "
                "LimitMEMLOCK=infinity for slurmd), use fewer connections, or a smaller "
                "NCCL_BUFFSIZE"
            )
        return failure(call, error, where)

    def create(self, uint32_t conn) -> dict[str, object]:
        """Create the QPs of a connection and move them to INIT; return what the peer must know.

        Returns:
            qps (numbers), ece (vendor, options, mask a QP), at and length (of a sender: its FIFO,
            of a receiver: its slots), rkeys (a device).

        Raises:
            VerbsError: A call failed.
        """
        global live_qps
        cdef verbs_t *t = self.t
        cdef conn_t *c = self.find(conn)
        cdef ibv_qp_init_attr init
        cdef ibv_qp_attr attr
        cdef ibv_ece ece
        cdef port_t *p
        cdef qp_t *q
        cdef uint32_t port
        cdef int i, rc, mask
        self.check_open()
        if not self.allocated or c.state != DECLARED:
            raise InputError(f"connection {conn} cannot be created in this state")
        numbers, eces = [], []
        for i in range(c.n_qps):
            port = t.nics[c.nic].first_port + i % c.n_devs
            p = &t.ports[port]
            q = &t.qps[c.first_qp + i]
            memset(&init, 0, sizeof(init))
            init.send_cq = t.cqs[c.cq[i % c.n_devs]].cq
            init.recv_cq = init.send_cq
            init.qp_type = IBV_QPT_RC
            init.cap.max_send_wr = min(self.options["send_wrs"], p.max_qp_wr)
            init.cap.max_recv_wr = 0 if c.sender else min(self.options["receive_wrs"], p.max_qp_wr)
            init.cap.max_send_sge = 1
            init.cap.max_recv_sge = 0 if c.sender else 1
            init.cap.max_inline_data = <uint32_t>t.inline_max
            q.qp = genie_ibv_create_qp(p.pd, &init)
            if q.qp == NULL and errno == EINVAL and c.sender:
                # Some providers want a receive queue of one at least.
                init.cap.max_recv_wr = init.cap.max_recv_sge = 1
                q.qp = genie_ibv_create_qp(p.pd, &init)
            if q.qp == NULL:
                if errno == ENOMEM:
                    raise self.no_memory("ibv_create_qp", errno, port, init.cap.max_send_wr * 256)
                raise failure("ibv_create_qp", errno, self.where(c, port))
            live_qps += 1
            q.room = min(init.cap.max_send_wr, 4095)
            if self.options["send_wrs"] < <int>q.room:
                q.room = self.options["send_wrs"]
            q.conn = <uint32_t>(c - t.conns)
            q.port = <uint16_t>port
            q.remote_dev = <uint8_t>(i % c.remote_devs)
            q.lkey = p.mr.lkey
            if t.inline_max > <int>init.cap.max_inline_data:
                t.inline_max = <int>init.cap.max_inline_data
            memset(&attr, 0, sizeof(attr))
            attr.qp_state = IBV_QPS_INIT
            attr.pkey_index = self.options["pkey"]
            attr.port_num = p.number
            attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE
            if not c.sender:
                attr.qp_access_flags |= IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC
            mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS
            rc = genie_ibv_modify_qp(q.qp, &attr, mask)
            if rc:
                raise failure(
                    "ibv_modify_qp", rc if rc > 0 else errno,
                    f"RESET to INIT, pkey index {attr.pkey_index}, {self.where(c, port)}",
                )
            numbers.append(q.qp.qp_num)
            memset(&ece, 0, sizeof(ece))
            if self.options["ece"] and genie_ibv_query_ece(q.qp, &ece) == 0:
                eces.append((ece.vendor_id, ece.options, ece.comp_mask))
            else:
                eces.append((0, 0, 0))
        c.state = CREATED
        return {**self.create_info(conn), "qps": numbers, "ece": eces}

    def create_info(self, uint32_t conn) -> dict[str, object]:
        """Return where the peer writes to: at, length (bytes), rkeys (one a device)."""
        cdef verbs_t *t = self.t
        cdef conn_t *c = self.find(conn)
        first = t.nics[c.nic].first_port
        return {
            "at": c.at,
            "length": c.length,
            "rkeys": [t.ports[first + dev].mr.rkey for dev in range(c.n_devs)],
        }

    def connect(
        self, uint32_t conn, remote: dict[str, object], ports: list[dict[str, object]]
    ) -> list[tuple[int, int, int]]:
        """Bring a connection's QPs to RTS towards the peer.

        Args:
            conn: Its id.
            remote: What `create` of the other end returned.
            ports: The ports of the other end's NIC for this connection (rows of its `ports`).

        Returns:
            The ECE options in force, a triple a QP.

        Raises:
            VerbsError: A transition failed; names both ends, GIDs and states.
            TransportError: The ends do not fit together.
        """
        cdef verbs_t *t = self.t
        cdef conn_t *c = self.find(conn)
        cdef port_t *p
        cdef qp_t *q
        cdef ibv_qp_attr attr
        cdef ibv_ece ece
        cdef uint32_t port
        cdef int i, rc, mask
        self.check_open()
        if c.state != CREATED:
            raise InputError(f"connection {conn} cannot be connected in this state")
        numbers = list(remote["qps"])
        if len(numbers) != c.n_qps or len(ports) != c.remote_devs:
            raise TransportError(
                f"connection {conn} with {self.peers[c - t.conns]}: {c.n_qps} QPs on "
                f"{c.remote_devs} remote devices here, {len(numbers)} QPs on {len(ports)} devices "
                "there; is NCCL_IB_QPS_PER_CONNECTION the same on all hosts?"
            )
        eces = []
        c.piece = UINT32_MAX
        for i in range(c.n_qps):
            port = t.nics[c.nic].first_port + i % c.n_devs
            p = &t.ports[port]
            q = &t.qps[c.first_qp + i]
            there = ports[i % c.remote_devs]
            ethernet = p.attr.link_layer == IBV_LINK_LAYER_ETHERNET
            ends = (
                f"{self.where(c, port)}, peer device {there['device']} port {there['port']} "
                f"GID {gid_text(there['gid'])} QP {numbers[i]}"
            )
            if bool(there["ethernet"]) != ethernet:
                raise TransportError(f"one end is RoCE, the other InfiniBand: {ends}")
            vendor, options, ece_mask = remote["ece"][i]
            if self.options["ece"] and vendor:
                memset(&ece, 0, sizeof(ece))
                ece.vendor_id, ece.options, ece.comp_mask = vendor, options, ece_mask
                rc = genie_ibv_set_ece(q.qp, &ece)
                if rc and rc != EOPNOTSUPP:
                    raise failure("ibv_set_ece", rc if rc > 0 else errno, ends)
            memset(&attr, 0, sizeof(attr))
            attr.qp_state = IBV_QPS_RTR
            attr.path_mtu = min(p.attr.active_mtu, there["mtu_code"])
            attr.dest_qp_num = numbers[i]
            attr.rq_psn = 0
            attr.max_dest_rd_atomic = 1
            attr.min_rnr_timer = self.options["min_rnr_timer"]
            attr.ah_attr.port_num = p.number
            attr.ah_attr.sl = self.options["sl"]
            if ethernet or bytes(there["gid"])[:8] != bytes(p.gid.raw[:8]):
                attr.ah_attr.is_global = 1
                memcpy(attr.ah_attr.grh.dgid.raw, <const char *>there["gid"], 16)
                attr.ah_attr.grh.sgid_index = <uint8_t>p.gid_index
                attr.ah_attr.grh.hop_limit = self.options["hop_limit"]
                attr.ah_attr.grh.traffic_class = self.options["tc" if c.sender else "fifo_tc"]
            if not ethernet:
                attr.ah_attr.dlid = there["lid"]
            mask = (
                IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN
                | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER
            )
            rc = genie_ibv_modify_qp(q.qp, &attr, mask)
            if rc:
                raise failure(
                    "ibv_modify_qp", rc if rc > 0 else errno,
                    f"INIT to RTR, path MTU {128 << attr.path_mtu}, {ends}",
                )
            memset(&attr, 0, sizeof(attr))
            attr.qp_state = IBV_QPS_RTS
            attr.timeout = self.options["timeout"]
            attr.retry_cnt = self.options["retry"]
            attr.rnr_retry = self.options["rnr_retry"]
            attr.sq_psn = 0
            attr.max_rd_atomic = 1
            mask = (
                IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY
                | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC
            )
            rc = genie_ibv_modify_qp(q.qp, &attr, mask)
            if rc:
                raise failure("ibv_modify_qp", rc if rc > 0 else errno, f"RTR to RTS, {ends}")
            memset(&ece, 0, sizeof(ece))
            if self.options["ece"] and vendor and genie_ibv_query_ece(q.qp, &ece) == 0:
                eces.append((ece.vendor_id, ece.options, ece.comp_mask))
            else:
                eces.append((0, 0, 0))
            c.piece = min(c.piece, p.attr.max_msg_sz, there["max_msg_bytes"])
            if not c.sender:
                q.rkey = remote["rkeys"][i % c.remote_devs]
            # Adaptive routing is on by default on InfiniBand, off on RoCE (spec 4.2).
            adaptive = self.options["ar"]
            c.split = adaptive == 1 or (adaptive < 0 and not ethernet)
        c.remote = remote["at"]
        c.remote_length = remote["length"]
        if c.sender:
            c.piece = min(c.piece, c.remote_length, c.source_length)
            if c.piece >= 4096:
                c.piece -= c.piece % 4096
            for i in range(c.remote_devs):
                c.long_rkeys[i] = remote["rkeys"][i]
        c.state = CONNECTED
        return eces

    @property
    def capsule(self) -> object:
        """The vtable as a PyCapsule "genie.transport"; it keeps this object alive."""
        self.check_open()
        capsule = PyCapsule_New(&self.t.vtable, GENIE_TRANSPORT_CAPSULE, capsule_gone)
        Py_INCREF(self)
        PyCapsule_SetContext(capsule, <void *>self)
        return capsule

    def connections(self) -> list[dict[str, object]]:
        """Return a row for each connection: id, sender, peer, messages, bytes, error."""
        cdef verbs_t *t = self.t
        cdef uint32_t k, i
        cdef conn_t *c
        rows = []
        for k in range(t.n_conns):
            c = &t.conns[k]
            nbytes = c.nbytes
            if c.sender and t.qps != NULL:
                nbytes = sum(t.qps[c.first_qp + i].bytes for i in range(c.n_qps))
            rows.append({
                "id": c.id,
                "sender": bool(c.sender),
                "peer": self.peers[k],
                "posted": c.next,
                "complete": c.head,
                "nbytes": nbytes,
                "error": c.error,
                "qps": [
                    t.qps[c.first_qp + i].qp.qp_num if t.qps[c.first_qp + i].qp != NULL else 0
                    for i in range(c.n_qps)
                ] if t.qps != NULL else [],
            })
        return rows

    def port_bytes(self) -> list[tuple[str, int, int]]:
        """Return (device, port, payload bytes posted) of each port."""
        cdef verbs_t *t = self.t
        cdef uint32_t i
        total = [0] * t.n_ports
        if t.qps != NULL:
            for i in range(t.n_qps):
                total[t.qps[i].port] += t.qps[i].bytes
        return [(self.names[i], t.ports[i].number, total[i]) for i in range(t.n_ports)]

    def failures(self) -> list[dict[str, object]]:
        """Return the first failure of each failed connection.

        Returns:
            Rows with id, sender, peer, status (positive: a completion status, negative: -errno),
            text, vendor_err, qp_num, wr_id, message (its number on the connection), found (bytes
            that came where others were announced), device, flushed and later (completions in
            error after the first).
        """
        cdef verbs_t *t = self.t
        cdef uint32_t k
        cdef conn_t *c
        rows = []
        for k in range(t.n_conns):
            c = &t.conns[k]
            if not c.error:
                continue
            port = t.nics[c.nic].first_port
            if c.status:
                text = text_of(genie_ibv_wc_status_str(c.status))
            elif c.error == -EBADMSG:
                text = f"{c.found} bytes where another size was announced"
            else:
                text = os.strerror(-c.error)
            rows.append({
                "id": c.id,
                "sender": bool(c.sender),
                "peer": self.peers[k],
                "status": c.error,
                "text": text,
                "vendor_err": c.vendor_error,
                "qp_num": c.failed_qp,
                "wr_id": c.failed_wr,
                "message": c.failed_message,
                "found": c.found,
                "device": self.names[port],
                "flushed": c.flushed,
                "later": c.later,
            })
        return rows

    def counters(self) -> dict[str, int]:
        """Return what the data path did, over all connections."""
        cdef verbs_t *t = self.t
        return {
            "post_send_calls": t.c_post_send,
            "post_recv_calls": t.c_post_recv,
            "work_requests": t.c_wrs,
            "polls": t.c_poll,
            "empty_polls": t.c_empty,
            "completions": t.c_wc,
            "armings": t.c_arm,
            "sleeps": t.c_sleep,
            "refused": t.c_refused,
            "async_events": t.c_async,
        }

    @property
    def last_async(self) -> str:
        """The last asynchronous event of a device in libibverbs' words, "" for none."""
        if self.t.c_async == 0:
            return ""
        return text_of(genie_ibv_event_type_str(self.t.last_async))

    def drain(self, double seconds) -> int:
        """Let posted messages complete; return how many did not in `seconds`."""
        cdef verbs_t *t = self.t
        cdef int64_t deadline = genie_verbs_now() + <int64_t>(seconds * 1e9)
        cdef uint32_t k
        cdef uint64_t pending = 0
        if self.is_closed or not self.allocated:
            return 0
        while True:
            with nogil:
                v_flush(t)
                progress(t)
                t.first = t.last = 0
                pending = 0
                for k in range(t.n_conns):
                    if not t.conns[k].error:
                        pending += t.conns[k].next - t.conns[k].head
                if pending and genie_verbs_now() < deadline:
                    v_wait(t, min(deadline, genie_verbs_now() + 10_000_000))
            if pending == 0 or genie_verbs_now() >= deadline:
                return <int>pending

    cdef void check_open(self) except *:
        if self.is_closed:
            raise TransportError("the verbs transport is closed")

    @property
    def closed(self) -> bool:
        """Whether everything was given back."""
        return self.is_closed

    def close(self) -> None:
        """Give everything back, newest first; a second call does nothing.

        QPs go to the error state so that what is still posted is flushed and seen before memory
        goes; then QPs, CQs, MRs, memory, channels, PDs and contexts.

        Raises:
            TransportError: Calls failed; every one was tried, all are named.
        """
        cdef const char *calls[8]
        cdef int errors[8]
        cdef int failed
        if self.is_closed:
            return
        self.is_closed = True
        failed = give_back(self.t, calls, errors)
        if failed:
            words = [
                f"{text_of(calls[i])}: {os.strerror(errors[i])}" for i in range(min(failed, 8))
            ]
            raise TransportError(f"closing the verbs transport: {'; '.join(words)}")

    def __dealloc__(self):
        global live_transports
        cdef verbs_t *t = self.t
        cdef uint32_t i
        if t == NULL:
            return
        if not self.is_closed:
            give_back(t, NULL, NULL)
        if t.conns != NULL:
            for i in range(t.n_conns):
                free(t.conns[i].left)
                free(t.conns[i].expected)
        free(t.index)
        free(t.conns)
        free(t.qps)
        free(t.cqs)
        free(t.ports)
        free(t.nics)
        free(t.fds)
        free(t.events)
        free(t.waiting)
        free(t.longs)
        free(t.wrs)
        free(t.sges)
        free(t.recvs)
        free(t.dirty)
        free(t)
        self.t = NULL
        live_transports -= 1
