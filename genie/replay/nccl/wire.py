"""Work requests of NCCL's built-in InfiniBand transport (spec section 4).

A message is one request of its connection; its data is split over queue pairs in parts of whole
128 bytes. The receiver posts receive work requests and announces the slot with a CTS write.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from genie import checks
from genie.errors import InputError
from genie.replay.nccl.env import Nccl
from genie.replay.nccl.versions import Switch

Table = npt.NDArray[np.void]
IntArray = npt.NDArray[np.int64]

WORK_REQUEST = np.dtype(
    [
        ("message", "i4"),
        ("qp", "u2"),
        ("device", "u1"),
        ("opcode", "U9"),
        ("nbytes", "i8"),
        ("remote_offset", "i8"),
        ("imm", "u4"),
        ("signaled", "u1"),
    ]
)
"""One work request, in posting order of its message.

`message`: row of the messages it was made for. `qp`: queue pair of the connection, `device` the
merged device it is on. `opcode`: WRITE, WRITE_IMM (sender), RECV_WR, CTS_WRITE (receiver).
`remote_offset`: bytes from the message's remote address; of a CTS from the start of the sender's
FIFO of announcements; -1 without data. `imm`: immediate value, the size of the whole message.
`signaled`: whether it makes a completion.
"""

OPCODES = np.array(["WRITE", "WRITE_IMM", "RECV_WR", "CTS_WRITE"])
WRITE, WRITE_IMM, RECV_WR, CTS_WRITE = range(4)

PART_ALIGN = 128
FIFO_ROWS = 256
FIFO_ENTRIES = 8
CTS_BYTES = 64
AR_THRESHOLD = 8192
MAX_DEVICES = 8
SIZES_BYTES = 4

MULTI_SEND_IMM: Switch[bool] = Switch(
    "immediate of a grouped send is its first size", {"2.20.3": False, "2.29.2": True}
)
"""Before, the immediate of a grouped send was 0."""

DEVICES: Switch[int] = Switch("merged NIC devices", {"2.20.3": 2, "2.24.3": 4, "2.30.3": 8})


@dataclass(frozen=True)
class Connection:
    """How a connection uses its queue pairs.

    Attributes:
        devices: merged devices (ndevs).
        qps: queue pairs in all: NCCL_IB_QPS_PER_CONNECTION x devices; QP i is on device
            i mod devices.
        split: whether a message is split over all queue pairs (NCCL_IB_SPLIT_DATA_ON_QPS), else
            over one a device.
        adaptive: adaptive routing: messages over `ar_threshold` bytes go as plain writes
            followed by an empty write with immediate.
        ar_threshold: bytes.
        first_size_imm: see `MULTI_SEND_IMM`.
    """

    devices: int = 1
    qps: int = 1
    split: bool = False
    adaptive: bool = False
    ar_threshold: int = AR_THRESHOLD
    first_size_imm: bool = True

    @property
    def used(self) -> int:
        """Queue pairs that one message uses."""
        return self.qps if self.split else self.devices

    @classmethod
    def of(cls, nccl: Nccl, devices: int, link_layer: str) -> Connection:
        """The connection that a release and environment make.

        Args:
            nccl: release and environment.
            devices: merged devices.
            link_layer: "ethernet" or "infiniband" (adaptive routing is on by default there).

        Raises:
            InputError: a number of devices or a link layer that does not exist.
        """
        checks.whole("devices", devices)
        checks.text("link_layer", link_layer)
        most = DEVICES.at(nccl.version)
        if not 1 <= devices <= most:
            raise InputError(
                f"devices: NCCL {nccl.version_text} merges 1 to {most} NIC ports, not {devices}"
            )
        if link_layer not in ("ethernet", "infiniband"):
            raise InputError(f"link_layer: ethernet or infiniband, not {link_layer!r}")
        adaptive = nccl.get_int("NCCL_IB_ADAPTIVE_ROUTING", int(link_layer == "infiniband"))
        threshold = nccl.get_int("NCCL_IB_AR_THRESHOLD", AR_THRESHOLD)
        if nccl.version >= (2, 30, 3) and threshold == -2:
            threshold = AR_THRESHOLD
        if nccl.get_int("NCCL_IB_OOO_RQ", 0):
            adaptive = 0
        return cls(
            devices=devices,
            qps=nccl.get_int("NCCL_IB_QPS_PER_CONNECTION", 1) * devices,
            split=nccl.get_int("NCCL_IB_SPLIT_DATA_ON_QPS", 0) != 0,
            adaptive=adaptive != 0,
            ar_threshold=threshold,
            first_size_imm=MULTI_SEND_IMM.at(nccl.version),
        )


def _rows(count: int) -> Table:
    return np.zeros(count, WORK_REQUEST)


def sends(message: IntArray, request: IntArray, nbytes: IntArray, conn: Connection) -> Table:
    """Work requests of single sends.

    Args:
        message: number of each message, copied to the result.
        request: number of each message on its connection, from 0.
        nbytes: its size.
        conn: the connection.
    """
    used = conn.used
    part = np.arange(used)
    qp = (request[:, None] * used + part) % conn.qps
    align = -(nbytes // -used)
    align = -(align // -PART_ALIGN) * PART_ALIGN
    offset = np.minimum(part * align[:, None], nbytes[:, None])
    length = np.minimum(offset + align[:, None], nbytes[:, None]) - offset
    two = np.broadcast_to((conn.adaptive & (nbytes > conn.ar_threshold))[:, None], qp.shape)
    out = _rows(2 * qp.size)
    table = out.reshape(len(nbytes), used, 2)
    table["message"] = message[:, None, None]
    table["qp"] = qp[..., None]
    table["device"] = (qp % conn.devices)[..., None]
    # The first of a pair carries the data, the second only tells the receiver.
    first, second = table[..., 0], table[..., 1]
    first["opcode"], second["opcode"] = OPCODES[WRITE], OPCODES[WRITE_IMM]
    first["nbytes"] = length
    first["remote_offset"] = np.where(length > 0, offset, -1)
    second["remote_offset"] = -1
    second["imm"] = nbytes[:, None]
    second["signaled"] = 1
    single = ~two
    second["nbytes"][single] = length[single]
    second["remote_offset"][single] = first["remote_offset"][single]
    keep = np.ones(table.shape, np.bool_)
    keep[..., 0] = two
    return out[keep.reshape(-1)]


def receives(message: IntArray, request: IntArray, conn: Connection, grouped: int = 1) -> Table:
    """Receive work requests and CTS writes of receives.

    Args:
        message: number of each receive, copied to the result.
        request: number of each receive on its connection, from 0.
        conn: the connection.
        grouped: receives announced together (at most 8).
    """
    used = conn.used
    out = _rows(len(request) * (used + 1)).reshape(len(request), used + 1)
    out["message"] = message[:, None]
    qp = (request[:, None] * used + np.arange(used)) % conn.qps
    out["qp"][:, :used] = qp
    out["device"][:, :used] = qp % conn.devices
    out["opcode"][:, :used] = OPCODES[RECV_WR]
    out["remote_offset"][:, :used] = -1
    device = request % conn.devices
    row = request % FIFO_ROWS
    cts = out[:, used]
    cts["qp"] = device
    cts["device"] = device
    cts["opcode"] = OPCODES[CTS_WRITE]
    cts["nbytes"] = grouped * CTS_BYTES
    cts["remote_offset"] = row * FIFO_ENTRIES * CTS_BYTES
    # One CTS in 256 is signaled, so that the queue can be drained.
    cts["signaled"] = row == device
    return out.reshape(-1)


def multi_send(message: IntArray, request: int, nbytes: IntArray, conn: Connection) -> Table:
    """Work requests of one grouped send: a write each, then the sizes with the immediate.

    The writes go to unrelated buffers, so `remote_offset` is 0 for all of them, as in golden.

    Args:
        message: number of each message of the group.
        request: number of the group on its connection.
        nbytes: sizes of the messages, at most 8.
        conn: the connection.
    """
    used = conn.used
    count = len(nbytes)
    align = -(nbytes // -used)
    align = -(align // -PART_ALIGN) * PART_ALIGN
    part = np.arange(used)
    offset = np.minimum(part[:, None] * align, nbytes)
    length = np.minimum(offset + align, nbytes) - offset
    qp = (request * used + part) % conn.qps
    out = _rows(used * (count + 1)).reshape(used, count + 1)
    out["qp"] = qp[:, None]
    out["device"] = (qp % conn.devices)[:, None]
    out["message"][:, :count] = message
    out["opcode"][:, :count] = OPCODES[WRITE]
    out["nbytes"][:, :count] = length
    last = out[:, count]
    last["message"] = message[-1]
    last["opcode"] = OPCODES[WRITE_IMM]
    last["nbytes"] = SIZES_BYTES * count
    last["imm"] = nbytes[0] if conn.first_size_imm else 0
    last["signaled"] = 1
    return out.reshape(-1)


def work_requests(messages: Table, nccl: Nccl, devices: int, link_layer: str) -> Table:
    """Work requests of a rank's messages, in the order of the messages.

    Args:
        messages: array of `genie.replay.nccl.messages.MESSAGE`.
        nccl: release and environment.
        devices: merged devices of a NIC.
        link_layer: "ethernet" or "infiniband".
    """
    conn = Connection.of(nccl, devices, link_layer)
    key = (
        messages["channel"].astype(np.int64) << 40
        | messages["direction"].astype(np.int64) << 36
        | messages["peer"]
    )
    order = np.argsort(key, kind="stable")
    fresh = np.ones(len(order), np.bool_)
    fresh[1:] = key[order][1:] != key[order][:-1]
    number = np.arange(len(order))
    request = np.empty(len(order), np.int64)
    request[order] = number - np.maximum.accumulate(np.where(fresh, number, 0))
    sent = messages["direction"] == 0
    tables = [
        sends(number[sent], request[sent], messages["nbytes"][sent].astype(np.int64), conn),
        receives(number[~sent], request[~sent], conn),
    ]
    joined = np.concatenate(tables)
    return joined[np.argsort(joined["message"], kind="stable")]
