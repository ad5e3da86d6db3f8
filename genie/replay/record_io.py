"""A Recording on disk: a folder with `manifest.json` and one Parquet file a table.

The folder is written beside its final place and renamed, so that it is whole or absent;
the manifest carries each file's SHA-256, checked on load.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from genie.errors import RecordError, RecordVersionError
from genie.replay.tables import SCHEMA_VERSION, TABLES, empty

FORMAT = "genie-recording"
MANIFEST = "manifest.json"
Tables = dict[str, npt.NDArray[np.void]]
Labels = dict[tuple[str, str], tuple[str, ...]]


def save(
    path: Path, tables: Tables, labels: Labels, manifest: dict[str, Any], force: bool = False
) -> None:
    """Write a recording to folder `path`; an existing one is replaced only with `force`."""
    _check_target(path, force)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        scratch = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    except OSError as exc:
        raise RecordError(f"{path}: cannot write there: {exc.strerror}", path=str(path)) from exc
    try:
        files = {name: _write_table(scratch, name, tables[name], labels) for name in TABLES}
        document = {
            **manifest,
            "format": FORMAT,
            "schema_version": SCHEMA_VERSION,
            "tables": files,
        }
        text = json.dumps(document, indent=1, allow_nan=False) + "\n"
        (scratch / MANIFEST).write_text(text, encoding="utf-8")
        scratch.chmod(0o777 & ~_umask())
        if path.exists():
            shutil.rmtree(path)
        scratch.rename(path)
    except OSError as exc:
        # pyarrow's OSError carries no strerror.
        why = exc.strerror or str(exc)
        raise RecordError(f"{path}: the recording was not written: {why}", path=str(path)) from exc
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def check_target(path: str | os.PathLike[str], force: bool = False) -> None:
    """Raise RecordError unless a recording may be written to `path`; called before a run starts."""
    _check_target(Path(path), force)


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def _check_target(path: Path, force: bool) -> None:
    if not path.exists():
        return
    if not path.is_dir():
        raise RecordError(f"{path}: a file is in the way of the recording", path=str(path))
    if not any(path.iterdir()):
        return
    if not (path / MANIFEST).is_file():
        raise RecordError(
            f"{path}: the folder is not empty and holds no recording; not touched", path=str(path)
        )
    if not force:
        raise RecordError(
            f"{path}: a recording is there already (overwrite it with --force)", path=str(path)
        )


def _write_table(
    folder: Path, name: str, table: npt.NDArray[np.void], labels: Labels
) -> dict[str, Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    arrays, fields = [], []
    for column in TABLES[name]:
        values = np.ascontiguousarray(table[column.name])
        if column.text:
            dictionary = pa.array(list(labels.get((name, column.name), ())), type=pa.string())
            array = pa.DictionaryArray.from_arrays(
                pa.array(values, mask=values < 0), dictionary, ordered=False
            )
        else:
            array = pa.array(values)
        arrays.append(array)
        about = {"doc": column.doc} | ({"unit": column.unit} if column.unit else {})
        fields.append(pa.field(column.name, array.type, metadata=about))
    target = folder / f"{name}.parquet"
    pq.write_table(pa.table(arrays, schema=pa.schema(fields)), target, compression="zstd")
    return {"file": target.name, "rows": len(table), "sha256": _digest(target)}


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        if hasattr(hashlib, "file_digest"):
            return hashlib.file_digest(file, "sha256").hexdigest()
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
        return digest.hexdigest()


def load(path: Path) -> tuple[Tables, Labels, dict[str, Any]]:
    """Read the recording in folder `path`."""
    manifest = read_manifest(path)
    tables: Tables = {}
    labels: Labels = {}
    listed = manifest.get("tables")
    for name in TABLES:
        entry = listed.get(name) if isinstance(listed, dict) else None
        if not isinstance(entry, dict):
            raise RecordError(f"{path}: manifest.json lists no table {name!r}", path=str(path))
        file = path / Path(str(entry.get("file"))).name
        if not file.is_file():
            raise RecordError(f"{path}: table {name!r} is missing ({file.name})", path=str(path))
        found = _digest(file)
        if found != entry.get("sha256"):
            raise RecordError(
                f"{file}: damaged: its SHA-256 is {found[:12]}..., the manifest says "
                f"{str(entry.get('sha256'))[:12]}...",
                path=str(path),
            )
        tables[name] = _read_table(file, name, labels)
    return tables, labels, manifest


def read_manifest(path: Path) -> dict[str, Any]:
    """Return the checked manifest of the recording in folder `path`."""
    try:
        document = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RecordError(
            f"{path}: no recording here ({MANIFEST} missing)", path=str(path)
        ) from None
    except NotADirectoryError:
        raise RecordError(f"{path}: not a recording's folder", path=str(path)) from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as exc:
        raise RecordError(f"{path}: {MANIFEST} cannot be read: {exc}", path=str(path)) from exc
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise RecordError(f"{path}: {MANIFEST} is not of a {FORMAT}", path=str(path))
    version = document.get("schema_version")
    if version != SCHEMA_VERSION:
        raise RecordVersionError(
            f"{path}: recording of schema version {version}; this genie knows {SCHEMA_VERSION}",
            path=str(path),
            found=version,
            known=SCHEMA_VERSION,
        )
    return document


def _read_table(file: Path, name: str, labels: Labels) -> npt.NDArray[np.void]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(file).combine_chunks()
    except (OSError, pa.ArrowException) as exc:
        raise RecordError(f"{file}: not readable as Parquet: {exc}", path=str(file)) from exc
    out = empty(name, table.num_rows)
    for column in TABLES[name]:
        if column.name not in table.column_names and column.absent is not None:
            out[column.name] = column.absent
            continue
        if column.name not in table.column_names:
            raise RecordError(f"{file}: column {column.name!r} is missing", path=str(file))
        data = table.column(column.name)
        if column.text:
            if not pa.types.is_dictionary(data.type):
                data = data.dictionary_encode()
            block = data.combine_chunks()
            if isinstance(block, pa.ChunkedArray):
                block = block.chunk(0) if block.num_chunks else pa.array([], type=data.type)
            labels[name, column.name] = tuple(block.dictionary.to_pylist())
            out[column.name] = block.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        else:
            out[column.name] = data.to_numpy()
    return out
