"""The C driver of driver.c, compiled once and called through ctypes."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
FAKE = HERE.parent / "fakeverbs"


def build_dir() -> Path:
    """A folder for compiled helpers: beside the rig's image, or a temporary one."""
    for base in (os.environ.get("XDG_CACHE_HOME"), HERE.parents[1] / ".cache"):
        if base:
            try:
                folder = Path(base) / "verbs-tests"
                folder.mkdir(parents=True, exist_ok=True)
            except OSError:
                continue
            if os.access(folder, os.W_OK):
                return folder
    return Path(tempfile.mkdtemp(prefix="verbs-tests-"))


def compile_c(source: Path, *options: str, name: str = "") -> Path:
    """Compile a C file (again only when it changed); a library if `-shared` is asked for.

    The result is looked up by content first, so that a guest with a read-only checkout uses what
    the host compiled.
    """
    text = source.read_bytes() + " ".join(options).encode()
    digest = hashlib.sha256(text).hexdigest()[:12]
    suffix = ".so" if "-shared" in options else ""
    folder = build_dir() / f"{source.stem}-{digest}"
    target = folder / (name or source.stem + suffix)
    known = HERE.parents[1] / ".cache/verbs-tests" / folder.name / target.name
    if known.exists():
        return known
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        partial = target.with_suffix(f".{os.getpid()}")
        libraries = [option for option in options if option.startswith("-l")]
        rest = [option for option in options if not option.startswith("-l")]
        subprocess.run(
            ["cc", "-O2", "-g", "-Wall", *rest, str(source), "-o", str(partial), *libraries],
            check=True,
        )
        partial.rename(target)
    return target


def fake_library() -> Path:
    """tests/fakeverbs as libibverbs.so.1."""
    version = f"-Wl,--version-script={FAKE / 'fakeverbs.map'}"
    return compile_c(
        FAKE / "fakeverbs.c",
        "-shared",
        "-fPIC",
        "-fvisibility=hidden",
        "-Wl,-soname,libibverbs.so.1",
        version,
        name="libibverbs.so.1",
    )


class _Flow(ctypes.Structure):
    _fields_ = (
        ("conn", ctypes.c_uint32),
        ("sender", ctypes.c_uint32),
        ("window", ctypes.c_uint32),
        ("steps", ctypes.c_uint32),
        ("count", ctypes.c_uint64),
        ("n_sizes", ctypes.c_uint64),
        ("sizes", ctypes.POINTER(ctypes.c_uint64)),
        ("posted", ctypes.c_uint64),
        ("complete", ctypes.c_uint64),
        ("first_ns", ctypes.c_int64),
        ("last_ns", ctypes.c_int64),
        ("status", ctypes.c_int32),
        ("blocked", ctypes.c_uint32),
        ("times", ctypes.POINTER(ctypes.c_int64)),
    )


@dataclass
class Flow:
    """The messages of one connection at one end, and afterwards what became of them."""

    conn: int
    sender: bool
    sizes: Sequence[int]
    count: int = 0
    window: int = 8
    steps: int = 1
    posted: int = 0
    complete: int = 0
    first_ns: int = 0
    last_ns: int = 0
    status: int = 0
    times: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.count = self.count or len(self.sizes)


@functools.cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(compile_c(HERE / "driver.c", "-shared", "-fPIC")))
    library.blast.argtypes = [
        ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64,
        ctypes.c_void_p,
    ]  # fmt: skip
    return library


def pointer(transport: object) -> int:
    """The address of a transport's vtable."""
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype = ctypes.c_void_p
    get.argtypes = [ctypes.py_object, ctypes.c_char_p]
    capsule = transport.capsule  # type: ignore[attr-defined]
    return int(get(capsule, b"genie.transport"))


def drive(
    sides: Sequence[tuple[object, Sequence[Flow]]], timeout: float = 20.0, sleep: bool = True
) -> int:
    """Run the flows of transports in this process; 0, -errno, or 1 when a flow failed."""
    n = len(sides)
    transports = (ctypes.c_void_p * n)(*[pointer(side) for side, _ in sides])
    arrays, keep = [], []
    for _, flows in sides:
        array = (_Flow * max(1, len(flows)))()
        for row, flow in zip(array, flows, strict=False):
            sizes = (ctypes.c_uint64 * len(flow.sizes))(*flow.sizes)
            times = (ctypes.c_int64 * flow.count)()
            keep += [sizes, times]
            row.conn, row.sender, row.window, row.steps = (
                flow.conn, flow.sender, flow.window, flow.steps,
            )  # fmt: skip
            row.count, row.n_sizes = flow.count, len(flow.sizes)
            row.sizes = ctypes.cast(sizes, ctypes.POINTER(ctypes.c_uint64))
            row.times = ctypes.cast(times, ctypes.POINTER(ctypes.c_int64))
        arrays.append(array)
    pointers = (ctypes.POINTER(_Flow) * n)(
        *[ctypes.cast(array, ctypes.POINTER(_Flow)) for array in arrays]
    )
    counts = (ctypes.c_int * n)(*[len(flows) for _, flows in sides])
    rc = _library().drive(
        transports, n, pointers, counts, ctypes.c_int64(int(timeout * 1e9)), int(sleep)
    )
    for array, (_, flows) in zip(arrays, sides, strict=True):
        for row, flow in zip(array, flows, strict=False):
            flow.posted, flow.complete, flow.status = row.posted, row.complete, row.status
            flow.first_ns, flow.last_ns = row.first_ns, row.last_ns
            flow.times = [row.times[i] for i in range(row.complete)]
    return int(rc)


def blast(
    transport: object, conn: int, nbytes: int, count: int, depth: int, to: object | None = None
) -> int:
    """Post and poll alone, without any bookkeeping; 0 or an error."""
    target = pointer(to) if to is not None else None
    return int(_library().blast(pointer(transport), conn, nbytes, count, depth, target))


def joined(a: object, b: object) -> object:
    """Two transports as one capsule for an engine that runs both ends (see driver.c)."""
    library = _library()
    library.join.restype = ctypes.c_void_p
    library.join.argtypes = [ctypes.c_void_p] * 3
    memory = ctypes.create_string_buffer(128)
    keep = (memory, a, b, a.capsule, b.capsule)  # type: ignore[attr-defined]
    address = library.join(ctypes.addressof(memory), pointer(a), pointer(b))
    new = ctypes.pythonapi.PyCapsule_New
    new.restype = ctypes.py_object
    new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    name = ctypes.c_char_p(b"genie.transport")
    _joined.append((keep, name))
    return new(address, name, None)


_joined: list[object] = []  # what capsules point into lives as long as the process
