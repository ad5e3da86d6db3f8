"""Fault → what the user is told → how soon every worker is gone → what is kept."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import genie
from genie.errors import GenieError, LaunchError
from genie.replay.recording import Recording
from runtime.steps import steps, write_steps

ROOT = Path(__file__).parents[2]
GONE = 5.0  # seconds within which all workers must be gone


def workers_of(pid: int) -> list[int]:
    """Pids of the worker processes that `pid` started."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            stat = (path / "stat").read_text()
            command = (path / "cmdline").read_bytes()
        except OSError:
            continue
        if int(stat.rpartition(")")[2].split()[1]) == pid and b"genie.replay.worker" in command:
            found.append(int(path.name))
    return sorted(found)


def alive(pids: list[int]) -> list[int]:
    out = []
    for pid in pids:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                out.append(pid)
        except OSError:
            pass
    return out


class Command:
    """`genie replay` of a trace of about ten seconds on two workers, in a process of its own."""

    def __init__(self, folder: Path, *more: str, env: dict[str, str] | None = None, workers=2):
        prefix = write_steps(folder / "trace", ranks=4, steps=100, comp_ns=100_000_000)
        self.out = folder / "run"
        self.begin = time.monotonic()
        self.process = subprocess.Popen(
            [
                sys.executable, "-m", "genie.cli", "replay", str(prefix), "--endpoints",
                f"local:{workers}", "-o", str(self.out), *more,
            ],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
            env={**os.environ, **(env or {})},
        )  # fmt: skip
        self.workers: list[int] = []
        deadline = time.monotonic() + 60
        while len(self.workers) < workers and self.process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.05)
            self.workers = workers_of(self.process.pid)

    def wait_running(self) -> None:
        """Wait until messages flow: each worker has connected to the other."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            threads = [len(list(Path(f"/proc/{w}/fd").iterdir())) for w in alive(self.workers)]
            # Standard files, the control connection, epoll, memfd and 4 data connections.
            if len(threads) == len(self.workers) and min(threads) >= 9:
                time.sleep(1.0)
                return
            if self.process.poll() is not None:
                raise AssertionError(f"it ended before it began: {self.process.communicate()}")
            time.sleep(0.05)
        raise AssertionError("the run did not begin")

    def end(self) -> tuple[int, str, float]:
        """Return exit code, stderr, and the seconds since `mark` until all workers were gone."""
        while alive(self.workers) and time.monotonic() < self.mark + 30:
            time.sleep(0.02)
        assert not alive(self.workers)
        seconds = time.monotonic() - self.mark
        _, err = self.process.communicate(timeout=60)
        assert "Traceback" not in err, err
        return self.process.returncode, err, seconds

    mark = 0.0


def test_killed_worker(tmp_path):
    command = Command(tmp_path)
    command.wait_running()
    command.mark = time.monotonic()
    os.kill(command.workers[1], signal.SIGKILL)
    code, err, seconds = command.end()
    assert code == 1 and seconds < GONE
    assert "was killed by SIGKILL" in err and ("ranks 2-3" in err or "ranks 0-1" in err)
    rec = Recording.load(command.out)
    assert not rec.complete and "SIGKILL" in rec.manifest["incomplete"]
    assert len(np.unique(rec.ops["rank"])) == 2  # the other worker's
    assert len(rec.ops) > 10 and (rec.ops["end_ns"] > 0).any()
    assert "WorkerLostError" in set(rec.column("failures", "error"))
    assert "INCOMPLETE" in rec.summary()


@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM])
def test_interrupt(tmp_path, which):
    command = Command(tmp_path)
    command.wait_running()
    command.mark = time.monotonic()
    command.process.send_signal(which)
    code, err, seconds = command.end()
    name = "Ctrl-C" if which == signal.SIGINT else "SIGTERM"
    assert code == 1 and seconds < GONE and f"interrupted by {name}" in err
    rec = Recording.load(command.out)
    assert not rec.complete and len(np.unique(rec.ops["rank"])) == 4 and len(rec.messages) > 10
    done = rec.ops["end_ns"] >= 0
    assert done.any() and not done.all()
    assert err.count("error:") == 1


def test_second_interrupt_ends_at_once(tmp_path):
    """With a worker that answers nothing any more, the first Ctrl-C waits, the second does not."""
    command = Command(tmp_path)
    command.wait_running()
    os.kill(command.workers[0], signal.SIGSTOP)
    command.mark = time.monotonic()
    command.process.send_signal(signal.SIGINT)
    time.sleep(0.4)
    command.process.send_signal(signal.SIGINT)
    code, err, seconds = command.end()
    assert code == 1 and seconds < 3 and "interrupted by Ctrl-C" in err
    assert not Recording.load(command.out).complete


def test_stopped_worker_is_blamed(tmp_path):
    command = Command(tmp_path, "--timeout", "3s")
    command.wait_running()
    command.mark = time.monotonic()
    os.kill(command.workers[0], signal.SIGSTOP)
    code, err, seconds = command.end()
    assert code == 1 and seconds < 3 + GONE
    assert "nothing moved for 3.1 s" in err and "waits for" in err and "grads" in err
    assert "which does not answer any more, is waited for by rank" in err
    rec = Recording.load(command.out)
    assert "nothing came from" in rec.manifest["incomplete"]
    assert len(np.unique(rec.ops["rank"])) == 2


def test_no_orphans_when_the_command_is_killed(tmp_path):
    command = Command(tmp_path)
    command.wait_running()
    command.mark = time.monotonic()
    command.process.kill()
    command.process.communicate()
    while alive(command.workers) and time.monotonic() < command.mark + 30:
        time.sleep(0.02)
    assert time.monotonic() - command.mark < GONE


def test_interrupt_while_starting(tmp_path):
    command = Command(tmp_path)
    command.mark = time.monotonic()
    command.process.send_signal(signal.SIGINT)
    code, err, seconds = command.end()
    assert code == 1 and seconds < GONE and "interrupted" in err


def sitecustomize(folder: Path, code: str) -> dict[str, str]:
    """Environment in which every Python process first runs `code` (if it is a worker)."""
    folder.mkdir()
    text = "import sys\nif 'genie.replay.worker' in ' '.join(sys.orig_argv):\n"
    (folder / "sitecustomize.py").write_text(
        text + "".join(f"    {line}\n" for line in code.splitlines())
    )
    return {"PYTHONPATH": str(folder)}


def replay_with(tmp_path, monkeypatch, code, **options):
    for name, value in sitecustomize(tmp_path / "site", code).items():
        monkeypatch.setenv(name, value)
    begin = time.monotonic()
    with pytest.raises(GenieError) as caught:
        genie.replay(
            steps(tmp_path / "trace", ranks=4, steps=3), "local:2", progress=False, **options
        )
    assert workers_of(os.getpid()) == []
    return caught.value, time.monotonic() - begin


def test_version_mismatch(tmp_path, monkeypatch):
    error, _ = replay_with(
        tmp_path,
        monkeypatch,
        "import types\n"
        "m = types.ModuleType('genie.version')\n"
        "m.__version__ = '0.0.9'\n"
        "sys.modules['genie.version'] = m",
    )
    assert isinstance(error, LaunchError)
    assert "runs genie 0.0.9" in str(error) and f"this process genie {genie.__version__}" in str(
        error
    )


def test_worker_that_cannot_start_shows_its_last_words(tmp_path, monkeypatch):
    error, seconds = replay_with(
        tmp_path, monkeypatch, "sys.stderr.write('no libfoo here')\nimport os\nos._exit(3)"
    )
    assert "exit code 3" in str(error) and "no libfoo here" in str(error) and seconds < 20
    assert "worker 0 (localhost, ranks 0-1)" in str(error) or "worker 1" in str(error)


def test_worker_that_never_calls_is_named(tmp_path, monkeypatch):
    error, seconds = replay_with(
        tmp_path,
        monkeypatch,
        "import os, time\nif '--worker 1' in ' '.join(sys.orig_argv): time.sleep(600)",
        timeout=3.0,
    )
    assert "1 of 2 workers are missing (starting): worker 1 (localhost, ranks 2-3)" in str(error)
    assert seconds < 3 + GONE


def test_memory_limit(tmp_path, monkeypatch):
    """A worker that may not have the memory for its log says so."""
    code = "import resource\nresource.setrlimit(resource.RLIMIT_AS, (400 << 20, 400 << 20))"
    for name, value in sitecustomize(tmp_path / "site", code).items():
        monkeypatch.setenv(name, value)
    trace = steps(tmp_path / "trace", ranks=4, steps=3)
    with pytest.raises(GenieError) as caught:
        genie.replay(trace, "local:2", progress=False, iterations=2_000_000)
    assert "emory" in str(caught.value) and "worker" in str(caught.value)
    assert workers_of(os.getpid()) == []


def test_crash_in_a_worker_is_one_error(tmp_path, monkeypatch):
    error, _ = replay_with(
        tmp_path,
        monkeypatch,
        "import threading, os, signal\n"
        "threading.Timer(6.0, lambda: os.kill(os.getpid(), signal.SIGSEGV)).start()",
        time_scale=20000.0,
    )
    assert "SIGSEGV" in str(error) and error.recording.complete is False


def test_record_keeps_the_partial_recording(tmp_path):
    trace = steps(tmp_path, ranks=4, steps=100, comp_ns=100_000_000)

    def strike():
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            found = workers_of(os.getpid())
            if len(found) == 2 and all(len(os.listdir(f"/proc/{w}/fd")) >= 9 for w in alive(found)):
                time.sleep(0.7)
                os.kill(found[0], signal.SIGKILL)
                return
            time.sleep(0.05)

    thread = threading.Thread(target=strike)
    thread.start()
    rec = genie.replay(trace, "local:2", on_error="record", progress=False)
    thread.join()
    assert not rec.complete and len(rec.ops) > 0 and "SIGKILL" in rec.manifest["incomplete"]
    json.dumps(rec.manifest)
    rec.save(tmp_path / "run")


def test_interrupt_in_a_notebook_is_keyboard_interrupt_with_the_recording(tmp_path):
    trace = steps(tmp_path, ranks=4, steps=100, comp_ns=100_000_000)
    timer = threading.Timer(5.0, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt) as caught:
        genie.replay(trace, "local:2", progress=False)
    timer.join()
    rec = getattr(caught.value, "recording", None)
    assert rec is not None and not rec.complete and len(rec.ops) > 0
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_secret_is_on_no_command_line(tmp_path):
    command = Command(tmp_path)
    environ = Path(f"/proc/{command.workers[0]}/environ")
    # A worker reads it from its environment; the command line, open to all, has none.
    secret = dict(
        item.split(b"=", 1) for item in environ.read_bytes().split(b"\0") if b"=" in item
    )[b"GENIE_SECRET"]
    assert len(secret) == 64
    for pid in command.workers:
        assert secret not in Path(f"/proc/{pid}/cmdline").read_bytes()
    command.mark = time.monotonic()
    command.process.send_signal(signal.SIGINT)
    command.end()


@pytest.fixture
def full_disk(tmp_path):
    """A file system of 64 KiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a small file system needs root and mount(8)")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_full_disk(tmp_path, full_disk):
    prefix = write_steps(tmp_path / "trace", ranks=4, steps=200, comp_ns=1_000)
    done = subprocess.run(
        [sys.executable, "-m", "genie.cli", "replay", str(prefix), "-o", str(full_disk / "run")],
        capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "was not written" in done.stderr and "No space left on device" in done.stderr
    assert list(full_disk.iterdir()) == []
    assert "all_reduce" in done.stdout  # what was measured is shown all the same


def test_rank_that_lacks_a_collective_is_found_before_anything_runs(tmp_path):
    prefix = write_steps(tmp_path / "trace", ranks=4, steps=3)
    write_steps(tmp_path / "short", ranks=4, steps=2)
    (tmp_path / "trace/steps.3.et").write_bytes((tmp_path / "short/steps.3.et").read_bytes())
    begin = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "genie.cli", "replay", str(prefix), "-o", str(tmp_path / "run")],
        capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 1 and done.stderr.count("error:") == 1
    assert "rank 3" in done.stderr and "all_reduce" in done.stderr and "worker" not in done.stderr
    assert not (tmp_path / "run").exists() and time.monotonic() - begin < 60


def test_slow_disk(tmp_path, monkeypatch):
    """Recordings that stay on a disk of 0.7 s a write: the run is as fast, the end waits for it."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler for the slow disk")
    shim = tmp_path / "slowdisk.so"
    source = Path(__file__).with_name("slowdisk.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", shim, source, "-ldl"], check=True)
    monkeypatch.setenv("LD_PRELOAD", str(shim))
    monkeypatch.setenv("SLOW_DIR", str(tmp_path / "kept"))
    monkeypatch.setenv("SLOW_MS", "700")
    trace = steps(tmp_path / "trace", ranks=2, steps=2)
    rec = genie.replay(
        trace, "local:2", progress=False, quiet=True, keep_remote=tmp_path / "kept", timeout=120
    )
    monkeypatch.delenv("LD_PRELOAD")
    assert rec.complete and workers_of(os.getpid()) == []
    # A write and a sync at least, after the run and not in it.
    assert rec.manifest["seconds"]["run"] > 1.4 > rec.health["wall_ns"].max() / 1e9
    rec.save(tmp_path / "run")
    whole = Recording.load(tmp_path / "run")
    assert len(np.unique(whole.ops["rank"])) == 2 and (whole.ops["end_ns"] > 0).all()
