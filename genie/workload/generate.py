"""`workload()`: a spec to a trace, and how single settings change a spec."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from genie.errors import InputError

if TYPE_CHECKING:
    from genie.trace import Trace
    from genie.workload.imports import Import
    from genie.workload.job import Workload
    from genie.workload.patterns import PatternJob
    from genie.workload.spec import Spec

#: Setting: (section, field); "" is the spec itself.
SETTINGS: dict[str, tuple[str, str]] = {
    **{
        name: ("parallelism", name)
        for name in (
            "dp", "tp", "sp", "pp", "vpp", "stage_layers", "cp", "cp_comm", "ep", "etp", "zero",
            "shard", "reshard",
        )
    },
    "schedule": ("schedule", "kind"),
    "overlap_grads": ("schedule", "overlap_grads"),
    "overlap_params": ("schedule", "overlap_params"),
    "overlap_p2p": ("schedule", "overlap_p2p"),
    "bucket_parameters": ("schedule", "bucket_parameters"),
    "recompute": ("schedule", "recompute"),
    "attention": ("schedule", "attention"),
    "gpu": ("hardware", "gpu"),
    "efficiency": ("hardware", "efficiency"),
    "times": ("hardware", "times"),
    "comm_sms": ("hardware", "comm_sms"),
    "batch": ("batch", "size"),
    "micro": ("batch", "micro"),
    "micro_batches": ("batch", "micro_batches"),
    "seq": ("batch", "sequence"),
    "compute_dtype": ("precision", "compute"),
    "gradient_dtype": ("precision", "gradients"),
    "dispatch_dtype": ("precision", "dispatch"),
    "skew": ("routing", "skew"),
    "even": ("routing", "even"),
    "layers": ("model", "layers"),
    "mtp": ("model", "mtp"),
    "iterations": ("", "iterations"),
    "seed": ("", "seed"),
    "name": ("", "name"),
    "group_names": ("", "group_names"),
}  # fmt: skip


def change(spec: Spec, settings: Mapping[str, Any]) -> Spec:
    """Return a spec with single settings changed; None leaves one as it is.

    More than one chunk a stage asks for the interleaved schedule unless a schedule is given, and
    one of `batch` and `micro_batches` replaces what the spec says of the other.

    Raises:
        InputError: A setting is unknown or has the wrong type.
    """
    import msgspec

    from genie.workload.spec import from_mapping

    given = {name: value for name, value in settings.items() if value is not None}
    unknown = sorted(set(given) - set(SETTINGS))
    if unknown:
        raise InputError(f"unknown setting {', '.join(unknown)} (known: {', '.join(SETTINGS)})")
    if not given:
        return spec
    if given.get("vpp", 1) > 1 and spec.schedule.kind == "1f1b":
        given.setdefault("schedule", "interleaved")
    if "batch" in given:
        given.setdefault("micro_batches", 0)
    elif "micro_batches" in given:
        given["batch"] = 0
    document = msgspec.to_builtins(spec)
    for name, value in given.items():
        section, field = SETTINGS[name]
        (document[section] if section else document)[field] = value
    return from_mapping(document, "settings")


#: Settings of a pattern: field of `Pattern`.
PATTERN_SETTINGS = {
    "ranks": "ranks", "per_host": "per_host", "size": "nbytes", "end": "end", "factor": "factor",
    "repeat": "repeat", "gap": "gap_ns", "coll": "coll", "dtype": "dtype", "root": "root",
    "tenants": "tenants", "seed": "seed",
}  # fmt: skip


def _pattern(kind: str, settings: Mapping[str, Any]) -> PatternJob:
    import msgspec

    from genie.units import parse_size, parse_time
    from genie.workload.patterns import Pattern, PatternJob

    given = {name: value for name, value in settings.items() if value is not None}
    unknown = sorted(set(given) - set(PATTERN_SETTINGS))
    if unknown:
        raise InputError(
            f"unknown setting {', '.join(unknown)} of a pattern (known: "
            f"{', '.join(PATTERN_SETTINGS)})"
        )
    for name, parse in (("size", parse_size), ("end", parse_size), ("gap", parse_time)):
        if isinstance(given.get(name), str):
            given[name] = parse(given[name])
    fields = {PATTERN_SETTINGS[name]: value for name, value in given.items()}
    try:
        return PatternJob(msgspec.convert({"kind": kind, **fields}, Pattern))
    except msgspec.ValidationError as error:
        raise InputError(f"{kind}: {error}") from error


def _import(what: str | os.PathLike[str], settings: Mapping[str, Any]) -> Import | None:
    from genie.workload.aicb import Aicb, is_aicb
    from genie.workload.imports import NcclTests

    text = os.fspath(what)
    given = {name: value for name, value in settings.items() if value is not None}
    if "_perf" in text and not Path(text).exists():
        ranks = given.pop("ranks", None)
        job: Import = NcclTests(text, ranks)
    elif is_aicb(text):
        job = Aicb(text)
    else:
        return None
    if given:
        raise InputError(f"{text}: {', '.join(given)} cannot be changed: the traffic is given")
    return job


def prepare(
    spec: str | os.PathLike[str] | Mapping[str, Any] | Spec, **settings: Any
) -> Workload | PatternJob | Import:
    """Return a checked job without generating any rank.

    Args:
        spec: As `workload`.
        **settings: As `workload`.

    Raises:
        InputError: As `workload`.
    """
    from genie.workload.job import Workload
    from genie.workload.models import find_spec
    from genie.workload.patterns import KINDS

    if isinstance(spec, str) and spec in KINDS:
        return _pattern(spec, settings)
    if isinstance(spec, str | os.PathLike) and (job := _import(spec, settings)) is not None:
        return job
    replicas = settings.pop("replicas", None) or 0
    return Workload(change(find_spec(spec), settings), replicas)


def workload(
    spec: str | os.PathLike[str] | Mapping[str, Any] | Spec,
    *,
    output: str | os.PathLike[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
    **settings: Any,
) -> Trace:
    """Return the trace of a training job that nobody has to run.

    Args:
        spec: Name of a known model ("llama3-8b") or traffic pattern ("incast"), a TOML file, the
            same as a mapping, a `Spec`, a SimAI/AICB text workload, or an nccl-tests command line.
        output: Folder to keep the trace set in; without one it lives as long as the trace.
        progress: Called with (ranks written, ranks in all).
        **settings: Single settings over the spec: dp, tp, sp, pp, vpp, cp, ep, etp, zero, shard,
            schedule, batch, micro, micro_batches, seq, gpu, iterations, seed, ...; `replicas`
            (only the first so many data-parallel replicas are generated); of a pattern ranks,
            per_host, size, end, factor, repeat, gap, coll, dtype, root, tenants, seed.

    Raises:
        InputError: The spec cannot be read, or breaks a rule.
    """
    from genie.trace import load

    job = prepare(spec, **settings)
    if output is not None:
        return load(job.write(new_folder(output), progress=progress))
    # A folder of its own, removed with the trace: names are read from the files when asked for.
    kept = tempfile.mkdtemp(prefix="genie-workload-")
    try:
        trace = load(job.write(kept, progress=progress))
    except BaseException:
        shutil.rmtree(kept, ignore_errors=True)
        raise
    weakref.finalize(trace, shutil.rmtree, kept, ignore_errors=True)
    return trace


def new_folder(folder: str | os.PathLike[str]) -> Path:
    """Return a folder that traces can be written to.

    Raises:
        InputError: There is something in it already.
    """
    target = Path(folder)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError(f"{target} exists and is not an empty folder")
    return target
