"""A Recording on disk: a folder with `manifest.json` and one Parquet file a table.

How the folder is written and checked is in `result_io`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from genie.errors import RecordError
from genie.replay import result_io
from genie.replay.result_io import file_digest, write_folder
from genie.replay.tables import SCHEMA_VERSION, TABLES, empty

FORMAT = "genie-recording"
Tables = dict[str, npt.NDArray[np.void]]
Labels = dict[tuple[str, str], tuple[str, ...]]


def save(
    path: Path, tables: Tables, labels: Labels, manifest: dict[str, Any], force: bool = False
) -> None:
    """Write a recording to folder `path`; an existing one is replaced only with `force`."""

    def fill(scratch: Path) -> dict[str, Any]:
        files = {name: _write_table(scratch, name, tables[name], labels) for name in TABLES}
        return {
            **manifest,
            "format": FORMAT,
            "schema_version": SCHEMA_VERSION,
            "tables": files,
        }

    write_folder(path, force, "recording", fill)


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
    return {"file": target.name, "rows": len(table), "sha256": file_digest(target)}


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
        found = file_digest(file)
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
    return result_io.read_manifest(path, FORMAT, SCHEMA_VERSION)


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
