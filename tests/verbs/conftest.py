"""Every test of this folder gives back all it took, by the extension's count and the library's."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

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


@pytest.fixture(scope="session")
def guest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Boot the guest once for all that needs no virtual clock; the folder with what it left."""
    from .boot import in_guest
    from .guest_folder import device_folder, wire_folder

    long = bool(os.environ.get("GENIE_RIG_LONG"))
    folder = device_folder(wire_folder(tmp_path_factory.mktemp("guest")), long)
    in_guest(
        "guest_wire.py", folder, devices=8, shares=[str(folder)], memory="2G", smp=2,
        mods="sch_netem", then=f"tests/verbs/device_runs.py {folder} rxe0 rxe1 --soft",
    )  # fmt: skip
    return folder
