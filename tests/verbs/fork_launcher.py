"""Workers as forks of this process, for emulated guests where starting Python takes seconds."""

from __future__ import annotations

import os

from genie.replay.launchers.join import LAUNCHER_VAR


def use_forks() -> None:
    """Have `genie.replay` fork its local workers."""
    os.environ[LAUNCHER_VAR] = "fork"
