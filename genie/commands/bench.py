"""`genie bench`: nccl-tests' table over GENIE's messages."""

from __future__ import annotations

import argparse

from genie.commands import common, replay
from genie.units import parse_size

HELP = "time one collective over a range of sizes, as nccl-tests does"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's options; short names are nccl-tests'."""
    parser.add_argument("kind", metavar="KIND", help="all_reduce, all_gather, …")
    parser.add_argument("-b", "--begin", default="8", help="smallest size (default %(default)s)")
    parser.add_argument("-e", "--end", default="64M", help="largest size (default %(default)s)")
    parser.add_argument("-f", "--factor", type=float, default=2.0, help="default %(default)s")
    parser.add_argument("-n", "--iterations", type=int, default=20, help="default %(default)s")
    parser.add_argument("-w", "--warmup", type=int, default=5, help="default %(default)s")
    parser.add_argument("-d", "--dtype", default="float32", help="default %(default)s")
    parser.add_argument("-r", "--root", type=int, default=0, help="default %(default)s")
    parser.add_argument(
        "-g", "--gpus", type=int, default=1, help="ranks per endpoint (default %(default)s)"
    )
    replay.add_endpoints(parser)
    common.add_cluster(parser, required=False)
    common.add_nccl(parser)
    common.add_output(parser)
    common.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Measure and print the table."""
    from genie.replay.bench import bench, render, rows_as_json

    common.check_output(args)
    result = bench(
        args.kind,
        replay.endpoints(args),
        begin=parse_size(args.begin),
        end=parse_size(args.end),
        factor=args.factor,
        iterations=args.iterations,
        warmup=args.warmup,
        dtype=args.dtype,
        root=args.root,
        gpus=args.gpus,
        cluster=common.parse_cluster(args.cluster),
        nccl=common.parse_nccl(args),
        transport=args.transport,
        timeout=replay.timeout(args),
        progress=common.progress_bar("bench"),
    )
    if args.output:
        result.save(args.output, force=args.force)
    if args.json:
        common.print_json(rows_as_json(result))
    else:
        print(render(result))
    return 0
