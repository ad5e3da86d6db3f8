"""`genie compare`: a run against ground truth, in numbers, figures and one HTML report."""

from __future__ import annotations

import argparse
import sys

from genie.commands import common
from genie.errors import InputError

HELP = "compare a run with ground truth, or two runs"
THRESHOLD_MISSED = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's options."""
    parser.add_argument("run", metavar="RUN", help="a recording (replay -o, simulate -o)")
    parser.add_argument(
        "truth", metavar="TRUTH", help="a recording, Kineto traces, nccl-tests output, …"
    )
    parser.add_argument("-o", "--output", metavar="DIR", help="write report.html and figures here")
    parser.add_argument("--force", action="store_true", help="replace a report that is there")
    parser.add_argument(
        "--fail-above",
        type=float,
        metavar="PERCENT",
        help="exit 3 when the largest |median error| of a collective is above",
    )
    parser.add_argument(
        "--fault",
        nargs=3,
        action="append",
        default=[],
        metavar=("NAME", "RUN", "TRUTH"),
        help="both with the same fault (repeat for each): RUN and TRUTH above are then the healthy "
        "ones, and the slowdowns are compared (L3)",
    )
    common.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Compare, print, and write the report."""
    from genie.compare.comparison import compare
    from genie.compare.truth.load import load_truth

    if args.fail_above is not None and not args.fail_above >= 0:
        raise InputError(f"--fail-above {args.fail_above}: expected a percentage from 0 on")
    common.check_report(args)
    names = [name for name, _, _ in args.fault]
    if len(set(names)) < len(names):
        raise InputError(f"--fault: a name is given twice: {', '.join(names)}")
    faults = {name: (load_truth(run), load_truth(truth)) for name, run, truth in args.fault}
    comparison = compare(load_truth(args.run), load_truth(args.truth), faults=faults)
    if args.output:
        comparison.save(args.output, force=args.force)
    if args.json:
        common.print_json(comparison.to_json())
    else:
        print(comparison.summary())
        if args.output:
            print(f"\nreport: {args.output}/report.html")
    worst = comparison.worst()
    if args.fail_above is not None and not worst * 100 <= args.fail_above:
        print(
            f"genie compare: the largest median error is {worst:.1%}, above {args.fail_above:g} %",
            file=sys.stderr,
        )
        return THRESHOLD_MISSED
    return 0
