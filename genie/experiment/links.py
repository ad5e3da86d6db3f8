"""Links of a testbed: what they can do, how a rate becomes a token bucket, who is meant by name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from genie.errors import InputError
from genie.units import parse_time

if TYPE_CHECKING:
    from genie.experiment.spec import LinkSpec

_RATE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?)bit(?:/s)?", re.IGNORECASE)
_SCALE = {"": 1, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}

#: Segments larger than this are cut by the sender, so that a bucket of 20 kB lets no burst pass:
#: measured, a chunk sent after a pause is then at most 0.7 ms early at 200 Mbit/s.
GSO_BYTES = 16_000
SMALL_BUCKET = 20_000
#: Above this rate a small bucket costs too much CPU; a bucket holds what the link sends in 1 ms.
SMALL_UP_TO = 1e9


@dataclass(frozen=True)
class LinkState:
    """One direction of a link.

    Attributes:
        bits_per_s: Rate; 0 is unshaped.
        delay_ns: Delay of every packet.
        loss: Share of packets dropped, 0 to 1.
    """

    bits_per_s: float = 0.0
    delay_ns: int = 0
    loss: float = 0.0

    def updated(self, spec: LinkSpec) -> LinkState:
        """Return this state with what `spec` says."""
        out = self
        if spec.rate is not None:
            out = replace(out, bits_per_s=parse_rate(spec.rate))
        if spec.delay is not None:
            out = replace(out, delay_ns=parse_time(spec.delay) if spec.delay != "0" else 0)
        if spec.loss is not None:
            out = replace(out, loss=parse_share(spec.loss))
        return out


def parse_rate(text: str) -> float:
    """Return bits per second of "100mbit", "2.5gbit" or "0"."""
    if text.strip() == "0":
        return 0.0
    match = _RATE.fullmatch(text.strip())
    if match is None or float(match[1]) == 0:
        raise InputError(f"not a rate: {text!r} (examples: 10mbit, 2.5gbit; 0 is unshaped)")
    return float(match[1]) * _SCALE[match[2].lower()]


def parse_share(text: str) -> float:
    """Return the share in "1%" or "0.01"."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*(%?)", text.strip())
    share = float(match[1]) / (100 if match[2] else 1) if match else -1.0
    if not 0 <= share <= 1:
        raise InputError(f"not a share: {text!r} (examples: 1%, 0.01)")
    return share


def bucket_bytes(bits_per_s: float) -> int:
    """Return the burst of the token bucket, bytes.

    A bucket must hold the largest segment, or the kernel cuts it up in software (measured: three
    times the CPU), and must be small against a chunk, or a chunk after a pause passes at once.
    """
    if bits_per_s <= SMALL_UP_TO:
        return SMALL_BUCKET
    return max(131_072, round(bits_per_s / 8 / 1000))


@dataclass(frozen=True)
class Port:
    """Where one direction of a link is sent: a device, in a network namespace ("" = this one).

    `peer` is where it arrives: the place to drop packets without netem.
    """

    namespace: str
    device: str
    peer_namespace: str
    peer_device: str


@dataclass(frozen=True)
class Link:
    """A cable: `tx` leads away from the host (from the leaf, of an uplink), `rx` towards it."""

    name: str
    group: str
    tx: Port
    rx: Port


#: State of each direction of each link: (link, "tx" or "rx").
States = dict[tuple[str, str], LinkState]


def select(links: Iterable[Link], name: str) -> list[tuple[str, str]]:
    """Return the directions that "h2", "h2.rx", "hosts" or "uplinks" means.

    Raises:
        InputError: There is none.
    """
    known = list(links)
    base, dot, way = name.partition(".")
    if dot and way not in ("tx", "rx"):
        raise InputError(f"link {name!r}: after the dot comes tx (from it) or rx (to it)")
    found = [link.name for link in known if base in (link.name, link.group)]
    if not found:
        names = sorted({link.name for link in known} | {link.group for link in known})
        shown = ", ".join(names[:12]) + (", …" if len(names) > 12 else "")
        raise InputError(f"no link {name!r} in this testbed; there are {shown or 'none'}")
    return [(link, side) for link in found for side in ([way] if dot else ["tx", "rx"])]


def apply(links: Iterable[Link], states: States, specs: Mapping[str, LinkSpec]) -> States:
    """Return `states` with what `specs` says of links, groups first."""
    known = list(links)
    out = dict(states)
    groups = {link.group for link in known}
    for name in sorted(specs, key=lambda n: n.partition(".")[0] not in groups):
        for key in select(known, name):
            out[key] = out[key].updated(specs[name])
    return out
