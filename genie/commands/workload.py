"""`genie workload`: the traffic of a named training job as a Chakra trace set."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from genie.commands import common
from genie.errors import InputError

if TYPE_CHECKING:
    from genie.workload.imports import Import
    from genie.workload.job import Workload
    from genie.workload.patterns import PatternJob

HELP = "make the traffic of a training job as Chakra traces"

_WHOLE = {
    "dp": "data-parallel replicas",
    "tp": "tensor parallel",
    "pp": "pipeline stages",
    "vpp": "model chunks a stage (interleaved schedule)",
    "cp": "context parallel",
    "ep": "expert parallel",
    "etp": "tensor parallel of the experts",
    "zero": "0 replicated, 1 optimizer, 2 gradients, 3 parameters sharded (FSDP)",
    "shard": "ranks of a ZeRO-3 shard group (HSDP)",
    "batch": "sequences (samples) a step, over all ranks",
    "micro": "sequences (samples) a micro-batch (default 1)",
    "micro-batches": "micro-batches a step (default 2 x pp)",
    "seq": "tokens a sequence (default: the model's)",
    "layers": "layers instead of the model's",
    "bucket-parameters": "parameters of a gradient bucket",
    "iterations": "training steps in the trace (default 1)",
    "replicas": "generate only the first N of the dp replicas; among them the same bytes a rank",
    "seed": "of everything drawn (default 0)",
}
#: Options that change an existing trace set.
_SETS = ("merge", "take", "scale_bytes", "scale_compute", "steps")
_PATTERN_WHOLE = {
    "ranks": "ranks of a pattern (default 16)",
    "per-host": "ranks a host (default 8)",
    "repeat": "rounds, of each size (default 1)",
    "root": "where an incast ends",
    "tenants": "jobs side by side",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's options."""
    parser.add_argument(
        "spec",
        metavar="SPEC|NAME",
        nargs="?",
        help="TOML file, known model, pattern, AICB file or nccl-tests command",
    )
    parser.add_argument("--list", action="store_true", help="list known models and GPUs")
    for name, text in _WHOLE.items():
        parser.add_argument(f"--{name}", type=int, metavar="N", help=text)
    yes_no = argparse.BooleanOptionalAction
    parser.add_argument("--sp", action=yes_no, help="sequence parallel (default: when tp > 1)")
    parser.add_argument("--reshard", action=yes_no, help="ZeRO-3 frees parameters after forward")
    parser.add_argument("--overlap-grads", action=yes_no, help="reduce gradients behind backward")
    parser.add_argument("--overlap-params", action=yes_no, help="gather parameters ahead")
    parser.add_argument("--overlap-p2p", action=yes_no, help="send between stages in background")
    parser.add_argument("--even", action=yes_no, help="every expert gets the same tokens")
    parser.add_argument("--cp-comm", choices=["p2p", "all_gather"], help="context parallel form")
    parser.add_argument(
        "--schedule", choices=["1f1b", "interleaved", "zero-bubble", "gpipe"], help="of a pipeline"
    )
    parser.add_argument("--recompute", choices=["none", "full"], help="activations")
    parser.add_argument("--attention", choices=["flash", "unfused"], help="attention kernels")
    parser.add_argument("--skew", type=float, help="Zipf exponent of expert popularity")
    parser.add_argument("--gpu", help="GPU of the roofline (default h100)")
    parser.add_argument("--efficiency", type=float, help="factor on the roofline's efficiencies")
    parser.add_argument("--times", metavar="CSV", help="measured operator times (name, time_us)")
    parser.add_argument("--compute-dtype", metavar="DTYPE", help="of matrix products")
    parser.add_argument("--gradient-dtype", metavar="DTYPE", help="of gradient reductions")
    parser.add_argument("--dispatch-dtype", metavar="DTYPE", help="of an expert dispatch")
    parser.add_argument(
        "--group-names",
        choices=["megatron", "pytorch"],
        help="TENSOR_MODEL_PARALLEL_GROUP_0, or numbers (for tools that need them)",
    )
    group = parser.add_argument_group("traffic patterns")
    for name, text in _PATTERN_WHOLE.items():
        group.add_argument(f"--{name}", type=int, metavar="N", help=text)
    group.add_argument("--size", metavar="BYTES", help="of a transfer or collective (default 1M)")
    group.add_argument("--end", metavar="BYTES", help="last size of a sweep")
    group.add_argument("--factor", type=float, help="from one size of a sweep to the next")
    group.add_argument("--gap", metavar="TIME", help="pause before each round, such as 100us")
    group.add_argument("--coll", help="collective of rail, size-sweep and tenants")
    group.add_argument("--dtype", help="element type")
    group = parser.add_argument_group("trace sets (SPEC is a folder, prefix or file of one)")
    group.add_argument("--merge", action="append", metavar="TRACE", help="run beside it; repeat")
    group.add_argument("--take", metavar="RANKS", help="keep only these ranks, such as 0-7,16")
    group.add_argument("--scale-bytes", type=float, metavar="F", help="factor on message sizes")
    group.add_argument("--scale-compute", type=float, metavar="F", help="factor on compute times")
    group.add_argument("--steps", type=int, metavar="N", help="run it N times")
    parser.add_argument("--name", help="prefix of the files (default: the model's name)")
    parser.add_argument("-o", "--output", metavar="DIR", help="write the trace set here")
    parser.add_argument("--force", action="store_true", help="replace a trace set in that folder")
    common.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Check the job, write it if asked, and say what it is."""
    from genie.workload.generate import PATTERN_SETTINGS, SETTINGS, prepare
    from genie.workload.job import Workload

    if args.output is not None:
        common.check_folder(args.output)
    if args.list:
        return _list(args)
    if args.spec is None:
        raise InputError("say what: a TOML file, a known model or a pattern (--list shows them)")
    if any(getattr(args, name) is not None for name in _SETS):
        return _transform(args)
    names = {*SETTINGS, *PATTERN_SETTINGS, "replicas"}
    settings = {name: getattr(args, name, None) for name in names}
    job = prepare(args.spec, **{k: v for k, v in settings.items() if v is not None})
    said = _describe(job) if isinstance(job, Workload) else _describe_given(job)
    if args.output:
        job.write(_folder(args), progress=common.progress_bar("workload"))
        said["output"] = args.output
    if not said["memory"].get("fits", True):
        common.warn(
            f"the job does not fit: {said['memory']['total'] / 1e9:.1f} GB on a rank of stage "
            f"{said['memory']['stage']}, {said['memory']['capacity'] / 1e9:.0f} GB on a GPU"
        )
    if args.json:
        common.print_json(said)
    else:
        print(_text(said))
    return 0


def _transform(args: argparse.Namespace) -> int:
    from genie.trace import load
    from genie.workload.sets import parse_ranks, transformed

    if not args.output:
        raise InputError("say where the new trace set goes: -o DIR")
    given = {name: getattr(args, name) for name in _SETS if getattr(args, name) is not None}
    if "take" in given:
        given["take"] = parse_ranks(given["take"])
    trace = load(args.spec)
    made = load(transformed(trace, _folder(args), name=args.name or "job", **given))
    said = {"ranks": made.world_size, "groups": len(made.groups), "output": args.output}
    if args.json:
        common.print_json(said)
    else:
        print(
            f"ranks       {said['ranks']}\ngroups      {said['groups']}\ntraces      {args.output}"
        )
    return 0


def _folder(args: argparse.Namespace) -> Path:
    from genie.workload.generate import new_folder

    target = Path(args.output)
    if args.force and target.is_dir():
        # Only what a trace set consists of is replaced.
        others = [e for e in target.iterdir() if e.suffix != ".et" and ".groups." not in e.name]
        if others:
            raise InputError(f"{target} holds {others[0].name}, which is no part of a trace set")
        shutil.rmtree(target)
    return new_folder(target)


def _list(args: argparse.Namespace) -> int:
    from genie.workload.cost import gpu_names
    from genie.workload.models import model, model_names
    from genie.workload.patterns import KINDS
    from genie.workload.shapes import parameters

    models = {
        name: parameters(model(name)) if model(name).family == "transformer" else None
        for name in model_names()
    }
    if args.json:
        common.print_json({"models": models, "gpus": gpu_names(), "patterns": list(KINDS)})
        return 0
    for name, count in models.items():
        print(f"{name:18}{f'{count / 1e9:8.1f} B parameters' if count else '':>22}")
    print("GPUs: " + ", ".join(gpu_names()))
    print("patterns: " + ", ".join(KINDS))
    return 0


def _describe(job: Workload) -> dict[str, Any]:
    import msgspec

    from genie.workload.memory import fullest

    spec = job.spec
    said: dict[str, Any] = {
        "name": spec.name,
        "ranks": job.world_size,
        "micro_batches": spec.micro_batches,
        "batch": spec.samples,
        "micro": spec.micro,
        "sequence": spec.sequence,
        "spec": msgspec.to_builtins(spec),
        "memory": {},
    }
    memory = fullest(spec, job.layout, job.roofline)
    said["memory"] = {
        name: getattr(memory, name)
        for name in (
            "stage", "weights", "gradients", "optimizer", "activations", "total", "capacity",
            "fits",
        )
    }  # fmt: skip
    return said


def _describe_given(job: PatternJob | Import) -> dict[str, Any]:
    import msgspec

    pattern = getattr(job, "pattern", None)
    settings = {} if pattern is None else msgspec.to_builtins(pattern)
    return {"name": job.name, "pattern": {"ranks": job.world_size, **settings}, "memory": {}}


def _text(said: dict[str, Any]) -> str:
    if "pattern" in said:
        settings = " ".join(f"{k} {v}" for k, v in said["pattern"].items() if k != "kind")
        lines = [f"traffic     {said['name']}", f"settings    {settings}"]
        return "\n".join([*lines, *([f"traces      {said['output']}"] if "output" in said else [])])
    spec, memory = said["spec"], said["memory"]
    p = spec["parallelism"]
    ways = " ".join(f"{k} {p[k]}" for k in ("tp", "cp", "ep", "dp", "pp", "vpp") if p[k] > 1)
    tokens = f", {said['sequence']} tokens each" if spec["model"]["layers"] else ""
    lines = [
        f"workload    {said['name']}: {spec['model']['name']}",
        f"ranks       {said['ranks']}" + (f" ({ways}, zero {p['zero']})" if ways else ""),
        f"batch       {said['batch']} sequences a step, {said['micro_batches']} micro-batches of "
        f"{said['micro']}{tokens}",
    ]
    if memory:
        parts = ", ".join(
            f"{name} {memory[name] / 1e9:.3g}"
            for name in ("weights", "gradients", "optimizer", "activations")
        )
        lines.append(
            f"memory      about {memory['total'] / 1e9:.3g} of {memory['capacity'] / 1e9:.0f} GB "
            f"on a rank of stage {memory['stage']} ({parts})"
        )
    if "output" in said:
        lines.append(f"traces      {said['output']}")
    return "\n".join(lines)
