# libibverbs itself, the devices of this machine and their GID tables, errors in words.

def load(path: str | None = None) -> None:
    """Open libibverbs, once.

    Args:
        path: The library; else `GENIE_LIBIBVERBS`, else the system's libibverbs.so.1.

    Raises:
        TransportError: It is not there or too old; says how to get it.
    """
    cdef char why[512]
    name = path or os.environ.get(LIBRARY_VARIABLE) or LIBRARY
    if genie_ibv_load(os.fsencode(name), why, sizeof(why)):
        raise TransportError(
            f"libibverbs is not usable here: {why.decode(errors='replace')} "
            "(Debian/Ubuntu: apt install libibverbs1 ibverbs-providers; "
            "RHEL: dnf install libibverbs)"
        )


def status_text(int status) -> str:
    """Return libibverbs' words for a completion status."""
    load()
    return genie_ibv_wc_status_str(status).decode(errors="replace")


cdef object text_of(const char *s):
    return s.decode("utf-8", "replace") if s != NULL else ""


cdef object no_devices(int error):
    why = (
        "no RDMA in this kernel (no ib_uverbs: modprobe ib_uverbs and the NIC's driver, or "
        "rdma_rxe with `rdma link add rxe0 type rxe netdev IF` for Soft-RoCE)"
        if error == ENOSYS
        else os.strerror(error)
        if error
        else "the list is empty: is the NIC's RDMA driver loaded (see `rdma link`)?"
    )
    return DeviceNotFoundError(f"no RDMA device: {why}", name="", found=[])


cdef object gid_rows(ibv_context *context, int port, ibv_port_attr *attr, str device):
    """(index, gid, type, network interface) of the filled entries; type 0 IB, 1 v1, 2 v2, -1 ?"""
    cdef ibv_gid_entry *table = <ibv_gid_entry *>calloc(MAX_GIDS, sizeof(ibv_gid_entry))
    cdef ibv_gid gid
    cdef Py_ssize_t n, i
    if table == NULL:
        raise MemoryError
    rows = []
    try:
        n = genie_ibv_query_gid_table(context, table, MAX_GIDS)
        if n >= 0:
            for i in range(n):
                if table[i].port_num == <uint32_t>port:
                    rows.append((
                        table[i].gid_index,
                        bytes(table[i].gid.raw[:16]),
                        <int>table[i].gid_type,
                        interface_name(table[i].ndev_ifindex),
                    ))
            return rows
    finally:
        free(table)
    for i in range(attr.gid_tbl_len):
        if genie_ibv_query_gid(context, <uint8_t>port, <int>i, &gid):
            continue
        raw = bytes(gid.raw[:16])
        if any(raw):
            kind, netdev = gid_facts(device, port, i)
            if attr.link_layer != IBV_LINK_LAYER_ETHERNET:
                kind = 0
            rows.append((i, raw, kind, netdev))
    return rows


def interface_name(index: int) -> str:
    """Return the name of a network interface, "" where there is none."""
    import socket

    try:
        return socket.if_indextoname(index) if index else ""
    except OSError:
        return ""


def gid_facts(device: str, port: int, index: int) -> tuple[int, str]:
    """Return (1 or 2 of RoCE, interface) of a GID from sysfs; -1 where the kernel does not say."""
    base = f"/sys/class/infiniband/{device}/ports/{port}/gid_attrs"
    kind, netdev = -1, ""
    try:
        with open(f"{base}/types/{index}") as file:
            text = file.read()
        kind = 2 if "v2" in text else 1
        with open(f"{base}/ndevs/{index}") as file:
            netdev = file.read().strip()
    except OSError:
        pass
    return kind, netdev


def devices() -> list[dict[str, object]]:
    """Return the RDMA devices of this machine with their ports and GID tables.

    Returns:
        One dict a device: name, firmware, vendor_id, part_id, max_qp, max_qp_wr, max_cqe, max_mr,
        and ports: number, state, active, mtu, max_mtu (bytes), lid, link_layer ("ethernet" or
        "infiniband"), max_msg_bytes, width, speed (verbs codes), gids [(index, 16 bytes, type,
        interface)].

    Raises:
        DeviceNotFoundError: There is none; says whether the kernel or the driver is missing.
        TransportError: libibverbs is missing.
    """
    cdef int n = 0
    cdef int i, k
    cdef ibv_device **found
    cdef ibv_context *context
    cdef ibv_device_attr attr
    cdef ibv_port_attr port
    load()
    genie_clear_errno()
    found = genie_ibv_get_device_list(&n)
    if found == NULL or n == 0:
        error = errno if found == NULL else 0
        if found != NULL:
            genie_ibv_free_device_list(found)
        raise no_devices(error)
    rows = []
    try:
        for i in range(n):
            name = text_of(genie_ibv_get_device_name(found[i]))
            context = genie_ibv_open_device(found[i])
            if context == NULL:
                rows.append({"name": name, "error": os.strerror(errno), "ports": []})
                continue
            try:
                if genie_ibv_query_device(context, &attr):
                    rows.append({"name": name, "error": os.strerror(errno), "ports": []})
                    continue
                ports = []
                for k in range(1, attr.phys_port_cnt + 1):
                    if genie_ibv_query_port(context, <uint8_t>k, &port):
                        continue
                    ports.append({
                        "number": k,
                        "state": port.state,
                        "active": port.state == IBV_PORT_ACTIVE,
                        "mtu": 128 << port.active_mtu,
                        "max_mtu": 128 << port.max_mtu,
                        "lid": port.lid,
                        "link_layer": (
                            "ethernet" if port.link_layer == IBV_LINK_LAYER_ETHERNET
                            else "infiniband"
                        ),
                        "max_msg_bytes": port.max_msg_sz,
                        "width": port.active_width,
                        "speed": port.active_speed,
                        "gids": gid_rows(context, k, &port, name),
                    })
                rows.append({
                    "name": name,
                    "firmware": text_of(attr.fw_ver),
                    "vendor_id": attr.vendor_id,
                    "part_id": attr.vendor_part_id,
                    "max_qp": attr.max_qp,
                    "max_qp_wr": attr.max_qp_wr,
                    "max_cqe": attr.max_cqe,
                    "max_mr": attr.max_mr,
                    "ports": ports,
                })
            finally:
                genie_ibv_close_device(context)
    finally:
        genie_ibv_free_device_list(found)
    return rows


def gid_text(gid: bytes) -> str:
    """Return a GID as an IPv6 address; IPv4-mapped ones show the IPv4 address."""
    import ipaddress

    address = ipaddress.IPv6Address(gid)
    mapped = address.ipv4_mapped
    return f"::ffff:{mapped}" if mapped is not None else str(address)


cdef object failure(str call, int error, str where):
    """The VerbsError of a failed call; `error` is an errno."""
    return VerbsError(
        f"{call}: [Errno {error}] {os.strerror(error)}: {where}", call=call, errno=error
    )
