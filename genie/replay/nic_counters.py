"""Counters of network interfaces, RDMA devices and TCP, and what those of each vendor mean."""

from __future__ import annotations

import itertools
from pathlib import Path

_NET = Path("/sys/class/net")
_RDMA = Path("/sys/class/infiniband")
#: Of /proc/net/snmp and /proc/net/netstat: what tells of loss and congestion.
_TCP = (
    ("/proc/net/snmp", "Tcp", ("RetransSegs", "InErrs", "OutRsts")),
    (
        "/proc/net/netstat",
        "TcpExt",
        ("TCPLostRetransmit", "TCPTimeouts", "TCPFastRetrans", "TCPBacklogDrop", "ListenDrops"),
    ),
)
#: Files of hw_counters that are settings, not counters.
_SETTINGS = {"lifespan"}
#: What a counter tells of, by the names that drivers give it: rdma_rxe (rxe_hw_counters.c), mlx5
#: (counters.c), bnxt_re (hw_counters.c), irdma (verbs.c), the kernel's IB core (sysfs.c), network
#: interfaces and TCP. "retransmit": something was sent again or had to be; "timeout": an
#: acknowledgement was late; "out_of_sequence": packets came in another order or not at all;
#: "rnr": a receiver was not ready; "cnp": congestion notifications; "ecn": marked packets;
#: "drop": packets thrown away; "pause": waiting for credits or for the other side's permission.
_NAMES: dict[str, tuple[str, ...]] = {
    "retransmit": (
        "completer_retry_err", "duplicate_request", "retry_exceeded_err",  # rxe, mlx5
        "roce_adp_retrans", "roce_adp_retrans_to", "implied_nak_seq_err",  # mlx5
        "req_transport_retries_exceeded",
        "to_retransmits", "dup_req", "max_retry_exceeded", "missing_resp",  # bnxt_re
        "RetransSegs", "tcpRetransSegs", "TCPLostRetransmit", "TCPFastRetrans",  # irdma, TCP
    ),
    "timeout": ("local_ack_timeout_err", "TCPTimeouts"),
    "out_of_sequence": (
        "out_of_seq_request", "rcvd_seq_err",  # rxe
        "out_of_sequence", "packet_seq_err",  # mlx5
        "oos_drop_count", "seq_err_naks_rcvd", "rx_out_of_sequence_pkts",  # bnxt_re
    ),
    "rnr": (
        "rcvd_rnr_err", "send_rnr_err", "retry_rnr_exceeded_err",  # rxe
        "rnr_nak_retry_err", "out_of_buffer",  # mlx5
        "rnr_naks_rcvd", "rx_out_of_buffer",  # bnxt_re
        "RNR sent", "RNR received",  # irdma
    ),
    "cnp": (
        "np_cnp_sent", "rp_cnp_handled", "rp_cnp_ignored", "roce_slow_restart_cnps",  # mlx5
        "tx_cnp_pkts", "rx_cnp_pkts",  # bnxt_re
        "cnpHandled", "cnpIgnored", "cnpSent",  # irdma
    ),
    "ecn": ("np_ecn_marked_roce_packets", "rx_ecn_marked_pkts", "RxECNMrkd"),
    "drop": (
        "port_xmit_discards", "VL15_dropped", "excessive_buffer_overrun_errors",
        "rx_roce_discards", "tx_roce_discards", "ip4InDiscards", "ip6InDiscards",
        "rx_dropped", "tx_dropped", "rx_missed_errors", "rx_fifo_errors", "tx_fifo_errors",
        "TCPBacklogDrop", "ListenDrops",
    ),
    "pause": ("port_xmit_wait",),
}  # fmt: skip
MEANINGS: dict[str, str] = {name: what for what, names in _NAMES.items() for name in names}


def counters(devices: tuple[str, ...]) -> dict[tuple[str, str], int]:
    """Return (device, counter) → value of network interfaces, RDMA devices and TCP.

    Args:
        devices: Names of interfaces or RDMA devices ("mlx5_0" or "mlx5_0:1").
    """
    found: dict[tuple[str, str], int] = {}
    for device in devices:
        name, _, port = device.partition(":")
        if (_NET / name).exists():
            _read_folder(found, device, _NET / name / "statistics")
        elif (_RDMA / name).exists():
            base = _RDMA / name / "ports" / (port or "1")
            _read_folder(found, device, base / "counters")
            _read_folder(found, device, _RDMA / name / "hw_counters")
            _read_folder(found, device, base / "hw_counters")
    for path, prefix, names in _TCP:
        values = _proc_net(path, prefix)
        for name in names:
            if name in values:
                found["tcp", name] = values[name]
    return found


def _read_folder(found: dict[tuple[str, str], int], device: str, folder: Path) -> None:
    try:
        files = sorted(folder.iterdir())
    except OSError:
        return
    for file in files:
        if file.name in _SETTINGS:
            continue
        try:
            found[device, file.name] = int(file.read_text())
        except (OSError, ValueError):
            continue


def _proc_net(path: str, prefix: str) -> dict[str, int]:
    """Return one protocol's counters: a line of names, then a line of values."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return {}
    for names, values in itertools.pairwise(lines):
        if names.startswith(prefix + ":") and values.startswith(prefix + ":"):
            return dict(zip(names.split()[1:], map(int, values.split()[1:]), strict=False))
    return {}
