from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genie.replay.clocks import SHARED, ClockFit, Exchange, clock_identity, fit

SECOND = 1_000_000_000
T0 = 123 * SECOND


def exchanges(offset, drift, times, rng, there=(5_000, 60_000), back=(5_000, 60_000)):
    """What a clock with this offset and drift answers over a network with these delays, ns."""
    out = []
    for t in times:
        go, come = rng.uniform(*there), rng.uniform(*back)
        seen = t + go + offset + drift * (t + go - T0)
        out.append(Exchange(int(t), int(t + go + come), int(seen)))
    return out


def around(run_s):
    """Times of 32 exchanges before, one a second during, 32 after a run."""
    before = T0 + np.arange(32) * 200_000
    during = T0 + np.arange(1, int(run_s)) * SECOND
    after = T0 + int(run_s * SECOND) + np.arange(32) * 200_000
    return np.concatenate([before, during, after])


@settings(max_examples=60, deadline=None)
@given(
    st.floats(-1e15, 1e15),
    st.floats(-5e-4, 5e-4),
    st.sampled_from([0.01, 1.0, 10.0, 200.0]),
    st.integers(0, 2**32 - 1),
    st.floats(0, 500_000),
)
def test_truth_is_within_the_bound(offset, drift, run_s, seed, asymmetry):
    """Whatever the offset, drift and asymmetry of the network, the stated bound holds."""
    rng = np.random.default_rng(seed)
    got = fit(
        exchanges(offset, drift, around(run_s), rng, there=(5_000 + asymmetry, 90_000 + asymmetry)),
        T0, T0 + int(run_s * SECOND),
    )  # fmt: skip
    assert got.steady
    # float64 holds an offset of 1e15 ns to 0.125 ns
    for at in np.linspace(0, run_s * SECOND, 7):
        t = T0 + int(at)
        assert abs(got.offset_at(t) - (offset + drift * (t - T0))) <= got.bound_ns + 1
    assert got.bound_ns < (asymmetry + 100_000) * (1.5 if run_s >= 1 else 3)


def test_more_symmetric_network_gives_a_tight_bound():
    rng = np.random.default_rng(1)
    got = fit(exchanges(5e6, 2e-5, around(10), rng), T0, T0 + 10 * SECOND)
    assert got.bound_ns < 30_000
    assert abs(got.drift - 2e-5) < 1e-6


def test_step_of_the_clock_is_noticed_and_covered():
    rng = np.random.default_rng(2)
    first = exchanges(1_000, 0, around(2)[:32], rng)
    later = exchanges(1_000 + 50_000_000, 0, around(2)[32:], rng)
    got = fit(first + later, T0, T0 + 2 * SECOND)
    assert not got.steady
    at_start, at_end = got.offset_at(T0) - 1_000, got.offset_at(T0 + 2 * SECOND) - 50_001_000
    assert max(abs(at_start), abs(at_end)) <= got.bound_ns


def test_one_exchange_is_enough():
    got = fit([Exchange(T0, T0 + 1_000, T0 + 77_500)], T0, T0 + SECOND)
    assert got.offset_ns == pytest.approx(77_000) and got.drift == 0
    # A second later the drift could have added MAX_DRIFT seconds per second.
    assert got.bound_ns == pytest.approx(501 + 1e-3 * SECOND, rel=0.01)


def test_correction_puts_events_on_one_timeline():
    offset, drift = 5_000_000.0, 1e-4
    got = ClockFit(T0, offset, drift, 0.0)
    true = np.array([0, 1_000, 3 * SECOND], dtype=np.int64)
    zero_worker = T0 + 5_000_000
    worker = np.rint(true + drift * true).astype(np.int64)
    np.testing.assert_array_equal(got.correct(worker, zero_worker, T0), true)
    assert got.correct(np.array([-1, 5]), zero_worker, T0)[0] == -1
    same = np.array([1, 2])
    assert SHARED.correct(same, T0, T0) is same


def test_own_clock_has_a_name():
    assert clock_identity() == clock_identity() != ""
