"""Progress of work over a second: a bar on stderr, or a display that updates in a notebook."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from tqdm import tqdm

Progress: TypeAlias = Callable[[int, int], None]

#: Shorter work shows nothing, s.
DELAY_S = 1.0


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"


def make_progress(wanted: Progress | bool | None, label: str) -> Progress | None:
    """Return what to call with (nodes done, nodes in all), or None.

    Args:
        wanted: A function of the caller's; True for a bar; False for none; None for a bar when
            stderr is a terminal or this is a notebook.
        label: Text before the bar.
    """
    if wanted is False:
        return None
    if callable(wanted):
        return wanted
    if in_notebook():
        return _Display(label)
    if wanted is None and not (sys.stderr and sys.stderr.isatty()):
        return None
    return _Bar(label)


class _Display:
    """One output of a notebook's cell that is replaced as work goes on; needs no widgets."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._begin = time.monotonic()
        self._handle: Any = None

    def __call__(self, done: int, total: int) -> None:
        passed = time.monotonic() - self._begin
        if self._handle is None and passed < DELAY_S:
            return
        text = f"{self._label}: {done} of {total} nodes, {passed:.1f} s"
        content = {
            "text/plain": text,
            "text/html": f"<progress value='{done}' max='{total}'></progress> {text}",
        }
        if self._handle is None:
            from IPython.display import display

            self._handle = display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)

    def close(self) -> None:
        """Say that it is over."""
        if self._handle is not None:
            passed = time.monotonic() - self._begin
            text = f"{self._label}: over after {passed:.1f} s"
            self._handle.update({"text/plain": text, "text/html": text}, raw=True)


class _Bar:
    """Draws with tqdm, from the first second on."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._bar: tqdm[Any] | None = None

    def __call__(self, done: int, total: int) -> None:
        if self._bar is None:
            from tqdm import tqdm

            self._bar = tqdm(
                total=total, desc=self._label, unit="node", unit_scale=True, delay=DELAY_S,
                leave=False, file=sys.stderr, dynamic_ncols=True,
            )  # fmt: skip
        self._bar.update(done - self._bar.n)
        if done >= total:
            self.close()

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.close()
