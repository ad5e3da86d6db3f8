"""Which runs there are, in which order, and what each of them does to the network."""

from __future__ import annotations

import itertools
import random
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from genie.errors import InputError
from genie.experiment.links import Link, LinkState, States, apply
from genie.experiment.spec import Condition

if TYPE_CHECKING:
    from genie.experiment.spec import Change, Experiment, LinkSpec, Testbed
    from genie.replay.nccl.env import Nccl

_ENV = "env."


@dataclass(frozen=True)
class Run:
    """One run to be made.

    Attributes:
        number: Place in the order, from 1.
        condition: What is run.
        repetition: Which run of its condition, from 1.
        changes: Those of the condition that are in force.
    """

    number: int
    condition: Condition
    repetition: int
    changes: tuple[Change, ...]

    @property
    def phase(self) -> str:
        """What tells this run from earlier ones of its condition: "from run K", or nothing."""
        return f"from run {max(c.from_run for c in self.changes)}" if self.changes else ""

    @property
    def folder(self) -> str:
        """Name of the folder that its recording is kept in."""
        word = re.sub(r"[^A-Za-z0-9.=-]+", "-", self.condition.name).strip("-.") or "condition"
        return f"{self.number:04d}-{word[:60]}"


def expand(spec: Experiment) -> tuple[Condition, ...]:
    """Return every condition, the sweep's combinations made out, all named and different.

    Raises:
        InputError: No condition, an unknown field, or two of one name.
    """
    if not spec.conditions:
        raise InputError("an experiment needs one condition at least")
    for field in spec.sweep:
        if not field.startswith(_ENV) and field not in _SWEPT:
            raise InputError(f"sweep.{field}: expected {', '.join(_SWEPT)} or env.NCCL_…")
        if not spec.sweep[field]:
            raise InputError(f"sweep.{field}: no values")
    out = []
    for condition in spec.conditions:
        for values in itertools.product(*spec.sweep.values()):
            chosen = dict(zip(spec.sweep, values, strict=True))
            out.append(_with(condition, chosen))
    twice = [name for name, n in Counter(c.name for c in out).items() if n > 1]
    if twice:
        raise InputError(f"two conditions are called {twice[0]!r}")
    return tuple(out)


_SWEPT = (
    "rate", "delay", "loss", "mtu", "hash_seed", "qps", "traffic_class", "algorithm", "protocol",
)  # fmt: skip


def _with(condition: Condition, chosen: dict[str, Any]) -> Condition:
    env = {k.removeprefix(_ENV): str(v) for k, v in chosen.items() if k.startswith(_ENV)}
    fields = {k: v for k, v in chosen.items() if not k.startswith(_ENV)}
    named = ", ".join(f"{k.removeprefix(_ENV)}={v}" for k, v in chosen.items())
    name = ", ".join(part for part in (condition.name, named) if part) or "as it is"
    made = msgspec.to_builtins(condition) | fields
    made |= {"name": name, "env": {**condition.env, **env}}
    try:
        return msgspec.convert(made, Condition)
    except msgspec.ValidationError as error:
        raise InputError(f"sweep of {', '.join(chosen)}: {error}") from error


def order(spec: Experiment, conditions: tuple[Condition, ...]) -> tuple[Run, ...]:
    """Return all runs in random order, decided by the seed alone.

    Runs of one condition are alike but for its changes, so its k-th run in the order is its
    repetition k.
    """
    if spec.repetitions < 1:
        raise InputError(f"repetitions {spec.repetitions}: expected 1 or more")
    deck = [c for c in conditions for _ in range(spec.repetitions)]
    random.Random(spec.seed).shuffle(deck)
    seen: Counter[str] = Counter()
    runs = []
    for number, condition in enumerate(deck, 1):
        seen[condition.name] += 1
        turn = seen[condition.name]
        active = tuple(change for change in condition.changes if turn >= change.from_run)
        runs.append(Run(number, condition, turn, active))
    return tuple(runs)


def check_changes(conditions: tuple[Condition, ...], repetitions: int) -> None:
    """Refuse a change that no run has or that all runs have."""
    for condition in conditions:
        for change in condition.changes:
            if not 2 <= change.from_run <= repetitions:
                raise InputError(
                    f"condition {condition.name!r}: a change from run {change.from_run} on, of "
                    f"{repetitions} runs: expected 2 to {repetitions}"
                )


def base_states(links: tuple[Link, ...], testbed: Testbed, condition: Condition) -> States:
    """Return what every link does under a condition, without its changes."""
    hosts = LinkState().updated(testbed).updated(condition)
    uplinks = LinkState().updated(testbed).updated(testbed.uplink)
    states = {
        (link.name, way): hosts if link.group == "hosts" else uplinks
        for link in links
        for way in ("tx", "rx")
    }
    return apply(links, states, condition.links)


def states_of(links: tuple[Link, ...], testbed: Testbed, run: Run) -> States:
    """Return what every link does in a run."""
    states = base_states(links, testbed, run.condition)
    if not links:
        return states
    for change in sorted(run.changes, key=lambda c: c.from_run):
        specs: dict[str, LinkSpec] = dict(change.links)
        if (change.rate, change.delay, change.loss) != (None, None, None):
            states = apply(links, states, {"hosts": change})
        states = apply(links, states, specs)
    return states


def nccl_of(spec: Experiment, condition: Condition) -> Nccl:
    """Return the NCCL settings of a condition."""
    from genie.replay.nccl.env import Nccl

    env = dict(condition.env)
    for name, value in (
        ("NCCL_ALGO", condition.algorithm),
        ("NCCL_PROTO", condition.protocol),
        ("NCCL_IB_QPS_PER_CONNECTION", condition.qps or ""),
        ("NCCL_IB_TC", "" if condition.traffic_class is None else condition.traffic_class),
    ):
        if value != "":
            if name in env:
                raise InputError(f"condition {condition.name!r} gives {name} twice")
            env[name] = str(value)
    return Nccl(version=spec.nccl_version, env=env)


def options_of(condition: Condition, transport: str, congestion: str | None) -> dict[str, Any]:
    """Return the options of the transport under a condition."""
    out = dict(condition.options)
    if transport == "tcp":
        if congestion:
            out.setdefault("congestion", congestion)
        if condition.qps:
            out.setdefault("sockets", condition.qps)
        if condition.traffic_class is not None:
            out.setdefault("traffic_class", condition.traffic_class)
    return out
