"""Settings that every test shares; its place puts tests/ on the path (golden_data, reference)."""

import os
import signal

import pytest
from hypothesis import HealthCheck, settings

# A shell's background job ignores SIGINT and its children inherit that; tests send it on purpose.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Timing of a shared machine is no property of the code. In CI the same examples every time.
settings.register_profile(
    "genie", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.register_profile("genie-ci", settings.get_profile("genie"), derandomize=True)
settings.load_profile("genie-ci" if os.environ.get("CI") else "genie")


#: Folders whose tests run real processes and networks in real time.
REAL_TIME = ("tests/runtime", "tests/tcp", "tests/verbs", "tests/cli", "tests/engine/test_wall")


def pytest_addoption(parser):
    """RDMA devices of this machine, for the tests that otherwise run in a guest."""
    parser.addoption(
        "--device", action="append", default=[], metavar="NAME",
        help="a real RDMA device of this machine (mlx5_0); give two, joined by a network",
    )  # fmt: skip


def pytest_collection_modifyitems(items):
    """Run a real-time test that fails once more; pytest's summary counts these reruns."""
    for item in items:
        if any(folder in item.nodeid for folder in REAL_TIME):
            item.add_marker(pytest.mark.flaky(reruns=1))
