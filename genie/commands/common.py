"""Options that several verbs share, and how their text becomes GENIE's objects."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from genie.errors import InputError

if TYPE_CHECKING:
    from genie.replay.cluster import Cluster
    from genie.replay.nccl.env import Nccl
    from genie.replay.recording import Recording
    from genie.trace import Trace


def add_trace(parser: argparse.ArgumentParser) -> None:
    """Add the trace and what helps to read it."""
    parser.add_argument("path", metavar="TRACE", help="folder, prefix or file of a trace set")
    add_trace_options(parser)


def add_trace_options(parser: argparse.ArgumentParser) -> None:
    """Add what helps to read a trace."""
    parser.add_argument("--groups", metavar="FILE", help="communicator groups as JSON")
    parser.add_argument(
        "--elements",
        metavar="DTYPE",
        help="the trace's sizes are elements of this type (symbolic_tensor_network traces)",
    )
    parser.add_argument(
        "--undefined-group",
        choices=["world"],
        help="what a group that nothing defines means (default: refuse it)",
    )


def load_trace(args: argparse.Namespace) -> Trace:
    """Return the trace that the options name."""
    from genie.trace import load

    return load(
        args.path,
        groups=args.groups,
        elements=args.elements,
        undefined_group=args.undefined_group,
    )


def add_cluster(parser: argparse.ArgumentParser, required: bool) -> None:
    """Add --cluster."""
    parser.add_argument(
        "--cluster",
        metavar="PRESET:HOSTS|FILE",
        required=required,
        help="such as h100x8:4 or local:2x4 (2 hosts of 4); or NCCL's graph dump (.xml) or "
        "NCCL_DEBUG=INFO log",
    )


def parse_cluster(text: str | None) -> Cluster | None:
    """Return the cluster that "PRESET:HOSTS", "local:HOSTSxGPUS" or a file describes."""
    from genie.replay.clusters.named import parse_cluster as parse

    return parse(text)


def add_nccl(parser: argparse.ArgumentParser) -> None:
    """Add the NCCL version, environment and choices."""
    group = parser.add_argument_group("NCCL")
    group.add_argument("--nccl-version", default="2.30", metavar="V", help="2.21, 2.27, 2.30, …")
    group.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an NCCL_* setting; repeat for more",
    )
    group.add_argument(
        "--process-env", action="store_true", help="take NCCL_* settings of this process too"
    )
    group.add_argument(
        "--choices", metavar="CSV", help="algorithm, protocol, channels by size (tuner config)"
    )


def parse_nccl(args: argparse.Namespace) -> Nccl:
    """Return the NCCL settings that the options name."""
    from genie.replay.nccl.env import Nccl

    env = {}
    if args.process_env:
        env.update({k: v for k, v in os.environ.items() if k.startswith("NCCL_")})
    for text in args.env:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise InputError(f"--env {text!r}: expected NAME=VALUE")
        env[name] = value
    nccl = Nccl(version=args.nccl_version, env=env, choices=args.choices)
    for note in nccl.notes:
        warn(note)
    return nccl


def add_output(parser: argparse.ArgumentParser, what: str = "recording") -> None:
    """Add -o and --force for a verb whose result can be kept."""
    parser.add_argument("-o", "--output", metavar="DIR", help=f"keep the {what} in this folder")
    parser.add_argument("--force", action="store_true", help="replace what is in that folder")


def check_output(args: argparse.Namespace, what: str = "recording") -> None:
    """Refuse an output folder that nothing can be written to, before any work is done."""
    if args.output is None:
        return
    if not args.output:
        raise InputError("-o '': expected a folder")
    if os.path.lexists(args.output) and not args.force:
        raise InputError(f"{args.output} exists; --force replaces it")
    from genie.replay.result_io import check_target

    check_target(args.output, args.force, what)


def check_folder(path: str, option: str = "-o") -> None:
    """Refuse a folder that no file can be written to, before any work is done."""
    from genie.replay.result_io import check_writable

    if not path:
        raise InputError(f"{option} '': expected a folder")
    check_writable(path)


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add --json."""
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")


def print_json(document: Any) -> None:
    """Print one JSON document on stdout."""
    json.dump(document, sys.stdout, indent=2, default=_plain)
    sys.stdout.write("\n")


def _plain(value: Any) -> Any:
    """Return what `json` can write for NumPy scalars and arrays."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"not JSON: {type(value).__name__}")


def table_rows(array: Any) -> list[dict[str, Any]]:
    """Return a structured array as a list of plain dicts."""
    return [
        {name: _null(value) for name, value in zip(array.dtype.names, row, strict=True)}
        for row in array.tolist()
    ]


def _null(value: Any) -> Any:
    """Return None for NaN and infinity, which JSON does not have, other values as they are."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def warn(text: str) -> None:
    """Print one warning on stderr."""
    print(f"genie: warning: {text}", file=sys.stderr)


def progress_bar(label: str) -> Callable[[int, int], None] | None:
    """Return a callback that draws a bar on stderr after a second; None off a terminal."""
    if not sys.stderr.isatty():
        return None
    from tqdm import tqdm

    bar: tqdm[Any] | None = None

    def update(done: int, total: int) -> None:
        nonlocal bar
        if bar is None:
            bar = tqdm(total=total, desc=label, unit="node", delay=1.0, leave=False)
        bar.update(done - bar.n)
        if done >= total:
            bar.close()

    return update


def finish(args: argparse.Namespace, recording: Recording) -> int:
    """Save and print a Recording; return the exit code (1 when it is incomplete)."""
    for text in recording.manifest.get("warnings", ()):
        warn(text)
    # What was measured is shown first: the disk may refuse.
    if args.json:
        print_json(
            {
                "manifest": recording.manifest,
                "steps": table_rows(recording.steps()),
                "collectives": table_rows(recording.collectives()),
            }
        )
    else:
        print(recording.summary())
    if args.output:
        recording.save(args.output, force=args.force)
        if not args.json:
            print(f"recording: {args.output}")
    if not recording.complete:
        reason = recording.manifest.get("incomplete") or "incomplete"
        print(f"genie {args.verb}: error: the run is incomplete: {reason}", file=sys.stderr)
        return 1
    return 0


def check_report(args: argparse.Namespace) -> None:
    """Refuse a report folder that is in the way, before any work is done."""
    if args.output is None:
        return
    check_folder(args.output)
    if os.path.lexists(args.output) and not args.force:
        raise InputError(f"{args.output} exists; --force replaces a report")
