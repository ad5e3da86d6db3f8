"""Which GID a RoCE port is used with: NCCL's rules, without its silent bad picks.

NCCL searches the table for the RoCE version (NCCL_IB_ROCE_VERSION_NUM, 2), the address family
(NCCL_IB_ADDR_FAMILY, AF_INET) and the range (NCCL_IB_ADDR_RANGE), and stays at index 0 when
nothing fits, which may be a link-local or RoCE v1 entry that leads nowhere (NCCL issues 426, 769).
Here an entry that was not asked for by index is never link-local, and never of another RoCE
version; if none fits, the error prints the table.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

from genie.errors import InputError, TransportError

IB, ROCE_V1, ROCE_V2, UNKNOWN = 0, 1, 2, -1
_KIND = {IB: "IB", ROCE_V1: "RoCE v1", ROCE_V2: "RoCE v2", UNKNOWN: "RoCE ?"}


@dataclass(frozen=True)
class Gid:
    """One filled entry of a port's GID table.

    Attributes:
        index: Its index.
        raw: 16 bytes.
        kind: 0 InfiniBand, 1 RoCE v1, 2 RoCE v2, -1 not known.
        interface: The network interface it belongs to, "" unknown.
    """

    index: int
    raw: bytes
    kind: int
    interface: str = ""

    @property
    def address(self) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
        """The IP address the GID stands for (IPv4 where it is IPv4-mapped)."""
        six = ipaddress.IPv6Address(self.raw)
        return six.ipv4_mapped or six

    @property
    def link_local(self) -> bool:
        """Whether it cannot be routed (fe80::/10, 169.254/16, or all zero)."""
        return self.address.is_link_local or not any(self.raw)

    def __str__(self) -> str:
        text = f"::ffff:{self.address}" if self.address.version == 4 else str(self.address)
        return f"{self.index} {text}"


def gid_table(rows: Sequence[Gid]) -> str:
    """Return the table in words, a line an entry."""
    if not rows:
        return "  (the GID table is empty: does the network interface have an IP address?)"
    lines = [f"  {'index':>5}  {'type':8} {'interface':12} address"]
    for row in rows:
        note = "  (link-local)" if row.link_local else ""
        text = str(row).partition(" ")[2]
        kind = _KIND.get(row.kind, "?")
        lines.append(f"  {row.index:>5}  {kind:8} {row.interface or '-':12} {text}{note}")
    return "\n".join(lines)


def choose_gid(
    rows: Sequence[Gid],
    where: str,
    *,
    index: int = -1,
    version: int = 2,
    family: str | None = None,
    address_range: str | None = None,
) -> tuple[Gid, str]:
    """Return the GID to use on a RoCE port and a note for the user ("" if there is none).

    Args:
        rows: The filled entries of the port's table.
        where: The port in words.
        index: NCCL_IB_GID_INDEX; -1 searches.
        version: NCCL_IB_ROCE_VERSION_NUM.
        family: NCCL_IB_ADDR_FAMILY, "AF_INET" or "AF_INET6". None: AF_INET, and IPv6 if the
            table has no IPv4 entry.
        address_range: NCCL_IB_ADDR_RANGE, such as "10.0.0.0/8".

    Raises:
        TransportError: None fits; prints the table.
        InputError: A setting cannot be read.
    """
    if index >= 0:
        found = next((row for row in rows if row.index == index), None)
        if found is None:
            raise TransportError(
                f"{where}: NCCL_IB_GID_INDEX={index} is an empty entry of the GID table:\n"
                + gid_table(rows)
            )
        notes = []
        if found.link_local:
            notes.append("is link-local: it reaches this link only")
        if found.kind == ROCE_V1:
            notes.append("is RoCE v1: it is not routed")
        return found, f"{where}: GID {found} {' and '.join(notes)}" if notes else ""
    if family not in (None, "AF_INET", "AF_INET6"):
        raise InputError(f"NCCL_IB_ADDR_FAMILY={family}: expected AF_INET or AF_INET6")
    network = None
    if address_range:
        try:
            network = ipaddress.ip_network(address_range, strict=False)
        except ValueError as exc:
            raise InputError(f"NCCL_IB_ADDR_RANGE={address_range}: {exc}") from None
        if family is not None and network.version != (4 if family == "AF_INET" else 6):
            raise InputError(f"NCCL_IB_ADDR_RANGE={address_range} is not of {family}")
        family = "AF_INET" if network.version == 4 else "AF_INET6"
    usable = [
        row
        for row in rows
        if not row.link_local
        and row.kind in (version, UNKNOWN)
        and (network is None or row.address in network)
    ]
    for wanted in (4, 6) if family is None else (4,) if family == "AF_INET" else (6,):
        for row in usable:
            if row.address.version == wanted:
                note = ""
                if wanted == 6 and family is None:
                    note = f"{where}: no IPv4 GID, using GID {row}"
                return row, note
    asked = [f"RoCE v{version}", {"AF_INET": "IPv4", "AF_INET6": "IPv6"}.get(family or "", "IP")]
    if address_range:
        asked.append(f"in {address_range}")
    raise TransportError(
        f"{where}: no GID fits ({', '.join(asked)}, not link-local). The table:\n"
        f"{gid_table(rows)}\n"
        "  Give the network interface an address, or choose with NCCL_IB_GID_INDEX, "
        "NCCL_IB_ROCE_VERSION_NUM, NCCL_IB_ADDR_FAMILY or NCCL_IB_ADDR_RANGE."
    )
