"""`genie simulate`: the trace on a model network, in virtual time."""

from __future__ import annotations

import argparse

from genie.commands import common
from genie.errors import InputError

HELP = "run a trace on a model network in virtual time"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's options."""
    common.add_trace(parser)
    common.add_cluster(parser, required=True)
    common.add_nccl(parser)
    parser.add_argument("--nic-gbps", type=float, metavar="GB/s", help="NIC rate (GB/s)")
    parser.add_argument("--latency", default="2us", help="one-way latency (default %(default)s)")
    parser.add_argument(
        "--degrade",
        action="append",
        default=[],
        metavar="HOST/NIC=GB/s[@TIME]",
        help="rate of a NIC from a time on; 0 fails it",
    )
    parser.add_argument("--no-gpu-model", action="store_true", help="leave the GPU-time model out")
    parser.add_argument("--iterations", type=int, default=1, help="default %(default)s")
    parser.add_argument("--warmup", type=int, default=0, help="default %(default)s")
    parser.add_argument("--time-scale", type=float, default=1.0, help="factor on compute time")
    parser.add_argument(
        "--level",
        choices=("message", "flow"),
        default="message",
        help="message: every message of NCCL (default); flow: one flow a channel and peer, "
        "approximate, for 10 000 ranks and more",
    )
    parser.add_argument("--no-messages", action="store_true", help="keep no table of messages")
    parser.add_argument(
        "--log-ranks",
        metavar="A-B,C",
        help="keep the operations and messages of these ranks only (step times are of all)",
    )
    common.add_output(parser)
    common.add_json(parser)


def parse_network(args: argparse.Namespace):  # type: ignore[no-untyped-def]
    """Return the `Network` that the options describe."""
    from genie.replay.network import Network
    from genie.units import parse_time

    latency = parse_time(args.latency)
    network = Network(nic_gbps=args.nic_gbps, latency_ns=latency, cts_latency_ns=latency)
    for text in args.degrade:
        where, _, what = text.partition("=")
        host, _, nic = where.partition("/")
        rate, _, at = what.partition("@")
        try:
            network = network.degrade(int(host), int(nic), float(rate), parse_time(at) if at else 0)
        except ValueError as error:
            raise InputError(f"--degrade {text!r}: expected HOST/NIC=GB/s[@TIME]") from error
    return network


def parse_ranks(text: str | None) -> list[int] | None:
    """Return the ranks that "0-7,16" names, None for None."""
    if text is None:
        return None
    ranks: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        try:
            ranks.update(range(int(first), int(last or first) + 1))
        except ValueError as error:
            raise InputError(f"--log-ranks {text!r}: expected ranks as in 0-7,16") from error
    return sorted(ranks)


def run(args: argparse.Namespace) -> int:
    """Simulate and print the summary."""
    from genie.replay.gpu import GpuModel
    from genie.replay.simulate import simulate

    common.check_output(args)
    network = parse_network(args)
    cluster = common.parse_cluster(args.cluster)
    nccl = common.parse_nccl(args)
    recording = simulate(
        common.load_trace(args),
        cluster,
        network=network,
        nccl=nccl,
        iterations=args.iterations,
        warmup=args.warmup,
        time_scale=args.time_scale,
        gpu=GpuModel.off() if args.no_gpu_model else None,
        progress=common.progress_bar("simulate"),
        log_messages=not args.no_messages,
        log_ranks=parse_ranks(args.log_ranks),
        level=args.level,
    )
    return common.finish(args, recording)
