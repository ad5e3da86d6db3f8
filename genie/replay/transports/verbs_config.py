"""What NCCL's environment says to the verbs transport (spec nccl-wire-schedule 4.1 and 7)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Protocol

from genie.errors import DeviceNotFoundError, InputError
from genie.replay.transports.gids import Gid, choose_gid

#: NCCL_IB_MAX_DEVS_PER_NIC: devices merged into one NIC.
MAX_DEVS = 4
STEPS = 8


class Settings(Protocol):
    """What is read here: `genie.Nccl`, or anything alike."""

    def get(self, name: str, default: str | None = None) -> str | None:
        """Return a variable's text."""
        ...

    def get_int(self, name: str, default: int) -> int:
        """Return a variable's number."""
        ...


@dataclass(frozen=True)
class VerbsConfig:
    """QP attributes and behaviour on the NIC; the defaults are NCCL 2.30's.

    Attributes:
        qps_per_connection: NCCL_IB_QPS_PER_CONNECTION, per device.
        split_data: NCCL_IB_SPLIT_DATA_ON_QPS: spread a message over all QPs.
        adaptive_routing: NCCL_IB_ADAPTIVE_ROUTING: 1, 0, -1 = on InfiniBand only.
        ar_threshold: NCCL_IB_AR_THRESHOLD, bytes.
        timeout: NCCL_IB_TIMEOUT: 4.096 us * 2^timeout until a packet counts as lost.
        retry: NCCL_IB_RETRY_CNT.
        pkey: NCCL_IB_PKEY, an index.
        sl: NCCL_IB_SL, the service level.
        tc: NCCL_IB_TC, the traffic class of data (RoCE: DSCP * 4 + ECN).
        fifo_tc: NCCL_IB_FIFO_TC, that of CTS messages; -1 = tc.
        gid_index: NCCL_IB_GID_INDEX; -1 searches.
        roce_version: NCCL_IB_ROCE_VERSION_NUM.
        address_family: NCCL_IB_ADDR_FAMILY or None.
        address_range: NCCL_IB_ADDR_RANGE or None.
        use_inline: NCCL_IB_USE_INLINE: CTS entries travel inline.
        ece: NCCL_IB_ECE_ENABLE.
        relaxed_ordering: NCCL_IB_PCI_RELAXED_ORDERING; 2 = where it is supported.
        hca: NCCL_IB_HCA, which devices to use when no endpoint names them; None = all.
        force_merge: NCCL_NET_FORCE_MERGE, devices that make one NIC: "a,b;c,d"; None.
        buffer_bytes: NCCL_BUFFSIZE: eight slots of an eighth each a receiving connection.
        depth: Messages outstanding on a connection at most (ours; NCCL's window is 8 steps).
        spin: Poll without sleeping.
    """

    qps_per_connection: int = 1
    split_data: bool = False
    adaptive_routing: int = -1
    ar_threshold: int = 8192
    timeout: int = 20
    retry: int = 7
    pkey: int = 0
    sl: int = 0
    tc: int = 0
    fifo_tc: int = -1
    gid_index: int = -1
    roce_version: int = 2
    address_family: str | None = None
    address_range: str | None = None
    use_inline: bool = False
    ece: bool = True
    relaxed_ordering: int = 2
    hca: str | None = None
    force_merge: str | None = None
    buffer_bytes: int = 4194304
    depth: int = 64
    spin: bool = False

    @classmethod
    def from_nccl(cls, nccl: Settings, **changes: Any) -> VerbsConfig:
        """Return the settings that `nccl` (environment of NCCL, by `get` and `get_int`) means.

        Args:
            nccl: `genie.Nccl` or anything with its `get` and `get_int`.
            changes: Fields to set otherwise.

        Raises:
            InputError: A value that no QP can have.
        """
        adaptive = nccl.get_int("NCCL_IB_ADAPTIVE_ROUTING", -1)
        threshold = nccl.get_int("NCCL_IB_AR_THRESHOLD", 8192)
        found: dict[str, Any] = {
            "qps_per_connection": nccl.get_int("NCCL_IB_QPS_PER_CONNECTION", 1),
            "split_data": bool(nccl.get_int("NCCL_IB_SPLIT_DATA_ON_QPS", 0)),
            "adaptive_routing": adaptive if adaptive in (0, 1) else -1,
            "ar_threshold": 8192 if threshold == -2 else max(threshold, 0),
            "timeout": nccl.get_int("NCCL_IB_TIMEOUT", 20),
            "retry": nccl.get_int("NCCL_IB_RETRY_CNT", 7),
            "pkey": nccl.get_int("NCCL_IB_PKEY", 0),
            "sl": max(nccl.get_int("NCCL_IB_SL", 0), 0),
            "tc": max(nccl.get_int("NCCL_IB_TC", 0), 0),
            "fifo_tc": nccl.get_int("NCCL_IB_FIFO_TC", -1),
            "gid_index": nccl.get_int("NCCL_IB_GID_INDEX", -1),
            "roce_version": nccl.get_int("NCCL_IB_ROCE_VERSION_NUM", 2),
            "address_family": nccl.get("NCCL_IB_ADDR_FAMILY"),
            "address_range": nccl.get("NCCL_IB_ADDR_RANGE"),
            "use_inline": bool(nccl.get_int("NCCL_IB_USE_INLINE", 0)),
            "ece": bool(nccl.get_int("NCCL_IB_ECE_ENABLE", 1)),
            "relaxed_ordering": nccl.get_int("NCCL_IB_PCI_RELAXED_ORDERING", 2),
            "hca": nccl.get("NCCL_IB_HCA"),
            "force_merge": nccl.get("NCCL_NET_FORCE_MERGE"),
            "buffer_bytes": nccl.get_int("NCCL_BUFFSIZE", 4194304),
        }
        return cls(**{**found, **changes})

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> VerbsConfig:
        """Return what `to_options` made; unknown names are refused."""
        known = {field.name for field in fields(cls)}
        unknown = sorted(set(options) - known)
        if unknown:
            raise InputError(f"unknown options of the verbs transport: {', '.join(unknown)}")
        return cls(**options)

    def to_options(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return asdict(self)

    def __post_init__(self) -> None:
        for name, low, high in (
            ("qps_per_connection", 1, 128),
            ("timeout", 0, 31),
            ("retry", 0, 7),
            ("pkey", 0, 65535),
            ("sl", 0, 15),
            ("tc", 0, 255),
            ("fifo_tc", -1, 255),
            ("roce_version", 1, 2),
            ("depth", 8, 256),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise InputError(f"verbs option {name} is {value}, expected {low} to {high}")
        if self.buffer_bytes < STEPS:
            raise InputError(f"NCCL_BUFFSIZE={self.buffer_bytes}: at least {STEPS} expected")

    def core_options(self) -> dict[str, Any]:
        """Return the keyword arguments of `genie._core.verbs.Verbs`."""
        return {
            "qps": self.qps_per_connection,
            "split": self.split_data,
            "adaptive_routing": self.adaptive_routing,
            "ar_threshold": self.ar_threshold,
            "timeout": self.timeout,
            "retry": self.retry,
            "pkey": self.pkey,
            "sl": self.sl,
            "tc": self.tc,
            "fifo_tc": self.fifo_tc,
            "use_inline": self.use_inline,
            "ece": self.ece,
            "relaxed_ordering": bool(self.relaxed_ordering),
            "depth": self.depth,
            "spin_ns": -1 if self.spin else 0,
        }


@dataclass(frozen=True)
class Port:
    """A port to use: device, number, and the GID it is used with (None on InfiniBand: index 0)."""

    device: str
    number: int
    gid: Gid | None
    mtu: int

    def __str__(self) -> str:
        return f"{self.device}:{self.number}"


def port_name(text: str) -> tuple[str, int | None]:
    """Return ("mlx5_0", 1) of "mlx5_0:1", None for a port that is not named."""
    name, colon, port = text.partition(":")
    if not colon:
        return name, None
    if not port.isdecimal() or not 1 <= int(port) <= 255:
        raise InputError(f"{text!r}: after the colon comes a port number, 1 to 255")
    return name, int(port)


def choose_ports(
    devices: Sequence[Mapping[str, Any]], names: Iterable[str], config: VerbsConfig
) -> tuple[list[Port], list[str]]:
    """Return the ports that `names` mean (all that NCCL_IB_HCA allows if empty), and notes.

    Args:
        devices: `genie._core.verbs.devices()`.
        names: "device" or "device:port"; without a port the first active one is taken.
        config: For GIDs and NCCL_IB_HCA.

    Raises:
        DeviceNotFoundError: A device or port is not there or not active; names what is.
        TransportError: No GID fits; prints the table.
    """
    wanted = [port_name(name) for name in names]
    found = [str(device["name"]) for device in devices]
    if not wanted:
        wanted = _all_ports(devices, config.hca)
        if not wanted:
            state = "; ".join(_state(device) for device in devices)
            raise DeviceNotFoundError(
                f"no active RDMA port to use (NCCL_IB_HCA={config.hca or 'unset'}): {state}",
                name=config.hca or "",
                found=found,
            )
    ports, notes = [], []
    for name, number in wanted:
        device = next((d for d in devices if d["name"] == name), None)
        if device is None:
            raise DeviceNotFoundError(
                f"no RDMA device {name!r} here; there is {', '.join(found)}",
                name=name,
                found=found,
            )
        rows = [p for p in device["ports"] if number is None or p["number"] == number]
        row = next((p for p in rows if p["active"]), None)
        if row is None:
            raise DeviceNotFoundError(
                f"RDMA device {name!r} has no active port"
                f"{'' if number is None else f' {number}'}: {_state(device)}",
                name=name,
                found=found,
            )
        where = f"device {name} port {row['number']}"
        gid = None
        if row["link_layer"] == "ethernet":
            gid, note = choose_gid(
                [Gid(*entry) for entry in row["gids"]],
                where,
                index=config.gid_index,
                version=config.roce_version,
                family=config.address_family,
                address_range=config.address_range,
            )
            if note:
                notes.append(note)
        ports.append(Port(name, int(row["number"]), gid, int(row["mtu"])))
    return ports, notes


def merge(ports: Sequence[Port], force_merge: str | None) -> list[list[Port]]:
    """Return the NICs: each port alone, or those that NCCL_NET_FORCE_MERGE puts together.

    Raises:
        InputError: More than four devices in one NIC, or one named twice.
    """
    groups = []
    taken: set[Port] = set()
    for text in (force_merge or "").split(";"):
        group = []
        for name in filter(None, (part.strip() for part in text.split(","))):
            device, number = port_name(name)
            group += [p for p in ports if p.device == device and number in (None, p.number)]
        if taken & set(group) or len(set(group)) < len(group):
            raise InputError(f"NCCL_NET_FORCE_MERGE={force_merge}: a device is named twice")
        if len(group) > MAX_DEVS:
            raise InputError(f"NCCL_NET_FORCE_MERGE: {len(group)} devices, at most {MAX_DEVS}")
        if group:
            groups.append(group)
            taken |= set(group)
    nics: list[list[Port]] = []
    for port in ports:
        group = next((g for g in groups if port in g), [port])
        if group not in nics:
            nics.append(group)
    return nics


def _state(device: Mapping[str, Any]) -> str:
    if "error" in device:
        return f"{device['name']} cannot be opened ({device['error']})"
    states = ", ".join(
        f"port {p['number']} {'active' if p['active'] else 'down'}" for p in device["ports"]
    )
    return f"{device['name']} {states or 'has no port'}"


def _all_ports(
    devices: Sequence[Mapping[str, Any]], hca: str | None
) -> list[tuple[str, int | None]]:
    """Every active port that NCCL_IB_HCA allows: a list of prefixes, "=" exact, "^" excluded."""
    text = (hca or "").strip()
    exclude = text.startswith("^")
    text = text.removeprefix("^")
    exact = text.startswith("=")
    names = [port_name(part.strip()) for part in text.removeprefix("=").split(",") if part.strip()]
    found: list[tuple[str, int | None]] = []
    for device in devices:
        for port in device["ports"]:
            if not port["active"]:
                continue
            named = any(
                (device["name"] == name if exact else str(device["name"]).startswith(name))
                and number in (None, port["number"])
                for name, number in names
            )
            if not names or named != exclude:
                found.append((str(device["name"]), int(port["number"])))
    return found
