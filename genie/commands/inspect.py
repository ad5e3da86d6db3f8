"""`genie inspect`: what a trace set holds and whether it can be replayed."""

from __future__ import annotations

import argparse
import sys

from genie.commands import common

HELP = "show what a trace set holds and why it could not be replayed"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's options."""
    common.add_trace(parser)
    common.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print whatever could be read; exit 1 with every reason when it cannot be replayed."""
    from genie.trace.inspect import render

    trace = common.load_trace(args)
    document = trace.inspect()
    if args.json:
        common.print_json(document)
    else:
        print(render(document))
    for text in trace.warnings:
        common.warn(text)
    problems = trace.problems()
    for problem in problems:
        print(f"genie inspect: error: {problem}", file=sys.stderr)
    return 1 if problems else 0
