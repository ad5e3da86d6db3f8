"""A progress bar on stderr for work over a second; nothing when nobody watches."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from tqdm import tqdm

Progress: TypeAlias = Callable[[int, int], None]


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
    notebook = in_notebook()
    if wanted is None and not notebook and not (sys.stderr and sys.stderr.isatty()):
        return None
    return _Bar(label, notebook)


def _tqdm(notebook: bool) -> Any:
    if notebook:
        from tqdm.auto import tqdm as auto

        return auto
    from tqdm import tqdm

    return tqdm


class _Bar:
    """Draws with tqdm, from the first second on."""

    def __init__(self, label: str, notebook: bool) -> None:
        self._label = label
        self._notebook = notebook
        self._bar: tqdm[Any] | None = None

    def __call__(self, done: int, total: int) -> None:
        if self._bar is None:
            self._bar = _tqdm(self._notebook)(
                total=total, desc=self._label, unit="node", unit_scale=True, delay=1.0,
                leave=False, file=sys.stderr, dynamic_ncols=True,
            )  # fmt: skip
        self._bar.update(done - self._bar.n)
        if done >= total:
            self.close()

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.close()
