"""Splits of an uneven all_to_all: bytes to each rank and from each rank.

Two spellings are read. GENIE's own, `comm_in_splits` and `comm_out_splits`, are lists of bytes.
PyTorch's `in_split_size` and `out_split_size` (trace-formats section 1.6) are lists, or the text of
lists, of elements; an empty one means an even split. PyTorch's `comm_size` is the whole buffer, of
which the splits may cover less: the splits say what is sent.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from genie.trace.kinds import DTYPE_BYTES, Coll, Kind, dtype_index
from genie.trace.match import sequences

if TYPE_CHECKING:
    from genie.trace.model import RankTrace, Splits, Trace

_INT64 = (1 << 63) - 1
BYTES = ("comm_in_splits", "comm_out_splits")
ELEMENTS = ("in_split_size", "out_split_size")


class BadSplits(ValueError):
    """Splits that cannot be used; the text completes "node N (NAME) has ..."."""


def short(value: object) -> str:
    """Return the repr of an attribute's value, cut to a line."""
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def set_splits(made: RankTrace, i: int, attrs: dict[str, Any]) -> None:
    """Give the node at position `i` the splits in its attributes, if it has any.

    Raises:
        BadSplits: They cannot be used.
    """
    if any(attrs.get(name) is not None for name in BYTES):
        splits = _of_bytes(attrs)
    elif made.kind[i] == Kind.COMM_COLL and made.coll[i] == Coll.ALL_TO_ALL:
        found = _of_elements(attrs, int(made.nbytes[i]))
        if found is None:
            return
        splits = found
        made.nbytes[i] = int(splits[0].sum())
        made.splits_in_bytes.add(len(made.split_lists))
    else:
        return
    made.splits[i] = len(made.split_lists)
    made.split_lists.append(splits)


def _of_bytes(attrs: dict[str, Any]) -> Splits:
    sent, received = (attrs.get(name) for name in BYTES)
    return _sizes(BYTES[0], sent), _sizes(BYTES[1], received)


def _sizes(name: str, values: object) -> np.ndarray[Any, np.dtype[np.int64]]:
    listed = values if isinstance(values, list) else [None]
    whole = all(isinstance(v, int) and not isinstance(v, bool) and 0 <= v <= _INT64 for v in listed)
    if not whole or sum(listed) > _INT64:
        raise BadSplits(f"{name} {short(values)}, which is no list of sizes")
    return np.array(listed, np.int64)


def _listed(name: str, value: object) -> list[int]:
    given = value
    if isinstance(value, str | bytes):
        try:
            given = json.loads(value) if value else []
        except (ValueError, RecursionError):
            raise BadSplits(f"{name} {short(value)}, which is no list (cut short?)") from None
    return [] if given is None else _sizes(name, given).tolist()


def _of_elements(attrs: dict[str, Any], nbytes: int) -> Splits | None:
    sent, received = (_listed(name, attrs.get(name)) for name in ELEMENTS)
    if not sent and not received:
        return None
    n = len(sent or received)
    unit = _unit(attrs, sent, nbytes)
    if not sent:
        whole = _elements(attrs, "in_msg_nelems", nbytes // unit if nbytes >= 0 else None)
        sent = _even(whole, n, ELEMENTS[1])
    if not received:
        received = _even(_elements(attrs, "out_msg_nelems", None), n, ELEMENTS[0])
    if max(sum(sent), sum(received)) > _INT64 // unit:
        raise BadSplits("splits whose bytes do not fit into 64 bits")
    if 0 <= nbytes < sum(sent) * unit:
        raise BadSplits(
            f"{ELEMENTS[0]} of {sum(sent)} elements, {sum(sent) * unit} bytes, but a comm_size of "
            f"{nbytes}"
        )
    return np.array(sent, np.int64) * unit, np.array(received, np.int64) * unit


def _unit(attrs: dict[str, Any], sent: list[int], nbytes: int) -> int:
    # Bytes of an element: of the type that is named, else what comm_size makes of the splits.
    for name in ("comm_dtype", "dtype"):
        index = dtype_index(str(attrs[name])) if attrs.get(name) is not None else -1
        if index >= 0:
            return DTYPE_BYTES[index]
    total = sum(sent)
    if total and nbytes >= 0 and nbytes % total == 0 and nbytes >= total:
        return nbytes // total
    size = f"a comm_size of {nbytes} bytes" if nbytes >= 0 else "no comm_size"
    raise BadSplits(
        f"splits in elements ({total} sent), but no dtype that says how large one is, and {size}"
    )


def _elements(attrs: dict[str, Any], name: str, otherwise: int | None) -> int | None:
    value = attrs.get(name)
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    return value if isinstance(value, int) and value >= 0 else otherwise


def _even(total: int | None, n: int, only: str) -> list[int]:
    if total is None or total % n:
        what = "no size that says what the other side is" if total is None else f"{total} elements"
        raise BadSplits(f"{only} for {n} ranks and an even other side, but {what}")
    return [total // n] * n


def complete(trace: Trace) -> None:
    """Give even splits to ranks without any in an all_to_all where other ranks have them.

    A rank whose own splits happen to be even may be recorded without.
    """
    if not any(rank.split_lists for rank in trace.ranks):
        return
    for group, by_rank in sequences(trace).items():
        members = trace.members(group)
        if members is None or any(rank not in by_rank for rank in members):
            continue
        some = np.unique(
            np.concatenate(
                [np.flatnonzero(trace.ranks[r].splits[by_rank[r]] >= 0) for r in members]
            )
        )
        for k in some.tolist():
            for number in members:
                if k < len(by_rank[number]):
                    _evenly(trace.ranks[number], int(by_rank[number][k]), len(members))


def _evenly(rank: RankTrace, i: int, n: int) -> None:
    nbytes = int(rank.nbytes[i])
    if rank.splits[i] >= 0 or rank.coll[i] != Coll.ALL_TO_ALL or nbytes < 0 or nbytes % n:
        return
    rank.splits[i] = len(rank.split_lists)
    each = np.full(n, nbytes // n, np.int64)
    rank.split_lists.append((each, each))
