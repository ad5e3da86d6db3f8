"""What a capture says: the RDMA messages of every QP, from the headers of RoCE v2 packets."""

from __future__ import annotations

import struct
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

ROCE_PORT = 4791
#: BTH opcodes of reliable connections (InfiniBand Architecture Specification, volume 1, 9.2).
FIRST, MIDDLE, LAST, LAST_IMM, ONLY, ONLY_IMM = 6, 7, 8, 9, 10, 11
ACK = 17
_STARTS = {FIRST, ONLY, ONLY_IMM}
_ENDS = {LAST, LAST_IMM, ONLY, ONLY_IMM}
_WITH_IMM = {LAST_IMM, ONLY_IMM}


@dataclass
class Message:
    """One RDMA WRITE or WRITE_WITH_IMM."""

    address: int
    rkey: int
    announced: int
    payload: int = 0
    imm: int | None = None
    packets: int = 0


@dataclass
class Flow:
    """What came to one QP from one address, in the order of packet sequence numbers."""

    source: str
    destination: str
    qp: int
    messages: list[Message] = field(default_factory=list)
    repeated: int = 0
    tos: set[int] = field(default_factory=set)


def _records(path: Path) -> list[tuple[bytes, int]]:
    data = path.read_bytes()
    magic = data[:4]
    order = "<" if magic in (b"\xd4\xc3\xb2\xa1", b"\x4d\x3c\xb2\xa1") else ">"
    at, rows = 24, []
    while at + 16 <= len(data):
        _, _, captured, length = struct.unpack_from(order + "IIII", data, at)
        rows.append((data[at + 16 : at + 16 + captured], length))
        at += 16 + captured
    return rows


def read(path: Path) -> list[Flow]:
    """Return the flows of a pcap file of Ethernet frames."""
    flows: dict[tuple[bytes, bytes, int], Flow] = {}
    packets: dict[tuple[bytes, bytes, int], dict[int, tuple[int, bytes, int]]] = defaultdict(dict)
    for frame, _ in _records(path):
        if frame[12:14] != b"\x08\x00" or frame[23] != 17:
            continue
        ip = 14
        udp = ip + (frame[ip] & 15) * 4
        if struct.unpack_from("!H", frame, udp + 2)[0] != ROCE_PORT:
            continue
        total = struct.unpack_from("!H", frame, ip + 2)[0]
        bth = udp + 8
        opcode, flags = frame[bth], frame[bth + 1]
        if not FIRST <= opcode <= ONLY_IMM:
            continue
        qp = int.from_bytes(frame[bth + 5 : bth + 8], "big")
        psn = int.from_bytes(frame[bth + 9 : bth + 12], "big")
        key = (frame[ip + 12 : ip + 16], frame[ip + 16 : ip + 20], qp)
        flow = flows.get(key)
        if flow is None:
            source, destination = (".".join(map(str, part)) for part in key[:2])
            flow = flows[key] = Flow(source, destination, qp)
        flow.tos.add(frame[ip + 1])
        header = 12 + (16 if opcode in _STARTS else 0) + (4 if opcode in _WITH_IMM else 0)
        # IP and UDP headers before, ICRC after; the pad count is in the BTH.
        payload = total - (bth - ip) - header - 4 - ((flags >> 4) & 3)
        if psn in packets[key]:
            flow.repeated += 1
        packets[key][psn] = (opcode, frame[bth + 12 : bth + header], payload)
    for key, flow in flows.items():
        _assemble(flow, packets[key])
    return list(flows.values())


def _assemble(flow: Flow, packets: dict[int, tuple[int, bytes, int]]) -> None:
    # Packet sequence numbers start at 0 (spec 4.1) and do not wrap in a test's capture.
    current: Message | None = None
    expected = 0
    for psn in sorted(packets):
        opcode, extra, payload = packets[psn]
        assert psn == expected, f"packets {expected} to {psn} of QP {flow.qp} were not captured"
        expected = psn + 1
        if opcode in _STARTS:
            assert current is None, "a message began inside another"
            current = Message(*struct.unpack_from("!QII", extra))
        assert current is not None, "a packet outside of a message"
        current.payload += payload
        current.packets += 1
        if opcode in _WITH_IMM:
            current.imm = struct.unpack_from("!I", extra, len(extra) - 4)[0]
        if opcode in _ENDS:
            assert current.payload == current.announced, "payload and RETH length differ"
            flow.messages.append(current)
            current = None
    assert current is None, "the last message did not end"
