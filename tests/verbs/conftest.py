"""Every test of this folder gives back all it took, by the extension's count and the library's."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

verbs = pytest.importorskip(
    "genie._core.verbs", reason="the verbs extension is not built (libibverbs-dev)"
)


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    from . import fake

    fake.configure()
    yield
    gc.collect()
    assert not any(verbs.live().values()), verbs.live()
    assert not any(fake.live().values()), fake.live()
    fake.configure()
