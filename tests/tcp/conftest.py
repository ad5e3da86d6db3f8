from __future__ import annotations

import gc

import pytest

from genie._core import tcp


@pytest.fixture(autouse=True)
def nothing_left():
    """Every test gives back its transports and sockets."""
    before = tcp.live()
    yield
    gc.collect()
    assert tcp.live() == before
