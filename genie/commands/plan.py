"""`genie plan`: every choice, part, message and byte, before anything is sent."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from genie.commands import common
from genie.errors import InputError

if TYPE_CHECKING:
    from genie.replay.nccl.env import Nccl
    from genie.replay.nccl.tuner import Tuning

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
    common.add_output(parser, "plan")
    common.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print the plan of a trace, or of one collective; keep it if asked."""
    common.check_output(args, "plan" if args.collective is None else "schedule")
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
    from genie.replay.plan import plan

    made = plan(common.load_trace(args), cluster, nccl=nccl)
    for text in made.warnings:
        common.warn(text)
    if args.messages is not None and not 0 <= args.messages < made.world_size:
        raise InputError(
            f"--messages {args.messages}: the trace has ranks 0 to {made.world_size - 1}"
        )
    if args.output:
        made.save(args.output, force=args.force)
    if args.json:
        common.print_json(_document(args, made, nccl))
        return 0
    print(plan_text.describe(made, warnings=False))
    if args.channels:
        print(f"\n{made.cluster.describe()}")
    if args.parts:
        print(f"\n{plan_text.parts(made)}")
    if args.tuning:
        for key, communicator, schedule in made.schedules:
            if schedule.choice is not None:
                print(f"\n{_tuning_of(key, communicator, nccl).table()}")
    if args.messages is not None:
        _messages_of(made, args.messages)
    if args.output:
        print(f"\nplan: {args.output}")
    return 0


def _document(args, made, nccl) -> dict[str, object]:  # type: ignore[no-untyped-def]
    """Return the plan as one document, with the sections that were asked for."""
    calls = []
    for key, communicator, schedule in made.schedules:
        call: dict[str, object] = {
            "kind": key.kind,
            "count": key.count,
            "dtype": key.dtype,
            "communicator": communicator.name,
            "ranks": communicator.n_ranks,
            "algorithm": schedule.choice.algorithm if schedule.choice else "p2p",
            "protocol": schedule.choice.protocol if schedule.choice else "simple",
        }
        if args.parts:
            call["parts"] = common.table_rows(schedule.parts)
        if args.tuning and schedule.choice is not None:
            call["tuning"] = common.table_rows(_tuning_of(key, communicator, nccl).rows)
        if args.messages is not None and args.messages in communicator.rank_of:
            sent = schedule.messages(communicator.rank_of[args.messages])
            call["messages"] = common.table_rows(sent)
        calls.append(call)
    document: dict[str, object] = {
        "cluster": made.cluster.name,
        "ranks": made.world_size,
        "hosts": made.n_hosts,
        "messages": made.messages,
        "nbytes": made.nbytes,
        "connections": int(made.connections.size),
        "digest": made.digest,
        "traffic": common.table_rows(made.traffic()),
        "calls": calls,
        "warnings": made.warnings,
    }
    if args.channels:
        document["channels"] = _channels(made.cluster)
    return document


def _tuning_of(key: Any, communicator: Any, nccl: Nccl) -> Tuning:
    from genie.replay.nccl.tuner import tune

    return tune(key.kind, count=key.count, dtype=key.dtype, cluster=communicator.cluster, nccl=nccl)


def _channels(cluster) -> list[dict[str, object]]:  # type: ignore[no-untyped-def]
    return [
        {
            "channel": number,
            "ring": list(channel.ring),
            "tree_up": [channel.tree_up[rank] for rank in range(cluster.n_ranks)],
            "tree_down": [channel.tree_down[rank] for rank in range(cluster.n_ranks)],
        }
        for number, channel in enumerate(cluster.channels)
    ]


def _messages_of(plan, rank: int) -> None:  # type: ignore[no-untyped-def]
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
    effective = cluster.with_nccl(nccl)
    if not effective.exact:
        common.warn("; ".join(effective.notes))
    if args.tuning and args.output:
        raise InputError("--tuning shows a table; -o keeps the schedule: ask for one of them")
    if args.tuning and not args.json:
        print(tune(args.collective, **options).table())
        return 0
    made = schedule(args.collective, root=args.root, **options)
    messages = None if args.messages is None else made.messages(args.messages)
    if args.output:
        made.save(args.output, force=args.force, rank=args.messages)
    if args.json:
        document: dict[str, object] = {
            "choice": vars(made.choice) if made.choice else None,
            "parts": common.table_rows(made.parts),
        }
        if args.tuning:
            document["tuning"] = common.table_rows(tune(args.collective, **options).rows)
        if messages is not None:
            document["messages"] = common.table_rows(messages)
        if args.channels:
            document["channels"] = _channels(effective)
        common.print_json(document)
        return 0
    print(made)
    print(made.choice)
    if args.parts or messages is None:
        _print_messages(made.parts)
    if messages is not None:
        _print_messages(messages)
    if args.channels:
        print(effective.describe())
    if args.output:
        print(f"schedule: {args.output}")
    return 0
