"""The same loop as verbs_loop.c on Python bindings of libibverbs: both ends in one process.

    verbs_peers.py ibverbs|pyverbs write|imm SIZE COUNT DEPTH REPEATS FOLDER_OF_PEERS

Prints nanoseconds a message, a line a repeat. A fresh work request is made for each message.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable


def loop(
    post: Callable[[int], None],
    poll: Callable[[], int],
    receive: Callable[[], int] | None,
    count: int,
    depth: int,
) -> float:
    """Post with at most `depth` outstanding until all are complete; ns a message."""
    began = time.perf_counter_ns()
    posted = done = received = 0
    while done < count or (receive is not None and received < count):
        while posted < count and posted - done < depth:
            if receive is not None and posted - received >= depth:
                break
            post(posted)
            posted += 1
        done += poll()
        if receive is not None:
            received += receive()
    return (time.perf_counter_ns() - began) / count


def ibverbs(mode: str, size: int, depth: int):
    import ibverbs as ib

    access = ib.AccessFlags.LOCAL_WRITE | ib.AccessFlags.REMOTE_WRITE

    class End:
        def __init__(self, name: str) -> None:
            found = [d for d in ib.get_device_list() if d.name in (name, name.encode())]
            self.context = found[0].open()
            self.pd = self.context.alloc_pd()
            self.send_cq = self.context.create_cq(2 * depth + 16)
            self.recv_cq = self.context.create_cq(2 * depth + 16)
            self.memory = ctypes.create_string_buffer(size + 64)
            self.mr = self.pd.reg_mr(ctypes.addressof(self.memory), size + 64, access)
            self.qp = self.pd.create_qp(
                ib.QPInitAttr(
                    send_cq=self.send_cq, recv_cq=self.recv_cq, qp_type=ib.QPType.RC,
                    max_send_wr=depth, max_recv_wr=depth, max_send_sge=1, max_recv_sge=1,
                )
            )  # fmt: skip
            self.info = ib.local_qp_info(
                self.qp, self.context.query_port(1), self.context.query_gid(1, 1), port=1, psn=0
            )

    a, b = End("rxe0"), End("rxe1")
    ib.connect_rc(a.qp, b.info, port=1, sgid_index=1, access=access)
    ib.connect_rc(b.qp, a.info, port=1, sgid_index=1, access=access)
    opcode = ib.WROpcode.RDMA_WRITE_WITH_IMM if mode == "imm" else ib.WROpcode.RDMA_WRITE
    sges = [ib.SGE(a.mr, size)]
    receive_wr = ib.RecvWR(0, [ib.SGE(b.mr, size)])

    def post(i: int) -> None:
        flags = ib.SendFlags.SIGNALED
        a.qp.post_send(ib.SendWR(i, sges, opcode, flags, b.mr.addr, b.mr.rkey, 42))

    def poll() -> int:
        return len(a.send_cq.poll(32))

    def receive() -> int:
        n = len(b.recv_cq.poll(32))
        for _ in range(n):
            b.qp.post_recv(receive_wr)
        return n

    if mode == "imm":
        for _ in range(depth):
            b.qp.post_recv(receive_wr)
    return post, poll, receive if mode == "imm" else None, (a, b)


def pyverbs(mode: str, size: int, depth: int):
    import pyverbs.enums as e
    from pyverbs.addr import AHAttr, GlobalRoute
    from pyverbs.cq import CQ
    from pyverbs.device import Context
    from pyverbs.mr import MR
    from pyverbs.pd import PD
    from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
    from pyverbs.wr import SGE, RecvWR, SendWR

    access = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE

    class End:
        def __init__(self, name: str) -> None:
            self.context = Context(name=name)
            self.pd = PD(self.context)
            self.send_cq, self.recv_cq = (CQ(self.context, 2 * depth + 16) for _ in range(2))
            self.mr = MR(self.pd, size + 64, access)
            attr = QPAttr(port_num=1)
            attr.qp_access_flags = access
            self.qp = QP(
                self.pd,
                QPInitAttr(
                    qp_type=e.IBV_QPT_RC, scq=self.send_cq, rcq=self.recv_cq,
                    cap=QPCap(depth, depth, 1, 1, 0),
                ),
                attr,
            )  # fmt: skip
            rows = ((i, self.context.query_gid(1, i)) for i in range(16))
            self.index, self.gid = next((i, g) for i, g in rows if "ffff" in g.gid)

    def join(one: End, other: End) -> None:
        route = GlobalRoute(dgid=other.gid, sgid_index=one.index)
        route.hop_limit = 255
        attr = QPAttr(port_num=1)
        attr.qp_access_flags = access
        attr.path_mtu = one.context.query_port(1).active_mtu
        attr.dest_qp_num = other.qp.qp_num
        attr.max_dest_rd_atomic = attr.max_rd_atomic = 1
        attr.min_rnr_timer, attr.timeout, attr.retry_cnt, attr.rnr_retry = 12, 20, 7, 7
        attr.ah_attr = AHAttr(gr=route, is_global=1, port_num=1)
        one.qp.to_rts(attr)

    a, b = End("rxe0"), End("rxe1")
    join(a, b)
    join(b, a)
    opcode = e.IBV_WR_RDMA_WRITE_WITH_IMM if mode == "imm" else e.IBV_WR_RDMA_WRITE
    sge = SGE(a.mr.buf, size, a.mr.lkey)
    receive_wr = RecvWR(sg=[SGE(b.mr.buf, size, b.mr.lkey)], num_sge=1)

    def post(i: int) -> None:
        wr = SendWR(wr_id=i, sg=[sge], num_sge=1, opcode=opcode, send_flags=e.IBV_SEND_SIGNALED)
        wr.set_wr_rdma(b.mr.rkey, b.mr.buf)
        a.qp.post_send(wr)

    def poll() -> int:
        return a.send_cq.poll(32)[0]

    def receive() -> int:
        n = b.recv_cq.poll(32)[0]
        for _ in range(n):
            b.qp.post_recv(receive_wr)
        return n

    if mode == "imm":
        for _ in range(depth):
            b.qp.post_recv(receive_wr)
    return post, poll, receive if mode == "imm" else None, (a, b)


def main() -> None:
    who, mode, size, count, depth, repeats, folder = sys.argv[1:8]
    sys.path.insert(0, folder)
    made = {"ibverbs": ibverbs, "pyverbs": pyverbs}[who](mode, int(size), int(depth))
    for _ in range(int(repeats)):
        print(f"{loop(*made[:3], int(count), int(depth)):.1f}", flush=True)


if __name__ == "__main__":
    main()
