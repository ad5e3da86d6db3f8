"""`genie figure`: pictures ready for a paper."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from genie.commands import common
from genie.errors import InputError, NothingMatchedError
from genie.units import parse_size

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from genie.compare.truth.model import Truth

HELP = "draw figures of recordings, comparisons and schedules"
COMPARED = "errors"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's options."""
    parser.add_argument(
        "name",
        metavar="NAME",
        help="busbw, cdf, rate, concurrency, runs, bursts, gaps, timeline, path, nics, matrix, "
        "matrix-host, matrix-rail; errors (two DATA: a run, then what it is held against); "
        "schedule; all",
    )
    parser.add_argument(
        "data",
        nargs="*",
        metavar="DATA",
        help="what to draw: recordings or ground truth; NAME=PATH labels it (replay, truth and "
        "simulate have colours of their own)",
    )
    parser.add_argument("-o", "--output", metavar="DIR", required=True, help="where figures go")
    parser.add_argument(
        "--formats", default="pdf,svg,png", help="comma-separated (default %(default)s)"
    )
    parser.add_argument(
        "--column",
        choices=["single", "double"],
        help="width: one or both columns of a two-column paper (default: what suits the figure)",
    )
    one = parser.add_argument_group("schedule")
    one.add_argument("--collective", default="all_reduce", metavar="KIND")
    one.add_argument("--size", default="4K", help="comm_size of the node (default %(default)s)")
    one.add_argument("--root", type=int, default=0, help="default %(default)s")
    one.add_argument("--channel", type=int, default=0, help="default %(default)s")
    common.add_cluster(parser, required=False)
    common.add_nccl(parser)


def run(args: argparse.Namespace) -> int:
    """Draw the figures asked for."""
    from genie.compare.figures import style

    formats = tuple(args.formats.split(","))
    unknown = sorted(set(formats) - set(style.FORMATS))
    if unknown:
        raise InputError(f"--formats {','.join(unknown)}: known are {', '.join(style.FORMATS)}")
    common.check_folder(args.output)
    if args.name == "schedule" and args.data:
        raise InputError("figure schedule draws no DATA; it takes --cluster")
    figures = _schedule(args) if args.name == "schedule" else _of_data(args)
    drawn = 0
    for name, provenance, figure in figures:
        target = Path(args.output) / name
        style.save(figure, target, provenance, formats)
        print(f"{target}.{formats[0]}" if len(formats) == 1 else
              f"{target}.{{{','.join(formats)}}}")  # fmt: skip
        drawn += 1
    if not drawn:
        raise InputError(f"figure {args.name}: the data given have nothing to draw")
    return 0


def _schedule(args: argparse.Namespace) -> Iterator[tuple[str, str, Figure]]:
    from genie.compare.figures.schedule import figure_schedule

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
    yield "schedule", f"genie {args.collective} {args.size} {args.cluster}", figure


def _of_data(args: argparse.Namespace) -> Iterator[tuple[str, str, Figure]]:
    from genie.compare.comparison import compare
    from genie.compare.figures import catalogue

    known = [*catalogue.run_names(), COMPARED, "schedule", "all"]
    if args.name not in known:
        raise InputError(f"no figure {args.name!r}; there are {', '.join(known)}")
    if not args.data:
        raise InputError(f"figure {args.name} needs DATA: recordings or ground truth")
    sides = _sides(args.data)
    provenance = " against ".join(f"{name}: {side.source}" for name, side in sides.items())
    if args.name == COMPARED and len(sides) != 2:
        raise InputError(f"figure {COMPARED} takes two DATA, got {len(sides)}")
    if args.name in catalogue.run_names():
        yield args.name, provenance, catalogue.run_figure(args.name, sides, args.column)
        return
    if args.name == "all":
        for name, figure in catalogue.run_figures(sides, args.column):
            yield name, provenance, figure
    if len(sides) == 2:
        try:
            found = catalogue.comparison_figure(COMPARED, compare(*sides.values()), args.column)
        except (InputError, NothingMatchedError):
            # Of all figures this is the one that runs with nothing in common do not have.
            if args.name == COMPARED:
                raise
            return
        yield COMPARED, provenance, found


def _sides(data: list[str]) -> dict[str, Truth]:
    """Return label → run; labels not given are the recording's mode, else the path's last part."""
    from genie.compare.truth.load import load_truth

    sides: dict[str, Truth] = {}
    for text in data:
        name, equals, path = text.partition("=")
        if not equals or Path(text).exists():
            path, name = text, ""
        side = load_truth(path)
        if not name:
            name = side.mode or Path(path).name
            if name in sides:
                name = Path(path).name
        if name in sides:
            raise InputError(f"two DATA are called {name!r}: label them with NAME=PATH")
        sides[name] = side
    return sides
