"""Failures of verbs calls, completions and peers: bug-reports E 48 to 60, on fakeverbs."""

from __future__ import annotations

import errno
import os
import pickle
import resource
import subprocess
import sys
import time

import numpy as np
import pytest

from genie._core import verbs
from genie.errors import (
    DeviceNotFoundError,
    GenieError,
    InputError,
    RendezvousTimeoutError,
    TransportError,
    VerbsError,
)
from genie.replay.transports.verbs import VerbsTransport
from genie.replay.transports.verbs_config import VerbsConfig

from . import fake
from .driver import Flow, drive

CALLS = {
    "ibv_open_device": errno.EACCES,
    "ibv_query_device": errno.EIO,
    "ibv_query_port": errno.EINVAL,
    "ibv_alloc_pd": errno.ENOMEM,
    "ibv_reg_mr": errno.ENOMEM,
    "ibv_create_comp_channel": errno.EMFILE,
    "ibv_create_cq": errno.ENOMEM,
    "ibv_create_qp": errno.ENOMEM,
    "ibv_modify_qp": errno.ETIMEDOUT,
}


def close_all() -> None:
    """Open and close a connected pair."""
    with fake.workers(fake.table((0, 1), (1, 0))):
        pass


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("nth", [1, 2, 3, 4])
def test_each_call_failing_once_gives_everything_back(call: str, nth: int) -> None:
    """One error that names the call and the device, or none; never a leak (see conftest)."""
    fake.configure(fail=f"{call}:{CALLS[call]}:{nth}")
    try:
        with fake.workers(fake.table((0, 1), (1, 0)), timeout=2.0):
            pass
    except VerbsError as exc:
        assert exc.call == call and exc.errno == CALLS[call]  # type: ignore[attr-defined]
        assert os.strerror(CALLS[call]) in str(exc) and "fake" in str(exc)
        assert pickle.loads(pickle.dumps(exc)).errno == exc.errno
    except (TransportError, RendezvousTimeoutError, DeviceNotFoundError):
        pass  # the other worker's view: its peer ended; or a device that could not be listed
    assert verbs.live()["qps"] == 0


@pytest.mark.parametrize("error", [errno.ENETUNREACH, errno.ETIMEDOUT, errno.ENODEV, errno.EINVAL])
def test_modify_qp_names_both_ends_and_states(error: int) -> None:
    # Calls 1 and 2 are RESET to INIT of the two QPs, 3 is the receiver's INIT to RTR.
    fake.configure(fail=f"ibv_modify_qp:{error}:3")
    with pytest.raises(VerbsError) as caught, fake.workers(fake.table((0, 1)), timeout=2.0):
        pass
    text = str(caught.value)
    for part in ("ibv_modify_qp", f"[Errno {error}]", os.strerror(error), "INIT to RTR",
                 "device fake1 port 1 GID 3 ::ffff:10.0.0.2", "rank 0 (worker 0",
                 "peer device fake0 port 1 GID ::ffff:10.0.0.1", "path MTU 4096"):  # fmt: skip
        assert part in text, (part, text)


@pytest.mark.parametrize("call", ["ibv_reg_mr", "ibv_create_cq", "ibv_create_qp"])
def test_enomem_tells_the_memlock_limit(call: str) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, hard))
    try:
        fake.configure(fail=f"{call}:{errno.ENOMEM}:0")
        with pytest.raises(VerbsError) as caught, fake.workers(fake.table((0, 1)), timeout=2.0):
            pass
    finally:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (soft, hard))
    text = str(caught.value)
    assert "65536 bytes" in text and "ulimit -l" in text and "registered already" in text
    assert "bytes asked" in text


def test_transport_retry_exceeded_is_reported_once_and_flushes_are_counted() -> None:
    # NCCL issues 1405, 1698, 928: the flood of flushes hid the first failure.
    fake.configure(status="12:30", lag=1)
    with fake.workers(fake.table((0, 1))) as (a, b):
        send = Flow(0, True, [4096], count=200)
        receive = Flow(0, False, [4096], count=200)
        assert drive([(a, [send]), (b, [receive])]) == 1
        a._verbs.drain(0.05)
        (failure,) = a.failures()
        assert failure.status == 12
        for part in ("connection 0", "from rank 0 to rank 1", "transport retry counter exceeded",
                     "status 12", "device fake0", "worker 1", "fake1:1", "message"):  # fmt: skip
            assert part in failure.reason, (part, failure.reason)
        (row,) = a._verbs.failures()
        assert row["vendor_err"] == 0x8C and row["message"] < 200
        assert "5a5a" not in failure.reason and "deadbeef" not in failure.reason
        assert row["later"] == 0
        # Closing flushes what is posted: counted, and no second failure.
        a._verbs.drain(0.05)
        (again,) = a._verbs.failures()
        assert again["flushed"] > 0 and again["status"] == 12
        assert f"{again['flushed']} work requests were flushed" in a.failures()[0].reason


def test_a_peer_that_never_posts_is_named_with_all_there_is_to_know() -> None:
    # gloo issue 511: a timeout that does not say who waited for whom, in what, for how long.
    from genie._core.engine import OP, STREAM, Engine

    with fake.workers(fake.table((0, 1))) as (a, _):
        engine = Engine(clock="wall")
        both = engine.add_communicator([0, 1])
        ops = np.zeros(3, OP)
        ops["peer"], ops["nbytes"], ops["steps"], ops["call"] = 1, 4096, 1, [0, 1, 2]
        program = engine.add_program(np.array([(5, 0, 0, 0, 0, 3)], STREAM), ops)
        engine.add_rank(0, [2], [0], [program], [both], [0, 0], [])
        rows = fake.table((0, 1))
        rows["communicator"], rows["channel"] = both, 5
        engine.add_connections(rows)
        engine.set_transport(a.capsule)
        assert engine.run(watchdog_s=0.2) == "stalled"
        text = engine.explain(lambda rank, node: "all_reduce 'grads'")
        for part in (
            "rank 0",
            "rank 1",
            "channel 5",
            "all_reduce 'grads'",
            "announce room for message 0 (4096",
            "ms",
        ):
            assert part in text, (part, text)


@pytest.mark.parametrize("status", [4, 10, 13])
def test_other_completion_statuses(status: int) -> None:
    fake.configure(status=f"{status}:5")
    with fake.workers(fake.table((0, 1))) as (a, b):
        flows = Flow(0, True, [64], count=50), Flow(0, False, [64], count=50)
        assert drive([(a, [flows[0]]), (b, [flows[1]])]) == 1
        found = [f for t in (a, b) for f in t.failures()]
        assert found[0].status == status


def test_one_failed_connection_leaves_the_others_alone() -> None:
    fake.configure(status="12:400")
    pairs = [(0, 1)] * 4
    with fake.workers(fake.table(*pairs)) as (a, b):
        sides: tuple[list[Flow], list[Flow]] = ([], [])
        for conn in range(4):
            sides[0].append(Flow(conn, True, [64], count=200))
            sides[1].append(Flow(conn, False, [64], count=200))
        assert drive([(a, sides[0]), (b, sides[1])]) == 1
        assert len(a.failures()) + len(b.failures()) == 1


def test_path_mtu_is_the_smaller_one_and_a_mismatch_is_noted() -> None:
    # tensorflow pull 9432: 4096 hard-coded. fakeverbs refuses a path MTU above the port's.
    fake.configure(mtu0=5, mtu1=3)
    with fake.workers(fake.table((0, 1), (1, 0))) as pair:
        for transport in pair:
            assert any("path MTU 1024" in note for note in transport.notes), transport.notes


def test_gid_tables_end_to_end() -> None:
    fake.configure(gids="fe80::%d/1,fe80::%d/2,::ffff:10.0.0.%d/1,::ffff:10.0.0.%d/2")
    with fake.workers(fake.table((0, 1))) as (a, _):
        assert a.nics[0][0].gid is not None and a.nics[0][0].gid.index == 3
    fake.configure(gids="")
    with pytest.raises(TransportError, match="GID table is empty"):
        close_all()
    fake.configure(gids="fe80::%d/2")
    with pytest.raises(TransportError, match="link-local"):
        close_all()
    fake.configure(gids="fe80::%d/1,fe80::%d/2,2001:db8::%d/1,2001:db8::%d/2")
    with fake.workers(fake.table((0, 1))) as (a, _):
        assert a.nics[0][0].gid is not None and a.nics[0][0].gid.index == 3


def test_without_the_gid_table_call() -> None:
    """Older libraries: entries are read one by one, types from sysfs (absent here: unknown)."""
    fake.configure(fail=f"_ibv_query_gid_table:{errno.EOPNOTSUPP}:0")
    ports = verbs.devices()[0]["ports"]
    assert [entry[2] for entry in ports[0]["gids"]] == [-1] * 4  # type: ignore[index]
    with fake.workers(fake.table((0, 1))) as (a, _):
        assert a.nics[0][0].gid is not None and a.nics[0][0].gid.address.version == 4


def test_no_rdma_in_the_kernel() -> None:
    fake.configure(kernel=0)
    with pytest.raises(DeviceNotFoundError, match="no RDMA in this kernel"):
        close_all()
    fake.configure(devices=0)
    with pytest.raises(DeviceNotFoundError, match="list is empty"):
        close_all()


def test_a_port_that_is_down() -> None:
    fake.configure(state=1)
    with pytest.raises(DeviceNotFoundError, match="no active port"):
        close_all()


def test_without_libibverbs() -> None:
    """Its own process: what a machine without the library says."""
    code = (
        "from genie.replay.transports.verbs import extension\n"
        "from genie.errors import TransportError\n"
        "try:\n    extension()\nexcept TransportError as exc:\n    print(exc)\n"
    )
    environment = {**os.environ, "GENIE_LIBIBVERBS": "/nonexistent/libibverbs.so.1"}
    out = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    ).stdout
    assert "apt install libibverbs1" in out and "/nonexistent" in out


def test_without_the_extension(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "genie._core.verbs", None)
    with pytest.raises(TransportError, match="apt install libibverbs-dev"):
        VerbsTransport(0, fake.table((0, 1)), [0], [0, 1], devices=["fake0"], bind="127.0.0.1")


def test_peers_with_other_settings_are_refused() -> None:
    rows = fake.table((0, 1))
    made = [
        VerbsTransport(
            worker, rows, [0], [0, 1], devices=[f"fake{worker}"], bind="127.0.0.1",
            config=VerbsConfig(qps_per_connection=1 + worker),
        )
        for worker in (0, 1)
    ]  # fmt: skip
    where = {t.worker: t.listen() for t in made}
    with pytest.raises(TransportError, match="QPs per connection"):
        fake.together(*[lambda t=t: t.connect(where, fake.SECRET, timeout=2.0) for t in made])
    for transport in made:
        transport.close()


def test_a_silent_peer_is_named() -> None:
    rows = fake.table((0, 1))
    with VerbsTransport(0, rows, [0], [0, 1], devices=["fake0"], bind="127.0.0.1") as alone:
        began = time.monotonic()
        with pytest.raises(RendezvousTimeoutError) as caught:
            alone.connect({1: ("127.0.0.1", 9)}, fake.SECRET, timeout=0.5)
        assert time.monotonic() - began < 5
        assert caught.value.missing == [1]  # type: ignore[attr-defined]


def test_receiver_that_is_late_loses_nothing() -> None:
    # antirez/ds4 pull 1024: the receiver posts later than the sender wants to send.
    with fake.workers(fake.table((0, 1))) as (a, b):
        send, receive = Flow(0, True, [4096], count=5), Flow(0, False, [4096], count=5)
        early = Flow(0, True, [4096], count=5)
        assert drive([(a, [early])], timeout=0.2) == -errno.ETIMEDOUT
        assert early.posted == 0 and a._verbs.counters()["refused"] == 1
        assert drive([(a, [send]), (b, [receive])]) == 0
        assert receive.complete == 5


def test_unused_nics_are_named() -> None:
    # NCCL issue 1519: four NICs, one used.
    with fake.workers(
        fake.table((0, 1), nics=[(1, 0)]), devices=(("fake0", "fake1"), ("fake0", "fake1"))
    ) as (a, b):
        assert a.unused() == ["fake0:1"] and b.unused() == ["fake1:1"]
        flows = Flow(0, True, [1000], count=3), Flow(0, False, [1000], count=3)
        assert drive([(a, [flows[0]]), (b, [flows[1]])]) == 0
        assert a.stats()["ports"] == {"fake0:1": 0, "fake1:1": 3000}


def test_use_after_close_and_double_close() -> None:
    with fake.workers(fake.table((0, 1))) as (a, _):
        a.close()
        a.close()
        with pytest.raises(TransportError, match="closed"):
            _ = a.capsule


def test_failing_destroy_calls_are_all_named_and_nothing_is_tried_twice() -> None:
    library = fake.library()
    core = verbs.Verbs(1, 1, [[("fake0", 1, 3)]])
    core.add(0, True, 0, "nobody")
    core.allocate()
    core.create(0)
    fake.library().fakeverbs_configure(f"fail=ibv_destroy_cq:{errno.EIO}:1".encode())
    with pytest.raises(TransportError, match="ibv_destroy_cq") as caught:
        core.close()
    assert "closing" in str(caught.value)
    core.close()
    assert not any(v for k, v in verbs.live().items() if k != "transports")
    # The fake library still has the queue that would not go, and what holds it: start afresh.
    del core
    assert library.fakeverbs_live(5) == 1
    library.fakeverbs_forget()


def test_misuse_is_found_before_any_call() -> None:
    with pytest.raises(InputError, match="needs a NIC"):
        verbs.Verbs(1, 1, [])
    core = verbs.Verbs(2, 2, [[("fake0", 1, 3)]])
    core.add(0, True, 0, "nobody")
    with pytest.raises(InputError, match="taken"):
        core.add(0, True, 0, "nobody")
    with pytest.raises(InputError, match="NIC 3"):
        core.add(1, True, 3, "nobody")
    with pytest.raises(InputError, match="no connection 1"):
        core.create(1)
    with pytest.raises(InputError, match="cannot be created"):
        core.create(0)
    core.allocate()
    with pytest.raises(InputError, match="already"):
        core.allocate()
    core.close()
    with pytest.raises(TransportError, match="closed"):
        core.allocate()


def test_a_device_with_small_completion_queues_gets_several() -> None:
    fake.configure(max_cqe=200)
    pairs = [(0, 1), (1, 0)] * 6
    with fake.workers(fake.table(*pairs)) as (a, b):
        assert fake.live()["cqs"] > 4
        sides: tuple[list[Flow], list[Flow]] = ([], [])
        for conn, (src, dst) in enumerate(pairs):
            sides[src].append(Flow(conn, True, [64], count=100))
            sides[dst].append(Flow(conn, False, [64], count=100))
        assert drive([(a, sides[0]), (b, sides[1])]) == 0
    fake.configure(max_cqe=8)
    with pytest.raises(GenieError, match="completions"):
        close_all()
