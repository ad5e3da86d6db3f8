"""`check()`: the preflight of this host."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from genie.replay.preflight.host import check_host
from genie.replay.preflight.net import check_net
from genie.replay.preflight.rdma import check_rdma
from genie.replay.preflight.report import Report


def check(nics: Sequence[str] = ()) -> Report:
    """Look at this host before a run: CPU, clock, limits, interfaces, RDMA devices.

    Args:
        nics: Interfaces or RDMA devices ("eth0", "mlx5_0", "mlx5_0:1") that a run would use;
            empty looks at all of them.

    Returns:
        Findings, each ok, warn or fail with its fix.
    """
    report = Report()
    check_host(report)
    interfaces = tuple(name for name in nics if os.path.exists(Path("/sys/class/net") / name))
    devices = tuple(name for name in nics if name not in interfaces)
    if interfaces or not nics:
        check_net(report, interfaces)
    if devices or not nics:
        check_rdma(report, devices)
    return report
