"""`load_truth()`: find out what a file or folder is, and read it."""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from genie import checks
from genie.errors import CompareError
from genie.trace.gunzip import MAGIC, TooLargeError, gunzip, most_unpacked

if TYPE_CHECKING:
    from genie.compare.truth.model import Truth

#: What of a folder is read when it holds several formats, best first.
ORDER = (
    "kineto",
    "pytorch-et",
    "nsys-sqlite",
    "nccl-profiler-plugin",
    "nccl-inspector",
    "nccl-tests text",
    "nccl-tests JSON",
    "nccl-log",
    "astra-sim",
    "perftest text",
    "perftest JSON",
    "verbs-interceptor",
    "facts",
)


#: Bytes at the beginning of a file by which a profile is known.
HEAD = 1 << 20


def read_bytes(path: Path) -> bytes:
    """Return a file's content, unpacked if it is gzip under any name.

    Raises:
        CompareError: Unreadable, or damaged gzip.
    """
    try:
        with open(path, "rb") as file:
            head = file.read(len(MAGIC))
            file.seek(0)
            if head != MAGIC:
                return file.read()
            data, wrong = gunzip(file, most_unpacked())
    except OSError as error:
        raise CompareError(f"{path}: {error.strerror}", path=str(path)) from error
    except TooLargeError as error:
        raise CompareError(f"{path}: {error}", path=str(path)) from error
    if wrong:
        raise CompareError(f"{path}: damaged gzip: {wrong}", path=str(path))
    return bytes(data)


def _head(path: Path) -> bytes:
    """Return the first `HEAD` bytes of a file's content, all of a shorter one's."""
    try:
        with open(path, "rb") as file:
            data = file.read(HEAD)
        if data[:2] != b"\x1f\x8b":
            return data
        with gzip.open(path) as unpacked:
            return unpacked.read(HEAD)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise CompareError(f"{path}: damaged gzip: {error}", path=str(path)) from error
    except OSError as error:
        raise CompareError(f"{path}: {error.strerror}", path=str(path)) from error


@dataclass(frozen=True)
class Found:
    """What a file is: its format, and what has been parsed already."""

    path: Path
    format: str
    content: Any


def load_truth(path: str | os.PathLike[str]) -> Truth:
    """Read ground truth; the format is found by content.

    A folder is one source: files of one run (one a rank), or one table after the other. Where it
    holds several formats, the one that says most is read (`ORDER`); Kineto traces take sizes from
    execution traces of the same ranks beside them.

    Args:
        path: A file or folder.

    Raises:
        CompareError: Missing, of no known format, or without anything usable.
        InputError: `path` is no path.
    """
    checks.path("path", path, "a file or folder")
    target = Path(path)
    if not target.exists():
        raise CompareError(f"no such file or folder: {target}", path=str(target))
    if target.is_dir():
        if (target / "manifest.json").is_file():
            from genie.compare.truth.recording import from_recording
            from genie.replay.recording import Recording

            return from_recording(Recording.load(target), str(target))
        files = sorted(p for p in target.iterdir() if p.is_file() and p.name[:1] != ".")
        if not files:
            raise CompareError(f"{target}: the folder has no files", path=str(target))
    else:
        files = [target]
    return _read(files, target)


def _read(files: list[Path], source: Path) -> Truth:
    found: list[Found] = []
    refused: list[CompareError] = []
    for path in files:
        try:
            found.append(identify(path))
        except CompareError as error:
            refused.append(error)
    if not found:
        if len(refused) == 1:
            raise refused[0]
        raise CompareError(
            f"{source}: not a format GENIE reads as ground truth: {refused[0].message}",
            path=str(source),
        )
    by = Counter(item.format for item in found)
    chosen = min(by, key=ORDER.index)
    mine = [item for item in found if item.format == chosen]
    truth = READERS[chosen](mine, source)
    if chosen == "kineto" and by["pytorch-et"]:
        from genie.compare.truth.sizes import with_host_sizes

        traces = {item.path: item.content for item in found if item.format == "pytorch-et"}
        truth = with_host_sizes(truth, traces)
        by.pop("pytorch-et")
    others = {f"file of another format ({name}), not read": n for name, n in by.items()
              if name != chosen}  # fmt: skip
    if refused:
        others["file of no known format"] = len(refused)
    return replace(truth, unused=truth.unused | others) if others else truth


def identify(path: Path) -> Found:
    """Return what a file is, by its content.

    Raises:
        CompareError: Empty, or nothing that is known.
    """
    from genie.compare.truth import kineto_file, nsys

    data = _head(path)
    if data.startswith(nsys.MAGIC):
        return Found(path, "nsys-sqlite", None)
    if kineto_file.is_kineto(data) and not _is_plugin_head(data):
        # Profiles can be larger than memory: they are read piece by piece later.
        return Found(path, "kineto", None)
    if len(data) >= HEAD:
        data = read_bytes(path)
    if not data or data.isspace():
        raise CompareError(f"{path}: the file is empty", path=str(path))
    if kineto_file.is_kineto(data) and not _is_plugin_head(data):
        return Found(path, "kineto", None)
    text = data.decode(errors="replace")
    if text.lstrip()[:1] in ("{", "["):
        return _json(path, text)
    return _text(path, text)


def _is_plugin_head(data: bytes) -> bool:
    head = data[: 1 << 16]
    return any(f'"cat": "{cat}"'.encode() in head or f'"cat":"{cat}"'.encode() in head
               for cat in ("COLL", "P2P", "PROXY", "NET_IB", "NET"))  # fmt: skip


def _json(path: Path, text: str) -> Found:
    from genie.compare.truth import inspector, interceptor, nccl_tests, perftest, plugin
    from genie.compare.truth.host_trace import is_host_trace

    document, whole = _parse(text)
    if not whole and not isinstance(document, dict | list):
        # Log lines that begin with a bracket.
        return _text(path, text)
    if whole and is_host_trace(document):
        return Found(path, "pytorch-et", document)
    if nccl_tests.is_json(document):
        return Found(path, "nccl-tests JSON", document)
    if perftest.is_json(document):
        return Found(path, "perftest JSON", document)
    if inspector.is_record(document[0] if isinstance(document, list) and document else document):
        return Found(path, "nccl-inspector", text)
    events = plugin.events_of(document)
    if events is not None:
        return Found(path, "nccl-profiler-plugin", events)
    records = interceptor.requests_of(document)
    if records is not None:
        return Found(path, "verbs-interceptor", records)
    if not whole:
        lines = list(inspector.records(text))
        if any(map(inspector.is_record, lines)):
            return Found(path, "nccl-inspector", text)
        if any(map(interceptor.is_request, lines)):
            return Found(path, "verbs-interceptor", lines)
    if whole and isinstance(document, dict):
        return Found(path, "facts", document)
    raise CompareError(
        f"{path}: JSON of no format GENIE reads as ground truth"
        + ("" if whole else " (and not well-formed)"),
        path=str(path),
    )


def _parse(text: str) -> tuple[Any, bool]:
    """Return a document and whether it is whole; else its first value or what can be mended."""
    from genie.compare.truth import inspector
    from genie.compare.truth.kineto_file import mend

    try:
        return json.loads(text), True
    except (ValueError, RecursionError):
        pass
    # Plugins write an array they never close, with a comma at the end.
    for tail in ("", "]", "]}"):
        try:
            return json.loads(mend((text.rstrip().rstrip(",") + tail).encode())), True
        except (ValueError, RecursionError):
            continue
    return next(iter(inspector.records(text)), None), False


def _text(path: Path, text: str) -> Found:
    from genie.compare.truth import astra, nccl_log, nccl_tests, perftest

    for name, known in (
        ("astra-sim", astra.is_astra),
        ("nccl-tests text", nccl_tests.is_text),
        ("perftest text", perftest.is_text),
        ("nccl-log", nccl_log.is_log),
    ):
        if known(text):
            return Found(path, name, text)
    from genie.compare.truth.counters import refuse

    refuse(path, text)
    raise CompareError(f"{path}: not a format GENIE reads as ground truth", path=str(path))


def _kineto(items: list[Found], source: Path) -> Truth:
    from genie.compare.truth import kineto

    return kineto.read([item.path for item in items], source)


def _host(items: list[Found], source: Path) -> Truth:
    from genie.compare.truth import host_trace

    return host_trace.read({item.path: item.content for item in items}, source)


def _plugin(items: list[Found], source: Path) -> Truth:
    from genie.compare.truth import plugin

    return plugin.read({item.path: item.content for item in items}, source)


def _inspector(items: list[Found], source: Path) -> Truth:
    from genie.compare.truth import inspector

    return inspector.read({item.path: item.content for item in items}, source)


def _interceptor(items: list[Found], source: Path) -> Truth:
    from genie.compare.truth import interceptor

    return interceptor.read({item.path: item.content for item in items}, source)


def _each(read: Callable[[Path, Any], Truth]) -> Callable[[list[Found], Path], Truth]:
    """Return a reader of a folder from one of a file: its tables one after the other."""

    def reader(items: list[Found], source: Path) -> Truth:
        from genie.compare.truth.model import joined

        return joined([read(item.path, item.content) for item in items], str(source))

    return reader


def _nsys(path: Path, _: Any) -> Truth:
    from genie.compare.truth import nsys

    return nsys.read(path)


def _tests_text(path: Path, text: str) -> Truth:
    from genie.compare.truth import nccl_tests

    return nccl_tests.read_text(path, text)


def _tests_json(path: Path, document: Any) -> Truth:
    from genie.compare.truth import nccl_tests

    return nccl_tests.read_json(path, document)


def _log(path: Path, text: str) -> Truth:
    from genie.compare.truth import nccl_log

    return nccl_log.read(path, text)


def _astra(path: Path, text: str) -> Truth:
    from genie.compare.truth import astra

    return astra.read(path, text)


def _perf_text(path: Path, text: str) -> Truth:
    from genie.compare.truth import perftest

    return perftest.read_text(path, text)


def _perf_json(path: Path, document: Any) -> Truth:
    from genie.compare.truth import perftest

    return perftest.read_json(path, document)


def _facts(path: Path, document: Any) -> Truth:
    from genie.compare.truth import facts

    truth = facts.read(path, document)
    if truth is None:
        raise CompareError(
            f"{path}: JSON without an operation, size or time that GENIE knows: "
            f"its keys are {', '.join(map(str, list(document)[:8]))}",
            path=str(path),
        )
    return truth


READERS: dict[str, Callable[[list[Found], Path], Truth]] = {
    "kineto": _kineto,
    "pytorch-et": _host,
    "nsys-sqlite": _each(_nsys),
    "nccl-profiler-plugin": _plugin,
    "nccl-inspector": _inspector,
    "nccl-tests text": _each(_tests_text),
    "nccl-tests JSON": _each(_tests_json),
    "nccl-log": _each(_log),
    "astra-sim": _each(_astra),
    "perftest text": _each(_perf_text),
    "perftest JSON": _each(_perf_json),
    "verbs-interceptor": _interceptor,
    "facts": _each(_facts),
}
