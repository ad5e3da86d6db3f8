"""Algorithm, protocol and channels given by the user per kind and size.

A job may run with a tuner plugin, which changes NCCL's choices without a trace; so the same
table is an input here. The CSV is that of NCCL's example tuner plugin:
`colltype,minbytes,maxbytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff`,
-1 matching anything, `#` starting a comment; the first row that fits wins.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from genie import checks
from genie.errors import InputError
from genie.replay.nccl.names import ALGORITHMS, FUNCTIONS, PROTOCOLS, function_code


class Given(NamedTuple):
    """One row: where it applies, and what it asks for (-1: anything, channels -1: as chosen)."""

    function: int
    min_bytes: int
    max_bytes: int
    algorithm: int
    protocol: int
    channels: int = -1
    hosts: int = -1
    ranks: int = -1
    pipelined: int = -1
    registered: int = -1
    where: str = ""

    def fits(self, function: int, nbytes: int, hosts: int, ranks: int, pipelined: int) -> bool:
        """Whether this row applies; `nbytes` is the size of the cost model."""
        return (
            self.function == function
            and self.min_bytes <= nbytes
            and (self.max_bytes < 0 or nbytes <= self.max_bytes)
            and self.hosts in (-1, hosts)
            and self.ranks in (-1, ranks)
            and self.pipelined in (-1, pipelined)
            and self.registered in (-1, 0)
        )


#: Column of the CSV -> field here. Both spellings may be keys of a dict.
_COLUMNS = {
    "colltype": "function",
    "kind": "function",
    "minbytes": "min_bytes",
    "maxbytes": "max_bytes",
    "algorithm": "algorithm",
    "protocol": "protocol",
    "channels": "channels",
    "nnodes": "hosts",
    "hosts": "hosts",
    "nranks": "ranks",
    "ranks": "ranks",
    "numpipeops": "pipelined",
    "pipelined": "pipelined",
    "regbuff": "registered",
    "registered": "registered",
}
_ORDER = (
    "function",
    "min_bytes",
    "max_bytes",
    "algorithm",
    "protocol",
    "channels",
    "hosts",
    "ranks",
    "pipelined",
    "registered",
)
_NEEDED = ("function", "min_bytes", "max_bytes", "algorithm", "protocol")

Choices = str | os.PathLike[str] | Iterable[Mapping[str, object]]


def read_choices(choices: Choices | None) -> tuple[Given, ...]:
    """Return the rows of `choices`: a path to a CSV, or a list of dicts with the same columns.

    Raises:
        InputError: no such file, or a row that cannot be read, with its line or position.
    """
    if choices is None:
        return ()
    if isinstance(choices, str | os.PathLike):
        return _read_csv(Path(checks.path("choices", choices)))
    if isinstance(choices, bytes | Mapping) or not isinstance(choices, Iterable):
        raise InputError(
            "choices is a list of dicts (kind, min_bytes, max_bytes, algorithm, protocol) or a "
            f"CSV file, not {checks.short(choices)}"
        )
    rows = []
    for position, row in enumerate(choices):
        if not isinstance(row, Mapping):
            raise InputError(f"choices[{position}] is a dict, not {checks.short(row)}")
        where = f"choices[{position}]"
        fields = {}
        for key, value in row.items():
            name = _COLUMNS.get(str(key).lower().replace("_", ""))
            if name is None:
                raise InputError(f"{where}: no such column: {key!r} ({', '.join(_COLUMNS)})")
            fields[name] = value
        rows.append(_given(fields, where))
    return tuple(rows)


def _read_csv(path: Path) -> tuple[Given, ...]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the choices in {path}: {error}") from error
    rows = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        words = [word.strip() for word in next(csv.reader([line]))]
        if words[0].lower() == "colltype":
            continue
        where = f"{path}:{number}"
        if len(words) > len(_ORDER):
            raise InputError(f"{where}: {len(words)} columns, at most {len(_ORDER)} expected")
        rows.append(_given(dict(zip(_ORDER, words, strict=False)), where))
    if not rows:
        raise InputError(f"{path} holds no choices")
    return tuple(rows)


def _given(fields: Mapping[str, object], where: str) -> Given:
    missing = [name for name in _NEEDED if name not in fields]
    if missing:
        raise InputError(f"{where}: missing {', '.join(missing)}")
    text = str(fields["function"]).lower()
    plain = {name.replace("_", ""): name for name in FUNCTIONS}
    values: dict[str, int] = {"function": function_code(plain.get(text.replace("_", ""), text))}
    values["algorithm"] = _name(fields["algorithm"], ALGORITHMS, "algorithm", where)
    values["protocol"] = _name(fields["protocol"], PROTOCOLS, "protocol", where)
    for name in _ORDER:
        if name in fields and name not in values:
            values[name] = _number(fields[name], name, where)
    row = Given(**values, where=where)
    if row.min_bytes < 0:
        raise InputError(f"{where}: min_bytes is {row.min_bytes}")
    if 0 <= row.max_bytes < row.min_bytes:
        raise InputError(
            f"{where}: min_bytes {row.min_bytes} is larger than max_bytes {row.max_bytes}"
        )
    if row.channels == 0 or row.channels < -1 or row.channels > 64:
        raise InputError(f"{where}: channels must be 1 to 64, or -1, not {row.channels}")
    return row


def _name(value: object, names: tuple[str, ...], what: str, where: str) -> int:
    text = str(value).strip().lower()
    text = {"nvlstree": "nvls_tree", "collnetdirect": "collnet_direct"}.get(text, text)
    text = {"collnetchain": "collnet_chain"}.get(text, text)
    if text not in names:
        raise InputError(f"{where}: no such {what} in NCCL: {value!r} ({', '.join(names)})")
    return names.index(text)


def _number(value: object, what: str, where: str) -> int:
    try:
        return int(str(value))
    except ValueError:
        raise InputError(f"{where}: {what} is not a number: {value!r}") from None
