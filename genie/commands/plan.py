"""`genie plan`: every choice, part, message and byte, before anything is sent."""

from __future__ import annotations

import argparse

from genie.commands import common
from genie.errors import InputError

HELP = "show choices, parts, messages and traffic before anything is sent"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's options."""
    parser.add_argument(
        "path", metavar="TRACE", nargs="?", help="folder, prefix or file of a trace set"
    )
    common.add_trace_options(parser)
    common.add_cluster(parser, required=True)
    common.add_nccl(parser)
    show = parser.add_argument_group("what to show")
    show.add_argument("--tuning", action="store_true", help="NCCL's cost table of each collective")
    show.add_argument("--parts", action="store_true", help="elements and chunk of each channel")
    show.add_argument("--messages", type=int, metavar="RANK", help="this rank's messages")
    show.add_argument("--channels", action="store_true", help="rings and trees of each channel")
    one = parser.add_argument_group("one collective instead of a trace")
    one.add_argument("--collective", metavar="KIND", help="such as all_reduce")
    one.add_argument("--count", type=int, default=1 << 20, help="elements (default %(default)s)")
    one.add_argument("--dtype", default="float32", help="element type (default %(default)s)")
    one.add_argument("--root", type=int, default=0, help="root rank (default %(default)s)")
    common.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print the plan of a trace, or of one collective."""
    cluster = common.parse_cluster(args.cluster)
    nccl = common.parse_nccl(args)
    assert cluster is not None
    if (args.path is None) == (args.collective is None):
        raise InputError("give a TRACE or --collective KIND")
    if args.collective is not None:
        return _one(args, cluster, nccl)
    return _trace(args, cluster, nccl)


def _trace(args, cluster, nccl) -> int:  # type: ignore[no-untyped-def]
    from genie.replay import plan_text
    from genie.replay.nccl.tuner import tune
    from genie.replay.plan import plan
    from genie.trace.kinds import Coll

    made = plan(common.load_trace(args), cluster, nccl=nccl)
    if args.json:
        common.print_json(
            {
                "cluster": made.cluster.name,
                "ranks": made.world_size,
                "hosts": made.n_hosts,
                "messages": made.messages,
                "nbytes": made.nbytes,
                "connections": int(made.connections.size),
                "digest": made.digest,
                "traffic": common.table_rows(made.traffic()),
                "calls": [
                    {
                        "kind": key.kind,
                        "count": key.count,
                        "dtype": key.dtype,
                        "ranks": communicator.n_ranks,
                        "algorithm": schedule.choice.algorithm if schedule.choice else "p2p",
                        "protocol": schedule.choice.protocol if schedule.choice else "simple",
                    }
                    for key, communicator, schedule in made.schedules
                ],
                "warnings": made.warnings,
            }
        )
        return 0
    print(made.describe())
    if args.channels:
        print(f"\n{made.cluster.describe()}")
    if args.parts:
        print(f"\n{plan_text.parts(made)}")
    if args.tuning:
        names = {coll.name.lower() for coll in Coll}
        for key, communicator, _ in made.schedules:
            if key.kind in names and not key.splits:
                table = tune(
                    key.kind,
                    count=key.count,
                    dtype=key.dtype,
                    cluster=communicator.cluster,
                    nccl=nccl,
                )
                print(f"\n{table.table()}")
    if args.messages is not None:
        _messages_of(made, args.messages)
    return 0


def _messages_of(plan, rank: int) -> None:  # type: ignore[no-untyped-def]
    if not 0 <= rank < plan.world_size:
        raise InputError(f"--messages {rank}: the trace has ranks 0 to {plan.world_size - 1}")
    for key, communicator, schedule in plan.schedules:
        if rank in communicator.rank_of:
            print(f"\n{key.kind} {key.count} {key.dtype}, communicator {communicator.name}")
            _print_messages(schedule.messages(communicator.rank_of[rank]))


def _print_messages(messages) -> None:  # type: ignore[no-untyped-def]
    from genie.replay.plan_text import table

    names = list(messages.dtype.names)
    rows = [[str(cell) for cell in row] for row in messages.tolist()]
    print(table(names, rows, left=0))


def _one(args, cluster, nccl) -> int:  # type: ignore[no-untyped-def]
    from genie.replay.nccl.schedule import schedule
    from genie.replay.nccl.tuner import tune

    options = {"count": args.count, "dtype": args.dtype, "cluster": cluster, "nccl": nccl}
    if args.tuning:
        print(tune(args.collective, **options).table())
        return 0
    made = schedule(args.collective, root=args.root, **options)
    if args.json:
        document: dict[str, object] = {"choice": vars(made.choice) if made.choice else None}
        document["parts"] = common.table_rows(made.parts)
        if args.messages is not None:
            document["messages"] = common.table_rows(made.messages(args.messages))
        common.print_json(document)
        return 0
    print(made)
    print(made.choice)
    if args.parts or args.messages is None:
        _print_messages(made.parts)
    if args.messages is not None:
        _print_messages(made.messages(args.messages))
    if args.channels:
        print(cluster.with_nccl(nccl).describe())
    return 0
