"""`genie selftest`: compare every schedule with the packaged numbers of compiled NCCL."""

from __future__ import annotations

import argparse

from genie.commands import common

HELP = "compare GENIE's schedules with the packaged numbers of compiled NCCL"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's options."""
    common.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print what was compared; exit 1 when anything differs."""
    from genie.replay.nccl.selftest import render, run

    rows = run(progress=common.progress_bar("selftest"))
    if args.json:
        common.print_json(rows)
    else:
        print(render(rows))
    return 0 if all(row["compared"] == row["equal"] for row in rows) else 1
