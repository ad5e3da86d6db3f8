"""`load_truth()`: find out what a file or folder is, and read it."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from genie.errors import CompareError

if TYPE_CHECKING:
    from genie.compare.truth.model import Truth


def read_bytes(path: Path) -> bytes:
    """Return a file's content, unpacked if it is gzip under any name."""
    data = path.read_bytes()
    if data[:2] == b"\x1f\x8b":
        try:
            return gzip.decompress(data)
        except (OSError, EOFError) as error:
            raise CompareError(f"{path}: damaged gzip: {error}", path=str(path)) from error
    return data


def load_truth(path: str | os.PathLike[str]) -> Truth:
    """Read ground truth; the format is found by content.

    Args:
        path: A file or folder.

    Raises:
        CompareError: Missing, of no known format, or without anything usable.
    """
    target = Path(path)
    if not target.exists():
        raise CompareError(f"no such file or folder: {target}", path=str(target))
    if target.is_dir():
        return _folder(target)
    return _file(target)


def _folder(target: Path) -> Truth:
    if (target / "manifest.json").is_file():
        from genie.compare.truth.recording import from_recording
        from genie.replay.recording import Recording

        return from_recording(Recording.load(target), str(target))
    files = sorted(path for path in target.iterdir() if path.is_file())
    if len(files) == 1:
        return _file(files[0])
    from genie.compare.truth import inspector, kineto, kineto_file

    heads = {path: read_bytes(path) for path in files}
    profiles = [path for path, data in heads.items() if kineto_file.is_kineto(data)]
    if profiles:
        return kineto.read(profiles, target)
    logs = [
        path
        for path, data in heads.items()
        if inspector.is_record(next(iter(inspector.records(data.decode(errors="replace"))), None))
    ]
    if logs:
        return inspector.read(logs, target)
    raise CompareError(f"{target}: not a format GENIE reads as ground truth", path=str(target))


def _file(target: Path) -> Truth:
    from genie.compare.truth import inspector, kineto, kineto_file, nccl_tests

    data = read_bytes(target)
    if not data.strip():
        raise CompareError(f"{target}: the file is empty", path=str(target))
    if kineto_file.is_kineto(data):
        return kineto.read([target], target)
    text = data.decode(errors="replace")
    if text.lstrip()[:1] in "{[":
        try:
            document: Any = json.loads(text)
        except ValueError:
            document = next(iter(inspector.records(text)), None)
        if nccl_tests.is_json(document):
            return nccl_tests.read_json(target, document)
        if inspector.is_record(document):
            return inspector.read([target], target)
    elif nccl_tests.is_text(text):
        return nccl_tests.read_text(target, text)
    raise CompareError(f"{target}: not a format GENIE reads as ground truth", path=str(target))
