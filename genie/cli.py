"""The `genie` command: a verb is one public function; its options are the function's keywords."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from genie.errors import GenieError

#: Verbs in the order of `genie --help`; each is the module genie.commands.<name>.
VERBS = (
    "inspect",
    "plan",
    "replay",
    "simulate",
    "bench",
    "compare",
    "figure",
    "check",
    "workload",
    "experiment",
    "selftest",
)


def build_parser(verbs: Sequence[str] = VERBS) -> argparse.ArgumentParser:
    """Return the argument parser of the whole command."""
    from genie import __version__

    parser = argparse.ArgumentParser(
        prog="genie",
        description="Replay an ML training job's network traffic from CPU-only hosts.",
    )
    parser.add_argument("--version", action="version", version=f"genie {__version__}")
    sub = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for verb in verbs:
        module = _module(verb)
        if module is None:
            continue
        command = sub.add_parser(
            verb,
            help=module.HELP,
            description=module.HELP,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(command)
        command.set_defaults(handler=module.run)
    return parser


def _module(verb: str):  # type: ignore[no-untyped-def]
    name = f"genie.commands.{verb}"
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        return None


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 0 ok, 1 a `GenieError`, 3 a threshold missed."""
    argv = list(sys.argv[1:] if argv is None else argv)
    # Only the verb asked for is imported, so that starting stays cheap.
    verbs = [argv[0]] if argv and argv[0] in VERBS else VERBS
    args = build_parser(verbs).parse_args(argv)
    try:
        code = args.handler(args)
        sys.stdout.flush()
        return int(code or 0)
    except GenieError as error:
        print(f"genie {args.verb}: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"genie {args.verb}: interrupted", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # The reader of our output went away (`| head`): nothing more to say.
        sys.stderr.close()
        return 1
    except OSError as error:
        print(f"genie {args.verb}: error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
