"""Results on disk: a folder with `manifest.json` and one Parquet file a table.

The folder is written beside its final place and renamed, so that it is whole or absent; the
manifest carries each file's SHA-256, checked when it is read.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from genie import checks
from genie.errors import RecordError, RecordVersionError

if TYPE_CHECKING:
    import pandas as pd

MANIFEST = "manifest.json"
SCHEMA_VERSION = 1
Tables = Mapping[str, npt.NDArray[np.void]]


def check_target(path: str | os.PathLike[str], force: bool, what: str = "recording") -> None:
    """Refuse a folder that a result cannot be written to, before any work is done for it.

    Args:
        path: The folder.
        force: Whether a result that is there may be replaced.
        what: What is to be written, for the message.

    Raises:
        RecordError: Something is in the way, or nothing can be made there.
    """
    target = Path(checks.path("path", path, "a folder"))
    try:
        _check_target(target, force, what)
        _check_writable(target.absolute().parent, target)
    except OSError as exc:
        raise RecordError(f"{target}: cannot write there: {exc.strerror}", path=str(path)) from exc


def check_writable(path: str | os.PathLike[str]) -> None:
    """Refuse a folder into which no file can be written, or which cannot be made.

    Raises:
        RecordError: A file is in the way, or the disk refuses.
    """
    try:
        _check_writable(Path(path).absolute(), Path(path))
    except OSError as exc:
        raise RecordError(f"{path}: cannot write there: {exc.strerror}", path=str(path)) from exc


def _check_target(path: Path, force: bool, what: str) -> None:
    if not os.path.lexists(path):
        return
    if not path.is_dir():
        raise RecordError(f"{path}: a file is in the way of the {what}", path=str(path))
    if not any(path.iterdir()):
        return
    if not _is_result(path):
        raise RecordError(
            f"{path}: the folder is not empty and holds no {what}; not touched", path=str(path)
        )
    if not force:
        raise RecordError(
            f"{path}: a {what} is there already (overwrite it with --force)", path=str(path)
        )


def _is_result(path: Path) -> bool:
    try:
        document = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return False
    except (OSError, ValueError):
        return True  # A damaged one of ours.
    return isinstance(document, dict) and str(document.get("format")).startswith("genie-")


def _check_writable(folder: Path, path: Path) -> None:
    # The nearest folder that exists is where the first new one, or the result, will be made.
    while not os.path.lexists(folder):
        folder = folder.parent
    if not folder.is_dir():
        raise RecordError(f"{path}: cannot write there: {folder} is not a folder", path=str(path))
    # Asking is not enough: file systems may be read-only, and root may do anything else.
    os.rmdir(tempfile.mkdtemp(prefix=".genie-", dir=folder))


def write_folder(
    path: Path, force: bool, what: str, fill: Callable[[Path], dict[str, Any]]
) -> None:
    """Make folder `path` with what `fill` writes into it and the manifest that `fill` returns.

    Raises:
        RecordError: Something is in the way, or the disk refused.
    """
    check_target(path, force, what)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    except OSError as exc:
        raise RecordError(f"{path}: cannot write there: {exc.strerror}", path=str(path)) from exc
    try:
        document = fill(scratch)
        text = json.dumps(document, indent=1, allow_nan=False, default=_plain) + "\n"
        (scratch / MANIFEST).write_text(text, encoding="utf-8")
        scratch.chmod(0o777 & ~_umask())
        if path.exists():
            shutil.rmtree(path)
        scratch.rename(path)
    except OSError as exc:
        # pyarrow's OSError carries no strerror.
        why = exc.strerror or str(exc)
        raise RecordError(f"{path}: the {what} was not written: {why}", path=str(path)) from exc
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _plain(value: Any) -> Any:
    """Return what `json` can write for NumPy scalars and arrays."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"not JSON: {type(value).__name__}")


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def file_digest(file: Path) -> str:
    """Return the SHA-256 of a file, in hex."""
    with file.open("rb") as stream:
        if hasattr(hashlib, "file_digest"):
            return hashlib.file_digest(stream, "sha256").hexdigest()
        digest = hashlib.sha256()
        while block := stream.read(1 << 20):
            digest.update(block)
        return digest.hexdigest()


def read_manifest(path: Path, form: str, known: int, what: str = "recording") -> dict[str, Any]:
    """Return the manifest of the result in folder `path`.

    Args:
        path: The folder.
        form: Which kind of result it must be.
        known: The schema version that is read.
        what: What it is called in messages.

    Raises:
        RecordError: Missing, damaged or something else.
        RecordVersionError: Of another schema version.
    """
    try:
        document = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RecordError(f"{path}: no {what} here ({MANIFEST} missing)", path=str(path)) from None
    except NotADirectoryError:
        raise RecordError(f"{path}: not a {what}'s folder", path=str(path)) from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as exc:
        raise RecordError(f"{path}: {MANIFEST} cannot be read: {exc}", path=str(path)) from exc
    if not isinstance(document, dict) or document.get("format") != form:
        found = document.get("format") if isinstance(document, dict) else None
        also = f" but of a {found}" if isinstance(found, str) else ""
        raise RecordError(f"{path}: {MANIFEST} is not of a {form}{also}", path=str(path))
    version = document.get("schema_version")
    if version != known:
        raise RecordVersionError(
            f"{path}: {what} of schema version {version}; this genie knows {known}",
            path=str(path),
            found=version,
            known=known,
        )
    return document


# Results that are made anew from what they were made of: clusters, schedules, plans, tunings.


def save(
    path: str | os.PathLike[str],
    what: str,
    tables: Tables,
    facts: Mapping[str, Any],
    force: bool = False,
    *,
    views: Tables | None = None,
    more: Callable[[Path], None] | None = None,
) -> Path:
    """Write a result: `facts` in the manifest, each table as Parquet; return the folder.

    Args:
        path: Folder to create.
        what: Which result: "plan", "schedule", ...
        tables: Structured arrays by name; what is made anew must have the same.
        facts: What the result is made of, and is; JSON can carry it.
        force: Replace one that is there.
        views: Further tables, for other tools to read.
        more: Writes further files into the folder.

    Raises:
        RecordError: Something is in the way, or the disk refused.
    """
    from genie.version import __version__

    def fill(scratch: Path) -> dict[str, Any]:
        files = {}
        for name, table in {**tables, **(views or {})}.items():
            target = scratch / f"{name}.parquet"
            _write_parquet(target, table)
            files[name] = {
                "file": target.name, "rows": len(table), "sha256": file_digest(target)
            }  # fmt: skip
        if more is not None:
            more(scratch)
        now = datetime.datetime.now(datetime.timezone.utc)
        return {
            "format": f"genie-{what}",
            "schema_version": SCHEMA_VERSION,
            "genie_version": __version__,
            "command": sys.argv,
            "created": now.isoformat(timespec="seconds"),
            **facts,
            "digest": digest_of(tables),
            "tables": files,
        }

    target = Path(checks.path("path", path, "a folder"))
    checks.truth("force", force)
    write_folder(target, force, what, fill)
    return target


def load(path: str | os.PathLike[str], what: str) -> dict[str, Any]:
    """Return the manifest of a result after checking its files.

    Raises:
        RecordError: Missing, damaged or something else.
    """
    folder = Path(checks.path("path", path, "a folder"))
    manifest = read_manifest(folder, f"genie-{what}", SCHEMA_VERSION, what)
    listed = manifest.get("tables")
    for name, entry in (listed if isinstance(listed, dict) else {}).items():
        file = folder / Path(str(entry.get("file") if isinstance(entry, dict) else name)).name
        if not file.is_file():
            raise RecordError(f"{folder}: table {name!r} is missing", path=str(folder))
        if file_digest(file) != entry.get("sha256"):
            raise RecordError(f"{file}: damaged: not the SHA-256 of the manifest", path=str(folder))
    return manifest


def check_same(path: str | os.PathLike[str], manifest: Mapping[str, Any], tables: Tables) -> None:
    """Refuse a result that was made anew and differs from what was saved.

    Raises:
        RecordError: They differ: another GENIE made it, or its manifest was changed.
    """
    if digest_of(tables) != manifest.get("digest"):
        raise RecordError(
            f"{path}: saved by genie {manifest.get('genie_version')}; this one makes something "
            "else of it, or the manifest was changed",
            path=str(path),
        )


def read_table(path: str | os.PathLike[str], name: str) -> dict[str, npt.NDArray[Any]]:
    """Return the columns of a result's table by name."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = Path(path) / f"{name}.parquet"
    try:
        table = pq.read_table(file)
    except (OSError, pa.ArrowException) as exc:
        raise RecordError(f"{file}: not readable as Parquet: {exc}", path=str(file)) from exc
    return {column: table.column(column).to_numpy() for column in table.column_names}


def digest_of(tables: Tables) -> str:
    """Return the SHA-256, in hex, over names, columns and rows of tables."""
    total = hashlib.sha256()
    for name, table in tables.items():
        total.update(f"{name} {len(table)} {table.dtype.names}".encode())
        for column in table.dtype.names or ():
            values = np.ascontiguousarray(table[column])
            text = values.dtype.kind == "U"
            total.update("\0".join(values.tolist()).encode() if text else values.tobytes())
    return total.hexdigest()


def _write_parquet(target: Path, table: npt.NDArray[np.void]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {
        name: pa.array(
            table[name].tolist()
            if table.dtype[name].kind == "U"
            else np.ascontiguousarray(table[name])
        )
        for name in table.dtype.names or ()
    }
    pq.write_table(pa.table(columns), target, compression="zstd")


def frame(table: npt.NDArray[np.void]) -> pd.DataFrame:
    """Return a structured array as a DataFrame."""
    import pandas as pd

    names = table.dtype.names or ()
    return pd.DataFrame({name: np.ascontiguousarray(table[name]) for name in names})


def new_axes() -> Any:
    """Return the axes of a new figure that pyplot does not know of."""
    from matplotlib.figure import Figure

    return Figure(layout="constrained").add_subplot()
