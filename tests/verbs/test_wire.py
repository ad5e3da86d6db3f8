"""The wire as the witness: packets on the bridge equal NCCL's schedule, for every algorithm.

One guest with eight Soft-RoCE devices; every collective with every algorithm and protocol, a send
to a receive, and a barrier run on 2 hosts of one rank and of 8, on 4 and on 8 hosts, and tcpdump on
the bridge sees all packets.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from . import pcap
from .combinations import Combination, combinations, expected, nccl_of
from .guest_folder import CASES, cluster_of

# The guest boots once for this file and its neighbour; on a loaded machine that takes minutes.
pytestmark = [pytest.mark.rdma, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def runs(guest: Path) -> dict[str, Any]:
    """What the guest left of each case: its answer, and the flows on the bridge."""
    return {
        name: (
            json.loads((guest / f"{name}.json").read_text()),
            pcap.read(guest / f"{name}.pcap"),
        )
        for name in CASES
        if (guest / f"{name}.json").exists()
    }


def host_of(address: str) -> int:
    """Device rxeN has 10.88.0.(N + 1)."""
    return int(address.rpartition(".")[2]) - 1


@pytest.fixture(params=list(CASES))
def case(request: pytest.FixtureRequest, runs: dict[str, Any]) -> Any:
    if request.param not in runs:
        pytest.skip("left out by GENIE_WIRE_CASES")
    machine, hosts, algorithms = CASES[request.param]
    return (*runs[request.param], cluster_of(machine, hosts), combinations(algorithms))


def test_the_run_is_whole(case: Any) -> None:
    answer, _, cluster, made = case
    assert answer["complete"] and answer["unfinished"] == 0 and answer["unposted"] == 0
    # A send and its receive are one operation each; all else runs on every rank.
    assert answer["ops"] == sum(2 if run.kind == "send" else cluster.n_ranks for run in made)
    assert "0 packets dropped by kernel" in answer["capture"]


def test_messages_on_the_wire_equal_the_schedule(case: Any) -> None:
    """Per QP: every message, its bytes, its order, its imm, its opcode."""
    _, flows, cluster, made = case
    want = expected(made, cluster, nccl_of(made, cluster.n_ranks))
    got: dict[tuple[int, int], Counter[tuple[int, ...]]] = defaultdict(Counter)
    for flow in flows:
        if not is_data(flow):
            continue
        for message in flow.messages:
            # RoCE: no adaptive routing, so one WRITE_WITH_IMM a message, imm its size (spec 4.2).
            assert message.imm == message.payload
        sizes = tuple(message.payload for message in flow.messages)
        got[host_of(flow.source), host_of(flow.destination)][sizes] += 1
    assert set(got) == set(want)
    for pair, sequences in want.items():
        assert got[pair] == sequences, (pair, got[pair] - sequences, sequences - got[pair])


def test_every_message_has_its_cts(case: Any) -> None:
    """64-byte WRITEs the other way, as many as messages, in rows of 512 bytes modulo 256."""
    _, flows, _, _ = case
    messages: Counter[tuple[int, int]] = Counter()
    cts: Counter[tuple[int, int]] = Counter()
    for flow in flows:
        pair = host_of(flow.source), host_of(flow.destination)
        if is_data(flow):
            messages[pair] += len(flow.messages)
            continue
        cts[pair[::-1]] += len(flow.messages)
        first = flow.messages[0].address
        for number, message in enumerate(flow.messages):
            assert message.imm is None and message.payload == 64
            assert message.address - first == number % 256 * 512
    assert messages == cts and sum(messages.values()) > 90


def test_addresses_walk_through_eight_slots(case: Any) -> None:
    """Remote addresses are slots of 512 KiB of one buffer a connection (spec 3.1)."""
    _, flows, _, _ = case
    for flow in flows:
        if is_data(flow):
            base = min(message.address for message in flow.messages)
            for message in flow.messages:
                assert (message.address - base) % 524288 == 0
                assert message.address - base < 8 * 524288


def test_default_traffic_class(case: Any) -> None:
    _, flows, _, _ = case
    assert {tos for flow in flows for tos in flow.tos} == {0}


def is_data(flow: pcap.Flow) -> bool:
    return any(message.imm is not None for message in flow.messages)


def test_combinations_are_told_apart() -> None:
    """The mapping from trace sizes to calls is exact, so the comparison above is of each one."""
    for machine, hosts, algorithms in CASES.values():
        ranks = cluster_of(machine, hosts).n_ranks
        made = [run for run in combinations(algorithms) if run.algorithm]
        assert len({(run.kind, run.cost_bytes(ranks)) for run in made}) == len(made)
        assert isinstance(made[0], Combination)
