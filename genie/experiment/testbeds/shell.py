"""Commands that build networks, and a guard that takes them down when this process is killed."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence

from genie.errors import GenieError

#: Seconds for any one command.
LIMIT = 60.0
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


class FabricError(GenieError):
    """A test network that could not be made, changed or taken down."""


def need(*names: str) -> None:
    """Raise FabricError unless these commands are here."""
    missing = [name for name in names if shutil.which(name, path=_PATH) is None]
    if missing:
        raise FabricError(f"this testbed needs {' and '.join(missing)}, which is not here")


def need_root(what: str) -> None:
    """Raise FabricError unless this is root."""
    if os.geteuid() != 0:
        raise FabricError(f"{what} needs root (user {os.geteuid()} is not)")


def run(*words: str, text: str | None = None, env: Mapping[str, str] | None = None) -> str:
    """Run a command; return what it printed.

    Raises:
        FabricError: It failed; with the command and what it said.
    """
    try:
        done = subprocess.run(
            words,
            input=text,
            capture_output=True,
            text=True,
            timeout=LIMIT,
            env={**os.environ, "PATH": _PATH, **(env or {})},
            # Ctrl-C is for us to act on: half a network must not come of it.
            start_new_session=True,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise FabricError(f"`{' '.join(words)}` did not end within {LIMIT:g} s") from None
    except OSError as exc:
        raise FabricError(f"`{' '.join(words)}` cannot be run: {exc.strerror}") from exc
    if done.returncode:
        said = (done.stderr or done.stdout).strip()[-500:]
        shown = f" of {text.strip()[:300]!r}" if text else ""
        raise FabricError(f"`{' '.join(words)}`{shown} failed ({done.returncode}): {said}")
    return done.stdout


def tried(*words: str) -> bool:
    """Run a command; return whether it worked."""
    try:
        run(*words)
    except FabricError:
        return False
    return True


class Guard:
    """A shell that runs `cleanup` when told to, or when this process is gone.

    It waits for the end of its standard input, which the kernel closes however this process ends,
    by SIGKILL too.
    """

    def __init__(self, cleanup: Sequence[str]) -> None:
        # exec'ed by the shell one line each; a line that fails does not stop the next.
        script = "cat >/dev/null\n" + "\n".join(f"{line} 2>/dev/null" for line in cleanup) + "\n:"
        self._child = subprocess.Popen(
            ["sh", "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, "PATH": _PATH},
            cwd="/",
        )

    def clean(self) -> None:
        """Run the cleanup now; a second call does nothing."""
        if self._child.stdin is not None and not self._child.stdin.closed:
            with contextlib.suppress(OSError):
                self._child.stdin.close()
        try:
            self._child.wait(LIMIT)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
            raise FabricError(f"the testbed was not taken down within {LIMIT:g} s") from None
