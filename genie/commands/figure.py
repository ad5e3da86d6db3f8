"""`genie figure`: pictures ready for a paper."""

from __future__ import annotations

import argparse
from pathlib import Path

from genie.commands import common
from genie.errors import InputError
from genie.units import parse_size

HELP = "draw figures of recordings, comparisons and schedules"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's options."""
    parser.add_argument("name", metavar="NAME", help="schedule")
    parser.add_argument("data", nargs="*", metavar="DATA", help="recordings to draw")
    parser.add_argument("-o", "--output", metavar="DIR", required=True, help="where figures go")
    parser.add_argument(
        "--formats", default="pdf,svg,png", help="comma-separated (default %(default)s)"
    )
    one = parser.add_argument_group("schedule")
    one.add_argument("--collective", default="all_reduce", metavar="KIND")
    one.add_argument("--size", default="4K", help="comm_size of the node (default %(default)s)")
    one.add_argument("--root", type=int, default=0, help="default %(default)s")
    one.add_argument("--channel", type=int, default=0, help="default %(default)s")
    common.add_cluster(parser, required=False)
    common.add_nccl(parser)


def run(args: argparse.Namespace) -> int:
    """Draw the figure asked for."""
    from genie.compare.figures import style
    from genie.compare.figures.schedule import figure_schedule

    formats = tuple(args.formats.split(","))
    unknown = sorted(set(formats) - set(style.FORMATS))
    if unknown:
        raise InputError(f"--formats {','.join(unknown)}: known are {', '.join(style.FORMATS)}")
    if args.name != "schedule":
        raise InputError(f"no figure {args.name!r}; there is: schedule")
    cluster = common.parse_cluster(args.cluster)
    if cluster is None:
        raise InputError("figure schedule needs --cluster, such as h100x1:8")
    figure = figure_schedule(
        args.collective,
        parse_size(args.size),
        cluster,
        nccl=common.parse_nccl(args),
        root=args.root,
        channel=args.channel,
    )
    target = Path(args.output) / "schedule"
    style.save(figure, target, f"genie {args.collective} {args.size} {args.cluster}", formats)
    print(f"{target}.{{{','.join(formats)}}}")
    return 0
