"""Cases of the virtual clock whose times can be worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from genie._core.engine import BLOCKED, CONN, MESSAGES, NETWORK_EVENT, OP, OPS, STREAM, Engine
from genie._core.links import nic_links
from genie.errors import InputError, ScheduleError
from tests.engine.build import (
    PEEK,
    RECV,
    SEND,
    add_graph,
    chain,
    program,
    ring_all_reduce,
    ring_engine,
)
from tests.reference.engine import fair_rates


def hosts_engine(n, ranks, rows, *, rate=1.0, latency_ns=0, events=None, change=None, **options):
    """n ranks on n hosts; `ranks`: rank -> streams of one program; rows: (src, dst, channel)."""
    e = Engine(clock="virtual")
    e.set_gpu(**options.pop("gpu", {}))
    c = e.add_communicator(np.arange(n))
    for r in range(n):
        if r in ranks:
            p = e.add_program(*program(ranks[r]), options.get("window", 8))
            add_graph(e, r, [(2, 0, p, c, [])], host=r)
        else:
            add_graph(e, r, [(0, 0, -1, -1, [])], host=r)
    table = np.array([(s, d, c, ch, 0, 0, 0, -1) for s, d, ch in rows], dtype=CONN)
    e.add_connections(table)
    net = nic_links(table, range(n), rate, latency_ns)
    if change is not None:
        change(net)
    e.set_network(**net, events=events)
    return e


def completed(e, src, dst, channel=0):
    c = e.connections()
    m = e.messages()
    of = c[m["connection"]]
    mask = (m["direction"] == 0) & (of["src"] == src) & (of["dst"] == dst)
    mask &= of["channel"] == channel
    return m["completed_ns"][mask].tolist()


def test_ping():
    e = hosts_engine(
        2,
        {
            0: [(0, 0, 0, [(SEND, 1, 1000), (RECV, 1, 1000, 1)])],
            1: [(0, 0, 0, [(RECV, 0, 1000), (SEND, 0, 1000, 1)])],
        },
        [(0, 1, 0), (1, 0, 0)],
        rate=4.0,
        latency_ns=700,
    )
    assert e.run() == "done"
    # The CTS takes 700 ns, each message 250 + 700; the answer's CTS is long there.
    assert completed(e, 0, 1) == [700 + 950]
    assert completed(e, 1, 0) == [700 + 950 + 950]
    assert e.ops()["end_ns"].tolist() == [700 + 950 + 950, 700 + 950]


def test_no_cts_latency():
    e = hosts_engine(
        2,
        {0: [(0, 0, 0, [(SEND, 1, 1000)])], 1: [(0, 0, 0, [(RECV, 0, 1000)])]},
        [(0, 1, 0)],
        latency_ns=700,
        change=lambda net: net.update(cts_latency_ns=0),
    )
    assert e.run() == "done"
    assert completed(e, 0, 1) == [1700]


def test_two_flows_on_one_link_get_half_each():
    e = hosts_engine(
        3,
        {
            0: [(0, 0, 0, [(SEND, 2, 1000)])],
            1: [(0, 0, 0, [(SEND, 2, 3000)])],
            2: [(0, 0, 0, [(RECV, 0, 1000)]), (0, 1, 0, [(RECV, 1, 3000)])],
        },
        [(0, 2, 0), (1, 2, 0)],
    )
    assert e.run() == "done"
    assert completed(e, 0, 2) == [2000]  # 1000 bytes at 1/2
    assert completed(e, 1, 2) == [4000]  # 1000 bytes at 1/2, then 2000 at 1


def test_three_flows_on_one_link_of_three_bytes_a_ns():
    ranks = {r: [(0, 0, 0, [(SEND, 3, 1000)])] for r in range(3)}
    ranks[3] = [(0, r, 0, [(RECV, r, 1000)]) for r in range(3)]
    e = hosts_engine(4, ranks, [(r, 3, 0) for r in range(3)], rate=3.0)
    assert e.run() == "done"
    assert [completed(e, r, 3) for r in range(3)] == [[1000]] * 3


def test_max_min_is_not_an_equal_split():
    # 0 -> 2 and 1 -> 2 share the way into 2; 1 -> 3 shares the way out of 1, which is slow.
    ranks = {
        0: [(0, 0, 0, [(SEND, 2, 6000)])],
        1: [(0, 0, 0, [(SEND, 2, 1000)]), (1, 0, 0, [(SEND, 3, 1000)])],
        2: [(0, 0, 0, [(RECV, 0, 6000)]), (0, 1, 0, [(RECV, 1, 1000)])],
        3: [(1, 0, 0, [(RECV, 1, 1000)])],
    }

    def slow(net):
        net["rate"][net["names"].index("h1.nic0.tx")] = 0.5

    e = hosts_engine(4, ranks, [(0, 2, 0), (1, 2, 0), (1, 3, 1)], change=slow)
    assert e.run() == "done"
    assert completed(e, 1, 2) == [4000]  # 0.25 each
    assert completed(e, 1, 3, 1) == [4000]
    assert completed(e, 0, 2) == [7000]  # 0.75 for 4000 ns, then 1


def test_messages_of_one_connection_follow_without_a_gap():
    n = 1000
    e = hosts_engine(
        2,
        {
            0: [(0, 0, 0, [(SEND, 1, 10, i) for i in range(n)])],
            1: [(0, 0, 0, [(RECV, 0, 10, i) for i in range(n)])],
        },
        [(0, 1, 0)],
        rate=3.0,
    )
    assert e.run() == "done"
    # 10/3 ns each: no rounding adds up while the next message waits in the FIFO.
    assert completed(e, 0, 1) == [-(-10 * (i + 1) // 3) for i in range(n)]


def test_the_window_limits_what_is_in_flight():
    n = 6
    for window, gap in ((1, 2100), (2, 1050)):
        e = hosts_engine(
            2,
            {
                0: [(0, 0, 0, [(SEND, 1, 100, i) for i in range(n)])],
                1: [(0, 0, 0, [(RECV, 0, 100, i) for i in range(n)])],
            },
            [(0, 1, 0)],
            latency_ns=1000,
            window=window,
        )
        assert e.run() == "done"
        times = completed(e, 0, 1)
        # A slot comes back after its message, its latency and that of the next CTS.
        assert times[0] == 1000 + 100 + 1000
        assert times[window] - times[0] == 2100
        assert (times[n - 1] - times[0]) / (n - 1) == pytest.approx(gap, rel=0.2)


def test_two_steps_a_message_count_twice():
    times = []
    for steps in (1, 2):
        e = hosts_engine(
            2,
            {
                0: [(0, 0, 0, [(SEND, 1, 100, i, steps) for i in range(8)])],
                1: [(0, 0, 0, [(RECV, 0, 100, i, steps) for i in range(8)])],
            },
            [(0, 1, 0)],
            latency_ns=10_000,
        )
        assert e.run() == "done"
        times.append(completed(e, 0, 1)[-1])
    assert times[0] == 10_000 + 800 + 10_000
    assert times[1] > 2 * times[0] - 20_000  # four at a time


def test_zero_byte_messages_are_sent_and_take_the_latency():
    e = hosts_engine(
        2,
        {
            0: [(0, 0, 0, [(SEND, 1, 0), (SEND, 1, 0, 1)])],
            1: [(0, 0, 0, [(RECV, 0, 0), (RECV, 0, 0, 1)])],
        },
        [(0, 1, 0)],
        latency_ns=500,
    )
    assert e.run() == "done"
    assert completed(e, 0, 1) == [1000, 1000]
    assert e.messages()["nbytes"].tolist() == [0] * 4


def test_an_empty_program_and_a_communication_without_one_end_in_order():
    e = Engine(clock="virtual")
    c = e.add_communicator([0])
    p = e.add_program(np.zeros(0, STREAM), np.zeros(0, OP))
    add_graph(
        e, 0, [(1, 5, -1, -1, []), (2, 0, p, c, [0]), (2, 0, -1, -1, [1]), (1, 7, -1, -1, [2])]
    )
    assert e.run() == "done"
    assert e.ops()["end_ns"].tolist() == [5, 5, 5, 12]


def test_phases_of_a_channel_follow_each_other_and_channels_do_not():
    big, small = 10_000, 100
    ranks = {
        0: [
            (0, 0, 0, [(SEND, 1, big)]),
            (0, 0, 1, [(SEND, 2, small)]),
            (1, 0, 1, [(SEND, 2, small)]),
        ],
        1: [(0, 0, 0, [(RECV, 0, big)])],
        2: [(0, 0, 1, [(RECV, 0, small)]), (1, 0, 1, [(RECV, 0, small)])],
    }
    # Receiving makes the phase wait: 1 answers before phase 1 may start.
    ranks[0][0][3].append((RECV, 1, small, 1))
    ranks[1][0][3].append((SEND, 0, small, 1))
    e = hosts_engine(3, ranks, [(0, 1, 0), (0, 2, 0), (0, 2, 1), (1, 0, 0)])
    assert e.run() == "done"
    # Out of 0: `big` shares with the small message of channel 1 until that ends.
    assert completed(e, 0, 2, 1) == [200]
    assert completed(e, 0, 1) == [10_100]
    assert completed(e, 1, 0) == [10_200]
    assert completed(e, 0, 2) == [10_300]


def test_peek_waits_and_does_not_consume():
    e = hosts_engine(
        3,
        {
            0: [(0, 0, 0, [(SEND, 1, 1000)])],
            1: [
                (
                    0,
                    0,
                    0,
                    [
                        (PEEK, 0, 0),
                        (SEND, 2, 10, 1),
                        (PEEK, 0, 0, 2),
                        (RECV, 0, 1000, 3),
                        (SEND, 2, 20, 3),
                    ],
                )
            ],
            2: [(0, 0, 0, [(RECV, 1, 10), (RECV, 1, 20, 1)])],
        },
        [(0, 1, 0), (1, 2, 0)],
    )
    assert e.run() == "done"
    assert completed(e, 1, 2) == [1010, 1030]
    assert e.connections()["received"].tolist() == [1, 2]


def test_peek_without_a_receive_is_refused():
    e = Engine(clock="virtual")
    with pytest.raises(ScheduleError, match="never receives it"):
        e.add_program(*program([(0, 0, 0, [(PEEK, 0, 0)])]))


def test_gpu_time_of_moves():
    gpu = {"call_ns": 100, "copy_bytes_per_ns": 2.0, "reduce_bytes_per_ns": 1.0}
    e = hosts_engine(
        3,
        {
            0: [(0, 0, 0, [(SEND, 1, 1000), (SEND, 1, 1000)])],
            1: [(0, 0, 0, [(RECV, 0, 1000), (SEND, 2, 1000), (RECV, 0, 1000), (SEND, 2, 1000)])],
            2: [(0, 0, 0, [(RECV, 1, 1000), (RECV, 1, 1000)])],
        },
        [(0, 1, 0), (1, 2, 0)],
        rate=1000.0,
        gpu=gpu,
    )
    assert e.run() == "done"
    posted = e.messages()["posted_ns"][e.messages()["direction"] == 0]
    first, second = 100 + 500, 100 + 500 + 500  # the call's fixed time once
    assert completed(e, 0, 1) == [first + 1, second + 1]
    a = first + 1 + 100 + 1000  # receive, reduce, send: at the reduce rate
    b = max(a, second + 1) + 1000
    assert completed(e, 1, 2) == [a + 1, b + 1]
    ends = dict(zip(e.ops()["rank"].tolist(), e.ops()["end_ns"].tolist(), strict=True))
    c = a + 1 + 100 + 500
    assert ends[2] == max(c, b + 1) + 500
    assert ends[0] == second  # the stream goes on once the message is in its FIFO
    assert len(posted) == 4


def test_ring_of_eight_with_one_in_flight_and_one_slow_link():
    def slow(net):
        at = net["names"].index("h3.nic0.tx")
        net["latency_ns"][at] = 50_000_000

    for window in (1, 2, 8):
        e = ring_engine(8, 65536, loops=3, window=window, prepare=slow)
        assert e.run() == "done", e.explain()
        assert (e.connections()["sent"] == 3 * 14).all()


def test_ring_all_reduce_takes_the_formula():
    n, nbytes, rate, latency = 8, 65536, 64.0, 1000
    e = ring_engine(n, nbytes, rate=rate, latency_ns=latency)
    assert e.run() == "done"
    assert e.now_ns == latency + 2 * (n - 1) * (latency + 1024)


def test_a_chain_of_pipeline_stages():
    # bug report 26: 0 -> 1 -> 2 -> 3, eight micro-batches, each a node of its own.
    ranks, batches = 4, 8
    e = Engine(clock="virtual")
    c = e.add_communicator(range(ranks))
    rows = []
    for r in range(ranks):
        nodes = []
        out = e.add_program(*program([(0, 0, 0, [(SEND, (r + 1) % ranks, 4096, 0, 1, 1)])]))
        into = e.add_program(*program([(0, 0, 0, [(RECV, (r - 1) % ranks, 4096, 0, 1, 1)])]))
        for _ in range(batches):
            if r > 0:
                nodes.append((2, 0, into, c, [len(nodes) - 1] if nodes else []))
            nodes.append((1, 1000, -1, -1, [len(nodes) - 1] if nodes else []))
            if r < ranks - 1:
                nodes.append((2, 0, out, c, [len(nodes) - 1]))
        add_graph(e, r, nodes, host=r)
        if r < ranks - 1:
            rows.append((r, r + 1, c, 0, 1, 0, 0, -1))
    table = np.array(rows, dtype=CONN)
    e.add_connections(table)
    e.set_network(**nic_links(table, range(ranks), 4.096, 0))
    assert e.run() == "done"
    # A receive is announced when its node starts, so each later stage takes 1000 + 1000 ns a batch.
    assert e.now_ns == 1000 + 2000 * (ranks - 1) + 2000 * (batches - 1)


def test_overlapping_communicators_progress_by_themselves():
    # bug report 23: ranks 0-3 in one group, 2-3 also in another.
    e = Engine(clock="virtual")
    world = e.add_communicator(range(4))
    pair = e.add_communicator([2, 3])
    for r in range(4):
        a = e.add_program(*ring_all_reduce(4, r, 1024))
        nodes = [(2, 0, a, world, [])]
        if r >= 2:
            b = e.add_program(*ring_all_reduce(2, r - 2, 1024))
            nodes.append((2, 0, b, pair, []))
        add_graph(e, r, nodes, host=r)
    rows = [(r, (r + 1) % 4, world, 0, 0, 0, 0, -1) for r in range(4)]
    rows += [(2, 3, pair, 0, 0, 0, 0, -1), (3, 2, pair, 0, 0, 0, 0, -1)]
    table = np.array(rows, dtype=CONN)
    e.add_connections(table)
    e.set_network(**nic_links(table, range(4), 1.0, 100))
    assert e.run() == "done"
    assert len(e.ops()) == 6


def test_a_link_that_degrades_at_a_time():
    def run(events):
        e = hosts_engine(
            2,
            {0: [(0, 0, 0, [(SEND, 1, 1000)])], 1: [(0, 0, 0, [(RECV, 0, 1000)])]},
            [(0, 1, 0)],
            events=np.array(events, dtype=NETWORK_EVENT),
        )
        assert e.run() == "done"
        return completed(e, 0, 1)[0]

    assert run([]) == 1000
    assert run([(400, 0, 0.5)]) == 400 + 1200
    assert run([(400, 0, 0.0), (900, 0, 1.0)]) == 1500  # down for 500 ns
    assert run([(400, 0, 2.0)]) == 1000  # the other link is the bottleneck then
    assert run([(5000, 0, 0.0)]) == 1000


def test_a_failed_link_is_blamed():
    e = ring_engine(4, 65536, loops=100, events=np.array([(50_000, 1, 0.0)], NETWORK_EVENT))
    assert e.run() == "stalled"
    text = e.explain(lambda rank, node: "all_reduce 'grad'")
    assert "link h1.nic0.tx is down" in text
    assert "rank 2 waits for message" in text
    assert "from rank 1: all_reduce 'grad'" in text
    blocked = e.blocked()
    assert blocked.dtype == BLOCKED
    stuck = blocked[(blocked["rank"] == 1) & (blocked["peer"] == 2)]
    assert len(stuck) == 1
    assert stuck["reason"][0] == 2
    assert e.connections()["sent"][1] == stuck["message"][0]
    assert (e.ops()["end_ns"] == -1).any()


def test_a_cycle_is_a_stall_and_is_named():
    e = Engine(clock="virtual")
    add_graph(e, 3, [(1, 10, -1, -1, []), (0, 0, -1, -1, [0, 2]), (0, 0, -1, -1, [1])])
    assert e.run() == "stalled"
    assert "rank 3, iteration 0: 2 nodes left: node 1, node 2" in e.explain()
    e = Engine(clock="wall")
    add_graph(e, 3, [(0, 0, -1, -1, [0])])
    assert e.run() == "stalled"


def test_log_limits_are_counted():
    e = ring_engine(4, 1024, loops=10, nodes=5)
    assert e.run(ops_limit=7, messages_limit=20) == "done"
    assert len(e.ops()) == 7
    assert len(e.messages()) == 20
    assert e.dropped == (4 * 5 - 7, 2 * 4 * 5 * 10 * 6 - 20)
    e = ring_engine(4, 1024)
    assert e.run(log_messages="none", ops_limit=0) == "done"
    assert len(e.ops()) == len(e.messages()) == 0
    e = ring_engine(4, 1024)
    assert e.run(log_receives=False) == "done"
    assert (e.messages()["direction"] == 0).all()
    assert len(e.messages()) == 24


def test_rows_of_messages_point_at_their_op_and_connection():
    e = ring_engine(3, 1024, nodes=4)
    assert e.run() == "done"
    m, ops, c = e.messages(), e.ops(), e.connections()
    assert m.dtype == MESSAGES and ops.dtype == OPS
    end = np.where(m["direction"] == 0, c["src"][m["connection"]], c["dst"][m["connection"]])
    assert (ops["rank"][m["op"]] == end).all()
    assert (m["posted_ns"] >= ops["start_ns"][m["op"]]).all()


def test_many_flows_against_progressive_filling():
    # All to all of 12 hosts with random link rates against the plain filling.
    rng = np.random.default_rng(5)
    for _ in range(5):
        n = 12
        pairs = [(s, d) for s in range(n) for d in range(n) if s != d and rng.random() < 0.6]
        sizes = {p: int(rng.integers(1, 200_000)) for p in pairs}
        ranks = {
            r: [(0, i, 0, [(SEND, d, sizes[s, d])]) for i, (s, d) in enumerate(pairs) if s == r]
            + [(0, i, 0, [(RECV, s, sizes[s, d])]) for i, (s, d) in enumerate(pairs) if d == r]
            for r in range(n)
        }
        rates = rng.choice([0.5, 1.0, 3.0, 12.5], 2 * n)

        def change(net, rates=rates):
            net["rate"][:] = rates[: len(net["rate"])]

        rows = [(s, d, 0) for s, d in pairs]
        e = hosts_engine(n, ranks, rows, change=change)
        assert e.run() == "done"
        found = {p: completed(e, *p)[0] for p in pairs}
        net = nic_links(
            np.array([(s, d, 0, 0, 0, 0, 0, -1) for s, d in pairs], CONN), range(n), 1, 0
        )
        paths = {p: net["path"][2 * i : 2 * i + 2].tolist() for i, p in enumerate(pairs)}
        remaining = {p: float(sizes[p]) for p in pairs}
        capacity = [float(r) for r in rates]
        now, expected = 0.0, {}
        while remaining:
            share = fair_rates({p: paths[p] for p in remaining}, capacity)
            step = min(np.ceil(remaining[p] / share[p] - 1e-3) for p in remaining)
            now += step
            for p in list(remaining):
                remaining[p] -= share[p] * step
                if remaining[p] / share[p] <= 1e-3:
                    expected[p] = int(now)
                    del remaining[p]
        assert found == expected


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (dict(kind=[3]), "kind 3"),
        (dict(delay=[-1]), "delay of -1 ns"),
        (dict(program=[5], kind=[2]), "program 5 of 0"),
        (dict(ptr=[0, 2]), "dep_indptr"),
        (dict(ptr=[0, 1], deps=[4]), "dependency on node 4"),
        (dict(delay=[1, 2]), "differ in length"),
    ],
)
def test_bad_graphs_are_refused(change, text):
    given = dict(kind=[1], delay=[1], program=[-1], communicator=[-1], ptr=[0, 0], deps=[])
    given.update(change)
    e = Engine()
    with pytest.raises(InputError, match=text):
        e.add_rank(
            0,
            given["kind"],
            given["delay"],
            given["program"],
            given["communicator"],
            given["ptr"],
            np.array(given["deps"], np.uint32),
        )


def test_bad_programs_are_refused():
    streams, ops = program([(0, 0, 0, [(SEND, 1, 8)]), (0, 1, 0, [(SEND, 1, 8)])])
    with pytest.raises(ScheduleError, match="both send to rank 1"):
        Engine().add_program(streams, ops)
    streams["phase"] = [0, 1]
    Engine().add_program(streams, ops)
    with pytest.raises(ScheduleError, match="ends at op 2 of 1"):
        Engine().add_program(streams, ops[:1])
    bad = ops.copy()
    bad["kind"] = 7
    with pytest.raises(ScheduleError, match="kind 7"):
        Engine().add_program(streams, bad)
    bad = ops.copy()
    bad["steps"] = 0
    with pytest.raises(ScheduleError, match="no FIFO step"):
        Engine().add_program(streams, bad)


def test_messages_of_different_sizes_on_the_two_sides_fail():
    e = hosts_engine(
        2,
        {0: [(0, 0, 0, [(SEND, 1, 1000)])], 1: [(0, 0, 0, [(RECV, 0, 999)])]},
        [(0, 1, 0)],
    )
    assert e.run() == "failed"
    assert "EBADMSG" in e.explain()


def test_networks_that_do_not_fit_are_refused():
    def build(**change):
        e = Engine(clock="virtual")
        table = np.array([(0, 1, 0, 0, 0, 0, 0, -1)], dtype=CONN)
        e.add_connections(table)
        e.set_network(**{**nic_links(table, [0, 1], 1.0, 0), **change})

    build()
    for change, text in [
        (dict(rate=[1.0]), "link rates"),
        (dict(rate=[1.0, -1.0, 1.0, 1.0]), "negative"),
        (dict(path=[0, 9]), "path uses link"),
        (dict(path_indptr=[0, 0], path=[]), "without a link"),
        (dict(events=np.array([(1, 7, 1.0)], NETWORK_EVENT)), "network event"),
        (dict(names=["a"]), "names"),
    ]:
        with pytest.raises(InputError, match=text):
            build(**change)
    with pytest.raises(InputError, match="clock"):
        Engine(clock="sundial")


def test_start_send_and_gap_times():
    gpu = {"start_ns": 40, "send_ns": 300, "move_ns": 7, "gap_ns": 25}
    e = hosts_engine(
        2,
        {
            0: [(0, 0, 0, [(SEND, 1, 1000), (SEND, 1, 0), (SEND, 1, 500)])],
            1: [(0, 0, 0, [(RECV, 0, 1000), (RECV, 0, 0), (RECV, 0, 500)])],
        },
        [(0, 1, 0)],
        rate=10.0,
        gpu=gpu,
    )
    assert e.run() == "done"
    first = 40 + 7 + 300 + 100
    # The empty message waits for the gap, too, but is followed at once.
    assert completed(e, 0, 1) == [first, first + 25, first + 25 + 50]
    rank0 = e.ops()[e.ops()["rank"] == 0]
    assert rank0["end_ns"].tolist() == [40 + 3 * 7]  # the stream does not wait for the network


def test_early_messages_leave_before_their_gpu_time():
    e = Engine(clock="virtual")
    e.set_gpu(copy_bytes_per_ns=1.0, reduce_bytes_per_ns=1.0, early=True)
    e.set_local(latency_ns=5)
    c = e.add_communicator(range(3))
    made = [
        [(SEND, 1, 100)],
        [(RECV, 0, 100), (SEND, 2, 100)],
        [(RECV, 1, 100)],
    ]
    for rank, ops in enumerate(made):
        add_graph(e, rank, [(2, 0, e.add_program(*program([(0, 0, 0, ops)])), c, [])])
    assert e.run() == "done"
    # 100 ns of work each, begun one hop of 5 ns after the rank before.
    ends = dict(zip(e.ops()["rank"].tolist(), e.ops()["end_ns"].tolist(), strict=True))
    assert ends == {0: 100, 1: 105, 2: 110}


def test_a_large_ring_with_shared_nics():
    # 64 ranks on 8 hosts, rank order ring: 7 of 8 hops inside a host.
    n, per = 64, 8
    e = Engine(clock="virtual")
    e.set_local(latency_ns=10, bytes_per_ns=100.0)
    c = e.add_communicator(range(n))
    for r in range(n):
        p = e.add_program(*ring_all_reduce(n, r, 4096, 2, (0, 1)))
        add_graph(e, r, [(2, 0, p, c, d) for d in chain(2)], host=r // per)
    rows = [
        (r, (r + 1) % n, c, ch, 0, 0, 0, -1)
        for ch in (0, 1)
        for r in range(n)
        if r // per != (r + 1) % n // per
    ]
    table = np.array(rows, dtype=CONN)
    e.add_connections(table)
    e.set_network(**nic_links(table, np.arange(n) // per, 50.0, 1000))
    assert e.run() == "done"
    assert e.connections()["sent"].sum() == 2 * 2 * 2 * n * 2 * (n - 1)
    assert len(e.messages()) == 2 * 2 * 2 * 2 * 8 * 2 * (n - 1)
