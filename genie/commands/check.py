"""`genie check`: is this host, and the way to the others, fit for a run."""

from __future__ import annotations

import argparse
import sys

from genie.commands import common
from genie.errors import InputError
from genie.units import parse_size, parse_time

HELP = "look at this host and its network before a run"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's options."""
    parser.add_argument(
        "--endpoints",
        nargs="+",
        metavar="ENDPOINT",
        help="probe every pair of these (as `genie replay` takes them) instead of this host alone: "
        "reachable, latency, bandwidth, MTU, rails",
    )
    parser.add_argument(
        "--transport", default="auto", choices=["auto", "tcp", "verbs"], help="default %(default)s"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=1.0,
        help="length of each bandwidth probe; 0: none (default %(default)s)",
    )
    parser.add_argument(
        "--size", default="64KiB", help="message size of the bandwidth probe (default %(default)s)"
    )
    parser.add_argument(
        "--timeout", default="60s", metavar="TIME", help="for workers to start (default 60s)"
    )
    parser.add_argument(
        "--limit", default="300s", metavar="TIME", help="for all probes (default 300s)"
    )
    common.add_nccl(parser)
    parser.add_argument(
        "nics", nargs="*", metavar="NIC", help="interface or RDMA device (default: all)"
    )
    common.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print every finding; exit 1 when one says that a run would fail."""
    from genie.replay.preflight import check, check_fabric

    if args.endpoints:
        if args.nics:
            raise InputError("NICs of endpoints are named there: HOST/NIC,NIC")
        report = check_fabric(
            args.endpoints[0] if len(args.endpoints) == 1 else args.endpoints,
            transport=args.transport,
            nccl=common.parse_nccl(args),
            seconds=args.seconds,
            nbytes=parse_size(args.size),
            timeout=parse_time(args.timeout) / 1e9,
            limit=parse_time(args.limit) / 1e9,
            progress=None if args.json else lambda text: print(text, file=sys.stderr),
        )
    else:
        report = check(args.nics)
    if args.json:
        common.print_json(report.to_json())
    else:
        print(report)
    return 0 if report.ok else 1
