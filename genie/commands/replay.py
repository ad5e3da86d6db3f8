"""`genie replay`: a trace over the real network."""

from __future__ import annotations

import argparse
from pathlib import Path

from genie.commands import common
from genie.errors import InputError
from genie.units import parse_time

HELP = "replay a trace over the real network"


def add_endpoints(parser: argparse.ArgumentParser) -> None:
    """Add where workers run and how they talk."""
    parser.add_argument(
        "--endpoints",
        nargs="+",
        default=["local:2"],
        metavar="ENDPOINT",
        help="local:N, HOST[/NIC[,NIC…]] …, or a file of one endpoint a line (default local:2)",
    )
    parser.add_argument(
        "--transport", default="auto", choices=["auto", "tcp", "verbs"], help="default %(default)s"
    )
    parser.add_argument(
        "--timeout",
        default="60s",
        metavar="TIME",
        help="give up when nothing moves for this long: 500ms, 60s, 2min; a plain number is in "
        "seconds (default %(default)s)",
    )


def endpoints(args: argparse.Namespace) -> str | list[str]:
    """Return the endpoints as the function takes them."""
    given: list[str] = args.endpoints
    return given[0] if len(given) == 1 else given


def timeout(args: argparse.Namespace) -> float:
    """Return --timeout in seconds."""
    return parse_time(args.timeout, plain="s") / 1e9


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's options."""
    common.add_trace(parser)
    add_endpoints(parser)
    common.add_cluster(parser, required=False)
    common.add_nccl(parser)
    parser.add_argument("--iterations", type=int, default=1, help="default %(default)s")
    parser.add_argument("--warmup", type=int, default=0, help="default %(default)s")
    parser.add_argument("--time-scale", type=float, default=1.0, help="factor on compute time")
    parser.add_argument("--no-gpu-model", action="store_true", help="leave the GPU-time model out")
    parser.add_argument(
        "--counter-interval",
        default="1s",
        metavar="TIME",
        help="read the NICs' counters this often during the run; 0s only before and "
        "after it (default %(default)s)",
    )
    parser.add_argument(
        "--keep-remote",
        metavar="DIR",
        help="recordings stay on the hosts, in this folder (absolute); what comes home says where",
    )
    parser.add_argument(
        "--quiet", action="store_true", help="do not say which rank runs where before the run"
    )
    parser.add_argument("--perfetto", metavar="DIR", help="write a Chrome/Perfetto trace per rank")
    common.add_output(parser)
    common.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Replay and print a table of every collective."""
    from genie.replay.gpu import GpuModel
    from genie.replay.run import replay

    common.check_output(args)
    if args.perfetto is not None:
        common.check_folder(args.perfetto, "--perfetto")
    if args.perfetto and not args.force:
        there = sorted(Path(args.perfetto).glob("rank*.pt.trace.json*"))
        if there:
            raise InputError(f"{there[0]} exists; --force replaces it")
    recording = replay(
        common.load_trace(args),
        endpoints(args),
        cluster=common.parse_cluster(args.cluster),
        nccl=common.parse_nccl(args),
        transport=args.transport,
        iterations=args.iterations,
        warmup=args.warmup,
        time_scale=args.time_scale,
        gpu=GpuModel.off() if args.no_gpu_model else None,
        timeout=timeout(args),
        counter_interval=parse_time(args.counter_interval) / 1e9,
        progress=common.progress_bar("replay"),
        on_error="record",
        quiet=args.quiet,
        keep_remote=args.keep_remote,
    )
    code = common.finish(args, recording)
    if args.perfetto:
        from genie.replay.perfetto import export

        export(recording, args.perfetto, force=args.force)
        if not args.json:
            print(f"perfetto: {args.perfetto}")
    return code
