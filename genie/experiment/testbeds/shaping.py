"""tc and nftables: what one direction of a link does, by the kernel's queueing disciplines.

A token bucket (tbf) gives the rate: accurate, with a bucket that is small against a chunk, and
segments cut to fit into it (`links.bucket_bytes`). A delay needs netem, which then does the rate
too. Loss is netem's, or nftables' on kernels without it, and always of single packets: a sender's
segments are kept to one packet there.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable

from genie.experiment.links import (
    GSO_BYTES,
    SMALL_UP_TO,
    Link,
    LinkState,
    Port,
    States,
    bucket_bytes,
)
from genie.experiment.testbeds.shell import FabricError, run, tried

#: Bytes that wait in a port beyond its bucket before packets are dropped, and packets for netem:
#: more than a worker's window, so that a lone flow loses nothing.
QUEUE_BYTES = 1_000_000
QUEUE_PACKETS = 100_000
#: The kernel's limits on segments (GSO_LEGACY_MAX_SIZE, GSO_MAX_SEGS).
_GSO_FULL, _SEGMENTS_FULL = 65_536, 65_535


def in_namespace(namespace: str, *words: str) -> list[str]:
    """Return a command line that runs `words` in a namespace ("" = this one)."""
    return ["ip", "netns", "exec", namespace, *words] if namespace else list(words)


def tool(name: str, namespace: str) -> list[str]:
    """Return ip(8) or tc(8) for a namespace."""
    return [name, "-n", namespace] if namespace else [name]


def has_netem(namespace: str, device: str) -> bool:
    """Whether the kernel has netem: tried on a device that nobody uses yet."""
    tried("modprobe", "-q", "sch_netem")
    where = ("dev", device, "root")
    if not tried(*tool("tc", namespace), "qdisc", "replace", *where, "netem", "delay", "1ms"):
        return False
    run(*tool("tc", namespace), "qdisc", "del", *where)
    return True


class Shaper:
    """Keeps what every port does, and changes what is asked for.

    Args:
        links: All links.
        netem: Whether the kernel has netem.
        always_netem: Use it for rates too: RoCE's windows overflow a byte-limited bucket.
    """

    def __init__(self, links: Iterable[Link], netem: bool, always_netem: bool = False) -> None:
        self._ports = {(link.name, way): getattr(link, way) for link in links for way in _WAYS}
        self._now: States = dict.fromkeys(self._ports, LinkState())
        self._netem = netem
        self._always_netem = always_netem

    def apply(self, states: States) -> None:
        """Change the ports whose state differs."""
        changed = {key: s for key, s in states.items() if s != self._now[key]}
        delayed = [key for key, s in changed.items() if s.delay_ns]
        if delayed and not self._netem:
            raise FabricError(
                f"link {delayed[0][0]}: this kernel has no netem, so nothing can be delayed"
            )
        ip: dict[str, list[str]] = defaultdict(list)
        tc: dict[str, list[str]] = defaultdict(list)
        for key, state in changed.items():
            port = self._ports[key]
            big = state.bits_per_s == 0 or state.bits_per_s > SMALL_UP_TO
            segments = 1 if state.loss else _SEGMENTS_FULL
            ip[port.namespace].append(
                f"link set dev {port.device} gso_max_size {_GSO_FULL if big else GSO_BYTES} "
                f"gso_max_segs {segments}"
            )
            line = self._qdisc(state)
            if line:
                tc[port.namespace].append(f"qdisc replace dev {port.device} root {line}")
            elif self._qdisc(self._now[key]):
                tc[port.namespace].append(f"qdisc del dev {port.device} root")
        for namespace, lines in ip.items():
            run(*tool("ip", namespace), "-batch", "-", text="\n".join(lines) + "\n")
        for namespace, lines in tc.items():
            run(*tool("tc", namespace), "-batch", "-", text="\n".join(lines) + "\n")
        for key, state in changed.items():
            if not self._netem and state.loss != self._now[key].loss:
                _drop(self._ports[key], state.loss)
            self._now[key] = state

    def _qdisc(self, state: LinkState) -> str:
        """Return the root discipline of a port, "" for none."""
        loss = state.loss if self._netem else 0.0
        if state.delay_ns or loss or (self._always_netem and state.bits_per_s):
            parts = ["netem", "limit", str(QUEUE_PACKETS)]
            if state.delay_ns:
                parts += ["delay", f"{state.delay_ns}ns"]
            if loss:
                parts += ["loss", f"{100 * loss:.6f}%"]
            if state.bits_per_s:
                parts += ["rate", f"{state.bits_per_s:.0f}bit"]
            return " ".join(parts)
        if state.bits_per_s:
            burst = bucket_bytes(state.bits_per_s)
            limit = max(QUEUE_BYTES, 4 * burst)
            return f"tbf rate {state.bits_per_s:.0f}bit burst {burst} limit {limit}"
        return ""

    def counters(self) -> dict[str, int]:
        """Return bytes, packets and drops of every port's discipline so far."""
        out: dict[str, int] = {}
        found: dict[str, dict[str, dict[str, int]]] = {}
        for (name, way), port in self._ports.items():
            if port.namespace not in found:
                text = run(*tool("tc", port.namespace), "-s", "-j", "qdisc", "show")
                found[port.namespace] = {
                    row["dev"]: row for row in json.loads(text or "[]") if row.get("root")
                }
            row = found[port.namespace].get(port.device, {})
            for key in ("bytes", "packets", "drops"):
                out[f"{name}.{way} {key}"] = int(row.get(key, 0))
        return out


_WAYS = ("tx", "rx")


def _drop(port: Port, loss: float) -> None:
    """Have nftables drop a share of the packets where a port's packets arrive."""
    table = f"genie_{port.peer_device}"
    nft = in_namespace(port.peer_namespace, "nft", "-f", "-")
    # Adding first makes deleting what may not be there no error.
    lines = [f"add table netdev {table}", f"delete table netdev {table}"]
    if loss:
        lines += [
            f"add table netdev {table}",
            f"add chain netdev {table} in {{ type filter hook ingress device "
            f'"{port.peer_device}" priority 0; }}',
            f"add rule netdev {table} in numgen random mod 1000000 < {round(loss * 1e6)} "
            "counter drop",
        ]
    run(*nft, text="\n".join(lines) + "\n")
