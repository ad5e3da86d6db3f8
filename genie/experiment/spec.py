"""What an experiment is: testbed, workload, conditions, repetitions; read from TOML or Python."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from genie.errors import InputError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

BUNDLED = Path(__file__).parents[1] / "data" / "experiments"


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class LinkSpec(_Section, frozen=True, kw_only=True):
    """What a link does; what is not given stays as it is.

    Attributes:
        rate: Bits per second, such as "100mbit"; "0" is unshaped.
        delay: One way, such as "1ms".
        loss: Share of packets that are dropped, such as "1%".
    """

    rate: str | None = None
    delay: str | None = None
    loss: str | None = None


class Change(LinkSpec, frozen=True, kw_only=True):
    """Something that happens to a condition half-way: from its run `from_run` (1, 2, ...) on.

    The simulation does not know of it.

    Attributes:
        from_run: First run of the condition that has it.
        links: Link, direction or group ("h2", "h2.rx", "l0s1", "hosts", "uplinks") → what it does.
        before: Shell commands before each such run (testbed "commands").
        after: Shell commands after each such run, also after one that failed.
    """

    from_run: int
    links: dict[str, LinkSpec] = {}
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()


class Condition(LinkSpec, frozen=True, kw_only=True):
    """One way to run the workload. `rate`, `delay` and `loss` are those of all hosts' links.

    Attributes:
        name: What it is called; "" makes one of what differs.
        links: Link, direction or group → what it does instead.
        mtu: Of every interface of the testbed, bytes; 0 is the testbed's.
        hash_seed: Seed of the ECMP hash (leaf-spine).
        qps: Connections in parallel: NCCL_IB_QPS_PER_CONNECTION, for TCP sockets a connection.
        traffic_class: NCCL_IB_TC (DSCP x 4 + ECN); for TCP the IP header's TOS byte.
        algorithm: NCCL_ALGO.
        protocol: NCCL_PROTO.
        env: Further NCCL_* settings.
        options: Further options of the transport, such as congestion = "reno".
        changes: What happens half-way.
        before: Shell commands before each run (testbed "commands").
        after: Shell commands after each run, also after one that failed.
    """

    name: str = ""
    links: dict[str, LinkSpec] = {}
    mtu: int = 0
    hash_seed: int | None = None
    qps: int = 0
    traffic_class: int | None = None
    algorithm: str = ""
    protocol: str = ""
    env: dict[str, str] = {}
    options: dict[str, Any] = {}
    changes: tuple[Change, ...] = ()
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()


class Testbed(LinkSpec, frozen=True, kw_only=True):
    """Where it runs. `rate`, `delay` and `loss` are the hosts' links' where no condition says.

    Attributes:
        network: "star:HOSTS" or "leaf-spine:LEAVES x SPINES x HOSTS" (hosts a leaf) in network
            namespaces; "rxe:DEVICES", Soft-RoCE devices on one bridge, inside a guest or on a
            machine for tests; "commands", the user's own hosts and switches.
        uplink: What every link between leaf and spine does.
        mtu: Of every interface, bytes; 0 is 1500, with Soft-RoCE 4200.
        endpoints: Hosts, for "commands".
        transport: For "commands": "auto", "tcp" or "verbs".
        gpus: Ranks of a host, where no cluster is given.
        cluster: The emulated machine, such as "a100x4:4"; "" is `Cluster.local`.
        latency: One-way latency that the simulation takes, beside delays.
        setup: Shell commands before the first run, for "commands".
        teardown: Shell commands after the last, whatever happened.
    """

    network: str = "star:4"
    rate: str | None = "100mbit"
    uplink: LinkSpec = LinkSpec()
    mtu: int = 0
    endpoints: tuple[str, ...] = ()
    transport: str = "auto"
    gpus: int = 1
    cluster: str = ""
    latency: str = "50us"
    setup: tuple[str, ...] = ()
    teardown: tuple[str, ...] = ()


class Workload(_Section, frozen=True, kw_only=True):
    """What every run does: a collective of some sizes, or a trace.

    Attributes:
        collective: Such as "all_reduce"; not with `trace`.
        sizes: nccl-tests' sizes, such as "4M".
        dtype: Element type.
        root: Of a rooted collective.
        trace: Path of a trace set, from the specification's folder.
        groups: Group file of the trace.
        elements: Element type of a trace whose sizes are elements.
        iterations: Measured iterations of a run.
        warmup: Iterations before them.
        time_scale: Factor on compute.
        gpu_model: Whether the GPU-time model is on.
    """

    collective: str = ""
    sizes: tuple[str, ...] = ("4M",)
    dtype: str = "float32"
    root: int = 0
    trace: str = ""
    groups: str | None = None
    elements: str | None = None
    iterations: int = 3
    warmup: int = 1
    time_scale: float = 1.0
    gpu_model: bool = False


class Experiment(_Section, frozen=True, kw_only=True):
    """The whole of it.

    Attributes:
        name: A word.
        title: A line.
        seed: Of the random order of the runs.
        repetitions: Runs of each condition.
        confidence: Of the intervals.
        on_cpu_limit: What follows a run whose health says that the CPU was its limit: "stop", or
            "keep" it, marked.
        on_failure: What follows a run that failed: "stop", or "keep" what was recorded, and go on.
        timeout: A run without progress for this long has failed.
        nccl_version: What is emulated.
        simulate: Whether each condition is simulated too.
        testbed: Where.
        workload: What.
        conditions: How.
        alternatives: Kind of a testbed ("rxe") → fields, such as "testbed.rate", that `genie
            experiment --testbed KIND` sets.
        sweep: Field of a condition, or "env.NCCL_...", → values; every condition is run with each
            combination.
    """

    name: str = "experiment"
    title: str = ""
    seed: int = 1
    repetitions: int = 5
    confidence: float = 0.95
    on_cpu_limit: Literal["stop", "keep"] = "stop"
    on_failure: Literal["stop", "keep"] = "stop"
    timeout: str = "60s"
    nccl_version: str = "2.30"
    simulate: bool = True
    testbed: Testbed = Testbed()
    workload: Workload = Workload()
    conditions: tuple[Condition, ...] = (Condition(name="as it is"),)
    sweep: dict[str, tuple[Any, ...]] = {}
    alternatives: dict[str, dict[str, Any]] = {}


def bundled() -> list[str]:
    """Return the names of the experiments that come with genie."""
    return sorted(path.stem for path in BUNDLED.glob("*.toml"))


def load_spec(
    source: str | os.PathLike[str] | Mapping[str, Any] | Experiment,
) -> tuple[Experiment, Path]:
    """Return an experiment and the folder that its paths start from.

    Args:
        source: A TOML file, the name of a bundled experiment, its fields, or an `Experiment`.

    Raises:
        InputError: Not there, not TOML, an unknown field, or a wrong value; says which.
    """
    if isinstance(source, Experiment):
        return source, Path.cwd()
    if isinstance(source, Mapping):
        return _convert(dict(source), "experiment"), Path.cwd()
    path = Path(source)
    if not path.exists() and str(source) in bundled():
        path = BUNDLED / f"{source}.toml"
    return _convert(read_toml(path), str(path)), path.parent


def read_toml(path: Path) -> dict[str, Any]:
    """Return the fields in a TOML file.

    Raises:
        InputError: It cannot be read.
    """
    try:
        found: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(
            f"no experiment {str(path)!r}: expected a TOML file or one of {', '.join(bundled())}"
        ) from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"{path}: not readable as TOML: {error}") from error
    return found


def toml_value(text: str) -> Any:
    """Return what TOML reads in `text`, or the text itself."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def override(fields: dict[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return `fields` with "testbed.rate" and the like set."""
    out: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(fields))
    for dotted, value in settings.items():
        *sections, name = dotted.split(".")
        at = out
        for section in sections:
            at = at.setdefault(section, {})
            if not isinstance(at, dict):
                raise InputError(f"{dotted}: {section} is no section of an experiment")
        at[name] = value
    return out


def experiment_of(fields: dict[str, Any], where: str) -> Experiment:
    """Return the experiment in `fields`, which `where` names in errors."""
    return _convert(fields, where)


def _convert(fields: dict[str, Any], where: str) -> Experiment:
    try:
        return msgspec.convert(fields, Experiment)
    except msgspec.ValidationError as error:
        raise InputError(f"{where}: {error}") from error


def to_fields(spec: Experiment) -> dict[str, Any]:
    """Return all fields as plain values, defaults included."""
    found: dict[str, Any] = msgspec.to_builtins(spec)
    return found
