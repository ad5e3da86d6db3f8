"""The guest of tests/rig, for tests of this folder."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import genie

ROOT = Path(__file__).resolve().parents[2]


def rig() -> ModuleType:
    """tests/rig/guest.py; skips when no guest can be booted here."""
    name = "rig_guest"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, ROOT / "tests/rig/guest.py")
        assert spec is not None and spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    module = sys.modules[name]
    why = module.missing()
    if why:
        pytest.skip(why)
    return module


def in_guest(
    script: str, *arguments: object, devices: int, mods: str = "", then: str = "", **options: Any
) -> str:
    """Run a Python file of this folder (and another) in a guest with devices; its output."""
    words = " ".join(str(argument) for argument in arguments)
    command = (
        f". tests/rig/devices.sh; devices {devices}; mods {mods}; "
        f"{sys.executable} tests/verbs/{script} {words}"
    )
    if then:
        command += f" && {sys.executable} {then}"
    result = rig().run(
        command,
        env={"PYTHONPATH": str(Path(genie.__file__).parents[1])},
        cwd=str(ROOT),
        timeout=float(os.environ.get("GENIE_RIG_TIMEOUT", "600")),
        **options,
    )
    assert result.status == 0, result.output
    return str(result.output)
