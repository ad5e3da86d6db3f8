"""Known models and GPUs: the tables in `genie/data/workload`, and how a spec is found and read."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from genie.errors import InputError
from genie.workload.spec import Model, Spec, from_mapping

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DATA = Path(__file__).resolve().parent.parent / "data" / "workload"


def read_toml(path: Path) -> dict[str, Any]:
    """Return a TOML file as a mapping.

    Raises:
        InputError: The file cannot be read or is not TOML.
    """
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not TOML: {error}") from error


@lru_cache(maxsize=1)
def _models() -> dict[str, Model]:
    listed = read_toml(DATA / "models.toml")
    return {name: msgspec.convert({"name": name, **row}, Model) for name, row in listed.items()}


def model_names() -> list[str]:
    """Return the known models."""
    return list(_models())


def model(name: str) -> Model:
    """Return a known model.

    Raises:
        InputError: There is none of that name.
    """
    found = _models().get(name.lower())
    if found is None:
        raise InputError(f"no model {name!r} (known: {', '.join(_models())})")
    return found


def find_spec(what: str | os.PathLike[str] | Mapping[str, Any] | Spec) -> Spec:
    """Return the spec that a name, a TOML file, a mapping or a `Spec` means, its model looked up.

    Raises:
        InputError: It is none of these, or cannot be read.
    """
    if isinstance(what, Spec):
        spec = what
    elif isinstance(what, Mapping):
        spec = from_mapping(what, "spec")
    elif os.fspath(what).lower() in _models():
        spec = Spec(model=os.fspath(what).lower())
    elif Path(what).is_file():
        spec = from_mapping(read_toml(Path(what)), os.fspath(what))
        if not spec.name:
            spec = msgspec.structs.replace(spec, name=Path(what).stem)
    else:
        raise InputError(
            f"{os.fspath(what)}: neither a file nor a known model ({', '.join(_models())})"
        )
    if isinstance(spec.model, str):
        spec = msgspec.structs.replace(spec, model=model(spec.model))
    return spec if spec.name else msgspec.structs.replace(spec, name=spec.shape.name)
