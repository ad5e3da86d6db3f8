"""NCCL_ALGO, NCCL_PROTO and NCCL_THREAD_THRESHOLDS, read as NCCL reads them.

Syntax since 2.24.3: `[function:]list[;function:list...]`, a list comma separated, a leading `^`
meaning "all except". Before, one list for all functions, unknown names ignored
(spec/nccl-wire-schedule.md section 2.2, spec/nccl-versions.md section 6).
"""

from __future__ import annotations

from genie.errors import InputError
from genie.replay.nccl.names import ENV_FUNCTIONS
from genie.replay.nccl.versions import Switch, Version

#: Whether the lists may name functions (and unknown names are errors).
PER_FUNCTION = Switch("NCCL_ALGO per function", {"2.20.5": False, "2.24.3": True})


def parse_list(
    variable: str, text: str | None, elements: tuple[str, ...], version: Version
) -> tuple[tuple[bool, ...] | None, ...]:
    """Return per function which of `elements` the list leaves on, None where it says nothing.

    Args:
        variable: name for the error text.
        text: the variable's value, None when unset.
        elements: names in code order, read without case.
        version: release whose syntax applies.

    Raises:
        InputError: an unknown name or prefix (2.24.3 and later), or an entry other than the
            first without a prefix.
    """
    table: list[tuple[bool, ...] | None] = [None] * len(ENV_FUNCTIONS)
    if text is None:
        return tuple(table)
    known = {name.lower(): code for code, name in enumerate(elements)}
    if not PER_FUNCTION.at(version):
        rest = text[1:] if text.startswith("^") else text
        listed = {known[name.lower()] for name in rest.split(",") if name.lower() in known}
        return (_chosen(text.startswith("^"), listed, len(elements)),) * len(ENV_FUNCTIONS)
    functions = {name.lower(): code for code, name in enumerate(ENV_FUNCTIONS)}
    entries = [entry for entry in text.split(";") if entry]
    if not entries:
        raise InputError(f"{variable}={text!r} is empty (a list is {', '.join(elements)})")
    for position, entry in enumerate(entries):
        prefix, colon, names = entry.partition(":")
        if not colon:
            if position:
                raise InputError(
                    f"{variable}={text!r}: only the first entry may lack a function "
                    f"({entry!r} has none)"
                )
            prefix, names = "", entry
        elif prefix.lower() not in functions:
            raise InputError(
                f"{variable}={text!r}: {prefix!r} is not a function ({', '.join(ENV_FUNCTIONS)})"
            )
        negated = names.startswith("^")
        listed = set()
        for name in (names[1:] if negated else names).split(","):
            if name.lower() not in known:
                raise InputError(
                    f"{variable}={text!r}: {name!r} is not known ({', '.join(elements)})"
                )
            listed.add(known[name.lower()])
        row = _chosen(negated, listed, len(elements))
        if prefix:
            table[functions[prefix.lower()]] = row
        else:
            table = [row] * len(ENV_FUNCTIONS)
    return tuple(table)


def _chosen(negated: bool, listed: set[int], n: int) -> tuple[bool, ...]:
    return tuple((code in listed) != negated for code in range(n))


def parse_thresholds(text: str | None) -> tuple[int | None, ...]:
    """Return the six numbers of NCCL_THREAD_THRESHOLDS: LL, LL128, Simple of tree, then ring.

    Missing or negative ones are None: the built-in value stays.
    """
    numbers: list[int | None] = [None] * 6
    if text is None:
        return tuple(numbers)
    words = text.split()
    if not words or len(words) > 6:
        raise InputError(f"NCCL_THREAD_THRESHOLDS={text!r}: expected six numbers")
    for i, word in enumerate(words):
        try:
            value = int(word)
        except ValueError:
            raise InputError(f"NCCL_THREAD_THRESHOLDS={text!r}: {word!r} is not a number") from None
        numbers[i] = value if value >= 0 else None
    return tuple(numbers)
