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
    )
    return common.finish(args, recording)
