"""`genie experiment`: conditions x repetitions on a testbed."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from genie.commands import common
from genie.errors import InputError

if TYPE_CHECKING:
    from genie.experiment.spec import Experiment

HELP = "run conditions x repetitions on a testbed, in random order"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's options."""
    parser.add_argument(
        "spec", metavar="SPEC", help="a TOML file, or an experiment that comes with genie: figure1"
    )
    parser.add_argument(
        "-o", "--output", metavar="DIR", help="every recording, summary, report and figures"
    )
    parser.add_argument("--force", action="store_true", help="replace an experiment that is there")
    parser.add_argument(
        "--testbed",
        metavar="NETWORK",
        help="star:HOSTS, leaf-spine:LEAVESxSPINESxHOSTS, rxe:DEVICES or commands instead of the "
        "specification's; rxe alone takes as many devices as that has hosts",
    )
    parser.add_argument("--repetitions", type=int, metavar="N", help="runs of each condition")
    parser.add_argument("--seed", type=int, metavar="N", help="of the random order")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="another field, such as testbed.rate=50mbit or workload.sizes='[\"1M\"]'; repeat",
    )
    parser.add_argument(
        "--allow-cpu-limited",
        action="store_true",
        help="keep runs whose health says that the CPU was the limit, instead of stopping",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print the runs in their order, and do nothing"
    )
    common.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Run the experiment and print its summary."""
    from genie.experiment.api import experiment

    spec, folder = _spec(args)
    if args.dry_run:
        return _show(args, spec)
    result = None
    try:
        result = experiment(
            spec, output=args.output, force=args.force, progress=_progress, folder=folder
        )
        return 0
    except BaseException as error:
        result = getattr(error, "result", None)
        raise
    finally:
        if result is not None:
            _print(args, result)


def _print(args: argparse.Namespace, result: Any) -> None:
    if args.json:
        common.print_json(result.to_json())
        return
    print(result.summary())
    if args.output:
        print(f"report: {args.output}/report.html")
        for path in sorted(Path(args.output, "figures").glob("*.png")):
            print(f"figure: {path}")
    sys.stdout.flush()


def _spec(args: argparse.Namespace) -> tuple[Experiment, Path]:
    """Return the specification with what the options change."""
    from genie.experiment.spec import experiment_of, load_spec, override, to_fields, toml_value

    spec, folder = load_spec(args.spec)
    settings: dict[str, Any] = {}
    if args.testbed:
        network = args.testbed
        if network == "rxe":
            network = f"rxe:{_hosts(spec.testbed.network)}"
        settings |= spec.alternatives.get(network.partition(":")[0], {})
        settings["testbed.network"] = network
    for text in args.set:
        name, equals, value = text.partition("=")
        if not equals:
            raise InputError(f"--set {text!r}: expected FIELD=VALUE")
        settings[name] = toml_value(value)
    if args.repetitions is not None:
        settings["repetitions"] = args.repetitions
    if args.seed is not None:
        settings["seed"] = args.seed
    if args.allow_cpu_limited:
        settings["on_cpu_limit"] = "keep"
    return experiment_of(override(to_fields(spec), settings), args.spec), folder


def _hosts(network: str) -> int:
    """Return the hosts of "star:4" or "leaf-spine:2x2x4"."""
    kind, _, numbers = network.partition(":")
    parts = [int(text) for text in numbers.split("x") if text.strip().isdecimal()]
    if kind == "leaf-spine" and len(parts) == 3:
        return parts[0] * parts[2]
    if kind in ("star", "rxe") and len(parts) == 1:
        return parts[0]
    raise InputError(f"--testbed rxe: {network!r} has no number of hosts; say rxe:DEVICES")


def _show(args: argparse.Namespace, spec: Experiment) -> int:
    """Print the runs."""
    from genie.experiment.conditions import check_changes, expand, order
    from genie.replay.plan_text import table

    conditions = expand(spec)
    check_changes(conditions, spec.repetitions)
    runs = order(spec, conditions)
    if args.json:
        common.print_json(
            [
                {"run": r.number, "condition": r.condition.name, "repetition": r.repetition,
                 "phase": r.phase}
                for r in runs
            ]
        )  # fmt: skip
        return 0
    rows = [[str(r.number), r.condition.name, str(r.repetition), r.phase or "-"] for r in runs]
    print(table(["run", "condition", "repetition", "change"], rows, left=2))
    return 0


def _progress(done: int, total: int, text: str) -> None:
    """Say on stderr what is next."""
    if text:
        print(f"genie: run {done + 1} of {total}: {text}", file=sys.stderr)
