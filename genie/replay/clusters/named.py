"""A cluster by the text of an option: a preset, `local:HOSTSxGPUS`, or a file."""

from __future__ import annotations

import os
from pathlib import Path

from genie.errors import InputError
from genie.replay.cluster import Cluster


def parse_cluster(text: str | None) -> Cluster | None:
    """Return the cluster that "PRESET:HOSTS", "local:HOSTSxGPUS" or a file describes."""
    if text is None:
        return None
    if os.path.exists(text):
        path = Path(text)
        if path.is_dir():
            raise InputError(f"--cluster {text!r} is a folder, not a graph dump or a log")
        content = path.read_text(errors="replace")
        if content.lstrip().startswith("<"):
            return Cluster.from_nccl_graph(path)
        return Cluster.from_nccl_log(path)
    name, colon, hosts = text.rpartition(":")
    if not colon:
        raise InputError(f"--cluster {text!r}: expected PRESET:HOSTS (h100x8:4) or a file")
    if name == "local":
        n_hosts, times, gpus = hosts.partition("x")
        if n_hosts.isdecimal() and (not times or gpus.isdecimal()):
            return Cluster.local(int(n_hosts), int(gpus or 1))
    elif hosts.isdecimal():
        return Cluster.preset(name, hosts=int(hosts))
    raise InputError(f"--cluster {text!r}: the number of hosts after ':' is not a whole number")
