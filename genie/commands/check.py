"""`genie check`: is this host, and the way to the others, fit for a run."""

from __future__ import annotations

import argparse

from genie.commands import common

HELP = "look at this host and its network before a run"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's options."""
    parser.add_argument(
        "nics", nargs="*", metavar="NIC", help="interface or RDMA device (default: all)"
    )
    common.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print every finding; exit 1 when one says that a run would fail."""
    from genie.replay.preflight import check

    report = check(args.nics)
    if args.json:
        common.print_json(report.to_json())
    else:
        print(report)
    return 0 if report.ok else 1
