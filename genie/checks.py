"""Arguments of public functions: one clear error naming the argument, what it is and should be."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from genie.errors import InputError


def short(value: object) -> str:
    """Return the repr of a value, cut to a line; of an array its shape and type."""
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape} and type {value.dtype}"
    try:
        text = repr(value)
    except Exception:
        text = f"a {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "..."


def whole(name: str, value: object, low: int | None = None, high: int | None = None) -> int:
    """Return `value` as an int.

    Args:
        name: The argument.
        value: What was given.
        low: Least that it may be.
        high: Most that it may be.

    Raises:
        InputError: It is no whole number (a truth value is none), or out of range.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise InputError(f"{name} is a whole number{_range(low, high)}, not {short(value)}")
    number = int(value)
    if (low is not None and number < low) or (high is not None and number > high):
        raise InputError(f"{name} is a whole number{_range(low, high)}, not {number}")
    return number


def real(
    name: str,
    value: object,
    low: float | None = None,
    high: float | None = None,
    *,
    above: float | None = None,
) -> float:
    """Return `value` as a finite float.

    Args:
        name: The argument.
        value: What was given.
        low: Least that it may be.
        high: Most that it may be.
        above: What it must be above.

    Raises:
        InputError: It is no finite number (a truth value is none), or out of range.
    """
    wanted = f"{name} is a number{_range(low, high) if above is None else f' above {above:g}'}"
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise InputError(f"{wanted}, not {short(value)}")
    number = float(value)
    if (
        not math.isfinite(number)
        or (low is not None and number < low)
        or (high is not None and number > high)
        or (above is not None and number <= above)
    ):
        raise InputError(f"{wanted}, not {number:g}")
    return number


def _range(low: float | None, high: float | None) -> str:
    least, most = (
        str(end) if isinstance(end, int) else f"{end:g}" for end in (low or 0, high or 0)
    )
    if low is not None and high is not None:
        return f" from {least} to {most}"
    if low is not None:
        return f" from {least} on"
    return "" if high is None else f" up to {most}"


def text(name: str, value: object) -> str:
    """Return `value`, which must be text.

    Raises:
        InputError: It is something else.
    """
    if not isinstance(value, str):
        raise InputError(f"{name} is text, not {short(value)}")
    return value


def truth(name: str, value: object) -> bool:
    """Return `value`, which must be True or False.

    Raises:
        InputError: It is something else.
    """
    if not isinstance(value, bool | np.bool_):
        raise InputError(f"{name} is True or False, not {short(value)}")
    return bool(value)


def one_of(name: str, value: object, known: Collection[str]) -> str:
    """Return `value`, which must be one of the texts `known`.

    Raises:
        InputError: It is something else.
    """
    if not isinstance(value, str) or value not in known:
        raise InputError(f"{name} is one of {', '.join(known)}, not {short(value)}")
    return value


def instance(name: str, value: object, kind: type, example: str) -> Any:
    """Return `value`, which must be a `kind`.

    Args:
        name: The argument.
        value: What was given.
        kind: Its class.
        example: What makes one, for the message.

    Raises:
        InputError: It is something else.
    """
    if not isinstance(value, kind):
        raise InputError(f"{name} is a genie.{kind.__name__} ({example}), not {short(value)}")
    return value


def path(name: str, value: object, what: str = "a path") -> str:
    """Return `value`, which must be text or a path, as text.

    Raises:
        InputError: It is something else, or holds a zero byte.
    """
    if not isinstance(value, str | os.PathLike):
        raise InputError(f"{name} is {what}, not {short(value)}")
    found = os.fspath(value)
    if not isinstance(found, str) or "\0" in found:
        raise InputError(f"{name} is {what}, not {short(value)}")
    return found


def callback(name: str, value: object) -> None:
    """Refuse what cannot be called; None is fine.

    Raises:
        InputError: It cannot be called.
    """
    if value is not None and not callable(value):
        raise InputError(f"{name} is a function or None, not {short(value)}")


def listed(name: str, value: object) -> list[Any]:
    """Return the items of `value`, which must be a sequence other than text.

    Raises:
        InputError: It is something else.
    """
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise InputError(f"{name} is a list, not {short(value)}")
    return list(value)


def wholes(name: str, value: object) -> npt.NDArray[np.int64]:
    """Return a list of whole numbers as an array.

    Raises:
        InputError: It is something else, or a number does not fit into 64 bits.
    """
    if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "iu":
        return value.astype(np.int64)
    limit = 1 << 63
    return np.array(
        [whole(name, item, -limit, limit - 1) for item in listed(name, value)], np.int64
    )


def nccl(value: object) -> None:
    """Refuse what is no `genie.Nccl` (or the like: a version and an environment).

    Raises:
        InputError: It is something else.
    """
    if not isinstance(getattr(value, "env", None), dict) or not hasattr(value, "version"):
        raise InputError(f"nccl is a genie.Nccl, such as Nccl(env={{...}}), not {short(value)}")
