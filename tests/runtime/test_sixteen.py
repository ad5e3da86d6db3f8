"""Sixteen hosts in namespaces: real traces over kernel TCP, with progress, network-limited."""

from __future__ import annotations

import pytest

import genie
from corpus_data import corpus
from genie.experiment.links import LinkState, parse_rate
from genie.experiment.testbeds.namespaces import Namespaces
from genie.replay.record_health import cpu_limits
from runtime.netns import needs_namespaces

pytestmark = [pytest.mark.slow, pytest.mark.netns, pytest.mark.timeout(1800)]

HOSTS = 16
#: What sixteen workers on two cores keep up with: the links, not the cores, set the pace.
RATES = {"et-micro-all_to_all-16": "10mbit", "et-resnet50-dp64": "50mbit"}


def name_and_plan(name: str):
    """The trace of a folder of the corpus, planned for sixteen hosts in a ring."""
    trace = genie.load(corpus(name))
    return genie.plan(trace, genie.Cluster.local(HOSTS, trace.world_size // HOSTS))


@pytest.mark.parametrize(("name", "rate"), RATES.items())
def test_real_traces_on_sixteen_hosts(name, rate, capsys):
    needs_namespaces()
    plan = name_and_plan(name)
    seen: list[tuple[int, int]] = []
    with Namespaces(f"star:{HOSTS}") as net:
        state = LinkState(parse_rate(rate))
        net.apply({(link.name, way): state for link in net.links for way in ("tx", "rx")}, 0, None)
        rec = genie.replay(
            plan,
            net.endpoints,
            progress=lambda done, total: seen.append((done, total)),
            timeout=180,
            options={"congestion": net.congestion},
        )
        links = net.counters()
    with capsys.disabled():
        print(f"\n{name}, {HOSTS} hosts at {rate}: {rec.summary()}")
        print(f"limits: {cpu_limits(rec) or 'the network'}; progress {len(seen)} times, last "
              f"{seen[-1] if seen else None}; drops {dropped(links)}")  # fmt: skip
    assert rec.complete and (rec.messages["status"] == 0).all()
    sends = rec.messages[rec.messages["direction"] == 0]
    assert len(sends) == plan.messages and sends["nbytes"].sum() == plan.nbytes
    done = [d for d, _ in seen]
    assert len(done) > 1 and done == sorted(done) and seen[-1][0] <= seen[-1][1]
    assert cpu_limits(rec) == []


def dropped(counters) -> int:
    return sum(value for key, value in counters.items() if key.endswith(" drops"))
