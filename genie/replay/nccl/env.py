"""`Nccl`: the release, the environment and the user's own choices, read and checked once."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import cached_property

from genie import checks
from genie.errors import InputError
from genie.replay.nccl.env_lists import parse_list, parse_thresholds
from genie.replay.nccl.env_names import QUIET, WIRE
from genie.replay.nccl.given import Choices, Given, read_choices
from genie.replay.nccl.names import ENV_ALGORITHMS, ENV_PROTOCOLS
from genie.replay.nccl.versions import Version, held_to_golden, parse_version, version_text

_INTEGER = re.compile(r"([+-]?)(0[xX][0-9a-fA-F]+|[0-9]+)")

#: Pairs of which the first must not exceed the second.
_ORDERED = (
    ("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"),
    ("NCCL_MIN_NRINGS", "NCCL_MAX_NRINGS"),
    ("NCCL_MIN_NRINGS", "NCCL_MAX_NCHANNELS"),
    ("NCCL_MIN_NCHANNELS", "NCCL_MAX_NRINGS"),
    ("NCCL_MIN_CTAS", "NCCL_MAX_CTAS"),
    ("NCCL_MIN_P2P_NCHANNELS", "NCCL_MAX_P2P_NCHANNELS"),
)

#: Old and new name of one setting.
_LEGACY = (
    ("NCCL_MIN_NRINGS", "NCCL_MIN_NCHANNELS"),
    ("NCCL_MAX_NRINGS", "NCCL_MAX_NCHANNELS"),
)


class Nccl:
    """NCCL as it is emulated: release, environment variables, and choices given by the user.

    Args:
        version: "2.30", "2.27", "2.21" (2.30.7, 2.27.7, 2.21.5: held to golden data), or a full
            release from 2.20.5 to 2.30.7, which follows the switch points of
            spec/nccl-versions.md.
        env: `NCCL_*` variables and their values (text or numbers; None means unset). The
            process environment is not read: `Nccl.from_environ()` does that.
        choices: algorithm, protocol and channels per kind and size, overriding the cost model:
            a list of dicts (kind, min_bytes, max_bytes, algorithm, protocol, channels, hosts,
            ranks; -1 matches anything) or a path to a CSV as NCCL's tuner plugin takes it.

    Attributes:
        version: the full release, such as (2, 30, 7).
        env: the variables that are set, as text.
        choices: rows of the user's own choices.
        unknown: variables GENIE does not know, kept and listed; they change nothing.
        ineffective: variables this release does not have yet; they change nothing either.
        notes: both, and plugins that may act differently, as sentences.

    Raises:
        InputError: unknown release, a value that cannot be, or settings that contradict each
            other. Never for a restriction that leaves a collective without an algorithm:
            scheduling that collective does.
    """

    def __init__(
        self,
        version: str = "2.30",
        env: Mapping[str, object] | None = None,
        choices: Choices | None = None,
    ) -> None:
        self.version: Version = parse_version(version)
        self.env: dict[str, str] = _read_env({} if env is None else env)
        self.choices: tuple[Given, ...] = read_choices(choices)
        self.unknown: tuple[str, ...] = tuple(
            sorted(name for name in self.env if name not in WIRE and name not in QUIET)
        )
        self.ineffective: tuple[str, ...] = tuple(
            sorted(name for name in self.env if name in WIRE and WIRE[name].since > self.version)
        )
        self._key = (self.version, tuple(sorted(self.env.items())), self.choices)
        self._hash = hash(self._key)
        self._check()

    @classmethod
    def from_environ(cls, version: str = "2.30", choices: Choices | None = None) -> Nccl:
        """Return the settings of this process: every `NCCL_*` variable in its environment."""
        env = {name: value for name, value in os.environ.items() if name.startswith("NCCL_")}
        return cls(version, env=env, choices=choices)

    def get(self, name: str, default: str | None = None) -> str | None:
        """Return the value of a variable ("NCCL_ALGO" or "ALGO"), `default` where it is unset.

        A variable this release does not have counts as unset.
        """
        name = _full(checks.text("name", name))
        known = WIRE.get(name)
        if known is not None and known.since > self.version:
            return default
        return self.env.get(name, default)

    def get_int(self, name: str, default: int) -> int:
        """Return the value of a numeric variable, `default` where it is unset."""
        text = self.get(name)
        checks.whole("default", default)
        return default if text is None else _integer(_full(name), text)

    @cached_property
    def algorithms(self) -> tuple[tuple[bool, ...] | None, ...]:
        """Per function: which algorithms NCCL_ALGO leaves on; None: it does not say."""
        return parse_list("NCCL_ALGO", self.get("NCCL_ALGO"), ENV_ALGORITHMS, self.version)

    @cached_property
    def protocols(self) -> tuple[tuple[bool, ...] | None, ...]:
        """Per function: which protocols NCCL_PROTO leaves on; None: it does not say."""
        return parse_list("NCCL_PROTO", self.get("NCCL_PROTO"), ENV_PROTOCOLS, self.version)

    @cached_property
    def thresholds(self) -> tuple[int | None, ...]:
        """NCCL_THREAD_THRESHOLDS: LL, LL128, Simple of tree, then of ring; None: built in."""
        return parse_thresholds(self.get("NCCL_THREAD_THRESHOLDS"))

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of a plan should know of these settings, one sentence each."""
        found = [
            f"{name} is not a variable GENIE knows; it changes nothing" for name in self.unknown
        ]
        for name in self.ineffective:
            since = version_text(WIRE[name].since)
            found.append(f"{name} changes nothing before NCCL {since}")
        if not self.choices:
            for name in ("NCCL_TUNER_PLUGIN", "NCCL_TUNER_CONFIG_FILE"):
                if name in self.env:
                    found.append(f"{name} may change NCCL's choices: give them as `choices`")
        if "NCCL_NET_PLUGIN" in self.env:
            found.append("NCCL_NET_PLUGIN may replace the transport; the built-in one is emulated")
        return tuple(found)

    @property
    def version_text(self) -> str:
        """The release as text ("2.30.7")."""
        return version_text(self.version)

    @property
    def held_to_golden(self) -> bool:
        """Whether numbers out of this very release were compared."""
        return held_to_golden(self.version)

    def _check(self) -> None:
        for name, text in self.env.items():
            known = WIRE.get(name)
            if known is None or known.kind != "int":
                continue
            value = _integer(name, text)
            if not known.low <= value <= known.high:
                raise InputError(f"{name}={text}: expected {known.low} to {known.high}")
        for low, high in _ORDERED:
            if low in self.env and high in self.env:
                small, large = _integer(low, self.env[low]), _integer(high, self.env[high])
                if small > large:
                    raise InputError(f"{low}={small} contradicts {high}={large}")
        for old, new in _LEGACY:
            if old in self.env and new in self.env and self.env[old] != self.env[new]:
                raise InputError(
                    f"{old}={self.env[old]} contradicts {new}={self.env[new]} (same setting)"
                )
        for name in ("NCCL_NTHREADS", "NCCL_LL128_NTHREADS"):
            if name in self.env and _integer(name, self.env[name]) % 32:
                raise InputError(f"{name}={self.env[name]}: expected a multiple of 32")
        # Reading the lists is also the check of their syntax.
        _ = self.algorithms, self.protocols, self.thresholds

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Nccl) and self._key == other._key

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        parts = [repr(self.version_text)]
        if self.env:
            parts.append(f"env={self.env!r}")
        if self.choices:
            parts.append(f"choices=<{len(self.choices)} rows>")
        return f"Nccl({', '.join(parts)})"


def _full(name: str) -> str:
    return name if name.startswith("NCCL_") else f"NCCL_{name}"


def _read_env(env: Mapping[str, object]) -> dict[str, str]:
    if not isinstance(env, Mapping):
        raise InputError(f"env is a dict of NCCL_* variables, not {env!r}")
    found = {}
    for name, value in env.items():
        if not isinstance(name, str) or not name.startswith("NCCL_"):
            raise InputError(f"not an NCCL variable: {name!r} (names start with NCCL_)")
        if value is None:
            continue
        if not isinstance(value, str | int):
            raise InputError(f"{name}={value!r}: expected text or a number")
        text = str(int(value)) if isinstance(value, bool) else str(value).strip()
        # NCCL reads an empty value as an unset variable.
        if text:
            found[name] = text
    return found


def _integer(name: str, text: str) -> int:
    match = _INTEGER.fullmatch(text)
    if match is None:
        raise InputError(f"{name}={text!r} is not a whole number")
    digits = match[2]
    # NCCL reads numbers as C's strtoll with base 0: 0x is hexadecimal, a leading 0 octal.
    base = 16 if digits[:2] in ("0x", "0X") else 8 if digits.startswith("0") else 10
    try:
        value = int(digits, base)
    except ValueError:
        raise InputError(f"{name}={text!r} is not a whole number") from None
    return -value if match[1] == "-" else value
